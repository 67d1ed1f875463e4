"""Norms and softmax whose results are rounded as they are stored; ``compile/fusion_roundings.py`` makes one node of
both."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.result_rounding import ROUNDED, ROUNDING
from mobopt.runtimes.vulkan.lowerings.registry import LoweringResult, lower_part, lowers


@lowers(ROUNDED, exact=True)
def rounded_result(plan: Plan, node: Node) -> LoweringResult:
    """What computes it stores it rounded."""
    first, rounding = node.blocks[0].nodes
    return lower_part(plan, first, node, ROUNDING, activation_of(rounding))
