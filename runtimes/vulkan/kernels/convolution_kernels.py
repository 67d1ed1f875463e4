"""The kernels of convolution: which there are, what they need, and how a plan calls them.

All append the dispatches of one convolution: ``source`` and ``result`` have a batch dimension, and the residual has the
result's sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels, default_strides
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution, Phase, phases
from mobopt.runtimes.vulkan.kernels.copies import copied, in_words
from mobopt.runtimes.vulkan.kernels.device_costs import cpu_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.gpu_kernels import DEPTHWISE_INVOCATIONS, DepthwiseDivision, depthwise_division
from mobopt.runtimes.vulkan.kernels.image_rows import ImageRows, append_image_rows
from mobopt.runtimes.vulkan.kernels.kernel_access import spread
from mobopt.runtimes.vulkan.kernels.loops import Box, loop_boxes, loop_iterations
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies
from mobopt.runtimes.vulkan.kernels.pixels import is_copied, pitch_of, pixel_strides, whole_vectors
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import run_program
from mobopt.runtimes.vulkan.kernels.pointwise_program import IDENTITY
from mobopt.runtimes.vulkan.kernels.product import (
    ProductOperands,
    append_product,
    chosen_kernel,
    epilogue_constants,
    rounding_form,
    texels_fit,
)
from mobopt.runtimes.vulkan.kernels.product_kernels import use_shared_memory
from mobopt.runtimes.vulkan.kernels.product_planes import Planes, are_planes, reads_planes, reads_rows
from mobopt.runtimes.vulkan.kernels.weight_packing import Factors, bias_vector, depthwise_weights, product_weights
from mobopt.runtimes.vulkan.kernels.winograd import append_winograd, fits_winograd, is_faster
from mobopt.shaders.push_constants import DepthwisePush, ProductPush


class AppendConvolution(Protocol):
    """What every kernel's function looks like."""

    def __call__(
        self,
        plan: Plan,
        /,
        convolution: Convolution,
        source: DeviceTensor,
        result: DeviceTensor,
        epilogue: Epilogue,
        residual: DeviceTensor | None,
    ) -> None:
        """Append the dispatches."""


