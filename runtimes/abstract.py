"""Tensors during specialisation: shapes and dtypes are known, elements only of constants.

Every in-place operator of a model is turned into its functional form while the model is specialised. For that, a
:class:`Memory` stands for what torch calls a storage: it has the tensor that it holds now, and a version. A
:class:`TracedTensor` is a tensor of the model, the whole of a memory or a view of it; a view whose memory has changed
is computed again when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.ir import Origin, Value
from mobopt.ir.types import TensorType


@dataclass(eq=False)
class Memory:
    """What a tensor and its views share."""

    ref: Value
    """The whole, as it is now."""
    meta: torch.Tensor
    """Geometry of the whole."""
    version: int = 0
    is_written: bool = False
    """Whether the model wrote to it."""


@dataclass(frozen=True, eq=False)
class ViewRecipe:
    """How a view follows from its base: output ``index`` of an operator."""

    op: str
    args: tuple[Any, ...]
    """Traced tensors among them are as they were when the view was made."""
    index: int
    source: Origin


@dataclass(eq=False)
class TracedTensor:
    """A tensor of the model being specialised."""

    memory: Memory
    meta: torch.Tensor
    """Geometry: sizes, strides and offset, without elements."""
    ref: Value
    version: int = 0
    """Of the memory when ``ref`` was computed."""
    recipe: ViewRecipe | None = None
    """None if this is the whole of its memory."""

    def snapshot(self) -> TracedTensor:
        """This tensor as it is now, for recipes: in-place view operators change the tensor itself."""
        return replace(self)

    def become(self, other: TracedTensor) -> None:
        """Look at memory as ``other`` does."""
        self.memory, self.meta, self.ref = other.memory, other.meta, other.ref
        self.version, self.recipe = other.version, other.recipe


def whole(ref: Value, meta: torch.Tensor) -> TracedTensor:
    """A tensor with memory of its own."""
    return TracedTensor(Memory(ref, meta), meta, ref)


def constant_tensor(value: torch.Tensor) -> TracedTensor:
    """A tensor whose elements are known; of a nested one, which has no sizes, that is all."""
    if value.is_nested:
        return whole(Value("", TensorType(value.dtype, ()), value), torch.empty((), dtype=value.dtype, device="meta"))
    meta = torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")
    return whole(Value.of_elements(value), meta)


def is_nested(tensor: TracedTensor) -> bool:
    """Whether a tensor is a batch of tensors of several sizes, which only torch's own kernels can take apart."""
    return tensor.ref.elements is not None and tensor.ref.elements.is_nested


def meta_of(tensor: torch.Tensor) -> torch.Tensor:
    """The geometry of a contiguous tensor of these sizes and dtype."""
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def shows_as_it_lies(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a view differs from the whole of its memory in sizes, strides and offset alone: not in its dtype, and not
    as a conjugate or a negative that torch computes when it is read."""
    return (view.dtype, view.is_conj(), view.is_neg()) == (whole.dtype, whole.is_conj(), whole.is_neg())


def element_positions(meta: torch.Tensor) -> torch.Tensor:
    """Where each element lies in its storage, in row-major order of the tensor."""
    elements = meta.untyped_storage().nbytes() // meta.element_size()
    positions = torch.arange(max(elements, 1))
    return positions.as_strided(tuple(meta.shape), meta.stride(), meta.storage_offset()).flatten()


def positions_replaced(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """For each element of ``base`` (a geometry), where its value lies in [elements of base, elements of the view]
    after the view, a part of the same storage, was overwritten."""
    at_base, at_view = element_positions(base), element_positions(view)
    owner = torch.full((int(max(at_base.max(), at_view.max())) + 1,), -1)
    owner[at_view] = torch.arange(at_view.numel())
    written = owner[at_base]
    return torch.where(written >= 0, written + at_base.numel(), torch.arange(at_base.numel()))
