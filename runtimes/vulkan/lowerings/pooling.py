"""Pooling over windows, fixed and adaptive, in one, two and three dimensions of space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from mobopt.ir import Node, Value
from mobopt.ir.schemas import argument_names
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.combine import reduce
from mobopt.runtimes.vulkan.kernels.copies import as_channels_last
from mobopt.runtimes.vulkan.kernels.loops import Box, loop_boxes, loop_iterations, summing_iterations
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder
from mobopt.runtimes.vulkan.kernels.pool_halves import append_pool_of_halves, compares_halves
from mobopt.runtimes.vulkan.kernels.space_kernel import (
    SPACE,
    as_volume,
    channels_innermost,
    run_space_kernel,
)
from mobopt.runtimes.vulkan.lowerings.checks import check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import After, Combination, Opcode
from mobopt.shaders.push_constants import PoolPush


@dataclass(frozen=True)
class Window:
    """A pooling window; each tuple has an entry per dimension of space, outermost first."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    average: bool = False
    adaptive: bool = False
    counts_padding: bool = False
    divisor: int = 0

    @property
    def is_plain_maximum(self) -> bool:
        """Whether each result is the largest of neighbours."""
        return not (self.average or self.adaptive) and set(self.dilation) == {1}

    def constants(self, writes_indices: bool, continues: bool = False) -> list[int]:
        """Specialization constants of ``pool.comp``."""
        flags = [self.average, writes_indices, self.adaptive, self.counts_padding]
        return [*map(int, flags), *self.kernel, int(continues)]

    def along(self, d: int) -> Window:
        """The same in dimension ``d`` only: what pooling in all dimensions at once is made of."""

        def only(values: tuple[int, ...], other: int) -> tuple[int, ...]:
            return tuple(value if k == d else other for k, value in enumerate(values))

        numbers = only(self.kernel, 1), only(self.stride, 1), only(self.padding, 0), only(self.dilation, 1)
        return replace(self, kernel=numbers[0], stride=numbers[1], padding=numbers[2], dilation=numbers[3], divisor=0)

    def within(self, box: Box) -> Window:
        """The window's places of a box."""
        begins = [begin * step for (begin, _), step in zip(box, self.dilation, strict=True)]
        moved = (begin if self.adaptive else pad - begin for pad, begin in zip(self.padding, begins, strict=True))
        return replace(self, kernel=tuple(end - begin for begin, end in box), padding=tuple(moved))


def pool(
    plan: Plan, source: DeviceTensor, output: Value, spatial: int, window: Window, *, indices: bool = False
) -> tuple[DeviceTensor, DeviceTensor]:
    """Pool; returns the result, which is ``output``, and the indices of the largest elements (undefined unless asked
    for)."""
    if source.rank == 4 and spatial == 2:
        source = as_channels_last(plan, source)
    target = plan.empty(output.sizes, output.dtype) if indices else plan.result(output)
    places = plan.empty(output.sizes, torch.int64, target.strides) if indices else target
    volume, result, chosen = (as_volume(tensor, spatial) for tensor in (source, target, places))
    is_one = loop_iterations(window.kernel) <= USUAL_ITERATIONS
    if not is_one and not target.has_words and window.average:
        # Sums of parts are read back, so they aren't rounded.
        target = plan.empty(target.sizes, output.dtype, target.strides)
    long = [d for d, length in enumerate(window.kernel) if length > 1]
    if loop_iterations(window.kernel) <= USUAL_ITERATIONS:
        _dispatch(plan, volume, result, chosen, window, indices=indices)
    elif len(long) > 1 and not indices:
        _pool_in_turn(plan, volume, result, window)
    else:
        _pool_in_boxes(plan, volume, result, chosen, window, indices=indices)
    return target, places


@replayable
def _dispatch(
    plan: Plan,
    volume: DeviceTensor,
    result: DeviceTensor,
    chosen: DeviceTensor,
    window: Window,
    *,
    indices: bool,
    continues: bool = False,
) -> None:
    push = partial(
        PoolPush,
        extent=volume.sizes[2:],
        step=window.stride,
        pad=window.padding,
        gap=window.dilation,
        divisor=window.divisor,
    )
    if window.is_plain_maximum and not (indices or continues) and compares_halves(plan.device, volume, result):
        append_pool_of_halves(plan, volume, result, window.kernel, push)
        return
    run_space_kernel(
        plan,
        "pool",
        volume,
        [result, chosen],
        window.constants(indices, continues),
        push,
        iterations=summing_iterations(window.kernel),
        continues=continues,
    )


def _pool_in_turn(plan: Plan, volume: DeviceTensor, result: DeviceTensor, window: Window) -> None:
    """One dimension after the other, the last one first: means of means over a grid, and maxima of maxima, are those of
    the whole."""
    by_divisor = replace(window, divisor=1) if window.divisor else window
    changed = [d for d in range(SPACE) if window.kernel[d] > 1 or volume.sizes[2 + d] != result.sizes[2 + d]]
    for d in reversed(changed):
        is_last = d == changed[0]
        sizes = [*volume.sizes[: 2 + d], *result.sizes[2 + d :]]
        target = result if is_last else plan.empty(sizes, strides=channels_innermost(sizes))
        each = replace(by_divisor.along(d), divisor=window.divisor if is_last else by_divisor.divisor)
        if loop_iterations(each.kernel) <= USUAL_ITERATIONS:
            _dispatch(plan, volume, target, target, each, indices=False)
        else:
            _pool_in_boxes(plan, volume, target, target, each, indices=False)
        volume = target


