"""How the runtimes of phones write layers of integers: QNNPACK's operators for CPUs, those of Vulkan for GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from mobopt.ir import Node, Value
from mobopt.ops.contexts import PackedContext, QuantizedConv2dContext, QuantizedLinearContext
from mobopt.ops.quantized import Quantized, quantized
from mobopt.ops.quantized_contexts import QuantizedConv2d, QuantizedLinear
from mobopt.passes.quantize_dynamic import channel_weight
from mobopt.passes.rewriting import argument


class QuantizedForm(ABC):
    """Operators on quantised tensors, by qualified names."""

    layers: ClassVar[dict[str, str]]
    """What stands for convolutions and linear layers."""
    sum: ClassVar[str]
    cat: ClassVar[str | None]

    @abstractmethod
    def rounded(self, node: Node) -> Quantized:
        """The weight of a layer, with as many scales as the kernel takes."""

    @abstractmethod
    def packed(self, node: Node, stored: Quantized) -> PackedContext:
        """What the operator that stands for a layer reads."""

    @abstractmethod
    def arguments(self, x: Value, packed: Value, steps: Sequence[Value]) -> list[Value]:
        """Those of the operator that stands for a layer."""


class Qnnpack(QuantizedForm):
    """For phones' CPUs, which every release has."""

    layers: ClassVar[dict[str, str]] = {"aten::conv2d": "quantized::conv2d.new", "aten::linear": "quantized::linear"}
    sum: ClassVar[str] = "quantized::add"
    cat: ClassVar[str | None] = "quantized::cat"

    def rounded(self, node: Node) -> Quantized:
        """A scale for each output channel."""
        return _by_channel(node)

    def packed(self, node: Node, stored: Quantized) -> PackedContext:
        """Of ``torch.classes.quantized``."""
        weight, bias = channel_weight(stored), argument(node, "bias").constant
        if node.op == "aten::linear":
            return QuantizedLinear(weight, bias)
        stride, padding, dilation, groups = _settings(node)
        return QuantizedConv2d(weight, bias, stride, padding, dilation, [0, 0], groups, False)

    def arguments(self, x: Value, packed: Value, steps: Sequence[Value]) -> list[Value]:
        """Steps come last."""
        return [x, packed, *steps]


class Vulkan(QuantizedForm):
    """For phones' GPUs."""

    layers: ClassVar[dict[str, str]] = {
        "aten::conv2d": "vulkan_prepack::run_qconv2d_context",
        "aten::conv_transpose2d.input": "vulkan_prepack::run_qconv2d_context",
        "aten::linear": "vulkan_prepack::run_qlinear_context",
    }
    sum: ClassVar[str] = "vulkan_quantized::add"
    cat: ClassVar[str | None] = None

    def rounded(self, node: Node) -> Quantized:
        """Linear layers take one scale; transposed convolutions, which have no groups, have their outputs second."""
        sizes = tuple(argument(node, "weight").constant.shape)
        if node.op == "aten::conv2d":
            return _by_channel(node)
        blocks = sizes if node.op == "aten::linear" else (sizes[0], 1, *sizes[2:])
        return quantized(argument(node, "weight").constant, 8, blocks)

    def packed(self, node: Node, stored: Quantized) -> PackedContext:
        """Of ``torch.classes.vulkan``, with a bias, which kernels read unasked."""
        is_transposed = node.op == "aten::conv_transpose2d"
        weight, bias = channel_weight(stored), argument(node, "bias").constant
        if bias is None:
            bias = torch.zeros(stored.sizes[1 if is_transposed else 0])
        if node.op == "aten::linear":
            return QuantizedLinearContext(replace(weight, axis=None).transposed(), bias)
        stride, padding, dilation, groups = _settings(node)
        if is_transposed:
            weight, added = replace(weight, axis=1), list(argument(node, "output_padding").constant)
        else:
            added = [0]
        settings = (stride, padding, dilation, is_transposed, True, added, groups)
        return QuantizedConv2dContext(weight, bias, *settings, None, None)

    def arguments(self, x: Value, packed: Value, steps: Sequence[Value]) -> list[Value]:
        """The context comes last."""
        return [x, *steps, packed]


def _by_channel(node: Node) -> Quantized:
    weight = argument(node, "weight").constant
    return quantized(weight, 8, (1, *weight.shape[1:]))


def _settings(node: Node) -> tuple[Any, ...]:
    stride, padding, dilation = (list(argument(node, name).constant) for name in ("stride", "padding", "dilation"))
    return stride, padding, dilation, argument(node, "groups").constant
