"""Arithmetic on numbers that the host knows: what models compute of their sizes becomes integers, not tensors.

An operand on the host is an array of plain numbers and Values (``int``, ``float``, ``bool``). Operators that only
rearrange such arrays cost nothing; arithmetic becomes that of the language (``aten::add.int``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
import torch

from mobopt.frontends.onnx.elements import DTYPES
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.frontends.onnx.operands import MOST_NUMBERS, Operand, as_numbers
from mobopt.ir import Value

if TYPE_CHECKING:
    from mobopt.frontends.onnx.registry import Call

_Host = Callable[["Call", list[Any]], Any]
_HOST: dict[str, _Host] = {}
_KINDS = (torch.int64, torch.int32, torch.bool, torch.float32, torch.float64)


def _on_host(*operators: str) -> Callable[[_Host], _Host]:
    def register(function: _Host) -> _Host:
        _HOST.update(dict.fromkeys(operators, function))
        return function

    return register


def host_result(call: Call) -> list[tuple[Any, torch.dtype]] | None:
    """Arrays and dtypes of a node's outputs, if the host can compute them from numbers that it knows."""
    function = _HOST.get(call.node.op_type)
    operands = [operand for operand in call.inputs if operand is not None]
    if function is None or not all(isinstance(operand, Operand) for operand in operands):
        return None
    known = [operand for operand in operands if isinstance(operand, Operand)]
    if not any(operand.is_on_host for operand in known) or any(operand.dtype not in _KINDS for operand in known):
        return None
    arrays = [operand.elements() if isinstance(operand, Operand) else None for operand in call.inputs]
    if any(array is None for array, operand in zip(arrays, call.inputs, strict=True) if operand is not None):
        return None
    try:
        result = function(call, arrays)
    except (ValueError, IndexError, TypeError):
        return None  # the tensors' own translation says what is wrong
    if result is None:
        return None
    dtype = known[0].dtype
    results = result if isinstance(result, list) else [result]
    pairs = [item if isinstance(item, tuple) else (item, dtype) for item in results]
    return pairs if all(array.size <= MOST_NUMBERS for array, _ in pairs) else None


def _plain(array: Any) -> list[Any]:
    """The elements of an array of plain numbers.

    Raises:
        ValueError: one is computed at run time.
    """
    flat = list(array.reshape(-1))
    if any(isinstance(item, Value) for item in flat):
        raise ValueError("computed at run time")
    return flat


def _axes(call: Call, arrays: list[Any]) -> list[int] | None:
    given: list[int] | None = call.get("axes")
    return given if given is not None else _plain(arrays[1]) if len(arrays) > 1 and arrays[1] is not None else None


@_on_host("Identity")
def _identity(call: Call, arrays: list[Any]) -> Any:
    return arrays[0]


@_on_host("Cast")
def _cast(call: Call, arrays: list[Any]) -> Any:
    target = DTYPES.get(call.get("to"))
    if target not in _KINDS:
        return None
    kind = "Bool" if target == torch.bool else "Float" if target.is_floating_point else "Int"
    return _each(lambda item: _converted(call.emit, item, kind), arrays[0]), target


def _converted(emit: Emitter, item: Any, kind: str) -> Any:
    if not isinstance(item, Value):
        return {"Int": int, "Float": float, "Bool": bool}[kind](item)
    given = str(item.type)
    if given == kind.lower():
        return item
    result = emit("ne.int", item, 0) if (given, kind) == ("int", "Bool") else emit(f"{kind}.{given}", item)
    if kind != "Bool" and emit.is_nonnegative(item):
        emit.nonnegative.add(result)
    return result


@_on_host("Reshape")
def _reshape(call: Call, arrays: list[Any]) -> Any:
    shape = _plain(arrays[1])
    if not call.get("allowzero", 0):
        shape = [arrays[0].shape[position] if size == 0 else size for position, size in enumerate(shape)]
    return arrays[0].reshape(shape)


