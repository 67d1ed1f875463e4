"""Which tensors have sizes that a run of a model does not tell, since they depend on more than the inputs' sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.facts import TensorFacts, facts_of_constant
from mobopt.ir.types import FLOAT, NONE, SCALAR, STR, TENSOR, ClassType, OptionalType, Type
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import holds_tensors, listed_items, reads_metadata, schema_of_node, written_inputs
from mobopt.ops.records import Trait, has_trait, record_of

_BY_INDEX = frozenset({"aten::index.Tensor"})
"""Operators that are tagged, of which only truth values decide about sizes."""
_TRUTH = (None, "bool", "uint8")
_NO_SIZE = (FLOAT, STR)
"""Types of arguments that are no part of a size."""


@dataclass
class Varying:
    """What depends on more than the sizes of a method's inputs.

    Attributes:
        numbers: values whose elements, or whose value, depend on elements of the inputs, on numbers, flags and Nones
            that the caller gives, on attributes that change, or on the count of a loop.
        sizes: tensors whose sizes do, and containers of such tensors or of an unknown number of them.
        ranks: tensors whose number of dimensions does.
        nones: values that may be None or not.
    """

    numbers: set[Value] = field(default_factory=set)
    sizes: set[Value] = field(default_factory=set)
    ranks: set[Value] = field(default_factory=set)
    nones: set[Value] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.numbers) + len(self.sizes) + len(self.ranks) + len(self.nones)


def varying_values(graph: Graph, inputs: Collection[Value] = ()) -> Varying:
    """Follow what is not known from the inputs through a method, until nothing is added; ``inputs`` are those whose
    own sizes are not known.

    Facts of its tensors are those of a run on example inputs, which tells nothing of a branch that was not taken.
    """
    tracer = _Tracer(graph, inputs)
    before = -1
    while before != len(tracer.found):
        before = len(tracer.found)
        tracer.block(graph.block, is_controlled=False)
    return tracer.found


class _Tracer:
    """One walk after another over a graph; sets only grow."""

    def __init__(self, graph: Graph, inputs: Collection[Value]) -> None:
        given = graph.inputs[1:]
        nones = {value for value in given if _may_be_none(value)}
        self.found = Varying(numbers=set(given), sizes=set(inputs), nones=nones)
        writes = any(map(written_inputs, graph.walk()))
        self.aliases = Aliases(graph) if writes else None
        self.assigned = {node.attributes["name"] for node in graph.walk() if node.op == "prim::SetAttr"}

    def block(self, block: Block, is_controlled: bool) -> None:
        """Follow a block; ``is_controlled``: how often it runs is not known from the inputs' sizes."""
        for node in block.nodes:
            self._node(node, is_controlled)

    def _node(self, node: Node, is_controlled: bool) -> None:
        if node.op == "prim::If":
            self._if(node, is_controlled)
        elif node.op == "prim::Loop":
            self._loop(node, is_controlled)
        elif node.op == "prim::GetAttr":
            self._attribute(node)
        elif reads_metadata(node):
            varies = self._any(node, self.found.sizes) or self._any(node, self.found.ranks)
            self._mark(node.outputs, numbers=varies)  # sizes are asked for, not elements
        elif has_trait(node.qualified_op, Trait.COMPARES_OBJECTS):
            self._mark(node.outputs, numbers=any(value in self.found.nones for value in node.inputs))
        else:
            self._operator(node)
            self._writes(node, is_controlled)

    def _mark(
        self, values: Iterable[Value], *, numbers: bool = False, sizes: bool = False, ranks: bool = False
    ) -> None:
        for value in values:
            if numbers:
                self.found.numbers.add(value)
            if holds_tensors(value.type):
                self.found.sizes.update([value] if sizes else ())
                self.found.ranks.update([value] if ranks else ())

    def _operator(self, node: Node) -> None:
        found = self.found
        numbers, sizes = self._any(node, found.numbers), self._any(node, found.sizes)
        by_sizes = sizes and has_trait(node.qualified_op, Trait.RANK_BY_SIZES)
        ranks = by_sizes or self._any(node, found.ranks)
        decides = self._decides_sizes(node) if numbers else False
        self._mark(node.outputs, numbers=numbers or sizes or ranks, sizes=sizes or decides, ranks=ranks)
        if numbers:  # out of a container, say
            found.nones.update(value for value in node.outputs if _may_be_none(value))

    def _any(self, node: Node, values: set[Value]) -> bool:
        return any(value in values for value in node.inputs)

    def _decides_sizes(self, node: Node) -> bool:
        """Whether an input that varies decides about the sizes of the results."""
        if _depends_on_elements(node):
            return any(value in self.found.numbers for value in node.inputs if holds_tensors(value.type))
        schema = schema_of_node(node)
        if schema is None:  # the language's own, which holds and hands on
            return False
        kinds = [value.type for value in node.inputs] if schema.is_variadic else [a.type for a in schema.arguments]
        operates = any(holds_tensors(value.type) for value in node.inputs)
        ignored = (*_NO_SIZE, SCALAR) if operates else _NO_SIZE  # arange has a Scalar for its length
        return any(
            value in self.found.numbers and not holds_tensors(value.type) and _plain(kind) not in ignored
            for value, kind in zip(node.inputs, kinds, strict=False)
        )

    def _writes(self, node: Node, is_controlled: bool) -> None:
        """What is written in place is seen under every name of it; what is put into a container is part of it."""
        for target in written_inputs(node):
            assert self.aliases is not None
            is_container = target.type != TENSOR
            given = [value for value in node.inputs if value is not target]
            self._mark(
                [*self.aliases.members(target), target],
                numbers=is_controlled or any(value in self.found.numbers for value in given),
                sizes=is_container and (is_controlled or any(value in self.found.sizes for value in given)),
                ranks=is_container and any(value in self.found.ranks for value in given),
            )

    def _attribute(self, node: Node) -> None:
        """What stays an attribute changes from call to call, or is there for the caller to change."""
        if isinstance(node.output.type, ClassType):
            return
        is_assigned = node.attributes["name"] in self.assigned or node.output.type != TENSOR
        self._mark(node.outputs, numbers=True, sizes=is_assigned)
        self.found.nones.update(value for value in node.outputs if _may_be_none(value))

    def _if(self, node: Node, is_controlled: bool) -> None:
        is_open = node.inputs[0] in self.found.numbers
        for block in node.blocks:
            self.block(block, is_controlled or is_open)
        for output, *sources in zip(node.outputs, *(block.outputs for block in node.blocks), strict=True):
            self._join(output, [value for value in sources if not _is_uninitialized(value)], is_open)

    def _loop(self, node: Node, is_controlled: bool) -> None:
        (body,) = node.blocks
        is_open = any(value in self.found.numbers for value in (*node.inputs[:2], body.outputs[0]))
        self._mark(body.parameters[:1], numbers=is_open)
        self.block(body, is_controlled or is_open)
        carried = zip(body.parameters[1:], node.outputs, node.inputs[2:], body.outputs[1:], strict=True)
        for parameter, output, first, last in carried:
            for value in (parameter, output):
                self._join(value, [first] if last is parameter else [first, last], is_open)

    def _join(self, value: Value, sources: Sequence[Value], is_open: bool) -> None:
        """One of several values; which one is not known if ``is_open``."""
        found = self.found
        is_chosen = is_open and len(set(sources)) > 1
        if any(item in found.nones or (is_chosen and _may_be_none(item)) for item in sources):
            found.nones.add(value)
        self._mark(
            [value],
            numbers=is_chosen or any(item in found.numbers for item in sources),
            sizes=(is_chosen and not self._alike(sources, _sizes)) or any(item in found.sizes for item in sources),
            ranks=(is_chosen and not self._alike(sources, _rank)) or any(item in found.ranks for item in sources),
        )

    def _alike(self, sources: Sequence[Value], measure: Callable[[TensorFacts], object]) -> bool:
        """Whether these tensors are of equal sizes, or ranks, whichever of them is chosen."""
        roots = {_same_sizes_as(value) for value in sources}
        if len(roots) == 1:
            return True
        seen = {measure(_facts_of(value)) for value in roots}
        return len(seen) == 1 and None not in seen


