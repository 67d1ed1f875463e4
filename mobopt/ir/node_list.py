"""The nodes of a block, linked: a node is put in, taken out or found out of order at a cost that no length changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from mobopt.errors import GraphError

if TYPE_CHECKING:
    from mobopt.ir.graph import Block, Node


class NodeList(Sequence["Node"]):
    """Nodes in order, doubly linked through ``Node.previous`` and ``Node.next``.

    To walk it is cheap, and a node may be taken out while it is the current one; to index it counts from the nearer
    end. Only :class:`InsertionPoint`, :meth:`Block.append` and :meth:`Node.destroy` change it.
    """

    __slots__ = ("_count", "_is_numbered", "first", "last")

    def __init__(self) -> None:
        self.first: Node | None = None
        self.last: Node | None = None
        self._count = 0
        self._is_numbered = True
        """Whether ``Node._number`` rises along the list."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Node]:
        node = self.first
        while node is not None:
            following = node.next
            yield node
            node = following

    def __reversed__(self) -> Iterator[Node]:
        node = self.last
        while node is not None:
            before = node.previous
            yield node
            node = before

    def __contains__(self, node: object) -> bool:
        return any(item is node for item in self)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        if isinstance(index, slice):
            return list(self)[index]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(f"a block of {self._count} nodes has no node {index}")
        from_end = position >= self._count // 2
        steps = self._count - 1 - position if from_end else position
        nodes = reversed(self) if from_end else iter(self)
        for _ in range(steps):
            next(nodes)
        return next(nodes)

    def link(self, node: Node, before: Node | None) -> None:
        """Put a node that is in no list before another one, or at the end."""
        after = self.last if before is None else before.previous
        node.previous, node.next = after, before
        if after is None:
            self.first = node
        else:
            after.next = node
        if before is None:
            self.last = node
            node._number = 0 if after is None else after._number + 1
        else:
            before.previous = node
            self._is_numbered = False
        self._count += 1

    def unlink(self, node: Node) -> None:
        """Take a node out."""
        if node.previous is None:
            self.first = node.next
        else:
            node.previous.next = node.next
        if node.next is None:
            self.last = node.previous
        else:
            node.next.previous = node.previous
        node.previous = node.next = None
        self._count -= 1

    def is_before(self, first: Node, second: Node) -> bool:
        """Whether one node of the list stands before another one; nodes are numbered anew if some came between."""
        if not self._is_numbered:
            for number, node in enumerate(self):
                node._number = number
            self._is_numbered = True
        return first._number < second._number


@dataclass(frozen=True)
class InsertionPoint:
    """A place among the nodes of a block. Nodes that are put there one after another stand in that order."""

    block: Block
    anchor: Node | None
    """The node that follows; None at the end."""

    @staticmethod
    def before(node: Node) -> InsertionPoint:
        """Just before a node of a block; before its returns means at the end.

        Raises:
            GraphError: the node stands in no block.
        """
        if node.block is None:
            raise GraphError(f"{node.op} stands in no block")
        return InsertionPoint(node.block, None if node is node.block.returns else node)

    @staticmethod
    def after(node: Node) -> InsertionPoint:
        """Just after a node of a block.

        Raises:
            GraphError: the node stands in no block.
        """
        if node.block is None:
            raise GraphError(f"{node.op} stands in no block")
        return InsertionPoint(node.block, node.next)

    @staticmethod
    def start(block: Block) -> InsertionPoint:
        """Before all nodes that the block has now."""
        return InsertionPoint(block, block.nodes.first)

    @staticmethod
    def end(block: Block) -> InsertionPoint:
        """After all nodes of a block."""
        return InsertionPoint(block, None)

    def insert(self, node: Node) -> Node:
        """Put a node here.

        Raises:
            GraphError: it stands in a block already, or the node that followed has gone from this block.
        """
        if node.block is not None:
            raise GraphError(f"{node.op} stands in a block already")
        if self.anchor is not None and self.anchor.block is not self.block:
            raise GraphError(f"{self.anchor.op}, before which {node.op} should stand, has gone from the block")
        self.block.nodes.link(node, self.anchor)
        node.block = self.block
        return node
