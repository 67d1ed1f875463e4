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
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, StorageKind
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, cpu_costs, device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import predicted_nanoseconds
from mobopt.runtimes.vulkan.kernels.kernel_access import local_size, spread, writing
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.product import ProductOperands, append_product, epilogue_constants, texels_fit
from mobopt.runtimes.vulkan.kernels.product_kernels import LANES, predicted_tile_nanoseconds, use_shared_memory
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.winograd_weights import PRODUCTS, TILE
from mobopt.shaders.push_constants import ProductPush, WinogradPush

NO_WINOGRAD = "no-winograd"
_BAND_NUMBERS, _GPU_BAND_NUMBERS = 1 << 21, 1 << 24
"""That are multiplied, or made by that, at a time. 8 MB are what a CPU's caches hold: with 100 MB calls took up to 1.6
times as long. An H200 takes a seventh longer with 32 MB than with all; 64 MB are a bound of the memory."""
_SECOND_DISPATCHES = 3
"""Times what costs of GPUs say of a dispatch that waits for another, each of these took on an H200."""
_MOST_TIME = 0.9
"""Of one product's, that a GPU may take: filters take four times their memory for it."""


def fits_winograd(plan: Plan, product: ProductPush, operands: ProductOperands) -> bool:
    """Whether a convolution as a product can be computed so: of float32, with filters that are known, where nobody has
    a say in how products are computed."""
    p = product
    steps = (p.taps_high, p.taps_wide, p.stride_high, p.stride_wide, p.dilation_high, p.dilation_wide)
    if steps != (3, 3, 1, 1, 1, 1) or p.group_columns != p.columns or plan.choose_product is not None:
        return False
    others = (operands.scales, operands.scaling, operands.planes, operands.normalization)
    if any(other is not None for other in others) or operands.shortcut or NO_WINOGRAD in plan.device.switches:
        return False
    weights = operands.weights.storage
    are_known = weights.kind is StorageKind.CONSTANT and weights.data is not None
    return are_known and weights.elements == operands.activations.storage.elements == torch.float32


def is_faster(device: DeviceInfo, product: ProductPush, inner_tail: int) -> bool:
    """Whether a convolution of 3 x 3 taps should take less time so than as one product.

    ``inner_tail`` is that of :func:`append_product`.
    """
    inner, columns = product.inner, product.columns
    run = 4 if inner_tail or inner % 2 or columns % 2 else 8
    plain = ProductShape(product.rows, 9 * inner, columns, columns, taps=9, float_run=run)
    parts = ProductShape(_tile_count(product), inner, columns, columns, batches=PRODUCTS, float_run=run)
    waits = 3 * len(_band_tiles(device, product)) - 1
    compare = _is_faster_on_gpu if use_shared_memory(device) else _is_faster_on_cpu
    return compare(device, plain, parts, waits)


def _is_faster_on_gpu(device: DeviceInfo, plain: ProductShape, parts: ProductShape, waits: int) -> bool:
    costs = device_costs(device)
    plain = replace(plain, fits_fragments=takes_fragments(device) and plain.float_run == 8)
    rate = 32 * core_count(device) * costs.cycles_per_nanosecond
    taken = predicted_nanoseconds(device, parts) + _transforms(parts, costs.fetch_cycles, costs.store_cycles) / rate
    taken += waits * _SECOND_DISPATCHES * costs.second_dispatch_nanoseconds
    return taken < _MOST_TIME * predicted_nanoseconds(device, plain)


def _is_faster_on_cpu(device: DeviceInfo, plain: ProductShape, parts: ProductShape, waits: int) -> bool:
    costs = cpu_costs(device)
    transforming = costs.transforms * _transforms(parts, costs.fetch, costs.store) / (LANES * costs.threads)
    taken = transforming + costs.short_products * predicted_tile_nanoseconds(device, parts)
    return taken + waits * costs.dispatch < predicted_tile_nanoseconds(device, plain)


def _transforms(parts: ProductShape, fetch: float, store: float) -> float:
    """What both transformations take, each vec4 by itself."""
    spreading, gathering = PRODUCTS * (fetch + store), PRODUCTS * fetch + TILE * TILE * store
    return parts.rows * (parts.inner * spreading + parts.columns * gathering)


