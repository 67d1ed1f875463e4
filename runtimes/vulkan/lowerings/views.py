"""Operators that show the same elements in another way: new strides, no dispatch, where strides can say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mobopt.ir import Node
from mobopt.ops.records import Trait, operators_with
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.geometry import expanded, normalized_dim, view_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.views import (
    diagonal_view,
    permuted,
    selected,
    sliced,
    strided_view,
    swapped,
    unsqueezed,
    without_dims,
)
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.registry import LoweringFunction, lowers

_View = Callable[[DeviceTensor, Node], DeviceTensor]
_VIEWS: dict[str, _View] = {}
"""What shows a tensor in another way, by the operator."""
_RESHAPES: set[str] = set()


def _view(*operators: str) -> Callable[[_View], _View]:
    """Register a function of the first tensor and the call."""

    def register(function: _View) -> _View:
        _VIEWS.update((f"aten::{operator}", function) for operator in operators)

        def lowering(plan: Plan, call: Node) -> DeviceTensor:
            return function(plan.tensor(call.args[0]), call)

        lowers(*(f"aten::{operator}" for operator in operators), check=check_dtypes, exact=True, long=True)(lowering)
        return function

    return register


def _pieces(tensor: DeviceTensor, dim: int, call: Node) -> tuple[DeviceTensor, ...]:
    """Consecutive slices, as long as the outputs are."""
    axis = normalized_dim(dim, tensor.rank)
    pieces, start = [], 0
    for output in call.outputs:
        pieces.append(sliced(tensor, axis, start, output.sizes[axis]))
        start += output.sizes[axis]
    return tuple(pieces)


def reshapes(*operators: str) -> Callable[[LoweringFunction], LoweringFunction]:
    """Register a lowering of operators that show all elements with other sizes, or copy them."""
    _RESHAPES.update(operators)
    return lowers(*operators, check=check_dtypes, exact=True, long=True)


def is_reshape(call: Node) -> bool:
    """Whether a call gives all elements other sizes."""
    return call.qualified_op in _RESHAPES


def permutation_of(call: Node) -> list[int] | None:
    """The dimensions of its source in the order that a permutation or an exchange of two gives them; None of others."""
    order = list(range(call.args[0].rank)) if call.qualified_op in ("aten::permute", "aten::transpose.int") else []
    if not order:
        return None
    if call.qualified_op == "aten::permute":
        return [dim % len(order) for dim in call["dims"]]
    one, other = call["dim0"], call["dim1"]
    order[one], order[other] = order[other], order[one]
    return order


def moves_ones(call: Node) -> bool:
    """Whether a call is a permutation that moves nothing but dimensions of one element."""
    order = permutation_of(call)
    moved = [dim for dim in order or () if call.args[0].sizes[dim] != 1]
    return order is not None and moved == sorted(moved)


def inverted(order: Sequence[int]) -> list[int]:
    """The permutation that undoes another one."""
    return [order.index(dim) for dim in range(len(order))]


def is_view(call: Node) -> bool:
    """Whether a call shows the elements of its first argument in another way, where strides can say it."""
    return call.qualified_op in _VIEWS or is_reshape(call)


def shown(tensor: DeviceTensor, call: Node) -> DeviceTensor | None:
    """A tensor as such a call shows it; None if it has to be copied."""
    if call.qualified_op in _VIEWS:
        return _VIEWS[call.qualified_op](tensor, call)
    strides = view_strides(tensor.sizes, tensor.strides, call.output.sizes)
    return None if strides is None else tensor.view(call.output.sizes, strides)


@_view("permute", "permute_copy")
def _permute(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return permuted(tensor, call["dims"])


@_view("transpose.int", "swapaxes", "swapdims", "transpose_copy.int")
def _transpose(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return swapped(tensor, call.args[1], call.args[2])


@_view("t", "numpy_T", "numpy_T.a", "mT", "mT.a", "adjoint")
def _t(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    if call.qualified_op.startswith("aten::numpy_T"):
        return permuted(tensor, range(tensor.rank - 1, -1, -1))
    return swapped(tensor, -2, -1) if tensor.rank > 1 else tensor


@_view("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _move(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    source, destination = (
        [normalized_dim(d, tensor.rank) for d in ([argument] if isinstance(argument, int) else argument)]
        for argument in call.args[1:3]
    )
    rest = iter(d for d in range(tensor.rank) if d not in source)
    placed = dict(zip(destination, source, strict=True))
    return permuted(tensor, [placed[d] if d in placed else next(rest) for d in range(tensor.rank)])


@_view("unsqueeze", "unsqueeze_copy")
def _unsqueeze(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return unsqueezed(tensor, call["dim"] % (tensor.rank + 1))


@_view(
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy",
    "squeeze_copy.dim",
)
def _squeeze(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    asked = call.args[1] if len(call.args) > 1 else range(tensor.rank)
    dims = {normalized_dim(d, tensor.rank) for d in ([asked] if isinstance(asked, int) else asked)}
    return without_dims(tensor, [d for d in range(tensor.rank) if d in dims and tensor.sizes[d] == 1])


@_view("expand", "expand_as", "broadcast_to", "expand_copy")
def _expand(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return expanded(tensor, call.output.sizes)


@_view("select.int", "select_copy.int")
def _select(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    dim = normalized_dim(call["dim"], tensor.rank)
    return selected(tensor, dim, call["index"] % tensor.sizes[dim])


@_view("slice.Tensor", "slice_copy.Tensor")
def _slice(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    dim = normalized_dim(call["dim"], tensor.rank)
    start, _, step = slice(call["start"], call["end"], call["step"]).indices(tensor.sizes[dim])
    return sliced(tensor, dim, start, call.output.sizes[dim], step)


@_view("narrow", "narrow_copy")
def _narrow(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    dim = normalized_dim(call["dim"], tensor.rank)
    start = call["start"] + (tensor.sizes[dim] if call["start"] < 0 else 0)
    return sliced(tensor, dim, start, call["length"])


@_view("diagonal", "diagonal_copy")
def _diagonal(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return diagonal_view(tensor, call["offset"], call["dim1"], call["dim2"], call.output.sizes)


@_view("unfold")
def _unfold(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    if tensor.rank == 0:
        return tensor.view(call.output.sizes, (1,))
    dim = normalized_dim(call["dimension"], tensor.rank)
    strides = list(tensor.strides)
    strides[dim] *= call["step"]
    return tensor.view(call.output.sizes, [*strides, tensor.strides[dim]])


@lowers("aten::as_strided", "aten::as_strided_copy", check=check_dtypes, exact=True, long=True)
def as_strided(plan: Plan, call: Node) -> DeviceTensor:
    """Places in a tensor that lies in the model as its dimensions follow one another."""
    start = call["storage_offset"] or 0
    return strided_view(plan, plan.tensor(call.args[0]), call.output.sizes, call["stride"], start)


@lowers(
    "aten::split.Tensor",
    "aten::split.sizes",
    "aten::split",
    "aten::split_with_sizes",
    "aten::chunk",
    "aten::tensor_split.sections",
    "aten::tensor_split.indices",
    "aten::unsafe_split.Tensor",
    "aten::unsafe_split_with_sizes",
    "aten::unsafe_chunk",
    check=check_dtypes,
    exact=True,
    long=True,
)
def split(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Slices along one dimension, all of them views."""
    return _pieces(plan.tensor(call.args[0]), call["dim"], call)


@lowers("aten::unbind.int", check=check_dtypes, exact=True, long=True)
def unbind(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Every element of one dimension, as views."""
    tensor = plan.tensor(call.args[0])
    dim = normalized_dim(call["dim"], tensor.rank)
    return tuple(selected(tensor, dim, index) for index in range(len(call.outputs)))


@_view("alias", "detach", "lift_fresh", "alias_copy")
def _alias(tensor: DeviceTensor, call: Node) -> DeviceTensor:
    return tensor


def _evaluating(call: Node) -> str | None:
    return "dropout in training mode draws random numbers; call eval() first" if call.args[2] else check_dtypes(call)


@lowers(
    *operators_with(Trait.DROPOUT),
    check=_evaluating,
    exact=True,
    long=True,
)
def dropout(plan: Plan, call: Node) -> DeviceTensor:
    """The input itself."""
    return plan.tensor(call.args[0])
