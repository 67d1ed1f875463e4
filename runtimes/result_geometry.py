"""How the result of an operator lies, before it is computed: sizes, strides and what shares memory, as meta tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError
from mobopt.ir import Origin
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import argument_names
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.shapes import infer, makes_new, order_of, strides_of
from mobopt.ops.shapes.layouts import RANKS_OF_FORMATS, Strides, dense, outermost_first
from mobopt.runtimes.abstract import TracedTensor, is_nested
from mobopt.runtimes.cpu.kernels import kernel, operator_error

_META = torch.device("meta")
_MOST_STAND_INS = 64 * 2**20
"""Bytes of the memories that an operator is tried on."""


class OnlyElementsTellError(Exception):
    """Neither a meta kernel nor the CPU's kernel on stand-in elements says what an operator's result looks like."""


def geometry_of(op: str, args: Sequence[Any], source: Origin) -> Any:
    """An operator's result with meta tensors.

    A rule says what it looks like, else the meta kernel, else the CPU's kernel on stand-in elements; of operands that
    don't lie row-major the CPU's kernel comes first. These may be wrong, so what the CPU computes in a run is compared
    with this (``UnforeseenResultError`` of the host's functions).

    Raises:
        InputError: the operator refuses its arguments.
        OnlyElementsTellError: nothing but the elements says it.
    """
    made = _by_rule(op, args)
    if made is not None:
        return made
    metas = map_leaves(list(args), TracedTensor, lambda tensor: tensor.meta)
    function = kernel(op)
    made = _of_stand_ins(op, metas)
    if made is not None:
        return made
    is_other = has_trait(op, Trait.OTHER_ON_META)
    refused: Exception = NotImplementedError(f"the meta kernel of {op} is not the CPU's")
    try:
        if is_other:
            raise refused
        return map_leaves(function(*_on_meta(op, metas)), torch.Tensor, _without_elements)
    except MoboptError:
        raise
    except Exception as error:
        refused = error
    only_elements_tell = isinstance(refused, NotImplementedError) or "meta tensors" in str(refused)
    in_torchs_words = refused
    for element in (0, 1):
        try:
            guess = map_leaves(function(*_filled(metas, element)), torch.Tensor, _without_elements)
            if is_other or all(tensor.numel() for tensor in leaves_of(guess, torch.Tensor)):
                return guess
            only_elements_tell = True  # nothing computes an empty tensor, so no run would compare it with the guess
        except Exception as error:  # the CPU's kernel says why in torch's own words
            in_torchs_words = error
    if only_elements_tell:
        raise OnlyElementsTellError(op) from refused
    raise operator_error(op, source, metas, in_torchs_words) from refused


def _of_stand_ins(op: str, metas: Sequence[Any]) -> Any:
    """What the CPU's kernel makes of stand-ins, where operands don't lie row-major: meta kernels tell of other
    strides. None where the result may be a view, or the kernel refuses stand-ins."""
    is_view = has_trait(op, Trait.VIEW) and not has_trait(op, Trait.PADDING)
    tensors = list(leaves_of(metas, torch.Tensor))
    if is_view or has_trait(op, Trait.RANDOM) or all(map(_lies_row_major, tensors)):
        return None
    if sum(tensor.untyped_storage().nbytes() for tensor in tensors) > _MOST_STAND_INS:
        return None
    try:
        stand_ins = map_leaves(list(metas), torch.Tensor, _standing_in)
        made = kernel(op)(*stand_ins)
    except Exception:
        return None
    if share_memory(leaves_of(stand_ins, torch.Tensor), leaves_of(made, torch.Tensor)):
        return None
    return map_leaves(made, torch.Tensor, _without_elements)


def _by_rule(op: str, args: Sequence[Any]) -> Any:
    """What a rule says that an operator makes, as meta tensors, where these are new and it is known how they lie."""
    tensors = list(leaves_of(args, TracedTensor))
    if not makes_new(op) or any(map(is_nested, tensors)):
        return None
    made = infer(op, map_leaves(list(args), TracedTensor, _type_of))
    found = _strides_of(op, args, tensors, [_sizes_of(kind) for kind in leaves_of(made, TensorType)])
    known = [strides for strides in found if strides is not None]
    if len(known) < len(found):
        return None
    strides = iter(known)
    return map_leaves(
        made,
        TensorType,
        lambda kind: torch.empty_strided(_sizes_of(kind), next(strides), dtype=kind.dtype, device=_META),
    )


def _strides_of(
    op: str, args: Sequence[Any], tensors: Sequence[TracedTensor], results: Sequence[tuple[int, ...]]
) -> list[Strides | None]:
    """How new results of these sizes lie, None where no rule tells; ``tensors`` are those among the arguments."""
    if all(_lies_row_major(tensor.meta) for tensor in tensors):
        first = order_of(op, args)
        return [dense(sizes, None if number else first) for number, sizes in enumerate(results)]
    operands = [(tuple(tensor.meta.shape), tensor.meta.stride()) for tensor in tensors]
    return [strides_of(op, sizes, operands) for sizes in results]


def _type_of(tensor: TracedTensor) -> TensorType:
    return TensorType(tensor.meta.dtype, tuple(tensor.meta.shape))


def _sizes_of(kind: TensorType) -> tuple[int, ...]:
    return tuple(map(int, kind.sizes))


def _on_meta(op: str, values: Sequence[Any]) -> list[Any]:
    """Arguments with which an operator makes its tensors without elements: also where no device is named."""
    names = [] if op.startswith("prim::") else argument_names(op)
    devices = [name == "device" and value is None for name, value in zip(names, values, strict=False)]
    devices += [False] * (len(values) - len(devices))
    return [
        _META if is_device or isinstance(value, torch.device) else value
        for value, is_device in zip(values, devices, strict=True)
    ]


def _without_elements(result: torch.Tensor) -> torch.Tensor:
    """What a kernel made, as a meta tensor of its own memory, that lies alike if it has no gaps."""
    if result.is_meta or result.layout != torch.strided:
        return result
    is_dense = result.permute(outermost_first(result.stride())).is_contiguous()
    strides = result.stride() if is_dense else dense(tuple(result.shape))
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=_META)


def _filled(metas: Any, element: int) -> Any:
    """Arguments whose tensors have this element everywhere."""
    return map_leaves(metas, torch.Tensor, lambda meta: torch.full(tuple(meta.shape), element, dtype=meta.dtype))


def _lies_row_major(meta: torch.Tensor) -> bool:
    """Whether a tensor is contiguous, and no operator takes it for one with channels last: one channel, or one pixel,
    counts as both."""
    if not meta.is_contiguous():
        return False
    return meta.dim() not in RANKS_OF_FORMATS or meta.stride(1) != 1 or meta.stride() == dense(tuple(meta.shape))


def _standing_in(meta: torch.Tensor) -> torch.Tensor:
    """A tensor of zeros that lies like this one."""
    whole = torch.zeros(meta.untyped_storage().nbytes() // meta.element_size(), dtype=meta.dtype)
    return whole.as_strided(meta.shape, meta.stride(), meta.storage_offset())


def share_memory(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether one of some tensors lies in the memory of one of others."""
    kept, made = (
        {storage_of(tensor) for tensor in each if tensor.layout == torch.strided} for each in (tensors, others)
    )
    return not kept.isdisjoint(made)


def storage_of(meta: torch.Tensor) -> int:
    """What tensors in one memory have in common."""
    return int(meta.untyped_storage()._cdata)
