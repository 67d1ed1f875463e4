"""Branches, casts and containers whose outcome is known before the model runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.schemas import accepts
from mobopt.ir.types import ANY, BOOL, FLOAT, INT, NONE, STR, OptionalType, Type
from mobopt.ops.aliases import Aliases
from mobopt.passes.manager import GraphPass
from mobopt.passes.notes import NoteBook
from mobopt.passes.ranks import batched_rank, known_rank, rank_root
from mobopt.passes.rewriting import bypass_node, producer_of

_PLAIN = (NONE, BOOL, INT, FLOAT, STR)
"""Types of constants without identity."""


@dataclass(frozen=True)
class ConstantPropagation(GraphPass):
    """Resolve branches on constants, checks of types and of None, unpacking of what was just packed, and known ranks.

    Given:
        %c : bool = prim::Constant[value=1]()
        %y : Tensor = prim::If(%c)
          block0():
            %a : Tensor = aten::relu(%x)
            -> (%a)
          block1():
            -> (%x)
    Result:
        %a : Tensor = aten::relu(%x)
    """

    name = "constant_propagation"
    only_branches: bool = False
    """Whether only branches and checks of None and of types are resolved."""

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """One pass over the nodes, inner ones after their holder."""
        aliases = Aliases(graph)
        changed = False
        for node in graph.walk():
            if node.block is None:
                continue
            if node.op == "prim::If":
                changed |= _resolve_if(node)
                continue
            rule = _RULES.get(node.op)
            if self.only_branches and rule not in (_compare_with_none, _isinstance):
                continue
            if rule is not None and not _may_change(node, rule, aliases):
                changed |= rule(node)
        return changed


def _may_change(node: Node, rule: Callable[[Node], bool], aliases: Aliases) -> bool:
    """Whether something that is written to may be what a rule looks at: of a container, which items it has."""
    if rule in (_unpack, _index, _length, _dictionary):
        return any(aliases.fillers(value) for value in node.inputs[:1])
    return any(aliases.writers(value) for value in (*node.inputs, *node.outputs))


def _resolve_if(node: Node) -> bool:
    condition = node.inputs[0]
    outcome = condition.constant if condition.is_constant else _passed_check(node)
    if outcome is not None:
        splice_block(node.blocks[0 if outcome else 1], node)
        return True
    changed = False
    left, right = (block.outputs for block in node.blocks)
    for index in reversed(range(len(node.outputs))):
        known = _merged(condition, left[index], right[index])
        if known is not None:
            node.outputs[index].replace_all_uses_with(known)
            remove_if_output(node, index)
            changed = True
    return changed


def _passed_check(node: Node) -> bool | None:
    """The outcome of a condition that only refuses what is no batch for a convolution; None for any other."""
    outcome = _for_batches(node.inputs[0])
    if outcome is None or node.outputs:
        return None
    refusing, passing = node.blocks[1 if outcome else 0], node.blocks[0 if outcome else 1]
    only_raises = any(item.op == "prim::RaiseException" for item in refusing.nodes)
    return outcome if only_raises and not passing.nodes else None


def _for_batches(condition: Value) -> bool | None:
    """Whether a condition on the rank of what a convolution gives holds for batches; None for other conditions."""
    node = condition.producer
    if node is None:
        return None
    if node.op == "aten::__not__":
        inner = _for_batches(node.inputs[0])
        return None if inner is None else not inner
    if node.op in ("aten::eq", "aten::ne", "aten::lt") and node.overload == "int":
        rank, known = _batched_rank_of(node.inputs[0]), node.inputs[1]
        if rank is None or not known.is_constant:
            return None
        outcomes = {"aten::eq": rank == known.constant, "aten::ne": rank != known.constant}
        return bool(outcomes.get(node.op, rank < known.constant))
    if node.op == "aten::__contains__" and node.inputs[0].is_constant and isinstance(node.inputs[0].constant, list):
        rank = _batched_rank_of(node.inputs[1])
        return None if rank is None else rank in node.inputs[0].constant
    return None


def _batched_rank_of(dim: Value) -> int | None:
    node = dim.producer
    return batched_rank(node.inputs[0]) if node is not None and node.op == "aten::dim" else None


def _merged(condition: Value, left: Value, right: Value) -> Value | None:
    """What a branch gives, if that is the same on both sides or is the condition itself."""
    if left is right:
        return left
    if not (left.is_constant and right.is_constant and left.type == right.type):
        return None
    if left.type == BOOL and (left.constant, right.constant) == (True, False):
        return condition
    return left if left.type in _PLAIN and repr(left.constant) == repr(right.constant) else None


def splice_block(block: Block, node: Node) -> None:
    """Put a parameterless block's nodes in the place of the node that holds it."""
    for inner in block.nodes:
        inner.remove().insert_before(node)
    for output, value in zip(node.outputs, block.outputs, strict=True):
        output.replace_all_uses_with(value)
    node.destroy()


