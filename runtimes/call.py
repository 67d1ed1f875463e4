"""A Program seen with one set of input shapes: a straight line of operator calls on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from mobopt.ir import NOWHERE, Origin
from mobopt.runtimes.nests import map_leaves


class Leaf:
    """A tensor in the result of a trace."""


@dataclass(eq=False)
class TensorRef(Leaf):
    """A tensor of a trace: its dtype and sizes are known, its elements only if it is a constant."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    constant: torch.Tensor | None = field(default=None, repr=False)
    name: str = ""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(eq=False)
class Alias(Leaf):
    """A tensor of a result that shares memory with an input of the trace, or with other tensors of the result."""

    base: TensorRef
    """The whole of the memory."""
    base_geometry: torch.Tensor
    geometry: torch.Tensor
    """Sizes, strides and offset of the whole and of this tensor."""

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """This tensor, where ``base`` has the strides of its geometry; the whole is ``base`` itself."""
        if self.geometry is self.base_geometry:
            return base
        offset = base.storage_offset() + self.geometry.storage_offset()
        return base.as_strided(self.geometry.shape, self.geometry.stride(), offset)


@dataclass(eq=False)
class Call:
    """One operator call.

    ``args`` are in the order of the operator's schema, defaults filled in, keyword-only ones last. Tensors are
    :class:`TensorRef` (also inside lists); everything else is a plain Python value; a packed context is the context
    object.
    """

    op: str
    """Qualified name with overload: ``aten::add.Tensor``, ``aten::relu``, ``vulkan_prepack::run_conv2d_context``."""
    args: tuple[Any, ...]
    outputs: tuple[TensorRef, ...]
    source: Origin = NOWHERE
    """The nodes of the model that it comes from."""

    def __getitem__(self, name: str) -> Any:
        """The argument called ``name`` in the operator's schema."""
        return self.args[argument_names(self.op).index(name)]

    @property
    def output(self) -> TensorRef:
        """The only output."""
        (only,) = self.outputs
        return only

    def tensors(self) -> Iterator[TensorRef]:
        """Every tensor argument, in order, also those in lists."""
        yield from tensors_in(self.args)


def tensors_in(value: Any) -> Iterator[TensorRef]:
    """Every TensorRef in a nest of tuples, lists and dicts, in order."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, Alias):
        yield value.base
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


@cache
def argument_names(op: str) -> tuple[str, ...]:
    """Names of an operator's arguments, in schema order."""
    from mobopt.ops.schemas import schema_of

    return tuple(argument.name for argument in schema_of(op).arguments)


@dataclass(eq=False)
class Trace:
    """Calls in order; ``inputs`` are the tensors given by the caller, ``result`` is a nest whose leaves are
    TensorRefs, Aliases or plain values, in the structure that the method returns. Memory is shared by Aliases alone."""

    inputs: list[TensorRef]
    calls: list[Call]
    result: Any
    is_complete: bool = True
    """False if the model must look at the elements of ``result``, a list of tensors, before more can be known."""
    updates: dict[str, Any] = field(default_factory=dict)
    """What the attributes that the method assigns to hold after it, as nests like ``result``."""
    writes: list[tuple[TensorRef, TensorRef]] = field(default_factory=list)
    """Inputs that the method writes to, and what they hold after it."""

    def results(self) -> Iterator[TensorRef]:
        """Every tensor that must be known after the calls."""
        yield from tensors_in([self.result, self.updates])
        yield from (ref for _, ref in self.writes)

    def with_results(self, function: Callable[[TensorRef], TensorRef]) -> Trace:
        """The trace with other tensors in its results."""

        def mapped(leaf: Leaf) -> Leaf:
            if isinstance(leaf, Alias):
                return replace(leaf, base=function(leaf.base))
            return function(leaf) if isinstance(leaf, TensorRef) else leaf

        return replace(
            self,
            result=map_leaves(self.result, Leaf, mapped),
            updates=map_leaves(self.updates, Leaf, mapped),
            writes=[(target, function(ref)) for target, ref in self.writes],
        )
