"""Which values of a method are tapped: those that globs name, by node, operator, module or source line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from mobopt.errors import InputError
from mobopt.ir import Graph, Node, Value
from mobopt.ir.origin import ModelNode
from mobopt.ir.types import TENSOR

_TRANSFER = "aten::to.prim_Device"
_SUGGESTED = 5


@dataclass(frozen=True)
class Choice:
    """What globs choose.

    Attributes:
        values: in the order in which they are made.
        unreached: those of them that stand in branches or loops that the example does not come to.
    """

    values: tuple[Value, ...]
    unreached: tuple[Value, ...]


def choose(graph: Graph, patterns: Sequence[str], name: str) -> Choice:
    """The tensors that a method computes and that globs name.

    A glob is matched with the name of the value, the operator with and without ``aten::``, and, of each node of the
    model that the node stands for, ``aten::conv2d %x``, the operator, the name, the source line and the module. What
    only moves a tensor between devices has to be named itself.

    Args:
        graph: of the method, whose values know what its example made of them.
        patterns: globs.
        name: of the model, for messages.

    Raises:
        InputError: a glob names nothing.
    """
    values: list[Value] = []
    unmet = dict.fromkeys(patterns)
    for node in graph.walk():
        hits = [pattern for pattern in patterns if _is_named(node, pattern)]
        if not hits or not _makes_tensors(node):
            continue
        is_nested = node.block is not graph.block
        own = [value for value in node.outputs if value.facts.seen_type or (is_nested and value.type == TENSOR)]
        if own:
            unmet = {pattern: None for pattern in unmet if pattern not in hits}
        values += own
    if unmet or not values:
        raise InputError(_nothing_named(graph, next(iter(unmet), patterns[0] if patterns else ""), name))
    return Choice(tuple(values), tuple(value for value in values if value.facts.seen_type is None))


def _makes_tensors(node: Node) -> bool:
    return not node.blocks and node.op != "prim::GetAttr" and any(value.type == TENSOR for value in node.outputs)


def _is_named(node: Node, pattern: str) -> bool:
    if is_transfer(node):
        return bool(pattern.strip("*")) and any(fnmatchcase(name, pattern) for name in _own_names(node))
    return any(fnmatchcase(name, pattern) for name in (*_own_names(node), *_origin_names(node)))


def is_transfer(node: Node) -> bool:
    """Whether a node moves a tensor between devices."""
    return node.qualified_op == _TRANSFER


def _own_names(node: Node) -> Iterator[str]:
    yield node.op
    yield node.op.rpartition("::")[2]
    for value in node.outputs:
        yield value.name


def _origin_names(node: Node) -> Iterator[str]:
    for item in node.origin.nodes:
        yield from _model_names(item)


def _model_names(item: ModelNode) -> Iterator[str]:
    operator, _, value = item.text.partition(" %")
    yield from (item.text, operator, operator.rpartition("::")[2], value)
    if item.line:
        yield item.line
        yield module_of(item)


def is_meant(item: ModelNode, patterns: Sequence[str]) -> bool:
    """Whether a glob of :func:`choose` names a node of the model."""
    return any(fnmatchcase(name, pattern) for name in _model_names(item) for pattern in patterns)


def module_of(item: ModelNode) -> str:
    """The module that a node of the model stands in: ``features.0``; empty if the file does not tell."""
    return item.line.rpartition(" in ")[2] if " in " in item.line else ""


def _nothing_named(graph: Graph, pattern: str, name: str) -> str:
    known = {
        text: None
        for node in graph.walk()
        if _makes_tensors(node)
        for text in (*_own_names(node), *_origin_names(node))
        if text
    }
    close = get_close_matches(pattern.strip("*"), known, _SUGGESTED, 0.4) or list(known)[:_SUGGESTED]
    hint = f"; such names are {', '.join(close)}" if close else "; the method computes no tensors"
    return f"{name}: no node is named {pattern!r}{hint}"
