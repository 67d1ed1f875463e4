"""What a value of an ONNX graph is in ours: a tensor, numbers that the host knows, a sequence, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import onnx
import torch

from mobopt.frontends.onnx.elements import ELEMENT_TYPES
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.ir import Block, Value

Sizes = tuple["int | None", ...]
MOST_NUMBERS = 1024
"""Elements that the host keeps as numbers."""

CARRIERS = {
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}
"""Dtypes that torch hardly computes with, and those in which a graph has such values."""


def carrier(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a graph has values of a dtype."""
    return CARRIERS.get(dtype, dtype)


@dataclass
class Operand:
    """A tensor of an ONNX graph.

    Attributes:
        dtype: as ONNX has it; the graph's tensor has its :func:`carrier`.
        sizes: None where unknown; None if even their number is.
        numbers: its elements as an array of plain numbers and Values, where the host knows them.
        unrounded: the same numbers in floating point, before they became integers.
        bits: of integers of less than 8, as ONNX has them; 0 of all others.
    """

    dtype: torch.dtype
    sizes: Sizes | None
    value: Any = None
    numbers: Any = None
    unrounded: Any = None
    bits: int = 0
    _made: list[tuple[Block, Value]] = field(default_factory=list)

    @property
    def is_packed(self) -> bool:
        """Whether ONNX has them as integers of less than 8 bits."""
        return self.bits > 0

    @property
    def rank(self) -> int | None:
        """Number of dimensions."""
        return None if self.sizes is None else len(self.sizes)

    @property
    def constant(self) -> torch.Tensor | None:
        """Its elements, if they are known."""
        return self.value if isinstance(self.value, torch.Tensor) else None

    @property
    def known_sizes(self) -> tuple[int, ...] | None:
        """Its sizes, if all are known."""
        if self.sizes is None or any(size is None for size in self.sizes):
            return None
        return tuple(size for size in self.sizes if size is not None)

    @property
    def is_on_host(self) -> bool:
        """Whether it is numbers that the host computes at run time."""
        return self.value is None and self.numbers is not None

    def elements(self) -> Any:
        """Its elements as numbers, or None if the host does not know them or they are many."""
        if self.numbers is None and self.constant is not None and self.constant.numel() <= MOST_NUMBERS:
            self.numbers = as_numbers(self.constant)
        return self.numbers

    def tensor(self, emit: Emitter) -> Any:
        """The tensor, made of numbers where it has to be."""
        if self.value is not None:
            return self.value
        for block, value in self._made:
            if any(block is other for other in emit.blocks):
                return value
        made = _tensor_of(self.numbers, carrier(self.dtype), emit)
        if isinstance(made, torch.Tensor):
            self.value = made
        else:
            self._made.append((emit.blocks[-1], made))
        return made

    def type_proto(self) -> Any:
        """Its type, as ONNX's shape inference takes it."""
        sizes = None if self.sizes is None else [size if size is not None else None for size in self.sizes]
        return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[self.dtype], sizes)


@dataclass
class SequenceOperand:
    """A sequence: the tensors, if they are known one by one, or a list that the graph makes."""

    dtype: torch.dtype
    items: list[Operand] | None = None
    value: Any = None
    sizes: Sizes | None = None
    """Of each of its tensors."""

    def type_proto(self) -> Any:
        """Its type, as ONNX's shape inference takes it."""
        sizes = None if self.sizes is None else list(self.sizes)
        inner = onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[self.dtype], sizes)
        return onnx.helper.make_sequence_type_proto(inner)


@dataclass
class OptionalOperand:
    """An optional input of the model, which a call may leave out."""

    value: Value
    inner: Operand | SequenceOperand

    def type_proto(self) -> Any:
        """Its type, as ONNX's shape inference takes it."""
        return onnx.helper.make_optional_type_proto(self.inner.type_proto())


AnyOperand = Operand | SequenceOperand | OptionalOperand | None
"""None: an optional that is empty, or an input that is left out."""


def as_numbers(tensor: torch.Tensor) -> Any:
    """The elements of a tensor as an array of plain numbers."""
    numbers = numpy.empty(tensor.shape, dtype=object)
    flat = numbers.reshape(-1)
    flat[:] = tensor.reshape(-1).tolist()
    return numbers


def number_array(items: Sequence[Any], sizes: Sequence[int] | None = None) -> Any:
    """Numbers as an array."""
    numbers = numpy.empty(len(items), dtype=object)
    numbers[:] = items
    return numbers if sizes is None else numbers.reshape(sizes)


def of_constant(tensor: torch.Tensor) -> Operand:
    """An operand of a known tensor; what the graph can't compute with is carried by a wider dtype."""
    return Operand(tensor.dtype, tuple(tensor.shape), tensor.to(carrier(tensor.dtype)))


def of_numbers(numbers: Any, dtype: torch.dtype) -> Operand:
    """An operand of numbers; a constant if all are plain."""
    if all(not isinstance(number, Value) for number in numbers.reshape(-1)):
        tensor = torch.tensor(numbers.reshape(-1).tolist(), dtype=carrier(dtype)).reshape(numbers.shape)
        return Operand(dtype, tuple(tensor.shape), tensor)
    return Operand(dtype, tuple(numbers.shape), None, numbers)


def _tensor_of(numbers: Any, dtype: torch.dtype, emit: Emitter) -> Any:
    flat = list(numbers.reshape(-1))
    kind = "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"
    flat = [
        item if isinstance(item, Value) else {"bool": bool, "float": float, "int": int}[kind](item) for item in flat
    ]
    if numbers.ndim == 0:
        return emit(f"tensor.{kind}", flat[0], dtype=dtype)
    row = emit("tensor", flat, dtype=dtype)
    return row if numbers.ndim == 1 else emit("reshape", row, list(numbers.shape))
