"""Finds normalisations of rows that a model wrote in steps, so that one kernel computes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead
from mobopt.ir.schemas import argument_names
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

_MEAN = "aten::mean.dim"
_MUL, _DIV = "aten::mul.Tensor", "aten::div.Tensor"
_ADD, _SUB = "aten::add.Tensor", "aten::sub.Tensor"
_POWERS = ("aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor")


def find_normalizations(graph: Graph) -> None:
    """Put a layer norm or a root-mean-square norm in the place of the steps of one over the last dimension.

    Given:
        %q : Float(4, 8) = aten::pow.Tensor_Scalar(%x, 2)
        %m : Float(4, 1) = aten::mean.dim(%q, [-1], True, None)
        %e : Float(4, 1) = aten::add.Scalar(%m, 1e-06, 1)
        %r : Float(4, 1) = aten::rsqrt(%e)
        %n : Float(4, 8) = aten::mul.Tensor(%x, %r)
        %y : Float(4, 8) = aten::mul.Tensor(%weight, %n)
    Result:
        %y : Float(4, 8) = aten::rms_norm(%x, [8], %weight, 1e-06)

    Only steps in float32 that nothing else reads are taken; weight and bias are constants.
    """
    for node in list(graph.block.nodes):  # what comes after a node may go with it
        if node.block is not None and node.qualified_op in (_MUL, _DIV):
            found = _normalized(node)
            if found is not None:
                _replace(found)


def normalizes_rows(node: Node) -> bool:
    """Whether a node is a norm over the last dimensions of a tensor, each row of them by itself."""
    is_norm = has_trait(node.qualified_op, Trait.NORMALIZATION)
    return is_norm and "normalized_shape" in argument_names(node.qualified_op)


@dataclass
class _Found:
    """A normalisation of ``source``."""

    source: Value
    eps: float
    is_centered: bool
    last: Node
    """Whose result is the normalisation's."""
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def _normalized(node: Node) -> _Found | None:
    """What a product with a reciprocal deviation, or a quotient by a deviation, is a normalisation of."""
    left, right = node.args[:2]
    if not isinstance(right, Value) or node.output.dtype != torch.float32:
        return None
    pairs = [(left, right)] if node.qualified_op == _DIV else [(left, right), (right, left)]
    for values, scale in pairs:
        spread = _behind_root(scale, node, is_reciprocal=node.qualified_op == _MUL)
        found = None if spread is None else _of(values, *spread, node)
        if found is not None and found.source.sizes == node.output.sizes:  # a constant eps may have more dimensions
            return found
    return None


def _of(values: Value, variance: Value, eps: float, last: Node) -> _Found | None:
    """``values / sqrt(variance + eps)``, where it is a normalisation."""
    center = values.producer
    if center is not None and center.qualified_op == _SUB and center["alpha"] == 1:
        source, mean = center.args[:2]
        if _is_mean(mean, source) and (_is_mean_square(variance, values, mean) or _is_variance(variance, source)):
            return _Found(source, eps, True, last)
    return _Found(values, eps, False, last) if _is_mean_square(variance, values) else None


def _behind_root(scale: Value, reader: Node, is_reciprocal: bool) -> tuple[Value, float] | None:
    """What ``scale`` is the root of, or its reciprocal: a variance, and what is added to it."""
    step = made_only_for(scale, reader)
    if step is None:
        return None
    if is_reciprocal and step.qualified_op == "aten::reciprocal":
        return _behind_root(step.args[0], step, is_reciprocal=False)
    power = -0.5 if is_reciprocal else 0.5
    is_power = step.qualified_op in _POWERS and known_number(step.args[1]) == power
    if not is_power and step.qualified_op != ("aten::rsqrt" if is_reciprocal else "aten::sqrt"):
        return None
    added = made_only_for(step.args[0], step)
    if added is None or added.qualified_op not in (_ADD, "aten::add.Scalar") or added["alpha"] != 1:
        return None
    left, right = added.args[:2]
    eps = known_number(right)
    if eps is None and isinstance(right, Value):
        left, eps = right, known_number(left)
    return None if eps is None or eps < 0 or len(left.uses) != 1 else (left, eps)


