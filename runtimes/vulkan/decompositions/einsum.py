"""Sums of products by letters, as products of matrices, two operands at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes, decomposes_complex

Label: TypeAlias = "str | int"
"""A letter, or, negative, a dimension that an ellipsis stands for, counted from the end."""


@dataclass(frozen=True)
class _Operand:
    """A tensor whose dimensions have labels, each once."""

    tensor: Value
    labels: tuple[Label, ...]

    def size(self, label: Label) -> int:
        """The size of a dimension; 1 where there is none."""
        return self.tensor.sizes[self.labels.index(label)] if label in self.labels else 1

    def sizes(self, labels: Sequence[Label]) -> list[int]:
        """The sizes of several dimensions."""
        return [self.size(label) for label in labels]


@decomposes("aten::einsum")
@decomposes_complex("aten::einsum")
def einsum(build: NodeBuilder, node: Node) -> Value | None:
    """By torch's rules: letters, one ellipsis for each operand, dimensions of size 1 that are expanded."""
    tensors: Sequence[Value] = node["tensors"]
    inputs, arrow, result = node["equation"].replace(" ", "").partition("->")
    subscripts = inputs.split(",")
    floating = all(tensor.dtype.is_floating_point or tensor.dtype.is_complex for tensor in tensors)
    if len(subscripts) != len(tensors) or not floating:  # sums of integers get other dtypes
        return None
    operands = [
        _without_repeats(build, tensor, _labels(text, tensor.rank))
        for text, tensor in zip(subscripts, tensors, strict=True)
    ]
    ellipsis = sorted({label for operand in operands for label in operand.labels if isinstance(label, int)})
    if arrow:
        spelled = _labels(result, sum(character.isalpha() for character in result) + len(ellipsis))
    else:
        letters = inputs.replace(",", "").replace(".", "")
        spelled = (*ellipsis, *sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    path = None if node["path"] is None else list(node["path"])
    while len(operands) > 1:
        first, second = (0, 1) if path is None else sorted((path.pop(0), path.pop(0)))
        b, a = operands.pop(second), operands.pop(first)
        wanted = {*spelled, *(label for operand in operands for label in operand.labels)}
        joined = _joined(build, a, b, wanted)
        operands = [joined, *operands] if path is None else [*operands, joined]
    (last,) = operands
    last = _summed(build, last, spelled)
    return _arranged(build, last, spelled, last.sizes(spelled))


def _labels(text: str, rank: int) -> tuple[Label, ...]:
    """The labels of a subscript of so many dimensions."""
    before, dots, after = text.partition("...")
    between = rank - len(before) - len(after) if dots else 0
    return (*before, *range(-between, 0), *after)


def _without_repeats(build: NodeBuilder, tensor: Value, labels: Sequence[Label]) -> _Operand:
    """An operand; of a letter that is there twice, the diagonal."""
    names = list(labels)
    for label in dict.fromkeys(labels):
        while names.count(label) > 1:
            first = names.index(label)
            second = names.index(label, first + 1)
            tensor = build("aten::diagonal", tensor, 0, first, second)
            names = [*names[:first], *names[first + 1 : second], *names[second + 1 :], label]
    return _Operand(tensor, tuple(names))


def _summed(build: NodeBuilder, operand: _Operand, wanted: Collection[Label]) -> _Operand:
    """Without the dimensions that nobody wants."""
    tensor, labels = operand.tensor, operand.labels
    unwanted = [label for label in labels if label not in wanted]
    dims = [labels.index(label) for label in unwanted if operand.size(label) != 1]
    if dims:
        tensor = build("aten::sum.dim_IntList", tensor, dims, True, dtype=tensor.dtype)
    kept = tuple(label for label in labels if label in wanted)
    return _Operand(build("aten::reshape", tensor, operand.sizes(kept)) if unwanted else tensor, kept)


def _arranged(build: NodeBuilder, operand: _Operand, labels: Sequence[Label], shape: Sequence[int]) -> Value:
    """An operand's tensor, its dimensions in the order of ``labels`` (all of its own are there), as another shape."""
    order = [operand.labels.index(label) for label in labels if label in operand.labels]
    tensor = operand.tensor
    if order != sorted(order):
        tensor = build("aten::permute", tensor, order)
    return tensor if tensor.sizes == tuple(shape) else build("aten::reshape", tensor, list(shape))


def _joined(build: NodeBuilder, a: _Operand, b: _Operand, wanted: Collection[Label]) -> _Operand:
    """The product of two operands, summed over what only they have and nobody wants."""
    a, b = (_summed(build, one, {*wanted, *other.labels}) for one, other in ((a, b), (b, a)))
    sizes = {label: max(a.size(label), b.size(label), key=_expanded) for label in (*a.labels, *b.labels)}
    a, b = (_summed(build, one, [label for label in one.labels if one.size(label) == sizes[label]]) for one in (a, b))
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in wanted]
    inner = [label for label in shared if label not in wanted]
    rows = [label for label in a.labels if label not in shared]
    columns = [label for label in b.labels if label not in shared]
    labels = (*batch, *rows, *columns)
    made = [sizes[label] for label in labels]
    if not inner:
        factors = (_arranged(build, one, labels, one.sizes(labels)) for one in (a, b))
        return _Operand(build("aten::mul.Tensor", *factors), labels)
    count, m, k, n = (math.prod(sizes[label] for label in group) for group in (batch, rows, inner, columns))
    lead = (count,) if batch else ()
    left = _arranged(build, a, (*batch, *rows, *inner), (*lead, m, k))
    right = _arranged(build, b, (*batch, *inner, *columns), (*lead, k, n))
    product = build("aten::bmm" if batch else "aten::mm", left, right)
    return _Operand(product if product.sizes == tuple(made) else build("aten::reshape", product, made), labels)


def _expanded(size: int) -> tuple[bool, int]:
    """Orders two sizes so that the larger is what both are expanded to: 1 gives way to others, to 0 too."""
    return (size != 1, size)
