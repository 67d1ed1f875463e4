"""A convolution and the depthwise one that reads it. ``compile/fusion_depthwise.py`` makes one node of them."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Node
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue, folded_epilogue
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import append_expanded_depthwise
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import lowers

EXPANDED_DEPTHWISE = "mobopt::expanded_depthwise"
"""Its body has a convolution, what follows it, a depthwise convolution of that, what follows it, and maybe the mean of
each of its images, which is a second result then."""


@lowers(EXPANDED_DEPTHWISE, exact=True)
def expanded_depthwise(plan: Plan, node: Node) -> tuple[DeviceTensor, ...]:
    """One dispatch."""
    body = node.blocks[0]
    nodes = list(body.nodes)
    last, *means = [value.producer for value in body.outputs]
    places = [place for place, part in enumerate(nodes) if has_trait(part.qualified_op, Trait.CONVOLUTION)]
    stages = nodes[: places[1]], [part for part in nodes[places[1] :] if part not in means]
    assert stages[1][-1] is last, "the mean is of what comes last"
    expansion, depthwise = (convolution_of(stage[0]) for stage in stages)
    result, *others = plan.result(node.outputs[0]), *map(plan.own_result, node.outputs[1:])
    append_expanded_depthwise(
        plan,
        expansion,
        depthwise,
        plan.tensor(expansion.input),
        result,
        others[0] if others else None,
        stages[0][-1].output.sizes,
        (_epilogue(stages[0]), _epilogue(stages[1])),
    )
    return (result, *others)


def _epilogue(stage: Sequence[Node]) -> Epilogue:
    found = folded_epilogue(stage)
    assert found is not None and found.residual is None, "only steps that it has room for are folded"
    return found
