"""What a run of a model on example inputs tells about its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mobopt.ir import Node, Program, Value
from mobopt.ir.facts import UNKNOWN, UNSEEN, facts_of_tensor
from mobopt.ir.guards import closed_guards
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import schema_of_node
from mobopt.ops.state import telling_calls
from mobopt.passes.declared_sizes import declare_sizes, spread_sizes
from mobopt.passes.inference import infer_facts, values_of
from mobopt.passes.varying_sizes import varying_values
from mobopt.runtimes.bounds import DeclaredBounds
from mobopt.runtimes.cpu import Interpreter

_HALF = 5
"""Number of ``float16``; source: ``c10/core/ScalarType.h``."""


@dataclass(frozen=True)
class Examples:
    """Example arguments of methods.

    Attributes:
        arguments: for each method, its arguments without self; none: nothing is known of sizes.
        are_guessed: whether nobody asked for these sizes: mobopt chose them, or tracing happened to use them. They
            decide what the target computes right, and no file is fixed to them.
        bounds: ranges of sizes of methods' inputs; where nothing is said, that of the export counts.
        calibration: arguments of further calls of ``forward``, which tell how large numbers get, and nothing of sizes.
        are_random: whether their numbers are mobopt's own, so that they tell nothing of how large numbers get.
    """

    arguments: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    are_guessed: bool = False
    bounds: DeclaredBounds = field(default_factory=dict)
    calibration: Sequence[Sequence[Any]] = ()
    are_random: bool = False


def record_facts(program: Program, examples: Examples) -> None:
    """See to it that every tensor knows its facts: those of the methods' inputs and results, and all in between.

    The first time, the methods with examples are run on them. A value that is computed several times, in a loop, keeps
    only what is always the same; one whose sizes depend on more than those of inputs keeps none
    (:mod:`mobopt.passes.varying_sizes`). What has been rewritten since follows from that
    (:mod:`mobopt.passes.inference`).

    Raises:
        InputError: the model can't be run on the examples.
    """
    if not examples.arguments:
        return
    if program.observed is not examples:
        _observe(program, examples)
        program.observed = examples
    infer_facts(program)


def _observe(program: Program, examples: Examples) -> None:
    values = [value for graph in program.methods.values() for value in values_of(graph.block)]
    for value in values:
        value.facts = UNSEEN if value.type == TENSOR else UNKNOWN
    program.size_symbols = closed_guards()
    calls = telling_calls(program)  # a call may leave tensors of other sizes to the next
    for method, arguments in examples.arguments.items():
        if method in program.methods:
            observer = _Observer(program)
            for _ in range(calls):
                observer.run(method, map_leaves(list(arguments), torch.Tensor, torch.Tensor.clone))
    for method, graph in program.methods.items():
        arguments = examples.arguments.get(method, ())
        declared = declare_sizes(program, method, arguments, examples.bounds, program.size_symbols)
        varying = varying_values(graph, declared.inputs)
        seen = {value: value.facts for value in varying.sizes if value.facts is not UNKNOWN}
        for value, facts in seen.items():
            value.facts = facts.varying(value not in varying.ranks)
        if declared.sizes:
            spread_sizes(program, graph, declared, seen)


def forget_facts(program: Program) -> None:
    """Take what was seen of tensors for wrong: the next who asks has the model run again."""
    program.observed = None
    for graph in program.methods.values():
        for value in values_of(graph.block):
            value.facts = UNKNOWN


def forget_unseen(program: Program) -> frozenset[Value]:
    """Take what no run came to for what nobody has looked at, and tell what that is."""
    values = (value for graph in program.methods.values() for value in values_of(graph.block))
    unseen = frozenset(value for value in values if not value.facts.is_seen)
    for value in unseen:
        value.facts = UNKNOWN
    return unseen


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


class _Observer(Interpreter):
    """Runs a program and writes down what it sees."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._inputs = {value for graph in program.methods.values() for value in graph.inputs}

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: dict[Value, Any]) -> None:
        """Look at what values are."""
        for value, result in zip(values, results, strict=True):
            if isinstance(result, torch.Tensor) and not result.is_nested:  # a nested one has no sizes
                seen = facts_of_tensor(result)
                if value in self._inputs and result.layout == torch.strided and not result.is_contiguous():
                    seen = replace(seen, is_contiguous=False)
                value.facts = value.facts.merged(seen) if value.facts.is_seen and value.facts is not UNKNOWN else seen
        super().bind(values, results, environment)
