"""Positions are added to the patches of an image before the tokens of a class join them, by the convolution that makes
the patches (A. Dosovitskiy et al., "An image is worth 16x16 words", 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, InsertionPoint, Node, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.views import inverted, permutation_of

_ADD = "aten::add.Tensor"


def add_before_joining(graph: Graph, constants: ConstantStore) -> None:
    """Add to each part of a concatenation what is added to the whole, if a convolution makes the only one that varies.

    Given:
        %f : Float(1, 8, 6) = aten::flatten.using_ints(%c, 2, -1)
        %t : Float(1, 6, 8) = aten::transpose.int(%f, 1, 2)
        %j : Float(1, 7, 8) = aten::cat([%token, %t], 1)
        %y : Float(1, 7, 8) = aten::add.Tensor(%j, %table, 1)
    Result:
        %0 : Float(1, 8, 6) = aten::permute(%rows, [0, 2, 1])
        %1 : Float(1, 8, 2, 3) = aten::reshape(%0, [1, 8, 2, 3])
        %2 : Float(1, 8, 2, 3) = aten::add.Tensor(%c, %1, 1)
        %f : Float(1, 8, 6) = aten::flatten.using_ints(%2, 2, -1)
        %t : Float(1, 6, 8) = aten::transpose.int(%f, 1, 2)
        %y : Float(1, 7, 8) = aten::cat([%sum, %t], 1)

    ``table`` and ``token`` are constants, of which ``rows`` and ``sum`` are made. Batches stay as they are: a
    convolution takes in what has the sizes of its result.
    """
    for node in list(graph.block.nodes):
        found = _joined(node)
        if found is not None:
            _replace(found, constants)


@dataclass(frozen=True)
class _Joined:
    """Parts that become one, and what is added to that."""

    node: Node
    """The sum."""
    concatenation: Node
    table: Value
    varying: int
    """The number of the part that a convolution makes."""
    views: Sequence[Node]
    """From what the convolution makes to that part."""

    @property
    def parts(self) -> list[Value]:
        """What is joined."""
        parts: list[Value] = list(self.concatenation["tensors"])
        return parts


def views_of(part: Value, reader: Node) -> tuple[Value, list[Node]]:
    """What a part of a concatenation is a view of, and the views to it, where nothing else reads one of them."""
    views: list[Node] = []
    maker = made_only_for(part, reader)
    while maker is not None and (permutation_of(maker) or has_trait(maker.qualified_op, Trait.KEEPS_ORDER)):
        views.insert(0, maker)
        part = maker.args[0]
        maker = made_only_for(part, maker)
    return part, views


def _joined(node: Node) -> _Joined | None:
    """What can be added before."""
    if node.qualified_op != _ADD or node["alpha"] != 1 or node.output.dtype != torch.float32:
        return None
    for whole, table in (node.args[:2], node.args[1::-1]):
        maker = made_only_for(whole, node)
        if maker is None or not isinstance(table, Value) or not has_trait(maker.qualified_op, Trait.CONCATENATION):
            continue
        if table.sizes != whole.sizes or whole.sizes[0] != 1 or table.elements is None or table.dtype != torch.float32:
            continue
        varying = [number for number, part in enumerate(maker["tensors"]) if part.elements is None]
        if len(varying) != 1 or maker["dim"] % whole.rank == 0:
            continue
        root, views = views_of(maker["tensors"][varying[0]], maker)
        convolution = made_only_for(root, views[0]) if views else None
        if convolution is not None and has_trait(convolution.qualified_op, Trait.CONVOLUTION):
            return _Joined(node, maker, table, varying[0], views)
    return None


def _replace(found: _Joined, constants: ConstantStore) -> None:
    dim = found.concatenation["dim"] % found.node.output.rank
    table = found.table.elements
    assert table is not None
    new: list[Value] = []
    counts = [0 if number == found.varying else part.sizes[dim] for number, part in enumerate(found.parts)]
    counts[found.varying] = table.shape[dim] - sum(counts)
    start = 0
    for number, part in enumerate(found.parts):
        rows = _rows(table, dim, start, counts[number], constants)
        start += counts[number]
        new.append(part if number == found.varying else _sum(part, rows, constants))
        if number == found.varying:
            _add_to_root(found, rows)
    joined = Node.call(
        found.concatenation.qualified_op, (new, dim), [Value("", found.node.output.type)], found.node.origin
    )
    make_instead(joined, found.node)
    destroy_unread(found.node)


def _rows(table: torch.Tensor, dim: int, start: int, count: int, constants: ConstantStore) -> torch.Tensor:
    return constants.derived([table], ("rows", dim, start, count), lambda: table.narrow(dim, start, count).contiguous())


def _sum(part: Value, rows: torch.Tensor, constants: ConstantStore) -> Value:
    """A constant part with its rows of the table."""
    own = part.elements
    assert own is not None
    return Value.of_elements(constants.derived([own, rows], ("sum",), lambda: own + rows))


def _add_to_root(found: _Joined, rows: torch.Tensor) -> None:
    """Add rows of the table to what the convolution makes, by the views the other way round."""
    first = found.views[0]
    root: Value = first.args[0]
    point = InsertionPoint.before(first)
    added = Value.of_elements(rows)
    for view in reversed(found.views):
        made = Value("", TensorType(torch.float32, view.args[0].sizes))
        order = permutation_of(view)
        operator = "aten::permute" if order else "aten::reshape"
        args = (added, inverted(order) if order else list(made.sizes))
        added = point.insert(Node.call(operator, args, [made], found.node.origin)).output
    total = point.insert(Node.call(_ADD, (root, added, 1), [Value("", root.type)], found.node.origin))
    first.replace_input(first.inputs.index(root), total.output)
