"""Products of rows that are normalised as they are read: a layer norm before a linear layer takes no dispatch.

Of ``y = ((x - mean) * scale * gains + shifts) @ w + b``, gains and shifts go into weights and bias, once. What is left
is ``(x @ w' - mean * sums(w')) * scale + b'``, and mean and scale of a row are known when the walk along it ends. The
compiler's ``fusion_normalization.py`` finds them; the shaders' half is ``shaders/glsl/product_normalized.glsl``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from mobopt.ir import Node, Value
from mobopt.ops.quantized import Quantized
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Binding, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.gpu_kernels import predicted_nanoseconds
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies, splits, units_lanes
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.product_kernels import use_shared_memory
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS
from mobopt.runtimes.vulkan.kernels.weight_packing import bias_vector, rounded_matrix

NO_NORMALIZED_PRODUCTS = "no-normalized-products"
"""The switch by which normalisations keep a dispatch of their own."""
_MOST_ELEMENTS = 4096
"""Of a row: the inner dimension is not divided among workgroups, as each needs all of a row."""
_DISPATCHES = 2
"""That add up partial sums, in whose time one normalises: 4.4 to 5.2 us for 200 to 500 rows on an H100."""


@dataclass(frozen=True, eq=False)
class RowNormalization:
    """``(x - mean) / sqrt(variance + eps) * gains + shifts`` of each row."""

    gains: torch.Tensor | None
    shifts: torch.Tensor | None
    eps: float
    is_centered: bool
    """Else nothing is subtracted, and the mean square stands for the variance."""

    @property
    def vectors(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Gains and shifts."""
        return self.gains, self.shifts

    def weights(self, plan: Plan, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix (inner, columns) with the gains in it."""
        if self.gains is None:
            return matrix
        gains = self.gains
        return plan.constants.derived(
            [matrix, gains], ("gains in",), lambda: (matrix.double() * gains.double()[:, None]).to(matrix.dtype)
        )

    def bias(self, plan: Plan, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
        """A bias with what the shifts give, of the matrix without gains."""
        if self.shifts is None:
            return bias
        shifts, given = self.shifts, [] if bias is None else [bias]

        def shifted() -> torch.Tensor:
            own = shifts.double() @ matrix.double()
            return (own if bias is None else own + bias.double()).float()

        return plan.constants.derived([matrix, shifts, *given], ("shifts in",), shifted)

    def beside(
        self, plan: Plan, weight: Quantized, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, Normalization]:
        """The bias and the normalisation for a matrix (columns, inner) of few bits, which can't have the gains in it;
        floats are made of it on the host where there is something to add up."""
        column_sums = None
        if self.is_centered:
            gains = torch.ones(weight.sizes[1]) if self.gains is None else self.gains
            sources = [*weight.sources] if self.gains is None else [*weight.sources, gains]
            summed = plan.constants.derived(sources, ("gains summed",), lambda: _times(weight, gains))
            column_sums = bias_vector(plan, summed)
        shifts, given = self.shifts, [] if bias is None else [bias]

        def shifted() -> torch.Tensor:
            assert shifts is not None
            return _times(weight, shifts) if bias is None else _times(weight, shifts) + bias.float()

        if shifts is not None:
            bias = plan.constants.derived([*weight.sources, shifts, *given], ("shifts summed",), shifted)
        vector = None if self.gains is None else bias_vector(plan, self.gains)
        return bias, Normalization(column_sums, self.eps, self.is_centered, vector, of_few_bits=True)

    def normalization(self, plan: Plan, weights: torch.Tensor) -> Normalization:
        """As the kernels take it, for weights that have the gains in them."""
        elements = plan.weight_elements(weights)

        def sums() -> torch.Tensor:  # of what is multiplied, so that what is equal in all elements goes to the last bit
            return rounded_matrix(weights, elements).double().sum(0).float()

        summed = plan.constants.derived([weights], ("column sums", elements), sums)
        return Normalization(bias_vector(plan, summed), self.eps, self.is_centered)


@dataclass(frozen=True, eq=False)
class NormalizedInput:
    """A tensor that is a normalisation of rows, in float32 and by constants."""

    node: Node
    """What computes it."""
    source: Value
    rows: RowNormalization

    @staticmethod
    def of(value: Value) -> NormalizedInput | None:
        """What a tensor is a normalisation of; None if it is none."""
        node = value.producer
        is_centered = node is not None and node.qualified_op == "aten::layer_norm"
        if node is None or not (is_centered or node.qualified_op == "aten::rms_norm"):
            return None
        vectors = [node["weight"], node["bias"] if is_centered else None]
        if any(vector is not None and vector.elements is None for vector in vectors):
            return None
        source: Value = node.args[0]
        if len(node["normalized_shape"]) != 1 or not source.dtype == value.dtype == torch.float32:
            return None
        gains, shifts = (None if vector is None else vector.elements for vector in vectors)
        eps = torch.finfo(source.dtype).eps if node["eps"] is None else float(node["eps"])
        return NormalizedInput(node, source, RowNormalization(gains, shifts, eps, is_centered))


@dataclass(frozen=True, eq=False)
class Normalization:
    """What a product does beside its sums; tensors are dense vectors of float32 at offset 0, of whole vec4s."""

    column_sums: DeviceTensor | None
    """Which nobody reads where nothing is subtracted."""
    eps: float
    is_centered: bool
    gains: DeviceTensor | None = None
    """By which the input is multiplied, of weights of few bits."""
    of_few_bits: bool = False

    def bindings(self, other: DeviceTensor) -> tuple[Binding, ...]:
        """The last bindings of the kernels; ``other`` stands for what there isn't."""
        sums = bind(self.column_sums or other)
        return (sums, bind(self.gains or other)) if self.of_few_bits else (sums,)

    @property
    def constants(self) -> tuple[int | float, ...]:
        """The last specialization constants of the kernels."""
        numbers = int(self.is_centered), float(self.eps)
        return (*numbers, int(self.gains is not None)) if self.of_few_bits else numbers


def may_normalize(device: DeviceInfo, rows: int, inner: int, of_few_bits: bool = False) -> bool:
    """Whether a product on a device may normalise so many rows of so many elements, as far as sizes tell, by weights
    ``of_few_bits`` or by floats."""
    if NO_NORMALIZED_PRODUCTS in device.switches or not use_shared_memory(device) or not 0 < inner <= _MOST_ELEMENTS:
        return False
    # Of sizes it is asked last, as all that is asked of open ones is a condition on a recorded plan.
    return (not of_few_bits and units_lanes(device, device_costs(device)) > 0) or rows <= MOST_ROWS


def _times(weight: Quantized, vector: torch.Tensor) -> torch.Tensor:
    return (weight.floats().double() @ vector.double()).float()


def can_normalize(
    plan: Plan, source: DeviceTensor, rows: int, normalization: RowNormalization, weight: torch.Tensor | Quantized
) -> bool:
    """Whether there is a kernel for elements as they lie, where :func:`may_normalize` is true."""
    if isinstance(weight, Quantized):
        return True
    elements = plan.weight_elements(normalization.weights(plan, weight))
    by_units = source.elements == elements if multiplies(plan.device, elements) else splits(plan.device)
    return by_units or rows <= MOST_ROWS


def pays(device: DeviceInfo, rows: int, inner: int, columns: int, are_halves: bool) -> bool:
    """Whether a product that normalises its rows takes less time than two dispatches; sizes are in elements."""
    run = 4 if inner % 8 or columns % 8 else 8
    vectors, wide = -(-inner // 4), -(-columns // 4)
    apart = ProductShape(rows, vectors, wide, wide, is_plain=True, fits_fragments=run == 8)
    apart = replace(apart, half_run=run) if are_halves else replace(apart, float_run=run)
    within = replace(apart, is_normalized=True, fits_fragments=are_halves and run == 8)
    taken = [predicted_nanoseconds(device, shape) for shape in (within, apart)]
    return taken[0] < taken[1] + _DISPATCHES * device_costs(device).second_dispatch_nanoseconds
