"""Tunes a device: measures families of kernels one after the other, fits their costs, and tells whether matrix units
are worth it, and counters in place of barriers."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import can_chain, cpu_costs, device_costs
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel, offers_bfloats
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel, TileKernel
from mobopt.runtimes.vulkan.kernels.row_kernels import RowKernel
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    CPU,
    FEW_BITS,
    FRAGMENTS,
    HALVES,
    ROWS,
    SHARED,
    SPLIT,
    SPLIT_FRAGMENTS,
    UnitsUse,
    costs_of,
    with_costs,
)
from mobopt.runtimes.vulkan.kernels.unit_row_kernels import UnitRowKernel
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.tuning.chains import Show, tune_chains
from mobopt.runtimes.vulkan.tuning.families import (
    DISPATCH,
    IN_REGISTERS,
    ON_UNITS,
    Family,
    carried_over,
    costs_in,
    cpu_family,
    gpu_family,
    is_on,
    scaled,
    with_units,
)
from mobopt.runtimes.vulkan.tuning.fitting import Parameters, Predict, chosen, excess, fit, mistake, predicting
from mobopt.runtimes.vulkan.tuning.layers import LAYERS, Layer, PreparedLayer, forced
from mobopt.runtimes.vulkan.tuning.measuring import Bench, Measured
from mobopt.runtimes.vulkan.tuning.result import LEAST_GAIN, Choice, FamilyTuning, Tuning

Layers = Mapping[str, Sequence[Layer]]

_LOGGER = logging.getLogger("mobopt.vulkan")
_SHARES = {
    SHARED: 0.2,
    HALVES: 0.15,
    SPLIT: 0.15,
    FRAGMENTS: 0.125,
    SPLIT_FRAGMENTS: 0.125,
    ROWS: 0.125,
    FEW_BITS: 0.125,
}
"""Of the time, in the order in which families are measured: costs of the first have a part in those of the others."""
_FOLDS = 3
"""Parts of the layers, each of which is left out of a fit that is tried on it."""
_FAR = 1.25
"""Times of a prediction."""
_MOST_ERROR = 1e-5
"""Of the scale of a result."""
_MOST_ERROR_OF_HALVES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Likewise; halves are rounded to 11 bits, or to 8."""
_SHARE_OF_CHAINS = 0.1
"""Of the time, for stretches of networks."""


def tune(device: Device, seconds: float = 60.0, layers: Layers = LAYERS, show: Show = lambda step: None) -> Tuning:
    """Measure a device and fit its costs; nothing is kept.

    Args:
        device: with timestamps.
        seconds: for measuring, after every kernel was measured once.
        layers: what is measured, by family of kernels.
        show: is told each step.

    Raises:
        DeviceError: the device has no timestamps, or failed.
    """
    load_lowerings()
    if device.info.is_cpu:
        own = costs_of(cpu_costs(device.info), CPU)
        found = Tuner(device, layers, show).tuned(cpu_family(device.info), seconds)
        return Tuning((found.told(own),))
    share = _SHARE_OF_CHAINS if can_chain(device.info) else 0.0
    families = tuple(_gpu_families(device, seconds * (1 - share), Tuner(device, layers, show)))
    return Tuning(families, tune_chains(device, seconds * share, show) if share else None)


def _gpu_families(device: Device, seconds: float, tuner: Tuner) -> Iterator[FamilyTuning]:
    info, before = device.info, device_costs(device.info)
    costs = before
    shares = {name: share for name, share in _SHARES.items() if _is_able(info, before, name)}
    for name, share in shares.items():
        start = with_units(info, costs, name) if name in ON_UNITS else costs
        if start is None or (name in (SPLIT, *IN_REGISTERS) and not costs.uses_units):
            continue
        time = seconds * share / sum(shares.values())
        try:
            found = tuner.tuned(gpu_family(name, info, start, before), time, is_on(info, before, name))
        except DeviceError as error:
            if name not in (*ON_UNITS, *IN_REGISTERS):
                raise
            _LOGGER.warning("matrix units are not tuned, as %s can't run kernels for them: %s", info.name, error)
            continue
        yield found.told(_known(before, name))
        if found.units is None or found.units.is_used:
            costs = with_costs(start, name, found.after)
        elif name == HALVES:
            costs = replace(costs, uses_units=False)
        if name == SHARED:
            costs = carried_over(costs, before)


