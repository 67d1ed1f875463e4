"""Rows that nobody reads aren't computed: a classifier of class tokens reads one row of its last layer, the head of a
decoder the last one of a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, replace_call
from mobopt.ir.schemas import argument_names
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait, record_of
from mobopt.runtimes.vulkan.compile.attention import ATTENTION
from mobopt.runtimes.vulkan.compile.normalizations import normalizes_rows
from mobopt.runtimes.vulkan.lowerings.views import permutation_of


@dataclass(frozen=True)
class _Rows:
    """A range of one dimension of a tensor."""

    dim: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start

    def at(self, dim: int) -> _Rows:
        """The same range of another dimension."""
        return _Rows(dim, self.start, self.end)

    def of(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the part of a tensor of such ``sizes``."""
        return (*sizes[: self.dim], self.count, *sizes[self.dim + 1 :])


_Demands = Mapping[Value, "_Rows | None"]
"""What is read of each value, as far as one range of one dimension says it; None: all of it."""
_Operands = Sequence["_Rows | None"]
"""Which rows a node reads of each of its arguments to make rows of its result."""


def narrow_early(graph: Graph) -> None:
    """Let what makes a tensor of which few rows are read make those alone, and what makes its operands likewise.

    Given:
        %m : Float(1, 5, 16) = aten::linear(%x, %w, %b)
        %g : Float(1, 5, 16) = aten::gelu(%m, "none")
        %n : Float(1, 5, 8) = aten::linear(%g, %v, None)
        %y : Float(1, 8) = aten::select.int(%n, 1, 0)
    Result:
        %0 : Float(1, 1, 8) = aten::slice.Tensor(%x, 1, 0, 1, 1)
        %1 : Float(1, 1, 16) = aten::linear(%0, %w, %b)
        %2 : Float(1, 1, 16) = aten::gelu(%1, "none")
        %3 : Float(1, 1, 8) = aten::linear(%2, %v, None)
        %y : Float(1, 8) = aten::select.int(%3, 1, 0)

    Rows go through what computes each by itself: arithmetic, linear layers and products, norms and softmax of other
    dimensions, attention by its queries. It must be half of a tensor at most, and save a product or a norm: arithmetic
    alone is part of the kernels before it.
    """
    narrowed = _worth_it(_narrowed(graph))
    if not narrowed:
        return
    parts: dict[Value, tuple[Value, _Rows]] = {}
    slices: dict[Value, list[tuple[Value, _Rows]]] = {}

    def part_of(value: Any, rows: _Rows | None, node: Node) -> Any:
        if rows is None:
            return value
        made, known = parts.get(value, (value, _Rows(rows.dim, 0, value.sizes[rows.dim])))
        for sliced, own in ((made, known), *slices.setdefault(value, [])):
            if own == rows:
                return sliced
        start = rows.start - known.start
        slices[value].append((_slice(made, _Rows(rows.dim, start, start + rows.count), node), rows))
        return slices[value][-1][0]

    for node, (rows, operands) in narrowed.items():
        args = [part_of(arg, own, node) for arg, own in zip(node.args, operands, strict=True)]
        made = Value("", TensorType(node.output.dtype, rows.of(node.output.sizes)))
        _rebuilt(node, rows, args, made).insert_before(node)
        parts[node.output] = made, rows
    for value, (made, rows) in parts.items():
        for reader, _ in list(value.uses):
            if reader not in narrowed:
                _read_part(reader, made, rows.start)
    for node in reversed(narrowed):
        destroy_unread(node)


def _narrowed(graph: Graph) -> dict[Node, tuple[_Rows, _Operands]]:
    """The nodes of whose results only some rows are read, in order; those, and what they read for them."""
    demands: dict[Value, _Rows | None] = dict.fromkeys(graph.block.outputs)
    found: dict[Node, tuple[_Rows, _Operands]] = {}
    for node in reversed(graph.block.nodes):
        rows = _asked(node, demands)
        operands = None if rows is None else _operands(node, rows)
        if rows is not None and operands is not None:
            found[node] = rows, operands
            wanted = [(arg, own) for arg, own in zip(node.args, operands, strict=True) if isinstance(arg, Value)]
        else:
            chosen = _chosen(node)
            wanted = [(value, None) for value in node.inputs] if chosen is None else [(node.args[0], chosen)]
        for value, own in wanted:
            demands[value] = _together(demands[value], own) if value in demands else own
    return dict(reversed(found.items()))


