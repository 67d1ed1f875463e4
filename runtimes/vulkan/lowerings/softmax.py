"""Softmax and its logarithm."""

from __future__ import annotations

from mobopt.runtimes.call import Call
from mobopt.runtimes.vulkan.geometry import normalized_dims
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.reductions import converted, prepare
from mobopt.runtimes.vulkan.plan import Plan
from mobopt.runtimes.vulkan.reduction_kernel import run_reduction
from mobopt.runtimes.vulkan.registry import lowers
from mobopt.runtimes.vulkan.tensor import DeviceTensor


@lowers("aten::softmax.int", "aten::_softmax", "aten::log_softmax.int", "aten::_log_softmax", check=check_dtypes)
def softmax(plan: Plan, call: Call) -> DeviceTensor:
    """Softmax along one dimension, in three passes: the largest element, the sum of powers, the quotients."""
    tensor = converted(plan, plan.tensor(call.args[0]), call.output.dtype)
    target = plan.empty(tensor.sizes, call.output.dtype)
    source, reduction = prepare(plan, tensor, target, normalized_dims(call["dim"], tensor.rank), writes_all=True)
    run_reduction(plan, "softmax", reduction, source, [target], [int("log_softmax" in call.op)])
    return target
