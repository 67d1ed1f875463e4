"""Operators that rearrange: sizes, reshapes, slices, joins, pads, and tensors that are made of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch

from mobopt.errors import BundleError
from mobopt.frontends.onnx.elements import dtype_of
from mobopt.frontends.onnx.few_bits import held_by, transposed
from mobopt.frontends.onnx.operands import Operand, carrier, number_array, of_constant, of_numbers
from mobopt.frontends.onnx.patterns import permuted, selected, stacked
from mobopt.frontends.onnx.pool_patterns import unpooled
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Value

_END = (1 << 63) - 1


@translates("Constant")
def _constant(call: Call) -> Any:
    if "value" in call.attributes:
        return call.translator.constant(call.get("value"), call.node.output[0])
    if "sparse_value" in call.attributes:
        return call.translator.sparse(call.get("sparse_value"))
    for name, dtype in (("value_int", torch.int64), ("value_float", torch.float32)):
        for key in (name, f"{name}s"):
            if key in call.attributes:
                return of_constant(torch.tensor(call.get(key), dtype=dtype))
    raise call.unsupported("it is a string")


@translates("Shape")
def _shape(call: Call) -> Any:
    rank = call.rank()
    dims = range(rank)[slice(call.get("start", 0), call.get("end"))]
    return of_numbers(number_array([call.size(0, dim) for dim in dims]), torch.int64)


@translates("Size")
def _size(call: Call) -> Any:
    total: Any = 1
    for size in call.sizes():
        total = call.emit("mul.int", total, size) if total != 1 or not isinstance(size, Value) else size
        if isinstance(total, Value):
            call.emit.nonnegative.add(total)
    return of_numbers(number_array([total], ()), torch.int64)


@translates("Reshape")
def _reshape(call: Call) -> Any:
    target = call.get("shape") if len(call.inputs) < 2 else call.numbers(1, call.out_rank())
    if not call.get("allowzero", 0):
        target = [
            call.size(0, dim) if not isinstance(size, Value) and size == 0 else _or_size(call, size, dim)
            for dim, size in enumerate(target)
        ]
    found = unpooled(call, call.tensor(), target)
    found = call.emit("reshape", call.tensor(), target) if found is None else found
    return call.with_sizes(found, target)


def _or_size(call: Call, size: Any, dim: int) -> Any:
    """A size that is computed; zero stands for the input's own."""
    if not isinstance(size, Value) or size in call.emit.nonnegative or dim >= (call.operand().rank or 0):
        return size
    return size if call.operand(1).is_on_host else _own_if_zero(call, size, dim)


def _own_if_zero(call: Call, size: Value, dim: int) -> Any:
    emit = call.emit
    node = emit.builder.if_else(emit("eq.int", size, 0))
    with emit.inside(node.blocks[0]):
        own = emit.value(call.size(0, dim))
    return emit.builder.finish_if(node, [own], [size])[0]


@translates("Flatten")
def _flatten(call: Call) -> Any:
    rank = call.rank()
    axis = call.get("axis", 1)
    axis = axis + rank if axis < 0 else axis
    return flattened(call, call.tensor(), axis)


def flattened(call: Call, x: Any, axis: int) -> Any:
    """The first input as a matrix whose rows are the dimensions before an axis."""
    rank = call.rank()
    if rank and axis == rank:
        return call.emit("reshape", x, [-1, 1])
    if axis == 0:
        return call.emit("reshape", x, [1, -1])
    if axis == 1:
        return call.emit("flatten.using_ints", x, 1)
    known = (call.operand().sizes or ())[axis:]
    if any(size is None for size in known):
        rows: Any = 1
        for dim in range(axis):
            rows = call.emit("mul.int", rows, call.size(0, dim))
        return call.emit("reshape", x, [rows, -1])
    columns = 1
    for size in known:
        columns *= size or 0
    return call.emit("reshape", x, [-1, columns])


@translates("Squeeze")
def _squeeze(call: Call) -> Any:
    axes = call.get("axes")
    x = call.tensor()
    if axes is None and call.has(1):
        axes = call.numbers(1)
    if axes is None:
        sizes = call.operand().sizes
        if sizes is None or None in sizes:
            return Operand(call.dtype(), None, call.emit("squeeze", x))
        axes = [dim for dim, size in enumerate(sizes) if size == 1]
    if any(isinstance(axis, Value) for axis in axes):
        return call.emit("squeeze.dims", x, axes)
    rank = call.rank()
    for axis in sorted((axis % rank if rank else 0 for axis in axes), reverse=True):
        one = selected(call.emit, x, axis)
        x = call.emit("squeeze.dim", x, axis) if one is None else one
    return x


