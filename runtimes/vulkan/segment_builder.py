"""From where a call of a program stands to the segment with which it goes on, and what that is lowered to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from mobopt import ir
from mobopt.ir import Program
from mobopt.ir.nests import map_leaves
from mobopt.options import PrecisionChoice
from mobopt.runtimes.bounds import InputBounds
from mobopt.runtimes.half_ranges import ValueRanges
from mobopt.runtimes.host_tape import Tape
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specializations import Specializations
from mobopt.runtimes.specialize import go_on, specialize
from mobopt.runtimes.state import ModelState
from mobopt.runtimes.vulkan.call import Call, on_host
from mobopt.runtimes.vulkan.call_arguments import as_meta
from mobopt.runtimes.vulkan.compile.build import Built, build_stream
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.precision import Halving
from mobopt.runtimes.vulkan.compile.recorded import LoweredTemplates
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan


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

    def segment(self, call: Call) -> Segment:
        """The segment with which a call goes on.

        Raises:
            InputError: the model refuses the arguments.
        """
        if call.following is not None:
            return go_on(self._program, call.following, call.answers, call.numbers, self.by_elements)
        args = self._checked_args(call)
        if not self._state.names:
            return self._specializations.segment(call.method, args, self.by_elements)
        return specialize(self._program, call.method, args, self._state.forms, self.by_elements)

    def build(
        self, call: Call, segment: Segment | None, integers: Sequence[Interval], info: DeviceInfo
    ) -> tuple[Segment, Built]:
        """A segment and what it is lowered to.

        Args:
            call: where it stands.
            segment: with which it goes on, where that is known.
            integers: of the segment's int64 inputs.
            info: the device.
        """
        return self._of_template(call, integers, info) or self._of_size(call, segment, integers, info)

    def _of_template(self, call: Call, integers: Sequence[Interval], info: DeviceInfo) -> tuple[Segment, Built] | None:
        """Where only sizes are new: see :class:`LoweredTemplates`."""
        if call.following is not None or self._state.names or self._precision.is_half:
            return None
        found = self._specializations.matching(call.method, self._checked_args(call), self.by_elements)
        if found is None:
            return None

        def build(segment: Segment, classes: Mapping[ir.Value, Interval], make_plan: Callable[..., Plan]) -> Built:
            return self._lowered(segment, classes, info, make_plan=make_plan)

        return self._templates.built(*found, tuple(integers), info, build)

    def _of_size(
        self, call: Call, segment: Segment | None, integers: Sequence[Interval], info: DeviceInfo
    ) -> tuple[Segment, Built]:
        segment = segment or self.segment(call)
        segment.tape = Tape(())  # what this call computed must not live as long as the plan
        wide = [value for value in segment.inputs if value.dtype == torch.int64]
        classes = dict(zip(wide, integers, strict=True))
        halving, state = self._halving(call), _state_in_arrays(call, segment)
        return segment, self._lowered(
            segment, classes, info, halving, state=state, arrays=lambda: call.array_outputs(segment).all
        )

    def _halving(self, call: Call) -> Halving | None:
        """What chooses halves for the segment with which a call goes on."""
        choice = self._precision
        if not choice.is_half:
            return None
        tensors = range(len(call.inputs)) if call.following is None else ()  # later ones take arrays where they can
        from_host = {number for number in tensors if number not in (*call.in_arrays, *call.mirrored)}
        ranges = self._ranges
        return Halving(choice.precision, choice.fp32_nodes, ranges, lambda: [*map(on_host, call.inputs)], from_host)

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

    def _checked_args(self, call: Call) -> list[Any]:
        """Arguments of a call as tensors, whose sizes are within their bounds."""
        args: list[Any] = map_leaves(list(call.args), DeviceArray, as_meta)
        self._bounds.check(call.method, args)
        return args


def _state_in_arrays(call: Call, segment: Segment) -> list[ir.Value]:
    """Inputs of a call's only segment that are parts of the state and lie on the device."""
    if call.following is not None:
        return []
    first = len(call.inputs) - len(call.wholes)
    return [segment.inputs[segment.taken + number] for number in call.in_arrays if number >= first]
