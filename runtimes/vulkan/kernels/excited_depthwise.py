"""A depthwise convolution with the squeeze-and-excitation of what it makes (J. Hu et al., "Squeeze-and-excitation
networks", 2018), in two dispatches: the image's tiles give their share of its mean, and the layers that read the mean
add them up, so no dispatch reads the image for it.
"""

from __future__ import annotations

from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import (
    Expansion,
    Means,
    choose_expanded_kernel,
    dispatch_expansion,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.row_layers import RowLayersOperands, append_row_layers


@replayable
def append_excited_depthwise(
    plan: Plan,
    expansion: Expansion,
    layers: RowLayersOperands,
    between: Epilogue,
    epilogue: Epilogue,
    *,
    middle: int,
    given: Activation = IDENTITY,
) -> None:
    """Append both dispatches.

    Args:
        plan: where they go.
        expansion: the convolutions.
        layers: what reads the mean of the image over its pixels, a row for each image.
        between: what becomes of the first layer's sums.
        epilogue: what becomes of the second layer's.
        middle: elements of a row between the layers.
        given: what becomes of the mean before.
    """
    shape = expansion.shape(plan.device)
    kernel = choose_expanded_kernel(plan.device, shape, expansion.walk, Means.OF_TILES)
    batch, channels = expansion.operands.result.sizes[:2]
    lines = plan.empty((batch, kernel.tiles, 4 * shape.columns))
    dispatch_expansion(plan, expansion, kernel, lines)
    rows = lines.view((1, batch, channels), (0, lines.strides[0], 1))
    append_row_layers(plan, rows, layers, between, epilogue, middle=middle, addends=kernel.tiles, given=given)
