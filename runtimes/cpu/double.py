"""The reference interpreter in double precision, which tells how far a model's precision is from the exact result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.ir import Node, Program, Value
from mobopt.ir.nests import map_leaves
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu.interpreter import Interpreter

_COARSER = (torch.float32, torch.float16, torch.bfloat16)


class Float64Interpreter(Interpreter):
    """Runs a Program without state with float64 wherever it has coarser floats: inputs, constants and every result."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.attributes = {name: in_double(value) for name, value in self.attributes.items()}
        self._constants: dict[Value, Any] = {}

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns; see :meth:`Interpreter.run`."""
        return super().run(method, [in_double(arg) for arg in args])

    def value(self, value: Value, environment: dict[Value, Any]) -> Any:
        """The value of a graph's Value; constants are widened once."""
        if not value.is_constant:
            return environment[value]
        if value not in self._constants:
            self._constants[value] = in_double(value.constant)
        return self.lift(self._constants[value])

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Call the kernel, and widen what it makes of the model's own wish in another precision."""
        return in_double(super().operator(node, args))


def in_double(value: Any) -> Any:
    """A nest, or a packed context, with its tensors of coarser floats in float64."""
    if isinstance(value, PackedContext):
        return type(value)(*map(in_double, value.state()))
    return map_leaves(value, torch.Tensor, lambda item: item.double() if item.dtype in _COARSER else item)
