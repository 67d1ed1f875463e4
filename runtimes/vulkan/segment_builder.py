"""From where a call of a program stands to the segment with which it goes on, and what that is lowered to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mobopt import ir
from mobopt.ir import Program
from mobopt.ir.nests import map_leaves
from mobopt.options import PrecisionChoice
from mobopt.runtimes.bounds import InputBounds
from mobopt.runtimes.checkpoint import Checkpoint
from mobopt.runtimes.half_ranges import ValueRanges
from mobopt.runtimes.host_tape import Tape
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specializations import Specializations
from mobopt.runtimes.specialize import go_on, specialize
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.array_outputs import ArrayOutputs, array_outputs
from mobopt.runtimes.vulkan.call_arguments import as_meta
from mobopt.runtimes.vulkan.call_plan import CallTensors, on_host
from mobopt.runtimes.vulkan.compile.build import Built, build_stream
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.precision import Halving
from mobopt.runtimes.vulkan.compile.recorded import LoweredTemplates
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan


class CallPlace(NamedTuple):
    """Where a call stands: at its beginning, or after a look at elements."""

    method: str
    args: Sequence[Any]
    on_device: bool
    signature: Any
    """What its first plan depends on."""
    given: CallTensors
    in_arrays: Sequence[int]
    """Numbers of the call's inputs that lie on the device."""
    wanted: Collection[int]
    """Numbers of outputs that other programs take."""
    following: Checkpoint | None = None

    def array_outputs(self, segment: Segment) -> ArrayOutputs:
        """What stays on the device of that with which the call goes on."""
        in_arrays = [segment.taken + number for number in self.in_arrays]
        return array_outputs(segment, self.on_device, in_arrays, self.wanted)


class SegmentBuilder:
    """Traces a model and lowers it, for one device at a time; its callers take turns.

    Attributes:
        by_elements: operators that gave other sizes than the meta kernels foretold.
        floats_fit: whether no large float was made an int64 so far.
    """

    def __init__(
        self,
        program: Program,
        state: ModelState,
        bounds: InputBounds,
        precision: PrecisionChoice,
        ranges: ValueRanges,
        allow_fallback: bool,
    ) -> None:
        """Trace nothing yet.

        Args:
            program: the model.
            state: of the model.
            bounds: of inputs' sizes.
            precision: how float32 tensors lie in memory.
            ranges: what nodes of the model made before.
            allow_fallback: whether operators without a GPU kernel run on the CPU.
        """
        self.by_elements: set[str] = set()
        self.floats_fit = True
        self._program = program
        self._state = state
        self._bounds = bounds
        self._precision = precision
        self._ranges = ranges
        self._allow_fallback = allow_fallback
        self._constants = ConstantStore()
        self._specializations = Specializations(program, bounds)
        self._templates = LoweredTemplates(self._constants)
        self._refuse: Callable[[ir.Node], str | None] = lambda node: None

    def forget(self) -> None:
        """Give up what was lowered for all sizes."""
        self._templates.forget()

    def segment(self, place: CallPlace) -> Segment:
        """The segment with which a call goes on.

        Raises:
            InputError: the model refuses the arguments.
        """
        if place.following is not None:
            given = place.given
            return go_on(self._program, place.following, given.answers, given.numbers, self.by_elements)
        args = self._checked_args(place)
        if not self._state.names:
            return self._specializations.segment(place.method, args, self.by_elements)
        return specialize(self._program, place.method, args, self._state.forms, self.by_elements)

    def build(
        self, place: CallPlace, segment: Segment | None, integers: Sequence[Interval], info: DeviceInfo
    ) -> tuple[Segment, Built]:
        """A segment and what it is lowered to.

        Args:
            place: where the call stands.
            segment: with which it goes on, where that is known.
            integers: of the segment's int64 inputs.
            info: the device.
        """
        return self._of_template(place, integers, info) or self._of_size(place, segment, integers, info)

    def _of_template(
        self, place: CallPlace, integers: Sequence[Interval], info: DeviceInfo
    ) -> tuple[Segment, Built] | None:
        """Where only sizes are new: see :class:`LoweredTemplates`."""
        if place.following is not None or self._state.names or self._precision.is_half:
            return None
        found = self._specializations.matching(place.method, self._checked_args(place), self.by_elements)
        if found is None:
            return None

        def build(segment: Segment, classes: Mapping[ir.Value, Interval], make_plan: Callable[..., Plan]) -> Built:
            return self._lowered(segment, classes, info, make_plan=make_plan)

        return self._templates.built(*found, tuple(integers), info, build)

    def _of_size(
        self, place: CallPlace, segment: Segment | None, integers: Sequence[Interval], info: DeviceInfo
    ) -> tuple[Segment, Built]:
        segment = segment or self.segment(place)
        segment.tape = Tape(())  # what this call computed must not live as long as the plan
        wide = [value for value in segment.inputs if value.dtype == torch.int64]
        classes = dict(zip(wide, integers, strict=True))
        halving, state = self._halving(place), _state_in_arrays(place, segment)
        return segment, self._lowered(
            segment, classes, info, halving, state=state, arrays=lambda: place.array_outputs(segment).all
        )

    def _halving(self, place: CallPlace) -> Halving | None:
        """What chooses halves for the segment with which a call goes on."""
        choice, given = self._precision, place.given
        if not choice.is_half:
            return None
        tensors = range(len(given.inputs)) if place.following is None else ()  # later ones take arrays where they can
        from_host = {number for number in tensors if number not in (*place.in_arrays, *given.mirrored)}
        ranges = self._ranges
        return Halving(choice.precision, choice.fp32_nodes, ranges, lambda: [*map(on_host, given.inputs)], from_host)

    def _lowered(
        self,
        segment: Segment,
        integers: Mapping[ir.Value, Interval],
        info: DeviceInfo,
        halving: Halving | None = None,
        make_plan: Callable[..., Plan] = Plan,
        state: Collection[ir.Value] = (),
        arrays: Callable[[], Collection[ir.Value]] = tuple,
    ) -> Built:
        """What a segment is lowered to."""
        return build_stream(
            segment,
            info,
            self._constants,
            self._allow_fallback,
            integers,
            self.floats_fit,
            self._refuse,
            halving,
            make_plan,
            state,
            arrays,
        )

    def _checked_args(self, place: CallPlace) -> list[Any]:
        """Arguments of a call as tensors, whose sizes are within their bounds."""
        args: list[Any] = map_leaves(list(place.args), DeviceArray, as_meta)
        self._bounds.check(place.method, args)
        return args


def _state_in_arrays(place: CallPlace, segment: Segment) -> list[ir.Value]:
    """Inputs of a call's only segment that are parts of the state and lie on the device."""
    if place.following is not None:
        return []
    first = len(place.given.inputs) - len(place.given.wholes)
    return [segment.inputs[segment.taken + number] for number in place.in_arrays if number >= first]
