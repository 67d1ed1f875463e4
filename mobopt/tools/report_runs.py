"""What a report tells of runs on a device of this machine: accuracy, speed and memory of each method."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from mobopt.errors import DeviceError, InputError, MoboptError
from mobopt.frontends.source import Source
from mobopt.optimizer import optimize
from mobopt.options import OWN_RUNTIME, Settings
from mobopt.passes.pipelines import PassPipeline
from mobopt.samples.example_inputs import ChosenInputs
from mobopt.tools.comparison import compare
from mobopt.tools.comparison_results import Comparison
from mobopt.tools.execution import timed_calls
from mobopt.tools.profiling import Layer, layers_of, median_times

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.program import VulkanProgram

Found = TypeVar("Found")
BEST_DEVICE = "vulkan"
_FORWARD = "forward"


@dataclass(frozen=True)
class Measurement:
    """A method on a device of this machine, beside eager PyTorch on its CPU.

    Attributes:
        device: its name.
        milliseconds: of each call.
        eager_milliseconds: of each call of the model itself, on the CPU, measured in turn.
        threads: of the CPU, for eager PyTorch.
        layers: those that take longest first; empty if the device has no clock.
        dispatches: how many a call has.
        fallbacks: operators on the CPU, with the reason.
        peak_bytes: of device memory; None if nothing is left to compute.
        lower_bound_bytes: weights, and the largest set of tensors alive at once.
    """

    device: str
    milliseconds: tuple[float, ...]
    eager_milliseconds: tuple[float, ...]
    threads: int
    layers: tuple[Layer, ...]
    dispatches: int
    fallbacks: tuple[str, ...]
    peak_bytes: int | None
    lower_bound_bytes: int | None

    @property
    def median(self) -> float:
        """Milliseconds of a call."""
        return statistics.median(self.milliseconds)

    @property
    def eager_median(self) -> float:
        """Milliseconds of a call of the model itself."""
        return statistics.median(self.eager_milliseconds)


@dataclass(frozen=True)
class MethodRun:
    """A method on a device; what could not be found out is None.

    Attributes:
        comparison: layer by layer, the model on the CPU and what runs on the device.
        measurement: times and memory.
    """

    comparison: Comparison | None
    measurement: Measurement | None


def runs_of(
    source: Source,
    device: str,
    passes: PassPipeline | None,
    inputs: ChosenInputs,
    repeat: int,
    refusals: dict[str, str],
    show: Callable[[str], None],
) -> dict[str, MethodRun]:
    """Compare and measure every method that has inputs.

    Args:
        source: the model.
        device: ``"vulkan"`` for the best one, a number or a part of a name.
        passes: what the model goes through before it is compared; None: the file is optimised already.
        inputs: arguments of methods.
        repeat: timed calls.
        refusals: takes what could not be found out, by name, with the reason.
        show: is told each step.
    """
    methods = list(inputs.by_method) or [_FORWARD]
    prepared = _Prepared(source, device, inputs, is_optimized=passes is None)
    runs = {}
    for method in methods:
        of_method = f" of {method}" if len(methods) > 1 else ""

        def compared(method: str = method) -> Comparison:
            return compare(
                source, device_b=device, passes_b=passes, method=method, example_inputs=inputs.by_method or None
            )

        def measured(method: str = method) -> Measurement:
            return prepared.measured(method, repeat)

        show(f"comparing layer by layer{of_method}")
        comparison = tried(refusals, f"accuracy{of_method}", compared)
        show(f"measuring{of_method}")
        runs[method] = MethodRun(comparison, tried(refusals, f"speed{of_method}", measured))
    return runs


def tried(refusals: dict[str, str], name: str, work: Callable[[], Found]) -> Found | None:
    """What a part of a report finds; None, and the reason among the refusals, if it can't be done."""
    try:
        return work()
    except MoboptError as error:
        refusals[name] = str(error)
        return None


class _Prepared:
    """A model as mobopt's own runtime runs it, once for all methods that are measured."""

    def __init__(self, source: Source, device: str, inputs: ChosenInputs, is_optimized: bool) -> None:
        self._source, self._inputs = source, inputs
        self._device = None if device == BEST_DEVICE else device
        self._program = source.program if is_optimized else None

    def measured(self, method: str, repeat: int) -> Measurement:
        """Times of a method, the device and eager PyTorch in turn, and memory.

        Raises:
            InputError: no inputs of it are known.
            MoboptError: the device can't run it.
        """
        from mobopt.runtimes.vulkan.program import VulkanProgram

        arguments = self._inputs.by_method.get(method)
        if arguments is None:
            raise InputError(
                "no inputs are known that the model takes; give them with --input x.npy or --random 1,3,224,224"
            )
        if self._program is None:
            self._program = optimize(self._source, Settings("vulkan", OWN_RUNTIME), self._inputs.by_method).program
        runtime = VulkanProgram(self._program, self._device)  # of one method: its memory is of no other
        try:
            return _measurement(runtime, self._source.caller(method), method, arguments, repeat)
        finally:
            runtime.close()


def _measurement(
    runtime: VulkanProgram,
    eager: Callable[[Sequence[Any]], Any],
    method: str,
    arguments: Sequence[Any],
    repeat: int,
) -> Measurement:
    plan = runtime.plan_report(copy.deepcopy(list(arguments)), method)
    with torch.no_grad():
        eager(copy.deepcopy(list(arguments)))
        pairs = [
            (
                timed_calls(lambda: runtime.run(method, copy.deepcopy(list(arguments))), 1)[1][0] * 1000,
                timed_calls(lambda: eager(copy.deepcopy(list(arguments))), 1)[1][0] * 1000,
            )
            for _ in range(repeat)
        ]
    memory = plan.memory
    return Measurement(
        str(runtime.device.info),
        tuple(own for own, _ in pairs),
        tuple(theirs for _, theirs in pairs),
        torch.get_num_threads(),
        tuple(_layers(runtime, method, arguments, repeat)),
        plan.dispatches,
        tuple(map(str, plan.fallbacks)),
        None if memory is None else memory.peak_bytes,
        None if memory is None else memory.lower_bound_bytes,
    )


def _layers(runtime: VulkanProgram, method: str, arguments: Sequence[Any], repeat: int) -> list[Layer]:
    """As ``mobopt profile`` tells them; nothing if the device has no clock."""
    from mobopt.runtimes.vulkan.device_roofs import roofs_of

    try:
        runs = [runtime.profile(copy.deepcopy(list(arguments)), method) for _ in range(repeat + 1)]
        layers = layers_of(median_times(runs)[0], roofs_of(runtime.device))
    except DeviceError:
        return []
    return sorted(layers, key=lambda layer: -layer.work.seconds)