@translates("Unsqueeze")
def _unsqueeze(call: Call) -> Any:
    axes = call.get("axes")
    axes = call.numbers(1) if axes is None else axes
    x = call.tensor()
    if len(axes) == 1:
        return call.emit("unsqueeze", x, axes[0])
    if any(isinstance(axis, Value) for axis in axes):
        raise call.unsupported("its axes are computed at run time")
    rank = call.rank() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = call.emit("unsqueeze", x, axis)
    return x


@translates("Transpose")
def _transpose(call: Call) -> Any:
    order = call.get("perm") or list(range(call.rank()))[::-1]
    x = call.tensor()
    if list(order) == [1, 0] and held_by(x) is not None:
        return transposed(call.emit, x)
    return permuted(call.emit, x, order)


@translates("Concat")
def _concat(call: Call) -> Any:
    parts, axis = call.tensors(), call.axis()
    found = stacked(call.emit, parts, axis)
    return call.emit("cat", parts, axis) if found is None else found


@translates("Expand")
def _expand(call: Call) -> Any:
    """Broadcasts in both directions: a size of 1 leaves the input's own."""
    rank = call.operand().rank
    target = call.numbers(1)
    x = call.tensor()
    if rank is None:
        raise call.unsupported("the number of dimensions of its input is known at run time only")
    width = max(rank, len(target))
    target = [1] * (width - len(target)) + target
    found = []
    for position, size in enumerate(target):
        dim = position - (width - rank)
        own = None if dim < 0 else (call.operand().sizes or ())[dim]
        if not isinstance(size, Value) and size == 1:
            found.append(1 if dim < 0 else -1)
        elif dim < 0 or own == 1 or (not isinstance(size, Value) and own == size):
            found.append(size)
        else:
            found.append(broadcast_size(call, call.size(0, dim), size))
    own_sizes = (*[None] * (width - rank), *(call.operand().sizes or ()))
    sizes = [own if size == -1 else size for own, size in zip(own_sizes, found, strict=True)]
    return call.with_sizes(call.emit("expand", x, found), sizes)


def broadcast_size(call: Call, left: Any, right: Any) -> Any:
    """The size that two broadcast to, one of which is 1 or both of which are the same."""
    emit = call.emit
    if not isinstance(left, Value) and left == 1:
        return right
    least = emit("prim::max.int", emit("prim::min.int", left, right), 1)
    result = emit("floordiv.int", emit("mul.int", left, right), least)
    if isinstance(result, Value):
        emit.nonnegative.add(result)
    return result


@translates("Tile")
def _tile(call: Call) -> Any:
    return call.emit("repeat", call.tensor(), call.numbers(1, call.operand().rank))


@translates("Slice")
def _slice(call: Call) -> Any:
    if call.version < 10:
        starts, ends, axes, steps = call.get("starts"), call.get("ends"), call.get("axes"), None
    else:
        starts, ends = call.numbers(1), call.numbers(2)
        axes = call.numbers(3) if call.has(3) else None
        steps = call.numbers(4) if call.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    x = call.tensor()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = _sliced(call, x, axis, start, end, step)
    return x


def _sliced(call: Call, x: Any, axis: Any, start: Any, end: Any, step: Any) -> Any:
    emit = call.emit
    if not isinstance(step, Value) and step == 0:
        raise BundleError(f"{call.place}: a step of zero")
    if not isinstance(end, Value):
        end = min(max(end, -_END), _END)
    if not isinstance(step, Value) and step > 0:
        return emit("slice.Tensor", x, axis, start, end, step)
    if step == -1 and start == -1 and not isinstance(end, Value) and end <= -(1 << 31):
        return emit("flip", x, [axis])
    # The elements at start, start + step and so on, up to the one before end; backwards they end at zero.
    size = emit("size.int", x, axis)
    backwards = emit("Int.bool", emit("lt.int", step, 0))
    least, most = emit("neg.int", backwards), emit("sub.int", size, backwards)
    first, last = (
        emit("prim::min.int", emit("prim::max.int", _from_front(emit, place, size), least), most)
        for place in (start, end)
    )
    rounding = emit("sub.int", emit("mul.int", backwards, 2), 1)
    reach = emit("add.int", emit("add.int", emit("sub.int", last, first), step), rounding)
    count = emit("prim::max.int", emit("floordiv.int", reach, step), 0)
    picked = emit("mul.Scalar", emit("arange", count, dtype=torch.int64), step)
    return emit("index_select", x, axis, emit("add.Scalar", picked, first))


