"""Two convolutions whose results are added. ``compile/fusion_shortcuts.py`` makes one node of them."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution, convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import folded_epilogue
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.summed_convolutions import append_summed_convolutions
from mobopt.runtimes.vulkan.lowerings.registry import lowers

SUMMED_CONVOLUTIONS = "mobopt::summed_convolutions"
"""Its body has a convolution, another one, what adds the results of both, and maybe an activation."""


@lowers(SUMMED_CONVOLUTIONS, exact=True)
def summed_convolutions(plan: Plan, node: Node) -> DeviceTensor:
    """One dispatch, or two."""
    parts = list(node.blocks[0].nodes)
    both = [convolution_of(part) for part in parts if has_trait(part.qualified_op, Trait.CONVOLUTION)]
    epilogue = folded_epilogue(parts[1:])
    assert epilogue is not None and len(both) == 2
    first, second = in_order(both[0], both[1])
    result = plan.result(node.output)
    sources = plan.tensor(first.input), plan.tensor(second.input)
    append_summed_convolutions(plan, (first, second), sources, result, epilogue)
    return result


def in_order(one: Convolution, other: Convolution) -> tuple[Convolution, Convolution]:
    """Two convolutions, the shortcut last: that of single pixels, and if both are, the one that has a stride."""
    is_shortcut = one.is_of_single_pixels and (one.stride != (1, 1) or not other.is_of_single_pixels)
    return (other, one) if is_shortcut else (one, other)


def can_be_shortcut(one: Convolution, other: Convolution) -> bool:
    """Whether one of two convolutions is of single pixels."""
    return one.is_of_single_pixels or other.is_of_single_pixels
