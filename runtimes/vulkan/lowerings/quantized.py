"""Floats of integers of few bits, where no product reads these as they are."""

from __future__ import annotations

import torch

from mobopt.ir import Node
from mobopt.ops.quantized import DEQUANTIZE, MIDDLE
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous
from mobopt.runtimes.vulkan.kernels.kernel_access import element_form, spread
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.push_constants import DequantizePush

_RANK = 4
_LOCAL_SIZE = 64


def check_dequantize(call: Node) -> str | None:
    """Scales of float32, in blocks over few dimensions."""
    if call.output.dtype != torch.float32:
        return f"scales of {call.output.dtype}; only float32 is computed"
    if len(_dimensions(call)) > _RANK:
        return f"blocks over {len(_dimensions(call))} dimensions; at most {_RANK} are computed"
    return None


@lowers(DEQUANTIZE, check=check_dequantize, exact=True)
def dequantize(plan: Plan, call: Node) -> DeviceTensor:
    """An invocation for each element."""
    values, scales, zero_points, _, bits, _ = call.args
    integers = as_contiguous(plan, plan.tensor(values))
    factors = as_contiguous(plan, plan.tensor(scales))
    zeros = factors if zero_points is None else as_contiguous(plan, plan.tensor(zero_points))
    result = plan.empty(call.output.sizes, strides=contiguous_strides(call.output.sizes))
    if result.numel == 0:
        return result
    dimensions = [(1, 1, 1)] * (_RANK - len(_dimensions(call))) + _dimensions(call)
    sizes, blocks, counts = zip(*dimensions, strict=True)
    strides = [0 if count == 1 else step for count, step in zip(counts, contiguous_strides(counts), strict=True)]
    held = -(-sizes[-1] // 2) if bits == 4 else sizes[-1]
    plan.dispatch(
        "dequantize",
        (bind(integers), bind(factors), bind(zeros), bind(result, writes=True)),
        spread(-(-result.numel // _LOCAL_SIZE)),
        (_LOCAL_SIZE, element_form(integers), bits, MIDDLE if bits == 4 else 0, int(zero_points is not None)),
        DequantizePush(result.numel, held, sizes, blocks, strides),
        iterations=1,
    )
    return result


def _dimensions(call: Node) -> list[tuple[int, int, int]]:
    """Sizes, blocks and counts of scales of few dimensions: neighbours of one scale each are one, but for rows of 4
    bits, which are whole bytes."""
    found: list[tuple[int, int, int]] = []
    given = zip(call.output.sizes, call["block_size"], call["scales"].sizes, strict=True)
    for number, (size, block, count) in enumerate(given, 1):
        is_row = number == call.output.rank and call["bits"] == 4
        if found and count == 1 and found[-1][2] == 1 and not is_row:
            size *= found.pop()[0]
            block = size
        found.append((size, block, count))
    return found
