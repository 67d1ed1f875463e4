"""Has quantised models compute before they look at results in another way, so that products do it before they store."""

from __future__ import annotations

from typing import Any

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread
from mobopt.ops.fake_quantize import FAKE_QUANTIZE
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.moved_rows import is_mover
from mobopt.runtimes.vulkan.compile.normalizations import known_number
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.epilogue import added_operands


def move_views_after_steps(graph: Graph) -> None:
    """Exchange views of all elements with what is computed of each of them, and with a sum of what was rounded and
    another tensor, in models that round their activations.

    Given:
        %a : Float(1, 6, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %b : Float(6, 8) = aten::reshape(%a, [6, 8])
        %y : Float(6, 8) = aten::gelu(%b, "none")
    Result:
        %a : Float(1, 6, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %c : Float(1, 6, 8) = aten::gelu(%a, "none")
        %y : Float(6, 8) = aten::reshape(%c, [6, 8])
    Given:
        %a : Float(6, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %b : Float(1, 6, 8) = aten::reshape(%a, [1, 6, 8])
        %y : Float(1, 6, 8) = aten::add.Tensor(%z, %b, 1)
    Result:
        %a : Float(6, 8) = mobopt::fake_quantize(%x, 0.05, -120, 135, None)
        %c : Float(6, 8) = aten::reshape(%z, [6, 8])
        %d : Float(6, 8) = aten::add.Tensor(%c, %a, 1)
        %y : Float(1, 6, 8) = aten::reshape(%d, [1, 6, 8])

    What such models are exported from has views between a layer and its rounding.
    """
    if all(node.op != FAKE_QUANTIZE for node in graph.block.nodes):
        return
    for node in list(graph.block.nodes):
        step: Node | None = node
        while step is not None:
            step = _before_its_view(step)
        if node.block is not None:
            _sum_before_a_view(node)


def _before_its_view(node: Node) -> Node | None:
    """Let a node read what its operand is a view of; gives the node that does so now."""
    place = _operand_of(node)
    view = None if place is None else _view_of_all(node.args[place])
    if place is None or view is None:
        return None
    return _exchanged(node, view, (*node.args[:place], view.args[0], *node.args[place + 1 :]))


def _sum_before_a_view(node: Node) -> None:
    """The same of a sum of what was rounded, in another shape, and of a tensor that has this shape then."""
    for value, other in zip(added := added_operands(node), reversed(added), strict=True):
        view = _view_of_all(value)
        if view is None or not has_trait(view.qualified_op, Trait.KEEPS_ORDER):
            continue
        whole = view.args[0]
        if whole.producer is None or whole.producer.op != FAKE_QUANTIZE:
            continue
        call = ("aten::reshape", (other, list(whole.sizes)), [Value("", whole.type)], view.origin)
        reshaped = Node.call(*call).insert_before(node).output
        _exchanged(node, view, (whole, reshaped, 1))
        return


def _exchanged(node: Node, view: Node, args: tuple[Any, ...]) -> Node:
    """A node's operator on other arguments, of which the view shows what the node made."""
    made = Value("", view.args[0].type)
    step = Node.call(node.qualified_op, args, [made], node.origin).insert_before(node)
    seen = Node.call(view.qualified_op, (made, *view.args[1:]), [Value("", node.output.type)], view.origin)
    node.output.replace_all_uses_with(seen.insert_before(node).output)
    destroy_unread(node)
    return step


def _operand_of(node: Node) -> int | None:
    """The place of the tensor that a node computes each element of by itself, of its dtype; None for other nodes."""
    if len(node.outputs) != 1 or not node.args or not isinstance(node.args[0], Value):
        return None
    is_step = node.op == FAKE_QUANTIZE or activation_of(node) is not None
    for place, other in () if is_step else _both_places(node):
        if known_number(node.args[other]) is not None:
            return place if _keeps_type(node, place) else None
    return 0 if is_step and _keeps_type(node, 0) else None


def _both_places(node: Node) -> tuple[tuple[int, int], ...]:
    """Where a factor may stand, and the number that it is multiplied with or divided by."""
    places = {"aten::mul": ((0, 1), (1, 0)), "aten::div": ((0, 1),)}
    return places.get(node.op, ()) if len(node.args) == 2 else ()


def _keeps_type(node: Node, place: int) -> bool:
    operand = node.args[place]
    return isinstance(operand, Value) and operand.tensor_type == node.output.tensor_type


def _view_of_all(value: Any) -> Node | None:
    """What makes a value that is read once, if it shows every element of its only tensor once."""
    view = value.producer if isinstance(value, Value) and len(value.uses) == 1 else None
    return view if view is not None and is_mover(view) else None
