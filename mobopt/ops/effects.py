"""What a node does besides computing its outputs: writes, randomness, side effects.

Everything follows from the traits of operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from mobopt.ir import Node, Value
from mobopt.ir.schemas import Schema, schema_of, schemas_of
from mobopt.ir.types import ANY, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.permitted import refusal, refusal_of_language
from mobopt.ops.records import Trait, has_trait, record_of


def schema_of_node(node: Node) -> Schema | None:
    """The schema of a node; None for the language's own operators."""
    return _known_schema(node.op, node.overload)


@cache
def _known_schema(op: str, overload: str) -> Schema | None:
    known = any(schema.overload == overload for schema in schemas_of(op))
    if op.startswith("prim::") and not known:
        return None
    return schema_of(f"{op}.{overload}" if overload else op)


def is_random(node: Node) -> bool:
    """Whether two runs of the node on the same inputs may differ."""
    traits = record_of(node.qualified_op).traits
    if Trait.RANDOM not in traits:
        return Trait.UNDEFINED in traits
    names = [argument.name for argument in schema_of(node.qualified_op).arguments]
    known = {
        name: given.constant if isinstance(given, Value) else given
        for name, given in zip(names, node.args, strict=False)
        if not isinstance(given, Value) or given.is_constant
    }
    return draws_numbers(node.qualified_op, known)


def random_operators(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The names of the operators that draw random numbers, sorted."""
    return tuple(sorted({node.op for node in nodes if has_trait(node.qualified_op, Trait.RANDOM) and is_random(node)}))


def draws_numbers(op: str, known: Mapping[str, Any]) -> bool:
    """Whether a qualified operator draws random numbers; ``known`` has its arguments by name, as far as they are known.

    Dropout draws none outside training, nor do layers that drop nothing.
    """
    if not has_trait(op, Trait.RANDOM):
        return False
    is_idle = known.get("train") is False or known.get("training") is False
    return not (is_idle or 0 in (known.get("dropout"), known.get("dropout_p")))


def written_inputs(node: Node) -> tuple[Value, ...]:
    """The inputs that a node changes in place."""
    schema = schema_of_node(node)
    if schema is None or not schema.is_mutating:
        return ()
    pairs = zip(node.inputs, schema.arguments, strict=False)
    return tuple(value for value, argument in pairs if argument.is_written)


def listed_items(value: Value) -> tuple[Value, ...] | None:
    """What a list that is made in place holds; None if it is made in another way, or changed later."""
    node = value.producer
    if node is None or node.op != "prim::ListConstruct":
        return None
    return None if any(value in written_inputs(user) for user, _ in value.uses) else node.inputs


def handles_tensors(node: Node) -> bool:
    """Whether an operator's schema speaks of tensors. Others may hold some in lists and dictionaries, which they only
    hand on."""
    schema = schema_of_node(node)
    return schema is not None and any(
        "Tensor" in str(kind) for kind in (*(argument.type for argument in schema.arguments), *schema.returns)
    )


def reads_metadata(node: Node) -> bool:
    """Whether a node only asks what a tensor or a list is like, as every device can tell without its elements."""
    traits = record_of(node.qualified_op).traits
    return Trait.READS_METADATA_ONLY in traits and Trait.READS_STRIDES not in traits


def has_side_effects(node: Node) -> bool:
    """Whether the node does something that can be seen outside the graph, beside writing to its inputs."""
    if node.blocks:
        return any(has_side_effects(inner) for block in node.blocks for inner in block.nodes)
    return has_trait(node.qualified_op, Trait.TOUCHES_WORLD)


def is_pure(node: Node) -> bool:
    """Whether the node only computes its outputs from its inputs: no writes, randomness, side effects or blocks.

    ``prim::GetAttr`` is not pure: an attribute may be assigned to between two reads.
    """
    if node.blocks or node.op == "prim::GetAttr":
        return False
    return not (is_random(node) or has_side_effects(node) or written_inputs(node))


def is_permitted(node: Node) -> bool:
    """Whether a node's operator touches nothing but its arguments; see :mod:`mobopt.ops.permitted`."""
    return not (refusal_of_language(node.op) if schema_of_node(node) is None else refusal(node.qualified_op))


def holds_tensors(kind: Type) -> bool:
    """Whether a value of this type is a tensor, or a container that may hold one."""
    if isinstance(kind, (ListType, OptionalType)):
        return holds_tensors(kind.element)
    if isinstance(kind, DictType):
        return holds_tensors(kind.value) or holds_tensors(kind.key)
    if isinstance(kind, TupleType):
        return any(holds_tensors(element) for element in kind.elements)
    return kind in (TENSOR, ANY)
