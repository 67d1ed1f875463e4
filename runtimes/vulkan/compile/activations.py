"""Finds activation functions that a model wrote in steps, so that products compute them before they store.

Which function steps are is asked of the steps themselves: they are computed in float64 at some numbers, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, make_instead
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.cpu.kernels import kernel_in_line
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

_MOST_STEPS = 12
"""Of a function, from its argument to its value."""
_MOST_READERS = 6
"""How far from the operator in its middle its value is looked for."""
_LOSS = 2e-7
"""Of the largest value: constants of models have the digits of float32."""


@dataclass(frozen=True)
class _Activation:
    """A function of one tensor."""

    operator: str
    middle: str
    """What each way to write it has somewhere."""
    arguments: tuple[object, ...]
    compute: Callable[[Tensor], Tensor]


_ACTIVATIONS = (
    _Activation("aten::gelu", "erf", ("none",), functional.gelu),
    _Activation("aten::gelu", "tanh", ("tanh",), lambda x: functional.gelu(x, approximate="tanh")),
    _Activation("aten::silu", "sigmoid", (), functional.silu),
    _Activation("aten::mish", "tanh", (), functional.mish),
    _Activation("aten::hardswish", "clamp", (), functional.hardswish),
    _Activation("aten::hardswish", "relu6", (), functional.hardswish),
    _Activation("aten::hardswish", "hardtanh", (), functional.hardswish),
    _Activation("aten::hardswish", "hardsigmoid", (), functional.hardswish),
)
_MIDDLES = frozenset(f"aten::{activation.middle}" for activation in _ACTIVATIONS)


def find_activations(graph: Graph) -> None:
    """Put one operator in the place of steps that are an activation function, where nothing else reads them.

    Given:
        %s : Float(2, 8) = aten::sigmoid(%x)
        %y : Float(2, 8) = aten::mul.Tensor(%x, %s)
    Result:
        %y : Float(2, 8) = aten::silu(%x)
    """
    samples = None
    for node in list(graph.block.nodes):
        if node.block is None or node.op not in _MIDDLES or node.output.dtype != torch.float32:
            continue
        if samples is None:
            samples = _samples()
        found = _found(node, samples)
        if found is not None:
            _replace(*found)


def _samples() -> Tensor:
    """Where functions are compared: where they bend, and up to the largest floats, where steps may have bounds."""
    large = 10.0 ** torch.arange(1, 38.5, 0.5, dtype=torch.float64)
    return torch.cat([torch.linspace(-8, 8, 101, dtype=torch.float64), large, -large])


def _found(middle: Node, samples: Tensor) -> tuple[Value, Node, _Activation] | None:
    """The argument of the function that an operator is in the middle of, its last step, and what it is."""
    functions = [activation for activation in _ACTIVATIONS if middle.op == f"aten::{activation.middle}"]
    arguments = [value for value in dict.fromkeys(_behind(middle)) if len(value.uses) > 1]
    for last in _readers(middle):
        for argument in arguments:
            if argument.sizes != last.output.sizes:
                continue
            values = _computed(last.output, argument, samples, [_MOST_STEPS])
            for activation in functions if values is not None else ():
                if _is_near(values, activation.compute(samples)):
                    return argument, last, activation
    return None


def _is_near(values: Tensor | None, exact: Tensor) -> bool:
    return values is not None and bool(((values - exact).abs() <= _LOSS * (1 + exact.abs())).all())


def _behind(node: Node, depth: int = _MOST_READERS) -> Iterator[Value]:
    """What a step is computed of, by element-wise steps."""
    for value in node.inputs:
        yield value
        maker = value.producer
        if maker is not None and depth and has_trait(maker.qualified_op, Trait.ELEMENTWISE):
            yield from _behind(maker, depth - 1)


def _readers(node: Node) -> Iterator[Node]:
    """The steps after one, each of which is all that reads the one before."""
    for _ in range(_MOST_READERS):
        readers = {user for user, _ in node.output.uses}
        if len(readers) != 1:
            return
        (node,) = readers
        if len(node.outputs) != 1 or not has_trait(node.qualified_op, Trait.ELEMENTWISE):
            return
        yield node


def _computed(value: Value, argument: Value, samples: Tensor, steps: list[int]) -> Tensor | None:
    """What steps make of numbers in the place of ``argument``; None if they need anything else, or are many."""
    if value is argument:
        return samples
    if value.elements is not None:
        return value.elements.double().reshape(()) if value.numel == 1 else None
    node = value.producer
    steps[0] -= 1
    if node is None or steps[0] < 0 or len(node.outputs) != 1 or node.blocks:
        return None
    if not has_trait(node.qualified_op, Trait.ELEMENTWISE) or value.dtype != torch.float32:
        return None
    given = []
    for operand in node.args:
        made = _computed(operand, argument, samples, steps) if isinstance(operand, Value) else operand
        if made is None and operand is not None:
            return None
        given.append(made)
    result = kernel_in_line(node.qualified_op)(*given)
    return result if isinstance(result, Tensor) and result.is_floating_point() else None


def _replace(argument: Value, last: Node, activation: _Activation) -> None:
    call = Node.call(activation.operator, (argument, *activation.arguments), [Value("", last.output.type)], last.origin)
    if why_unsupported(call) is not None:
        call.destroy()
        return
    make_instead(call, last)
    destroy_unread(last)