def _asked(node: Node, demands: _Demands) -> _Rows | None:
    """The rows that are read of what a node makes, if they are few and all that is read of it."""
    if len(node.outputs) != 1 or node.blocks:
        return None
    rows = demands.get(node.output)
    return rows if rows is not None and 2 * rows.count <= node.output.sizes[rows.dim] else None


def _together(one: _Rows | None, other: _Rows | None) -> _Rows | None:
    if one is None or other is None or one.dim != other.dim:
        return None
    return _Rows(one.dim, min(one.start, other.start), max(one.end, other.end))


def _chosen(node: Node) -> _Rows | None:
    """The rows that a node chooses, and gives as they are."""
    if node.qualified_op not in (_SELECT, _SLICE):
        return None
    source: Value = node.args[0]
    dim = node["dim"] % source.rank
    size = source.sizes[dim]
    if node.qualified_op == _SELECT:
        place = _place(node["index"], size)
        return _Rows(dim, place, place + 1)
    start = 0 if node["start"] is None else _place(node["start"], size)
    end = size if node["end"] is None else _place(node["end"], size)
    return _Rows(dim, start, end) if node["step"] == 1 and start < end else None


def _place(index: int, size: int) -> int:
    """An index that may count from the end, or lie outside."""
    return min(max(index + size if index < 0 else index, 0), size)


_SELECT, _SLICE = "aten::select.int", "aten::slice.Tensor"


def _worth_it(narrowed: Mapping[Node, tuple[_Rows, _Operands]]) -> dict[Node, tuple[_Rows, _Operands]]:
    """Those that hang together with a product or a norm."""
    kept: set[Node] = set()
    waiting = [node for node in narrowed if has_trait(node.qualified_op, Trait.PRODUCT) or normalizes_rows(node)]
    while waiting:
        node = waiting.pop()
        if node in kept:
            continue
        kept.add(node)
        makers = [value.producer for value in node.inputs if value.producer is not None]
        waiting += [each for each in (*makers, *(user for user, _ in node.output.uses)) if each in narrowed]
    return {node: how for node, how in narrowed.items() if node in kept}


# What a node reads for some rows of its result.


def _operands(node: Node, rows: _Rows) -> _Operands | None:
    """Which rows of its arguments; None if it can't make those rows by themselves."""
    for traits, find in _RULES:
        if all(has_trait(node.qualified_op, trait) for trait in traits):
            return find(node, rows)
    return None


def _of_arithmetic(node: Node, rows: _Rows) -> _Operands | None:
    if has_trait(node.qualified_op, Trait.RANDOM) or has_trait(node.qualified_op, Trait.CHECKS_ELEMENTS):
        return None
    return [_broadcast(arg, node.output, rows) for arg in node.args] if _is_flat(node) else None


def _broadcast(arg: Any, result: Value, rows: _Rows) -> _Rows | None:
    """The rows of an operand that is broadcast to a result."""
    if not isinstance(arg, Value):
        return None
    dim = rows.dim - result.rank + arg.rank
    return rows.at(dim) if dim >= 0 and arg.sizes[dim] == result.sizes[rows.dim] else None


def _of_product(node: Node, rows: _Rows) -> _Operands | None:
    """A product's first matrix has the rows; what else it reads, a matrix and a vector, has none of them."""
    if node.op == ATTENTION:
        return _of_attention(node, rows)
    name = record_of(node.qualified_op).contracted
    first = node[name] if name else None
    if first is None or not _is_flat(node) or first.rank != node.output.rank or rows.dim > first.rank - 2:
        return None
    matrices = [value for value in node.inputs if value is not first and value.rank > 1]
    if len(matrices) > 1 or (rows.dim < first.rank - 2 and any(value.rank > 2 for value in matrices)):
        return None
    return None if node.inputs.count(first) > 1 else _of_one(node, first, rows)