@_on_host("Flatten")
def _flatten(call: Call, arrays: list[Any]) -> Any:
    return arrays[0].reshape(1, -1) if call.get("axis", 1) == 0 and arrays[0].ndim == 1 else None


@_on_host("Unsqueeze")
def _unsqueeze(call: Call, arrays: list[Any]) -> Any:
    return numpy.expand_dims(arrays[0], tuple(_axes(call, arrays) or ()))


@_on_host("Squeeze")
def _squeeze(call: Call, arrays: list[Any]) -> Any:
    axes = _axes(call, arrays)
    squeezed = numpy.squeeze(arrays[0], None if axes is None else tuple(axes))
    return _as_array(squeezed)


def _as_array(item: Any) -> Any:
    if isinstance(item, numpy.ndarray):
        return item
    array = numpy.empty((), dtype=object)
    array[()] = item
    return array


@_on_host("Transpose")
def _transpose(call: Call, arrays: list[Any]) -> Any:
    return numpy.transpose(arrays[0], call.get("perm"))


@_on_host("Concat")
def _concat(call: Call, arrays: list[Any]) -> Any:
    return numpy.concatenate(arrays, axis=call.get("axis"))


@_on_host("Gather")
def _gather(call: Call, arrays: list[Any]) -> Any:
    indices = numpy.array(_plain(arrays[1]), dtype=numpy.int64).reshape(arrays[1].shape)
    return _as_array(numpy.take(arrays[0], indices, axis=call.get("axis", 0)))


@_on_host("Slice")
def _slice(call: Call, arrays: list[Any]) -> Any:
    if call.get("starts") is not None:
        starts, ends, axes, steps = call.get("starts"), call.get("ends"), call.get("axes"), None
    else:
        starts, ends = _plain(arrays[1]), _plain(arrays[2])
        axes = _plain(arrays[3]) if len(arrays) > 3 and arrays[3] is not None else None
        steps = _plain(arrays[4]) if len(arrays) > 4 and arrays[4] is not None else None
    found = [slice(None)] * arrays[0].ndim
    axes = list(range(len(starts))) if axes is None else axes
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        found[axis] = slice(start, None if step < 0 and end < -arrays[0].shape[axis] else end, step)
    return arrays[0][tuple(found)]


