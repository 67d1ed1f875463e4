"""Layers that ``torch.export``'s decompositions write in steps, known again by these steps.

A pattern is an operator's qualified name with patterns of its first inputs. A text stands for whatever is there, the
same wherever it stands; ``ANY`` for anything; the rest are constants. Source of the steps: ``torch/_decomp``, and
``_scaled_dot_product_attention_math`` of ``aten/src/ATen/native/transformers/attention.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.facts import name_of
from mobopt.ir.types import INT, ListType
from mobopt.ops.effects import listed_items
from mobopt.passes.rewriting import insert_node, is_constant_tensor

Pattern: TypeAlias = "tuple[Any, ...]"
Made: TypeAlias = "tuple[str, Sequence[Any]]"
"""A qualified operator and its inputs: values, or plain ones for constants."""
_Found: TypeAlias = "dict[str, Value]"
_Make: TypeAlias = "Callable[[Graph, Node, _Found], Made | None]"

ANY = object()
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def composed(graph: Graph, node: Node) -> Made | None:
    """The layer whose last step a node is, or None."""
    for pattern, make in _STEPS:
        found: _Found = {}
        if _matches(node, pattern, found):
            made = make(graph, node, found)
            if made is not None:
                return made
    return None


def _matches(node: Node, pattern: Pattern, found: _Found) -> bool:
    name, *inputs = pattern
    if node.qualified_op != name or len(node.inputs) < len(inputs):
        return False
    return all(_is(value, wanted, found) for value, wanted in zip(node.inputs, inputs, strict=False))


def _is(value: Value, wanted: Any, found: _Found) -> bool:
    if wanted is ANY:
        return True
    if isinstance(wanted, str):
        return _same(found.setdefault(wanted, value), value)
    if isinstance(wanted, tuple):
        node = _maker(value)
        return node is not None and _matches(node, wanted, found)
    if not value.is_constant or isinstance(value.constant, bool) != isinstance(wanted, bool):
        return False
    return not is_constant_tensor(value) and bool(value.constant == wanted)


def _maker(value: Value) -> Node | None:
    """What makes the elements of a value, as its only or first result."""
    node = value.producer
    while node is not None and node.qualified_op == "aten::clone":
        value = node.inputs[0]
        node = value.producer
    return node if node is not None and node.outputs[0] is value else None


def _same(one: Value, other: Value) -> bool:
    if one is other:
        return True
    if not (one.is_constant and other.is_constant) or is_constant_tensor(one) or is_constant_tensor(other):
        return False
    return one.type == other.type and bool(one.constant == other.constant)


def _of(operator: str, *inputs: Any) -> _Make:
    """An operator of what was found under these names, and of constants."""

    def make(graph: Graph, node: Node, found: _Found) -> Made:
        return operator, [found[item] if isinstance(item, str) else item for item in inputs]

    return make


def _of_floats(operator: str, *inputs: Any) -> _Make:
    """The same where ``x`` has a dtype that layers take, as steps take all."""
    make = _of(operator, *inputs)
    return lambda graph, node, found: make(graph, node, found) if found["x"].facts.known_dtype in _FLOATS else None


def _clamp(graph: Graph, node: Node, found: _Found) -> Made | None:
    """Both bounds at once, if they are in order."""
    low, high = found["low"], found["high"]
    numbers = [item.constant for item in (low, high) if item.is_constant and isinstance(item.constant, (int, float))]
    return ("aten::clamp", [found["x"], low, high]) if len(numbers) == 2 and numbers[0] <= numbers[1] else None


def _prelu(graph: Graph, node: Node, found: _Found) -> Made | None:
    """One slope for all, or one for each channel: each element of the second dimension."""
    x, slope = found["x"].facts, found["slope"]
    if not is_constant_tensor(slope) or name_of(slope.constant.dtype) != x.known_dtype or x.known_dtype not in _FLOATS:
        return None
    slopes: torch.Tensor = slope.constant
    rank = x.known_rank
    if rank is None or slopes.dim() > rank or (slopes.numel() != 1 and not _is_of_channels(slopes, rank, x.seen_sizes)):
        return None
    return "aten::prelu", [found["x"], graph.constant(slopes.reshape(-1), name=slope.name)]


def _is_of_channels(slopes: torch.Tensor, rank: int, sizes: Sequence[int] | None) -> bool:
    """Whether there is one for each channel of a tensor of that rank, and not more than it has."""
    channels = slopes.numel()
    wanted = (channels, *[1] * (rank - 2))
    return rank > 1 and sizes is not None and sizes[1] == channels and tuple(slopes.shape[1 - rank :]) == wanted


def _instance_norm(graph: Graph, node: Node, found: _Found) -> Made | None:
    """Of several items, whose channels were put together as those of one."""
    sizes = found["x"].facts.known_sizes
    if sizes is None or len(sizes) < 3 or items_of(found["sizes"]) != list(sizes):
        return None
    items, channels, *spatial = sizes
    if items_of(found["flat"]) != [1, items * channels, *spatial]:
        return None
    gains = [_of_one_item(graph, found[name], items) for name in ("weight", "bias")]
    if None in gains:
        return None
    return "aten::instance_norm", [found["x"], *gains, None, None, True, found["momentum"], found["eps"], False]


def _of_one_item(graph: Graph, value: Value, items: int) -> Value | None:
    """What norms multiply channels by, or add to them, if it is the same for each item."""
    if not is_constant_tensor(value):
        return value if value.is_constant else None
    rows: torch.Tensor = value.constant.reshape(items, -1)
    return graph.constant(rows[0], name=value.name) if bool((rows == rows[0]).all()) else None


def _matmul(graph: Graph, node: Node, found: _Found) -> Made | None:
    """A product of matrices with leading dimensions, which were put together for ``bmm``."""
    left, right = (_spread_sizes(found[name]) for name in ("left", "right"))
    out, flat_left, flat_right = (items_of(found[name]) for name in ("sizes", "flat left", "flat right"))
    is_product = len(left) == len(right) == len(out) >= 3 and _alike(left[:-2], right[:-2], out[:-2])
    if not is_product or not (_alike(left[-2:], flat_left[1:]) and _alike(right[-2:], flat_right[1:])):
        return None
    return "aten::matmul", [found["left"], found["right"]]


def _product_by_weight(graph: Graph, node: Node, found: _Found) -> Made | None:
    """A product by a known matrix, which was repeated for ``bmm``."""
    left, out, flat_left = _spread_sizes(found["left"]), items_of(found["sizes"]), items_of(found["flat left"])
    if not is_constant_tensor(found["right"]) or not len(left) == len(out) >= 3:
        return None
    matrices: torch.Tensor = found["right"].constant
    is_repeated = matrices.dim() == 3 and (matrices.stride(0) == 0 or len(matrices) == 1)
    if not is_repeated or not (_alike(left[:-1], out[:-1]) and _alike(left[-2:], flat_left[1:])):
        return None
    return "aten::matmul", [found["left"], graph.constant(matrices[0], name=found["right"].name)]


def _spread_sizes(value: Value) -> list[Any]:
    """Sizes to which an operand was expanded; none if it wasn't."""
    node = _maker(value)
    return items_of(node.inputs[1]) if node is not None and node.qualified_op == "aten::expand" else []


