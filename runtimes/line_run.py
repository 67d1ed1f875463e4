"""One call of a Program on the CPU, as the straight lines that specialising leaves, each value shown as it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError
from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.straight_line import copy_line, name_values
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu.kernels import kernel_in_line, operator_error
from mobopt.runtimes.memories import StateMemories
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import HostLeaf, Segment
from mobopt.runtimes.specialize import go_on, specialize
from mobopt.runtimes.state import ModelState

Change = Callable[[Any], Any]
"""Gives a nest or a packed context with other floats: widened (``in_double``), or rounded (``in_halves``)."""
Show = Callable[[int, Value, torch.Tensor], None]
"""Is told of each tensor that a line is given or makes: the line's number, the value, and its elements."""


class LineRun:
    """Calls of a method on the CPU; each begins with the Program's own state.

    Attributes:
        lines: of the last call, in order; a model that looks at elements has several. Values have names.
    """

    def __init__(self, program: Program, method: str, change: Change | None = None) -> None:
        """Make it.

        Args:
            program: the model; never changed.
            method: the method's name.
            change: what inputs, constants and results go through, if anything. What follows from constants alone is
                computed in float32 before.
        """
        self.lines: list[Graph] = []
        self._program = program
        self._method = method
        self._evaluation = LineEvaluation(change)
        self._change: Change = change or (lambda value: value)
        self._by_elements: set[str] = set()

    def run(self, args: Sequence[Any], show: Show) -> Any:
        """What the method returns.

        Args:
            args: without self.
            show: is told of every tensor on the way, in order; it may keep them, for nothing writes to them.

        Raises:
            InputError: the arguments don't fit the model, or the model raises.
            UnsupportedError: the model needs what no runtime of ours can do.
        """
        while True:
            self.lines.clear()
            try:
                with torch.no_grad():
                    return self._run(args, show)
            except UnforeseenSizesError as error:
                if error.op in self._by_elements:
                    raise
                self._by_elements.add(error.op)

    def _run(self, args: Sequence[Any], show: Show) -> Any:
        program, state = self._program, ModelState(self._program).working_copy(torch.Tensor.clone)
        given = [*leaves_of(list(args), torch.Tensor), *StateMemories(state).tensors]
        given = self._change(given)
        segment = specialize(program, self._method, args, state, self._by_elements)
        carried: list[torch.Tensor] = []
        while True:
            hosted = [segment.tape.values[ref.number] for ref in segment.hosted]
            inputs = [*carried, *self._change(hosted), *given]
            values = self._compute(segment, inputs, show)
            if segment.following is None:
                return _result(segment, values, inputs)
            looked = [values[value].to(value.dtype) for value in segment.values_in(segment.result)]
            carried = [values[value] for value in segment.values_in(segment.carried)]
            answers, numbers = segment.handed_on(segment.tape.values, looked)
            segment = go_on(program, segment.following, answers, numbers, self._by_elements)

    def _compute(self, segment: Segment, inputs: Sequence[torch.Tensor], show: Show) -> dict[Value, torch.Tensor]:
        number, graph = len(self.lines), segment.graph
        name_values(graph, str(number))
        self.lines.append(copy_line(graph))
        for value, tensor in zip(graph.inputs, inputs, strict=True):
            show(number, value, tensor)
        return self._evaluation.outputs(graph, inputs, lambda value, tensor: show(number, value, tensor))


def _result(segment: Segment, values: dict[Value, torch.Tensor], inputs: Sequence[torch.Tensor]) -> Any:
    tape = segment.tape.values
    segment.result = map_leaves(segment.result, HostLeaf, lambda leaf: tape[leaf.ref.number])
    segment.updates = {}  # the state of the next call is the Program's again
    segment.writes = ()
    computed = dict(zip(segment.inputs[: segment.taken], inputs[: segment.taken], strict=True))
    computed |= {value: values[value] for value in segment.computed_outputs()}
    return Results(segment, computed, inputs).deliver()[0]


class UnforeseenSizesError(MoboptError):
    """An operator gave other sizes than were foretold; with its elements at hand, they can be told."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"{node.qualified_op} gives other sizes than were foretold")
        self.op = node.qualified_op


class LineEvaluation:
    """Computes lines with torch's CPU kernels, node by node; a tensor lives until its last reader has run."""

    def __init__(self, change: Change | None = None) -> None:
        """With ``change``, constants and results go through it."""
        self._change = change
        self._constants: dict[int, tuple[Any, Any]] = {}

    def outputs(
        self,
        graph: Graph,
        inputs: Sequence[torch.Tensor],
        show: Callable[[Value, torch.Tensor], None] = lambda value, tensor: None,
    ) -> dict[Value, torch.Tensor]:
        """What a line returns, by value.

        Raises:
            InputError: an operator refuses its arguments.
            UnforeseenSizesError: see there.
        """
        values: dict[Value, torch.Tensor] = dict(zip(graph.inputs, inputs, strict=True))
        dead_after = _dead_after(graph)
        for node in graph.block.nodes:
            for value, tensor in zip(node.outputs, self._results(node, values), strict=True):
                if tuple(tensor.shape) != value.sizes:
                    raise UnforeseenSizesError(node)
                values[value] = tensor
                show(value, tensor)
            for value in dead_after[node]:
                del values[value]
        return {value: self._known(value) if value.is_constant else values[value] for value in graph.outputs}

    def _results(self, node: Node, values: dict[Value, torch.Tensor]) -> list[torch.Tensor]:
        args = map_leaves(node.args, Value, lambda value: self._known(value) if value.is_constant else values[value])
        if self._change is not None:
            args = map_leaves(args, PackedContext, self._changed)
        try:
            result = list(leaves_of(kernel_in_line(node.qualified_op)(*args), torch.Tensor))
        except MoboptError:
            raise
        except Exception as error:
            raise operator_error(node.qualified_op, node.origin, args, error) from error
        return result if self._change is None else list(self._change(result))

    def _known(self, value: Value) -> Any:
        """What a constant is; it is changed once."""
        if self._change is not None:
            return self._changed(value.constant)
        return value.typed_elements if isinstance(value.constant, torch.Tensor) else value.constant

    def _changed(self, constant: Any) -> Any:
        assert self._change is not None
        if id(constant) not in self._constants:
            self._constants[id(constant)] = constant, self._change(constant)
        return self._constants[id(constant)][1]


def _dead_after(graph: Graph) -> dict[Node, list[Value]]:
    """For each node, the tensors that nothing reads after it."""
    seen = set(graph.outputs)
    dead: dict[Node, list[Value]] = {}
    for node in reversed(graph.block.nodes):
        touched = dict.fromkeys(value for value in (*node.inputs, *node.outputs) if not value.is_constant)
        dead[node] = [value for value in touched if value not in seen]
        seen.update(touched)
    return dead
