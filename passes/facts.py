"""What a run of a model on example inputs tells about its tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.ir import Block, Node, Program, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.snapshot import Snapshot
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import schema_of_node
from mobopt.ops.state import telling_calls
from mobopt.ops.targets import TensorFacts
from mobopt.ops.targets.facts import facts_of_tensor
from mobopt.passes.varying_sizes import varying_values
from mobopt.runtimes.cpu import Interpreter

Facts = dict[Value, TensorFacts]

_HALF = 5
"""Number of ``float16``; source: ``c10/core/ScalarType.h``."""


@dataclass(frozen=True)
class _State:
    """What decides what a run computes."""

    names_and_attributes: list[Any]
    graphs: list[Snapshot]

    @classmethod
    def of(cls, program: Program) -> _State:
        """What a Program is now."""
        attributes = [item for name, attribute in program.attributes.items() for item in (name, attribute.value)]
        return cls([*attributes, *program.methods], [Snapshot(graph) for graph in program.methods.values()])

    def is_same(self, other: _State) -> bool:
        """Whether a run would compute the same."""
        return (
            len(self.names_and_attributes) == len(other.names_and_attributes)
            and all(map(operator.is_, self.names_and_attributes, other.names_and_attributes))
            and all(before.is_same(now) for before, now in zip(self.graphs, other.graphs, strict=True))
        )


@dataclass
class Examples:
    """Example arguments of methods, and what their last run told.

    Attributes:
        arguments: for each method, its arguments without self; none: nothing is known of sizes.
        are_guessed: whether nobody asked for these sizes: mobopt chose them, or tracing happened to use them. They
            decide what the target computes right, and no file is fixed to them.
        recorded: the Program that was run last, as it was, and its facts.
    """

    arguments: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    are_guessed: bool = False
    recorded: tuple[_State, Facts] | None = field(default=None, init=False, repr=False, compare=False)


def record_facts(program: Program, examples: Examples) -> Facts:
    """Sizes and dtypes of every tensor that the methods with examples compute.

    A value that is computed several times, in a loop, keeps only what is always the same; one whose sizes depend on
    more than those of inputs keeps none (:mod:`mobopt.passes.varying_sizes`). Of a Program that has not changed since
    the last call, what was recorded then is given.

    Raises:
        InputError: the model can't be run on the examples.
    """
    if not examples.arguments:
        return {}
    state = _State.of(program)
    if examples.recorded is not None and examples.recorded[0].is_same(state):
        return dict(examples.recorded[1])
    facts: Facts = {}
    calls = telling_calls(program)  # a call may leave tensors of other sizes to the next
    for method, arguments in examples.arguments.items():
        if method in program.methods:
            observer = _Observer(program, facts)
            for _ in range(calls):
                observer.run(method, map_leaves(list(arguments), torch.Tensor, torch.Tensor.clone))
    for graph in program.methods.values():
        varying = varying_values(graph, facts)
        for value in _tensors(graph.block):
            seen = facts.setdefault(value, TensorFacts(is_seen=False))
            if value in varying.sizes:
                facts[value] = seen.varying(value not in varying.ranks)
    examples.recorded = state, facts
    return dict(facts)


def may_have_halves(program: Program, examples: Examples) -> bool:
    """Whether a tensor may be float16: an argument, an attribute or a constant is, or an operator is to make one."""
    values = [*examples.arguments.values(), *(attribute.value for attribute in program.attributes.values())]
    nodes = (node for graph in program.methods.values() for node in graph.walk())
    return any(map(_holds_halves, values)) or any(map(_names_halves, nodes))


def _holds_halves(value: Any) -> bool:
    return any(tensor.dtype == torch.float16 for tensor in leaves_of(value, torch.Tensor))


def _names_halves(node: Node) -> bool:
    constants = [value.constant if value.is_constant else None for value in node.inputs]
    if any(map(_holds_halves, constants)):
        return True
    positions = [index for index, value in enumerate(constants) if type(value) is int and value == _HALF]
    schema = schema_of_node(node) if positions else None
    return schema is not None and any(schema.arguments[index].name == "dtype" for index in positions)


def _tensors(block: Block) -> Iterator[Value]:
    """Every tensor that a block and those inside of it compute or are given."""
    yield from (value for value in block.parameters if value.type == TENSOR)
    for node in block.nodes:
        yield from (value for value in node.outputs if value.type == TENSOR)
        for inner in node.blocks:
            yield from _tensors(inner)


class _Observer(Interpreter):
    """Runs a program and writes down what it sees."""

    def __init__(self, program: Program, facts: Facts) -> None:
        super().__init__(program)
        self._facts = facts

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: dict[Value, Any]) -> None:
        """Look at what values are."""
        self._look(values, results)
        super().bind(values, results, environment)

    def _look(self, values: Sequence[Value], results: Sequence[Any]) -> None:
        for value, result in zip(values, results, strict=True):
            if isinstance(result, torch.Tensor) and not result.is_nested:  # a nested one has no sizes
                seen = facts_of_tensor(result)
                known = self._facts.get(value)
                self._facts[value] = seen if known is None else known.merged(seen)