def _pool_in_boxes(
    plan: Plan, volume: DeviceTensor, result: DeviceTensor, chosen: DeviceTensor, window: Window, *, indices: bool
) -> None:
    """A few places of the window after the other; a mean is a sum until all of them are in it."""
    summed = replace(window, divisor=1) if window.average else window
    for number, box in enumerate(loop_boxes(window.kernel)):
        _dispatch(plan, volume, result, chosen, summed.within(box), indices=indices, continues=number > 0)
    if not window.average:
        return
    builder = ProgramBuilder()
    value = builder.tensor(result)
    for d in range(SPACE):
        if not window.divisor:
            value = builder.step(Opcode.DIV, value, builder.tensor(_counts(plan, window, volume, result, d)))
    if window.divisor:
        value = builder.step(Opcode.DIV, value, builder.scalar(window.divisor, Kind.FLOAT))
    compute_into(plan, builder, value, result)


def _counts(plan: Plan, window: Window, volume: DeviceTensor, result: DeviceTensor, d: int) -> DeviceTensor:
    """How many places of dimension ``d`` a mean counts, for each place of the result."""
    size, outputs = volume.sizes[2 + d], result.sizes[2 + d]
    kernel, stride, padding = window.kernel[d], window.stride[d], window.padding[d]

    def counted() -> torch.Tensor:
        place = torch.arange(outputs)
        if window.adaptive:
            return ((place + 1) * size + outputs - 1) // outputs - place * size // outputs
        start = place * stride - padding
        if window.counts_padding:
            return (start + kernel).clamp(max=size + padding) - start
        return (start + kernel).clamp(max=size) - start.clamp(min=0)

    name = ("pool counts", size, outputs, kernel, stride, padding, window.adaptive, window.counts_padding)
    counts = plan.packed([], name, lambda: counted().float())
    shape = [outputs if k == 2 + d else 1 for k in range(2 + SPACE)]
    return counts.view(shape, [int(k == 2 + d) for k in range(2 + SPACE)])


def _per_dimension(value: int | Sequence[int], spatial: int, missing: int) -> tuple[int, ...]:
    """One entry per dimension of space; dimensions that the tensor lacks get ``missing``."""
    given = (value,) if isinstance(value, int) else tuple(value)
    own = given * spatial if len(given) == 1 else given
    return (missing,) * (SPACE - spatial) + own


def _window(call: Node, spatial: int, *, average: bool) -> Window:
    names = argument_names(call.qualified_op)
    kernel = _per_dimension(call["kernel_size"], spatial, 1)
    stride = _per_dimension(call["stride"], spatial, 1) if call["stride"] else kernel
    return Window(
        kernel,
        stride,
        _per_dimension(call["padding"], spatial, 0),
        _per_dimension(call["dilation"], spatial, 1) if "dilation" in names else (1,) * SPACE,
        average,
        counts_padding="count_include_pad" in names and call["count_include_pad"],
        divisor=(call["divisor_override"] or 0) if "divisor_override" in names else 0,
    )


def _spatial(call: Node) -> int:
    """1, 2 or 3, from the operator's name."""
    return next(n for n in (1, 2, 3) if f"pool{n}d" in call.qualified_op)


@lowers("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d", check=check_floating)
def average_pool(plan: Plan, call: Node) -> DeviceTensor:
    """Mean of each window."""
    spatial = _spatial(call)
    window = _window(call, spatial, average=True)
    return pool(plan, plan.tensor(call.args[0]), call.output, spatial, window)[0]


@lowers(
    "aten::max_pool1d",
    "aten::max_pool2d",
    "aten::max_pool3d",
    "aten::max_pool1d_with_indices",
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
    check=check_floating,
    exact=True,
)
def max_pool(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Largest element of each window; with its index in the plane if the operator gives it."""
    spatial = _spatial(call)
    window = _window(call, spatial, average=False)
    indices = len(call.outputs) == 2
    found = pool(plan, plan.tensor(call.args[0]), call.outputs[0], spatial, window, indices=indices)
    return found if indices else found[0]


@lowers(
    "aten::adaptive_avg_pool1d",
    "aten::adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool3d",
    check=check_floating,
)
def adaptive_average_pool(plan: Plan, call: Node) -> DeviceTensor:
    """Mean of each place's share of the input; a mean over all of space if there is one place."""
    tensor = plan.tensor(call.args[0])
    spatial = _spatial(call)
    dims = range(tensor.rank - spatial, tensor.rank)
    space = [tensor.sizes[d] for d in dims]
    if all(size == 1 for size in call.output.sizes[-spatial:]) and 0 not in space:
        count = math.prod(space)
        return reduce(plan, tensor, list(dims), tensor.dtype, Combination.ADD, after=After.SCALED, divisor=count)
    return pool(plan, tensor, call.output, spatial, _adaptive(space, call, spatial, average=True))[0]


@lowers("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d", check=check_floating)
def adaptive_max_pool(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Largest element of each place's share of the input, and its index in the plane."""
    tensor = plan.tensor(call.args[0])
    spatial = _spatial(call)
    window = _adaptive(tensor.sizes[tensor.rank - spatial :], call, spatial, average=False)
    return pool(plan, tensor, call.outputs[0], spatial, window, indices=True)


def _adaptive(space: Sequence[int], call: Node, spatial: int, *, average: bool) -> Window:
    """Shares of equal size and distance are a fixed window, whose loops the driver can unroll."""
    places = call.outputs[0].sizes[-spatial:]
    ones = (1,) * SPACE
    largest = [size // max(place, 1) + 2 for size, place in zip(space, places, strict=True)]
    if all(place and size % place == 0 for size, place in zip(space, places, strict=True)):
        shares = _per_dimension([size // place for size, place in zip(space, places, strict=True)], spatial, 1)
        return Window(shares, shares, (0,) * SPACE, ones, average)
    return Window(_per_dimension(largest, spatial, 1), ones, (0,) * SPACE, ones, average, adaptive=True)
