"""The operators that are nothing but copies between layouts and dtypes."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.ir.schemas import argument_names
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, default_strides
from mobopt.runtimes.vulkan.kernels.copies import copied, strided_copy
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import lowers


@lowers("aten::clone", "aten::lift_fresh_copy", check=check_dtypes, exact=True, long=True)
def clone(plan: Plan, call: Node) -> DeviceTensor:
    """A copy, in the default layout."""
    return copied(plan, plan.tensor(call.args[0]))


@lowers("aten::contiguous", check=check_dtypes, exact=True, long=True)
def contiguous(plan: Plan, call: Node) -> DeviceTensor:
    """The tensor itself if it is in the default layout, else a copy: which layout that is, is the device's own
    affair."""
    tensor = plan.tensor(call.args[0])
    if tensor.is_contiguous or tensor.strides == default_strides(tensor.sizes, tensor.dtype):
        return tensor
    return copied(plan, tensor)


@lowers(
    "aten::to.device",
    "aten::to.dtype",
    "aten::to.other",
    "aten::to.prim_Device",
    "aten::to.prim_dtype",
    "aten::to.prim_other",
    "aten::to.dtype_layout",
    "aten::_to_copy",
    "aten::type_as",
    "aten::cpu",
    check=check_dtypes,
    exact=True,
    long=True,
)
def convert(plan: Plan, call: Node) -> DeviceTensor:
    """Another dtype; devices and layouts named by the model mean nothing here."""
    tensor = plan.tensor(call.args[0])
    copies = call.qualified_op == "aten::_to_copy" or ("copy" in argument_names(call.qualified_op) and call["copy"])
    if tensor.dtype == call.output.dtype and not copies:
        return tensor
    target = plan.empty(tensor.sizes, call.output.dtype, elements=plan.elements_of(call.output))
    strided_copy(plan, tensor, target, fresh=True)
    return target
