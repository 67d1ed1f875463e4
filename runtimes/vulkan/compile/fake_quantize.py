"""Finds where a quantised model rounds its activations, so that products do so before they store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead
from mobopt.ops.fake_quantize import FAKE_QUANTIZE, GATES, ROUNDED_GATE
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.normalizations import known_number

_MOST_STEPS = 8
"""From what is rounded to an integer to the product with the scale: zero points and bounds are between."""
_CHOOSE_ELEMENTS = frozenset({"aten::relu", "aten::max_pool2d"})
"""Operators whose results are elements of their argument, or zero."""
_EXACT = 1 << 23
"""Up to where float32 has all integers, and sums of two of them."""


def find_fake_quantize(graph: Graph) -> None:
    """Put one operator in the place of the steps that make an activation a multiple of a scale.

    Given:
        %n : Float(2, 8) = aten::div.Tensor(%x, 0.05)
        %r : Float(2, 8) = aten::round(%n)
        %z : Float(2, 8) = aten::add.Tensor(%r, 120, 1)
        %c : Float(2, 8) = aten::clamp(%z, 0, 255)
        %i : Float(2, 8) = aten::sub.Tensor(%c, 120, 1)
        %y : Float(2, 8) = aten::mul.Tensor(%i, 0.05)
    Result:
        %y : Float(2, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)

    Scales are float32 numbers that are known, and nothing else reads what is between. A division by a power of two is
    a product with its inverse.
    """
    for node in list(graph.block.nodes):
        if node.qualified_op == "aten::round" and node.output.dtype == torch.float32:
            _replace(node)


def drop_repeated(graph: Graph) -> None:
    """Leave out roundings of what was rounded to the same steps before, and only moved since.

    Given:
        %a : Float(2, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %b : Float(8, 2) = aten::t(%a)
        %y : Float(8, 2) = mobopt::fake_quantize(%b, 0.05, -120, 135, None)
    Result:
        %a : Float(2, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %y : Float(8, 2) = aten::t(%a)
    """
    rounded: dict[Value, _Steps] = {}
    for node in list(graph.block.nodes):
        if len(node.outputs) != 1 or node.output.dtype != torch.float32:
            continue
        given = [rounded.get(value) for value in node.inputs if value.dtype.is_floating_point]
        found: _Steps | None = None
        if node.op == FAKE_QUANTIZE:
            found = _Steps(*node.args[1:4])
            if given[0] is not None and given[0].are_among(found):
                node.output.replace_all_uses_with(node.args[0])
                destroy_unread(node)
                continue
        elif given and (has_trait(node.qualified_op, Trait.MOVES_ELEMENTS) or node.op in _CHOOSE_ELEMENTS):
            found = _Steps.of_all(given)
            if found is not None and node.op == "aten::relu":
                found = _Steps(found.scale, max(found.low, 0), max(found.high, 0))
        if found is not None:
            rounded[node.output] = found


def find_rounded_gates(graph: Graph) -> None:
    """Put one operator in the place of the steps that multiply a tensor with a rounded function of it.

    Given:
        %s : Float(2, 8) = aten::sigmoid(%x)
        %r : Float(2, 8) = mobopt::fake_quantize(%s, 0.004, 0, 255, None)
        %y : Float(2, 8) = aten::mul.Tensor(%x, %r)
    Result:
        %y : Float(2, 8) = mobopt::rounded_gate(%x, "sigmoid", 0.004, 0, 255, None)

    Nothing else reads what is between.
    """
    for node in list(graph.block.nodes):
        if node.qualified_op != "aten::mul.Tensor" or node.output.dtype != torch.float32:
            continue
        for source, other in (node.args, node.args[::-1]):
            found = _gate_and_rounding(source, other, node)
            if found is not None:
                gate, rounding = found
                arguments = (source, gate.qualified_op.removeprefix("aten::"), *rounding.args[1:])
                made = [Value("", node.output.type)]
                make_instead(Node.call(ROUNDED_GATE, arguments, made, Origin.union((gate.origin, node.origin))), node)
                destroy_unread(node)
                break


def _gate_and_rounding(source: Value, factor: object, product: Node) -> tuple[Node, Node] | None:
    """The function of ``source`` and the rounding of it that make what a product multiplies it with."""
    rounding = made_only_for(factor, product)
    if rounding is None or rounding.op != FAKE_QUANTIZE or source.tensor_type != product.output.tensor_type:
        return None
    gate = made_only_for(rounding.args[0], rounding)
    is_known = gate is not None and gate.qualified_op.removeprefix("aten::") in GATES
    return (gate, rounding) if gate is not None and is_known and gate.args[0] is source else None


@dataclass(frozen=True)
class _Steps:
    """Multiples of a scale, between bounds; zero may be one besides."""

    scale: float
    low: int
    high: int

    def are_among(self, others: _Steps) -> bool:
        """Whether a rounding to other steps leaves these as they are."""
        return self.scale == others.scale and others.low <= min(self.low, 0) and max(self.high, 0) <= others.high

    @staticmethod
    def of_all(given: Sequence[_Steps | None]) -> _Steps | None:
        """What tensors are made of together; None if they have different scales, or one has none."""
        known = [steps for steps in given if steps is not None]
        if len(known) < len(given) or len({steps.scale for steps in known}) != 1:
            return None
        return _Steps(known[0].scale, min(steps.low for steps in known), max(steps.high for steps in known))


def _replace(rounding: Node) -> None:
    """Replace the steps about a rounding, if they are such."""
    first = made_only_for(rounding.args[0], rounding)
    scaling = None if first is None else _scaling_of(first)
    if scaling is None:
        return
    integers = _Integers()
    for node, source in _chain(rounding):
        last = _scaling_of(node)
        if last is not None:
            arguments = _arguments(scaling, integers, last)
            if arguments is not None and last.source is source:
                make_instead(Node.call(FAKE_QUANTIZE, arguments, [Value("", node.output.type)], node.origin), node)
                destroy_unread(node)
            return
        if not integers.follow(node, source):
            return


@dataclass(frozen=True)
class _Scaling:
    """A product of a tensor with a number, or a quotient."""

    source: Value
    number: float
    divides: bool


def _scaling_of(node: Node) -> _Scaling | None:
    if node.op not in ("aten::mul", "aten::div") or len(node.args) != 2:
        return None
    left, right = node.args
    divides = node.op == "aten::div"
    for tensor, other in ((left, right),) if divides else ((left, right), (right, left)):
        number = _number(other)
        if number is not None and isinstance(tensor, Value) and tensor.tensor_type == node.output.tensor_type:
            return _Scaling(tensor, number, divides)
    return None


@dataclass
class _Integers:
    """What has become of whole numbers: they were shifted by ``point``, and are between bounds, less that."""

    point: int = 0
    low: float = -math.inf
    high: float = math.inf

    def follow(self, node: Node, source: Value) -> bool:
        """Take a step into account; False if it is none that is known."""
        shift = _shift_of(node, source)
        bounds = _bounds_of(node)
        if shift is not None:
            self.point += shift
        elif bounds is not None:
            least, most = (bound - self.point for bound in bounds)
            self.low, self.high = (min(max(bound, least), most) for bound in (self.low, self.high))
        return shift is not None or bounds is not None


def _arguments(first: _Scaling, integers: _Integers, last: _Scaling) -> tuple[object, ...] | None:
    """Of the operator; None if it isn't one."""
    scale, inverse = last.number, None if first.divides else first.number
    if integers.point or not -_EXACT < integers.low <= integers.high < _EXACT or not 0 < scale < math.inf:
        return None
    if last.divides or (first.divides and first.number != scale):
        return None
    if first.divides and math.frexp(scale)[0] == 0.5:
        inverse = 1 / scale
    return first.source, scale, int(integers.low), int(integers.high), inverse


def _chain(node: Node) -> Iterator[tuple[Node, Value]]:
    """What reads a result alone, then what reads that alone, and so on; each with what it reads of the one before."""
    for _ in range(_MOST_STEPS):
        source = node.output
        readers = {user for user, _ in source.uses}
        if len(readers) != 1:
            return
        (node,) = readers
        if len(node.outputs) != 1:
            return
        yield node, source


def _shift_of(node: Node, whole: Value) -> int | None:
    """The integer that a step adds to whole numbers."""
    sign = {"aten::add": 1, "aten::sub": -1}.get(node.op)
    if sign is None or node.args[0] is not whole or node["alpha"] != 1 or node.output.sizes != whole.sizes:
        return None
    number = _number(node.args[1])
    return sign * int(number) if number is not None and number.is_integer() and abs(number) < _EXACT else None


def _bounds_of(node: Node) -> tuple[float, float] | None:
    """The whole numbers between which a step clamps."""
    if node.qualified_op == "aten::relu":
        return 0.0, math.inf
    if node.qualified_op != "aten::clamp":
        return None
    low = -math.inf if node["min"] is None else float(node["min"])
    high = math.inf if node["max"] is None else float(node["max"])
    is_whole = all(math.isinf(bound) or bound.is_integer() for bound in (low, high))
    return (low, high) if is_whole and low <= high else None


def _number(value: object) -> float | None:
    """A number that is known, as the float32 that the device computes with."""
    number = known_number(value)
    return None if number is None else float(torch.tensor(number))
