"""What a call returns, and what becomes of the model's state, once everything has been computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mobopt.runtimes.call import Alias, Leaf, TensorRef, Trace
from mobopt.runtimes.nests import copy_nests, leaves_of, map_leaves


class Results:
    """The tensors of one call, from which its result is put together."""

    def __init__(self, trace: Trace, computed: Mapping[TensorRef, Any], inputs: Sequence[Any]) -> None:
        """Take over what was computed.

        Args:
            trace: of the call.
            computed: the tensors of ``trace.results()`` that are neither constants nor inputs.
            inputs: the tensors of ``trace.inputs``.
        """
        self._trace = trace
        self._values = dict(computed)
        self._inputs = dict(zip(trace.inputs, inputs, strict=True))

    def deliver(self) -> tuple[Any, dict[str, Any]]:
        """The result, and the new values of attributes; inputs that the method writes to are written to now.

        Nothing can fail any more once the first is written.
        """
        written = [ref for _, ref in self._trace.writes]
        for ref in leaves_of([self._trace.result, self._trace.updates, written], TensorRef):
            self._value(ref)
        for target, ref in self._trace.writes:
            self._inputs[target].copy_(self._value(ref))
        return (
            map_leaves(self._trace.result, Leaf, self._tensor),
            copy_nests(self._trace.updates, Leaf, self._tensor),
        )

    def _laid_out(self, value: Any, strides: tuple[int, ...]) -> Any:
        """A copy with other strides."""
        return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)

    def _value(self, ref: TensorRef) -> Any:
        """The tensor itself; constants and inputs are copied, once each."""
        if ref not in self._values:
            self._values[ref] = (self._inputs[ref] if ref.constant is None else ref.constant).clone()
        return self._values[ref]

    def _tensor(self, leaf: Leaf) -> Any:
        if isinstance(leaf, Alias):
            return leaf.of(self._memory(leaf))
        assert isinstance(leaf, TensorRef)
        return self._value(leaf)

    def _memory(self, alias: Alias) -> Any:
        """The whole memory of an alias; one whose elements lie in another order is copied into the right one."""
        strides = alias.base_geometry.stride()
        base = self._inputs.get(alias.base)
        if base is not None and (base.stride() == strides or alias.geometry is alias.base_geometry):
            return base
        value = self._value(alias.base)
        if value.stride() != strides:
            value = self._values[alias.base] = self._laid_out(value, strides)
        return value
