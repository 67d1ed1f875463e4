"""Which values of two runs are the same layer's: by origin, by all that makes them, by source line, by order, and by
what reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.nests import leaves_of
from mobopt.ops.contexts import PackedContext
from mobopt.ops.records import Trait, record_of

Place = tuple[int, str]
"""A value of a run: the number of its line, and its name there."""

_FAMILIES = (Trait.CONVOLUTION, Trait.PRODUCT, Trait.NORMALIZATION, Trait.POOLING, Trait.RECURRENT)
"""Operators of one family may write one layer in several ways; their weights tell layers apart."""
_MOST_PAIRS = 4_000_000
"""Up to so many pairs the longest common order is looked for; beyond, the longest common runs."""


@dataclass(frozen=True, eq=False)
class Made:
    """A value of a run: what a node makes, or what a line is given."""

    line: int
    value: Value

    @property
    def place(self) -> Place:
        """What tells it from the others."""
        return self.line, self.value.name

    @property
    def node(self) -> Node:
        """What makes it."""
        assert self.value.producer is not None
        return self.value.producer

    @property
    def form(self) -> Hashable:
        """Sizes, and whether they are numbers of the same kind."""
        dtype = self.value.dtype
        return self.value.sizes, dtype.is_floating_point, dtype == torch.bool


def made_by(lines: Sequence[Graph]) -> list[Made]:
    """Everything that a run computes, in order."""
    return [
        Made(number, value) for number, line in enumerate(lines) for node in line.block.nodes for value in node.outputs
    ]


@dataclass(frozen=True)
class Match:
    """Two values of one layer."""

    reference: Place
    how: str
    """``origin``, ``making``, ``line``, ``order`` or ``reader``."""
    turn: int
    """Which of the values that the same node makes, from 0."""


def match(reference: Sequence[Graph], other: Sequence[Graph]) -> dict[Place, Match]:
    """For values of a run, those of a reference's run that should be equal.

    Args:
        reference: lines of the reference, in order.
        other: lines of the other run.

    Returns:
        By the other's places. What is computed from inputs alone has no partner if the other run lacks it, and what has
        several possible partners has none.
    """
    theirs, ours = made_by(reference), made_by(other)
    found = _by_turns(theirs, ours, _origin_of, "origin")
    if 2 * len(found) < len(ours):  # nodes of another file: that some have one number and text means nothing
        identities = {item.value: _identity(item) for item in (*theirs, *ours)}
        found = _by_making(reference, other, identities)
        found.update(_by_turns(*_left(theirs, ours, found), lambda item: _line_of(item, identities), "line"))
        found.update(_by_order(theirs, ours, found, identities))
        _by_readers(reference, other, found, _twins(theirs, ours))
    _by_readers(reference, other, found, {})
    return found


def _origin_of(item: Made) -> Hashable:
    nodes = item.node.origin.nodes
    return (nodes[-1], item.node.outputs.index(item.value)) if nodes else None


def _line_of(item: Made, identities: Mapping[Value, Hashable]) -> Hashable:
    nodes = item.node.origin.nodes
    line = nodes[-1].line if nodes else ""
    return (line, identities[item.value]) if line else None


def _left(theirs: Iterable[Made], ours: Iterable[Made], found: Mapping[Place, Match]) -> tuple[list[Made], list[Made]]:
    """What has no partner yet."""
    taken = {partner.reference for partner in found.values()}
    return [item for item in theirs if item.place not in taken], [item for item in ours if item.place not in found]


def _by_making(
    reference: Sequence[Graph], other: Sequence[Graph], identities: Mapping[Value, Hashable]
) -> dict[Place, Match]:
    """Values of the first lines that the same operators make of the same inputs: they are equal, whatever stands
    where. Several with the same making are one value."""
    if not reference or not other or len(reference[0].inputs) != len(other[0].inputs):
        return {}
    numbers: dict[Hashable, int] = {}
    left, right = (_makings(line, identities, numbers) for line in (reference[0], other[0]))
    return {
        place: Match(makers[min(turn, len(makers) - 1)], "making", 0)
        for making, places in right.items()
        for turn, place in enumerate(places)
        if (makers := left.get(making))
    }


def _makings(line: Graph, identities: Mapping[Value, Hashable], numbers: dict[Hashable, int]) -> dict[int, list[Place]]:
    """The places of a first line by a number of all that makes them: the same number is the same making."""
    made: dict[Value, int] = {
        value: numbers.setdefault((place, value.sizes, value.dtype), len(numbers))
        for place, value in enumerate(line.inputs)
    }
    found: dict[int, list[Place]] = defaultdict(list)
    for node in line.block.nodes:
        operands = tuple(made[value] for value in _operands(node))
        for value in node.outputs:
            key = (identities[value], "" if _weights(node) else (node.op, _numbers(node)), operands)
            made[value] = numbers.setdefault(key, len(numbers))
            found[made[value]].append((0, value.name))
    return found


def _by_turns(
    theirs: Iterable[Made], ours: Iterable[Made], key_of: Callable[[Made], Hashable], how: str
) -> dict[Place, Match]:
    """Values with the same key, turn by turn; where one side makes several in place of one, see :func:`_result_of`."""
    groups = _grouped(theirs, key_of), _grouped(ours, key_of)
    found: dict[Place, Match] = {}
    for key, right in groups[1].items():
        left = groups[0].get(key, [])
        turns = min(len(left), len(right))
        if not turns or len(left) % turns or len(right) % turns:
            continue
        for turn, (some, others) in enumerate(zip(_runs(left, turns), _runs(right, turns), strict=True)):
            one, two = _result_of(some, others[-1]), _result_of(others, some[-1])
            if one.form == two.form:
                found[two.place] = Match(one.place, how, turn)
    return found


def _runs(items: Sequence[Made], count: int) -> list[Sequence[Made]]:
    """Items in so many runs of the same length."""
    length = len(items) // count
    return [items[start : start + length] for start in range(0, len(items), length)]


def _result_of(run: Sequence[Made], partner: Made) -> Made:
    """What several values that stand for one of the other side come to: the last, which the others lead to. But a view
    is made anew whenever its memory has been written to, and it is the first that the other side has."""
    operator = partner.node.qualified_op
    is_made_anew = Trait.VIEW in record_of(operator).traits and run[0].node.qualified_op == operator
    return run[0] if is_made_anew else run[-1]


def _grouped(items: Iterable[Made], key_of: Callable[[Made], Hashable]) -> dict[Hashable, list[Made]]:
    groups: dict[Hashable, list[Made]] = defaultdict(list)
    for item in items:
        key = key_of(item)
        if key is not None:
            groups[key].append(item)
    return groups


def _identity(item: Made) -> tuple[Hashable, ...]:
    """Operator, sizes, numbers and weights: what is the same of a layer in two files."""
    node = item.node
    family = next((trait for trait in _FAMILIES if trait in record_of(node.qualified_op).traits), None)
    name = family.name if family is not None else node.op.rpartition("::")[2]
    if family is Trait.POOLING:  # which has no weights
        name += " of maxima" if "max" in node.op else ""
    numbers: Hashable = ()
    if family is None:
        numbers = _numbers(node)
    packed = list(leaves_of(node.args, PackedContext))
    ranges = [(getattr(item, "output_min", None), getattr(item, "output_max", None)) for item in packed]
    weights = tuple(sorted(map(_digest, _weights(node))))
    clamped = tuple(item for item in ranges if item != (None, None))  # a layer with its activation is another value
    return name, item.form, node.outputs.index(item.value), numbers, weights, clamped


def _numbers(node: Node) -> str:
    return repr([argument for argument in node.args if not any(True for _ in leaves_of(argument, Value))])


def _weights(node: Node) -> list[torch.Tensor]:
    """Constant tensors that a node reads, also those of packed contexts."""
    contexts = [context.state() for context in leaves_of(node.args, PackedContext)]
    return [*(value.constant for value in node.inputs if value.is_constant), *leaves_of(contexts, torch.Tensor)]


def _digest(tensor: torch.Tensor) -> str:
    """The same for elements in another order: files lay weights out in different ways."""
    wide = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    flat = wide.detach().double().reshape(-1)
    return f"{flat.numel()} {float(flat.abs().sum()):.4g} {float((flat * flat).sum()):.4g}"


def _by_order(
    theirs: Sequence[Made], ours: Sequence[Made], known: Mapping[Place, Match], identities: Mapping[Value, Hashable]
) -> dict[Place, Match]:
    """The longest order of layers that both runs have; what is matched already keeps its partner."""
    anchors = {partner.reference: place for place, partner in known.items()}
    left: list[Hashable] = [anchors.get(item.place) or identities[item.value] for item in theirs]
    right: list[Hashable] = [item.place if item.place in known else identities[item.value] for item in ours]
    pairs = _common_order(left, right)
    return {ours[two].place: Match(theirs[one].place, "order", 0) for one, two in pairs if ours[two].place not in known}


def _common_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Places of a longest common subsequence of two sequences, found from the end."""
    if len(left) * len(right) > _MOST_PAIRS:
        blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    lengths = [[0] * (len(right) + 1)]
    for item in reversed(left):
        below = lengths[-1]
        row = [0] * (len(right) + 1)
        for place in range(len(right) - 1, -1, -1):
            row[place] = below[place + 1] + 1 if item == right[place] else max(below[place], row[place + 1])
        lengths.append(row)
    lengths.reverse()
    pairs, one, two = [], 0, 0
    while one < len(left) and two < len(right):
        if left[one] == right[two]:
            pairs.append((one, two))
            one, two = one + 1, two + 1
        elif lengths[one + 1][two] >= lengths[one][two + 1]:
            one += 1
        else:
            two += 1
    return pairs


