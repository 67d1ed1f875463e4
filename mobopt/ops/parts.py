"""Which views of one tensor show other elements of it, whatever its sizes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mobopt.ir import Graph, Node, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.aliases import aliased_inputs
from mobopt.ops.effects import written_inputs
from mobopt.ops.records import Trait, has_trait, is_in_place

_NO_END = 1 << 62
"""Ends of slices from here on are the end of the dimension."""


@dataclass(frozen=True)
class _View:
    """One step from a tensor to a view of it."""

    node: Node
    item: int | None
    """Which tensor of the list that the node gives; None if it gives no list."""


@dataclass(frozen=True)
class _Range:
    """What a view takes along a dimension. Negative numbers count from the end, as in Python."""

    dim: int
    start: int
    stop: int | None
    """None: the end."""


class Parts:
    """Tells parts of tensors from each other by the views that lead to them.

    It speaks of values as they are within one round of the loops around them. Where a graph changes how a tensor looks
    at its memory, or looks at it by strides of its own, nothing is said.
    """

    def __init__(self, graph: Graph) -> None:
        self._is_plain = not any(map(_changes_views, graph.walk()))

    def share_nothing(self, left: Value, right: Value) -> bool:
        """Whether no element of the one tensor is an element of the other, as far as operators tell."""
        if not (self._is_plain and left.type == right.type == TENSOR):
            return False
        (left_root, left_views), (right_root, right_views) = _views_of(left), _views_of(right)
        if not (_is_fresh(left_root) and _is_fresh(right_root)):
            return False  # memory that may be another's, or show one element twice
        if left_root is not right_root:
            return left_root.producer is not right_root.producer
        for one, other in zip(left_views, right_views, strict=False):
            if not _is_same_view(one.node, other.node):
                return _are_apart(one.node, other.node)
            if one.item != other.item:
                return one.item is not None and other.item is not None and (one.item < 0) == (other.item < 0)
        return False

    def only_shows_others(self, node: Node, value: Value) -> bool:
        """Whether a node only makes views, and none that shows an element of ``value``."""
        is_view = has_trait(node.qualified_op, Trait.DISTINCT) or _takes_items(node)
        shown = [output for output in node.outputs if output.uses]
        return is_view and all(output.type == TENSOR and self.share_nothing(output, value) for output in shown)


def _changes_views(node: Node) -> bool:
    if has_trait(node.qualified_op, Trait.OWN_STRIDES) or has_trait(node.qualified_op, Trait.VIEWS_IN_PLACE):
        return True
    # what is written to as an argument ``out`` gets other sizes
    return not is_in_place(node.op) and any(value.type == TENSOR for value in written_inputs(node))


def _views_of(value: Value) -> tuple[Value, list[_View]]:
    """The tensor that a value is a view of, and the views that lead from it to the value."""
    views: list[_View] = []
    while True:
        source, item = _listed(value)
        node = source.producer
        if node is not None and has_trait(node.qualified_op, Trait.DISTINCT) and (item is not None or source is value):
            views.append(_View(node, item))
        elif node is None or source is not value or not (node.op.startswith("aten::") and is_in_place(node.op)):
            return value, views[::-1]
        value = node.inputs[0]


def _listed(value: Value) -> tuple[Value, int | None]:
    """The list that a tensor was taken out of, if its items stay what they are, and which item it is."""
    node = value.producer
    if node is None or not _takes_items(node) or not all(_takes_items(user) for user, _ in node.inputs[0].uses):
        return value, None
    if node.op == "prim::ListUnpack":
        return node.inputs[0], node.outputs.index(value)
    index = node.inputs[1]
    return (node.inputs[0], index.constant) if index.is_constant else (value, None)


def _takes_items(node: Node) -> bool:
    return node.op == "prim::ListUnpack" or (node.op == "aten::__getitem__" and node.output.type == TENSOR)


def _is_fresh(value: Value) -> bool:
    """Whether it is a tensor that was computed into memory of its own, where no element stands twice."""
    node = value.producer
    return value.type == TENSOR and node is not None and not node.blocks and not aliased_inputs(node)


def _is_same_view(one: Node, other: Node) -> bool:
    """Whether two nodes take the same of the same tensor."""
    if one is other:
        return True
    pairs = zip(one.inputs[1:], other.inputs[1:], strict=False)
    return (
        one.qualified_op == other.qualified_op
        and len(one.inputs) == len(other.inputs)
        and all(left is right or _is_same_constant(left, right) for left, right in pairs)
    )


def _is_same_constant(left: Value, right: Value) -> bool:
    if not (left.is_constant and right.is_constant):
        return False
    kind = type(left.constant)
    return kind in (int, list, type(None)) and kind is type(right.constant) and left.constant == right.constant


def _are_apart(one: Node, other: Node) -> bool:
    """Whether two nodes take ranges of one dimension that do not meet."""
    left, right = _range_of(one), _range_of(other)
    if left is None or right is None or left.dim != right.dim:
        return False
    return _ends_before(left, right) or _ends_before(right, left)


def _ends_before(first: _Range, second: _Range) -> bool:
    """Whether the first range ends where the second begins or before it; only ends on one side can be compared."""
    stop = first.stop
    return stop is not None and (stop < 0) == (second.start < 0) and stop <= second.start


def _range_of(node: Node) -> _Range | None:
    """What a node takes along a dimension; None if it takes something else, or what it takes is not known."""
    find = _RANGES.get(node.op)
    numbers = [value.constant if value.is_constant else value for value in node.inputs[1:]]
    known = find is not None and all(number is None or isinstance(number, int) for number in numbers)
    return find(*numbers) if find is not None and known else None


def _of_slice(dim: int, start: int | None, stop: int | None, step: int) -> _Range:
    del step  # it leaves some of the range out
    return _Range(dim, start or 0, None if stop is None or stop >= _NO_END else stop)


def _of_select(dim: int, index: int) -> _Range:
    return _of_narrow(dim, index, 1)


def _of_narrow(dim: int, start: int, length: int) -> _Range:
    stop = start + length
    return _Range(dim, start, None if start < 0 and stop >= 0 else stop)


_RANGES: dict[str, Callable[..., _Range]] = {
    "aten::slice": _of_slice,
    "aten::select": _of_select,
    "aten::narrow": _of_narrow,
}
