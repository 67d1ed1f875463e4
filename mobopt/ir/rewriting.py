"""Rewrites of straight lines: nodes that become one, and come apart again; nodes in place of others; passing nodes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from mobopt.errors import GraphError
from mobopt.ir.graph import Node, Value
from mobopt.ir.node_list import InsertionPoint
from mobopt.ir.origin import NOWHERE, Origin


def enclose(
    nodes: Sequence[Node], op: str, point: InsertionPoint | None = None, ends: Sequence[Node] | None = None
) -> Node:
    """Make several nodes the body of a new one, which makes what the last of them made.

    The body reads what it needs from outside by itself, so the new node has no inputs. Nothing else may read what the
    others make.

    Args:
        nodes: of one block, in order.
        op: what the new node is called.
        point: where it stands, in the place of the last node if not given.
        ends: nodes, in place of the last: the new one makes what all of them made. Others may read it too.

    Raises:
        GraphError: something else reads what one of the others makes.
    """
    last, ends = nodes[-1], ends or nodes[-1:]
    inner = set(nodes)
    for node in nodes:
        if node not in ends and any(user not in inner for output in node.outputs for user, _ in output.uses):
            raise GraphError(f"{node!r} is read outside of what it should become a part of")
    whole = (point or InsertionPoint.before(last)).insert(Node(op, origin=Origin.union(node.origin for node in nodes)))
    body = whole.add_block()
    for node in nodes:
        body.append(node.remove())
    for end in ends:
        _hand_over(end, whole, inner)
    body.returns.set_inputs([value for end in ends for value in end.outputs])
    return whole


def destroy_unread(node: Node | None) -> None:
    """Take out a node whose results nobody reads, and then what it alone has read."""
    if node is None or node.block is None or node.blocks or any(output.uses for output in node.outputs):
        return
    read = [value.producer for value in dict.fromkeys(node.inputs)]
    node.destroy()
    for maker in read:
        destroy_unread(maker)


def dissolve(whole: Node) -> list[Node]:
    """Put the nodes of the body of :func:`enclose` in the place of the node that holds it."""
    body = whole.blocks[0]
    nodes, ends = list(body.nodes), dict.fromkeys(value.producer for value in body.outputs)
    body.returns.set_inputs(())
    point = InsertionPoint.before(whole)
    for node in nodes:
        point.insert(node.remove())
    made = iter(list(whole.outputs))
    whole.outputs.clear()
    for end in ends:
        assert end is not None
        count = len(end.outputs)
        own = list(end.outputs)
        end.outputs.clear()
        for output, inside in zip(islice(made, count), own, strict=True):
            inside.producer = output.producer = None
            for node, index in inside.uses:
                node.replace_input(index, output)
            end.add_output(output)
    whole.destroy()
    return nodes


def _hand_over(maker: Node, whole: Node, inner: Container[Node]) -> None:
    """Let ``whole`` make the values of ``maker``, which gets others in their place, for those that are ``inner``."""
    values = list(maker.outputs)
    maker.outputs.clear()
    for value in values:
        value.producer = None
        whole.add_output(value)
        own = maker.add_output(Value("", value.type))
        for node, index in value.uses:
            if node in inner:
                node.replace_input(index, own)


def replace_call(node: Node, qualified_op: str, args: Sequence[Any]) -> Node:
    """Put another operator in the place of a node; it makes the same values from other arguments."""
    new = Node.call(qualified_op, args, [Value("", value.type) for value in node.outputs], node.origin)
    make_instead(new, node)
    node.destroy()
    return new


def make_instead(call: Node, node: Node) -> None:
    """Let a call that stands in no block yet make, before a node, what everybody reads of the node."""
    call.insert_before(node)
    for old, value in zip(node.outputs, call.outputs, strict=True):
        value.name, old.name = old.name, ""
        old.replace_all_uses_with(value)


def made_only_for(value: object, reader: Node) -> Node | None:
    """What makes a value that ``reader`` reads once, and nothing else reads."""
    if not isinstance(value, Value) or len(value.uses) != 1 or value.uses[0][0] is not reader:
        return None
    return value.producer


@contextmanager
def passing_call(
    qualified_op: str, args: Sequence[Any], outputs: Sequence[Value], origin: Origin = NOWHERE
) -> Iterator[Node]:
    """A node that stands in no block, for as long as something is asked about it; see :meth:`Node.call`."""
    node = Node.call(qualified_op, args, outputs, origin)
    try:
        yield node
    finally:
        node.destroy()
