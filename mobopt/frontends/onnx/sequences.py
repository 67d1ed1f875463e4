"""Sequences and optionals: known one by one where they can be, else lists of the graph."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.control import list_value
from mobopt.frontends.onnx.elements import dtype_of
from mobopt.frontends.onnx.operands import (
    Operand,
    OptionalOperand,
    SequenceOperand,
    number_array,
    of_constant,
    of_numbers,
)
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Value
from mobopt.ir.types import TENSOR


@translates("SequenceConstruct")
def _construct(call: Call) -> Any:
    items = [call.operand(index) for index in range(len(call.inputs))]
    return SequenceOperand(items[0].dtype, items)


@translates("SequenceEmpty")
def _empty(call: Call) -> Any:
    dtype = dtype_of(call.get("dtype"), call.place) if "dtype" in call.attributes else torch.float32
    return SequenceOperand(dtype, [])


@translates("SequenceLength")
def _length(call: Call) -> Any:
    sequence = call.sequence()
    if sequence.items is not None:
        return of_constant(torch.tensor(len(sequence.items)))
    count = call.emit("len.t", sequence.value)
    call.emit.nonnegative.add(count)
    return of_numbers(number_array([count], ()), torch.int64)


@translates("SequenceAt")
def _at(call: Call) -> Any:
    sequence, position = call.sequence(), call.scalar(1)
    if sequence.items is not None and not isinstance(position, Value):
        return sequence.items[position]
    item = call.emit("__getitem__.t", list_value(call.emit, sequence), position)
    return Operand(sequence.dtype, sequence.sizes or call.inferred_sizes, item)


@translates("SequenceInsert")
def _insert(call: Call) -> Any:
    sequence, item = call.sequence(), call.operand(1)
    position = call.scalar(2) if call.has(2) else None
    if sequence.items is not None and not isinstance(position, Value):
        items = list(sequence.items)
        items.insert(len(items) if position is None else position, item)
        return SequenceOperand(item.dtype, items)
    emit = call.emit
    listed = list_value(emit, sequence)
    added = emit.list_of([item.tensor(emit)], TENSOR)
    if position is None:
        return SequenceOperand(item.dtype, None, emit("add.t", listed, added))
    before = emit("slice.t", listed, None, position, 1)
    after = emit("slice.t", listed, position, None, 1)
    return SequenceOperand(item.dtype, None, emit("add.t", emit("add.t", before, added), after))


@translates("SequenceErase")
def _erase(call: Call) -> Any:
    sequence = call.sequence()
    position = call.scalar(1) if call.has(1) else -1
    if sequence.items is not None and not isinstance(position, Value):
        items = list(sequence.items)
        items.pop(position)
        return SequenceOperand(sequence.dtype, items)
    emit, listed = call.emit, list_value(call.emit, sequence)
    count = emit("len.t", listed)
    place = emit("remainder.int", position, count)
    before = emit("slice.t", listed, None, place, 1)
    after = emit("slice.t", listed, emit("add.int", place, 1), None, 1)
    return SequenceOperand(sequence.dtype, None, emit("add.t", before, after))


@translates("SplitToSequence")
def _split(call: Call) -> Any:
    emit, axis, x = call.emit, call.axis(), call.tensor()
    sizes = call.operand().sizes
    keeps = bool(call.get("keepdims", 1))
    rank = call.rank()
    if not call.has(1):
        size = call.size(0, axis)
        if isinstance(size, Value) or not keeps:
            parts = emit("unbind.int", x, axis) if not keeps else emit("split.Tensor", x, 1, axis)
            return _parts(call, parts, rank - (not keeps))
        return _slices(call, x, axis, [1] * size)
    parts = call.operand(1)
    if parts.rank == 0:
        amount, size = call.scalar(1), call.size(0, axis)
        if isinstance(amount, Value) or isinstance(size, Value):
            return _parts(call, emit("split.Tensor", x, amount, axis), rank)
        whole = [amount] * (size // amount)
        return _slices(call, x, axis, whole + ([size % amount] if size % amount else []))
    amounts = call.numbers(1)
    if sizes is None or any(isinstance(amount, Value) for amount in amounts):
        return _parts(call, emit("split_with_sizes", x, amounts, axis), rank)
    return _slices(call, x, axis, amounts)


def _parts(call: Call, parts: Any, rank: int) -> SequenceOperand:
    if isinstance(parts, (list, tuple)):
        return SequenceOperand(call.dtype(), [Operand(call.dtype(), tuple(part.shape), part) for part in parts])
    return SequenceOperand(call.dtype(), None, parts, (None,) * rank)


def _slices(call: Call, x: Any, axis: int, amounts: list[int]) -> SequenceOperand:
    items, start = [], 0
    sizes = call.operand().sizes or ()
    for amount in amounts:
        part = call.emit("slice.Tensor", x, axis, start, start + amount, 1)
        items.append(Operand(call.dtype(), (*sizes[:axis], amount, *sizes[axis + 1 :]), part))
        start += amount
    return SequenceOperand(call.dtype(), items)


@translates("ConcatFromSequence")
def _concat(call: Call) -> Any:
    emit, sequence, axis = call.emit, call.sequence(), call.get("axis")
    listed = list_value(emit, sequence)
    joins = call.get("new_axis", 0)
    result = emit("stack" if joins else "cat", listed, axis)
    rank = None
    if sequence.items:
        rank = sequence.items[0].rank
    elif sequence.sizes is not None:
        rank = len(sequence.sizes)
    sizes = None if rank is None else (None,) * (rank + int(bool(joins)))
    return Operand(sequence.dtype, sizes, result)


@translates("Optional")
def _optional(call: Call) -> Any:
    return [call.inputs[0] if call.inputs else None]


@translates("OptionalHasElement")
def _has_element(call: Call) -> Any:
    given = call.inputs[0] if call.inputs else None
    if isinstance(given, OptionalOperand):
        present = call.emit("__isnot__", given.value, None)
        return of_numbers(number_array([present], ()), torch.bool)
    return of_constant(torch.tensor(given is not None))


@translates("OptionalGetElement")
def _get_element(call: Call) -> Any:
    given = call.inputs[0]
    if not isinstance(given, OptionalOperand):
        return [given]
    inner = given.inner
    value = call.emit("_unwrap_optional", given.value)
    if isinstance(inner, SequenceOperand):
        return SequenceOperand(inner.dtype, None, value, inner.sizes)
    return Operand(inner.dtype, inner.sizes, value)
