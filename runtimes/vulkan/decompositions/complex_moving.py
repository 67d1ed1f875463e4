"""Operators that do to the parts of complex numbers what they do to real ones: they move elements, or are linear with
real factors."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import INT, ListType
from mobopt.ops.records import Trait, record_of
from mobopt.runtimes.cpu.kernels import scalar_type
from mobopt.runtimes.vulkan.decompositions.complex_numbers import joined, pair_of
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes_others, has_complex

_ELEMENTS = ("self", "other", "tensors", "value", "values", "src", "source")
"""Names of arguments that elements of the result come from, as schemas of such operators have them; dimensions of
``movedim`` have one of them too."""

_APART = frozenset({Trait.MOVES_ELEMENTS, Trait.IDENTITY, Trait.PADDING, Trait.CONCATENATION, Trait.BY_PARTS})


@decomposes_others
def by_parts(build: NodeBuilder, node: Node) -> list[Value] | None:
    """The operator for the real parts, and for the imaginary ones.

    Numbers among the arguments that become elements have parts too; real tensors beside complex ones have zeros.
    """
    if not has_complex(node) or record_of(node.qualified_op).traits.isdisjoint(_APART):
        return None
    if any(value.dtype != torch.complex64 for value in node.outputs):
        return None
    pairs = {value: pair_of(build, value) for value in node.inputs if value.dtype.is_complex}
    is_real = all(pair.imaginary is None for pair in pairs.values()) and not _has_imaginary_numbers(node)
    real = build.all(node.qualified_op, *_arguments(build, node, lambda v: pairs[v].real, imaginary=False))
    if is_real:
        return [joined(build, part, None) for part in real]

    def imaginary_of(value: Value) -> Value:
        part = pairs[value].imaginary
        return build("aten::zeros_like", pairs[value].real) if part is None else part

    imaginary = build.all(node.qualified_op, *_arguments(build, node, imaginary_of, imaginary=True))
    return [joined(build, *parts) for parts in zip(real, imaginary, strict=True)]


def _has_imaginary_numbers(node: Node) -> bool:
    return any(number.imag != 0 for number in leaves_of(tuple(node.args), complex))


def _arguments(build: NodeBuilder, node: Node, part_of: Any, *, imaginary: bool) -> list[Any]:
    """The arguments of the call for one of the parts."""

    def converted(value: Value) -> Value:
        if value.dtype.is_complex:
            part: Value = part_of(value)
            return part
        return build("aten::zeros_like", value) if imaginary else value

    given: list[Any] = []
    for argument, value in zip(schema_of(node.qualified_op).arguments, node.args, strict=True):
        if argument.name == "dtype" and scalar_type(value) == torch.complex64:
            given.append(torch.float32)
        elif argument.name not in _ELEMENTS or argument.type in (INT, ListType(INT)):
            given.append(value)
        elif isinstance(value, (int, float, complex)):
            given.append(complex(value).imag if imaginary else complex(value).real)
        else:
            given.append(map_leaves(value, Value, converted))
    return given
