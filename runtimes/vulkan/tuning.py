"""Fits the costs by which kernels of products are chosen to a device, by measuring every kernel on some shapes.

Costs only choose between kernels that are all right, so tuning changes times, and results by no more than the rounding
of sums in another order.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.kernels.device_costs import (
    TUNED_ON_CPUS,
    TUNED_ON_GPUS,
    core_count,
    cpu_costs,
    device_costs,
    forget_tuned,
    keep_tuned,
    tuned_costs,
)
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel, nanoseconds, shared_kernels
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan
from mobopt.runtimes.vulkan.kernels.product_kernels import (
    ProductKernel,
    TileKernel,
    broadcasts_lanes,
    choose_product_kernel,
    tile_kernels,
    tile_nanoseconds,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower

keep_costs, kept_costs, forget_costs = keep_tuned, tuned_costs, forget_tuned

Parameters = dict[str, float]
Predict = Callable[[Parameters, ProductKernel, ProductShape], float]
"""Nanoseconds of a kernel, by its model."""

PRODUCTS = (
    (12544, 32, 16), (3136, 24, 144), (784, 192, 32), (784, 32, 192), (196, 384, 96), (196, 96, 576), (49, 960, 320),
    (49, 320, 1280), (7, 1280, 1000), (128, 384, 384), (197, 384, 1536), (3136, 576, 64),
)  # fmt: skip
"""Rows, inner size and columns of what is measured: layers of networks, narrow and wide."""
_ERROR_WEIGHT = 0.02
"""Of a wrong prediction beside a wrong choice: choices are what costs are for."""
_DISTANCE_WEIGHT = 0.01
"""Of a cost far from what it was, so that costs which decide nothing stay."""
MOST_NOISE = 0.25
"""Beyond which nothing is kept."""
_LEAST_ROUNDS = 3
_STEPS = (2.0, 1.4, 1.15)


@dataclass
class Measured:
    """A shape, with the least nanoseconds of each kernel."""

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


@dataclass(frozen=True)
class Choice:
    """What the costs choose for a shape: before, and as fitted. Times are nanoseconds."""

    shape: tuple[int, int, int]
    """Rows, inner size and columns."""
    before: str
    after: str
    before_time: float
    after_time: float
    least_time: float
    """Of the best of all kernels."""
    predicted_before: float
    predicted_after: float


@dataclass(frozen=True)
class Tuning:
    """What a device's costs were, what they are as fitted, and what that changes."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    choices: tuple[Choice, ...]
    kernels: int
    """How many were measured, over all shapes."""
    noise: float
    """How far apart the two least times of a kernel are, the median of all: 0.1 for 10 %."""

    @property
    def is_trustworthy(self) -> bool:
        """Whether times say something of kernels, or of what else the device had to do."""
        return self.noise <= MOST_NOISE

    @property
    def excess_before(self) -> float:
        """How much longer than the best kernels the chosen ones take: a mean, 0.1 for 10 %."""
        return _mean_excess([(choice.before_time, choice.least_time) for choice in self.choices])

    @property
    def excess_after(self) -> float:
        """The same with the costs as fitted."""
        return _mean_excess([(choice.after_time, choice.least_time) for choice in self.choices])

    @property
    def is_better(self) -> bool:
        """Whether the fitted costs choose faster kernels, as far as can be told."""
        return self.is_trustworthy and self.excess_after < self.excess_before


def _mean_excess(times: Sequence[tuple[float, float]]) -> float:
    return math.exp(sum(math.log(taken / least) for taken, least in times) / len(times)) - 1


def tune(
    device: Device,
    seconds: float = 60.0,
    products: Sequence[tuple[int, int, int]] | None = None,
    show: Callable[[str], None] = lambda step: None,
) -> Tuning:
    """Measure a device and fit its costs; nothing is kept.

    Args:
        device: with timestamps.
        seconds: for measuring, after every kernel was measured once.
        products: rows, inner size and columns of what is measured; :data:`PRODUCTS` if not given.
        show: is told each step.

    Raises:
        DeviceError: the device has no timestamps, or failed.
    """
    load_lowerings()
    products = PRODUCTS if products is None else products
    measured = _measure(device, products, seconds, show)
    show("fitting costs")
    before, predict = _model(device.info)
    start = dict(before)
    if "threads" in start:
        start["threads"] = float(_threads())
    after = fit(start, predict, measured)
    if mistake(after, predict, measured) >= mistake(before, predict, measured):
        after = before
    choices = tuple(
        _choice(sizes, item, before, after, predict) for sizes, item in zip(products, measured, strict=True)
    )
    ratios = [item.next_times[kernel] / least - 1 for item in measured for kernel, least in item.times.items()]
    return Tuning(before, after, choices, len(ratios), statistics.median(ratios))


def _model(info: DeviceInfo) -> tuple[Parameters, Predict]:
    """The costs that are fitted, as they are now, and what makes predictions of them."""
    if info.is_cpu:
        cpu = cpu_costs(info)

        def on_cpu(parameters: Parameters, kernel: ProductKernel, shape: ProductShape) -> float:
            assert isinstance(kernel, TileKernel)
            costs = replace(cpu, **{**parameters, "threads": round(parameters["threads"])})  # type: ignore[arg-type]
            return tile_nanoseconds(kernel, shape, costs)

        return {name: float(getattr(cpu, name)) for name in TUNED_ON_CPUS}, on_cpu
    gpu, cores = device_costs(info), core_count(info)

    def on_gpu(parameters: Parameters, kernel: ProductKernel, shape: ProductShape) -> float:
        assert isinstance(kernel, SharedKernel)
        return nanoseconds(kernel, shape, replace(gpu, **parameters), cores)  # type: ignore[arg-type]

    return {name: float(getattr(gpu, name)) for name in TUNED_ON_GPUS}, on_gpu


