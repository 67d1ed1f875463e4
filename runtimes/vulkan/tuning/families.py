"""The families of kernels of products: which of them are tried on a layer, and how their times are predicted."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, cpu_costs, profiles
from mobopt.runtimes.vulkan.kernels.fragment_kernels import fragment_kernels, takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel, may_join, nanoseconds, shared_kernels
from mobopt.runtimes.vulkan.kernels.matrix_kernels import matrix_kernels, splits, units_lanes
from mobopt.runtimes.vulkan.kernels.product_kernels import (
    ProductKernel,
    TileKernel,
    broadcasts_lanes,
    tile_kernels,
    tile_nanoseconds,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import row_kernels
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    CPU,
    FEW_BITS,
    FRAGMENTS,
    HALVES,
    ROWS,
    SHARED,
    SPLIT,
    SPLIT_FRAGMENTS,
    costs_of,
    with_costs,
)
from mobopt.runtimes.vulkan.tuning.fitting import Model, Parameters, Predict
from mobopt.runtimes.vulkan.tuning.measuring import Measured

ON_UNITS = (HALVES, SPLIT)
"""Families that need matrix units."""
IN_REGISTERS = (FRAGMENTS, SPLIT_FRAGMENTS)
"""And those whose operands go straight to their registers."""
DISPATCH = "dispatch_nanoseconds"
"""What every dispatch takes: times have it in them and costs don't, as it decides nothing."""
_DISPATCH_START = 1000.0
_BEST, _OTHERS, _FOUND = 5, 3, 2
"""Kernels that are tried on a layer: the best by the costs that a fit starts from, some others, and the best by what
these tell."""
_ALL = 10
"""Kernels of which none is left out."""

Kernels = Callable[[ProductShape], Iterable[ProductKernel]]


@dataclass(frozen=True)
class Family:
    """Kernels with costs of their own, on one device."""

    name: str
    """Of :data:`FITTED`."""
    start: Parameters
    """What a fit starts from."""
    model: Model
    before: Predict
    """By the costs that the device has now."""
    kernels: Kernels
    """All that can compute a product."""
    rivals: Kernels
    """The best of those that compute it where these may not."""
    joined: Callable[[ProductKernel], Iterable[ProductKernel]]
    """The twin of a kernel that joins its parts, if there is one."""

    def first(self, item: Measured) -> Iterator[ProductKernel]:
        """The kernels to begin with."""
        yield from self.rivals(item.shape)
        ranked = self._ranked(item.shape, self.model(self.start))
        if self.name == CPU or len(ranked) <= _ALL:
            yield from ranked
            return
        yield from self._with_joined(ranked[:_BEST])
        others = random.Random(str(item.layer)).sample(ranked[_BEST:], min(_OTHERS, len(ranked) - _BEST))
        yield from self._with_joined(sorted(others, key=lambda kernel: -kernel.parts))

    def found(self, item: Measured, predict: Predict) -> Iterator[ProductKernel]:
        """Those that are the best by a prediction."""
        yield from self._with_joined(self._ranked(item.shape, predict)[:_FOUND])

    def _with_joined(self, ranked: list[ProductKernel]) -> Iterator[ProductKernel]:
        yield from ranked
        yield from self.joined(ranked[0])

    def _ranked(self, shape: ProductShape, predict: Predict) -> list[ProductKernel]:
        return sorted(self.kernels(shape), key=lambda kernel: predict(kernel, shape))


def costs_in(parameters: Parameters) -> Parameters:
    """What of parameters are costs."""
    return {name: value for name, value in parameters.items() if name != DISPATCH}


def cpu_family(info: DeviceInfo) -> Family:
    """The tiles of a driver that computes on the CPU."""
    costs, broadcasts = cpu_costs(info), broadcasts_lanes(info)

    def model(parameters: Parameters) -> Predict:
        tried = with_costs(costs, CPU, parameters)

        def predict(kernel: ProductKernel, shape: ProductShape) -> float:
            assert isinstance(kernel, TileKernel)
            return tile_nanoseconds(kernel, shape, tried)

        return predict

    own = costs_of(costs, CPU)
    return Family(
        CPU,
        {**own, "threads": float(_threads())},
        model,
        model(own),
        lambda shape: tile_kernels(shape, costs, broadcasts),
        lambda shape: (),
        lambda kernel: (),
    )


