"""Where the time of a model goes on a device: each layer and each shader beside what the device can do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mobopt.errors import InputError
from mobopt.options import FallbackChoice
from mobopt.runtimes.vulkan.engine.stream import NO_CALL, Copy, Dispatch, HostCall, LoweredCall, moved_bytes
from mobopt.samples.example_inputs import ExampleInputs
from mobopt.tools.execution import timed_calls
from mobopt.tools.measured_model import read_measured

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.device_roofs import DeviceRoofs
    from mobopt.runtimes.vulkan.engine.profiling import OperationTime

BOUNDS = {
    "memory": "bytes: the copy rate is the nearest roof",
    "arithmetic": "multiply-adds: the product rate is the nearest roof",
    "dispatch": "too small: waiting for the dispatch before is the nearest roof",
    "host": "computed by the CPU, or copied to it",
}
"""What the nearest roof of a layer says."""


@dataclass(frozen=True)
class Work:
    """What was done, and the time that it took.

    Attributes:
        seconds: by the device's clock, the median of several runs; of the host's for what it computes.
        flops: floating-point operations, by the operators' records; a multiply-add counts two.
        bytes_read: of elements, each once for a dispatch that reads it.
        bytes_written: likewise.
        dispatches: how many; copies count too.
    """

    seconds: float = 0.0
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    dispatches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.seconds + other.seconds,
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.dispatches + other.dispatches,
        )

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def flops_per_second(self) -> float:
        """0 where no time was measured."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """0 where no time was measured."""
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Layer:
    """A node of the graph that was run, with what was fused into it.

    Attributes:
        label: the operator and its sizes.
        operators: of the node and what was fused into it, in order; none for transfers.
        source: every line of the model that it comes from.
        nodes: the nodes of the model, in short.
        shaders: of its dispatches, each once.
        work: of all of its dispatches.
        bound: the roof that it is nearest to, one of :data:`BOUNDS`.
        share: of that roof, 1 for all of it; more is possible where caches hold what it reads.
        reason: why the CPU computes it, if it does.
    """

    label: str
    operators: tuple[str, ...]
    source: tuple[str, ...]
    nodes: tuple[str, ...]
    shaders: tuple[str, ...]
    work: Work
    bound: str
    share: float
    reason: str = ""

    @property
    def title(self) -> str:
        """The label with the operators that were fused."""
        fused = [name.partition("::")[2].partition(".")[0] for name in self.operators[1:]]
        return " + ".join([self.label, *fused])


@dataclass(frozen=True)
class ShaderUse:
    """All dispatches of a shader. FLOPs of a layer of several dispatches are shared out by their times."""

    shader: str
    work: Work
    bound: str
    share: float


@dataclass(frozen=True)
class Profile:
    """A model's layers on a device, in the order in which they run."""

    model: str
    device: str
    driver: str
    inputs: str
    method: str
    call_seconds: tuple[float, ...]
    """Of whole calls without timestamps, from tensors on the CPU to tensors on the CPU."""
    runs: int
    """With timestamps; times are medians of these."""
    layers: tuple[Layer, ...]
    shaders: tuple[ShaderUse, ...]
    roofs: DeviceRoofs
    operations: tuple[OperationTime, ...]
    fallbacks: tuple[str, ...]
    peak_bytes: int

    @property
    def total(self) -> Work:
        """Of all layers."""
        return sum((layer.work for layer in self.layers), Work())

    @property
    def median_call(self) -> float:
        """Seconds of a whole call."""
        return statistics.median(self.call_seconds)

    def by_time(self) -> list[Layer]:
        """The layers that take longest first."""
        return sorted(self.layers, key=lambda layer: -layer.work.seconds)

    def share_of_time(self, work: Work) -> float:
        """Of the time of all layers."""
        return work.seconds / self.total.seconds if self.total.seconds else 0.0


