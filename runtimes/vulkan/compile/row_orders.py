"""Rows that views and rolls put in another order are moved once: what is computed of each row by itself, such as
norms, linear layers and sums, is computed in an order in which the rows are there, or wanted.

Transformers of windows cut an image into windows before each attention and put it together again after it, some after
a roll (Z. Liu et al., "Swin Transformer", 2021). All between is of one token at a time, so tokens may stay as the last
attention left them until the next one wants them in other windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import torch

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.nests import map_leaves
from mobopt.ir.rewriting import destroy_unread
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.layers import layer_of
from mobopt.runtimes.vulkan.compile.moved_rows import Shown, followed, is_mover, row_axes, row_count, sizes_of
from mobopt.runtimes.vulkan.compile.normalizations import normalizes_rows
from mobopt.runtimes.vulkan.lowerings.views import inverted

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of tensors whose rows are moved."""
_MOST_DIMENSIONS = 3
"""Of more than one row, whose orders are tried."""


def order_rows(graph: Graph) -> None:
    """Move rows as seldom as possible.

    Given:
        %n : Float(4, 6, 8) = aten::layer_norm(%x, [8], None, None, 1e-05, True)
        %r : Float(4, 6, 8) = aten::roll(%n, [-1, -2], [0, 1])
        %l : Float(4, 6, 8) = aten::linear(%r, %v, None)
        %g : Float(4, 6, 8) = aten::softmax.int(%l, 1, None)
        %s : Float(4, 6, 8) = aten::roll(%g, [1, 2], [0, 1])
        %y : Float(4, 6, 8) = aten::add.Tensor(%x, %s, 1)
    Result:
        %2 : Float(24, 8) = aten::reshape(%x, [24, 8])
        %3 : Float(24, 8) = aten::index_select(%2, 0, %0)
        %4 : Float(4, 6, 8) = aten::reshape(%3, [4, 6, 8])
        %5 : Float(4, 6, 8) = aten::layer_norm(%4, [8], None, None, 1e-05, True)
        %l : Float(4, 6, 8) = aten::linear(%5, %v, None)
        %g : Float(4, 6, 8) = aten::softmax.int(%l, 1, None)
        %6 : Float(24, 8) = aten::reshape(%g, [24, 8])
        %7 : Float(24, 8) = aten::index_select(%6, 0, %1)
        %8 : Float(4, 6, 8) = aten::reshape(%7, [4, 6, 8])
        %y : Float(4, 6, 8) = aten::add.Tensor(%x, %8, 1)

    Numbers of rows are constants; where sizes are open, they are those of the example, which pins them.
    """
    _Orders(graph).run()


