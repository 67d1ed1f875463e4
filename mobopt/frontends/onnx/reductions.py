"""Reductions, cumulative sums, normalised exponentials, and searches along dimensions."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.operands import carrier
from mobopt.frontends.onnx.pointwise import ordered
from mobopt.frontends.onnx.pool_patterns import mean_of_windows
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.frontends.onnx.shapes import flattened


def reduction_axes(call: Call) -> list[Any] | None:
    """Dimensions that a reduction is over; None if it changes nothing."""
    axes = call.get("axes")
    if axes is None and call.has(1):
        sizes = call.operand(1).known_sizes
        axes = call.numbers(1) if sizes != (0,) else []
    if not axes:
        return None if call.get("noop_with_empty_axes", 0) else list(range(call.rank()))
    return list(axes)


def _accumulated(call: Call, op: str, x: Any, axes: list[Any], keeps: bool) -> Any:
    """A sum or a mean, which stays of the input's dtype."""
    dtype = carrier(call.dtype())
    return call.emit(f"{op}.dim" if op == "mean" else f"{op}.dim_IntList", x, axes, keeps, dtype=dtype)


@translates(
    "ReduceSum",
    "ReduceMean",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
def _sums(call: Call) -> Any:
    axes, keeps, x, op = reduction_axes(call), bool(call.get("keepdims", 1)), call.tensor(), call.node.op_type
    emit = call.emit
    is_floating = call.dtype().is_floating_point
    if op == "ReduceL2" and axes and is_floating:
        return emit("linalg_vector_norm", x, 2, axes, keeps)
    if op in ("ReduceSumSquare", "ReduceL2"):
        x = emit("mul.Tensor", x, x)
    elif op == "ReduceL1":
        x = emit("abs", x)
    if axes == [] and op == "ReduceLogSumExp":
        return x
    if op == "ReduceLogSumExp" and axes is not None and is_floating:
        return emit("logsumexp", x, axes, keeps)
    if op == "ReduceMean" and axes is not None and not is_floating:
        total = emit("sum.dim_IntList", x, axes, keeps, dtype=torch.int64)
        count: Any = 1
        for axis in axes:
            count = emit("mul.int", count, call.size(0, axis))
        return emit("to.dtype", emit("div.Scalar_mode", total, count, "trunc"), carrier(call.dtype()))
    pooled = mean_of_windows(call, x, axes) if op == "ReduceMean" and axes and not keeps else None
    if pooled is not None:
        return pooled
    if axes:
        x = _accumulated(call, "mean" if op == "ReduceMean" else "sum", x, axes, keeps)
    if op == "ReduceL2":
        return emit("to.dtype", emit("sqrt", x), carrier(call.dtype())) if not is_floating else emit("sqrt", x)
    if op in ("ReduceLogSum", "ReduceLogSumExp"):
        return emit("log", x)
    return x


@translates("ReduceProd")
def _product(call: Call) -> Any:
    axes, keeps, x = reduction_axes(call), bool(call.get("keepdims", 1)), call.tensor()
    if axes is None:
        return x
    rank, dtype = call.rank(), carrier(call.dtype())
    if any(not isinstance(axis, int) for axis in axes):
        if len(axes) != 1:
            raise call.unsupported("its axes are computed at run time")
        return call.emit("prod.dim_int", x, axes[0], keeps, dtype=dtype)
    for axis in sorted((axis % rank for axis in axes), reverse=True):
        x = call.emit("prod.dim_int", x, axis, keeps, dtype=dtype)
    return x


@translates("ReduceMax", "ReduceMin")
def _extreme(call: Call) -> Any:
    axes, keeps, x = reduction_axes(call), bool(call.get("keepdims", 1)), call.tensor()
    if axes is None or axes == []:
        return x
    is_max, emit = call.node.op_type == "ReduceMax", call.emit
    if call.dtype() == torch.bool:
        return emit("any.dims" if is_max else "all.dims", x, axes, keeps)
    if 0 in (call.operand().sizes or ()):
        x = _with_least(call, x, axes, is_max)
    return ordered(call, emit("amax" if is_max else "amin", ordered(call, x), axes, keeps))


def _with_least(call: Call, x: Any, axes: list[Any], is_max: bool) -> Any:
    """A tensor without elements, with the number that loses against any put before it: the extreme of no elements."""
    dtype = carrier(call.dtype())
    if dtype.is_floating_point:
        fill: Any = float("-inf") if is_max else float("inf")
    else:
        fill = torch.iinfo(dtype).min if is_max else torch.iinfo(dtype).max
    rank = call.rank()
    if all(isinstance(axis, int) for axis in axes):
        reduced = {axis % rank for axis in axes}
    elif len(axes) == 1:
        reduced = {dim for dim, size in enumerate(call.operand().sizes or ()) if size == 0}
    else:
        raise call.unsupported("its axes are computed at run time, and its input has no elements")
    pads = [amount for dim in reversed(range(rank)) for amount in ((1 if dim in reduced else 0), 0)]
    return call.emit("constant_pad_nd", x, pads, fill)


@translates("ArgMax", "ArgMin")
def _position(call: Call) -> Any:
    axis, keeps, x = call.axis(), bool(call.get("keepdims", 1)), ordered(call, call.tensor())
    op = call.node.op_type.lower()
    if not call.get("select_last_index", 0):
        return call.emit(op, x, axis, keeps)
    found = call.emit(op, call.emit("flip", x, [axis]), axis, keeps)
    last = call.emit("sub.int", call.size(0, axis), 1)
    return call.emit("add.Scalar", call.emit("neg", found), last)


@translates("Softmax", "LogSoftmax")
def _softmax_of_rows(call: Call) -> Any:
    """Before opset 13: over all dimensions from the axis on, together."""
    rank = call.rank()
    axis = call.axis(1)
    op = "softmax.int" if call.node.op_type == "Softmax" else "log_softmax.int"
    if axis == rank - 1:
        return call.emit(op, call.tensor(), axis)
    return call.emit("reshape", call.emit(op, flattened(call, call.tensor(), axis), 1), call.sizes())


@translates("Softmax", "LogSoftmax", since=13)
def _softmax(call: Call) -> Any:
    op = "softmax.int" if call.node.op_type == "Softmax" else "log_softmax.int"
    return call.emit(op, call.tensor(), call.get("axis", -1))


@translates("Hardmax")
def _hardmax_of_rows(call: Call) -> Any:
    axis = call.axis(1)
    rows = flattened(call, call.tensor(), axis)
    return call.emit("reshape", _one_at_largest(call, rows, 1), call.sizes())


@translates("Hardmax", since=13)
def _hardmax(call: Call) -> Any:
    return _one_at_largest(call, call.tensor(), call.axis(-1))


def _one_at_largest(call: Call, x: Any, axis: int) -> Any:
    emit = call.emit
    largest = emit("argmax", x, axis, True)
    shape = [1] * (2 if axis == 1 and call.version < 13 else call.rank())
    shape[axis] = -1
    positions = emit("reshape", emit("arange", emit.size(x, axis), dtype=torch.int64), shape)
    return emit("to.dtype", emit("eq.Tensor", positions, largest), carrier(call.dtype()))


@translates("CumSum", "CumProd")
def _cumulative(call: Call) -> Any:
    emit, x = call.emit, call.tensor()
    axis = call.scalar(1)
    backwards = call.get("reverse", 0)
    if backwards:
        x = emit("flip", x, [axis])
    op = call.node.op_type.lower()
    dtype = carrier(call.dtype())
    result = emit(op, x, axis, dtype=dtype)
    if call.get("exclusive", 0):
        size = emit("size.int", x, axis)
        first = emit("slice.Tensor", x, axis, 0, 1, 1)
        first = emit("zeros_like" if op == "cumsum" else "ones_like", first)
        rest = emit("slice.Tensor", result, axis, 0, emit("sub.int", size, 1), 1)
        result = emit("cat", [first, rest], axis)
    return emit("flip", result, [axis]) if backwards else result


@translates("TopK")
def _topk(call: Call) -> Any:
    """Sorted as asked; of equal elements the one with the lower index comes first, so the whole is sorted."""
    axis = call.axis(-1)
    count = call.scalar(1) if call.has(1) else call.get("k")
    largest = bool(call.get("largest", 1))
    x = ordered(call, call.tensor())
    values, indices = call.emit("sort.stable", x, stable=True, dim=axis, descending=largest)
    values, indices = (call.emit("slice.Tensor", item, axis, 0, count, 1) for item in (values, indices))
    return [ordered(call, values), indices]


@translates("MeanVarianceNormalization")
def _mean_variance(call: Call) -> Any:
    emit, x = call.emit, call.tensor()
    axes = call.get("axes") or [0, 2, 3]
    centred = emit("sub.Tensor", x, emit("mean.dim", x, axes, True))
    variance = emit("mean.dim", emit("mul.Tensor", centred, centred), axes, True)
    return emit("div.Tensor", centred, emit("add.Scalar", emit("sqrt", variance), 1e-9))


@translates("LpNormalization")
def _lp_normalization(call: Call) -> Any:
    """By a norm along an axis; rows of norm zero stay zero."""
    emit, x, axis = call.emit, call.tensor(), call.axis(-1)
    if call.get("p", 2) == 1:
        norm = emit("sum.dim_IntList", emit("abs", x), [axis], True)
    else:
        norm = emit("sqrt", emit("sum.dim_IntList", emit("mul.Tensor", x, x), [axis], True))
    safe = emit("add.Tensor", norm, emit("to.dtype", emit("eq.Scalar", norm, 0), call.dtype()))
    return emit("div.Tensor", x, safe)