@_on_host("Split")
def _split(call: Call, arrays: list[Any]) -> Any:
    parts = call.get("split") or (_plain(arrays[1]) if len(arrays) > 1 and arrays[1] is not None else None)
    axis, count = call.get("axis", 0), len(call.node.output)
    if parts is None:
        size = -(-arrays[0].shape[axis] // count)
        parts = [size] * (count - 1) + [arrays[0].shape[axis] - size * (count - 1)]
    return list(numpy.split(arrays[0], numpy.cumsum(parts)[:-1].tolist(), axis=axis))


@_on_host("Expand")
def _expand(call: Call, arrays: list[Any]) -> Any:
    sizes = _plain(arrays[1])
    if numpy.prod(sizes, dtype=numpy.int64) > MOST_NUMBERS:
        return None
    return numpy.broadcast_to(arrays[0], numpy.broadcast_shapes(arrays[0].shape, tuple(sizes)))


@_on_host("Tile")
def _tile(call: Call, arrays: list[Any]) -> Any:
    repeats = _plain(arrays[1])
    return numpy.tile(arrays[0], repeats) if numpy.prod(repeats, dtype=numpy.int64) <= MOST_NUMBERS else None


@_on_host("ScatterND")
def _scatter(call: Call, arrays: list[Any]) -> Any:
    if call.get("reduction", "none") != "none" or arrays[0].ndim != 1:
        return None
    result = arrays[0].copy()
    for position, item in zip(_plain(arrays[1]), arrays[2].reshape(-1), strict=True):
        result[position] = item
    return result


@_on_host("Size")
def _size(call: Call, arrays: list[Any]) -> Any:
    return as_numbers(torch.tensor(arrays[0].size)), torch.int64


@_on_host("Shape")
def _shape(call: Call, arrays: list[Any]) -> Any:
    return as_numbers(torch.tensor(arrays[0].shape)[call.get("start", 0) : call.get("end")]), torch.int64


def _each(function: Callable[..., Any], *arrays: Any) -> Any:
    """An array of what a function gives for the elements of arrays, broadcast."""
    broadcast = numpy.broadcast_arrays(*arrays)
    result = numpy.empty(broadcast[0].shape, dtype=object)
    flat = result.reshape(-1)
    for position, items in enumerate(zip(*(array.reshape(-1) for array in broadcast), strict=True)):
        flat[position] = function(*items)
    return flat.reshape(result.shape)


def _kind(call: Call) -> str:
    """The language's kind of the first input's numbers."""
    dtype = call.dtype(0)
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


def _keeping_sign(emit: Emitter, op: str, left: Any, right: Any) -> Any:
    """A sum, product, least or greatest of two numbers, which are no less than zero if both are."""
    result = emit(op, left, right)
    if isinstance(result, Value) and emit.is_nonnegative(left) and emit.is_nonnegative(right):
        emit.nonnegative.add(result)
    return result


@_on_host("Add")
def _add(call: Call, arrays: list[Any]) -> Any:
    return _arithmetic(call, arrays, "aten::add", 0)


@_on_host("Mul")
def _mul(call: Call, arrays: list[Any]) -> Any:
    return _arithmetic(call, arrays, "aten::mul", 1)


def _arithmetic(call: Call, arrays: list[Any], op: str, neutral: int) -> Any:
    kind = _kind(call)
    if kind == "bool":
        return None

    def pair(left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):
            if not isinstance(one, Value) and one == neutral:
                return other
        return _keeping_sign(call.emit, f"{op}.{kind}", left, right)

    return _each(pair, *arrays)


@_on_host("Sub")
def _sub(call: Call, arrays: list[Any]) -> Any:
    kind = _kind(call)
    return None if kind == "bool" else _each(lambda left, right: call.emit(f"sub.{kind}", left, right), *arrays)


@_on_host("Div")
def _div(call: Call, arrays: list[Any]) -> Any:
    kind = _kind(call)
    if kind == "float":
        return _each(lambda left, right: _keeping_sign(call.emit, "aten::div.float", left, right), *arrays)
    if any(not isinstance(item, Value) and item == 0 for item in arrays[1].reshape(-1)):
        return None
    return _each(lambda left, right: _truncated(call.emit, left, right), *arrays)


def _truncated(emit: Emitter, left: Any, right: Any) -> Any:
    """A quotient of integers, rounded toward zero; the language's division rounds down."""
    if not isinstance(right, Value) and right == 1:
        return left
    down = _keeping_sign(emit, "aten::floordiv.int", left, right)
    if emit.is_nonnegative(left) and emit.is_nonnegative(right):
        return down
    has_rest = emit("ne.int", emit("mul.int", down, right), left)
    is_below = emit("__and__.bool", has_rest, emit("lt.int", down, 0))
    return emit("add.int", down, emit("Int.bool", is_below))


@_on_host("Mod")
def _mod(call: Call, arrays: list[Any]) -> Any:
    is_integer = _kind(call) == "int" and not call.get("fmod", 0)
    emit = call.emit
    return (
        _each(lambda left, right: _keeping_sign(emit, "aten::remainder.int", left, right), *arrays)
        if is_integer
        else None
    )


@_on_host("Neg")
def _neg(call: Call, arrays: list[Any]) -> Any:
    kind = _kind(call)
    return _each(lambda item: call.emit(f"neg.{kind}", item), arrays[0])


@_on_host("Floor", "Ceil")
def _rounded(call: Call, arrays: list[Any]) -> Any:
    """The language rounds floats to integers, which become floats again."""
    op = call.node.op_type.lower()

    def one(item: Any) -> Any:
        result = call.emit("Float.int", call.emit(f"{op}.float", item))
        if isinstance(result, Value) and call.emit.is_nonnegative(item):
            call.emit.nonnegative.add(result)
        return result

    return _each(one, arrays[0])


@_on_host("Sqrt")
def _sqrt(call: Call, arrays: list[Any]) -> Any:
    return _each(lambda item: call.emit("sqrt.float", item), arrays[0])


@_on_host("Min", "Max")
def _extreme(call: Call, arrays: list[Any]) -> Any:
    kind, op = _kind(call), call.node.op_type.lower()
    result = arrays[0]
    for array in arrays[1:]:
        result = _each(lambda left, right: _keeping_sign(call.emit, f"prim::{op}.{kind}", left, right), result, array)
    return result


@_on_host("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def _compared(call: Call, arrays: list[Any]) -> Any:
    names = {"Equal": "eq", "Less": "lt", "Greater": "gt", "LessOrEqual": "le", "GreaterOrEqual": "ge"}
    kind, op, emit = _kind(call), names[call.node.op_type], call.emit

    def pair(left: Any, right: Any) -> Any:
        for one, other in ((left, right), (right, left)):  # a size is never -1
            if op == "eq" and emit.is_nonnegative(one) and not isinstance(other, Value) and other < 0:
                return False
        return emit(f"{op}.{kind}", left, right)

    return None if kind == "bool" else (_each(pair, *arrays), torch.bool)


@_on_host("Not")
def _not(call: Call, arrays: list[Any]) -> Any:
    return _each(lambda item: call.emit("__not__", item), arrays[0])


@_on_host("And", "Or", "Xor")
def _logical(call: Call, arrays: list[Any]) -> Any:
    op = f"__{call.node.op_type.lower()}__.bool"
    return _each(lambda left, right: call.emit(op, left, right), *arrays)


@_on_host("Where")
def _where(call: Call, arrays: list[Any]) -> Any:
    dtype = call.dtype(1)

    def choose(condition: Any, left: Any, right: Any) -> Any:
        if not isinstance(condition, Value):
            return left if condition else right
        if (not isinstance(left, Value) and left == right) or left is right:
            return left
        chosen = _chosen(call.emit, condition, left, right)
        if call.emit.is_nonnegative(left) and call.emit.is_nonnegative(right):
            call.emit.nonnegative.add(chosen)
        return chosen

    return _each(choose, *arrays), dtype


def _chosen(emit: Emitter, condition: Value, left: Any, right: Any) -> Value:
    node = emit.builder.if_else(condition)
    return emit.builder.finish_if(node, [emit.value(left)], [emit.value(right)])[0]


@_on_host("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduced(call: Call, arrays: list[Any]) -> Any:
    kind, axes = _kind(call), _axes(call, arrays)
    ops = {"ReduceProd": "aten::mul", "ReduceSum": "aten::add", "ReduceMax": "prim::max", "ReduceMin": "prim::min"}
    op = f"{ops[call.node.op_type]}.{kind}"
    if kind == "bool" or arrays[0].ndim > 1 or not arrays[0].size or axes not in (None, [], [0], [-1]):
        return None
    if axes == [] and call.get("noop_with_empty_axes", 0):
        return arrays[0]
    flat = list(arrays[0].reshape(-1))
    result = flat[0]
    for item in flat[1:]:
        result = _keeping_sign(call.emit, op, result, item)
    made = _as_array(result)
    return made.reshape([1] * arrays[0].ndim) if call.get("keepdims", 1) else made


@_on_host("Range")
def _range(call: Call, arrays: list[Any]) -> Any:
    start, end, step = (_plain(array)[0] for array in arrays)
    return as_numbers(torch.arange(start, end, step, dtype=call.dtype(0)))
