"""What the rules of every backend's packed operators share: what a rule is, and the nodes that it puts in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.types import TENSOR, ClassType, Type
from mobopt.ops.contexts import PackedContext
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor, replace_node, tensor_key


class DerivedTensors:
    """Tensors made of constants, each made once for a program, so that methods that share a layer share its context."""

    def __init__(self) -> None:
        self._contiguous: dict[tuple[object, ...] | None, tuple[torch.Tensor, torch.Tensor]] = {}
        """Contiguous copies by what they were made of, which is kept alive with them."""
        self._filled: dict[tuple[tuple[int, ...], float], torch.Tensor] = {}

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself if it is contiguous, or a copy that is."""
        if tensor.is_contiguous():
            return tensor
        return self._contiguous.setdefault(tensor_key(tensor), (tensor, tensor.contiguous()))[1]

    def filled(self, sizes: Sequence[int], number: float) -> torch.Tensor:
        """A float32 tensor of one number."""
        return self._filled.setdefault((tuple(sizes), number), torch.full(tuple(sizes), number))


@dataclass(frozen=True)
class Operators:
    """The pair of operators that stands for a layer, and the class of what the first gives the second."""

    create: str
    run: str
    context: type[PackedContext]


@dataclass(frozen=True)
class Packer:
    """Writes the two nodes that stand for a layer."""

    graph: Graph
    derived: DerivedTensors

    def contiguous(self, value: Value) -> Value:
        """A constant tensor, or None, as the kernels that pack it read it."""
        if not is_constant_tensor(value) or value.constant.is_contiguous():
            return value
        return self.graph.constant(self.derived.contiguous(value.constant), name=value.name)

    def filled(self, sizes: Sequence[int], number: float, name: str) -> Value:
        """A constant tensor of one number, for a context that takes no None."""
        return self.graph.constant(self.derived.filled(sizes, number), name=name)

    def pack(self, node: Node, operators: Operators, constants: Sequence[Value], inputs: Sequence[Value]) -> None:
        """Put packing and run in the place of a layer.

        Args:
            node: the layer.
            operators: what packs and what runs.
            constants: arguments of the packing operator.
            inputs: arguments of the run, without the context.
        """
        context = ClassType(operators.context.qualified_name)
        packed = insert_node(self.graph, node, operators.create, constants, type=context)
        types: list[Type] = [TENSOR] * len(node.outputs)
        replace_node(self.graph, node, operators.run, [*inputs, packed], types=types)


Rewrite = Callable[[Packer, Node], None]


@dataclass(frozen=True)
class Rule:
    """How one operator is packed."""

    refusal: Callable[[Node, int | None], str]
    """Why a node stays as it is, by the rank of its first input if that is known; empty if it is packed."""
    rewrite: Rewrite
    since: str = "1.13"
    """The first release of PyTorch whose runtime has the operators."""


def _layer_refusal(node: Node) -> str:
    """Why a convolution or linear layer (x, weight, bias, settings) is not packed."""
    weight, bias = node.inputs[1:3]
    if not is_constant_tensor(weight) or not bias.is_constant:
        return "its weight or bias is not constant"
    if not all(value.is_constant for value in node.inputs[3:]):
        return "its stride, padding, dilation or groups are not constant"
    return dtype_refusal(weight, bias)


def convolution_refusal(node: Node, rank: int | None) -> str:
    """Why a convolution is not packed."""
    reason = _layer_refusal(node)
    if not reason and rank not in (None, node.inputs[1].constant.dim()):
        return "its input has no batch dimension"
    return reason


def linear_refusal(node: Node, rank: int | None) -> str:
    """Why a linear layer is not packed."""
    reason = _layer_refusal(node)
    return reason or ("" if node.inputs[1].constant.dim() == 2 else "its weight is not a matrix")


def dtype_refusal(*values: Value) -> str:
    """Why constant tensors can't be in a context; there may be None among them."""
    for value in values:
        if is_constant_tensor(value) and value.constant.dtype != torch.float32:
            return f"its weight is {str(value.constant.dtype).removeprefix('torch.')}, and contexts hold float32"
    return ""


def pack_conv2d(operators: Operators) -> Rewrite:
    """Rewrite a convolution: weight, bias, stride, padding, dilation, groups, and a range that is open."""

    def rewrite(packer: Packer, node: Node) -> None:
        x, weight, bias, *settings = node.inputs
        none = packer.graph.constant(None)
        packer.pack(node, operators, [packer.contiguous(weight), bias, *settings, none, none], [x])

    return rewrite


def pack_conv_transpose2d(operators: Operators) -> Rewrite:
    """Rewrite a transposed convolution, whose settings come in another order."""

    def rewrite(packer: Packer, node: Node) -> None:
        x, weight, bias = node.inputs[:3]
        settings = [argument(node, name) for name in ("stride", "padding", "output_padding", "dilation", "groups")]
        none = packer.graph.constant(None)
        packer.pack(node, operators, [packer.contiguous(weight), bias, *settings, none, none], [x])

    return rewrite


def pack_linear(operators: Operators) -> Rewrite:
    """Rewrite a linear layer: weight (out, in), bias, and a range that is open.

    Metal's context views its weight as (out, in, 1, 1), which takes a contiguous one.
    """

    def rewrite(packer: Packer, node: Node) -> None:
        x, weight, bias = node.inputs
        none = packer.graph.constant(None)
        packer.pack(node, operators, [packer.contiguous(weight), bias, none, none], [x])

    return rewrite
