"""What torch itself says of a call of an operator, against the operator's record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import argument_names
from mobopt.ops.effects import draws_numbers
from mobopt.ops.records import Like, OperatorRecord, Trait, is_refused, record_of
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lowering_of


def complaints(op: str, args: list[Any]) -> Iterator[str]:
    """What of an operator's record does not hold for a call."""
    record = record_of(op)
    yield from _of_kinds(op, args)
    tensors = list(leaves_of(args, torch.Tensor))
    given = [tensor.clone() for tensor in tensors]
    results = _run(op, args)
    if results is None or not all(tensor.layout == torch.strided for tensor in (*results, *tensors)):
        return
    written = [not _same([before], [after]) for before, after in zip(given, tensors, strict=True)]
    if any(written) and Trait.WRITES not in record.traits and not _trains(op, args):
        yield "writes to an argument, without WRITES"
    draws = _draws(op, args)
    if any(written) or Trait.WRITES in record.traits:
        return
    shares = not _storages(results).isdisjoint(_storages(tensors))
    if shares and Trait.VIEW not in record.traits:
        yield "a result shares memory with an argument, without VIEW"
    if Trait.DISTINCT in record.traits and _shows_twice(args, results):
        yield "an element of the first argument stands twice in the results, with DISTINCT"
    if not draws and Trait.UNDEFINED not in record.traits:
        if not _same(results, _run(op, args, seed=1) or []):
            yield "two runs differ, without RANDOM"
        yield from _of_elements(record, op, args, tensors, results)
    elif draws and _says_much(args, results) and _same(results, _run(op, args, seed=1) or []):
        yield "two runs with different seeds agree, with RANDOM"
    if results:
        yield from _of_sizes(record, op, args, tensors, results)


def _of_elements(
    record: OperatorRecord, op: str, args: list[Any], tensors: list[torch.Tensor], results: list[torch.Tensor]
) -> Iterator[str]:
    looks = {Trait.SIZES_BY_ELEMENTS, Trait.VALUE_BY_ELEMENTS} & record.traits
    by_mask = op == "aten::index.Tensor" and any(t.dtype in (torch.bool, torch.uint8) for t in tensors)
    if tensors and not looks and not by_mask:
        for element in (0, 1):
            others = _run(op, map_leaves(args, torch.Tensor, lambda tensor, e=element: torch.full_like(tensor, e)))
            if others is not None and [t.shape for t in others] != [t.shape for t in results]:
                yield "sizes depend on elements, without SIZES_BY_ELEMENTS"
    if Trait.IGNORES_ELEMENTS in record.traits:
        others = _run(op, [torch.full_like(tensors[0], 1), *args[1:]])
        if others is not None and not _same(others, results):
            yield "the result depends on elements, with IGNORES_ELEMENTS"
    if Trait.IDENTITY in record.traits and not _same([tensors[0].to(results[0].dtype)], results):
        yield "the result is another, with IDENTITY"
    if Trait.DROPOUT in record.traits and not _same([tensors[0]], results):
        yield "the result is another, with DROPOUT"
    if Trait.MOVES_ELEMENTS in record.traits and not _chosen(tensors, results):
        yield "a result has a new element, with MOVES_ELEMENTS"
    if Trait.ELEMENTWISE in record.traits:
        yield from _of_places(op, args, tensors, results)
    if Trait.READS_STRIDES not in record.traits and not looks:
        others = _run(op, map_leaves(args, torch.Tensor, _reordered))
        if others is None or [tuple(t.shape) for t in others] != [tuple(t.shape) for t in results]:
            yield "takes no tensor of other strides, without READS_STRIDES"


def _of_places(op: str, args: list[Any], tensors: list[torch.Tensor], results: list[torch.Tensor]) -> Iterator[str]:
    """An element depends on the elements at its place alone, if the elements in another order give the same ones."""
    sizes = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    if any(result.shape != sizes for result in results):
        yield f"the result is not {list(sizes)}, with ELEMENTWISE"
        return
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(results[0].numel(), generator=generator)
    mixed = _run(
        op, map_leaves(args, torch.Tensor, lambda t: t.expand(sizes).flatten()[order] if t.dim() or not sizes else t)
    )
    if mixed is not None and not _same(mixed, [result.flatten()[order] for result in results], close=True):
        yield "an element depends on others, with ELEMENTWISE"


def _of_sizes(
    record: OperatorRecord, op: str, args: list[Any], tensors: list[torch.Tensor], results: list[torch.Tensor]
) -> Iterator[str]:
    names = argument_names(op)
    first = results[0]
    if Trait.KEEPS_SIZES in record.traits and first.shape != args[0].shape:
        yield "the result has other sizes, with KEEPS_SIZES"
    weight = args[names.index("weight")] if record.rank == Like.ROWS else None
    ranks: dict[Any, int | None] = {
        Like.FIRST: args[0].dim() if args and isinstance(args[0], torch.Tensor) else None,
        Like.OPERANDS: max((tensor.dim() for tensor in tensors), default=None),
        Like.PARTS: max((tensor.dim() for tensor in tensors), default=None),
        Like.ROWS: tensors[0].dim() - (weight is not None and weight.dim() < 2) if tensors else None,
    }
    rank = record.rank
    expected = len(args[names.index(rank)]) if isinstance(rank, str) else ranks.get(rank, rank)
    if rank is not None and first.dim() != expected:
        yield f"the result has {first.dim()} dimensions instead of {expected}"
    if record.spatial is not None and not 1 <= args[0].dim() - record.spatial <= 2:
        yield f"took {args[0].dim()} dimensions, with {record.spatial} of space"
    has_batch = record.spatial is None or args[0].dim() == record.spatial + 2
    channels = _channels(record, args, names, tensors, first.dim()) if first.dim() > 1 and has_batch else None
    if channels is not None and first.shape[1] != channels:
        yield f"the result has {first.shape[1]} channels instead of {channels}"