def _of_attention(node: Node, rows: _Rows) -> _Operands | None:
    """Queries are the rows. The last one of as many as there are keys sees them all, also under a causal mask."""
    query, key, mask = node["query"], node["key"], node["attn_mask"]
    if rows.dim != query.rank - 2 or query.rank != node.output.rank or node["dropout_p"] != 0.0:
        return None
    if node["is_causal"] and not (rows.start == query.sizes[-2] - 1 == key.sizes[-2] - 1):
        return None
    if query is key or query is node["value"]:
        return None
    own = {"query": rows, "attn_mask": _broadcast(mask, node.output, rows)}
    return [own.get(name) for name in argument_names(node.qualified_op)]


def _of_softmax(node: Node, rows: _Rows) -> _Operands | None:
    source: Value = node.args[0]
    return None if node["dim"] % source.rank == rows.dim else _of_one(node, source, rows)


def _of_norm(node: Node, rows: _Rows) -> _Operands | None:
    source: Value = node.args[0]
    if not normalizes_rows(node) or rows.dim >= source.rank - len(node["normalized_shape"]):
        return None
    return _of_one(node, source, rows)


def _of_view(node: Node, rows: _Rows) -> _Operands | None:
    """Views of the same elements in another order or other sizes."""
    source: Value = node.args[0]
    order = permutation_of(node)
    if order is not None:
        dim = order[rows.dim]
    elif has_trait(node.qualified_op, Trait.KEEPS_ORDER) and len(node.inputs) == 1:
        dim = _reshaped_dim(source.sizes, node.output.sizes, rows.dim)
    else:
        return None
    return None if dim < 0 else _of_one(node, source, rows.at(dim))


def _reshaped_dim(before: Sequence[int], after: Sequence[int], dim: int) -> int:
    """Which dimension has the same elements at each place, -1 if none has."""
    outer, size = math.prod(after[:dim]), after[dim]
    places = (place for place, count in enumerate(before) if count == size and math.prod(before[:place]) == outer)
    return next(places, -1)


def _of_one(node: Node, source: Value, rows: _Rows) -> _Operands:
    return [rows if arg is source else None for arg in node.args]


def _is_flat(node: Node) -> bool:
    """Whether no tensor is in a list."""
    return sum(isinstance(arg, Value) for arg in node.args) == len(node.inputs)


_RULES: Sequence[tuple[Iterable[Trait], Callable[[Node, _Rows], _Operands | None]]] = (
    ((Trait.ELEMENTWISE,), _of_arithmetic),
    ((Trait.PRODUCT,), _of_product),
    ((Trait.SOFTMAX,), _of_softmax),
    ((Trait.NORMALIZATION,), _of_norm),
    ((Trait.VIEW, Trait.MOVES_ELEMENTS), _of_view),
)

# New nodes.


def _rebuilt(node: Node, rows: _Rows, args: list[Any], made: Value) -> Node:
    """A node that makes rows of what ``node`` makes."""
    if has_trait(node.qualified_op, Trait.KEEPS_ORDER):
        return Node.call("aten::reshape", (args[0], list(made.sizes)), [made], node.origin)
    if node.op == ATTENTION:
        args[argument_names(node.qualified_op).index("is_causal")] = False
    return Node.call(node.qualified_op, args, [made], node.origin)


def _slice(source: Value, rows: _Rows, before: Node) -> Value:
    made = Value("", TensorType(source.dtype, rows.of(source.sizes)))
    args = (source, rows.dim, rows.start, rows.end, 1)
    Node.call(_SLICE, args, [made], before.origin).insert_before(before)
    return made


def _read_part(reader: Node, part: Value, start: int) -> None:
    """Let what chooses rows of a tensor choose them of its part, which begins at row ``start``."""
    rows = _chosen(reader)
    assert rows is not None, f"{reader!r} reads more than some rows"
    assert reader.block is not None
    is_returned = any(user is reader.block.returns for user, _ in reader.output.uses)
    if reader.output.sizes == part.sizes and not is_returned:
        reader.output.replace_all_uses_with(part)
        reader.destroy()
        return
    args: tuple[Any, ...] = (part, rows.dim, rows.start - start)
    replace_call(reader, reader.qualified_op, args if reader.qualified_op == _SELECT else (*args, rows.end - start, 1))
