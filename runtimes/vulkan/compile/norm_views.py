"""Views of a norm's rows come before the norm, so that the product that reads them takes it in."""

from __future__ import annotations

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import make_instead
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.normalizations import normalizes_rows
from mobopt.runtimes.vulkan.lowerings.views import moves_ones

_SELECT = "aten::select.int"


def view_before_norms(graph: Graph) -> None:
    """Exchange a norm and views that alone read it: those that choose some of its rows, or only add, drop or move
    dimensions of one element.

    Given:
        %n : Float(2, 1, 1, 8) = aten::layer_norm(%x, [8], %w, %b, 1e-05, True)
        %p : Float(2, 8, 1, 1) = aten::permute(%n, [0, 3, 1, 2])
        %y : Float(2, 8) = aten::flatten.using_ints(%p, 1, -1)
    Result:
        %0 : Float(2, 8) = aten::reshape(%x, [2, 8])
        %y : Float(2, 8) = aten::layer_norm(%0, [8], %w, %b, 1e-05, True)
    """
    for node in list(graph.block.nodes):
        norm: Node | None = node if normalizes_rows(node) and len(node.outputs) == 1 else None
        while norm is not None:
            norm = _after_views(norm)


def _after_views(norm: Node) -> Node | None:
    """A norm in the place of one with views; None if no view can come before it."""
    views = [view] if (view := _selection(norm)) is not None else _in_order(norm)
    if not views:
        return None
    last = views[-1]
    source: Value = norm.args[0]
    made = Value("", TensorType(source.dtype, last.output.sizes))
    is_selection = last.qualified_op == _SELECT
    name, rest = (_SELECT, last.args[1:]) if is_selection else ("aten::reshape", (list(made.sizes),))
    Node.call(name, (source, *rest), [made], last.origin).insert_before(norm)
    late = Node.call(norm.qualified_op, (made, *norm.args[1:]), [Value("", last.output.type)], norm.origin)
    make_instead(late, last)
    for view in (*reversed(views), norm):
        view.destroy()
    return late


def _selection(norm: Node) -> Node | None:
    """What chooses some of the rows."""
    view = _only_reader(norm.output)
    if view is None or view.qualified_op != _SELECT:
        return None
    rank = norm.output.rank
    return view if view["dim"] % rank < rank - len(norm["normalized_shape"]) else None


def _in_order(norm: Node) -> list[Node]:
    """Views, one after the other, of the same elements, up to the last that has the norm's rows."""
    rows = norm.output.sizes[norm.output.rank - len(norm["normalized_shape"]) :]
    found: list[Node] = []
    count = 0
    view = _only_reader(norm.output)
    while view is not None and _keeps_order(view):
        found.append(view)
        if view.output.sizes[-len(rows) :] == rows:
            count = len(found)
        view = _only_reader(view.output)
    return found[:count]


def _keeps_order(view: Node) -> bool:
    """Whether a node only adds, drops or moves dimensions of one element."""
    source: Value = view.args[0]
    return moves_ones(view) or (
        has_trait(view.qualified_op, Trait.KEEPS_ORDER) and _longer(source) == _longer(view.output)
    )


def _longer(value: Value) -> list[int]:
    return [size for size in value.sizes if size != 1]


def _only_reader(value: Value) -> Node | None:
    """What alone reads a value, and makes another of it."""
    if len(value.uses) != 1:
        return None
    reader = value.uses[0][0]
    return reader if len(reader.outputs) == 1 and not reader.blocks else None
