"""Convolutions and pools: paddings that ATen lacks are put around the input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mobopt.frontends.onnx.matrices import activated
from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates
from mobopt.frontends.onnx.shapes import constant_padded
from mobopt.ir import Value

Pads = tuple[list[Any], list[Any]]


def window_pads(call: Call, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Pads:
    """Paddings before and after each dimension, as ``pads`` or ``auto_pad`` say."""
    rank = len(kernel)
    auto = call.get("auto_pad", "NOTSET") or "NOTSET"
    if auto == "NOTSET":
        pads = call.get("pads") or [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    if auto == "VALID":
        return [0] * rank, [0] * rank
    before, after = [], []
    emit = call.emit
    for dim in range(rank):
        size, step = call.size(0, dim + 2), stride[dim]
        reach = (kernel[dim] - 1) * dilation[dim] + 1
        steps = emit("floordiv.int", emit("add.int", size, step - 1), step)
        total = emit("add.int", emit("mul.int", emit("sub.int", steps, 1), step), reach)
        total = emit("prim::max.int", emit("sub.int", total, size), 0)
        less = emit("floordiv.int", total, 2)
        more = emit("sub.int", total, less)
        before.append(less if auto == "SAME_UPPER" else more)
        after.append(more if auto == "SAME_UPPER" else less)
    return before, after


def is_symmetric(pads: Pads) -> bool:
    """Whether the paddings are numbers, the same before and after."""
    return all(
        not isinstance(one, Value) and not isinstance(other, Value) and one == other >= 0
        for one, other in zip(*pads, strict=True)
    )


def padded(call: Call, x: Any, pads: Pads, fill: Any) -> Any:
    """An input with its paddings around it; batch and channels get none."""
    return constant_padded(call, x, [0, 0, *pads[0]], [0, 0, *pads[1]], fill)


def _windows(call: Call, rank: int) -> tuple[list[int], list[int]]:
    return list(call.get("strides") or [1] * rank), list(call.get("dilations") or [1] * rank)


def convolved(call: Call, x: Any, weight: Any, bias: Any, kernel: Sequence[int]) -> Any:
    """The convolution of a node's attributes."""
    rank = len(kernel)
    stride, dilation = _windows(call, rank)
    pads = window_pads(call, kernel, stride, dilation)
    padding = pads[0]
    if not is_symmetric(pads):
        x, padding = padded(call, x, pads, 0), [0] * rank
    group = call.get("group", 1)
    if rank <= 3:
        return call.emit(f"conv{rank}d", x, weight, bias, stride, padding, dilation, group)
    raise call.unsupported(f"it has {rank} spatial dimensions")


def kernel_sizes(call: Call, index: int = 1) -> list[int]:
    """Spatial sizes of a weight.

    Raises:
        UnsupportedError: they are known at run time only.
    """
    given = call.get("kernel_shape")
    if given:
        return list(given)
    known = (call.operand(index).sizes or (None,))[2:]
    if not known or any(size is None for size in known):
        raise call.unsupported("the sizes of its weight are known at run time only")
    return [size for size in known if size is not None]


@translates("Conv")
def _conv(call: Call) -> Any:
    return convolved(call, call.tensor(0), call.tensor(1), call.tensor(2), kernel_sizes(call))


@translates("FusedConv", domain=MICROSOFT)
def _fused_conv(call: Call) -> Any:
    result = convolved(call, call.tensor(0), call.tensor(1), call.tensor(2), kernel_sizes(call))
    if call.has(3):
        result = call.emit("add.Tensor", result, call.tensor(3))
    rank = call.operand().rank
    return Operand(call.dtype(), None if rank is None else (None,) * rank, activated(call, result))