def profile(
    path: Path,
    example_inputs: ExampleInputs | None = None,
    *,
    device: str | None = None,
    method: str = "forward",
    repeat: int = 10,
    fallback: FallbackChoice = "cpu",
    show: Callable[[str], None] = lambda step: None,
) -> Profile:
    """Run a model on a Vulkan device with timestamps.

    Args:
        path: a model, which is optimised for mobopt's own runtime first, or an optimised file, which runs as it is.
        example_inputs: arguments by method; without them, those bundled with the model, of shapes traced or
            declared, or guessed.
        device: a Vulkan device's number or a part of its name; None for the best.
        method: which method.
        repeat: how many runs with timestamps, and as many calls without.
        fallback: whether operators without a GPU kernel run on the CPU or are an error.
        show: is told each step.

    Raises:
        MoboptError: the model, an input or the device can't be used, or the device has no timestamps.
    """
    if device == "cpu":
        raise InputError("a profile has the times of a Vulkan device's dispatches; leave out --device cpu")
    model = read_measured(path, method, example_inputs, show)
    from mobopt.runtimes.vulkan.device_roofs import roofs_of
    from mobopt.runtimes.vulkan.program import VulkanProgram

    runtime = VulkanProgram(model.program, device, fallback)
    try:
        show(f"running {model.name}")
        report = runtime.plan_report(model.args, method)
        _, seconds = timed_calls(lambda: runtime.run(method, model.args), repeat + 1)
        runs = [runtime.profile(model.args, method) for _ in range(repeat + 1)]
        show(f"measuring {runtime.device.info.name}")
        roofs = roofs_of(runtime.device)
    finally:
        runtime.close()
    times, counted = median_times(runs)
    layers = tuple(layers_of(times, roofs))
    return Profile(
        model=model.name,
        device=str(runtime.device.info),
        driver=runtime.device.info.driver,
        inputs=model.inputs_text,
        method=method,
        call_seconds=seconds[1:],
        runs=counted,
        layers=layers,
        shaders=tuple(shaders_of(times, roofs)),
        roofs=roofs,
        operations=tuple(times),
        fallbacks=tuple(map(str, report.fallbacks)),
        peak_bytes=0 if report.memory is None else report.memory.peak_bytes,
    )


def median_times(runs: Sequence[Sequence[OperationTime]]) -> tuple[list[OperationTime], int]:
    """The operations of a run, each with its median duration, and of how many runs.

    The first run is a warm-up if there are more. A model with state may do other operations from call to call: the
    runs count that do those of the last one.
    """
    last = runs[-1]
    steps = [time.operation for time in last]
    alike = [run for run in runs[1:] or runs if [time.operation for time in run] == steps]
    found: list[OperationTime] = []
    start = 0
    for number, item in enumerate(last):
        duration = round(statistics.median(run[number].duration_ns for run in alike))
        found.append(replace(item, start_ns=start, duration_ns=duration))
        start += duration
    return found, len(alike)


def layers_of(times: Sequence[OperationTime], roofs: DeviceRoofs) -> Iterable[Layer]:
    """The layers of a run, in order."""
    for group in _calls(times):
        first = group[0]
        work = sum((_moved(item) for item in group), Work())
        work = replace(work, flops=_call_of(first).flops)
        bound, share = nearest_roof(work, roofs, is_host=_shader(first) in _NO_SHADERS)
        yield Layer(
            label=first.label,
            operators=_call_of(first).operators,
            source=first.source.lines,
            nodes=tuple(node.text for node in first.source.nodes if node.text),
            shaders=tuple(dict.fromkeys(map(_shader, group))),
            work=work,
            bound=bound,
            share=share,
            reason=first.reason,
        )


def shaders_of(times: Sequence[OperationTime], roofs: DeviceRoofs) -> list[ShaderUse]:
    """The shaders of a run, those that take longest first."""
    found: dict[str, Work] = {}
    for group in _calls(times):
        whole = sum(item.duration_ns for item in group)
        for item in group:
            part = item.duration_ns / whole if whole else 1 / len(group)
            work = replace(_moved(item), flops=round(_call_of(item).flops * part))
            found[_shader(item)] = found.get(_shader(item), Work()) + work
    uses = [
        ShaderUse(name, work, *nearest_roof(work, roofs, is_host=name in _NO_SHADERS)) for name, work in found.items()
    ]
    return sorted(uses, key=lambda use: -use.work.seconds)


def nearest_roof(work: Work, roofs: DeviceRoofs, *, is_host: bool = False) -> tuple[str, float]:
    """What bounds some work, and how near it is to that roof."""
    if is_host:
        return "host", 0.0
    floors = roofs.floors(work.bytes, work.flops, work.dispatches)
    bound = max(floors, key=lambda name: floors[name])
    return bound, floors[bound] / work.seconds if work.seconds else 0.0


_HOST, _COPY = "on the CPU", "copy"
_NO_SHADERS = (_HOST, _COPY)


def _calls(times: Sequence[OperationTime]) -> Iterable[list[OperationTime]]:
    """The operations of each call that was lowered; those of no call by themselves."""
    group: list[OperationTime] = []
    for item in times:
        call = _call_of(item)
        is_next = group and call is _call_of(group[-1]) and call.operators
        if is_next and all(item.operation is not other.operation for other in group):
            group.append(item)
            continue
        if group:
            yield group
        group = [item]
    if group:
        yield group


def _call_of(item: OperationTime) -> LoweredCall:
    return NO_CALL if isinstance(item.operation, Copy) else item.operation.call


def _shader(item: OperationTime) -> str:
    if isinstance(item.operation, Dispatch):
        return item.operation.shader
    return _COPY if isinstance(item.operation, Copy) else _HOST


def _moved(item: OperationTime) -> Work:
    read, written = moved_bytes(item.operation)
    return Work(item.duration_ns / 1e9, 0, read, written, 0 if isinstance(item.operation, HostCall) else 1)