@dataclass(eq=False)
class _Root:
    """A tensor that no view made, and the orders in which its rows are there."""

    value: Value
    axis: int
    """Along which its rows lie."""
    shown: Sequence[Shown]
    """What views make of it."""
    has_other_rows: bool
    """Whether somebody reads it by other rows, so that it must be there itself."""
    is_there: bool = True
    """Whether it is itself."""
    norm: Node | None = None
    """What makes it, if that norms each row: it may be computed again in another order."""
    forms: list[tuple[torch.Tensor, Value]] = field(default_factory=list)
    """Tensors whose last dimension is its rows, in the order of these numbers."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return row_count(sizes_of(self.value), self.axis)

    @property
    def row(self) -> int:
        """Elements of a row."""
        return sizes_of(self.value)[self.axis]

    @property
    def own_order(self) -> torch.Tensor:
        """The order in which the tensor itself has them."""
        return torch.arange(self.count)

    @property
    def orders(self) -> list[torch.Tensor]:
        """The orders in which its rows are there."""
        return [*([self.own_order] if self.is_there else []), *(order for order, _ in self.forms)]

    def has(self, order: torch.Tensor) -> bool:
        """Whether its rows are there in an order."""
        return any(torch.equal(order, each) for each in self.orders)


@dataclass(frozen=True)
class _At:
    """Where nodes are put in, and what for."""

    before: Node
    origin: Origin
    """Of nodes that move rows: of the views in whose place they stand."""

    def put(self, operator: str, args: Sequence[object], sizes: Sequence[int], like: Value) -> Value:
        """What an operator makes, of the dtype of a value."""
        made = Value.of_tensor(like.dtype, sizes)
        Node.call(operator, args, [made], self.origin).insert_before(self.before)
        return made

    def reshaped(self, value: Value, sizes: Sequence[int]) -> Value:
        """A tensor in other sizes."""
        if value.sizes == tuple(sizes):
            return value
        return self.put("aten::reshape", (value, list(sizes)), sizes, value)

    def permuted(self, value: Value, dims: list[int]) -> Value:
        """A tensor with its dimensions in another order."""
        if dims == sorted(dims):
            return value
        return self.put("aten::permute", (value, dims), [_pinned(value)[d] for d in dims], value)

    def with_last(self, value: Value, axis: int) -> Value:
        """A tensor with a dimension moved to the end."""
        return self.permuted(value, [*(d for d in range(value.rank) if d != axis), axis])


class _Orders:
    """Rewrites one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._roots: dict[Value, _Root] = {}
        self._shown: dict[Value, tuple[_Root, Shown]] = {}
        self._made: dict[Value, Value] = {}
        """Tensors in the place of those that are not there."""
        self._numbers: dict[bytes, Value] = {}
        self._replaced: list[Node] = []

    def run(self) -> None:
        """Go through the nodes in order."""
        for value in self._graph.inputs:
            self._follow(value)
        for node in [*self._graph.block.nodes, self._graph.block.returns]:
            operands = [] if is_mover(node) else row_operands(node)
            is_layer = bool(operands) and layer_of(node) is not None
            if any(self._is_moved(value, is_layer) for value in operands) and all(map(self._is_of_rows, operands)):
                self._compute(node, operands)
            elif not is_mover(node):
                self._read_as_is(node)
            for value in node.outputs:
                self._follow(value)
        movers = [node for node in self._graph.block.nodes if is_mover(node)]
        for node in reversed([*self._replaced, *movers]):
            destroy_unread(node)

    # What is known of tensors.

    def _follow(self, value: Value) -> None:
        """Find out what views make of a tensor that none of them made."""
        maker = value.producer
        is_norm = maker is not None and _is_norm(maker)
        if value in self._shown or value.rank < 2 or value.dtype not in _DTYPES:
            return
        if not is_norm and not any(is_mover(user) for user, _ in value.uses):
            return
        is_of_rows = is_norm or _is_of_layer(value)
        root = self._root_of(value, value.rank - 1 if is_of_rows else None)
        root.norm = maker if is_norm and maker is not None and self._has_rows_last(maker.args[0]) else None

    def _root_of(self, value: Value, axis: int | None = None) -> _Root:
        known = self._roots.get(value)
        if known is not None:
            return known
        axes = list(row_axes(value)) if axis is None else [axis]
        found = {each: followed(value, each) for each in axes}
        best = max(axes, key=lambda each: sum(shown.is_whole for shown in found[each].shown))
        root = self._roots[value] = _Root(value, best, found[best].shown, found[best].has_other_rows)
        for shown in root.shown:
            earlier = self._shown.get(shown.value)
            if earlier is None or (shown.is_whole and not earlier[1].is_whole):
                self._shown[shown.value] = root, shown
        return root

    def _place(self, value: Value) -> tuple[_Root, torch.Tensor]:
        """A tensor's root, and which of its rows the tensor has."""
        if value in self._shown:
            root, shown = self._shown[value]
            return root, shown.order
        root = self._root_of(value)
        return root, root.own_order

    def _origin(self, value: Value) -> Origin:
        """Of the views that make a value of its root."""
        views = []
        root = self._shown[value][0].value if value in self._shown else value
        while value is not root:
            assert value.producer is not None
            views.append(value.producer.origin)
            value = value.producer.args[0]
        return Origin.union(views)

    def _axis(self, value: Value) -> int:
        return self._shown[value][1].axis if value in self._shown else self._root_of(value).axis

    def _is_moved(self, value: Value, of_layer: bool = False) -> bool:
        """Whether rows lie in another order somewhere, or have to be moved for a tensor, or for a layer that reads
        it."""
        if value in self._shown:
            root, shown = self._shown[value]
            is_ordered = not of_layer or torch.equal(shown.order, root.own_order)
            return shown.is_copied or not is_ordered or self._is_moved(root.value)
        known = self._roots.get(value)
        if known is None:
            return False
        is_moved = not known.is_there or bool(known.forms)
        return is_moved or (known.norm is not None and self._is_moved(known.norm.args[0]))

    def _is_of_rows(self, value: Value) -> bool:
        """Whether a tensor's rows are those of its root."""
        return value.rank > 1 and (value not in self._shown or self._shown[value][1].is_whole)

    def _has_rows_last(self, value: Value) -> bool:
        return self._is_of_rows(value) and self._axis(value) == value.rank - 1

    def _there(self, root: _Root) -> list[torch.Tensor]:
        """The orders in which a root's rows are there, or can be computed from what is there."""
        orders = root.orders
        if root.norm is not None:
            source, order = self._place(root.norm.args[0])
            orders += [_inverse(order)[each] for each in self._there(source)]
        return orders

    # Which order to compute in.

    def _compute(self, node: Node, operands: Sequence[Value]) -> None:
        axis, *others = {self._axis(value) for value in operands}
        is_along = axis == operands[0].rank - 1 or has_trait(node.qualified_op, Trait.ELEMENTWISE)
        if others or not is_along or not _are_vectors(node, operands, axis):
            self._read_as_is(node)
            return
        root = self._root_of(node.output, axis)
        if _is_norm(node):
            self._defer(node, root)
            return
        order = self._best_order(root, operands)
        if torch.equal(order, root.own_order):
            self._read_as_is(node, operands)
            return
        at = _At(node, Origin.union([node.origin, *map(self._origin, operands)]))
        forms = {value: self._form(*self._place(value), order, at) for value in operands}
        kept = [form.sizes[:-1] for form in forms.values() if len(forms) == 1 or _is_of_layer(form)]
        leading = kept[0] if kept else (root.count,)
        given = {value: at.reshaped(form, (*leading, form.sizes[-1])) for value, form in forms.items()}
        vectors = [value for value in _vectors(node, operands) if value.rank > 1]
        given |= {value: at.reshaped(value, (math.prod(_pinned(value)),)) for value in vectors}
        args = map_leaves(node.args, Value, lambda value: given.get(value, value))
        root.forms.append((order, at.put(node.qualified_op, args, (*leading, root.row), node.output)))
        self._leave(node, root)

    def _best_order(self, root: _Root, operands: Sequence[Value]) -> torch.Tensor:
        """For which the fewest tensors have to be moved, for it and after it, and then the fewest layers lie in an
        order other than their sums; its own if that makes no difference."""
        wanted = self._wanted(root)
        candidates = [root.own_order]
        places = [self._place(value) for value in operands]
        for source, order in places:
            candidates += [_inverse(order)[each] for each in self._there(source)]

        def moved(candidate: torch.Tensor) -> tuple[int, int, int]:
            before = [self._moved(source, order[candidate]) for source, order in places]
            is_own = torch.equal(candidate, root.own_order)
            after = [
                root.count * root.row
                for order, is_copied in wanted
                if not (torch.equal(order, candidate) or (is_own and not is_copied))
            ]
            elements = [each for each in (*before, *after) if each]
            apart = sum(
                _is_of_layer(source.value) and not torch.equal(order[candidate], source.own_order)
                for source, order in places
            )
            return len(elements), apart, sum(elements)

        return min(candidates, key=moved)

    def _moved(self, root: _Root, order: torch.Tensor) -> int:
        """Elements that have to be moved for an order."""
        if any(torch.equal(order, each) for each in self._there(root)):
            return 0
        if root.norm is not None:
            source, places = self._place(root.norm.args[0])
            return self._moved(source, places[order])
        return 0 if _lies_as_read(root, order) else root.count * root.row

    def _wanted(self, root: _Root) -> list[tuple[torch.Tensor, bool]]:
        """Orders in which a root is read by who doesn't compute each row by itself, and whether views copy for it."""
        is_read = any(not is_mover(user) and root.value not in row_operands(user) for user, _ in root.value.uses)
        wanted = [(root.own_order, False)] if root.has_other_rows or is_read else []
        for shown in root.shown:
            readers = [user for user, _ in shown.value.uses if not is_mover(user)]
            is_read = not shown.is_whole or any(shown.value not in row_operands(user) for user in readers)
            if is_read and not any(torch.equal(shown.order, order) for order, _ in wanted):
                wanted.append((shown.order, shown.is_copied))
        return wanted

    def _defer(self, norm: Node, root: _Root) -> None:
        """Compute a norm where it is read, unless its operand is there as it is."""
        root.norm = norm
        value = norm.args[0]
        source, _ = self._place(value)
        if (value in self._shown and self._shown[value][1].is_copied) or not source.is_there:
            self._leave(norm, root)

    def _leave(self, node: Node, root: _Root) -> None:
        """Leave out what makes a root, but for those who read it by other rows."""
        root.is_there = False
        self._replaced.append(node)
        if root.has_other_rows:
            old, new = root.value, self._tensor(root, root.own_order, root.value, root.axis, _At(node, node.origin))
            old.replace_all_uses_with(new)
            root.value, root.is_there = new, True
            self._roots[new] = root

    # Rows in an order.

    def _read_as_is(self, node: Node, operands: Sequence[Value] = ()) -> None:
        """Let a node read tensors in place of those that are not there.

        ``operands`` are those of which it computes each row by itself.
        """
        for index, value in enumerate(node.inputs):
            new = self._as_is(value, node, value in operands)
            if new is not value:
                node.replace_input(index, new)

    def _as_is(self, value: Value, reader: Node, by_rows: bool) -> Value:
        if value in self._made:
            return self._made[value]
        if value in self._shown:
            root, shown = self._shown[value]
            if self._is_best(root, shown, by_rows):
                return value
            axis = shown.axis
        else:
            known = self._roots.get(value)
            if known is None or known.is_there:
                return value
            axis = known.axis
        views = self._origin(value)
        self._made[value] = self._tensor(*self._place(value), value, axis, _At(reader, views or reader.origin))
        reader.origin |= views
        return self._made[value]

    def _is_best(self, root: _Root, shown: Shown, by_rows: bool) -> bool:
        """Whether what views make of a root is best made by them."""
        if not root.is_there or (shown.is_copied and any(torch.equal(shown.order, order) for order, _ in root.forms)):
            return False
        is_normalized_later = by_rows and root.norm is not None and not torch.equal(shown.order, root.own_order)
        return not is_normalized_later and (shown.is_one_copy or not shown.is_copied)

    def _form(self, root: _Root, rows: torch.Tensor, order: torch.Tensor, at: _At) -> Value:
        """Rows of a root in an order of what has those rows."""
        return self._in_order(root, rows[order], at)

    def _in_order(self, root: _Root, order: torch.Tensor, at: _At) -> Value:
        """A tensor whose last dimension is the rows of a root, in an order."""
        _pinned(root.value)
        for each, known in root.forms:
            if torch.equal(order, each):
                return known
        if root.is_there and torch.equal(order, root.own_order):
            return at.with_last(root.value, root.axis)
        if root.norm is not None:
            source, rows = self._place(root.norm.args[0])
            form = self._normalized(root.norm, self._in_order(source, rows[order], at), at)
        else:
            first, whole = root.forms[0] if root.forms else (root.own_order, at.with_last(root.value, root.axis))
            matrix = at.reshaped(whole, (root.count, root.row))
            numbers = self._constant(_inverse(first)[order])
            form = at.put("aten::index_select", (matrix, 0, numbers), (len(order), root.row), matrix)
        root.forms.append((order, form))
        return form

    def _constant(self, numbers: torch.Tensor) -> Value:
        return self._numbers.setdefault(numbers.numpy().tobytes(), Value.of_elements(numbers))

    def _tensor(self, root: _Root, order: torch.Tensor, like: Value, axis: int, at: _At) -> Value:
        """A tensor of the sizes of another one, of rows of a root along a dimension."""
        dims = [*range(axis), *range(axis + 1, like.rank), axis]
        sizes = [_pinned(like)[d] for d in dims]
        if root.norm is not None and sizes[-1] == root.row and not root.has(order):
            source, rows = self._place(root.norm.args[0])
            tensor = self._normalized(root.norm, at.reshaped(self._in_order(source, rows[order], at), sizes), at)
        else:
            tensor = at.reshaped(self._in_order(root, order, at), sizes)
        return at.permuted(tensor, inverted(dims))

    def _normalized(self, norm: Node, rows: Value, at: _At) -> Value:
        """What a norm makes of its rows in another order."""
        own = replace(at, origin=norm.origin | self._origin(norm.args[0]))
        return own.put(norm.qualified_op, (rows, *norm.args[1:]), rows.sizes, norm.output)