@translates("ConvTranspose")
def _conv_transpose(call: Call) -> Any:
    kernel = kernel_sizes(call)
    rank, emit = len(kernel), call.emit
    stride, dilation = _windows(call, rank)
    extra = list(call.get("output_padding") or [0] * rank)
    group, shape = call.get("group", 1), call.get("output_shape")
    auto = call.get("auto_pad", "NOTSET") or "NOTSET"
    reach = [(kernel[dim] - 1) * dilation[dim] + 1 for dim in range(rank)]
    if shape or auto.startswith("SAME"):
        before, after = [], []
        for dim in range(rank):
            size = call.size(0, dim + 2)
            target = shape[-rank:][dim] if shape else emit("mul.int", size, stride[dim])
            total = emit("add.int", emit("mul.int", emit("sub.int", size, 1), stride[dim]), extra[dim] + reach[dim])
            total = emit("sub.int", total, target)
            total = emit("prim::max.int", total, 0) if not shape else total
            less = emit("floordiv.int", total, 2)
            more = emit("sub.int", total, less)
            upper = auto == "SAME_UPPER"
            before.append(less if upper else more)
            after.append(more if upper else less)
    else:
        pads = call.get("pads") or [0] * (2 * rank)
        before, after = ([0] * rank, [0] * rank) if auto == "VALID" else (list(pads[:rank]), list(pads[rank:]))
    if rank > 3:
        raise call.unsupported(f"it has {rank} spatial dimensions")
    x, op = call.tensor(), f"conv_transpose{rank}d" + (".input" if rank > 1 else "")
    if is_symmetric((before, after)) and all(
        more < max(step, hole) for more, step, hole in zip(extra, stride, dilation, strict=True)
    ):
        return emit(op, x, call.tensor(1), call.tensor(2), stride, before, extra, group, dilation)
    fits = all(not isinstance(item, Value) for item in (*before, *after))
    # What is padded after less than before is more of the output, so the whole is made and cut.
    whole = emit(op, x, call.tensor(1), None, stride, [0] * rank, [0] * rank, group, dilation)
    cut_before = before
    cut_after = [emit("sub.int", less, more) for less, more in zip(after, extra, strict=True)]
    negative = [emit("neg.int", amount) for amount in cut_before], [emit("neg.int", amount) for amount in cut_after]
    if fits and not any((*cut_before, *cut_after)):
        result = whole
    else:
        result = padded(call, whole, negative, 0)
    if call.has(2):
        result = emit("add.Tensor", result, emit("reshape", call.tensor(2), [1, -1, *[1] * rank]))
    return result


# Pools.


def _output_after(call: Call, dim: int, reach: int, step: int, pads: Pads) -> Any:
    """How much more padding makes the last window whole, if it begins inside of what is padded (``ceil_mode``)."""
    emit = call.emit
    size = call.size(0, dim + 2)
    width = emit("add.int", emit("add.int", size, pads[0][dim]), pads[1][dim])
    rest = emit("sub.int", width, reach)
    steps = emit("floordiv.int", emit("add.int", rest, step - 1), step)
    # The last window must begin inside of the input or of the padding before it.
    begins = emit("mul.int", steps, step)
    outside = emit("Int.bool", emit("ge.int", begins, emit("add.int", size, pads[0][dim])))
    steps = emit("sub.int", steps, outside)
    return emit("prim::max.int", emit("sub.int", emit("mul.int", steps, step), rest), 0)


def _pool_input(
    call: Call, kernel: list[int], fill: Any
) -> tuple[Any, list[int], list[int], list[int], Pads, list[Any]]:
    rank = len(kernel)
    stride, dilation = _windows(call, rank)
    pads = window_pads(call, kernel, stride, dilation)
    more: list[Any] = [0] * rank
    if call.get("ceil_mode", 0):
        reach = [(kernel[dim] - 1) * dilation[dim] + 1 for dim in range(rank)]
        more = [_output_after(call, dim, reach[dim], stride[dim], pads) for dim in range(rank)]
    return call.tensor(), kernel, stride, dilation, pads, more


