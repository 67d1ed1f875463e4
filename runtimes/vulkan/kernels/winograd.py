"""Convolutions of 3 x 3 taps by Winograd's minimal filtering: 36 multiplications in place of 144 for each channel of a
tile of 4 x 4 results.

Three dispatches: ``winograd_spread.comp`` makes 36 numbers of each tile and channel, products with the filters follow,
and ``winograd_gather.comp`` makes results of those. ``shaders/glsl/winograd.glsl`` says by which matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, cpu_costs, device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import predicted_nanoseconds
from mobopt.runtimes.vulkan.kernels.kernel_access import local_size, spread, writing
from mobopt.runtimes.vulkan.kernels.pixels import pitch_of, pixel_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product import ProductOperands, append_product, epilogue_constants, texels_fit
from mobopt.runtimes.vulkan.kernels.product_kernels import (
    LANES,
    panel_columns,
    predicted_tile_nanoseconds,
    use_shared_memory,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.weight_packing import Factors, bias_vector
from mobopt.shaders.push_constants import ProductPush, WinogradPush

_TILE = 4
_SPAN = 6
_PRODUCTS = _SPAN * _SPAN
_POINT = 0.75
"""A of ``winograd.glsl``."""
NO_WINOGRAD = "no-winograd"
_BAND_NUMBERS, _GPU_BAND_NUMBERS = 1 << 21, 1 << 24
"""That are multiplied, or made by that, at a time. 8 MB are what a CPU's caches hold: with 100 MB calls took up to 1.6
times as long. An H200 takes a seventh longer with 32 MB than with all; 64 MB are a bound of the memory."""
_SECOND_DISPATCHES = 3
"""Times what costs of GPUs say of a dispatch that waits for another, each of these took on an H200."""

_LEAST_GAIN = 0.9
"""Of the time, for which filters may take four times their memory on a GPU."""


def fits_winograd(plan: Plan, convolution: Convolution, source: DeviceTensor) -> bool:
    """Whether a convolution that isn't transposed can be computed so: of float32, with filters that are known, and
    nobody chooses how products are computed."""
    weight = convolution.filters
    is_square = (convolution.taps, convolution.stride, convolution.dilation) == ((3, 3), (1, 1), (1, 1))
    if not is_square or convolution.groups != 1 or convolution.scaling is not None or plan.choose_product is not None:
        return False
    if not isinstance(weight, torch.Tensor) or NO_WINOGRAD in plan.device.switches:
        return False
    return weight.dtype == plan.weight_elements(weight) == source.storage.elements == torch.float32


def is_faster(device: DeviceInfo, inputs: int, result: DeviceTensor) -> bool:
    """Whether a convolution of 3 x 3 taps and so many input channels should take less time so than as one product."""
    inner, columns = aligned_channels(inputs) // 4, aligned_channels(result.sizes[1]) // 4
    batch, _, high, wide = result.sizes
    run = 4 if inputs % 4 or inner % 2 or columns % 2 else 8
    plain = ProductShape(batch * high * wide, 9 * inner, columns, columns, taps=9, float_run=run)
    parts = ProductShape(tile_count(result), inner, columns, columns, batches=_PRODUCTS, float_run=run)
    waits = 3 * len(band_tiles(device, inner, columns, result)) - 1
    compare = _is_faster_on_gpu if use_shared_memory(device) else _is_faster_on_cpu
    return compare(device, plain, parts, waits)


def _is_faster_on_gpu(device: DeviceInfo, plain: ProductShape, parts: ProductShape, waits: int) -> bool:
    costs = device_costs(device)
    plain = replace(plain, fits_fragments=takes_fragments(device) and plain.float_run == 8)
    rate = 32 * core_count(device) * costs.cycles_per_nanosecond
    taken = predicted_nanoseconds(device, parts) + _transforms(parts, costs.fetch_cycles, costs.store_cycles) / rate
    taken += waits * _SECOND_DISPATCHES * costs.second_dispatch_nanoseconds
    return taken < _LEAST_GAIN * predicted_nanoseconds(device, plain)


def _is_faster_on_cpu(device: DeviceInfo, plain: ProductShape, parts: ProductShape, waits: int) -> bool:
    costs = cpu_costs(device)
    transforming = costs.transforms * _transforms(parts, costs.fetch, costs.store) / (LANES * costs.threads)
    taken = transforming + costs.short_products * predicted_tile_nanoseconds(device, parts)
    return taken + waits * costs.dispatch < predicted_tile_nanoseconds(device, plain)


def _transforms(parts: ProductShape, fetch: float, store: float) -> float:
    """What both transformations take, each vec4 by itself."""
    spreading, gathering = _PRODUCTS * (fetch + store), _PRODUCTS * fetch + _TILE * _TILE * store
    return parts.rows * (parts.inner * spreading + parts.columns * gathering)


def band_tiles(device: DeviceInfo, inner: int, columns: int, result: DeviceTensor) -> list[int]:
    """How many tiles each band has."""
    tiles = tile_count(result)
    numbers = _GPU_BAND_NUMBERS if use_shared_memory(device) else _BAND_NUMBERS
    most = max(numbers // (_PRODUCTS * 4 * (inner + columns)), 1)
    count = -(-tiles // most)
    return [tiles * (index + 1) // count - tiles * index // count for index in range(count)]


def tile_count(result: DeviceTensor) -> int:
    """Tiles of all images of a result."""
    batch, _, high, wide = result.sizes
    return batch * -(-high // _TILE) * -(-wide // _TILE)


def filter_transform() -> torch.Tensor:
    """The matrix (6, 3) that makes of three taps what six numbers are multiplied with; float64."""
    a = _POINT
    points = ((0.0, 4 * a**4), (a, -6 * a**4), (-a, -6 * a**4), (2 * a, 24 * a**4), (-2 * a, 24 * a**4))
    rows = [[point**power / scale for power in range(3)] for point, scale in points]
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)


def _factors(plan: Plan, weight: torch.Tensor) -> Factors:
    """A filter (out, in, 3, 3) as matrices (36, in, out), the latter in panels, both sizes rounded up to 4."""
    out, inputs = weight.shape[:2]
    lines, columns = aligned_channels(inputs), aligned_channels(out)
    width = panel_columns(plan.device, columns // 4)

    def pack() -> torch.Tensor:
        taps = torch.zeros(9, lines, columns, dtype=torch.float64)
        taps[:, :inputs, :out] = weight.detach().permute(2, 3, 1, 0).reshape(9, inputs, out)
        panels = taps.reshape(9, lines, columns // (4 * width), 4 * width).transpose(1, 2)
        once = filter_transform()
        return (torch.kron(once, once) @ panels.reshape(9, -1)).float()

    tensor = plan.packed([weight], ("winograd", width), pack)
    return Factors(tensor, width, lines * columns // 4)


@replayable
def append_winograd(
    plan: Plan,
    convolution: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    """Three dispatches for each band of tiles: ``source`` is pixels of whole vec4s, and so is the residual."""
    weight = convolution.weight.elements
    assert weight is not None
    filters = _factors(plan, weight)
    inner, columns = aligned_channels(source.sizes[1]) // 4, aligned_channels(result.sizes[1]) // 4
    bands = band_tiles(plan.device, inner, columns, result)
    rows = plan.empty((_PRODUCTS, max(bands), 4 * inner))
    products = plan.empty((_PRODUCTS, max(bands), 4 * columns))
    first = 0
    for tiles in bands:
        band = _Band(first, tiles, -(-result.sizes[2] // _TILE), -(-result.sizes[3] // _TILE))
        _append_spread(plan, band, convolution, source, rows)
        _append_products(plan, tiles, source.sizes[1] % 4, ProductOperands(rows, filters.tensor, products), filters)
        _append_gather(plan, band, convolution, products, result, epilogue, residual)
        first += tiles


@dataclass(frozen=True)
class _Band:
    """Some tiles, one after the other, of all those of some images."""

    first: int
    tiles: int
    high: int
    """Tiles of an image."""
    wide: int

    def push(self, vectors: int, **places: int) -> WinogradPush:
        """What a transformation of them is told, of an image of so many vec4s of channels."""
        return WinogradPush(self.tiles, self.first, vectors, self.high, self.wide, **places)


def _append_spread(plan: Plan, band: _Band, convolution: Convolution, source: DeviceTensor, rows: DeviceTensor) -> None:
    _, channels, height, width = source.sizes
    pitch, vectors = pitch_of(source), aligned_channels(channels) // 4
    push = band.push(
        vectors,
        height=height,
        width=width,
        top=convolution.padding[0],
        left=convolution.padding[1],
        image_offset=source.offset // 4,
        image_pitch=pitch,
        image_row=width * pitch,
        image_batch=height * width * pitch,
    )
    size = local_size(plan.device, push.tiles * vectors)
    texels = texels_fit(plan.device, ProductOperands(source, source, rows))
    plan.dispatch(
        "winograd_spread_texels" if texels else "winograd_spread",
        (writing(rows), bind(source, texel_words=4 if texels else 0)),
        spread(-(-push.tiles * vectors // size)),
        (size, _rolls(plan.device)),
        push,
        iterations=1,
    )


def _append_products(plan: Plan, tiles: int, tail: int, operands: ProductOperands, filters: Factors) -> None:
    """The products of a band of tiles, with a matrix of filters each."""
    inner, columns = operands.activations.sizes[2] // 4, operands.result.sizes[2] // 4
    product = ProductPush(
        rows=tiles,
        inner=inner,
        columns=columns,
        input_offset=0,
        input_pitch=inner,
        input_batch=tiles * inner,
        weight_pitch=filters.pitch,
        weight_batch=filters.batch_stride,
        out_pitch=columns,
        out_batch=tiles * columns,
        group_columns=columns,
    )
    append_product(plan, product, operands, Epilogue(), batches=_PRODUCTS, inner_tail=tail)


def _append_gather(
    plan: Plan,
    band: _Band,
    convolution: Convolution,
    products: DeviceTensor,
    result: DeviceTensor,
    epilogue: Epilogue,
    residual: DeviceTensor | None,
) -> None:
    bias = None
    if convolution.bias is not None:
        assert convolution.bias.elements is not None
        bias = bias_vector(plan, convolution.bias.elements)
    operands = ProductOperands(products, products, result, bias, residual)
    vectors = aligned_channels(result.sizes[1]) // 4
    pitch, row, batch = pixel_strides(result)
    other = residual if residual is not None else result
    residual_pitch, residual_row, residual_batch = pixel_strides(other)
    push = band.push(
        vectors,
        height=result.sizes[2],
        width=result.sizes[3],
        image_offset=result.offset // 4,
        image_pitch=pitch,
        image_row=row,
        image_batch=batch,
        residual_offset=other.offset // 4,
        residual_pitch=residual_pitch,
        residual_row=residual_row,
        residual_batch=residual_batch,
    )
    size = local_size(plan.device, push.tiles * vectors)
    texels = texels_fit(plan.device, operands)
    plan.dispatch(
        "winograd_gather_texels" if texels else "winograd_gather",
        operands.bindings(texels),
        spread(-(-push.tiles * vectors // size)),
        (*epilogue_constants(epilogue, bias is not None), size, _rolls(plan.device), *operands.forms(epilogue)),
        push,
        iterations=1,
    )


def _rolls(device: DeviceInfo) -> int:
    return int(device.is_cpu and cpu_costs(device).rolls_stores)