def _is_mean(value: object, source: Value) -> bool:
    """Whether a value is the mean of each row of ``source``, with a dimension of size 1."""
    node = value.producer if isinstance(value, Value) else None
    if node is None or node.qualified_op != _MEAN or node.args[0] is not source:
        return False
    return _is_of_rows(node, source.rank) and node["dtype"] in (None, torch.float32)


def _is_of_rows(node: Node, rank: int) -> bool:
    return node["dim"] is not None and [dim % rank for dim in node["dim"]] == [rank - 1] and bool(node["keepdim"])


def _is_mean_square(variance: Value, values: Value, mean: object = None) -> bool:
    """Whether a variance is the mean of the squares of each row of ``values``, or of what else has subtracted the
    ``mean`` from the same."""
    node = variance.producer
    square = None if node is None or node.qualified_op != _MEAN else made_only_for(node.args[0], node)
    if node is None or square is None or not _is_mean(variance, square.output):
        return False
    root = square.args[0]
    if square.qualified_op == _MUL:
        is_square = square.args[1] is root
    else:
        is_power = square.qualified_op in _POWERS and known_number(square.args[1]) == 2
        is_square = is_power or square.qualified_op == "aten::square"
    if not is_square or root is values:
        return is_square
    other, own = root.producer, values.producer
    if mean is None or other is None or own is None or other.qualified_op != _SUB or other["alpha"] != 1:
        return False
    return other.args[0] is own.args[0] and other.args[1] is mean


def _is_variance(value: Value, source: Value) -> bool:
    """Whether a value is the variance of each row of ``source``, divided by the number of elements."""
    node = value.producer
    if node is None or not node.args or node.args[0] is not source:
        return False
    if node.qualified_op == "aten::var.correction":
        return _is_of_rows(node, source.rank) and node["correction"] == 0
    return node.qualified_op == "aten::var.dim" and _is_of_rows(node, source.rank) and not node["unbiased"]


def known_number(value: object) -> float | None:
    """A number that is known: itself, or a constant of one element."""
    if isinstance(value, Value):
        return float(value.elements) if value.elements is not None and value.numel == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _vector_of(node: Node, operator: str, value: Value) -> torch.Tensor | None:
    """A constant with an element for each of the last dimension, with which a node does what ``operator`` does."""
    if node.qualified_op != operator or (operator == _ADD and node["alpha"] != 1):
        return None
    others = [argument for argument in node.args[:2] if argument is not value]
    other = others[0] if len(others) == 1 and isinstance(others[0], Value) else None
    if other is None or other.elements is None or other.dtype != torch.float32 or other.rank > value.rank:
        return None
    return other.elements.reshape(-1) if other.rank and other.sizes[-1] == other.numel == value.sizes[-1] else None


def _replace(found: _Found) -> None:
    """One node for all steps, and for the weight and the bias after them."""
    for operator in (_MUL, _ADD) if found.is_centered else (_MUL,):
        result = found.last.output
        reader = result.uses[0][0] if len(result.uses) == 1 else None
        vector = None if reader is None else _vector_of(reader, operator, result)
        if reader is None or vector is None:
            continue
        found.weight, found.bias = (vector, found.bias) if operator == _MUL else (found.weight, vector)
        found.last = reader
    last = found.last
    weight, bias = (None if vector is None else Value.of_elements(vector) for vector in (found.weight, found.bias))
    width = [found.source.sizes[-1]]
    op, args = "aten::rms_norm", (found.source, width, weight, found.eps)
    if found.is_centered:
        op, args = "aten::layer_norm", (found.source, width, weight, bias, found.eps, False)  # type: ignore[assignment]
    node = Node.call(op, args, [Value("", last.output.type)], last.origin)
    if found.source.rank == 0 or why_unsupported(node) is not None:
        node.destroy()
        return
    make_instead(node, last)
    destroy_unread(last)