def _channels(
    record: OperatorRecord, args: list[Any], names: tuple[str, ...], tensors: list[torch.Tensor], rank: int
) -> int | None:
    of_rank = [tensor.shape[1] for tensor in tensors if tensor.dim() == rank]
    if record.channels == Like.OPERANDS and len(of_rank) < len(tensors):
        return None  # dimension 1 is another one of some operand
    match record.channels:
        case Like.FIRST:
            return int(args[0].shape[1]) if args[0].dim() > 1 else None
        case Like.OPERANDS:
            return next((size for size in of_rank if size != 1), 1)
        case Like.PARTS if args[1] in (1, 1 - rank):
            return sum(of_rank)
        case Like.WEIGHT:
            return int(args[names.index("weight")].shape[0])
        case Like.TRANSPOSED_WEIGHT:
            return int(args[names.index("weight")].shape[1]) * int(args[names.index("groups")])
    return None


def _run(op: str, args: list[Any], seed: int = 0) -> list[torch.Tensor] | None:
    """The tensors that a call gives; None if it refuses its arguments."""
    torch.manual_seed(seed)
    try:
        return list(leaves_of(kernel(op)(*args), torch.Tensor))
    except Exception:
        return None


def _draws(op: str, args: list[Any]) -> bool:
    return draws_numbers(op, dict(zip(argument_names(op), args, strict=False)))


def _of_kinds(op: str, args: list[Any]) -> Iterator[str]:
    """Of a call that takes floats: whether it takes integers and truth values as well."""
    tensors = list(leaves_of(args, torch.Tensor))
    if not tensors or tensors[0].dtype != torch.float32 or not all(tensor.numel() for tensor in tensors):
        return
    if _run(op, map_leaves(args, torch.Tensor, torch.clone)) is None:
        return
    short = []
    for dtype in (torch.uint8, torch.int64, torch.bool):
        others = map_leaves(args, torch.Tensor, lambda x, to=dtype: x.to(to) if x.is_floating_point() else x.clone())
        dtypes = [tensor.dtype for tensor in leaves_of(others, torch.Tensor)]
        takes, refuses = _run(op, others) is not None, is_refused(op, args, dtypes)
        if takes and refuses:
            yield f"takes {dtype}, which the record refuses"
        short.append(not takes and not refuses and _is_short_of_a_kernel(op, others))
    if all(short) and Trait.ALIKE not in record_of(op).traits:  # of integers alone some forms have kernels
        yield "has no kernel for integers, which mobopt's own would compute, without OF_FLOATS"


def _is_short_of_a_kernel(op: str, args: list[Any]) -> bool:
    """Whether that is what torch says, of an operator that mobopt's own runtime computes."""
    load_lowerings()
    if lowering_of(op) is None:
        return False
    try:
        kernel(op)(*args)
    except Exception as error:
        return "not implemented for" in str(error)
    return False


def _trains(op: str, args: list[Any]) -> bool:
    """Whether a normalisation updates its statistics, which schemas do not say."""
    names = argument_names(op)
    return any(args[names.index(name)] is True for name in ("training", "use_input_stats") if name in names)


def _says_much(args: list[Any], results: list[torch.Tensor]) -> bool:
    """Whether enough numbers are drawn to differ: chances of 0 or 1, or a spread of 0, leave nothing to draw."""
    is_certain = any(isinstance(arg, float) and arg in (0.0, 1.0) for arg in args)
    return not is_certain and any(result.is_floating_point() and result.numel() > 8 for result in results)


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _shows_twice(args: list[Any], results: list[torch.Tensor]) -> bool:
    """Whether results that lie in the first argument's memory, whose elements are apart, show one of them twice."""
    if len(set(_addresses(args[0]))) < args[0].numel():
        return False
    views = [result for result in results if not _storages([result]).isdisjoint(_storages([args[0]]))]
    shown = [address for view in views for address in _addresses(view)]
    return len(set(shown)) < len(shown)


def _addresses(tensor: torch.Tensor) -> list[int]:
    """Where each element lies in its memory, in bytes."""
    places = torch.full((), tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return [place * tensor.element_size() for place in places.flatten().tolist()]


def _same(left: list[torch.Tensor], right: list[torch.Tensor], close: bool = False) -> bool:
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        tolerance = 1e-5 if close and one.dtype.is_floating_point else 0
        if not torch.allclose(one.double(), other.double(), tolerance, tolerance, equal_nan=True):
            return False
    return True


def _chosen(tensors: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
    """Whether every element of the results is one of the tensors', in the result's dtype."""
    for result in results:
        if result.numel():
            known = torch.cat([tensor.to(result.dtype).flatten() for tensor in tensors])
            if not torch.isin(torch.nan_to_num(result.float()), torch.nan_to_num(known.float())).all():
                return False
    return True


def _reordered(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with the strides of its transpose."""
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)