def remove_if_output(node: Node, index: int) -> None:
    """Make a ``prim::If`` return one value less."""
    node.remove_output(index)
    for block in node.blocks:
        block.returns.set_inputs([value for at, value in enumerate(block.outputs) if at != index])


def _to_constant(node: Node, constant: Any) -> bool:
    bypass_node(node, Value(node.output.name, node.output.type, constant))
    return True


def _is_never_none(kind: Type) -> bool:
    return not isinstance(kind, OptionalType) and kind not in (NONE, ANY)


def _compare_with_none(node: Node) -> bool:
    left, right = node.inputs
    if right.type != NONE:
        left, right = right, left
    if right.type != NONE or not (_is_never_none(left.type) or left.type == NONE):
        return False
    return _to_constant(node, (left.type == NONE) == (node.op == "aten::__is__"))


def _isinstance(node: Node) -> bool:
    kind = node.inputs[0].type
    if isinstance(kind, OptionalType) or kind == ANY:
        return False
    return _to_constant(node, any(accepts(wanted, kind) for wanted in node.attributes["types"]))


def _needless_cast(node: Node) -> bool:
    value = node.inputs[0]
    if value.type != node.output.type:
        return False
    bypass_node(node, value)
    return True


def _number_again(node: Node) -> bool:
    """A number that was made a tensor, as tracing does with sizes, and is made a number again."""
    tensor = producer_of(node.inputs[0], "prim::NumToTensor")
    if tensor is None or not accepts(node.output.type, tensor.inputs[0].type):
        return False
    bypass_node(node, tensor.inputs[0])
    return True


def _unpack(node: Node) -> bool:
    packed = producer_of(node.inputs[0], node.op.replace("Unpack", "Construct"))
    if packed is None or len(packed.inputs) != len(node.outputs):
        return False
    for output, value in zip(node.outputs, packed.inputs, strict=True):
        output.replace_all_uses_with(value)
    node.destroy()
    return True


def _index(node: Node) -> bool:
    packed = producer_of(node.inputs[0], "prim::ListConstruct", "prim::TupleConstruct")
    index = node.inputs[1]
    if packed is None or not index.is_constant or not -len(packed.inputs) <= index.constant < len(packed.inputs):
        return False
    bypass_node(node, packed.inputs[index.constant])
    return True


def _length(node: Node) -> bool:
    packed = producer_of(node.inputs[0], "prim::ListConstruct")
    if packed is not None:
        return _to_constant(node, len(packed.inputs))
    size = producer_of(node.inputs[0], "aten::size")
    if size is None or len(size.inputs) != 1:
        return False
    node.op, node.overload = "aten::dim", ""
    node.set_inputs(size.inputs)
    return True


def _dim(node: Node) -> bool:
    """A known number, or the rank of the first tensor that surely has the same."""
    rank = known_rank(node.inputs[0])
    if rank is not None:
        return _to_constant(node, rank)
    root = rank_root(node.inputs[0])
    if root is node.inputs[0] or batched_rank(node.inputs[0]) is not None:
        return False
    node.replace_input(0, root)
    return True


def _dictionary(node: Node) -> bool:
    """``dict`` of pairs that are known as what makes a dictionary: PyTorch's lite interpreter fails on the former."""
    listed = producer_of(node.inputs[0], "prim::ListConstruct") if node.inputs else None
    pairs = [producer_of(item, "prim::TupleConstruct") for item in listed.inputs] if listed is not None else []
    items = [item for pair in pairs if pair is not None for item in pair.inputs]
    if not pairs or len(items) != 2 * len(pairs):
        return False
    node.op, node.overload = "prim::DictConstruct", ""
    node.set_inputs(items)
    return True


_RULES: dict[str, Callable[[Node], bool]] = {
    **dict.fromkeys(
        ("aten::Int", "aten::Float", "aten::Bool", "aten::IntImplicit", "aten::FloatImplicit"), _number_again
    ),
    "aten::ScalarImplicit": _number_again,
    "aten::__is__": _compare_with_none,
    "aten::__isnot__": _compare_with_none,
    "prim::isinstance": _isinstance,
    "prim::unchecked_cast": _needless_cast,
    "prim::unchecked_unwrap_optional": _needless_cast,
    "aten::_unwrap_optional": _needless_cast,
    "prim::TupleUnpack": _unpack,
    "prim::ListUnpack": _unpack,
    "prim::TupleIndex": _index,
    "aten::__getitem__": _index,
    "aten::len": _length,
    "aten::dim": _dim,
    "aten::dict": _dictionary,
}
