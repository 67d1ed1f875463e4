"""Stretches of networks, whose steps wait for each other: what they cost can't be seen in single layers, nor in layers
that are all alike, whose instructions are in a core's cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan, constant_tensor
from mobopt.runtimes.vulkan.lowerings.registry import lower

INVERTED_RESIDUALS, BOTTLENECKS, TRANSFORMER = "inverted residuals", "bottlenecks", "transformer layers"
_EPSILON = 1e-5


@dataclass(frozen=True)
class Stretch:
    """Blocks of a network, one after the other."""

    kind: str
    size: int
    """Pixels along a side of an image, or rows."""
    width: int
    """Channels, or elements of a row, between blocks."""
    inner: int
    """And inside of them."""
    blocks: int
    are_halves: bool = False

    def __str__(self) -> str:
        place = f"{self.size} rows" if self.kind == TRANSFORMER else f"{self.size} x {self.size}"
        return f"{self.kind}, {place} of {self.width} and {self.inner}{', halves' if self.are_halves else ''}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of what goes into it, and of its result."""
        return (self.size, self.width) if self.kind == TRANSFORMER else (1, self.width, self.size, self.size)


_FLOATS = (
    # Of MobileNetV2.
    *(
        Stretch(INVERTED_RESIDUALS, *sizes)
        for sizes in ((56, 24, 144, 2), (28, 32, 192, 3), (14, 96, 576, 3), (7, 160, 960, 3))
    ),
    # Of ResNet50.
    *(Stretch(BOTTLENECKS, *sizes) for sizes in ((56, 256, 64, 3), (28, 512, 128, 3), (14, 1024, 256, 3))),
    # Of small ones, and of ViT-small.
    *(Stretch(TRANSFORMER, *sizes) for sizes in ((128, 384, 1536, 4), (197, 384, 1536, 4))),
)
STRETCHES: Sequence[Stretch] = (*_FLOATS, *(replace(stretch, are_halves=True) for stretch in _FLOATS))
"""What is measured; those of halves on devices that multiply them by matrix units."""


@dataclass(frozen=True)
class _Step:
    """An operator, and what it has beside its input."""

    operator: str
    sizes: tuple[int, ...]
    """Of its result."""
    args: tuple[Any, ...]


class PreparedStretch:
    """A stretch with elements."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self._generator = torch.Generator().manual_seed(0)
        self._constants = ConstantStore()
        self._steps = [step for _ in range(stretch.blocks) for step in self._block()]

    def stream(self, info: DeviceInfo, *, is_read: bool = False) -> Stream:
        """Its dispatches: of elements that lie on the device, with nothing read back; or, where ``is_read``, of what
        the host gives, with a result for it."""
        values = [Value.of_tensor(torch.float32, self.stretch.sizes)]
        values += [Value.of_tensor(torch.float32, step.sizes) for step in self._steps]
        halving: dict[str, Any] = {}
        if self.stretch.are_halves:
            halving = {"halved": frozenset(values), "half": torch.float16, "halves_weights": True}
        plan = Plan(info, self._constants, **halving)
        plan.place(values[0], _host_input(plan, values[0]) if is_read else self._source.of(torch.float32))
        for step, (source, result) in zip(self._steps, pairwise(values), strict=True):
            made = lower(plan, Node.call(step.operator, (source, *step.args), (result,)))
            assert isinstance(made, DeviceTensor)
            plan.place(result, made)
        if is_read:
            made = plan.tensor(values[-1])
            dense = copied(plan, made, contiguous_strides(made.sizes), torch.float32)
            dense.storage.kind = StorageKind.OUTPUT
            plan.stream.outputs.append(dense)
        return plan.stream

    def inputs(self, count: int) -> list[torch.Tensor]:
        """Several for a stream that is read."""
        return [self._random(*self.stretch.sizes) for _ in range(count)]

    @cached_property
    def _source(self) -> DeviceTensor:
        elements = self._random(*self.stretch.sizes)
        return constant_tensor(elements.half() if self.stretch.are_halves else elements)

    def _random(self, *sizes: int, of: int = 1) -> torch.Tensor:
        """Elements by which sums of ``of`` products have the magnitude of what is multiplied."""
        return torch.randn(sizes, generator=self._generator) / math.sqrt(of)

    def _block(self) -> Iterator[_Step]:
        stretch = self.stretch
        width, inner = stretch.width, stretch.inner
        if stretch.kind == TRANSFORMER:
            scale, shift = (Value.of_elements(self._random(width)) for _ in range(2))
            yield _Step("aten::layer_norm", stretch.sizes, ([width], scale, shift, _EPSILON, True))
            yield self._linear(inner, width)
            yield self._linear(width, inner)
            return
        yield self._convolution(inner, width, 1)
        yield self._convolution(inner, inner, 3, groups=inner if stretch.kind == INVERTED_RESIDUALS else 1)
        yield self._convolution(width, inner, 1)

    def _linear(self, columns: int, inner: int) -> _Step:
        weight = Value.of_elements(self._random(columns, inner, of=inner))
        return _Step("aten::linear", (self.stretch.size, columns), (weight, None))

    def _convolution(self, channels: int, inner: int, taps: int, groups: int = 1) -> _Step:
        fan_in = inner // groups * taps**2
        weight = Value.of_elements(self._random(channels, inner // groups, taps, taps, of=fan_in))
        ways = ([1, 1], [taps // 2] * 2, [1, 1], groups)
        return _Step("aten::conv2d", (1, channels, *self.stretch.sizes[2:]), (weight, None, *ways))


def _host_input(plan: Plan, value: Value) -> DeviceTensor:
    elements = plan.elements_of(value)
    storage = Storage(value.numel * elements.itemsize, StorageKind.INPUT, elements=elements)
    tensor = DeviceTensor(storage, value.dtype, value.sizes, contiguous_strides(value.sizes))
    plan.stream.inputs.append(tensor)
    return tensor