@translates("MaxPool")
def _max_pool(call: Call) -> Any:
    kernel = list(call.get("kernel_shape"))
    rank, emit = len(kernel), call.emit
    if rank > 3:
        raise call.unsupported(f"it has {rank} spatial dimensions")
    x, kernel, stride, dilation, pads, more = _pool_input(call, kernel, None)
    rounds_up = bool(call.get("ceil_mode", 0)) and _fits(pads, kernel)
    more = [0] * rank if rounds_up else more
    dtype = call.dtype()
    is_integer = not dtype.is_floating_point
    if is_integer:
        x = emit("to.dtype", x, torch.float32)
    total = (pads[0], [emit("add.int", one, other) for one, other in zip(pads[1], more, strict=True)])
    is_plain = _fits(total, kernel)
    if not is_plain:
        x = padded(call, x, total, -math.inf)
    padding = total[0] if is_plain else [0] * rank
    if not call.wants(1):
        result = emit(f"max_pool{rank}d", x, kernel, stride, padding, dilation, rounds_up)
        return emit("to.dtype", result, dtype) if is_integer else result
    result, indices = emit(f"max_pool{rank}d_with_indices", x, kernel, stride, padding, dilation, rounds_up)
    indices = _indices_of_input(call, indices, total if not is_plain else ([0] * rank, [0] * rank), rank)
    return [emit("to.dtype", result, dtype) if is_integer else result, indices]


def _fits(pads: Pads, kernel: Sequence[int]) -> bool:
    """Whether torch's own windows take the padding."""
    return is_symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads[0], kernel, strict=True))


def _indices_of_input(call: Call, indices: Any, pads: Pads, rank: int) -> Any:
    """Positions in the whole tensor, of positions in the plane of a channel, which may be padded."""
    emit, sizes = call.emit, call.sizes()
    column_major = bool(call.get("storage_order", 0))
    flat = indices
    if column_major or any((*pads[0], *pads[1])):
        flat = _in_own_plane(call, indices, pads, list(range(rank))[:: -1 if column_major else 1])
    plane: Any = 1
    for size in sizes[2:]:
        plane = emit("mul.int", plane, size)
    planes = emit("arange", emit("mul.int", sizes[0], sizes[1]), dtype=torch.int64)
    offsets = emit("reshape", emit("mul.Scalar", planes, plane), [sizes[0], sizes[1], *[1] * rank])
    return emit("add.Tensor", flat, offsets)


def _in_own_plane(call: Call, indices: Any, pads: Pads, order: Sequence[int]) -> Any:
    """Positions in a plane whose dimensions lie in an order, of those in the padded plane."""
    emit, rank = call.emit, len(order)
    sizes = [call.size(0, dim + 2) for dim in range(rank)]
    widths = [emit("add.int", emit("add.int", sizes[dim], pads[0][dim]), pads[1][dim]) for dim in range(rank)]
    rest, places = indices, list[Any]()
    for dim in reversed(range(rank)):
        places.insert(0, emit("sub.Scalar", emit("remainder.Scalar", rest, widths[dim]), pads[0][dim]))
        rest = emit("div.Scalar_mode", rest, widths[dim], "floor")
    flat: Any = None
    for dim in order:
        flat = places[dim] if flat is None else emit("add.Tensor", emit("mul.Scalar", flat, sizes[dim]), places[dim])
    return flat


@translates("AveragePool")
def _average_pool(call: Call) -> Any:
    """Counts padding or not; what ``ceil_mode`` adds is never counted."""
    kernel = list(call.get("kernel_shape"))
    rank, emit = len(kernel), call.emit
    if rank > 3:
        raise call.unsupported(f"it has {rank} spatial dimensions")
    x, kernel, stride, dilation, pads, more = _pool_input(call, kernel, 0)
    counts = bool(call.get("count_include_pad", 0))
    is_exact = all(not isinstance(amount, Value) and amount == 0 for amount in more)
    is_dilated = any(item != 1 for item in dilation)
    rounds_up = bool(call.get("ceil_mode", 0)) and not is_exact
    known = (call.operand().sizes or ())[2:]
    # torch's kernel for three dimensions refuses images that are smaller than a window, whatever their padding.
    is_small = rank == 3 and any(size is not None and size < edge for size, edge in zip(known, kernel, strict=False))
    if (is_exact or rounds_up) and _fits(pads, kernel) and not (is_dilated or is_small):
        return _average(call, x, kernel, stride, pads[0], counts, rounds_up)
    total = (pads[0], [emit("add.int", one, other) for one, other in zip(pads[1], more, strict=True)])
    unpadded = all(not isinstance(amount, Value) and amount == 0 for part in total for amount in part)
    if unpadded and not is_dilated:
        return _average(call, x, kernel, stride, [0] * rank, True)
    ones = emit("ones_like", emit("slice.Tensor", emit("slice.Tensor", x, 0, 0, 1, 1), 1, 0, 1, 1))
    if counts:
        ones = padded(call, padded(call, ones, pads, 1), ([0] * rank, more), 0)
    else:
        ones = padded(call, ones, total, 0)
    x = padded(call, x, total, 0)
    if not is_dilated:
        sums, number = (_average(call, item, kernel, stride, [0] * rank, True) for item in (x, ones))
        return emit("div.Tensor", sums, number)
    weight = torch.ones([1, 1, *kernel], dtype=call.dtype())
    number = emit(f"conv{rank}d", ones, weight, None, stride, [0] * rank, dilation, 1)
    return emit("div.Tensor", _channel_sums(call, x, weight, stride, dilation, rank), number)


