"""A convolution and one of single pixels whose result is added to its, as one product: the shortcut of a residual block
that changes its size (K. He et al., "Deep residual learning for image recognition", 2015).

The inner dimension of the product has both: first the taps and channels of the one, then the channels of the other,
which reads every pixel that its stride names. ``product_fragments.comp`` does so with ``SHORTCUT``; where it can't,
or would have to divide the inner dimension, there are two products, of which one adds the other's result.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_kernels import (
    append_grid,
    convolution_product,
    is_apart,
    is_padded,
    is_spatial,
)
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.pixels import whole_vectors
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.product import ProductOperands, append_product, chosen_kernel
from mobopt.runtimes.vulkan.kernels.weight_packing import Factors, bias_vector, product_weights


def append_summed_convolutions(
    plan: Plan,
    convolutions: tuple[Convolution, Convolution],
    sources: tuple[DeviceTensor, DeviceTensor],
    result: DeviceTensor,
    epilogue: Epilogue,
) -> None:
    """Append what makes ``after(first + second)``.

    Args:
        plan: where it goes.
        convolutions: of one group, with constant weights; the second is of single pixels and has no padding.
        sources: what they read.
        result: of both, (batch, channels, height, width).
        epilogue: ``before`` changes nothing; its residual stands for the result of one of them.
    """
    known = [convolution.filters for convolution in convolutions]
    weights = [weight for weight in known if isinstance(weight, torch.Tensor)]
    assert len(weights) == len(known) and epilogue.before.is_identity
    first, second = (whole_vectors(plan, source) for source in sources)
    both = plan.constants.derived(weights, ("with shortcut",), lambda: _with_shortcut(*weights))
    filters, bias = product_weights(plan, both), _sum_of_biases(plan, convolutions)
    inner = convolutions[1].group_inputs // 4
    operands = ProductOperands(first, filters.tensor, result, bias, second, shortcut=inner)
    _append_both(plan, convolutions, operands, filters, epilogue)


@replayable
def _append_both(
    plan: Plan,
    convolutions: tuple[Convolution, Convolution],
    operands: ProductOperands,
    filters: Factors,
    epilogue: Epilogue,
) -> None:
    """By one product if registers take it; ``filters`` are those of both, one after the other."""
    first, second = convolutions
    high, wide = second.stride
    product = convolution_product(first, operands, filters)
    both = replace(product, residual_pitch=product.residual_pitch * wide, residual_row=product.residual_row * high)
    spatial = is_spatial(both) or is_apart(product) or (high, wide) != (1, 1)
    kernel, _ = chosen_kernel(plan, both, operands, spatial=spatial)
    if isinstance(kernel, FragmentKernel) and kernel.parts == 1:
        ends = replace(epilogue, residual=None)
        append_product(plan, both, operands, ends, spatial=spatial, padded=is_padded(both))
        return
    # The weights of the second lie behind those of the first.
    source, result = operands.residual, operands.result
    assert source is not None
    made = plan.empty(result.sizes, result.dtype, elements=result.elements)
    alone = replace(operands, activations=source, result=made, bias=None, residual=None, shortcut=0)
    behind = 4 * product.inner * product.taps_high * product.taps_wide * product.weight_pitch
    append_grid(plan, replace(convolution_product(second, alone, filters), weight_offset=behind), alone, Epilogue(), 0)
    summed = replace(operands, residual=made, shortcut=0)
    append_grid(plan, convolution_product(first, summed, filters), summed, epilogue, 0)


def _with_shortcut(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Filters (out, taps and channels of the first, then channels of the second, 1, 1)."""
    lines = [first.detach().permute(0, 2, 3, 1).flatten(1), second.detach().flatten(1)]
    return torch.cat(lines, 1)[:, :, None, None].contiguous()


def _sum_of_biases(plan: Plan, convolutions: tuple[Convolution, Convolution]) -> DeviceTensor | None:
    biases = [convolution.bias.elements for convolution in convolutions if convolution.bias is not None]
    known = [bias for bias in biases if bias is not None]
    assert len(known) == len(biases), "biases are constants"
    if len(known) < 2:
        return bias_vector(plan, known[0]) if known else None
    return bias_vector(plan, plan.constants.derived(known, ("biases of both",), lambda: known[0] + known[1]))
