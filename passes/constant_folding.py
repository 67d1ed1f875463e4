"""What follows from constants alone is computed at conversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.errors import GraphError, MoboptError
from mobopt.ir import Graph, Node, Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.types import BOOL, FLOAT, INT, NONE, STR
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import is_permitted, is_pure
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import NOT_FOLDED
from mobopt.passes.notes import NoteBook
from mobopt.runtimes.cpu.builtins import BUILTINS
from mobopt.runtimes.cpu.kernels import kernel

_NEVER = frozenset({"prim::Uninitialized", "prim::isinstance", "aten::to.prim_Device", "aten::cuda", "aten::cpu"})
_QUANTIZES = frozenset({"aten::quantize_per_tensor", "aten::quantize_per_channel", "aten::quantize_per_tensor_dynamic"})
"""No file holds a constant that is a quantised tensor."""
_CONTAINERS: dict[str, Callable[[list[Any]], tuple[Any, ...]]] = {
    "prim::ListConstruct": lambda items: (items,),
    "prim::TupleConstruct": lambda items: (tuple(items),),
    "prim::ListUnpack": lambda items: tuple(items[0]),
    "prim::TupleUnpack": lambda items: tuple(items[0]),
}
_MOST_ELEMENTS = 1 << 28
_PLAIN = (NONE, BOOL, INT, FLOAT, STR)


@dataclass(frozen=True)
class ConstantFolding(GraphPass):
    """Run pure operators on constants, with torch's CPU kernels.

    Given:
        %w : Tensor = prim::Constant[value=<Tensor float32 [4, 3]>]()
        %t : Tensor = aten::t(%w)
    Result:
        %t : Tensor = prim::Constant[value=<Tensor float32 [3, 4]>]()

    Packing of weights is not folded here: contexts become attributes, by :mod:`mobopt.passes.fold_prepack`.
    """

    name = "constant_folding"
    only_plain: bool = False
    """Whether only numbers and strings are computed."""
    max_bytes: int = 1 << 20
    """A result larger than this, and larger than what it is computed from, would make the file grow; it stays."""

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Fold until nothing follows from constants any more."""
        aliases = Aliases(graph)
        changed = False
        for node in graph.walk():
            if node.block is None or not _is_foldable(node, aliases) or (self.only_plain and not _is_plain(node)):
                continue
            results = _evaluate(node)
            if results is None:
                continue
            if self._grows(node, results):
                reason = f"its result is larger than {self.max_bytes} bytes and than its inputs"
                notes.add(NOT_FOLDED, node, reason=reason)
                continue
            for output, result in zip(node.outputs, results, strict=True):
                output.replace_all_uses_with(Value(output.name, output.type, result))
            node.destroy()
            changed = True
        return changed

    def _grows(self, node: Node, results: tuple[Any, ...]) -> bool:
        size = sum(map(_size_of, results))
        return size > self.max_bytes and size > sum(_size_of(value.constant) for value in node.inputs)


def _is_plain(node: Node) -> bool:
    return _are_plain((*node.inputs, *node.outputs))


def _are_plain(values: Sequence[Value]) -> bool:
    """Whether values are numbers or strings, which take no memory to speak of: ``enumerate`` of a list asks for the
    smaller of its length and the largest number that there is."""
    return all(value.type in _PLAIN for value in values)


def _is_foldable(node: Node, aliases: Aliases) -> bool:
    if (
        node.qualified_op in _NEVER
        or node.op in _QUANTIZES
        or not node.op.startswith(("aten::", "prim::"))
        or not node.outputs
    ):
        return False
    if not all(value.is_constant for value in node.inputs) or not is_pure(node) or not is_permitted(node):
        return False
    return not any(aliases.writers(value) for value in (*node.inputs, *node.outputs))


def _evaluate(node: Node) -> tuple[Any, ...] | None:
    """The node's results; None if it can't be run here, or gives what can't be a constant."""
    inputs = [value.constant for value in node.inputs]
    if any(map(_asks_for_much, inputs)) and not _are_plain(node.outputs):
        return None
    try:
        with torch.no_grad():
            if node.op in _CONTAINERS:
                results = _CONTAINERS[node.op](inputs)
            else:
                result = BUILTINS.get(node.qualified_op, kernel(node.qualified_op))(*inputs)
                results = (result,) if len(node.outputs) == 1 else tuple(result)
        for item in results:
            type_of_constant(item)
    except GraphError:
        return None
    except (MoboptError, RuntimeError, TypeError, ValueError, LookupError, NotImplementedError, ArithmeticError):
        return None  # the model itself fails here, if it ever comes here; leave that to run time
    return results if len(results) == len(node.outputs) else None


def _asks_for_much(value: Any) -> bool:
    """Whether a list of sizes stands for more elements than any weight has."""
    is_sizes = isinstance(value, list) and all(type(item) is int and item > 0 for item in value)
    return is_sizes and math.prod(value) > _MOST_ELEMENTS


def _size_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_size_of, value)) if isinstance(value, (list, tuple)) else 0