def _attention(graph: Graph, node: Node, found: _Found) -> Made | None:
    """Both operands of the scores were scaled by the root of the scale."""
    order, scale = found["order"], found["scale"]
    query, key, weights = (items_of(found[f"{name} sizes"]) for name in ("query", "key", "weights"))
    rank = len(query)
    if not (order.is_constant and scale.is_constant and rank == len(key) == len(_spread_sizes(found["value"])) >= 3):
        return None
    if list(order.constant) != [*range(rank - 2), rank - 1, rank - 2] or not _alike(weights, [*query[:-1], key[-1]]):
        return None
    queries = _expanded(graph, node, found["query"], query)
    keys = _expanded(graph, node, found["key"], [*key[:-2], key[-1], key[-2]])
    inputs = [queries, keys, found["value"], found.get("mask"), 0.0, False, float(scale.constant) ** 2, False]
    return "aten::scaled_dot_product_attention", inputs


def _expanded(graph: Graph, node: Node, value: Value, sizes: Sequence[Any]) -> Value:
    if any(isinstance(size, Value) for size in sizes):
        items = [size if isinstance(size, Value) else graph.constant(size) for size in sizes]
        given = insert_node(graph, node, "prim::ListConstruct", items, type=ListType(INT))
    else:
        given = graph.constant(list(sizes))
    return insert_node(graph, node, "aten::expand", [value, given, graph.constant(False)])