def _from_front(emit: Any, position: Any, size: Any) -> Any:
    """A position counted from the front, of one that may be counted from the end."""
    if not isinstance(position, Value):
        return emit("add.int", size, position) if position < 0 else position
    behind = emit("Int.bool", emit("lt.int", position, 0))
    return emit("add.int", position, emit("mul.int", behind, size))


@translates("Split")
def _split(call: Call) -> Any:
    axis, count = call.axis(), len(call.node.output)
    parts = call.get("split")
    parts = call.numbers(1) if parts is None and call.has(1) else parts
    if parts is None:
        size = call.size(0, axis)
        each = call.emit("floordiv.int", call.emit("add.int", size, count - 1), count)
        last = call.emit("sub.int", size, call.emit("mul.int", each, count - 1))
        parts = [each] * (count - 1) + [last]
    if len(parts) != count:
        raise BundleError(f"{call.place}: {len(parts)} parts and {count} outputs")
    x, start, found = call.tensor(), 0, []
    for part in parts:
        end = call.emit("add.int", start, part)
        found.append(call.emit("slice.Tensor", x, axis, start, end, 1))
        start = end
    return found


_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@translates("Pad")
def _pad(call: Call) -> Any:
    mode, rank = call.get("mode", "constant"), call.rank()
    if call.version < 11:
        amounts, fill = call.get("pads"), call.get("value", 0.0)
        axes = list(range(rank))
    else:
        axes = [axis % rank for axis in call.constants(3, "which axes it pads")] if call.has(3) else list(range(rank))
        amounts = call.numbers(1, 2 * len(axes))
        fill = call.scalar(2) if call.has(2) else 0
    width = len(axes)
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = amounts[position], amounts[position + width]
    x = call.tensor()
    if mode == "constant":
        return constant_padded(call, x, before, after, fill)
    return _mirrored(call, x, before, after, _PAD_MODES[mode])


def constant_padded(call: Call, x: Any, before: Sequence[Any], after: Sequence[Any], fill: Any) -> Any:
    """A tensor with a number around it; negative amounts cut off."""
    pairs = list(zip(before, after, strict=True))
    while pairs and all(not isinstance(amount, Value) and amount == 0 for amount in pairs[0]):
        pairs.pop(0)
    if not pairs:
        return x
    return call.emit("constant_pad_nd", x, [amount for pair in reversed(pairs) for amount in pair], fill)


def _mirrored(call: Call, x: Any, before: list[Any], after: list[Any], mode: str) -> Any:
    """Pads by elements of the tensor, along one dimension after the other."""
    rank = len(before)
    pairs = [amount for pair in reversed(list(zip(before, after, strict=True))) for amount in pair]
    known = all(not isinstance(amount, Value) for amount in pairs)
    used = [dim for dim in range(rank) if known and (before[dim] or after[dim])]
    if known and not used:
        return x
    is_plain = known and all(amount >= 0 for amount in pairs) and call.dtype().is_floating_point
    if is_plain and rank in (3, 4, 5) and min(used) >= 2:
        return call.emit("pad", x, pairs[: 2 * (rank - 2)], mode)
    for dim in range(rank):
        if known and dim not in used:
            continue
        x = call.emit("index_select", x, dim, _source_positions(call, x, dim, before[dim], after[dim], mode))
    return x


def _source_positions(call: Call, x: Any, dim: int, before: Any, after: Any, mode: str) -> Any:
    emit = call.emit
    size = emit("size.int", x, dim)
    positions = emit("arange.start", emit("neg.int", before), emit("add.int", size, after), dtype=torch.int64)
    if mode == "circular":
        return emit("remainder.Scalar", positions, size)
    if mode == "reflect":
        period = emit("prim::max.int", emit("mul.int", emit("sub.int", size, 1), 2), 1)
        positions = emit("remainder.Scalar", positions, period)
        mirrored = emit("add.Scalar", emit("neg", positions), period)
        return emit("minimum", positions, mirrored)
    return emit("clamp", positions, 0, emit("sub.int", size, 1))


@translates("ConstantOfShape")
def _constant_of_shape(call: Call) -> Any:
    value = call.get("value")
    filled = call.translator.constant(value) if isinstance(value, onnx.TensorProto) else of_constant(torch.zeros(1))
    if filled.value.numel() != 1:
        raise BundleError(f"{call.place}: its value has {filled.value.numel()} elements, not one")
    number = filled.value.reshape(-1)[0].item()
    sizes = call.numbers(0, call.out_rank())
    full = call.emit("full", sizes, number, dtype=carrier(filled.dtype), layout=None, device=None, pin_memory=None)
    known = tuple(size if not isinstance(size, Value) else None for size in sizes)
    return Operand(filled.dtype, known, full)


