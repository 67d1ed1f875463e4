"""The reference interpreter in double precision, which tells how far a model's precision is from the exact result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mobopt.ir import Node, Program, Value
from mobopt.ir.nests import map_leaves
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu.interpreter import Interpreter

_COARSER = (torch.float32, torch.float16, torch.bfloat16)
_ROUNDINGS = 2
"""What a result is off by, in units of the last place of float32, after the sums of one layer."""


class Float64Interpreter(Interpreter):
    """Runs a Program without state with float64 wherever it has coarser floats: inputs, constants and every result."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.attributes = {name: self._given(value) for name, value in self.attributes.items()}
        self._constants: dict[Value, Any] = {}

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns; see :meth:`Interpreter.run`."""
        return super().run(method, [self._given(arg) for arg in args])

    def value(self, value: Value, environment: dict[Value, Any]) -> Any:
        """The value of a graph's Value; constants are widened once."""
        if not value.is_constant:
            return environment[value]
        if value not in self._constants:
            self._constants[value] = self._given(value.constant)
        return self.lift(self._constants[value])

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Call the kernel, and widen what it makes of the model's own wish in another precision."""
        return in_double(super().operator(node, args))

    def _given(self, value: Any) -> Any:
        """What the model is given, its inputs and constants, as the run takes it."""
        return in_double(value)


class JitteredInterpreter(Float64Interpreter):
    """Runs a Program in float64 on inputs and constants that are off by about what float32 rounds.

    A few such runs show how far results in single precision may be from the exact one (Monte Carlo arithmetic; D. S.
    Parker, 1997), also where one evaluation in float32 happens to be near: which of two nearly equal elements is the
    largest may be another after any rounding.

    Args:
        program: what to run.
        seed: of the offsets, which are the same for the same seed.
    """

    def __init__(self, program: Program, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        super().__init__(program)

    def _given(self, value: Any) -> Any:
        return with_tensors(value, self._off)

    def _off(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _COARSER:
            return tensor
        offsets = torch.rand(tensor.shape, generator=self._random, dtype=torch.float64) * 2 - 1
        return tensor.double() * (1 + _ROUNDINGS * torch.finfo(torch.float32).eps * offsets)


def in_double(value: Any) -> Any:
    """A nest, or a packed context, with its tensors of coarser floats in float64."""
    return with_tensors(value, lambda item: item.double() if item.dtype in _COARSER else item)


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A nest, or a packed context, with each of its tensors changed."""
    if isinstance(value, PackedContext):
        return type(value)(*(with_tensors(item, change) for item in value.state()))
    return map_leaves(value, torch.Tensor, change)