def _band_tiles(device: DeviceInfo, product: ProductPush) -> list[int]:
    """How many tiles each band has."""
    tiles = _tile_count(product)
    numbers = _GPU_BAND_NUMBERS if use_shared_memory(device) else _BAND_NUMBERS
    most = max(numbers // (PRODUCTS * 4 * (product.inner + product.columns)), 1)
    count = -(-tiles // most)
    return [tiles * (index + 1) // count - tiles * index // count for index in range(count)]


def _tile_count(product: ProductPush) -> int:
    """Tiles of all images of a result."""
    batch = product.rows // (product.out_height * product.out_width)
    return batch * -(-product.out_height // TILE) * -(-product.out_width // TILE)


def append_winograd(
    plan: Plan, product: ProductPush, operands: ProductOperands, epilogue: Epilogue, inner_tail: int
) -> None:
    """Three dispatches for each band of tiles, of what :func:`append_product` would be given."""
    inner, columns = product.inner, product.columns
    weights = plan.constants.winograd(operands.weights, columns // product.weight_pitch)
    bands = _band_tiles(plan.device, product)
    rows = plan.empty((PRODUCTS, max(bands), 4 * inner))
    products = plan.empty((PRODUCTS, max(bands), 4 * columns))
    first = 0
    for tiles in bands:
        band = _Band(first, tiles, -(-product.out_height // TILE), -(-product.out_width // TILE))
        _append_spread(plan, band, product, operands.activations, rows)
        matrices = ProductPush(
            rows=tiles,
            inner=inner,
            columns=columns,
            input_offset=0,
            input_pitch=inner,
            input_batch=tiles * inner,
            weight_pitch=product.weight_pitch,
            weight_batch=4 * inner * columns,
            out_pitch=columns,
            out_batch=tiles * columns,
            group_columns=columns,
        )
        multiplied = ProductOperands(rows, weights, products)
        append_product(plan, matrices, multiplied, Epilogue(), batches=PRODUCTS, inner_tail=inner_tail)
        _append_gather(plan, band, product, replace(operands, activations=products, weights=products), epilogue)
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


def _append_spread(plan: Plan, band: _Band, product: ProductPush, source: DeviceTensor, rows: DeviceTensor) -> None:
    push = band.push(
        product.inner,
        height=product.height,
        width=product.width,
        top=-product.first_high,
        left=-product.first_wide,
        image_offset=product.input_offset,
        image_pitch=product.input_pitch,
        image_row=product.width * product.input_pitch,
        image_batch=product.input_batch,
    )
    invocations = band.tiles * product.inner
    size = local_size(plan.device, invocations)
    texels = texels_fit(plan.device, ProductOperands(source, source, rows))
    plan.dispatch(
        "winograd_spread_texels" if texels else "winograd_spread",
        (writing(rows), bind(source, texel_words=4 if texels else 0)),
        spread(-(-invocations // size)),
        (size, _rolls(plan.device)),
        push,
        iterations=1,
    )


def _append_gather(
    plan: Plan, band: _Band, product: ProductPush, operands: ProductOperands, epilogue: Epilogue
) -> None:
    push = band.push(
        product.columns,
        height=product.out_height,
        width=product.out_width,
        image_offset=product.out_offset,
        image_pitch=product.out_pitch,
        image_row=product.out_row,
        image_batch=product.out_batch,
        residual_offset=product.residual_offset,
        residual_pitch=product.residual_pitch,
        residual_row=product.residual_row,
        residual_batch=product.residual_batch,
    )
    invocations = band.tiles * product.columns
    size = local_size(plan.device, invocations)
    texels = texels_fit(plan.device, operands)
    plan.dispatch(
        "winograd_gather_texels" if texels else "winograd_gather",
        operands.bindings(texels),
        spread(-(-invocations // size)),
        (
            *epilogue_constants(epilogue, operands.bias is not None),
            size,
            _rolls(plan.device),
            *operands.forms(epilogue),
        ),
        push,
        iterations=1,
    )


def _rolls(device: DeviceInfo) -> int:
    return int(device.is_cpu and cpu_costs(device).rolls_stores)
