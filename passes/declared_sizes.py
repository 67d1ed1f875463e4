"""Sizes as expressions of the inputs' sizes, where ranges of these were declared.

What a target computes right may depend on sizes, so what is known of a tensor must hold for every input that was
declared, not for the example alone. Inputs' sizes that may vary become symbols of
:attr:`mobopt.ir.Program.size_symbols`, with their ranges. Tensors that follow from them
(:mod:`mobopt.passes.varying_sizes` finds them) get expressions of the symbols from rules of shapes, where the ranges
decide all that a rule asks; the others have no known sizes, as if these depended on elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch

from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.dimensions import Dimension, Expression
from mobopt.ir.facts import SIZES, TensorFacts, facts_of_constant
from mobopt.ir.guards import Guards
from mobopt.ir.input_rules import InputRules
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import TENSOR, OptionalType, TensorType
from mobopt.passes.inference import Inference, values_of
from mobopt.runtimes.bounds import DeclaredBounds, Range

Sizes = Sequence["Dimension | Range | None"]
"""Of each dimension what was declared: a number or nothing, a range, or an expression of the export's symbols."""


_TENSORS = (TENSOR, OptionalType(TENSOR))


@dataclass
class DeclaredSizes:
    """What was declared of the inputs of one method.

    Attributes:
        sizes: of tensors, of which some sizes may vary.
        containers: inputs that hold such tensors, or tensors whose sizes no symbol stands for.
    """

    sizes: dict[Value, tuple[Dimension, ...]] = field(default_factory=dict)
    containers: set[Value] = field(default_factory=set)

    @property
    def inputs(self) -> set[Value]:
        """All inputs with sizes that may vary."""
        return {*self.sizes, *self.containers}


def declare_sizes(
    program: Program, method: str, arguments: Sequence[Any], bounds: DeclaredBounds, symbols: Guards
) -> DeclaredSizes:
    """Make symbols of the sizes of a method's inputs that may vary, by ``bounds``, or as the model was exported.

    Args:
        program: the model.
        method: the method's name.
        arguments: its example arguments, without self.
        bounds: the ranges that a user declares, if any.
        symbols: gets the symbols.

    Raises:
        InputError: an example is out of its range, or a range has no size in it.
    """
    rules: InputRules | None = program.metadata.get("input_rules", {}).get(method)
    found = DeclaredSizes()
    kinds = [] if rules is None else leaves_of(list(rules.inputs.values()), TensorType)
    exported: list[Sizes] = [kind.sizes for kind in kinds]
    declared = [_closer(own, sizes) for own, sizes in zip_longest(bounds.get(method, ()), exported, fillvalue=())]
    maker = _SymbolMaker(symbols, rules)
    inputs = zip(program.methods[method].inputs[1:], arguments, strict=False)
    placed = [(value, tensor) for value, argument in inputs for tensor in leaves_of([argument], torch.Tensor)]
    pairs = [(value, tensor, sizes) for (value, tensor), sizes in zip(placed, declared, strict=False)]
    for value, tensor, sizes in pairs:
        maker.see(sizes, tensor.shape, f"the input {value.name}")
    for value, tensor, sizes in pairs:
        made = maker.made(sizes, tensor.shape, f"the input {value.name}")
        if made is None or (value.type not in _TENSORS and any(isinstance(size, Expression) for size in made)):
            found.containers.add(value)
        elif any(isinstance(size, Expression) for size in made):
            found.sizes[value] = made
    return found


def _closer(own: Sizes, exported: Sizes) -> Sizes:
    """What was declared of a tensor's sizes: by the user, and where nothing was said, by the export."""
    return [other if size is None else size for size, other in zip_longest(own, exported)]


