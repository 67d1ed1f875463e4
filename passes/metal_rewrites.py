"""What Metal's kernels do not take becomes what they take."""

from __future__ import annotations

from functools import cached_property

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ops.aliases import Aliases
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import FORMAT_DROPPED, FORMAT_STAYS, REWRITTEN_AS
from mobopt.passes.notes import NoteBook
from mobopt.passes.rank_bounds import fold_rank_checks
from mobopt.passes.rewriting import argument, bypass_node, constants, is_constant_tensor, producer_of, replace_node

_PRESERVE_FORMAT = 1  # source: c10/core/MemoryFormat.h
_FORMAT_OPERATORS = frozenset(
    f"aten::{name}" for name in ("contiguous", "clone", "to.dtype_layout", "to.device", "to.dtype", "to.other")
)
_LIST_READERS = frozenset({"aten::__getitem__", "aten::len", "prim::ListUnpack"})


class MetalRewrites(GraphPass):
    """Drop memory formats, and spell products with constant weights, and sizes, as Metal's runtime takes them.

    Given:
        %a = aten::contiguous(%x, %channels_last)
        %b = aten::view(%a, %sizes)
        %y = aten::addmm(%bias, %b, %w, %beta, %alpha)      # all but %b constant
        %n = aten::__getitem__(aten::size(%y), %zero)
    Result:
        %b = aten::reshape(%x, %sizes)
        %y = aten::linear(%b, transpose of %w times alpha, %bias times beta)
        %n = aten::size(%y, %zero)

    On the phone a tensor is an image and has no memory format: ``contiguous`` does nothing there, ``view`` always can,
    and any other format is an error. ``reshape`` gives the same elements on the CPU too, whatever the strides.
    Checks of a rank whose outcome the operators tell are removed: each is a few operators more that an app must hold.
    Formats stay, with a note, where the model writes in place to what they concern, or asks for strides.
    """

    name = "metal_rewrites"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite one method."""
        rewriter = _Rewriter(graph, notes)
        changed = [rewriter.formats(), rewriter.products(), rewriter.sizes(), fold_rank_checks(graph, notes)]
        return any(changed)


class _Rewriter:
    """Rewrites one graph."""

    def __init__(self, graph: Graph, notes: NoteBook) -> None:
        self.graph = graph
        self.notes = notes

    @cached_property
    def aliases(self) -> Aliases:
        """Who writes to what, as the graph was before any rewrite."""
        return Aliases(self.graph)

    def formats(self) -> bool:
        """Drop memory formats; views, which may have needed them, become reshapes."""
        nodes = list(self.graph.walk())
        asking = [node for node in nodes if _asks_for_format(node)]
        views = [node for node in nodes if node.qualified_op == "aten::view"]
        reader = next(
            (
                node
                for node in nodes
                if has_trait(node.qualified_op, Trait.READS_STRIDES) and node.qualified_op != "aten::view"
            ),
            None,
        )
        going = [node for node in asking if not self._refused(node, views, reader)]
        for node in views if going else ():
            replace_node(self.graph, node, "aten::reshape", node.inputs)
        for node in going:
            self.notes.add(FORMAT_DROPPED, node)
            if _only_asks_for_format(node):
                bypass_node(node, node.inputs[0])
            else:
                node.replace_input(_format_index(node), self.graph.constant(None))
        return bool(going)

    def _refused(self, node: Node, views: list[Node], reader: Node | None) -> bool:
        written = [value for value in (node.output, *(view.output for view in views)) if self.aliases.writers(value)]
        reason = ""
        if reader is not None:
            reason = f"{reader.op} depends on strides; rewrite that in the model"
        elif written:
            reason = f"%{written[0].name} is written to in place"
        elif self.aliases.is_of_model(node.inputs[0]) and self.aliases.outlives(node.output):
            reason = "the result is a copy of what may change between calls"
        if reason:
            self.notes.add(FORMAT_STAYS, node, reason=reason)
        return bool(reason)

    def products(self) -> bool:
        """Products plus something, with factors, become linear layers."""
        found = [node for node in self.graph.walk() if node.qualified_op == "aten::addmm" and _is_layer(node)]
        for node in found:
            bias, x, matrix, beta, alpha = node.inputs
            weight = self._scaled(matrix, matrix.constant.t(), alpha.constant)
            row = bias.constant.reshape(-1).expand(matrix.constant.shape[1])
            addend = self._scaled(bias, row, beta.constant) if beta.constant else self.graph.constant(None)
            self.notes.add(REWRITTEN_AS, node, operator="linear")
            replace_node(self.graph, node, "aten::linear", [x, weight, addend])
        return bool(found)

    def _scaled(self, origin: Value, tensor: torch.Tensor, factor: float) -> Value:
        return self.graph.constant(tensor if factor == 1 else tensor * factor, name=origin.name)

    def sizes(self) -> bool:
        """One size of a tensor is asked for by itself, not taken out of the list of all."""
        changed = False
        for node in list(self.graph.walk()):
            size = producer_of(node.inputs[0], "aten::size") if node.qualified_op == "aten::__getitem__.t" else None
            if size is None or size.overload or not node.inputs[1].is_constant or not self._stays(size):
                continue
            replace_node(
                self.graph,
                node,
                "aten::size",
                [size.inputs[0], node.inputs[1]],
                overload="int",
                types=[node.output.type],
            )
            changed = True
        return changed

    def _stays(self, size: Node) -> bool:
        """Whether neither the list nor the tensor's sizes change after this."""
        readers_only = all(user.op in _LIST_READERS for user, _ in size.output.uses)
        return readers_only and not self.aliases.writers(size.inputs[0])


def _format_index(node: Node) -> int:
    return len(node.inputs) - 1


def _asks_for_format(node: Node) -> bool:
    if node.qualified_op not in _FORMAT_OPERATORS:
        return False
    memory_format = argument(node, "memory_format")
    return memory_format.is_constant and memory_format.constant not in (None, _PRESERVE_FORMAT)


def _only_asks_for_format(node: Node) -> bool:
    """Whether the node does nothing but choose a memory format."""
    if node.op == "aten::contiguous":
        return True
    if node.qualified_op != "aten::to.dtype_layout" or argument(node, "copy").constant is not False:
        return False
    dtype, layout, device = (argument(node, name) for name in ("dtype", "layout", "device"))
    given = constants([dtype, layout, device])
    # A traced x.to(memory_format=...) has the dtype, layout and device of x itself.
    return given is not None and (given == [None] * 3 or (None not in given and given[2].type == "cpu"))


def _is_layer(node: Node) -> bool:
    """Whether an addmm has constant weights, factors that are known and a bias of one number or one for each column."""
    bias, _, matrix, beta, alpha = node.inputs
    if not (is_constant_tensor(bias) and is_constant_tensor(matrix) and beta.is_constant and alpha.is_constant):
        return False
    columns = matrix.constant.shape[1]
    return tuple(bias.constant.shape) in ((), (1,), (1, 1), (columns,), (1, columns))
