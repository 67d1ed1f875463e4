"""Products of matrices on the device: what the kernels for implicit GEMM are told, and the dispatch of one.

Rows are output pixels or rows of a matrix, columns are output channels; a vec4 holds four columns of a result or four
neighbours of the inner dimension of an input. The shaders' half is ``shaders/glsl/product.glsl``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Binding, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, StorageKind
from mobopt.runtimes.vulkan.kernels.device_costs import ahead_workgroups
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel, takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SUM_INVOCATIONS, SharedKernel
from mobopt.runtimes.vulkan.kernels.kernel_access import FORMS_OF_ELEMENTS, element_form, read_words, reads_texels
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel, multiplies, splits
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel, TileKernel, choose_product_kernel
from mobopt.runtimes.vulkan.kernels.product_normalizing import Normalization
from mobopt.runtimes.vulkan.kernels.product_planes import Planes
from mobopt.runtimes.vulkan.kernels.product_scaling import Scaling
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import RowKernel
from mobopt.runtimes.vulkan.kernels.unit_row_kernels import EIGHT, UnitRowKernel
from mobopt.runtimes.vulkan.kernels.weight_packing import Scales
from mobopt.shaders.enumerations import ElementForm, LoadMode
from mobopt.shaders.push_constants import ProductPush


@dataclass(frozen=True, eq=False)
class ProductOperands:
    """The tensors of a product; ``bias`` is a dense vector of float32 at offset 0, padded to whole vec4s."""

    activations: DeviceTensor
    weights: DeviceTensor
    result: DeviceTensor
    bias: DeviceTensor | None = None
    residual: DeviceTensor | None = None
    scales: Scales | None = None
    """Of weights of few bits, which a variant of the kernels reads."""
    scaling: Scaling | None = None
    """What becomes of the activations as they are read, by another variant."""
    normalization: Normalization | None = None
    """How rows of the activations are normalised, by another."""
    planes: Planes | None = None
    """How the activations are read that are planes of an image, by another: places of them count floats."""
    shortcut: int = 0
    """vec4s of the inner dimension, after those of the activations, that ``residual`` has, by another: the input of a
    convolution of single pixels whose result is added, with its strides as the residual's."""

    def bindings(self, texels: bool) -> tuple[Binding, ...]:
        """Bindings 0 to 4 of the kernels, and 5 for scales; a missing operand is bound to the activations, and not
        read."""

        def read(tensor: DeviceTensor, words: int = 0) -> Binding:
            return bind(tensor, texel_words=(words or read_words(tensor, LoadMode.VECTOR)) if texels else 0)

        weights = read(self.weights, 0 if self.scales is None else self.scales.bits // 2)
        missing = weights if self.scales is None else read(self.activations)
        others = (missing if tensor is None else read(tensor) for tensor in (self.bias, self.residual))
        scales = () if self.scales is None else (read(self.scales.tensor),)
        return (read(self.activations), weights, *others, bind(self.result, writes=True), *scales)

    def forms(self, epilogue: Epilogue) -> tuple[int | float, ...]:
        """The last specialization constants of the kernels: FORMS of ``epilogue.glsl``, which may be missing where all
        are float32, then those of ``quantized.glsl``."""
        tensors = (self.activations, self.weights, self.residual or self.result, self.result)
        forms = sum(element_form(tensor) << 3 * place for place, tensor in enumerate(tensors))
        forms |= rounding_form(epilogue)
        extras = [extra for extra in (self.scales, self.scaling, self.normalization) if extra is not None]
        if extras or self.shortcut:
            shortcut = (self.shortcut,) if self.shortcut else ()
            return (forms, *(number for extra in extras for number in extra.constants), *shortcut)
        return (forms,) if forms else ()


def _half_run(device: DeviceInfo, product: ProductPush, operands: ProductOperands, inner_tail: int) -> int:
    """:attr:`ProductShape.half_run` of a product."""
    if not _are_halves(device, operands):
        return 0
    p = product
    inputs = (p.inner, p.input_offset, p.input_pitch, p.input_batch)
    weights = (p.columns, p.group_columns, p.weight_offset, p.weight_pitch, p.weight_batch)
    return 4 if inner_tail % 4 or any(place % 2 for place in (*inputs, *weights)) else 8


_HALVES = frozenset({ElementForm.HALVES, ElementForm.ROUNDED})
_BFLOATS = frozenset({ElementForm.BFLOATS})
_FLOATS = _HALVES | _BFLOATS | {ElementForm.WORDS}


def _are_halves(device: DeviceInfo, operands: ProductOperands) -> bool:
    """Whether matrix units of a device, if it has any, multiply the operands as they lie."""
    forms = _forms(operands)
    return forms <= _HALVES or (forms == _BFLOATS and multiplies(device, torch.bfloat16))


def _forms(operands: ProductOperands) -> set[ElementForm]:
    """As what matrix units would read the operands; none of those that they read, if weights are of few bits."""
    if operands.scales is not None:
        return {ElementForm.BYTES}
    rounded = None if operands.planes is None else operands.planes.rounded
    values = element_form(operands.activations) if rounded is None else FORMS_OF_ELEMENTS[rounded]
    return {values, element_form(operands.weights)}


def _float_run(device: DeviceInfo, product: ProductPush, operands: ProductOperands, inner_tail: int) -> int:
    """:attr:`ProductShape.float_run` of a product."""
    if not _forms(operands) <= _FLOATS or _are_halves(device, operands):
        return 0
    sizes = (product.inner, product.columns, product.group_columns)
    return 4 if inner_tail or any(size % 2 for size in sizes) else 8


def _fits_fragments(plan: Plan, product: ProductPush, operands: ProductOperands, batches: int, inner_tail: int) -> bool:
    """:attr:`ProductShape.fits_fragments` of a product."""
    if not takes_fragments(plan.device):
        return False
    weights, p = operands.weights, product
    is_matrix = batches == 1 and p.weight_offset == 0 and not _is_grouped(p)
    if operands.scales is not None:
        return is_matrix and weights.storage.kind is StorageKind.CONSTANT and 1 << operands.scales.group >= EIGHT
    is_matrix = is_matrix and p.weight_pitch == p.columns
    lines = 4 * (p.inner * p.taps_high * p.taps_wide + operands.shortcut)
    is_whole = is_matrix and weights.storage.capacity == lines * 4 * p.columns
    if weights.storage.kind is not StorageKind.CONSTANT or not is_whole or not _fits_shortcut(p, operands):
        return False
    if not _are_halves(plan.device, operands):
        return not (inner_tail or p.inner % 2) and _splits_fragments(plan, operands)
    if operands.planes is not None:
        return True
    return not (inner_tail % 4 or any(place % 2 for place in (p.inner, p.input_offset, p.input_pitch, p.input_batch)))


def _fits_shortcut(product: ProductPush, operands: ProductOperands) -> bool:
    """Whether the other input of a product, if it has one, can go straight to registers as its activations do."""
    other, p = operands.residual, product
    if not operands.shortcut or other is None:
        return not operands.shortcut
    places = (operands.shortcut, p.residual_offset, p.residual_pitch, p.residual_row, p.residual_batch)
    return element_form(other) == element_form(operands.activations) and not any(place % 2 for place in places)


def _splits_fragments(plan: Plan, operands: ProductOperands) -> bool:
    """Whether ``product_fragments.comp`` can split the floats of operands into halves, weights on the host."""
    if operands.planes is not None or operands.normalization is not None or not splits(plan.device):
        return False
    return _forms(operands) <= _FLOATS and plan.constants.can_split(operands.weights)


def _ahead(device: DeviceInfo, operands: ProductOperands) -> int:
    """:attr:`ProductShape.ahead` of a product."""
    is_known = operands.weights.storage.kind is StorageKind.CONSTANT
    return ahead_workgroups(device) if is_known else 0


def rounding_form(epilogue: Epilogue) -> int:
    """What FORMS of ``epilogue.glsl`` says of an epilogue: to which elements it rounds between its steps."""
    return 0 if epilogue.rounding is None else FORMS_OF_ELEMENTS[epilogue.rounding] << 12


def texels_fit(device: DeviceInfo, operands: ProductOperands) -> bool:
    """Whether operands are read through texel buffers: CPU drivers do that faster; each must be within their size."""
    limit = device.limits.max_texel_buffer_elements
    scales = () if operands.scales is None else (operands.scales.tensor,)
    inputs = (operands.activations, operands.weights, operands.residual or operands.weights, *scales)
    return reads_texels(device) and all(tensor.storage.capacity // 4 <= limit for tensor in inputs)


def epilogue_constants(epilogue: Epilogue, has_bias: bool) -> tuple[int | float, ...]:
    """Specialization constants 0 to 7, those of ``epilogue.glsl``."""
    before, after = epilogue.before, epilogue.after
    return (
        int(has_bias),
        before.code,
        float(before.first),
        float(before.second),
        int(epilogue.residual is not None),
        after.code,
        float(after.first),
        float(after.second),
    )


@replayable
def append_product(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    epilogue: Epilogue,
    *,
    batches: int = 1,
    spatial: bool = False,
    padded: bool = False,
    inner_tail: int = 0,
    column_tail: int = 0,
) -> None:
    """Append the dispatches of a product.

    Args:
        plan: where it goes.
        product: sizes and places.
        operands: the tensors.
        epilogue: what becomes of the sums.
        batches: independent products, a stride apart (not if ``spatial``).
        spatial: whether rows are pixels of a grid.
        padded: whether taps may fall outside of the input.
        inner_tail: elements of the last vec4 of the inner dimension, 0 if it is full; 4, where halves go straight to
            registers, if only four of the last eight of a row of taps exist.
        column_tail: elements of the last vec4 of columns, 0 if it is full or the weights are zero beside them.
    """
    is_gated = epilogue.is_gated
    kernel, shape = chosen_kernel(
        plan, product, operands, batches=batches, spatial=spatial, inner_tail=inner_tail, is_gated=is_gated
    )
    if is_gated:
        assert isinstance(kernel, (RowKernel, UnitRowKernel)), "others would store gates and what passes them"
        assert kernel.group_columns % 2 == 0, "a gate would be in another workgroup than what passes it"
        kernel = replace(kernel, gated=True)
    if not isinstance(kernel, TileKernel):
        kernel = replace(kernel, reads_ahead=math.prod(kernel.groups(shape)) <= shape.ahead)
    if isinstance(kernel, MatrixKernel) and kernel.split:
        weights = plan.constants.split(operands.weights)
        kernel = replace(kernel, column_tail=column_tail if weights is None else 0, is_weight_split=weights is not None)
        operands = operands if weights is None else replace(operands, weights=weights)
    if isinstance(kernel, (MatrixKernel, FragmentKernel)):
        kernel = replace(kernel, bfloats=_forms(operands) == _BFLOATS)
    if isinstance(kernel, FragmentKernel):
        operands = replace(operands, weights=plan.constants.fragments(operands.weights, 4 * shape.inner))
        product = replace(product, weight_pitch=-(-shape.columns // 2) * (2 if kernel.split else 1))
    if operands.scales is not None:
        if isinstance(kernel, UnitRowKernel):
            scales, sizes = operands.scales, (4 * shape.inner, 4 * shape.columns)
            weights, vectors = plan.constants.row_units(operands.weights, scales.tensor, sizes, scales.has_offsets)
            operands = replace(operands, weights=weights, scales=replace(scales, tensor=vectors))
        elif isinstance(kernel, SharedKernel):
            kernel = replace(kernel, quantized=True, joins=False)
        elif isinstance(kernel, TileKernel):
            kernel = replace(kernel, quantized=True)
    if operands.scaling is not None:
        assert isinstance(kernel, (SharedKernel, MatrixKernel, FragmentKernel)), "others would leave it out"
        kernel = replace(kernel, scaled=True)
    if operands.planes is not None:
        assert isinstance(kernel, (SharedKernel, MatrixKernel, FragmentKernel)), "others can't read planes"
        kernel = replace(kernel, planar=True)
    if operands.normalization is not None:
        assert isinstance(kernel, (RowKernel, UnitRowKernel, MatrixKernel, FragmentKernel)), "others would leave it out"
        assert kernel.normalized
    if operands.shortcut:
        assert isinstance(kernel, FragmentKernel) and kernel.parts == 1, "others would leave it out"
        kernel = replace(kernel, shortcut=True)
    walk = (int(spatial), int(padded), inner_tail, int(_is_grouped(product)))
    if isinstance(kernel, TileKernel) and kernel.column_lanes > 1:
        product = ProductPush(**{**vars(product), "column_lanes": kernel.column_lanes.bit_length() - 1})
    append = _append_whole if kernel.parts == 1 else _append_parts
    if isinstance(kernel, SharedKernel) and kernel.joins:
        append = _append_joined
    for piece, piece_shape in _pieces(plan.device, product, kernel, shape):
        append(plan, piece, operands, kernel, piece_shape, epilogue, walk)


def chosen_kernel(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    *,
    batches: int = 1,
    spatial: bool = False,
    inner_tail: int = 0,
    is_gated: bool = False,
) -> tuple[ProductKernel, ProductShape]:
    """The kernel for a product, not yet as the variant that its operands need, and the shape that it is chosen for.

    The arguments are those of :func:`append_product`; ``is_gated`` is its epilogue's.
    """
    taps = product.taps_high * product.taps_wide
    shape = ProductShape(
        rows=product.rows,
        inner=product.inner * taps + operands.shortcut,
        columns=product.columns,
        group_columns=product.group_columns or product.columns,
        batches=batches,
        taps=taps,
        half_run=_half_run(plan.device, product, operands, inner_tail),
        float_run=_float_run(plan.device, product, operands, inner_tail),
        fits_fragments=_fits_fragments(plan, product, operands, batches, inner_tail),
        ahead=_ahead(plan.device, operands),
        is_plain=not (spatial or _is_grouped(product)) and taps == 1 and operands.scaling is None,
        bits=0 if operands.scales is None else operands.scales.bits,
        is_normalized=operands.normalization is not None,
        shortcut=operands.shortcut,
    )
    choose = plan.choose_product or choose_product_kernel
    if is_gated:  # as matrix units know nothing of gates but where weights have few bits
        shape = replace(shape, half_run=0, float_run=0, fits_fragments=shape.fits_fragments and shape.bits > 0)
    return choose(plan.device, shape, texels_fit(plan.device, operands)), shape


def _is_grouped(product: ProductPush) -> bool:
    """Whether a column reads only the channels of its group."""
    return product.group_columns not in (0, product.columns)


def _pieces(
    device: DeviceInfo, product: ProductPush, kernel: ProductKernel, shape: ProductShape
) -> Iterator[tuple[ProductPush, ProductShape]]:
    """The product as few ones whose workgroups the device can count: some of the batches and rows each."""
    across, down, deep = device.limits.max_compute_work_group_count
    rows = down * kernel.group_rows
    if kernel.parts > 1:
        summed = across * device.workgroup(SUM_INVOCATIONS) // shape.columns
        rows = min(rows, max(summed // kernel.group_rows, 1) * kernel.group_rows)
    batches = max(deep // (kernel.groups(shape)[2] // shape.batches), 1)
    if batches >= shape.batches and rows >= shape.rows:
        yield product, shape
        return
    for batch in range(0, shape.batches, batches):
        for row in range(0, shape.rows, rows):
            yield (
                replace(
                    product,
                    start_row=row,
                    input_offset=product.input_offset + batch * product.input_batch,
                    weight_offset=product.weight_offset + batch * product.weight_batch,
                    out_offset=product.out_offset + batch * product.out_batch,
                    residual_offset=product.residual_offset + batch * product.residual_batch,
                ),
                replace(shape, rows=min(rows, shape.rows - row), batches=min(batches, shape.batches - batch)),
            )


def _append_whole(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    kernel: ProductKernel,
    shape: ProductShape,
    epilogue: Epilogue,
    walk: tuple[int, ...],
    joining: tuple[Binding, ...] = (),
) -> None:
    """One dispatch; ``joining`` is what it joins parts with."""
    ends = epilogue_constants(epilogue, operands.bias is not None)
    extra: tuple[Binding, ...] = () if operands.scaling is None else operands.scaling.bindings()
    if operands.normalization is not None:
        extra = operands.normalization.bindings(operands.activations)
    plan.dispatch(
        kernel.shader,
        (*operands.bindings(kernel.texels), *joining, *extra),
        kernel.groups(shape),
        (*ends, *walk, *kernel.constants, *operands.forms(epilogue)),
        product,
        iterations=kernel.iterations(shape),
    )


def _append_joined(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    kernel: ProductKernel,
    shape: ProductShape,
    epilogue: Epilogue,
    walk: tuple[int, ...],
) -> None:
    """Partial sums, which the last workgroup of each block to arrive adds up, all in one dispatch."""
    assert isinstance(kernel, SharedKernel)
    groups = math.prod(kernel.groups(shape))
    partial = plan.empty((groups, kernel.partial_sums, 4))
    joining = (bind(partial, writes=True, reads=True), plan.counters(groups // kernel.parts))
    _append_whole(plan, product, operands, kernel, shape, epilogue, walk, joining)


def _append_parts(
    plan: Plan,
    product: ProductPush,
    operands: ProductOperands,
    kernel: ProductKernel,
    shape: ProductShape,
    epilogue: Epilogue,
    walk: tuple[int, ...],
) -> None:
    """Partial sums, then their sum with the epilogue."""
    partial = plan.empty((shape.batches * kernel.parts, product.rows, 4 * product.columns))
    parts = replace(operands, result=partial, bias=None, residual=None)
    _append_whole(plan, product, parts, kernel, shape, Epilogue(), walk)
    ends = epilogue_constants(epilogue, operands.bias is not None)
    sums = replace(operands, activations=partial, scales=None, scaling=None, planes=None)
    local_size = plan.device.workgroup(SUM_INVOCATIONS)
    plan.dispatch(
        "product_sum",
        sums.bindings(texels=False),
        (-(-shape.rows * product.columns // local_size), 1, shape.batches),
        (*ends, *walk, kernel.parts, local_size, *sums.forms(epilogue)),
        product,
        iterations=kernel.parts,
    )