def _threads() -> int:
    """Of a driver that computes on the CPU."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fit(parameters: Parameters, predict: Predict, measured: Sequence[Measured]) -> Parameters:
    """The parameters that choose best: each in turn is made larger and smaller, by less and less."""

    def found_wrong(tried: Parameters) -> float:
        distance = sum(math.log(tried[name] / value) ** 2 for name, value in parameters.items()) / len(parameters)
        return mistake(tried, predict, measured) + _DISTANCE_WEIGHT * distance

    best, least = dict(parameters), found_wrong(parameters)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in best:
                for factor in (step, 1 / step) if name != "threads" else ():
                    tried = {**best, name: best[name] * factor}
                    found = found_wrong(tried)
                    if found < least - 1e-6:
                        best, least, improved = tried, found, True
    return best


def mistake(parameters: Parameters, predict: Predict, measured: Sequence[Measured]) -> float:
    """How bad parameters are: the time that their choices lose, and a little of how far predictions are off."""
    total = 0.0
    for item in measured:
        predicted = {kernel: predict(parameters, kernel, item.shape) for kernel in item.times}
        chosen = min(predicted, key=lambda kernel: predicted[kernel])
        errors = [math.log(predicted[kernel] / taken) ** 2 for kernel, taken in item.times.items()]
        total += math.log(item.times[chosen] / item.least) + _ERROR_WEIGHT * sum(errors) / len(errors)
    return total / len(measured)


def _choice(
    sizes: tuple[int, int, int], item: Measured, before: Parameters, after: Parameters, predict: Predict
) -> Choice:
    def chosen(parameters: Parameters) -> ProductKernel:
        return min(item.times, key=lambda kernel: predict(parameters, kernel, item.shape))

    old, new = chosen(before), chosen(after)
    return Choice(
        sizes,
        _text(old),
        _text(new),
        item.times[old],
        item.times[new],
        item.least,
        predict(before, old, item.shape),
        predict(after, new, item.shape),
    )


def _text(kernel: ProductKernel) -> str:
    if isinstance(kernel, TileKernel):
        how = "broadcast" if kernel.broadcasts else f"{kernel.column_lanes} lanes across"
        return f"{kernel.rows}x{kernel.columns}, {how}"
    assert isinstance(kernel, SharedKernel)
    block = f"{kernel.block_rows}x{kernel.block_columns} by {kernel.rows}x{kernel.columns}"
    return f"{block}, {kernel.teams} teams, {kernel.parts} parts"


def _measure(
    device: Device, products: Sequence[tuple[int, int, int]], seconds: float, show: Callable[[str], None]
) -> list[Measured]:
    """The least time of each kernel for each shape, in rounds, so that what disturbs one round disturbs all."""
    found: list[Measured] = []
    runs: list[tuple[Measured, ProductKernel, Executable]] = []
    try:
        for rows, inner, columns in products:
            show(f"preparing products of {rows} x {inner} by {inner} x {columns}")
            item, executables = _prepared(device, rows, inner, columns)
            found.append(item)
            runs += [(item, kernel, executable) for kernel, executable in executables]
        show(f"measuring {len(runs)} kernels")
        deadline = time.perf_counter() + seconds
        rounds = 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() < deadline:
            for item, kernel, executable in runs:
                taken = sum(step.duration_ns for step in executable.profile([])[1])
                if rounds:  # the first one warms up
                    item.add(kernel, max(taken, 1))
                if rounds >= _LEAST_ROUNDS and time.perf_counter() > deadline:
                    break
            rounds += 1
        return found
    finally:
        for _, _, executable in runs:
            executable.close()


def _prepared(
    device: Device, rows: int, inner: int, columns: int
) -> tuple[Measured, list[tuple[ProductKernel, Executable]]]:
    """A product with each kernel that can compute it."""
    generator = torch.Generator().manual_seed(0)
    source, weight = torch.rand(rows, inner, generator=generator), torch.rand(columns, inner, generator=generator)
    constants = ConstantStore()
    shapes: list[ProductShape] = []

    def note(info: DeviceInfo, shape: ProductShape, texels: bool) -> ProductKernel:
        shapes.append(shape)
        return choose_product_kernel(info, shape, texels)

    _lowered(device, constants, source, weight, note)
    shape = shapes[0]
    info = device.info
    kernels: list[ProductKernel] = (
        [*tile_kernels(shape, cpu_costs(info), broadcasts_lanes(info))]
        if info.is_cpu
        else [*shared_kernels(info, device_costs(info), shape)]
    )
    executables: list[tuple[ProductKernel, Executable]] = []
    for kernel in kernels:
        stream = _lowered(device, constants, source, weight, _forced(kernel))
        executables.append((kernel, Executable(device, stream)))
    return Measured(shape), executables


def _forced(kernel: ProductKernel) -> Callable[[DeviceInfo, ProductShape, bool], ProductKernel]:
    def choose(info: DeviceInfo, shape: ProductShape, texels: bool) -> ProductKernel:
        return replace(kernel, texels=texels) if isinstance(kernel, TileKernel) else kernel

    return choose


def _lowered(
    device: Device,
    constants: ConstantStore,
    source: torch.Tensor,
    weight: torch.Tensor,
    choose: Callable[[DeviceInfo, ProductShape, bool], ProductKernel],
) -> Stream:
    plan = Plan(device.info, constants, choose_product=choose)
    result = Value.of_tensor(torch.float32, (source.shape[0], weight.shape[0]))
    operands = (Value.of_elements(source), Value.of_elements(weight), None)
    lower(plan, Node.call("aten::linear", operands, (result,)))
    return plan.stream