def _is_able(info: DeviceInfo, costs: DeviceCosts, name: str) -> bool:
    """Whether a device can run kernels of a family."""
    return with_units(info, costs, name) is not None if name in ON_UNITS else is_on(info, costs, name)


def _known(costs: DeviceCosts, name: str) -> Parameters:
    """The costs of a family that a device has; none where nobody knows them."""
    is_unknown = (name == HALVES and costs.matrix is None) or (name == SPLIT and costs.split is None)
    return {} if is_unknown else costs_of(costs, name)


@dataclass(frozen=True)
class _Found:
    """What the times of a family tell."""

    family: Family
    items: Sequence[Measured]
    after: Parameters
    predict: Predict
    units: UnitsUse | None
    used_units: bool

    def told(self, before: Parameters) -> FamilyTuning:
        """What is told of it, beside the costs that the device had."""
        spreads = [spread for item in self.items for spread in item.spreads]
        return FamilyTuning(
            self.family.name,
            before,
            self.after,
            tuple(map(self._choice, self.items)),
            len(spreads),
            statistics.median(spreads),
            self.units,
            self.used_units,
        )

    def _choice(self, item: Measured) -> Choice:
        uses_units = self.units is None or self.units.is_used
        old = chosen(_allowed(item, self.used_units), self.family.before, item.shape)
        new = chosen(_allowed(item, uses_units), self.predict, item.shape)
        return Choice(
            str(item.layer),
            text_of(old),
            text_of(new),
            item.times[old],
            item.times[new],
            item.least,
            self.family.before(old, item.shape),
            self.predict(new, item.shape),
        )


class Tuner:
    """Measures families, and fits their costs."""

    def __init__(self, device: Device, layers: Layers, show: Show) -> None:
        self._device, self._layers, self._show = device, layers, show

    def tuned(self, family: Family, seconds: float, used: bool = True) -> _Found:
        """What is found for a family; ``used`` says whether its kernels were chosen before."""
        with Bench(self._device, self._layers[family.name]) as bench:
            after, items = self._fitted(bench, family, seconds, is_known=used), bench.items
        predict = family.model(after)
        units = units_use(items, predict) if family.name in ON_UNITS else None
        if units is not None and units.is_used and not self._are_right(items, predict):
            units = replace(units, is_used=False, is_right=False)
        return _Found(family, items, costs_in(after), predict, units, used)

    def _are_right(self, items: Sequence[Measured], predict: Predict) -> bool:
        """Whether kernels with matrix units compute what they should: nobody may have tried them on such a device."""
        self._show("checking results of matrix units")
        halves = {torch.float16, *([torch.bfloat16] if offers_bfloats(self._device.info) else [])}
        for item in items:
            kernel = chosen(item.times, predict, item.shape)
            if not isinstance(kernel, MatrixKernel):
                continue
            for half in halves if item.layer.are_halves else {torch.float16}:
                most = _MOST_ERROR_OF_HALVES[half] if item.layer.are_halves else _MOST_ERROR
                if not PreparedLayer(item.layer, half).error(self._device, forced(kernel)) <= most:
                    return False
        return True

    def _fitted(self, bench: Bench, family: Family, seconds: float, is_known: bool) -> Parameters:
        """Parameters from times of some kernels, and of those that are the best by what these tell. What is chosen by
        them is measured at last, so that what is told of it is true."""
        if family.name == CPU:
            self._measure(bench, family.first, seconds)
            return self._best(bench, family, is_known)
        self._measure(bench, family.first, seconds / 3)
        predict = family.model(predicting(family.start, family.model, bench.items))
        self._measure(bench, partial(family.found, predict=predict), seconds / 3)
        after = self._best(bench, family, is_known)
        new, old = family.model(after), family.model(family.start)
        self._measure(bench, partial(family.found, predict=new), seconds / 3)
        is_worse = is_known and excess(new, bench.items) > excess(old, bench.items)
        return _as_long(family, after, bench.items) if is_worse else after

    def _measure(self, bench: Bench, choose: Callable[[Measured], Iterator[ProductKernel]], seconds: float) -> None:
        bench.prepare(choose, self._show)
        self._show(f"measuring {bench.kernels} kernels")
        bench.measure(seconds)

    def _best(self, bench: Bench, family: Family, is_known: bool) -> Parameters:
        self._show("fitting costs")
        return best_of(family, bench.items, is_known)