def append_product_convolution(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """Implicit GEMM; needs constant weights, and groups (if any) of whole vec4s."""
    weight = convolution.filters
    assert weight is not None
    is_rounded = _may_round(plan, convolution, source)
    is_plain = convolution.groups == 1 and convolution.scaling is None and convolution.quantized is None
    is_image = is_plain and are_planes(source) and is_copied(source)
    if not is_image:
        source = _rounded(plan, source) if is_rounded else whole_vectors(plan, source)
    residual = None if residual is None else _over_pixels(whole_vectors(plan, residual), result.sizes)
    filters = product_weights(plan, weight)
    operands = convolution_operands(plan, convolution, source, filters, result, residual)
    if is_image:
        _append_image(plan, convolution, operands, filters, epilogue, is_rounded)
    else:
        product = convolution_product(convolution, operands, filters)
        append_grid(plan, product, operands, epilogue, convolution.group_inputs % 4)


def _over_pixels(residual: DeviceTensor, sizes: Sequence[int]) -> DeviceTensor:
    """What is added to images of some sizes: one element for each channel is added to each pixel."""
    if residual.sizes == tuple(sizes):
        return residual
    return residual.view(sizes, (residual.strides[0] if residual.sizes[0] > 1 else 0, 1, 0, 0))


@replayable
def _append_image(
    plan: Plan,
    convolution: Convolution,
    operands: ProductOperands,
    filters: Factors,
    epilogue: Epilogue,
    is_rounded: bool,
) -> None:
    """A convolution of an image that lies in planes: it reads these, or a copy, by what takes less time.

    ``is_rounded`` says that either may be rounded to halves for matrix units.
    """
    image, tail = operands.activations, convolution.group_inputs % 4
    planar = replace(operands, planes=Planes(plan.half if is_rounded else None))
    product = convolution_product(convolution, planar, filters)
    kernel, shape = chosen_kernel(plan, product, planar, spatial=True, inner_tail=tail)
    pixels = image.numel // image.sizes[1]
    if reads_planes(plan.device, kernel, shape, image.sizes[1], pixels):
        append_grid(plan, product, planar, epilogue, tail, dense=False)
        return
    if reads_rows(plan.device, kernel, convolution):
        _append_rows(plan, convolution, operands, epilogue, is_rounded)
        return
    operands = replace(operands, activations=_rounded(plan, image) if is_rounded else whole_vectors(plan, image))
    append_grid(plan, convolution_product(convolution, operands, filters), operands, epilogue, tail)


def _append_rows(
    plan: Plan, convolution: Convolution, operands: ProductOperands, epilogue: Epilogue, is_rounded: bool
) -> None:
    """By a copy in which the taps of a row of the filter are runs of memory; see :func:`_append_image`."""
    image = operands.activations
    for pairs in (True, False) if is_rounded else (False,):
        rows = ImageRows.of(convolution, operands.result, pairs)
        own = rows.convolution(plan, convolution)
        assert own.filters is not None
        filters = product_weights(plan, own.filters)
        laid = rows.image(plan, image, plan.half if is_rounded else image.elements)
        operands = replace(operands, activations=laid, weights=filters.tensor)
        product = convolution_product(own, operands, filters)
        tail = convolution.taps[1] % 2 * _ODD_TAIL if pairs else 0
        kernel, _ = chosen_kernel(plan, product, operands, spatial=True, inner_tail=tail)
        if isinstance(kernel, FragmentKernel):
            break
    append_image_rows(plan, image, laid, rows, convolution.padding)
    append_grid(plan, product, operands, epilogue, tail, dense=False)


_ODD_TAIL = 4
"""Halves of the last run of eight that are of a row of an odd number of taps, as ``product_fragments.comp`` asks."""


def convolution_product(convolution: Convolution, operands: ProductOperands, filters: Factors) -> ProductPush:
    """A convolution that isn't transposed as a product."""
    return _grid_product(
        convolution,
        operands,
        filters,
        taps_high=convolution.taps[0],
        taps_wide=convolution.taps[1],
        stride_high=convolution.stride[0],
        stride_wide=convolution.stride[1],
        first_high=-convolution.padding[0],
        first_wide=-convolution.padding[1],
        dilation_high=convolution.dilation[0],
        dilation_wide=convolution.dilation[1],
    )


def append_transposed_phases(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """A transposed convolution: an ordinary one of stride 1 for each residue of a result's place modulo the stride."""
    weight = convolution.filters
    assert weight is not None
    source = whole_vectors(plan, source)
    residual = None if residual is None else whole_vectors(plan, residual)
    along = [
        phases(size, taps, stride, padding, dilation)
        for size, taps, stride, padding, dilation in zip(
            result.sizes[2:],
            convolution.taps,
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            strict=True,
        )
    ]
    for high, wide in itertools.product(*along):
        taps = tuple(itertools.product(high.taps, wide.taps))
        filters = product_weights(plan, weight, taps, transposed_groups=convolution.groups)
        part = _phase_view(result, high, wide, convolution.stride)
        other = None if residual is None else _phase_view(residual, high, wide, convolution.stride)
        operands = convolution_operands(plan, convolution, source, filters, part, other)
        product = _grid_product(
            convolution,
            operands,
            filters,
            taps_high=len(high.taps),
            taps_wide=len(wide.taps),
            first_high=high.first,
            first_wide=wide.first,
            dilation_high=high.step,
            dilation_wide=wide.step,
        )
        append_grid(plan, product, operands, epilogue, convolution.group_inputs % 4, dense=False)


def _phase_view(tensor: DeviceTensor, high: Phase, wide: Phase, stride: Sequence[int]) -> DeviceTensor:
    n, c, h, w = tensor.strides
    return tensor.view(
        (*tensor.sizes[:2], high.count, wide.count),
        (n, c, h * stride[0], w * stride[1]),
        tensor.offset + high.start * h + wide.start * w,
    )


def convolution_operands(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    filters: Factors,
    result: DeviceTensor,
    residual: DeviceTensor | None,
) -> ProductOperands:
    """Its tensors, ``source`` and ``residual`` as they are read and ``filters`` as they are packed."""
    bias = None
    if convolution.bias is not None:
        assert convolution.bias.elements is not None
        bias = bias_vector(plan, convolution.bias.elements)
    return ProductOperands(source, filters.tensor, result, bias, residual, filters.scales, convolution.scaling)


def _may_round(plan: Plan, convolution: Convolution, source: DeviceTensor) -> bool:
    """Whether a convolution of halves reads an image of the caller's that it would copy to another layout anyway."""
    if convolution.input not in plan.roundable_inputs or not is_copied(source):
        return False
    weight = convolution.filters
    is_half = isinstance(weight, torch.Tensor) and plan.weight_elements(weight) == plan.half
    return is_half and multiplies(plan.device, plan.half)


def _rounded(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    """A copy as channels_last halves, for matrix units."""
    return replace(copied(plan, tensor, default_strides(tensor.sizes, tensor.dtype), plan.half), dtype=tensor.dtype)


def _grid_product(convolution: Convolution, operands: ProductOperands, weights: Factors, **taps: int) -> ProductPush:
    """A product whose rows are the pixels of a result; ``taps`` are the numbers of how it walks over the input."""
    source, result, residual = operands.activations, operands.result, operands.residual
    input_offset, input_pitch, input_batch = _places(source, operands.planes is not None)
    batch, channels, out_height, out_width = result.sizes
    columns = aligned_channels(channels) // 4
    out_pitch, out_row, out_batch = pixel_strides(result)
    other = residual if residual is not None else result
    residual_pitch, residual_row, residual_batch = pixel_strides(other)
    return ProductPush(
        rows=batch * out_height * out_width,
        inner=aligned_channels(convolution.group_inputs) // 4,
        columns=columns,
        input_offset=input_offset,
        input_pitch=input_pitch,
        input_batch=input_batch,
        height=source.sizes[2],
        width=source.sizes[3],
        out_height=out_height,
        out_width=out_width,
        weight_pitch=weights.pitch,
        out_offset=result.offset // 4,
        out_pitch=out_pitch,
        out_row=out_row,
        out_batch=out_batch,
        residual_offset=other.offset // 4,
        residual_pitch=residual_pitch,
        residual_row=residual_row,
        residual_batch=residual_batch,
        group_columns=columns // convolution.groups,
        **taps,
    )


def _places(source: DeviceTensor, planar: bool) -> tuple[int, int, int]:
    """Where an input starts, and how far it is from pixel to pixel and image to image: in floats, if it lies in planes,
    else in vec4s."""
    channels, height, width = source.sizes[1:]
    if planar:
        return source.offset, 1, channels * height * width
    return source.offset // 4, pitch_of(source), height * width * pitch_of(source)


def append_grid(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    epilogue: Epilogue,
    inner_tail: int,
    *,
    dense: bool = True,
) -> None:
    """Append a product of pixels, as a plain one if rows of the input and the result are the same run of pixels."""
    if fits_winograd(plan, product, operands):
        _append_square(plan, product, operands, epilogue, inner_tail)
        return
    spatial = not dense or is_spatial(product) or is_apart(product)
    append_product(plan, product, operands, epilogue, spatial=spatial, padded=is_padded(product), inner_tail=inner_tail)


@replayable
def _append_square(
    plan: Plan, product: ProductPush, operands: ProductOperands, epilogue: Epilogue, inner_tail: int
) -> None:
    """A convolution of 3 x 3 taps, by fewer multiplications where that takes less time."""
    if is_faster(plan.device, product, inner_tail):
        append_winograd(plan, product, operands, epilogue, inner_tail)
    else:
        padded = is_padded(product)
        append_product(plan, product, operands, epilogue, spatial=True, padded=padded, inner_tail=inner_tail)


def is_spatial(product: ProductPush) -> bool:
    """Whether rows are pixels of a grid, as a filter goes over it; else they are the input's pixels one by one."""
    p = product
    steps = (p.stride_high, p.stride_wide, p.taps_high, p.taps_wide)
    return steps != (1, 1, 1, 1) or (p.first_high, p.first_wide) != (0, 0)


def is_apart(product: ProductPush) -> bool:
    """Whether images of a result, or of what is added to it, aren't one run of pixels, as among tokens of a batch."""
    p = product
    strides = ((p.out_pitch, p.out_row, p.out_batch), (p.residual_pitch, p.residual_row, p.residual_batch))
    return any(
        (row, batch) != (p.out_width * pitch, p.out_height * p.out_width * pitch) for pitch, row, batch in strides
    )


def is_padded(product: ProductPush) -> bool:
    """Whether taps may fall outside of the input."""
    p = product
    last = [
        (size - 1) * stride + first + (count - 1) * dilation
        for size, stride, first, count, dilation in (
            (p.out_height, p.stride_high, p.first_high, p.taps_high, p.dilation_high),
            (p.out_width, p.stride_wide, p.first_wide, p.taps_wide, p.dilation_wide),
        )
    ]
    return min(p.first_high, p.first_wide) < 0 or last[0] >= p.height or last[1] >= p.width


_MAX_DEPTHWISE_READS = 150


def depthwise_fits(convolution: Convolution) -> bool:
    """Whether the depthwise kernel takes a convolution, of groups of one channel or two: its loops are unrolled, so
    filters must be small."""
    group = convolution.group_inputs
    if (
        convolution.transposed
        or len(convolution.taps) != 2
        or (group, convolution.group_outputs) not in ((1, 1), (2, 2))
    ):
        return False
    return math.prod(convolution.taps) * group <= _MAX_DEPTHWISE_READS


class _Walk(NamedTuple):
    """How a filter goes over an image, outermost dimension first, and how many channels it reads."""

    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    group: int


def append_depthwise(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """Groups of one channel or two, each invocation a block of pixels."""
    weight = convolution.weight.elements
    assert weight is not None
    source = whole_vectors(plan, source)
    residual = None if residual is None else whole_vectors(plan, residual)
    filters = Factors(depthwise_weights(plan, weight), 0)
    operands = convolution_operands(plan, convolution, source, filters, result, residual)
    walk = _Walk(
        convolution.taps, convolution.stride, convolution.padding, convolution.dilation, convolution.group_inputs
    )
    _append_depthwise(plan, walk, operands, epilogue)


@replayable
def _append_depthwise(plan: Plan, walk: _Walk, operands: ProductOperands, epilogue: Epilogue) -> None:
    """The dispatch."""
    source, result = operands.activations, operands.result
    batch, channels, out_height, out_width = result.sizes
    vectors = aligned_channels(channels) // 4
    high, wide, teams = _divided(plan.device, walk, result)
    blocks_high, blocks_wide = -(-out_height // high), -(-out_width // wide)
    out_pitch, out_row, out_batch = pixel_strides(result)
    residual = operands.residual
    invocations = batch * blocks_high * blocks_wide * vectors
    push = DepthwisePush(
        invocations=invocations,
        channels=vectors,
        blocks_wide=blocks_wide,
        blocks_high=blocks_high,
        height=source.sizes[2],
        width=source.sizes[3],
        out_height=out_height,
        out_width=out_width,
        input_offset=source.offset // 4,
        input_pitch=pitch_of(source),
        first_high=-walk.padding[0],
        first_wide=-walk.padding[1],
        out_offset=result.offset // 4,
        out_pitch=out_pitch,
        out_row=out_row,
        out_batch=out_batch,
        residual_offset=0 if residual is None else residual.offset // 4,
        residual_pitch=0 if residual is None else pitch_of(residual),
    )
    span = [
        (block - 1) * stride + (taps - 1) * (1 if block == 1 else dilation) + 1
        for block, stride, taps, dilation in zip((high, wide), walk.stride, walk.taps, walk.dilation, strict=True)
    ]
    texels = texels_fit(plan.device, operands)
    items = plan.device.workgroup(_DEPTHWISE_LOCAL_SIZE if plan.device.is_cpu else DEPTHWISE_INVOCATIONS)
    teams = 1 if texels else teams
    plan.dispatch(
        "depthwise_texels" if texels else "depthwise",
        operands.bindings(texels),
        spread(-(-invocations // items)),
        (
            *epilogue_constants(epilogue, operands.bias is not None),
            *walk.taps,
            *walk.stride,
            *walk.dilation,
            high,
            wide,
            items * teams,
            walk.group,
            int(plan.device.is_cpu and cpu_costs(plan.device).rolls_stores),
            teams,
            *operands.forms(epilogue),
        ),
        push,
        iterations=math.prod(span) * high * wide,
    )


_DEPTHWISE_LOCAL_SIZE = 16
_MOST_SMALL_TAPS = 25
"""Of filters of which an invocation of a CPU's driver computes several pixels."""


def _divided(device: DeviceInfo, walk: _Walk, result: DeviceTensor) -> DepthwiseDivision:
    """How a depthwise convolution is divided among invocations."""
    batch, channels, height, width = result.sizes
    if use_shared_memory(device):
        vectors = aligned_channels(channels) // 4
        division = depthwise_division(device, batch * height, width, vectors, walk.taps)
        return division if walk.group == 1 else division._replace(teams=1)
    if math.prod(walk.taps) > _MOST_SMALL_TAPS or max(walk.dilation) > 1:
        return DepthwiseDivision(1, 1)
    wide = min((4, 2, 1), key=lambda wide: (-(-width // wide) * (wide + 2), -wide))
    return DepthwiseDivision(2 if height > 1 else 1, wide)


_GENERAL_LOCAL_SIZE = 64


def append_general(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """Any convolution on tensors of any layout, one invocation per element of the result."""
    weights = plan.tensor(convolution.weight)
    bias = None if convolution.bias is None else plan.tensor(convolution.bias)
    _append_general(plan, convolution, ProductOperands(source, weights, result, bias, residual), epilogue)


@replayable
def _append_general(plan: Plan, convolution: Convolution, operands: ProductOperands, epilogue: Epilogue) -> None:
    """The same of tensors, of any layout too; a long sum takes several dispatches."""
    final, result = operands.result, operands.result
    if not result.has_words:
        result = plan.empty(result.sizes, result.dtype, result.strides)
    source, weights = in_words(plan, operands.activations), in_words(plan, operands.weights)
    bias = None if operands.bias is None else in_words(plan, operands.bias)
    residual = None if operands.residual is None else in_words(plan, operands.residual)
    rounding, local_size = rounding_form(epilogue), plan.device.workgroup(_GENERAL_LOCAL_SIZE)
    boxes = list(loop_boxes((*(1,) * (3 - len(convolution.taps)), *convolution.taps, convolution.group_inputs)))
    for number, box in enumerate(boxes):
        numbers = _general_numbers(convolution, source, weights, bias, result, residual, box)
        continues, finishes = number > 0, number == len(boxes) - 1
        plan.dispatch(
            "convolution_general",
            (
                *(bind(tensor) for tensor in (source, weights, bias or weights, residual or weights)),
                bind(result, writes=True, reads=continues),
                bind(_table(plan, numbers)),
            ),
            spread(-(-result.numel // local_size)),
            (
                *epilogue_constants(epilogue, bias is not None),
                *(int(flag) for flag in (convolution.transposed, continues, finishes)),
                rounding,
                local_size,
            ),
            iterations=loop_iterations([end - begin for begin, end in box]),
        )
    if final is not result:
        run_program(plan, IDENTITY, [result], final)


def _table(plan: Plan, numbers: tuple[int, ...]) -> DeviceTensor:
    return plan.packed([], ("convolution_general", *numbers), lambda: torch.tensor(numbers, dtype=torch.int32))


def _general_numbers(
    convolution: Convolution,
    source: DeviceTensor,
    weights: DeviceTensor,
    bias: DeviceTensor | None,
    result: DeviceTensor,
    residual: DeviceTensor | None,
    box: Box,
) -> tuple[int, ...]:
    """The numbers of ``convolution_general.comp``, in its order; missing dimensions come first and have size 1."""
    missing = 3 - len(convolution.taps)

    def three(values: Sequence[int], filler: int) -> tuple[int, ...]:
        return (*(filler,) * missing, *values)

    def steps(tensor: DeviceTensor | None) -> tuple[int, ...]:
        if tensor is None:
            return (0,) * 6
        return (*tensor.strides[:2], *three(tensor.strides[2:], 0), tensor.offset)

    return (
        result.numel,
        result.sizes[1],
        convolution.group_inputs,
        convolution.group_outputs,
        *three(source.sizes[2:], 1),
        *three(result.sizes[2:], 1),
        *three(convolution.taps, 1),
        *three(convolution.stride, 1),
        *three([-padding for padding in convolution.padding], 0),
        *three(convolution.dilation, 1),
        *(begin for begin, _ in box),
        *(end for _, end in box),
        *steps(source),
        *steps(weights),
        *((0, 0) if bias is None else (bias.strides[0], bias.offset)),
        *steps(residual),
        *steps(result),
    )
