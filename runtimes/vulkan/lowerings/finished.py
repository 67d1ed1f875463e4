"""Norms and softmax with what is done to each number that they compute; ``compile/fusion_finishes.py`` makes one node
of them."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.kernels.activation import joined_activation
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.result_finish import FINISH, FINISHED
from mobopt.runtimes.vulkan.lowerings.registry import LoweringResult, lower_part, lowers


@lowers(FINISHED, exact=True)
def finished_result(plan: Plan, node: Node) -> LoweringResult:
    """What computes it stores it finished."""
    first, *steps = node.blocks[0].nodes
    return lower_part(plan, first, node, FINISH, joined_activation(steps))