class _SymbolMaker:
    """Makes the symbols of one method."""

    def __init__(self, symbols: Guards, rules: InputRules | None) -> None:
        self._symbols = symbols
        self._rules = rules
        self._made: dict[str, Expression] = {}
        """Of exported models, by the names of their own symbols."""

    def see(self, sizes: Sizes, example: Sequence[int], input_name: str) -> None:
        """Make symbols for those of an exported model that stand for a size by themselves."""
        for dim, (size, seen) in enumerate(zip(sizes, example, strict=False)):
            known = self._rules.guards.symbols.get(str(size)) if self._rules and isinstance(size, Expression) else None
            if known is not None and known.name not in self._made:
                self._made[known.name] = self._symbol(
                    (known.lower, known.upper), seen, f"dimension {dim} of {input_name}"
                )

    def made(self, sizes: Sizes, example: Sequence[int], input_name: str) -> tuple[Dimension, ...] | None:
        """The sizes of a tensor; None where one is computed of something that no input has for its size."""
        found: list[Dimension] = []
        for dim, seen in enumerate(example):
            size = sizes[dim] if dim < len(sizes) else None
            if isinstance(size, Expression):
                if not size.symbols() <= set(self._made):
                    return None
                found.append(size.substitute(self._made))
            elif isinstance(size, tuple) and size[0] != size[1]:
                found.append(self._symbol(size, seen, f"dimension {dim} of {input_name}"))
            else:
                found.append(seen)
        return tuple(found)

    def _symbol(self, limits: Range, example: int, origin: str) -> Expression:
        """An empty tensor is no case that files are made for, unless the example is one."""
        least = max(limits[0], 1) if example else limits[0]
        return self._symbols.symbol("", least, limits[1], example, origin)


def spread_sizes(program: Program, graph: Graph, declared: DeclaredSizes, seen: Mapping[Value, TensorFacts]) -> None:
    """Tell the tensors of a method the sizes that follow from those of its inputs.

    Args:
        program: the model.
        graph: the method; tensors whose sizes may vary have none that are known.
        declared: what was declared of its inputs.
        seen: what the run on the example tells of all tensors.
    """
    for value, sizes in declared.sizes.items():
        value.facts = replace(seen[value], symbolic_sizes=sizes)
    _Spreader(program, seen).block(graph.block)


class _Spreader:
    """Walks through a method in the order of its nodes."""

    def __init__(self, program: Program, seen: Mapping[Value, TensorFacts]) -> None:
        self._program = program
        self._seen = seen
        self._inference = Inference(program, believes_attributes=False)

    def block(self, block: Block) -> None:
        """Tell the tensors of a block, and of those in it."""
        for node in block.nodes:
            if node.op == "prim::Loop":
                self._loop(node)
            elif node.op == "prim::If":
                self._choice(node)
            elif node.op != "prim::GetAttr":
                for value in node.outputs:
                    if value in self._seen and value.facts.varies:
                        self._tell(value, self._inference.facts(value))

    def _tell(self, value: Value, made: TensorFacts) -> None:
        """Believe what follows from the operands, if it is what was seen in the example."""
        seen = self._seen[value]
        is_known = made.is_seen and not made.varies and made.dimensions is not None
        is_as_seen = made.known_dtype == seen.known_dtype and made.seen_sizes == seen.seen_sizes
        if is_known and is_as_seen and seen.lasting == SIZES:
            value.facts = replace(seen, symbolic_sizes=made.symbolic_sizes)

    def _choice(self, node: Node) -> None:
        """Of a branch that the ranges decide, its own; else what all branches give alike."""
        for block in node.blocks:
            self.block(block)
        chosen = self._inference.decided(node.inputs[0])
        blocks = node.blocks if chosen is None else [node.blocks[0 if chosen else 1]]
        for index, value in enumerate(node.outputs):
            if value in self._seen and value.facts.varies:
                sources = [_facts_of(block.outputs[index]) for block in blocks]
                if all(source.is_seen and source == sources[0] for source in sources):
                    self._tell(value, sources[0])

    def _loop(self, node: Node) -> None:
        """What a loop carries keeps its sizes if a trip that begins with them ends with them."""
        (body,) = node.blocks
        carried = list(zip(body.parameters[1:], node.outputs, node.inputs[2:], body.outputs[1:], strict=True))
        kept = [item for item in carried if item[0] in self._seen and item[0].facts.varies]
        before = {value: value.facts for value in values_of(body)}
        while True:
            for parameter, _, first, _ in kept:
                self._tell(parameter, _facts_of(first))
            self.block(body)
            still = [item for item in kept if _have_same_sizes(_facts_of(item[3]), item[0].facts)]
            if len(still) == len(kept):
                break
            kept = still
            for value, facts in before.items():
                value.facts = facts
            self._inference = Inference(self._program, believes_attributes=False)
        for parameter, output, _, _ in kept:
            self._tell(output, parameter.facts)


def _facts_of(value: Value) -> TensorFacts:
    if value.is_constant and isinstance(value.constant, torch.Tensor):
        return replace(facts_of_constant(value.constant), is_constant=False)
    return value.facts


def _have_same_sizes(one: TensorFacts, other: TensorFacts) -> bool:
    return None not in (one.dimensions, other.dimensions) and one.type == other.type
