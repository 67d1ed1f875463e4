"""What halves hold well: magnitudes of constants and of what nodes were seen to make; nodes by patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch

from mobopt.errors import InputError
from mobopt.ir import Graph, Node, Program, Value
from mobopt.runtimes.line_run import LineEvaluation, LineRun, UnforeseenSizesError

HALVES: dict[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""What floats of 16 bits are called as a precision."""
LARGEST = 65504 / 4
"""Magnitude from which values are taken to be too large for float16, which ends at 65504: other inputs make others."""
SMALLEST = 1e-3
"""Tensors whose largest magnitude is less lose too much: below 6e-5 float16 has ever fewer bits."""


def magnitude(values: torch.Tensor) -> float:
    """The largest magnitude of a tensor's finite elements; 0 without any."""
    if not values.numel():
        return 0.0
    low, high = (float(bound) for bound in torch.aminmax(values.detach()))
    if low > -torch.inf and high < torch.inf:  # neither holds for NaN
        return max(-low, high)
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def why_not_half(largest: float) -> str | None:
    """Why float16 doesn't hold values of such a largest magnitude; None if it does."""
    if largest > LARGEST:
        return f"its values reach {largest:.3g}; float16 ends at 65504"
    return f"its values are at most {largest:.1g}; float16 has few bits there" if 0 < largest < SMALLEST else None


def fits_half(values: torch.Tensor, elements: torch.dtype) -> bool:
    """Whether halves of a type hold the elements of a constant well; bfloat16 has the range of float32."""
    return elements == torch.bfloat16 or why_not_half(magnitude(values)) is None


class ValueRanges:
    """The largest magnitudes of what nodes made on inputs that were seen, by what they come from in the model."""

    def __init__(self) -> None:
        self._largest: dict[object, float] = {}
        self._seen: set[object] = set()

    def learn(self, program: Program, method: str, args: Sequence[object]) -> None:
        """Run a method on the CPU in float32, and remember what its nodes make.

        Raises:
            InputError: the arguments don't fit the model.
        """
        with torch.random.fork_rng(devices=[]):
            LineRun(program, method).run(args, lambda line, value, tensor: self._note(value, tensor))

    def watch(self, graph: Graph, inputs: Callable[[], Sequence[torch.Tensor]]) -> None:
        """The same of a straight line, unless all its nodes have been seen.

        Args:
            graph: as it is before nodes are fused.
            inputs: gives its inputs.

        Raises:
            InputError: an operator refuses its operands.
        """
        made = (node for node in graph.block.nodes if any(value.dtype == torch.float32 for value in node.outputs))
        if all((node.qualified_op, _key(node)) in self._seen for node in made):
            return
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                LineEvaluation().outputs(graph, inputs(), self._note)
        except UnforeseenSizesError:
            return  # the call will meet it too, and is planned anew with what it teaches

    def why_not(self, node: Node) -> str | None:
        """Why float16 doesn't hold what a node makes; None if it does, or it has not been seen."""
        return why_not_half(self._largest.get(_key(node), 0.0))

    def _note(self, value: Value, tensor: torch.Tensor) -> None:
        node = value.producer
        if node is None or tensor.dtype != torch.float32:
            return
        key = _key(node)
        self._seen.add((node.qualified_op, key))
        self._largest[key] = max(self._largest.get(key, 0.0), magnitude(tensor))


def _key(node: Node) -> object:
    return node.origin.nodes or node.qualified_op


def matches(pattern: str, node: Node) -> bool:
    """Whether a pattern with ``*`` and ``?`` fits a node's operator, or what the model calls a node that it comes from:
    its line of source, or the node in short."""
    names = (node.qualified_op, *(name for place in node.origin.nodes for name in (place.line, place.text)))
    return any(fnmatchcase(name, pattern) for name in names)


def check_patterns(program: Program, patterns: Sequence[str]) -> None:
    """Refuse patterns of nodes that do nothing.

    Raises:
        InputError: no node of the model matches one.
    """
    for pattern in patterns:
        nodes = (node for graph in program.methods.values() for node in graph.walk())
        if not any(matches(pattern, node) for node in nodes):
            raise InputError(
                f"fp32_nodes has {pattern!r}, which no node of the model matches; patterns with * and ? are compared "
                "with a node's operator (aten::softmax) and its line (model.py:7 in encoder.attention)"
            )
