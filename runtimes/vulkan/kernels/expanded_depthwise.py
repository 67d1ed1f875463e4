"""A convolution and the depthwise one that reads it, in one dispatch: the first half of an inverted residual
(M. Sandler et al., "MobileNetV2: Inverted residuals and linear bottlenecks", 2018).

A workgroup computes some channels of a region of the expanded image in shared memory, and filters them. The image
between is never in memory. A region is all of a small image, whose mean may be a second result then; larger images have
tiles, whose regions overlap, and which give sums of theirs (``excited_depthwise.py``). The shaders' half is
``shaders/glsl/product_depthwise.glsl``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_kernels import (
    convolution_operands,
    convolution_product,
    is_padded,
    is_spatial,
)
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution
from mobopt.runtimes.vulkan.kernels.costs import CORE_INVOCATIONS, CORE_REGISTERS, DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import ahead_workgroups, core_count, device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import KEPT_CHOICES, SharedKernel
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form
from mobopt.runtimes.vulkan.kernels.pixels import is_copied, whole_vectors
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product import ProductOperands, epilogue_constants
from mobopt.runtimes.vulkan.kernels.product_planes import NO_PLANAR_INPUTS, Planes, are_planes
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_layers import MOST_ADDENDS
from mobopt.runtimes.vulkan.kernels.weight_packing import bias_vector, depthwise_weights, product_weights
from mobopt.shaders.push_constants import ProductPush

NO_EXPANDED_DEPTHWISE = "no-expanded-depthwise"
"""The switch by which depthwise convolutions read what they filter from memory."""


@dataclass(frozen=True)
class FilterWalk:
    """How a depthwise filter goes over images of a size; one number for rows, one for columns."""

    height: int
    width: int
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Before the first element and after the last."""
    dilation: tuple[int, ...]

    @property
    def results(self) -> tuple[int, int]:
        """Height and width of what it gives."""
        high, wide = (
            (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
            for size, padding, dilation, taps, stride in zip(
                (self.height, self.width), self.padding, self.dilation, self.taps, self.stride, strict=True
            )
        )
        return high, wide

    def region(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Height and width of what a tile of results reads."""
        high, wide = (
            (size - 1) * stride + (taps - 1) * dilation + 1
            for size, stride, taps, dilation in zip(tile, self.stride, self.taps, self.dilation, strict=True)
        )
        return high, wide


@dataclass(frozen=True, kw_only=True)
class ExpandedKernel(SharedKernel):
    """``product_shared.comp`` with a depthwise convolution at its end."""

    walk: FilterWalk
    """How it filters."""
    tile: tuple[int, int]
    """Results of a workgroup, rows and columns."""
    region: tuple[int, int]
    """What it expands for them."""
    is_whole: bool
    """Whether that is all of an image."""

    @property
    def shader(self) -> str:
        """The variant's name."""
        return f"product_shared_depthwise{'_planar' if self.planar else ''}"

    @property
    def taps(self) -> int:
        """Of the filter."""
        return math.prod(self.walk.taps)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup: that of the product, which also holds the region, and filters."""
        region = 16 * max(self.teams * self.block_rows * self.block_columns, self.invocations)
        return max(super().shared_bytes, region) + 16 * self.taps * self.block_columns

    @property
    def turns(self) -> int:
        """vec4s of the result that an invocation computes, one after the other."""
        return -(-math.prod(self.tile) * self.block_columns // self.invocations)

    @property
    def filter_constants(self) -> tuple[int, ...]:
        """Specialization constants from 22 on."""
        walk = self.walk
        places = (walk.taps, walk.stride, walk.dilation, walk.padding, self.region, self.tile)
        return (*(number for pair in places for number in pair), int(self.is_whole))

    @property
    def tiles(self) -> int:
        """Of an image."""
        return math.prod(-(-size // own) for size, own in zip(self.walk.results, self.tile, strict=True))

    def groups(self, shape: ProductShape) -> tuple[int, int, int]:
        """Workgroups of a dispatch."""
        return -(-shape.columns // self.block_columns), self.tiles, shape.batches

    def iterations(self, shape: ProductShape) -> int:
        """How often an invocation goes round its loops."""
        filters = -(-self.taps * self.block_columns // self.invocations)
        return super().iterations(shape) + filters + self.turns + self.invocations.bit_length()


_TILES = ((2, 2), (4, 4), (4, 7), (4, 8), (7, 7), (8, 8), (7, 14), (8, 16), (14, 14), (16, 16))
_MOST_PIXELS_OF_MEANS = 256
"""Of an image whose mean is taken: it is one region."""
_MOST_PIXELS = 512
"""Of a region: its sums lie in registers of a workgroup."""
_BLOCKS = tuple(itertools.product((2, 4), (2, 4, 8), (2, 4, 8), (1, 2, 4)))
"""Rows of an invocation, vec4s of columns of a workgroup, those of the inner dimension in a tile, and teams."""
_LEAST_INVOCATIONS = 64
"""Of a workgroup, unless the region has too few pixels."""
_MOST_INVOCATIONS = 512


def expanded_kernels(device: DeviceInfo, walk: FilterWalk, needs_means: bool = False) -> list[ExpandedKernel]:
    """Every kernel that a device can run; those that ``needs_means`` have an image in one region."""
    regions = list(_regions(walk, needs_means))
    found = [kernel for region in regions for kernel in _kernels(walk, *region) if kernel.fits(device)]
    return [kernel for kernel in found if kernel.invocations >= _LEAST_INVOCATIONS] or found


def _kernels(
    walk: FilterWalk, tile: tuple[int, int], region: tuple[int, int], is_whole: bool
) -> Iterator[ExpandedKernel]:
    """Those of a tile."""
    for rows, columns, inner_block, teams in _BLOCKS:
        steps = -(-math.prod(region) // rows)
        while steps * columns * teams % inner_block:
            steps += 1
        kernel = ExpandedKernel(
            steps * rows,
            columns,
            rows,
            columns=1,
            inner_block=inner_block,
            teams=teams,
            walk=walk,
            tile=tile,
            region=region,
            is_whole=is_whole,
        )
        if kernel.invocations <= _MOST_INVOCATIONS and inner_block % teams == 0:
            yield kernel


def _regions(walk: FilterWalk, needs_means: bool) -> Iterator[tuple[tuple[int, int], tuple[int, int], bool]]:
    """Tiles, what they read, and whether that is all of an image. Tiles are the same for all sizes, so that some kernel
    fits any size if one fits a large one."""
    if walk.height * walk.width <= _MOST_PIXELS:
        yield walk.results, (walk.height, walk.width), True
    if needs_means:
        return
    for tile in _TILES:
        region = walk.region(tile)
        if math.prod(region) <= _MOST_PIXELS:
            yield tile, region, False


_LATENCY = 75.0
"""Cycles of a tile of the inner dimension that nothing else hides. This and what follows was fitted to 1,780 timings of
32 layers of MobileNets and EfficientNet on an H200: the kernels that it chooses take 3 % more than the best."""
_FETCH = 36.0
"""Of 32 vec4s from memory to shared memory."""
_READ = 0.92
"""Of 32 vec4s from shared memory, by the product."""
_TAP = 5.7
"""Of a tap of a filter that nothing else hides."""
_START = 275.0
"""Of a workgroup."""
_ENTRY = 2060.0
"""Of workgroups that a core has at the same time, from the first instruction to the last store, that nothing else
hides."""
_ROOM_BYTES = 48 << 10
"""Of shared memory that workgroups have which a core has at the same time: the driver gives them no more together than
it lets one have, though the core of an H200 has 228 KiB (fitted)."""
_ROOM_WORKGROUPS = 32
_REGISTERS = 38
"""Of an invocation, ..."""
_ROW_REGISTERS = 8
"""... and for each of its rows."""
_LINE = 1.0
"""Of a vec4 of a tile's sums, which each workgroup of what reads them adds up: a guess."""
_LARGE = 1 << 12
"""Rows and columns of an image that is no region."""
_MOST_WORK = 11_000
"""Of a core: vec4s of the inner dimension times vec4s of the expanded image. On an H100 all layers of MobileNets and
EfficientNet at batch 1 gain (up to 9,200), those of 18,000 and more (batch 8) lose up to 8 %."""


def _workgroups_at_once(kernel: ExpandedKernel) -> int:
    """How many a core has room for."""
    invocations = -(-kernel.invocations // 32) * 32
    registers = (_REGISTERS + _ROW_REGISTERS * kernel.rows) * invocations
    room = min(_ROOM_BYTES // kernel.shared_bytes, CORE_REGISTERS // registers, CORE_INVOCATIONS // invocations)
    return max(1, min(room, _ROOM_WORKGROUPS))


def expanded_nanoseconds(kernel: ExpandedKernel, shape: ProductShape, costs: DeviceCosts, cores: int) -> float:
    """What it takes, apart from what every dispatch of its kind does."""
    queue = -(-math.prod(kernel.groups(shape)) // cores)
    turns = -(-queue // _workgroups_at_once(kernel))
    step = (
        16 * kernel.block_rows * kernel.block_columns * kernel.inner_block / costs.multiplications_per_cycle
        + _READ * kernel.invocations * kernel.inner_block / kernel.teams * (kernel.rows + 4) / 32
        + _FETCH * kernel.inner_block * (kernel.block_rows + 4 * kernel.block_columns) / 32
    )
    steps = -(-shape.inner // kernel.inner_block)
    work = _START + steps * step
    waits = _ENTRY + steps * _LATENCY + _TAP * kernel.taps * kernel.turns
    return max(turns * (waits + work), queue * work) / costs.cycles_per_nanosecond


class Means(Enum):
    """What becomes of the mean of each image."""

    NONE = "not asked for"
    WHOLE = "a result"
    OF_TILES = "a result as sums of tiles, which its reader adds up"


def choose_expanded_kernel(device: DeviceInfo, shape: ProductShape, walk: FilterWalk, means: Means) -> ExpandedKernel:
    """The kernel that should take the least time."""
    return _choose(device, device_costs(device), shape, walk, means)


@lru_cache(maxsize=KEPT_CHOICES)
def _choose(
    device: DeviceInfo, costs: DeviceCosts, shape: ProductShape, walk: FilterWalk, means: Means
) -> ExpandedKernel:
    cores = core_count(device)

    def nanoseconds(kernel: ExpandedKernel) -> float:
        own = expanded_nanoseconds(kernel, shape, costs, cores)
        lines = kernel.tiles if means is Means.OF_TILES else 0
        return own + _LINE * lines * shape.columns / costs.cycles_per_nanosecond

    kernels = expanded_kernels(device, walk, means is Means.WHOLE)
    if means is Means.OF_TILES:
        kernels = [kernel for kernel in kernels if kernel.tiles <= MOST_ADDENDS]
    return min(kernels, key=nanoseconds)


def most_expanded_pixels(device: DeviceInfo, expansion: Convolution, depthwise: Convolution) -> int:
    """Of all images together: how many pixels between the two convolutions one dispatch may have to be worth it. It
    computes the borders of its regions again, by smaller blocks than a product of its own would have."""
    if NO_EXPANDED_DEPTHWISE in device.switches or not _has_kernels(device, _walk_of(depthwise, _LARGE, _LARGE)):
        return 0
    inner = -(-expansion.group_inputs // 4) * math.prod(expansion.taps)
    columns = -(-expansion.group_outputs // 4)
    return _MOST_WORK * core_count(device) // (inner * columns)


def most_pixels_of_tiles(device: DeviceInfo, depthwise: Convolution) -> int:
    """How many pixels a filtered image may have whose tiles give sums: at most ``MOST_ADDENDS`` of the largest square
    ones cover it."""
    walk = _walk_of(depthwise, _LARGE, _LARGE)
    sides = [kernel.tile[0] for kernel in expanded_kernels(device, walk) if kernel.tile[0] == kernel.tile[1]]
    return MOST_ADDENDS * max(sides, default=0)


def most_pixels_of_means(device: DeviceInfo, depthwise: Convolution) -> int:
    """How many pixels an image may have that is filtered and whose mean is taken in the same dispatch, as a whole."""
    pixels = _MOST_PIXELS_OF_MEANS
    while pixels and not _has_kernels(device, _walk_of(depthwise, pixels, 1), needs_means=True):
        pixels //= 2
    return pixels


@lru_cache(maxsize=KEPT_CHOICES)
def _has_kernels(device: DeviceInfo, walk: FilterWalk, needs_means: bool = False) -> bool:
    return bool(expanded_kernels(device, walk, needs_means))


def _walk_of(depthwise: Convolution, height: int, width: int) -> FilterWalk:
    return FilterWalk(height, width, depthwise.taps, depthwise.stride, depthwise.padding, depthwise.dilation)


@dataclass(frozen=True, eq=False)
class Expansion:
    """A convolution and the depthwise one that reads it, with their tensors."""

    product: ProductPush
    operands: ProductOperands
    """Of the first; its result is that of the second."""
    weights: DeviceTensor
    bias: DeviceTensor | None
    """Of the second."""
    walk: FilterWalk
    epilogues: tuple[Epilogue, Epilogue]
    inner_tail: int

    def shape(self, device: DeviceInfo) -> ProductShape:
        """The first as a product."""
        product, taps = self.product, self.product.taps_high * self.product.taps_wide
        return ProductShape(
            rows=self.walk.height * self.walk.width,
            inner=product.inner * taps,
            columns=product.columns,
            group_columns=product.columns,
            batches=self.operands.activations.sizes[0],
            taps=taps,
            ahead=ahead_workgroups(device),
        )


def expansion_of(
    plan: Plan,
    expansion: Convolution,
    depthwise: Convolution,
    source: DeviceTensor,
    result: DeviceTensor,
    expanded_sizes: tuple[int, ...],
    epilogues: tuple[Epilogue, Epilogue],
) -> Expansion:
    """What :func:`append_expanded_depthwise` takes.

    Args:
        plan: where it goes.
        expansion: an ordinary convolution of one group.
        depthwise: what reads it.
        source: what the expansion reads.
        result: what the depthwise convolution makes, (batch, channels, height, width).
        expanded_sizes: of the image between.
        epilogues: of both.
    """
    weight, filters = expansion.filters, depthwise.weight.elements
    assert weight is not None and filters is not None
    is_image = are_planes(source) and is_copied(source) and NO_PLANAR_INPUTS not in plan.device.switches
    source = source if is_image else whole_vectors(plan, source)
    factors = product_weights(plan, weight)
    operands = convolution_operands(plan, expansion, source, factors, result, None)
    operands = replace(operands, planes=Planes() if is_image else None)
    product = convolution_product(expansion, operands, factors)
    height, width = expanded_sizes[2:]
    product = replace(product, out_height=height, out_width=width)
    bias = None if depthwise.bias is None else depthwise.bias.elements
    return Expansion(
        product,
        operands,
        depthwise_weights(plan, filters),
        None if bias is None else bias_vector(plan, bias),
        _walk_of(depthwise, height, width),
        epilogues,
        expansion.group_inputs % 4,
    )


@replayable
def append_expanded_depthwise(plan: Plan, expansion: Expansion, means: DeviceTensor | None) -> None:
    """Append the dispatch.

    Args:
        plan: where it goes.
        expansion: what it computes.
        means: (batch, channels, 1, 1), of the result over its pixels, if they are asked for.
    """
    kind = Means.NONE if means is None else Means.WHOLE
    kernel = choose_expanded_kernel(plan.device, expansion.shape(plan.device), expansion.walk, kind)
    dispatch_expansion(plan, expansion, kernel, means)


def dispatch_expansion(plan: Plan, expansion: Expansion, kernel: ExpandedKernel, means: DeviceTensor | None) -> None:
    """Append the dispatch of a kernel; ``means`` have room for those of each tile, which add up to the image's."""
    shape, product, operands = expansion.shape(plan.device), expansion.product, expansion.operands
    groups = kernel.groups(shape)
    is_planar = operands.planes is not None
    kernel = replace(kernel, planar=is_planar, reads_ahead=math.prod(groups) <= shape.ahead)
    epilogue, end = expansion.epilogues
    then, after = end.before, end.after
    written = means or operands.result
    plan.dispatch(
        kernel.shader,
        (
            *operands.bindings(texels=False),
            bind(expansion.weights),
            bind(expansion.bias or expansion.weights),
            bind(written, writes=True),
        ),
        groups,
        (
            *epilogue_constants(epilogue, operands.bias is not None),
            int(is_planar or is_spatial(product)),
            int(is_padded(product)),
            expansion.inner_tail,
            0,
            *kernel.constants,
            (operands.forms(epilogue) or (0,))[0],
            *kernel.filter_constants,
            int(expansion.bias is not None),
            then.code,
            float(then.first),
            float(then.second),
            element_form(expansion.weights),
            int(means is not None),
            element_form(written),
            after.code,
            float(after.first),
            float(after.second),
        ),
        replace(product, rows=math.prod(kernel.region)),
        iterations=kernel.iterations(shape),
    )