def items_of(value: Value) -> list[Any]:
    """A list's numbers, and values where it has no numbers; nothing if it isn't known."""
    if value.is_constant:
        return list(value.constant)
    return [item.constant if item.is_constant else item for item in listed_items(value) or ()]


def _alike(first: Sequence[Any], *others: Sequence[Any]) -> bool:
    return all(
        len(first) == len(other) and all(a is b or a == b for a, b in zip(first, other, strict=True))
        for other in others
    )


def _spread(operand: Any, name: str) -> Pattern:
    """An operand with all of its leading dimensions."""
    return "aten::expand", operand, f"{name} sizes", ANY


def _flat(name: str) -> Pattern:
    """An operand of ``bmm``; what is found under its name has leading dimensions."""
    return "aten::view", name, f"flat {name}"


def _weighted(scores: Pattern) -> Pattern:
    return "aten::matmul", _spread(("aten::_safe_softmax", scores, -1, ANY), "weights"), "value"


_CUT = ("aten::clamp", ("aten::add.Scalar", "x", 3, 1), 0, 6)
_SCORES = (
    "aten::matmul",
    _spread(("aten::mul.Scalar", "query", "scale"), "query"),
    _spread(("aten::mul.Scalar", ("aten::permute", "key", "order"), "scale"), "key"),
)
_SOME = ("aten::any.dim", ("aten::logical_not", ("aten::eq.Scalar", "x", -math.inf)), "dim", True)
_SOFTMAX = ("aten::softmax.int", "x", "dim", None)
_NORM = ("aten::instance_norm", ("aten::view", "x", "flat"), "weight", "bias", ANY, ANY, ANY, "momentum", "eps")
_STEPS: tuple[tuple[Pattern, _Make], ...] = (
    (("aten::clamp", ("aten::clamp", "x", "low", None), None, "high"), _clamp),
    (("aten::div.Scalar", _CUT, 6), _of_floats("aten::hardsigmoid", "x")),
    (("aten::div.Scalar", ("aten::mul.Tensor", "x", _CUT), 6), _of_floats("aten::hardswish", "x")),
    (("aten::mul.Tensor", "x", ("aten::sigmoid", "x")), _of_floats("aten::silu", "x")),
    (
        ("aten::where.self", ("aten::gt.Scalar", "x", 20), "x", ("aten::log1p", ("aten::exp", "x"))),
        _of_floats("aten::softplus", "x", 1, 20),
    ),
    (("aten::mul.Tensor", "x", ("aten::tanh", ("aten::softplus", "x", 1, 20))), _of_floats("aten::mish", "x")),
    (("aten::where.self", ("aten::gt.Scalar", "x", 0), "x", ("aten::mul.Tensor", "slope", "x")), _prelu),
    (
        ("aten::where.self", ("aten::logical_not", _SOME), ("aten::full_like", ANY, 0), _SOFTMAX),
        _of("aten::_safe_softmax", "x", "dim", None),
    ),
    (("aten::view", _NORM, "sizes"), _instance_norm),
    (("aten::view", ("aten::bmm", _flat("left"), _flat("right")), "sizes"), _matmul),
    (("aten::view", ("aten::bmm", _flat("left"), "right"), "sizes"), _product_by_weight),
    (_weighted(_SCORES), _attention),
    (_weighted(("aten::add.Tensor", _SCORES, "mask", 1)), _attention),
)
"""What layers are in steps, by the last one."""
