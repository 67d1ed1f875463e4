"""Complex tensors on the device: two floats an element, which kernels see as a dimension of size 2.

Decompositions compute with real and imaginary parts as tensors of their own, so a complex tensor is only made where it
leaves them: for a result, or for the host.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous, strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.views import selected
from mobopt.runtimes.vulkan.lowerings.checks import MAX_RANK
from mobopt.runtimes.vulkan.lowerings.registry import lowers


def check_parts(call: Node) -> str | None:
    """None, or why two parts are not joined: only floats of 32 bits have a complex dtype on the device."""
    return _check_rank(call) or _check_float(call.inputs[0].dtype, call.inputs[1].dtype)


def check_shown(call: Node) -> str | None:
    """None, or why parts are not shown."""
    if call.inputs[0].dtype != torch.complex64:
        return f"{call.inputs[0].dtype} has no form on the device; complex64 has"
    return _check_rank(call)


def _check_float(*dtypes: torch.dtype) -> str | None:
    other = next((dtype for dtype in dtypes if dtype != torch.float32), None)
    return None if other is None else f"a complex number of {other} has no form on the device; float32 has"


def _check_rank(call: Node) -> str | None:
    rank = call.output.rank + call.output.dtype.is_complex
    return f"with its parts a tensor has rank {rank}; kernels take at most {MAX_RANK}" if rank > MAX_RANK else None


@lowers("aten::complex", check=check_parts)
def joined(plan: Plan, call: Node) -> DeviceTensor:
    """Real and imaginary parts side by side."""
    sizes = call.output.sizes
    pairs = plan.empty((*sizes, 2), torch.float32, contiguous_strides((*sizes, 2)))
    for index, part in enumerate(call.args):
        target = selected(pairs, len(sizes), index)
        strided_copy(plan, expanded(plan.tensor(part), sizes), target, fresh=index == 0)
    return replace(pairs, dtype=torch.complex64, sizes=sizes, strides=contiguous_strides(sizes))


@lowers("aten::view_as_real", check=check_shown, exact=True)
def shown(plan: Plan, call: Node) -> DeviceTensor:
    """The same memory as floats: no dispatch."""
    x = as_contiguous(plan, plan.tensor(call.args[0]))
    strides = (*(2 * stride for stride in x.strides), 1)
    return replace(x, dtype=torch.float32, sizes=(*x.sizes, 2), strides=strides, offset=2 * x.offset)
