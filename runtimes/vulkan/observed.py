"""Calls on a device whose values in between are seen: what dispatches make beside what the model returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

import torch

from mobopt import ir
from mobopt.ir.straight_line import copy_line, name_values
from mobopt.options import SINGLE, FallbackChoice, PrecisionChoice
from mobopt.runtimes.bounds import NO_BOUNDS
from mobopt.runtimes.half_ranges import ValueRanges
from mobopt.runtimes.line_run import Show
from mobopt.runtimes.segment import Returned, Segment
from mobopt.runtimes.vulkan.call import Call, on_host
from mobopt.runtimes.vulkan.call_plan import CallPlan
from mobopt.runtimes.vulkan.compile.build import Built, Fallback, build_stream
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.placement import integer_class
from mobopt.runtimes.vulkan.compile.precision import Halving
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.lane import RefusedError, TensorOrArray
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.runtimes.vulkan.segment_builder import SegmentBuilder

Refuse = Callable[[ir.Node], str | None]
"""Why a node is to run on the CPU although the device could compute it; None if it is not."""


class ObservedProgram(VulkanProgram):
    """A VulkanProgram that shows values of its segments.

    To be seen, a value must be an output, so fusions are found out first: what they leave is seen, and the dispatches
    stay what they are without an observer.

    Attributes:
        lines: the segments of the last call in order, as they were before decomposition and fusion. Values have names.
        fallbacks: what the plans leave to the CPU, in words, each once.
        made: for each of these lines, the names of the values that dispatches or the host really make.
    """

    def __init__(
        self,
        program: ir.Program,
        device: Device | int | str | None = None,
        fallback: FallbackChoice = "cpu",
        *,
        wanted: Container[str] = (),
        split: Callable[[ir.Graph], Container[str]] = lambda line: (),
        refuse: Refuse = lambda node: None,
        precision: PrecisionChoice = SINGLE,
        stays_single: Callable[[ir.Node], bool] = lambda node: False,
    ) -> None:
        """Open the device.

        Args:
            program: the model.
            device: as for :class:`VulkanProgram`.
            fallback: likewise.
            wanted: names of the values to show.
            split: names of the values of a line that no fusion may swallow.
            refuse: the nodes to run on the CPU.
            precision: as for :class:`VulkanProgram`.
            stays_single: the nodes to keep in float32, beside those that ``precision`` names.
        """
        super().__init__(program, device, fallback, precision=precision)
        self._builder = self._shown = _ObservedBuilder(self, fallback == "cpu", precision, wanted, split, refuse)
        self._shown.stays_single = stays_single
        self.lines: list[ir.Graph] = []
        self.made: list[frozenset[str]] = []
        self.fallbacks: dict[str, None] = {}
        self._wanted = wanted

    def observe(self, method: str, args: Sequence[Any], show: Show) -> Any:
        """What a method returns; see :meth:`VulkanProgram.run`.

        Args:
            method: its name.
            args: its arguments without self.
            show: is told of the values that are wanted, and of all inputs of the lines, once a line is computed.
        """

        def passing(plan: CallPlan, call: Call) -> Sequence[TensorOrArray]:
            computed = plan.compute(call)
            self._show(plan, call, computed, show)
            return computed

        def ending(plan: CallPlan, call: Call) -> Any:
            computed = passing(plan, call)
            return plan.deliver(call, computed)

        def begin_anew() -> None:
            self.lines.clear()
            self.made.clear()

        begin_anew()
        with self.model_state.lock:
            return self._attempt(method, args, False, passing, ending, begin_anew)

    def _show(self, plan: CallPlan, call: Call, computed: Sequence[TensorOrArray], show: Show) -> None:
        line, made = self._shown.seen[plan.segment.graph]
        number = len(self.lines)
        self.lines.append(line)
        self.made.append(made)
        for value, tensor in zip(line.inputs, call.inputs, strict=True):
            show(number, value, on_host(tensor))
        values = {value.name: value for node in line.block.nodes for value in node.outputs}
        for output, tensor in zip(plan.outputs, computed, strict=True):
            if output.name in self._wanted and output.name in values:
                show(number, values[output.name], on_host(tensor))

    def _tell_fallbacks(self, fallbacks: Sequence[Fallback]) -> None:
        self.fallbacks.update(dict.fromkeys(map(str, fallbacks)))


class _ObservedBuilder(SegmentBuilder):
    """Names the values of segments, and has those that are wanted returned too."""

    def __init__(
        self,
        observed: ObservedProgram,
        allow_fallback: bool,
        precision: PrecisionChoice,
        wanted: Container[str],
        split: Callable[[ir.Graph], Container[str]],
        refuse: Refuse,
    ) -> None:
        super().__init__(observed.program, observed.model_state, NO_BOUNDS, precision, ValueRanges(), allow_fallback)
        self.seen: dict[ir.Graph, tuple[ir.Graph, frozenset[str]]] = {}
        """By the graph that is lowered."""
        self.stays_single: Callable[[ir.Node], bool] = lambda node: False
        self._wanted = wanted
        self._split = split
        self._refuse = refuse

    def _of_template(self, call: Call, integers: Sequence[Interval], info: DeviceInfo) -> None:
        """None: nodes are shown, which only the segment of one size has."""

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
        graph = segment.graph
        if halving is not None:
            returned = set(graph.outputs)
            halving.observed = lambda value: value not in returned
            halving.stays_single = self.stays_single
        name_values(graph, str(len(self.seen)))
        line = copy_line(graph)
        split = self._split(line)
        _return_too(graph, lambda value: value.name in split)
        super()._lowered(segment, integers, info, halving)  # only to see what fusions leave
        made = frozenset(value.name for node in graph.block.nodes for value in node.outputs if value.name)
        _return_too(graph, lambda value: value.name in self._wanted)
        self.seen[graph] = line, made
        return super()._lowered(segment, integers, info, halving, arrays=arrays)


def _return_too(graph: ir.Graph, is_wanted: Callable[[ir.Value], bool]) -> None:
    """Make values outputs beside those that are."""
    made = [value for node in graph.block.nodes for value in node.outputs if is_wanted(value)]
    graph.return_values(*dict.fromkeys([*graph.outputs, *made]))


def run_line(
    device: Device,
    line: ir.Graph,
    inputs: Sequence[torch.Tensor],
    precision: PrecisionChoice = SINGLE,
    stays_single: Callable[[ir.Node], bool] = lambda node: False,
) -> list[torch.Tensor]:
    """What a line, by itself, gives on a device.

    Args:
        device: where it runs; what the device lacks runs on the CPU.
        line: as specialising leaves it; it is not changed.
        inputs: its inputs.
        precision: of halves, what it returns is rounded as in the middle of a model.
        stays_single: as for :class:`ObservedProgram`.

    Raises:
        InputError: the line refuses the inputs.
        DeviceError: the device failed.
    """
    for floats_fit in (True, False):
        graph = copy_line(line)
        segment = Segment(graph, [Returned(number) for number in range(len(graph.outputs))])
        integers = {
            value: integer_class(tensor)
            for value, tensor in zip(graph.inputs, inputs, strict=True)
            if value.dtype == torch.int64
        }
        halving = None
        if precision.is_half:
            halving = Halving(precision.precision, precision.fp32_nodes, ValueRanges(), lambda: inputs)
            halving.observed = lambda value: True
            halving.stays_single = stays_single
        built = build_stream(segment, device.info, ConstantStore(), True, integers, floats_fit, halving=halving)
        executable = Executable(device, built.stream)
        try:
            found = dict(zip(built.outputs, executable.run([inputs[number] for number in built.inputs]), strict=True))
            return [on_host(found[value]) for value in graph.outputs]
        except RefusedError:
            if not floats_fit:
                raise
        finally:
            executable.close()
    raise AssertionError("a line is refused, or computed")
