"""Other sizes for all elements in their order: a view where strides can say it, else a copy."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.views import reshaped
from mobopt.runtimes.vulkan.lowerings.views import reshapes
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_of


@reshapes(
    "aten::view",
    "aten::_unsafe_view",
    "aten::reshape",
    "aten::_reshape_alias",
    "aten::view_as",
    "aten::reshape_as",
    "aten::flatten.using_ints",
    "aten::unflatten.int",
    "aten::ravel",
    "aten::atleast_1d",
    "aten::atleast_2d",
    "aten::view_copy",
)
def reshape(plan: Plan, call: Node) -> DeviceTensor:
    """A copy lies as who reads it wants."""
    return reshaped(plan, plan.tensor(call.args[0]), call.output.sizes, lambda: wanted_of(call.output))