def _sizes(facts: TensorFacts) -> object:
    return facts.known_sizes


def _rank(facts: TensorFacts) -> object:
    return facts.known_rank


def _facts_of(value: Value) -> TensorFacts:
    is_tensor = value.is_constant and isinstance(value.constant, torch.Tensor)
    return facts_of_constant(value.constant) if is_tensor else value.facts


def _same_sizes_as(value: Value) -> Value:
    """The first tensor on the way back that surely has the same sizes."""
    node = value.producer
    while node is not None and value is node.outputs[0] and has_trait(node.qualified_op, Trait.KEEPS_SIZES):
        value = node.inputs[0]
        node = value.producer
    return value


def _depends_on_elements(node: Node) -> bool:
    """Whether the sizes of an operator's results depend on elements of its operands."""
    if node.op.startswith("prim::"):
        return False
    if node.qualified_op in _BY_INDEX:
        if node.inputs[1].is_constant:
            return False
        indices = listed_items(node.inputs[1]) or node.inputs[1:]
        return any(item.facts.known_dtype in _TRUTH for item in indices if not item.is_constant)
    record = record_of(node.qualified_op)
    if record.schema is None:  # of a library that is not here
        return not node.op.startswith("aten::")
    return Trait.SIZES_BY_ELEMENTS in record.traits


def _may_be_none(value: Value) -> bool:
    """Whether the type of a value allows None."""
    return isinstance(value.type, OptionalType) or value.type == NONE


def _is_uninitialized(value: Value) -> bool:
    """Whether a value stands for what a branch that raises would have given."""
    return value.producer is not None and value.producer.op == "prim::Uninitialized"


def _plain(kind: Type) -> Type:
    return kind.element if isinstance(kind, OptionalType) else kind
