"""Sorting, and searching what is sorted."""

from __future__ import annotations

from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.sort_kernel import MAX_SEARCH_RANK, places_in, sorted_places
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.indexing import select_along
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import Negative


def _places(plan: Plan, call: Node) -> tuple[DeviceTensor, DeviceTensor, int]:
    """What is sorted, the order, and the dimension."""
    tensor = plan.tensor(call.args[0])
    data = tensor if tensor.rank else tensor.view((1,), (1,))
    dim = normalized_dim(call["dim"], data.rank)
    return data, sorted_places(plan, data, dim, descending=call["descending"]), dim


@lowers("aten::argsort", "aten::argsort.stable", check=check_dtypes, exact=True, long=True)
def argsort(plan: Plan, call: Node) -> DeviceTensor:
    """Where the elements of sorted lines were; equal ones keep their order."""
    _, places, _ = _places(plan, call)
    return places if call.output.rank else places.view((), ())


@lowers("aten::sort", "aten::sort.stable", check=check_dtypes, exact=True, long=True)
def sort(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Sorted lines, and where their elements were; equal ones keep their order."""
    data, places, dim = _places(plan, call)
    values = plan.empty(data.sizes, data.dtype, elements=data.storage.elements if data.is_long else None)
    base = data.view(data.sizes, [0 if d == dim else stride for d, stride in enumerate(data.strides)])
    select_along(plan, values, base, places, data.sizes[dim], data.strides[dim], Negative.REFUSED)
    return tuple(result if call.outputs[0].rank else result.view((), ()) for result in (values, places))


def check_search(call: Node) -> str | None:
    """Tensors of equal dtypes, whose order is not given beside them."""
    lines, values = call["sorted_sequence"], call["self"]
    if call["sorter"] is not None:
        return "a sequence that is sorted by another tensor is not searched"
    if lines.dtype != values.dtype:
        return f"{values.dtype} is not searched in {lines.dtype}"
    if values.rank > MAX_SEARCH_RANK:
        return f"values have rank {values.rank}; this kernel takes at most {MAX_SEARCH_RANK}"
    return check_dtypes(call)


@lowers("aten::searchsorted.Tensor", check=check_search, exact=True, long=True)
def searchsorted(plan: Plan, call: Node) -> DeviceTensor:
    """Where values would be put into sorted lines."""
    lines, values = plan.tensor(call["sorted_sequence"]), plan.tensor(call["self"])
    target = plan.empty(values.sizes, call.output.dtype, contiguous_strides(values.sizes))
    outer = lines.strides[:-1] if lines.rank > 1 else [0] * max(values.rank - 1, 0)
    begins = lines.view(values.sizes, [*outer, 0][: values.rank])
    right = call["right"] or call["side"] == "right"
    places_in(plan, begins, values, target, lines.sizes[-1], lines.strides[-1], right=right)
    return target