def best_of(family: Family, items: Sequence[Measured], is_known: bool) -> Parameters:
    """Parameters as fitted, if they choose faster kernels than those of the start, for layers that they weren't fitted
    to as well; those of a family that nobody knows on a device also if they only predict better."""
    fitted = fit(family.start, family.model, items)
    new, old = family.model(fitted), family.model(family.start)
    gain = excess(old, items) - excess(new, items)
    if is_known:
        return fitted if gain > 0 and _holds_elsewhere(family, items) else _as_long(family, fitted, items)
    return fitted if (gain, mistake(old, items)) > (0, mistake(new, items)) else family.start


def _as_long(family: Family, fitted: Parameters, items: Sequence[Measured]) -> Parameters:
    """What a family starts from, which chooses as it did. Of blocks in shared memory, which others are compared with,
    it is made to predict times as long as those that were measured, if they are far from it."""
    if family.name != SHARED:
        return family.start
    new, old = family.model({**fitted, DISPATCH: 0.0}), family.model({**family.start, DISPATCH: 0.0})
    best = [(min(item.times, key=item.times.__getitem__), item.shape) for item in items]
    factor = math.exp(statistics.median(math.log(new(kernel, shape) / old(kernel, shape)) for kernel, shape in best))
    if abs(math.log(factor)) <= math.log(_FAR):
        return family.start
    return {**scaled(family.start, factor), DISPATCH: fitted[DISPATCH]}


def _holds_elsewhere(family: Family, items: Sequence[Measured]) -> bool:
    """Whether what is fitted to some layers chooses faster kernels for the others."""
    if len(items) < _FOLDS:
        return True
    gain = 0.0
    for fold in range(_FOLDS):
        left_out = items[fold::_FOLDS]
        others = [item for number, item in enumerate(items) if number % _FOLDS != fold]
        fitted = fit(family.start, family.model, others)
        gain += excess(family.model(family.start), left_out) - excess(family.model(fitted), left_out)
    return gain > 0


def units_use(items: Sequence[Measured], predict: Predict) -> UnitsUse:
    """Whether matrix units are worth it: whether what is chosen where they may be used takes less time, beyond noise,
    than what is chosen where they may not."""
    taken, without = (
        sum(item.times[chosen(_allowed(item, uses_units), predict, item.shape)] for item in items)
        for uses_units in (True, False)
    )
    noise = statistics.median(spread for item in items for spread in item.spreads)
    return UnitsUse(taken * (1 + max(noise, LEAST_GAIN)) < without, taken, without)


def _allowed(item: Measured, uses_units: bool) -> Collection[ProductKernel]:
    return [kernel for kernel in item.times if uses_units or not isinstance(kernel, MatrixKernel)]


def text_of(kernel: ProductKernel) -> str:
    """A kernel in few words."""
    if isinstance(kernel, TileKernel):
        how = "broadcast" if kernel.broadcasts else f"{kernel.column_lanes} lanes across"
        return f"{kernel.rows}x{kernel.columns}, {how}"
    if isinstance(kernel, (RowKernel, UnitRowKernel)):
        return f"{kernel.group_columns} across, {kernel.teams} teams, {kernel.steps} steps"
    if isinstance(kernel, FragmentKernel):
        return f"registers, {kernel.rows}x{kernel.block_columns}, {kernel.teams} teams, {kernel.depth} steps"
    block = f"{kernel.block_rows}x{kernel.block_columns} by {kernel.rows}x{kernel.columns}"
    parts = f"{kernel.teams} teams, {kernel.parts} parts"
    if isinstance(kernel, MatrixKernel):
        return f"units, {block}, {parts}"
    return f"{block}, {parts}{', joined' if kernel.joins else ''}"
