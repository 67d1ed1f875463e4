"""Halves of the model as what they are on the device: float32 tensors whose elements lie as halves.

A model in half precision (``module.half()``, a checkpoint in bfloat16, a converted ONNX file) is a float32 program with
roundings. Kernels compute it in float32 anyway, so its line becomes one of float32 tensors, of which each remembers, as
a fact, what dtype the model gives it; :mod:`mobopt.runtimes.vulkan.compile.declared_halves` lets them lie so, and
everything in between (layers in steps, fusions, attention) sees what it would see of a float32 model. What is rounded
is what lies in memory: values in between, which a fusion keeps in registers, are more exact than the model's own, and
conversions from one to the other and back are gone. What decides by elements, such as ``isinf``, still reads what the
model's dtype makes of them.

What depends on the bits of its elements, draws random numbers or computes with complex ones keeps its halves, between
conversions. So do packed weights, and the rarer type of halves where a model has both. The switch
:data:`HALVES_BY_OPERATOR` leaves all halves what they are, for comparisons to the last bit.
"""

from __future__ import annotations

from collections import Counter

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.dtypes import SCALAR_NUMBERS, SCALAR_TYPES
from mobopt.ir.facts import UNKNOWN, TensorFacts, name_of
from mobopt.ir.nests import leaves_of
from mobopt.ir.rewriting import replace_call
from mobopt.ir.schemas import argument_names
from mobopt.ir.types import TensorType
from mobopt.ops.contexts import PackedContext
from mobopt.ops.effects import draws_numbers
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.half_ranges import HALVES
from mobopt.runtimes.segment import DeclaredDtypes, Segment

SINGLE = TensorFacts(name_of(torch.float32))
"""Of what the model, or an operator that is taken apart, has in float32."""
HALVES_BY_OPERATOR = "halves-by-operator"
"""The switch by which halves are rounded after each operator, as torch's CPU kernels round them."""
_LAYERS = (Trait.PRODUCT, Trait.CONVOLUTION, Trait.RECURRENT)
_LEAST_WEIGHTS = 1024
"""Elements of a constant that stays in halves on the host too, where it is a weight."""


def widen_halves(segment: Segment) -> None:
    """Make a line of halves one of float32 tensors, once, and note what its inputs and outputs are to its caller.

    Given:
        %y : Half(2, 3) = aten::mul.Tensor(%x, %w)
    Result:
        %y : Float(2, 3) = aten::mul.Tensor(%x, %w)
    """
    graph = segment.graph
    half = None if segment.declared is not None else _prevailing(graph)
    if half is None:
        return
    segment.declared = DeclaredDtypes(
        half, tuple(value.dtype for value in graph.inputs), tuple(value.dtype for value in graph.outputs)
    )
    _Widening(graph, half).run()


def return_halves(segment: Segment) -> None:
    """Make constants that a widened line returns halves again, where they are to the caller: no device gives them."""
    returns = segment.graph.block.returns
    for place, (value, dtype) in enumerate(segment.declared_outputs):
        if value.is_constant and value.dtype != dtype:
            returns.replace_input(place, Value.of_elements(value.typed_elements.to(dtype)))


def declared_dtype(value: Value) -> torch.dtype | None:
    """What dtype the model gives a float of a line that was widened; None of what passes have made since."""
    name = value.facts.known_dtype
    return None if name is None else getattr(torch, name)


def _prevailing(graph: Graph) -> torch.dtype | None:
    """The type of halves that a line's layers compute in; None where they don't, or there are none."""
    layers = [node for node in graph.block.nodes if any(has_trait(node.qualified_op, trait) for trait in _LAYERS)]
    counts = Counter(map(_given_dtype, layers))
    dtype = max(counts, key=lambda dtype: counts[dtype]) if counts else None
    return dtype if dtype in HALVES.values() else None


def _given_dtype(layer: Node) -> torch.dtype:
    """The halves that a layer makes, or in which its result is given to others: quantised ones convert it first."""
    value = layer.outputs[0]
    users = [user for user, _ in value.uses]
    while value.dtype not in HALVES.values() and len(users) == 1 and _passes_on(users[0]):
        value = users[0].outputs[0]
        users = [user for user, _ in value.uses]
    return value.dtype


def _passes_on(node: Node) -> bool:
    passing = (Trait.MOVES_ELEMENTS, Trait.IDENTITY)
    return len(node.outputs) == 1 and any(has_trait(node.qualified_op, trait) for trait in passing)