def _channel_sums(call: Call, x: Any, weight: Any, stride: list[int], dilation: list[int], rank: int) -> Any:
    """Sums over windows with holes, of each channel by itself."""
    emit = call.emit
    sizes = [emit.size(x, dim) for dim in range(rank + 2)]
    alone = emit("reshape", x, [emit("mul.int", sizes[0], sizes[1]), 1, *sizes[2:]])
    sums = emit(f"conv{rank}d", alone, weight, None, stride, [0] * rank, dilation, 1)
    rest = [emit.size(sums, dim + 2) for dim in range(rank)]
    return emit("reshape", sums, [sizes[0], sizes[1], *rest])


def _average(
    call: Call, x: Any, kernel: list[int], stride: list[int], padding: list[int], counts: bool, rounds_up: bool = False
) -> Any:
    rank = len(kernel)
    if rank == 1:
        return call.emit("avg_pool1d", x, kernel, stride, padding, rounds_up, counts)
    return call.emit(f"avg_pool{rank}d", x, kernel, stride, padding, rounds_up, counts, None)


@translates("LpPool")
def _lp_pool(call: Call) -> Any:
    kernel = list(call.get("kernel_shape"))
    rank, emit, power = len(kernel), call.emit, call.get("p", 2)
    if rank > 3:
        raise call.unsupported(f"it has {rank} spatial dimensions")
    x, kernel, stride, dilation, pads, more = _pool_input(call, kernel, 0)
    total = (pads[0], [emit("add.int", one, other) for one, other in zip(pads[1], more, strict=True)])
    x = padded(call, emit("pow.Tensor_Scalar", emit("abs", x), power), total, 0)
    weight = torch.ones([1, 1, *kernel], dtype=call.dtype())
    sums = _channel_sums(call, x, weight, stride, dilation, rank)
    return emit("pow.Tensor_Scalar", sums, 1.0 / power)


