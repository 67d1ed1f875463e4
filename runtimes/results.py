"""What a call returns, and what becomes of the model's state, once everything has been computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mobopt.ir import Value
from mobopt.ir.nests import copy_nests, leaves_of, map_leaves
from mobopt.runtimes.segment import Alias, Leaf, Returned, Segment


class Results:
    """The tensors of one call, from which its result is put together."""

    def __init__(self, segment: Segment, computed: Mapping[Value, Any], inputs: Sequence[Any]) -> None:
        """Take over what was computed.

        Args:
            segment: of the call.
            computed: the tensors of ``segment.computed_outputs()``, and those of its outputs that were carried to it.
            inputs: the tensors of ``segment.inputs``; those carried to it don't matter.
        """
        self._segment = segment
        self._values = dict(computed)
        self._inputs = dict(list(zip(segment.inputs, inputs, strict=True))[segment.taken :])

    def deliver(self) -> tuple[Any, dict[str, Any]]:
        """The result, and the new values of attributes; inputs that the method writes to are written to now.

        Nothing can fail any more once the first is written.
        """
        segment = self._segment
        for leaf in leaves_of([segment.result, segment.updates], Returned):
            self._value(segment.value_of(leaf))
        written = {target: self._value(value) for target, value in segment.written.items()}
        for target, tensor in written.items():
            self._inputs[target].copy_(tensor)
        return (
            map_leaves(segment.result, Leaf, self._tensor),
            copy_nests(segment.updates, Leaf, self._tensor),
        )

    def _laid_out(self, value: Any, strides: tuple[int, ...]) -> Any:
        """A copy with other strides."""
        return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)

    def _value(self, output: Value) -> Any:
        """The tensor itself; constants and inputs are copied, once each."""
        if output not in self._values:
            self._values[output] = (self._inputs[output] if output.elements is None else output.elements).clone()
        return self._values[output]

    def _tensor(self, leaf: Leaf) -> Any:
        if isinstance(leaf, Alias):
            return leaf.of(self._memory(leaf))
        return self._value(self._segment.value_of(leaf))

    def _memory(self, alias: Alias) -> Any:
        """The whole memory of an alias; one whose elements lie in another order is copied into the right one."""
        strides = alias.base_geometry.stride()
        whole = self._segment.value_of(alias)
        base = self._inputs.get(whole)
        if base is not None and (base.stride() == strides or alias.geometry is alias.base_geometry):
            return base
        value = self._value(whole)
        if value.stride() != strides:
            value = self._values[whole] = self._laid_out(value, strides)
        return value
