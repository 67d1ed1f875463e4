"""The reference interpreter with the precision of a phone's GPU: every result is rounded to 16 bits.

Metal's kernels keep tensors in 16-bit textures, so each operator's result is rounded, and what exceeds 65504 becomes
infinite. Within an operator the arithmetic stays float32, as a kernel's accumulators may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mobopt.ir import Node, Program, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu.double import with_tensors
from mobopt.runtimes.cpu.interpreter import Interpreter

LOSS = 0.01
"""Part of a result's scale that a loss must exceed to be told."""

_ROUNDED = (torch.float32, torch.float64)


@dataclass(frozen=True)
class PrecisionLoss:
    """A node whose rounded result is far from the exact one.

    Attributes:
        node: the node in graph text, without constants.
        source: where in the model it comes from; empty if unknown.
        kind: ``inf`` or ``nan`` if an element has become that, ``loss`` if elements differ by over 1 %.
        relative: the largest difference of finite elements over the largest magnitude of the exact result.
        largest: the largest magnitude of the exact result.
        half: what results are rounded to.
    """

    node: str
    source: str
    kind: str
    relative: float
    largest: float
    half: torch.dtype

    def __str__(self) -> str:
        end = f"{str(self.half).removeprefix('torch.')} ends at {torch.finfo(self.half).max:.6g}"
        place = f" at {self.source}" if self.source else ""
        what = f"loses {self.relative:.1%}" if self.kind == "loss" else f"becomes {self.kind}"
        return f"{self.node}{place} {what} (values reach {self.largest:.4g}; {end})"


class HalfInterpreter(Interpreter):
    """Runs a Program with every floating tensor rounded to 16 bits and back after every node.

    Inputs, weights and packed weights are rounded too; dtypes stay what they are. Beside each rounded tensor its exact
    twin is computed, by the same path through branches and loops, so memory is twice that of the interpreter.

    Attributes:
        first_loss: the first node of the last run that loses more than 1 %, or becomes infinite or not a number.
    """

    def __init__(self, program: Program, half: torch.dtype = torch.float16) -> None:
        """Begin.

        Args:
            program: what is run.
            half: what tensors are rounded to, float16 or bfloat16.
        """
        super().__init__(program)
        self._half = half
        self.first_loss: PrecisionLoss | None = None
        self._twins = WeakIdKeyDictionary()
        self._exact_contexts: dict[int, tuple[PackedContext, PackedContext]] = {}
        self.lift([item.value for item in program.attributes.values()])  # exact weights too come back after a run
        self.attributes = {name: self._rounded_copy(value) for name, value in self.attributes.items()}
        self.model_state.commit(self.model_state.working_copy(self._rounded_tensor))
        self._constants: dict[Value, Any] = {}

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns in that precision; see :meth:`Interpreter.run`."""
        self.first_loss = None
        with torch.no_grad():
            copies = [map_leaves(arg, torch.Tensor, torch.Tensor.clone) for arg in args]
            rounded = [self._rounded_copy(copy) for copy in copies]
        return super().run(method, rounded)

    def _tensors_of_state(self) -> list[torch.Tensor]:
        """The rounded tensors and their exact twins."""
        return [item for tensor in super()._tensors_of_state() for item in (tensor, self._exact(tensor))]

    def value(self, value: Value, environment: dict[Value, Any]) -> Any:
        """The value of a graph's Value; constants are rounded once."""
        if not value.is_constant:
            return environment[value]
        if value not in self._constants:
            self._constants[value] = self._rounded_copy(self.lift(value.constant))
        return self.lift(self._constants[value])

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Call the kernel on the rounded and on the exact arguments, and round the first result."""
        exact_args = [self._exact(arg) for arg in args]
        result = super().operator(node, args)
        if any(True for _ in leaves_of(args, torch.Tensor)):
            exact = super().operator(node, exact_args)
        else:
            exact = map_leaves(result, torch.Tensor, torch.Tensor.clone)  # made of numbers, or at random
        if isinstance(result, PackedContext):
            self._exact_contexts[id(result)] = result, exact
        # How many tensors there are may hang on their elements; one without a twin stands for itself.
        for tensor, twin in zip(leaves_of(result, torch.Tensor), leaves_of(exact, torch.Tensor), strict=False):
            if tensor.dtype in _ROUNDED:
                _round(tensor, self._half)
                self._note_loss(node, tensor, twin)
            self._twins[tensor] = twin
        return result

    def _exact(self, value: Any) -> Any:
        """An argument with the exact twins in place of rounded tensors."""
        if isinstance(value, PackedContext):
            return self._exact_contexts.get(id(value), (value, value))[1]
        return map_leaves(value, torch.Tensor, lambda tensor: self._twins.get(tensor, tensor))  # type: ignore[no-untyped-call]

    def _rounded_copy(self, value: Any) -> Any:
        """An input or a weight, rounded, whose exact twin is remembered."""
        if isinstance(value, PackedContext):
            state = [self._rounded_copy(item) for item in value.state()]
            rounded = type(value)(*state)
            self._exact_contexts[id(rounded)] = rounded, value
            return rounded
        return map_leaves(value, torch.Tensor, self._rounded_tensor)

    def _rounded_tensor(self, exact: torch.Tensor) -> torch.Tensor:
        rounded = exact.detach().clone()
        if exact.dtype in _ROUNDED:
            _round(rounded, self._half)
        self._twins[rounded] = exact.detach()
        return rounded

    def _note_loss(self, node: Node, rounded: torch.Tensor, exact: torch.Tensor) -> None:
        """Keep the first node whose result is far off."""
        if self.first_loss is not None or rounded.shape != exact.shape or not rounded.numel():
            return
        finite = exact.isfinite()
        largest = float(exact[finite].abs().max()) if finite.any() else 0.0
        broken = finite & ~rounded.isfinite()
        both = finite & rounded.isfinite()
        difference = float((rounded - exact)[both].abs().max()) if both.any() else 0.0
        relative = difference / largest if largest else 0.0
        kind = "loss"
        if broken.any():
            kind = "nan" if rounded[broken].isnan().any() else "inf"
        elif relative <= LOSS:
            return
        names = ", ".join(f"%{value.name}" for value in node.inputs if not value.is_constant)
        text = f"{', '.join(f'%{value.name}' for value in node.outputs)} = {node.op}({names})"
        self.first_loss = PrecisionLoss(text, node.source, kind, relative, largest, self._half)


def in_halves(value: Any, half: torch.dtype) -> Any:
    """A nest, or a packed context, with the elements of its float tensors rounded to halves; dtypes stay."""
    return with_tensors(value, lambda item: item.to(half).to(item.dtype) if item.dtype in _ROUNDED else item)


def _round(tensor: torch.Tensor, half: torch.dtype) -> None:
    """Round in place, for other tensors may be views of it; a view of what is rounded already is not written to."""
    rounded = tensor.to(half).to(tensor.dtype)
    if not ((rounded == tensor) | tensor.isnan()).all():
        tensor.copy_(rounded)