@translates("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> Any:
    emit, x, rank = call.emit, call.tensor(), call.rank()
    dims = list(range(2, rank))
    if call.node.op_type == "GlobalMaxPool":
        return emit("amax", x, dims, True)
    if call.node.op_type == "GlobalLpPool":
        power = call.get("p", 2)
        sums = emit("sum.dim_IntList", emit("pow.Tensor_Scalar", emit("abs", x), power), dims, True)
        return emit("pow.Tensor_Scalar", sums, 1.0 / power)
    return emit("adaptive_avg_pool2d", x, [1, 1]) if rank == 4 else emit("mean.dim", x, dims, True)


@translates("MaxUnpool")
def _max_unpool(call: Call) -> Any:
    """Puts elements at their indices, which are of the shape that the kernel gives; a larger one has zeros behind."""
    emit, kernel = call.emit, call.get("kernel_shape")
    rank = len(kernel)
    stride, _ = _windows(call, rank)
    pads = call.get("pads") or [0] * (2 * rank)
    sizes = [call.size(0, 0), call.size(0, 1)]
    for dim in range(rank):
        steps = emit("mul.int", emit("sub.int", call.size(0, dim + 2), 1), stride[dim])
        sizes.append(emit("add.int", steps, kernel[dim] - pads[dim] - pads[dim + rank]))
    target = call.numbers(2, rank + 2) if call.has(2) else sizes
    total: Any = 1
    for size in sizes:
        total = emit("mul.int", total, size)
    empty = emit("zeros", [total], dtype=call.dtype())
    indices, values = (emit("reshape", call.tensor(index), [-1]) for index in (1, 0))
    made = emit("reshape", emit("scatter.src", empty, 0, indices, values), sizes)
    more = [emit("sub.int", wide, size) for wide, size in zip(target, sizes, strict=True)]
    return constant_padded(call, made, [0] * (rank + 2), more, 0)


@translates("Col2Im")
def _col2im(call: Call) -> Any:
    block, image = call.numbers(2), call.numbers(1)
    rank = len(block)
    if rank != 2:
        raise call.unsupported(f"it has {rank} spatial dimensions")
    pads = call.get("pads") or [0] * 4
    stride, dilation = _windows(call, rank)
    height, width = (call.emit("add.int", image[dim], pads[dim] + pads[dim + 2]) for dim in range(2))
    whole = call.emit("col2im", call.tensor(), [height, width], block, dilation, [0, 0], stride)
    return constant_padded(call, whole, [0, 0, -pads[0], -pads[1]], [0, 0, -pads[2], -pads[3]], 0)


@translates("DeformConv")
def _deform_conv(call: Call) -> Any:
    """Bilinear samples at moved positions, zero outside, then a product with the weight."""
    emit = call.emit
    kernel = kernel_sizes(call)
    if len(kernel) != 2:
        raise call.unsupported(f"it has {len(kernel)} spatial dimensions")
    stride, dilation = _windows(call, 2)
    pads = call.get("pads") or [0] * 4
    groups, offset_groups = call.get("group", 1), call.get("offset_group", 1)
    batch, channels, height, width = call.sizes(0)
    rows, columns = call.size(2, 2), call.size(2, 3)
    points = kernel[0] * kernel[1]
    moved = emit("reshape", call.tensor(2), [batch, offset_groups, points, 2, rows, columns])
    places: list[Any] = []
    is_wide = all(not isinstance(size, Value) and size > 1 for size in (height, width))
    for dim, (count, size) in enumerate(((rows, height), (columns, width))):
        start = emit(
            "sub.Scalar", emit("mul.Scalar", emit("arange", count, dtype=call.dtype()), stride[dim]), pads[dim]
        )
        start = emit("reshape", start, [1, 1, 1, -1, 1] if dim == 0 else [1, 1, 1, 1, -1])
        taps = torch.arange(kernel[dim], dtype=call.dtype()) * dilation[dim]
        taps = taps.repeat_interleave(kernel[1]) if dim == 0 else taps.repeat(kernel[0])
        place = emit("add.Tensor", emit("select.int", moved, 3, dim), start)
        place = emit("add.Tensor", place, taps.reshape(1, 1, -1, 1, 1))
        # grid_sampler counts from -1 to 1: between the middles of the outer elements, or their borders.
        if is_wide:
            scaled = emit("div.Scalar", emit("mul.Scalar", place, 2.0), emit("sub.int", size, 1))
        else:
            scaled = emit("div.Scalar", emit("mul.Scalar", emit("add.Scalar", place, 0.5), 2.0), size)
        places.append(emit("sub.Scalar", scaled, 1))
    grid = emit("stack", [places[1], places[0]], -1)
    merged = emit("mul.int", batch, offset_groups)
    grid = emit("reshape", grid, [merged, emit("mul.int", rows, points), columns, 2])
    parts = emit("floordiv.int", channels, offset_groups)
    x = emit("reshape", call.tensor(0), [merged, parts, height, width])
    samples = emit("grid_sampler", x, grid, 0, 0, is_wide)
    samples = emit("reshape", samples, [batch, offset_groups, parts, points, rows, columns])
    if call.has(4):
        mask = emit("reshape", call.tensor(4), [batch, offset_groups, 1, points, rows, columns])
        samples = emit("mul.Tensor", samples, mask)
    each = emit("floordiv.int", channels, groups)
    places_count = emit("mul.int", rows, columns)
    samples = emit("reshape", samples, [batch, groups, emit("mul.int", each, points), places_count])
    weight = emit("reshape", call.tensor(1), [1, groups, -1, emit("mul.int", each, points)])
    result = emit("reshape", emit("matmul", weight, samples), [batch, -1, rows, columns])
    return emit("add.Tensor", result, emit("reshape", call.tensor(3), [1, -1, 1, 1])) if call.has(3) else result