def _threads() -> int:
    """Of a driver that computes on the CPU."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_family(name: str, info: DeviceInfo, costs: DeviceCosts, before: DeviceCosts) -> Family:
    """A family of a GPU.

    Args:
        name: of :data:`FITTED`.
        info: of the device.
        costs: what a fit starts from, with costs of the family; those of other families stay as they are.
        before: what the device has now.
    """
    cores = core_count(info)

    def predicting(tried: DeviceCosts, dispatch: float) -> Predict:
        def predict(kernel: ProductKernel, shape: ProductShape) -> float:
            assert not isinstance(kernel, TileKernel)
            return dispatch + nanoseconds(kernel, shape, tried, cores)

        return predict

    def model(parameters: Parameters) -> Predict:
        return predicting(with_costs(costs, name, costs_in(parameters)), parameters[DISPATCH])

    def joined(kernel: ProductKernel) -> Iterator[ProductKernel]:
        if isinstance(kernel, SharedKernel) and may_join(info, kernel):
            yield replace(kernel, joins=True)

    def rivals(shape: ProductShape) -> Iterator[ProductKernel]:
        for known in (costs, before) if name in ON_UNITS else ():
            predict = predicting(known, 0)
            best = min(shared_kernels(info, known, shape), key=lambda kernel: predict(kernel, shape))
            yield from (best, *joined(best))

    return Family(
        name,
        {**costs_of(costs, name), DISPATCH: _DISPATCH_START},
        model,
        predicting(before, _DISPATCH_START),
        lambda shape: _KERNELS[name](info, costs, shape),
        rivals,
        joined,
    )


_KERNELS: Mapping[str, Callable[[DeviceInfo, DeviceCosts, ProductShape], Iterable[ProductKernel]]] = {
    SHARED: shared_kernels,
    HALVES: matrix_kernels,
    SPLIT: matrix_kernels,
    FRAGMENTS: fragment_kernels,
    SPLIT_FRAGMENTS: fragment_kernels,
    ROWS: lambda info, costs, shape: row_kernels(info, shape),
    FEW_BITS: lambda info, costs, shape: row_kernels(info, shape),
}


def scaled(parameters: Parameters, factor: float) -> Parameters:
    """Costs of blocks in shared memory by which each takes as many times as long."""
    slower = {name: value * factor for name, value in parameters.items() if name.endswith("_nanoseconds")}
    clock = parameters["cycles_per_nanosecond"] / factor
    return {**parameters, **slower, "cycles_per_nanosecond": clock}


def with_units(info: DeviceInfo, costs: DeviceCosts, name: str) -> DeviceCosts | None:
    """Costs by which matrix units compute products of halves, or of floats, too: if nobody knows what they cost on a
    device, the costs of one that they were measured on. None where a device has no units that kernels can use."""
    known = next(profile for profile in profiles() if profile.matrix is not None and profile.split is not None)
    costs = replace(costs, matrix=costs.matrix or known.matrix, uses_units=True)
    if name == SPLIT:
        costs = replace(costs, split=costs.split or known.split, split_names=("",))
    able = splits(info, costs) if name == SPLIT else units_lanes(info, costs) > 0
    return costs if able else None


def is_on(info: DeviceInfo, costs: DeviceCosts, name: str) -> bool:
    """Whether kernels of a family may be chosen by costs."""
    if name in ON_UNITS:
        return splits(info, costs) if name == SPLIT else units_lanes(info, costs) > 0
    if name == SPLIT_FRAGMENTS:
        return costs.split_fragments is not None and takes_fragments(info, costs) and splits(info, costs)
    return name != FRAGMENTS or (takes_fragments(info, costs) and costs.fragments is not None)


def carried_over(costs: DeviceCosts, before: DeviceCosts) -> DeviceCosts:
    """Costs in which those of blocks in shared memory are new, with what the others share with them taken out: each
    family predicts of its kernels what it did, or as much more or less of all of them."""
    clock = costs.cycles_per_nanosecond / before.cycles_per_nanosecond
    fetch = costs.fetch_cycles / before.fetch_cycles
    rows = {name: value * fetch for name, value in costs_of(costs, ROWS).items() if name != "row_gap"}
    costs = replace(costs, **rows)  # type: ignore[arg-type]
    for name in ON_UNITS:
        if (costs.split if name == SPLIT else costs.matrix) is None:
            continue
        cycles = {name: value * clock for name, value in costs_of(costs, name).items()}
        cycles["multiplications_per_cycle"] /= clock**2
        costs = with_costs(costs, name, cycles)
    return costs