@translates("Range")
def _range(call: Call) -> Any:
    start, end, step = (call.scalar(index) for index in range(3))
    dtype = carrier(call.dtype())
    return call.emit("arange.start_step", start, end, step, dtype=dtype)


@translates("EyeLike")
def _eye_like(call: Call) -> Any:
    dtype = carrier(dtype_of(call.get("dtype"), call.place) if "dtype" in call.attributes else call.dtype())
    rows, columns = call.sizes()
    offset = call.get("k", 0)
    row = call.emit("reshape", call.emit("arange", rows, dtype=torch.int64), [-1, 1])
    column = call.emit("arange", columns, dtype=torch.int64)
    found = call.emit("eq.Tensor", call.emit("add.Scalar", row, offset), column)
    return call.emit("to.dtype", found, dtype)


@translates("Trilu")
def _trilu(call: Call) -> Any:
    diagonal = call.scalar(1) if call.has(1) else 0
    x, dtype = call.tensor(), call.dtype()
    return call.emit("triu" if call.get("upper", 1) else "tril", x, diagonal) if dtype else x


@translates("DepthToSpace")
def _depth_to_space(call: Call) -> Any:
    block, x = call.get("blocksize"), call.tensor()
    if call.get("mode", "DCR") == "CRD":
        return call.emit("pixel_shuffle", x, block)
    batch, channels, height, width = call.sizes()
    inner = call.emit("floordiv.int", channels, block * block)
    x = call.emit("reshape", x, [batch, block, block, inner, height, width])
    x = call.emit("permute", x, [0, 3, 4, 1, 5, 2])
    return call.emit(
        "reshape", x, [batch, inner, call.emit("mul.int", height, block), call.emit("mul.int", width, block)]
    )


@translates("SpaceToDepth")
def _space_to_depth(call: Call) -> Any:
    block, x = call.get("blocksize"), call.tensor()
    batch, channels, height, width = call.sizes()
    rows, columns = (call.emit("floordiv.int", size, block) for size in (height, width))
    x = call.emit("reshape", x, [batch, channels, rows, block, columns, block])
    order = [0, 1, 3, 5, 2, 4] if call.get("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    x = call.emit("permute", x, order)
    return call.emit("reshape", x, [batch, call.emit("mul.int", channels, block * block), rows, columns])


@translates("CenterCropPad")
def _center_crop_pad(call: Call) -> Any:
    rank = call.rank()
    axes = [axis % rank for axis in call.get("axes") or range(rank)]
    x, emit = call.tensor(), call.emit
    before, after = [0] * rank, [0] * rank
    for axis, target in zip(axes, call.numbers(1, len(axes)), strict=True):
        size = call.size(0, axis)
        cut = emit("floordiv.int", emit("prim::max.int", emit("sub.int", size, target), 0), 2)
        kept = emit("add.int", cut, emit("prim::min.int", size, target))
        x = emit("slice.Tensor", x, axis, cut, kept, 1)
        missing = emit("prim::max.int", emit("sub.int", target, size), 0)
        before[axis] = emit("floordiv.int", missing, 2)
        after[axis] = emit("sub.int", missing, before[axis])
    return constant_padded(call, x, before, after, 0)


@translates("ReverseSequence")
def _reverse_sequence(call: Call) -> Any:
    """Reverses the first elements of each row; how many, the second input says."""
    emit, x = call.emit, call.tensor()
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    steps, rows = call.size(0, time), call.size(0, batch)
    positions = emit("reshape", emit("arange", steps, dtype=torch.int64), [-1, 1] if time == 0 else [1, -1])
    lengths = emit("reshape", call.tensor(1), [1, -1] if time == 0 else [-1, 1])
    turned = emit("sub.Scalar", emit("sub.Tensor", lengths, positions), 1)
    picked = emit("where.self", emit("lt.Tensor", positions, lengths), turned, positions)
    shape: list[Any] = [1] * call.rank()
    shape[time], shape[batch] = steps, rows
    picked = emit(
        "expand",
        emit("reshape", picked, shape),
        [size if dim in (time, batch) else call.size(0, dim) for dim, size in enumerate(call.sizes())],
    )
    return emit("gather", x, time, picked)
