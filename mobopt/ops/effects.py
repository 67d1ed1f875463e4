"""What a node does besides computing its outputs: writes, randomness, side effects.

Everything follows from the alias annotations of operator schemas, and from the short lists here of what they leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mobopt.ir import Node, Value
from mobopt.ir.schemas import Schema, schema_of, schemas_of
from mobopt.ir.types import ANY, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.permitted import refusal, refusal_of_language

_DRAWN_IN_PLACE = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "random", "uniform")
_DROPOUTS = ("alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout", "rrelu", "rrelu_with_noise")

RANDOM_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        *_DRAWN_IN_PLACE,
        *(f"{name}_" for name in _DRAWN_IN_PLACE),
        *_DROPOUTS,
        *(f"{name}_" for name in _DROPOUTS),
        *("_fused_dropout", "native_dropout", "normal_functional", "rrelu_with_noise_functional"),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
        *("_sample_dirichlet", "_standard_gamma", "binomial", "multinomial", "poisson"),
        *("gru", "lstm", "rnn_relu", "rnn_tanh", "scaled_dot_product_attention"),
        *("_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu"),
    )
)
"""Operators whose result differs from call to call; some only while training, see :func:`draws_numbers`."""

_UNDEFINED_CONTENTS = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
_SIDE_EFFECTS = frozenset(
    {
        "prim::RaiseException",
        "prim::SetAttr",
        "prim::Print",
        "aten::warn",
        "aten::set_grad_enabled",
        "aten::_assert_async",
        "aten::save",
        "aten::manual_seed",
        "prim::Enter",
        "prim::Exit",
        "prim::AddStatValue",
    }
)
_PURE_LANGUAGE = frozenset(
    f"prim::{name}"
    for name in (
        "DictConstruct",
        "GetAttr",
        "IfThenElse",
        "ListConstruct",
        "ListUnpack",
        "NumToTensor",
        "TupleConstruct",
        "TupleIndex",
        "TupleSlice",
        "TupleUnpack",
        "Uninitialized",
        "abs",
        "device",
        "dtype",
        "is_cpu",
        "is_cuda",
        "is_nested",
        "is_quantized",
        "is_vulkan",
        "isinstance",
        "itemsize",
        "layout",
        "max",
        "min",
        "requires_grad",
        "shape",
        "tolist",
        "type",
        "unchecked_cast",
        "unchecked_unwrap_optional",
    )
)


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
    if node.op in _UNDEFINED_CONTENTS:
        return True
    if node.op not in RANDOM_OPERATORS:
        return False
    names = [argument.name for argument in schema_of(node.qualified_op).arguments]
    given = zip(names, node.inputs, strict=False)
    return draws_numbers(node.qualified_op, {name: value.constant for name, value in given if value.is_constant})


def draws_numbers(op: str, known: Mapping[str, Any]) -> bool:
    """Whether a qualified operator draws random numbers; ``known`` has its arguments by name, as far as they are known.

    Dropout draws none outside training, nor do layers that drop nothing.
    """
    if op.partition(".")[0] not in RANDOM_OPERATORS:
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


def has_side_effects(node: Node) -> bool:
    """Whether the node does something that can be seen outside the graph, beside writing to its inputs."""
    if node.op in _SIDE_EFFECTS:
        return True
    if node.blocks:
        return any(has_side_effects(inner) for block in node.blocks for inner in block.nodes)
    return node.op.startswith("prim::") and node.op not in _PURE_LANGUAGE and schema_of_node(node) is None


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