class _Widening:
    """The rewrite of one line."""

    def __init__(self, graph: Graph, half: torch.dtype) -> None:
        self._graph, self._half = graph, half
        self._facts = TensorFacts(name_of(half))
        self._twins: dict[Value, Value] = {}
        """Constants and what bound nodes make, with what stands for them in float32."""

    def run(self) -> None:
        """Rewrite all nodes."""
        nodes = list(self._graph.block.nodes)
        bound = {node for node in nodes if self._has_halves(node) and self._is_bound(node)}
        values = (value for node in nodes for value in (*node.inputs, *node.outputs))
        for value in dict.fromkeys([*self._graph.inputs, *values]):
            if value.dtype == torch.float32:
                value.facts = SINGLE
            elif value.dtype == self._half and not (value.is_constant or value.producer in bound):
                value.type, value.facts = TensorType(torch.float32, value.sizes), self._facts
        for node in nodes:
            if node in bound:
                self._give_halves(node)
            else:
                self._read_wide(node)
        for node in nodes:
            if node not in bound:
                self._settle(node)

    def _has_halves(self, node: Node) -> bool:
        return any(value.dtype == self._half for value in (*node.inputs, *node.outputs))

    def _is_bound(self, node: Node) -> bool:
        """Whether a node keeps its halves."""
        known = dict(zip(argument_names(node.qualified_op), node.args, strict=True))
        if has_trait(node.qualified_op, Trait.READS_BITS) or draws_numbers(node.qualified_op, known):
            return True
        is_complex = any(value.dtype.is_complex for value in (*node.inputs, *node.outputs))
        return is_complex or next(leaves_of(node.args, PackedContext), None) is not None

    def _give_halves(self, node: Node) -> None:
        """Let a bound node read halves of what became float32."""
        for place, value in enumerate(node.inputs):
            if value.facts is self._facts and not value.is_constant and value.dtype == torch.float32:
                node.replace_input(place, self._converted(value, self._half, node))

    def _read_wide(self, node: Node) -> None:
        """Let a node read float32 in place of halves, and make it, whatever dtype it names."""
        for place, value in enumerate(node.inputs):
            if value.dtype == self._half:
                node.replace_input(place, self._twin(value))
        if node.outputs and all(not value.dtype.is_floating_point for value in node.outputs):
            self._round_for(node)

    def _twin(self, value: Value) -> Value:
        """What stands for halves in float32."""
        if value not in self._twins:
            if value.elements is not None:
                elements = value.elements if _is_weight(value) else value.elements.float()
                twin = Value(value.name, TensorType(torch.float32, value.sizes), elements, value.attribute)
            else:
                assert value.producer is not None and value.producer.next is not None
                twin = self._converted(value, torch.float32, value.producer.next)
            twin.facts = self._facts
            self._twins[value] = twin
        return self._twins[value]

    def _round_for(self, node: Node) -> None:
        """Let what decides by elements see those that the model's dtype has, where they would come from registers."""
        if not has_trait(node.qualified_op, Trait.ELEMENTWISE):
            return
        for place, value in enumerate(node.inputs):
            maker = value.producer
            if maker is not None and value.facts is self._facts and has_trait(maker.qualified_op, Trait.ELEMENTWISE):
                rounded = self._converted(value, self._half, node)
                node.replace_input(place, self._converted(rounded, torch.float32, node))

    def _converted(self, value: Value, dtype: torch.dtype, before: Node) -> Value:
        """A conversion that stays one."""
        made = Value.of_tensor(dtype, value.sizes)
        origin = before.origin if value.producer is None else value.producer.origin
        Node.call("aten::to.dtype", (value, dtype, False, False, None), [made], origin).insert_before(before)
        return made

    def _settle(self, node: Node) -> None:
        """Say in a node's arguments that it makes float32; a conversion between halves and float32 will be left out."""
        if has_trait(node.qualified_op, Trait.IDENTITY) and len(node.outputs) == 1:
            self._settle_conversion(node)
        names = argument_names(node.qualified_op)
        args = [self._wide_argument(name, item) for name, item in zip(names, node.args, strict=True)]
        if any(new is not old for new, old in zip(args, node.args, strict=True)):
            replace_call(node, node.qualified_op, args)

    def _wide_argument(self, name: str, item: object) -> object:
        if name == "half_to_float":
            return False
        if not name.endswith("dtype") or item is None:
            return item
        if item is self._half:
            return torch.float32
        is_half = isinstance(item, int) and SCALAR_TYPES.get(item) == self._half
        return SCALAR_NUMBERS[torch.float32] if is_half else item

    def _settle_conversion(self, node: Node) -> None:
        """Let what a conversion reads lie as what reads the conversion wants it."""
        source, made = node.args[0], node.output
        if made.facts == source.facts or UNKNOWN in (made.facts, source.facts) or source.is_constant:
            return
        if made.facts is self._facts:
            users = [user for user, _ in source.uses]
            if all(self._makes_halves(user) for user in users):
                source.facts = self._facts
        elif self._is_returned(made) and not self._is_returned(source) and source.producer is not None:
            source.facts = made.facts

    def _makes_halves(self, node: Node) -> bool:
        is_conversion = has_trait(node.qualified_op, Trait.IDENTITY) and len(node.outputs) == 1
        return is_conversion and node.output.facts is self._facts

    def _is_returned(self, value: Value) -> bool:
        return any(user is self._graph.block.returns for user, _ in value.uses)


def _is_weight(value: Value) -> bool:
    """Whether a constant is large, and nothing computes with its elements on the host but what packs weights."""
    traits = (Trait.PRODUCT, Trait.CONVOLUTION, Trait.MOVES_ELEMENTS)
    is_read_so = all(any(has_trait(user.qualified_op, trait) for trait in traits) for user, _ in value.uses)
    return is_read_so and len(value.sizes) >= 2 and value.numel >= _LEAST_WEIGHTS
