"""A convolution and the depthwise one that reads it, and a squeeze-and-excitation of what that makes.
``compile/fusion_depthwise.py`` and ``compile/fusion_excitation.py`` make one node of them."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Node
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue, folded_epilogue
from mobopt.runtimes.vulkan.kernels.excited_depthwise import append_excited_depthwise
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import Expansion, append_expanded_depthwise, expansion_of
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.row_layers import row_layers_of

EXPANDED_DEPTHWISE = "mobopt::expanded_depthwise"
"""Its body has a convolution, what follows it, a depthwise convolution of that, what follows it, and maybe the mean of
each of its images, which is a second result then."""
EXCITED_DEPTHWISE = "mobopt::excited_depthwise"
"""Its body has the same, and the two layers that read the mean, whose result is the second one then."""


@lowers(EXPANDED_DEPTHWISE, exact=True)
def expanded_depthwise(plan: Plan, node: Node) -> tuple[DeviceTensor, ...]:
    """One dispatch."""
    body = node.blocks[0]
    last, *means = [value.producer for value in body.outputs]
    parts = [part for part in body.nodes if part not in means]
    assert parts[-1] is last, "the mean is of what comes last"
    result, *others = plan.result(node.outputs[0]), *map(plan.own_result, node.outputs[1:])
    expansion = _expansion(plan, parts, result)
    append_expanded_depthwise(plan, expansion, others[0] if others else None)
    return (result, *others)


@lowers(EXCITED_DEPTHWISE, exact=True)
def excited_depthwise(plan: Plan, node: Node) -> tuple[DeviceTensor, DeviceTensor]:
    """Two dispatches."""
    body = node.blocks[0]
    parts, last = list(body.nodes), body.outputs[0].producer
    assert last is not None
    end = parts.index(last) + 1  # then comes the mean
    result = plan.result(node.outputs[0])
    layers = row_layers_of(plan, parts[end + 1 :], node.outputs[1])
    expansion = _expansion(plan, parts[:end], result)
    steps = layers.between, layers.epilogue
    append_excited_depthwise(plan, expansion, layers.operands, *steps, middle=layers.middle, given=layers.given)
    return result, layers.result


def _expansion(plan: Plan, parts: Sequence[Node], result: DeviceTensor) -> Expansion:
    """Of two convolutions and what follows each."""
    (_, place) = [place for place, part in enumerate(parts) if has_trait(part.qualified_op, Trait.CONVOLUTION)]
    before, after = parts[:place], parts[place:]
    expansion, depthwise = (convolution_of(stage[0]) for stage in (before, after))
    source, sizes = plan.tensor(expansion.input), before[-1].output.sizes
    return expansion_of(plan, expansion, depthwise, source, result, sizes, (_epilogue(before), _epilogue(after)))


def _epilogue(stage: Sequence[Node]) -> Epilogue:
    found = folded_epilogue(stage)
    assert found is not None and found.residual is None, "only steps that it has room for are folded"
    return found
