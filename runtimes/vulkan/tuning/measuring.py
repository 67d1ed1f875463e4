"""Times kernels on layers, by the device's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from types import TracebackType

from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.pipelines import PipelineStore, pipeline_key
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Operation, Stream
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.tuning.layers import Layer, PreparedLayer, forced

_LEAST_ROUNDS = 3
"""The first one of a kernel warms up."""
_SHADERS = "product"
"""What names of what is timed begin with."""


@dataclass
class Measured:
    """A layer, with the least nanoseconds of each kernel."""

    layer: Layer
    shape: ProductShape
    times: dict[ProductKernel, float] = field(default_factory=dict)
    next_times: dict[ProductKernel, float] = field(default_factory=dict)
    """The second least: how far it is from the least tells how much else the device has to do."""

    def add(self, kernel: ProductKernel, taken: float) -> None:
        """Note a time."""
        least = self.times.get(kernel, math.inf)
        self.times[kernel] = min(least, taken)
        self.next_times[kernel] = min(self.next_times.get(kernel, math.inf), max(least, taken))

    @property
    def least(self) -> float:
        """Nanoseconds of the best kernel."""
        return min(self.times.values())

    @property
    def spreads(self) -> list[float]:
        """How far apart the two least times of each kernel are: 0.1 for 10 %."""
        return [self.next_times[kernel] / least - 1 for kernel, least in self.times.items()]


@dataclass
class _Run:
    """A kernel that is ready to run."""

    item: Measured
    kernel: ProductKernel
    executable: Executable
    is_warm: bool = False

    def time(self) -> None:
        """Run it once, and note how long it took unless it was the first time."""
        taken = sum(step.duration_ns for step in self.executable.profile([])[1] if _is_timed(step.operation))
        if self.is_warm:
            self.item.add(self.kernel, max(taken, 1))
        self.is_warm = True


class Bench:
    """Layers with kernels that are made ready and timed; leaving the context gives all of them back to the device."""

    def __init__(self, device: Device, layers: Sequence[Layer]) -> None:
        self._device = device
        self._layers = [PreparedLayer(layer) for layer in layers]
        self._runs: list[list[_Run]] = [[] for _ in layers]
        self.items = [Measured(layer.layer, layer.shape(device.info)) for layer in self._layers]

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runs in self._runs:
            for run in runs:
                run.executable.close()

    @property
    def kernels(self) -> int:
        """How many are ready, over all layers."""
        return sum(map(len, self._runs))

    def prepare(self, choose: Callable[[Measured], Iterable[ProductKernel]], show: Callable[[str], None]) -> None:
        """Make kernels ready for each layer; those that are stay as they are."""
        new: list[tuple[list[_Run], Measured, ProductKernel, Stream]] = []
        for layer, item, runs in zip(self._layers, self.items, self._runs, strict=True):
            show(f"preparing {layer.layer}")
            ready = {run.kernel for run in runs}
            for kernel in dict.fromkeys(choose(item)):
                if kernel not in ready:
                    new.append((runs, item, kernel, layer.stream(self._device.info, forced(kernel))))
        show(f"preparing {len(new)} kernels")
        with _pipelines(self._device, [stream for *_, stream in new]):
            for runs, item, kernel, stream in new:
                runs.append(_Run(item, kernel, Executable(self._device, stream)))

    def measure(self, seconds: float) -> None:
        """Time all kernels in rounds, so that what disturbs one round disturbs all: at least a few, then until the time
        is over. Layers take turns, so that caches hold no more of their weights than they do in a network."""
        deadline = time.perf_counter() + seconds
        runs = [run for turn in zip_longest(*self._runs) for run in turn if run is not None]
        rounds = 0
        while rounds < _LEAST_ROUNDS or (time.perf_counter() < deadline and runs):
            for run in runs:
                run.time()
                if rounds >= _LEAST_ROUNDS and time.perf_counter() > deadline:
                    break
            rounds += 1


@contextmanager
def _pipelines(device: Device, streams: Iterable[Stream]) -> Iterator[None]:
    """Pipelines of streams, made together, so on all cores."""
    dispatches = (step for stream in streams for step in stream.operations if isinstance(step, Dispatch))
    keys = [pipeline_key(dispatch, device.info.switches) for dispatch in dispatches]
    store = device.shared(PipelineStore)
    store.acquire(keys)
    try:
        yield
    finally:
        store.release(keys)


def _is_timed(step: Operation) -> bool:
    return isinstance(step, Dispatch) and step.shader.startswith(_SHADERS)
