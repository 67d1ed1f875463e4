"""What is measured: layers of networks, with weights of each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ops.quantized import DEQUANTIZE, quantized
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, StorageKind, aligned_channels, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan, constant_tensor
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel, TileKernel, choose_product_kernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    CPU,
    FEW_BITS,
    FRAGMENTS,
    HALVES,
    ROWS,
    SHARED,
    SPLIT,
    SPLIT_FRAGMENTS,
)
from mobopt.runtimes.vulkan.lowerings.registry import lower

Choose = Callable[[DeviceInfo, ProductShape, bool], ProductKernel]
_GROUP = 64
"""Elements along a row that share a scale, of weights of 4 bits; those of 8 bits have one for each output channel."""
_TAPS = 3


@dataclass(frozen=True)
class Layer:
    """A linear layer, or a convolution of a square image by 3 x 3 taps."""

    rows: int
    """Or pixels."""
    inner: int
    """Elements of a row, or channels of a pixel."""
    columns: int
    is_convolution: bool = False
    are_halves: bool = False
    bits: int = 0
    """Of weights that are integers, 8 or 4; else 0."""

    def __str__(self) -> str:
        kind = f", int{self.bits}" if self.bits else ", halves" if self.are_halves else ""
        if self.is_convolution:
            side = math.isqrt(self.rows)
            return f"3x3 of {side} x {side} x {self.inner} by {self.columns}{kind}"
        return f"{self.rows} x {self.inner} by {self.columns}{kind}"


def _linear(*sizes: tuple[int, int, int]) -> tuple[Layer, ...]:
    return tuple(Layer(*size) for size in sizes)


def _convolutions(*sizes: tuple[int, int, int]) -> tuple[Layer, ...]:
    """Of a side, and channels."""
    return tuple(Layer(side * side, inner, columns, is_convolution=True) for side, inner, columns in sizes)


def _halves(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(replace(layer, are_halves=True) for layer in layers)


def _of_bits(bits: int, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(replace(layer, bits=bits) for layer in layers)


LAYERS: Mapping[str, tuple[Layer, ...]] = {
    # Of MobileNetV2, EfficientNet and small transformers, narrow and wide.
    CPU: _linear(
        *((12544, 32, 16), (3136, 24, 144), (784, 192, 32), (784, 32, 192), (196, 384, 96), (196, 96, 576)),
        *((49, 960, 320), (49, 320, 1280), (7, 1280, 1000), (128, 384, 384), (197, 384, 1536), (3136, 576, 64)),
    ),
    # The same, odd sizes, and convolutions of ResNet18 and of a U-Net: products alone don't suit them.
    SHARED: (
        *_linear((12544, 32, 16), (3136, 24, 144), (784, 192, 32), (196, 96, 576), (49, 960, 320), (7, 1280, 1000)),
        *_linear((50, 301, 77), (197, 384, 1536), (512, 768, 768)),
        *_convolutions((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (37, 19, 45)),
    ),
    # Of ResNet50 and transformers.
    HALVES: _halves(
        (
            *_linear((197, 384, 1536), (128, 1536, 384), (784, 512, 128), (3136, 64, 256), (49, 2048, 512)),
            *_linear((512, 768, 2304), (67, 331, 135)),
            *_convolutions((56, 64, 64), (14, 256, 256), (7, 512, 512)),
        )
    ),
    SPLIT: (
        *_linear((128, 384, 1536), (512, 768, 2304), (512, 3072, 768), (784, 512, 128), (67, 331, 135)),
        *_convolutions((56, 64, 64), (28, 128, 128), (7, 512, 512)),
    ),
    # Of ResNets at batches of 1 and 8, a U-Net and transformers.
    FRAGMENTS: _halves(
        (
            *_linear((197, 384, 1536), (128, 1536, 384), (784, 512, 128), (3136, 64, 256), (49, 2048, 512)),
            *_linear((512, 768, 2304), (512, 3072, 768), (1568, 256, 1024)),
            *_convolutions((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (112, 48, 48)),
        )
    ),
    # Of the same in float32.
    SPLIT_FRAGMENTS: (
        *_linear((197, 384, 1536), (197, 1536, 384), (784, 512, 128), (3136, 64, 256), (49, 2048, 512)),
        *_linear((1568, 1024, 256)),
        *_convolutions((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512), (112, 48, 48), (28, 128, 32)),
    ),
    # Of decoders, for one token or a few.
    ROWS: (
        *_linear((1, 768, 2304), (1, 3072, 768), (1, 768, 16000), (4, 1024, 4096), (2, 301, 1003)),
        *_halves(_linear((1, 2048, 5632), (1, 768, 768))),
    ),
    FEW_BITS: (
        *_of_bits(4, _linear((1, 768, 768), (1, 5632, 2048), (1, 2048, 11264), (4, 1024, 4096))),
        *_of_bits(8, _linear((1, 768, 3072), (1, 2048, 16000), (3, 330, 1003))),
    ),
}
"""By family of kernels, those that it is measured on."""


def forced(kernel: ProductKernel) -> Choose:
    """Have a product computed by a kernel, whatever it is."""

    def choose(info: DeviceInfo, shape: ProductShape, texels: bool) -> ProductKernel:
        return replace(kernel, texels=texels) if isinstance(kernel, TileKernel) else kernel

    return choose


class PreparedLayer:
    """A layer with elements, which kernels are tried on."""

    def __init__(self, layer: Layer, half: torch.dtype = torch.float16) -> None:
        """``half`` is what halves are."""
        self.layer, self.half = layer, half
        self._constants = ConstantStore()
        self._generator = torch.Generator().manual_seed(0)

    def _random(self, *sizes: int) -> torch.Tensor:
        """Elements of one magnitude, so that halves hold them."""
        return torch.rand(sizes, generator=self._generator) + 0.5

    @cached_property
    def _source(self) -> DeviceTensor:
        """The input, as kernels read it, so that nothing else is dispatched."""
        layer = self.layer
        width = aligned_channels(layer.inner)
        elements = torch.zeros(layer.rows, width)
        elements[:, : layer.inner] = self._random(layer.rows, layer.inner)
        tensor = constant_tensor(elements.to(self.half) if layer.are_halves else elements).of(torch.float32)
        if not layer.is_convolution:
            return tensor.view((layer.rows, layer.inner), (width, 1))
        side = math.isqrt(layer.rows)
        return tensor.view((1, layer.inner, side, side), (layer.rows * width, 1, side * width, width))

    @cached_property
    def _weight(self) -> Value:
        layer = self.layer
        taps = (_TAPS, _TAPS) if layer.is_convolution else ()
        weight = self._random(layer.columns, layer.inner, *taps)
        if not layer.bits:
            return Value.of_elements(weight)
        stored = quantized(weight, layer.bits, (1, _GROUP if layer.bits == 4 else layer.inner))
        args = [Value.of_elements(item) if isinstance(item, torch.Tensor) else item for item in stored.arguments]
        return Node.call(DEQUANTIZE, args, [Value.of_tensor(torch.float32, stored.sizes)]).output

    def shape(self, info: DeviceInfo) -> ProductShape:
        """What kernels are chosen from. Each dispatch is timed by itself, so none reads ahead."""
        shapes: list[ProductShape] = []

        def note(info: DeviceInfo, shape: ProductShape, texels: bool) -> ProductKernel:
            shapes.append(shape)
            return choose_product_kernel(info, shape, texels)

        self.stream(info, note)
        return replace(shapes[0], ahead=0)

    def stream(self, info: DeviceInfo, choose: Choose) -> Stream:
        """The layer's dispatches, with the kernel that is chosen."""
        return self._lowered(info, choose)[0].stream

    def error(self, device: Device, choose: Choose) -> float:
        """How far what a device computes is from float64, by the scale of the result; of weights that are floats.

        Raises:
            DeviceError: the device failed.
        """
        plan, result = self._lowered(device.info, choose)
        dense = copied(plan, result, contiguous_strides(result.sizes), torch.float32)
        dense.storage.kind = StorageKind.OUTPUT
        plan.stream.outputs.append(dense)
        executable = Executable(device, plan.stream)
        try:
            (made,) = executable.run([])
        finally:
            executable.close()
        assert isinstance(made, torch.Tensor)
        exact = self._exact()
        return float((made.double() - exact).abs().max() / exact.abs().max())

    def _exact(self) -> torch.Tensor:
        held, weight = self._source.storage.data, self._weight.elements
        assert held is not None and weight is not None
        layer = self.layer
        source = held.reshape(layer.rows, -1)[:, : layer.inner].double()
        weight = (weight.to(self.half) if layer.are_halves else weight).double()
        if not layer.is_convolution:
            return source @ weight.t()
        side = math.isqrt(layer.rows)
        return torch.conv2d(source.t().reshape(1, layer.inner, side, side), weight, padding=1)

    def _lowered(self, info: DeviceInfo, choose: Choose) -> tuple[Plan, DeviceTensor]:
        """A plan of the layer, and its result."""
        layer, source = self.layer, self._source
        side = source.sizes[2:]
        result = Value.of_tensor(torch.float32, (1, layer.columns, *side) if side else (layer.rows, layer.columns))
        halved = frozenset({result}) if layer.are_halves else frozenset()
        halving: dict[str, Any] = {"halved": halved, "half": self.half, "halves_weights": layer.are_halves}
        plan = Plan(info, self._constants, choose_product=choose, **halving)
        operand = Value.of_tensor(torch.float32, source.sizes)
        plan.place(operand, source)
        operator, ways = ("aten::conv2d", ([1, 1], [1, 1], [1, 1], 1)) if layer.is_convolution else ("aten::linear", ())
        made = lower(plan, Node.call(operator, (operand, self._weight, None, *ways), (result,)))
        assert isinstance(made, DeviceTensor)
        return plan, made
