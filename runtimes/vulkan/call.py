"""One call of a model, and where it stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from mobopt.runtimes.checkpoint import Checkpoint
from mobopt.runtimes.host_tape import Ref
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.array_outputs import ArrayOutputs, array_outputs
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.placement import class_of, integer_class
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.lane import TensorOrArray


class Call:
    """What a call was given, and its tensors and numbers at its beginning, or after a look at elements.

    Attributes:
        method: of the model.
        args: its arguments without self.
        on_device: whether results stay on the device.
        signature: what its first plan depends on.
        wholes: the memories of the state, in the state's own tensors.
        mirrored: arrays with the elements of inputs on the CPU, by number.
        wanted: numbers of outputs that other programs take.
        following: where it stands after a look at elements.
        answers: elements that were read, with which the next segment's tape begins.
        numbers: of the host, which come next there.
        values: of the tape of the segment that is up.
    """

    following: Checkpoint | None = None
    answers: Sequence[torch.Tensor] = ()
    numbers: Sequence[Any] = ()
    values: Sequence[Any] = ()
    _carried: Sequence[TensorOrArray] = ()
    _hosted: Sequence[torch.Tensor] = ()
    _classes: tuple[Interval, ...] | None = None

    def __init__(
        self,
        method: str,
        args: Sequence[Any],
        on_device: bool,
        signature: Any,
        inputs: Sequence[TensorOrArray],
        wholes: Sequence[torch.Tensor],
        mirrored: Mapping[int, DeviceArray],
        wanted: Collection[int],
    ) -> None:
        """Begin; ``inputs`` are the tensors of arguments, then of the state, each on the CPU or in an array."""
        self.method = method
        self.args = args
        self.on_device = on_device
        self.signature = signature
        self.wholes = wholes
        self.mirrored = mirrored
        self.wanted = wanted
        self._inputs = inputs
        self._arrays: dict[int, DeviceArray] = {**mirrored}

    @property
    def inputs(self) -> Sequence[TensorOrArray]:
        """What the segment takes that is up: what is carried to it, what the host computed, then the call's inputs."""
        if not (self._carried or self._hosted):
            return self._inputs
        return [*self._carried, *self._hosted, *self._inputs]

    @property
    def in_arrays(self) -> list[int]:
        """Numbers of the call's inputs that lie on the device."""
        return [number for number, value in enumerate(self._inputs) if isinstance(value, DeviceArray)]

    @property
    def given(self) -> list[Any]:
        """What the tape of the next segment begins with."""
        return [*self.answers, *self.numbers]

    def array_outputs(self, segment: Segment) -> ArrayOutputs:
        """What stays on the device of the segment that is up."""
        in_arrays = [segment.taken + number for number in self.in_arrays]
        return array_outputs(segment, self.on_device, in_arrays, self.wanted)

    def integers(self) -> tuple[Interval, ...]:
        """The classes of the int64 tensors among the inputs; those of the call's are found once."""
        if self._classes is None:
            self._classes = _integer_classes(self._inputs)
        return (*_integer_classes([*self._carried, *self._hosted]), *self._classes)

    def go_on(
        self,
        following: Checkpoint | None,
        carried: Sequence[TensorOrArray],
        answers: Sequence[torch.Tensor],
        numbers: Sequence[Any],
    ) -> None:
        """Stand before the next segment."""
        self.following = following
        self._carried, self.answers, self.numbers = carried, answers, numbers
        self._hosted = ()

    def host(self, values: Sequence[Any], hosted: Sequence[Ref]) -> None:
        """Take what the host computed for the segment."""
        self.values = values
        self._hosted = [values[ref.number] for ref in hosted]

    def array(self, number: int, device: Device) -> TensorOrArray:
        """An input of the segment; one of the call on the device, where it is copied once for all but the first."""
        number -= len(self._carried)
        if number < 0:
            return self._carried[number]
        number -= len(self._hosted)
        tensor = self._inputs[number]
        if isinstance(tensor, DeviceArray):
            return tensor
        if number not in self._arrays:
            self._arrays[number] = DeviceArray.from_tensor(device, tensor)
        return self._arrays[number]

    def own(self, number: int, seen: Collection[int]) -> TensorOrArray:
        """What is carried or hosted, as a tensor or an array that neither the caller nor the state has, nor those
        ``seen``."""
        if number >= len(self._carried):
            return self._hosted[number - len(self._carried)].clone()
        value = self._carried[number]
        is_shared = id(value) in seen or any(value is given for given in self._inputs)
        return value.clone() if is_shared else value


def _integer_classes(values: Sequence[TensorOrArray]) -> tuple[Interval, ...]:
    return tuple(
        class_of(value.bounds) if isinstance(value, DeviceArray) else integer_class(value)
        for value in values
        if value.dtype == torch.int64
    )


def on_host(value: TensorOrArray) -> torch.Tensor:
    """A tensor, or what an array holds."""
    return value.tensor() if isinstance(value, DeviceArray) else value
