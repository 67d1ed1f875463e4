"""Copies of which a part that sizes and numbers say, a slice or a diagonal, is written over."""

from __future__ import annotations

from collections.abc import Callable

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.views import diagonal_view, selected, sliced
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import lowers

_Part = Callable[[DeviceTensor, Node], DeviceTensor]


def _writes(operator: str, *, dense: bool = False) -> Callable[[_Part], _Part]:
    """Register a function of the copy and the call: the part of the copy, which may have to be ``dense``, that the
    second argument replaces."""

    def register(part: _Part) -> _Part:
        def lowering(plan: Plan, call: Node) -> DeviceTensor:
            strides = contiguous_strides(call.output.sizes) if dense else None
            target = plan.own_result(call.output, strides=strides)
            strided_copy(plan, plan.tensor(call.args[0]), target, fresh=True)
            strided_copy(plan, plan.tensor(call["src"]), part(target, call))
            return target

        lowers(operator, check=check_dtypes, exact=True, long=True)(lowering)
        return part

    return register


@_writes("aten::slice_scatter")
def _slice(target: DeviceTensor, call: Node) -> DeviceTensor:
    dim = normalized_dim(call["dim"], target.rank)
    start, _, step = slice(call["start"], call["end"], call["step"]).indices(target.sizes[dim])
    return sliced(target, dim, start, call["src"].sizes[dim], step)


@_writes("aten::select_scatter")
def _select(target: DeviceTensor, call: Node) -> DeviceTensor:
    dim = normalized_dim(call["dim"], target.rank)
    return selected(target, dim, call["index"] % target.sizes[dim])


@_writes("aten::as_strided_scatter", dense=True)
def _places(target: DeviceTensor, call: Node) -> DeviceTensor:
    return target.view(call["src"].sizes, call["stride"], target.offset + (call["storage_offset"] or 0))


@_writes("aten::diagonal_scatter")
def _diagonal(target: DeviceTensor, call: Node) -> DeviceTensor:
    return diagonal_view(target, call["offset"], call["dim1"], call["dim2"], call["src"].sizes)