def _twins(theirs: Sequence[Made], ours: Sequence[Made]) -> dict[Place, Place]:
    """Layers whose weights differ in their elements alone, as those of a folded norm do: their values are not the same,
    but what they read is."""

    def layers(items: Sequence[Made]) -> tuple[list[Made], list[Hashable]]:
        known = [(item, _outline(item)) for item in items]
        return [item for item, key in known if key is not None], [key for _, key in known if key is not None]

    (left, keys), (right, others) = layers(theirs), layers(ours)
    return {right[two].place: left[one].place for one, two in _common_order(keys, others)}


def _outline(item: Made) -> Hashable:
    """Family, sizes, and the size of the largest weight; None for what has no weights."""
    family = _kind(item.node)
    tensors = _weights(item.node)
    if not tensors or family not in _FAMILIES or not _operands(item.node):
        return None
    return family, item.form, _operands(item.node)[0].sizes, max(tensor.numel() for tensor in tensors)


def _by_readers(
    reference: Sequence[Graph], other: Sequence[Graph], found: dict[Place, Match], twins: Mapping[Place, Place]
) -> None:
    """What two matched nodes of one operator read, in order, is matched too, and what twins do; so is what two runs
    return."""
    values = {(number, value.name): value for number, line in enumerate(reference) for value in _values(line)}
    taken = {partner.reference for partner in found.values()}

    def add(number: int, one: Sequence[Value], line: int, two: Sequence[Value]) -> None:
        if len(one) != len(two):
            return
        for left, right in zip(one, two, strict=True):
            if left.producer is None or right.producer is None or (line, right.name) in found:
                continue
            if Made(number, left).form == Made(line, right).form and (number, left.name) not in taken:
                found[line, right.name] = Match((number, left.name), "reader", 0)
                taken.add((number, left.name))

    if len(reference) == len(other):
        for number, (one, two) in enumerate(zip(reference, other, strict=True)):
            add(number, one.outputs, number, two.outputs)
    for line in range(len(other) - 1, -1, -1):
        for node in reversed(other[line].block.nodes):
            place = (line, node.outputs[0].name)
            partner = twins.get(place) or (found[place].reference if place in found else None)
            twin = None if partner is None else values[partner].producer
            if partner is not None and twin is not None and _kind(twin) == _kind(node):
                add(partner[0], _operands(twin), line, _operands(node))


def _values(line: Graph) -> list[Value]:
    return [*line.inputs, *(value for node in line.block.nodes for value in node.outputs)]


def _kind(node: Node) -> Hashable:
    traits = record_of(node.qualified_op).traits
    return next((trait for trait in _FAMILIES if trait in traits), node.op)


def _operands(node: Node) -> list[Value]:
    return [value for value in node.inputs if not value.is_constant]


def inputs_alike(reference: Sequence[Graph], other: Sequence[Graph]) -> dict[Place, Place]:
    """For inputs of a run's lines, those of the reference's, where both have the same."""
    found: dict[Place, Place] = {}
    for number, (one, two) in enumerate(zip(reference, other, strict=False)):
        if len(one.inputs) == len(two.inputs):
            for left, right in zip(one.inputs, two.inputs, strict=True):
                if left.sizes == right.sizes:
                    found[number, right.name] = (number, left.name)
    return found
