"""One record for each operator: traits that hold for every call, and the rules of what it gives.

:func:`record_of` is the one place to ask what kind of operator a name stands for. What is written down, by family, is
what schemas do not say; a record adds what the schema says (writes, shared memory) and what follows from both. An
operator that is not written down has a record of its schema, and of torch's own tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from mobopt.ir.schemas import Schema, known_schema, schemas_of
from mobopt.ir.types import TENSOR, ListType, OptionalType, Type
from mobopt.ops.records.creation import CREATION
from mobopt.ops.records.kinds import KINDS, TAKEN
from mobopt.ops.records.language import LANGUAGE
from mobopt.ops.records.layers import LAYERS
from mobopt.ops.records.moving import MOVING
from mobopt.ops.records.pointwise import POINTWISE
from mobopt.ops.records.record import Like, OperatorRecord, Trait, joined
from mobopt.ops.records.reducing import REDUCING

__all__ = [
    "WRITTEN_DOWN",
    "Like",
    "OperatorRecord",
    "Trait",
    "functional_name",
    "functional_schema",
    "has_trait",
    "is_in_place",
    "is_refused",
    "operators_with",
    "record_of",
]

WRITTEN_DOWN = joined([POINTWISE, MOVING, LAYERS, REDUCING, CREATION, LANGUAGE])
"""By name, or by name with overload where overloads are different operators."""

_IMPLIED = {
    Trait.IDENTITY: (Trait.ELEMENTWISE, Trait.MOVES_ELEMENTS),
    Trait.ELEMENTWISE: (Trait.COMPUTES,),
    Trait.HANDS_BACK: (Trait.VIEW,),
}
_OF_ANYTHING = frozenset(
    {
        Trait.COMPUTES,
        Trait.TOUCHES_WORLD,
        Trait.UNCHECKED,
        Trait.HANDS_BACK,
        Trait.VIEW,
        Trait.WRITES,
        Trait.FILLS,
        Trait.CONSTRUCTS,
        Trait.COMPARES_OBJECTS,
        Trait.READS_METADATA_ONLY,
        Trait.READS_PLACE,
        Trait.RANDOM,
        Trait.UNDEFINED,
    }
)
"""Traits that do not speak of tensors alone."""
_SIGNS_IN_PLACE = {f"aten::__i{name}__": f"aten::__{name}__" for name in ("and", "or", "xor", "lshift", "rshift")}
_FROM_TAGS = {
    torch.Tag.nondeterministic_seeded: Trait.RANDOM,
    torch.Tag.dynamic_output_shape: Trait.SIZES_BY_ELEMENTS,
    torch.Tag.data_dependent_output: Trait.VALUE_BY_ELEMENTS,
}


@cache
def record_of(name: str) -> OperatorRecord:
    """The record of an operator.

    Args:
        name: qualified name. Without the overload it stands for what all overloads have in common.
    """
    schema = known_schema(name)
    found = _written_down(name)
    written = OperatorRecord(traits=_from_tags(name)) if found is None else found
    traits = written.traits
    for trait, more in _IMPLIED.items():
        traits = traits.union(more) if trait in traits else traits
    if schema is None and found is None and name.startswith("prim::"):
        traits = traits | {Trait.TOUCHES_WORLD}
    names = [name, name.partition(".")[0]]
    if is_in_place(name):
        names += [functional_name(item) for item in names]
    traits = traits | {KINDS[item] for item in names if item in KINDS}
    record = replace(written, name=name, schema=schema, traits=traits)
    return record if schema is None else _with_schema(record, schema)


def has_trait(name: str, trait: Trait) -> bool:
    """Whether an operator, by qualified name, has a trait."""
    return trait in record_of(name).traits


def is_refused(name: str, args: Sequence[Any], dtypes: Sequence[torch.dtype]) -> bool:
    """Whether torch's CPU kernel takes no such numbers for the first tensor of a call.

    Args:
        name: qualified name.
        args: in the schema's order.
        dtypes: of the tensors, the first one first.
    """
    record, dtype = record_of(name), dtypes[0]
    if record.schema is None or dtype.is_floating_point or dtype.is_complex:
        return False
    if Trait.ALIKE in record.traits:
        return any(other.is_floating_point for other in dtypes)
    kind = next((trait for trait in TAKEN if trait in record.traits), None)
    if kind is None or dtype in TAKEN[kind]:
        return False
    told = (value for item, value in zip(record.schema.arguments, args, strict=False) if item.name == "dtype")
    return all(value is None for value in told)


def operators_with(trait: Trait) -> list[str]:
    """The names of the operators that a trait is written down of."""
    return [name for name, record in WRITTEN_DOWN.items() if trait in record.traits]


def _written_down(name: str) -> OperatorRecord | None:
    """What is written down of an operator: of this overload, or else of all; for an in-place form, or else of the form
    that it is called after."""
    names = [name, name.partition(".")[0]]
    if is_in_place(name) and not name.startswith("prim::"):
        names += [functional_name(item) for item in names]
    return next((WRITTEN_DOWN[item] for item in names if item in WRITTEN_DOWN), None)


def is_in_place(name: str) -> bool:
    """Whether an operator writes into its first argument, by torch's naming rules."""
    plain = name.partition(".")[0]
    return plain in _SIGNS_IN_PLACE or (plain.endswith("_") and not plain.endswith("__"))


