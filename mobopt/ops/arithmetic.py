"""How much one call of an operator computes, by its record: all counts of arithmetic are made here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.schemas import argument_names
from mobopt.ops.effects import listed_items
from mobopt.ops.records import Like, Trait, record_of
from mobopt.ops.unpacked_calls import unpacked_call

Sizes = tuple[int, ...]

_NO_ARITHMETIC = frozenset(
    {Trait.MOVES_ELEMENTS, Trait.READS_METADATA_ONLY, Trait.IDENTITY, Trait.VIEW, Trait.IGNORES_ELEMENTS, Trait.PADDING}
)


@dataclass(frozen=True)
class OperatorCall:
    """A call, in whatever form a graph has it.

    Attributes:
        operator: qualified name.
        arguments: by name: Values, tensors, lists of them, or plain values.
        made: sizes of the results.
        sizes_of: of a Value or a tensor; of one that is not known, ``(0,)``.
    """

    operator: str
    arguments: Mapping[str, Any]
    made: Sequence[Sizes]
    sizes_of: Callable[[Any], Sizes]

    @property
    def elements_made(self) -> int:
        """Elements of all results."""
        return sum(map(math.prod, self.made))

    def sizes(self, name: str) -> Sizes:
        """Of an argument that is a tensor."""
        return self.sizes_of(self.arguments[name])


def multiply_adds(call: OperatorCall) -> int | None:
    """Of an operator that sums products: a convolution, a product of matrices, attention, a recurrent layer.

    Returns:
        None for all others. What lies in the padding of a convolution counts.
    """
    record, arguments = record_of(call.operator), call.arguments
    if "query" in arguments and "key" in arguments:  # attention: a product with the keys, and one with the values
        return 2 * math.prod(call.sizes("query")) * math.prod(call.sizes("key")[-2:-1])
    if "batch1" in arguments:  # products of matrices, which may be added up
        return math.prod(call.sizes("batch1")) * math.prod(call.sizes("batch2")[-1:])
    if "w_ih" in arguments:  # a cell of a recurrent layer
        rows = math.prod(call.sizes("input")[:-1])
        return rows * (math.prod(call.sizes("w_ih")) + math.prod(call.sizes("w_hh")))
    if record.contracted:
        return call.elements_made * math.prod(call.sizes(record.contracted)[-1:])
    if Trait.CONVOLUTION in record.traits:
        is_transposed = record.channels == Like.TRANSPOSED_WEIGHT or plain(arguments.get("transposed")) is True
        pixels = call.sizes("input") if is_transposed else call.made[0]
        return math.prod(pixels) * math.prod(call.sizes("weight")[1:])
    if Trait.RECURRENT in record.traits and "params" in arguments:
        steps = math.prod(call.sizes("input")[:-1])
        return steps * sum(math.prod(call.sizes_of(item)) for item in items_of(arguments["params"]))
    return None


def window_elements(call: OperatorCall) -> int | None:
    """Elements that a pooling operator looks at, in all of its windows together; None for all others."""
    if Trait.POOLING not in record_of(call.operator).traits:
        return None
    kernel = plain(call.arguments.get("kernel_size"))
    if kernel is None:  # the windows cover the input
        return math.prod(call.sizes(next(iter(call.arguments))))
    window: int = math.prod(kernel) if isinstance(kernel, (list, tuple)) else kernel
    return call.elements_made * window


def flops_of(node: Node) -> int:
    """Floating-point operations of a node of a straight line, or of all nodes in its body.

    A multiply-add counts two. Every other operator counts one for each element that it makes, or of the largest tensor
    that it reads if that has more, whatever its function costs; a pooling one for each element of its windows.
    """
    if node.blocks:
        return sum(flops_of(part) for part in node.blocks[0].nodes)
    operator, arguments = unpacked_call(node, {}) or (node.qualified_op, _named(node))
    call = OperatorCall(operator, arguments, [value.sizes for value in node.outputs], _sizes_in_line)
    found = multiply_adds(call)
    if found is not None:
        return 2 * found
    if _NO_ARITHMETIC & record_of(operator).traits:
        return 0
    read = max((value.numel for value in node.inputs), default=0)
    return window_elements(call) or max(call.elements_made, read)


def plain(value: Any) -> Any:
    """What an argument is if it is known, else None."""
    if isinstance(value, Value):
        return value.constant if value.is_constant else None
    return value


def items_of(value: Any) -> Iterable[Any]:
    """The tensors that an argument has: itself, or those of a list."""
    if isinstance(value, Value) and value.is_constant:
        value = value.constant if isinstance(value.constant, list) else value
    if isinstance(value, list):
        return value
    return (listed_items(value) or (value,)) if isinstance(value, Value) else (value,)


def _named(node: Node) -> dict[str, Any]:
    return dict(zip(argument_names(node.qualified_op), node.args, strict=False))


def _sizes_in_line(value: Any) -> Sizes:
    if isinstance(value, Value):
        return value.sizes
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (0,)
