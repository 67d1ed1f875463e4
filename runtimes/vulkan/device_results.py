"""What a call returns, and what becomes of the state, where tensors of either may lie in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeGuard

import torch

from mobopt import ir
from mobopt.ir.nests import copy_nests, leaves_of, map_leaves
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import Alias, Leaf, Segment
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.lane import TensorOrArray
from mobopt.runtimes.vulkan.engine.tensor import HELD_DTYPES
from mobopt.runtimes.vulkan.state_arrays import StateArrays


class DeviceResults(Results):
    """Results in tensors or in arrays.

    In tensors they share memory as in eager mode, also with the state. An array that is an argument, or a view of one,
    shares its memory; one that is a part of the state is what the state is now: calls don't write to what others have.
    """

    def __init__(
        self, segment: Segment, computed: Mapping[ir.Value, Any], inputs: Sequence[TensorOrArray], gives_arrays: bool
    ) -> None:
        """See :class:`Results`.

        Args:
            segment: of the call.
            computed: what was computed.
            inputs: the inputs, those of the state in arrays if they lie there.
            gives_arrays: whether the result is to be in arrays.
        """
        super().__init__(segment, computed, inputs)
        self._gives_arrays = gives_arrays
        self._written = segment.written
        self._on_host: dict[int, tuple[DeviceArray, torch.Tensor]] = {}
        self._carriers: dict[int, tuple[DeviceArray, torch.Tensor]] = {}
        self._in_other_hands: list[torch.Tensor] = []

    @cached_property
    def _returned(self) -> set[ir.Value]:
        return set(self._segment.values_in(self._segment.result))

    def deliver_and_keep(
        self, device: Device, state: ModelState, wholes: Sequence[torch.Tensor], arrays: StateArrays
    ) -> Any:
        """The result; the state, of which ``wholes`` are the memories, is what the call has made of it."""
        segment = self._segment
        self._device = device
        self._wholes = dict(zip(segment.inputs[len(segment.inputs) - len(wholes) :], wholes, strict=True))
        if self._gives_arrays:
            result = map_leaves(segment.result, Leaf, self._tensor)
            result = map_leaves(result, torch.Tensor, lambda tensor: as_array(device, tensor))
        else:
            result = map_leaves(segment.result, Leaf, self._host_tensor)
        updates = copy_nests(segment.updates, Leaf, self._stored)
        written = [(self._wholes[target], self._value(value)) for target, value in self._written.items()]
        changes = [
            (whole, value if _may_stay(value) and not state.is_exposed(whole) else self._host(value))
            for whole, value in written
        ]
        # Nothing can fail any more.
        for whole, value in changes:
            if isinstance(value, DeviceArray):
                arrays.put(whole, value)
            else:
                whole.copy_(value)
                arrays.discard(whole)
        for array, carrier in self._carriers.values():
            arrays.put(carrier, array, is_shared=True)
        if self._gives_arrays:
            arrays.give(leaves_of(result, DeviceArray))
        for tensor in self._in_other_hands:
            state.expose(tensor)
        if updates:
            state.commit(updates)
            tensors = list(leaves_of(list(state.forms.values()), torch.Tensor))
            arrays.keep_only(tensors)
            state.forget_exposed(tensors)
        return result

    def _stored(self, leaf: Leaf) -> torch.Tensor:
        """A tensor of the state: of the CPU, but its elements may be in an array."""
        ref = self._segment.value_of(leaf)
        if isinstance(leaf, Alias) and ref in self._wholes:
            return leaf.of(self._wholes[ref])
        is_argument = isinstance(leaf, Alias) and ref in self._inputs
        if not self._gives_arrays and (is_argument or ref in self._returned):
            tensor = self._host_tensor(leaf)
            self._in_other_hands.append(tensor)
            return tensor
        memory = self._memory(leaf) if isinstance(leaf, Alias) else self._value(ref)
        if not _may_stay(memory):
            return self._host_tensor(leaf)
        carrier = self._carrier(memory)
        return leaf.of(carrier) if isinstance(leaf, Alias) else carrier

    def _carrier(self, array: DeviceArray) -> torch.Tensor:
        """A tensor with the form of an array, which has the elements."""
        if id(array) not in self._carriers:
            kept = array if array.storage_offset() == 0 else array.clone(array.stride())
            carrier = torch.empty_strided(array.shape, array.stride(), dtype=array.dtype)
            self._carriers[id(array)] = kept, carrier
        return self._carriers[id(array)][1]

    def _host_tensor(self, leaf: Leaf) -> torch.Tensor:
        """A tensor on the CPU; what is one memory stays one."""
        if isinstance(leaf, Alias):
            return leaf.of(self._host(self._memory(leaf)))
        return self._host(self._tensor(leaf))

    def _host(self, value: TensorOrArray) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._on_host:
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.tensor())
            self._on_host[id(value)] = value, copy
        return self._on_host[id(value)][1]

    def _memory(self, alias: Alias) -> Any:
        """As for tensors, but that of a state which is given in an array is what the call has made of it: tensors lie
        in the memory that is written to. Arrays that lie in an argument on the CPU lie in one copy of it."""
        whole = self._segment.value_of(alias)
        given = self._inputs.get(whole)
        if self._gives_arrays and isinstance(given, torch.Tensor) and whole not in self._wholes:
            self._inputs[whole] = as_array(self._device, given)
        if self._gives_arrays and whole in self._written:
            return self._value(self._written[whole])
        return super()._memory(alias)

    def _laid_out(self, value: TensorOrArray, strides: tuple[int, ...]) -> TensorOrArray:
        if isinstance(value, DeviceArray):
            return value.clone(strides)
        copy: torch.Tensor = super()._laid_out(value, strides)
        return copy


def _may_stay(value: TensorOrArray) -> TypeGuard[DeviceArray]:
    """Whether the state keeps a value on the device."""
    return isinstance(value, DeviceArray) and value.dtype != torch.int64 and value.shape.numel() > 0


def as_array(device: Device, tensor: torch.Tensor) -> TensorOrArray:
    """A tensor of the CPU on the device; itself if the device has no elements for it."""
    if tensor.dtype not in HELD_DTYPES or tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    return DeviceArray.from_tensor(device, tensor)