def functional_name(name: str) -> str:
    """``aten::add.Tensor`` of ``aten::add_.Tensor``, ``aten::__and__`` of ``aten::__iand__``; others as they are."""
    plain, dot, overload = name.partition(".")
    if plain in _SIGNS_IN_PLACE:
        return f"{_SIGNS_IN_PLACE[plain]}{dot}{overload}"
    return f"{plain[:-1]}{dot}{overload}" if is_in_place(name) else name


def functional_schema(schema: Schema) -> Schema | None:
    """The operator that computes what another writes: arguments of the same types, but those to write to by name.

    Its overload may be called otherwise: that of ``aten::pow_.Scalar`` is ``aten::pow.Tensor_Scalar``.
    """
    taken = [item.type for item in schema.arguments if not (item.is_written and item.keyword_only)]
    overloads = schemas_of(record_of(schema.qualified_name).functional or functional_name(schema.name))
    for other in sorted(overloads, key=lambda other: other.overload != schema.overload):
        if [item.type for item in other.arguments] == taken and not other.is_mutating:
            return other
    return None


def _from_tags(name: str) -> frozenset[Trait]:
    """What torch itself says of an operator."""
    plain, _, overload = name.partition(".")
    namespace, _, short = plain.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), short, None)
    tags = getattr(getattr(packet, overload or "default", None), "tags", ())
    return frozenset(_FROM_TAGS[tag] for tag in tags if tag in _FROM_TAGS)


def _with_schema(record: OperatorRecord, schema: Schema) -> OperatorRecord:
    """The record with what follows from the schema, and without what does not hold for this overload."""
    traits = set(record.traits)
    inputs = [argument for argument in schema.arguments if not (argument.is_written and argument.keyword_only)]
    kinds = [argument.type for argument in inputs]
    if not schema.is_variadic and not any("Tensor" in str(kind) for kind in (*kinds, *schema.returns)):
        record = replace(record, rank=None, spatial=None, channels=None, contracted="")
        traits &= _OF_ANYTHING
    if not all(kind == TENSOR for kind in schema.returns) or any(map(_is_list_of_tensors, kinds)):
        traits.discard(Trait.ELEMENTWISE)
    if schema.is_mutating:
        traits.add(Trait.WRITES)
    elif not schema.returns and not schema.is_variadic:
        traits.add(Trait.TOUCHES_WORLD)
    if any(argument.aliases and not argument.is_written for argument in schema.arguments):
        traits.add(Trait.VIEW)
    operands = [index for index, kind in enumerate(kinds) if _plain(kind) == TENSOR]
    if Trait.ELEMENTWISE in traits and (operands == [0] or is_in_place(record.name)):
        traits.add(Trait.KEEPS_SIZES)
    return _with_rules(replace(record, traits=frozenset(traits)), [argument.name for argument in inputs])


def _with_rules(record: OperatorRecord, names: list[str]) -> OperatorRecord:
    """The record with the rules that follow from its traits, and without those that need arguments it lacks."""
    rank, channels = record.rank, record.channels
    if isinstance(rank, str) and rank not in names:
        rank = None
    for trait, like in ((Trait.KEEPS_SIZES, Like.FIRST), (Trait.ELEMENTWISE, Like.OPERANDS)):
        if trait in record.traits:
            rank, channels = (like if rank is None else rank), channels or like
    return replace(record, rank=rank, channels=channels)


def _is_list_of_tensors(kind: Type) -> bool:
    return isinstance(kind, ListType) and _plain(kind.element) == TENSOR


def _plain(kind: Type) -> Type:
    return kind.element if isinstance(kind, OptionalType) else kind