def _pinned(value: Value) -> tuple[int, ...]:
    """Sizes, which are the only ones from now on where they were open."""
    return tuple(int(size) for size in value.sizes)


def row_operands(node: Node) -> list[Value]:
    """Tensors of whose rows a node computes each row of its result by itself."""
    if len(node.outputs) != 1 or node.blocks:
        return []
    if _is_norm(node) or layer_of(node) is not None:
        return [node.args[0]]
    if not has_trait(node.qualified_op, Trait.ELEMENTWISE):
        return []
    sizes = sizes_of(node.output)
    whole = [value for value in node.inputs if sizes_of(value) == sizes]
    fits = all(value.elements is None and value.dtype in _DTYPES for value in whole)
    return whole if fits and node.output.dtype in _DTYPES else []


def _vectors(node: Node, operands: Sequence[Value]) -> list[Value]:
    """The other tensors of a node that computes each element by itself."""
    is_elementwise = has_trait(node.qualified_op, Trait.ELEMENTWISE)
    return [value for value in node.inputs if is_elementwise and value not in operands]


def _are_vectors(node: Node, operands: Sequence[Value], axis: int) -> bool:
    """Whether these are the same for all rows along a dimension of the result."""
    rank = node.output.rank
    dims = [(size, d + rank - value.rank) for value in _vectors(node, operands) for d, size in enumerate(value.sizes)]
    return all(d == axis or size == 1 for size, d in dims)


def _is_norm(node: Node) -> bool:
    return len(node.outputs) == 1 and normalizes_rows(node) and len(node["normalized_shape"]) == 1


def _lies_as_read(root: _Root, order: torch.Tensor) -> bool:
    """Whether what makes a tensor can lay it in the order in which it is read: by the only one who does, with
    dimensions in another order."""
    if not root.is_there or root.forms or root.has_other_rows or len(root.shown) != 1:
        return False
    (shown,), maker = root.shown, root.value.producer
    if maker is None or is_mover(maker) or row_operands(maker) or len(root.value.uses) + len(shown.value.uses) > 2:
        return False
    leading = [size for d, size in enumerate(sizes_of(root.value)) if d != root.axis and size != 1]
    if len(leading) > _MOST_DIMENSIONS or not torch.equal(order, shown.order):
        return False
    places = torch.arange(root.count).view(leading)
    return any(torch.equal(order, places.permute(dims).reshape(-1)) for dims in permutations(range(len(leading))))


def _is_of_layer(value: Value) -> bool:
    """Whether a layer makes it, which may add to it if the sum has its sizes."""
    return value.producer is not None and layer_of(value.producer) is not None


def _inverse(order: torch.Tensor) -> torch.Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    return inverse
