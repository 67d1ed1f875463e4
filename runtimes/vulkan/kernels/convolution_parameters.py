"""What a convolution call asks for, in one form for every operator and every number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from mobopt.ir import Node, Value
from mobopt.ops.contexts import Conv1dPackedContext, Conv2dPackedContext, VulkanConv2dOpContext
from mobopt.ops.quantized import Quantized
from mobopt.runtimes.vulkan.kernels.product_scaling import Scaling

CONVOLUTIONS = (
    "aten::conv1d",
    "aten::conv1d.padding",
    "aten::conv2d",
    "aten::conv2d.padding",
    "aten::conv3d",
    "aten::conv3d.padding",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d.input",
    "aten::conv_transpose3d.input",
    "aten::convolution",
    "aten::_convolution",
    "aten::_convolution.deprecated",
    "vulkan_prepack::run_conv1d_context",
    "vulkan_prepack::run_conv2d_context",
    "vulkan_prepack::run_tconv2d_context",
    "vulkan_prepack::conv2d_clamp_run",
)
"""The operators whose calls :func:`convolution_of` reads."""


@dataclass(frozen=True, eq=False)
class Convolution:
    """Operands and parameters of a convolution; one number per spatial dimension.

    ``padding`` is what lies before the first element: the sizes of the result say what lies after the last.
    """

    input: Value
    weight: Value
    bias: Value | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    quantized: Quantized | None = None
    """What the weight is made of, if it is a constant of few bits."""
    scaling: Scaling | None = None
    """What becomes of the input as it is read."""

    @property
    def filters(self) -> torch.Tensor | Quantized | None:
        """The weight, if it is a constant."""
        return self.quantized or self.weight.elements

    @property
    def taps(self) -> tuple[int, ...]:
        """Sizes of the filter."""
        return self.weight.sizes[2:]

    @property
    def is_of_single_pixels(self) -> bool:
        """Whether each result is of one pixel of an image."""
        return (self.taps, self.padding) == ((1, 1), (0, 0))

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.weight.sizes[0] // self.groups if self.transposed else self.weight.sizes[1]

    @property
    def group_outputs(self) -> int:
        """Output channels of a group."""
        return self.weight.sizes[1] if self.transposed else self.weight.sizes[0] // self.groups

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel has one filter of its own."""
        return not self.transposed and self.group_inputs == 1 and self.group_outputs == 1


def convolution_of(call: Node) -> Convolution:
    """The convolution that a call of any convolution operator means."""
    for argument in call.args:
        if isinstance(argument, (Conv1dPackedContext, Conv2dPackedContext, VulkanConv2dOpContext)):
            return _of_context(call.args[0], argument)
    name = call.qualified_op.partition("::")[2].partition(".")[0]
    weight = call["weight"]
    spatial = weight.rank - 2
    transposed = name.startswith("conv_transpose") or (name.endswith("convolution") and call["transposed"])
    dilation = per_dimension(call["dilation"], spatial)
    padding = call["padding"]
    return Convolution(
        call["input"],
        weight,
        call["bias"],
        per_dimension(call["stride"], spatial),
        _named_padding(padding, weight, dilation) if isinstance(padding, str) else per_dimension(padding, spatial),
        dilation,
        call["groups"],
        transposed,
    )


def _of_context(
    operand: Value, context: Conv1dPackedContext | Conv2dPackedContext | VulkanConv2dOpContext
) -> Convolution:
    known = _PARAMETERS.get(context)
    if known is None:
        weight = constant_ref(context.weight)
        spatial = weight.rank - 2
        known = _PARAMETERS[context] = (
            weight,
            None if context.bias is None else constant_ref(context.bias),
            per_dimension(context.stride, spatial),
            per_dimension(context.padding, spatial),
            per_dimension(context.dilation, spatial),
            context.groups,
            isinstance(context, Conv2dPackedContext) and context.transposed,
        )
    return Convolution(operand, *known)


_PARAMETERS: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
"""All that is known of convolutions but their input, by their contexts, which never change."""


def constant_ref(tensor: torch.Tensor) -> Value:
    """A constant of a packed context as a tensor of the graph."""
    return Value.of_elements(tensor)


def per_dimension(values: Any, count: int) -> tuple[int, ...]:
    """One number for each of ``count`` dimensions, from a number or a list of one or ``count`` numbers."""
    listed: Sequence[int] = (values,) if isinstance(values, int) else values
    return tuple(listed) if len(listed) == count else (listed[0],) * count


def _named_padding(name: str, weight: Value, dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding before the first element for ``valid`` and ``same`` (of an odd total, the smaller half is in front)."""
    taps = weight.sizes[2:]
    if name == "valid":
        return (0,) * len(taps)
    return tuple(step * (size - 1) // 2 for size, step in zip(taps, dilation, strict=True))


@dataclass(frozen=True)
class Phase:
    """The results of a transposed convolution at ``start``, ``start + stride``, ...: along one dimension, an ordinary
    convolution of stride 1 with the taps ``taps``, whose first result reads the input from ``first`` on, in steps of
    ``step``."""

    start: int
    count: int
    taps: tuple[int, ...]
    first: int
    step: int


def phases(size: int, taps: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """The phases of a transposed convolution along one dimension whose result has ``size`` elements.

    Result ``o`` reads input ``(o + padding - tap * dilation) / stride`` where that is whole. For results
    ``o = start + t * stride`` these are the taps with ``tap * dilation = start + padding`` modulo the stride, and the
    input is ``t`` plus a number of the tap.
    """
    found = []
    for start in range(min(stride, size)):
        shifts = {
            tap: (start + padding - tap * dilation) // stride
            for tap in range(taps)
            if (start + padding - tap * dilation) % stride == 0
        }
        used = tuple(sorted(shifts, key=lambda tap: shifts[tap]))
        step = shifts[used[1]] - shifts[used[0]] if len(used) > 1 else 1
        first = shifts[used[0]] if used else 0
        found.append(Phase(start, -(-(size - start) // stride), used, first, step))
    return found


def with_leading_dimension(convolution: Convolution) -> Convolution:
    """A 1-d convolution with a constant filter as a 2-d one on images of height 1."""
    weight, quantized = convolution.weight, convolution.quantized
    if quantized is None:
        assert weight.elements is not None
        weight = Value.of_elements(weight.elements.unsqueeze(2), weight.dtype)
    else:
        quantized = quantized.unsqueezed(2)
        weight = Value.of_tensor(weight.dtype, quantized.sizes)
    return replace(
        convolution,
        weight=weight,
        quantized=quantized,
        stride=(1, *convolution.stride),
        padding=(0, *convolution.padding),
        dilation=(1, *convolution.dilation),
    )
