"""Costs that are fitted to a device: what they change, and that nothing else does."""

from __future__ import annotations

import gc
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from device_infos import known_device
from torch import nn

from mobopt.errors import DeviceError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.costs import DeviceCosts
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, cpu_costs, cpu_rows, device_costs, profiles
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel, nanoseconds, shared_kernels
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel, matrix_kernels, splits, units_lanes
from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel, TileKernel, tile_kernels, tile_nanoseconds
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import row_kernels
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    CPU,
    FEW_BITS,
    FITTED,
    FRAGMENTS,
    HALVES,
    NOT_TUNED,
    ROWS,
    SHARED,
    SPLIT,
    SPLIT_FRAGMENTS,
    TunedCosts,
    UnitsUse,
    costs_of,
    forget_tuned,
    keep_tuned,
    tuned_costs,
    with_costs,
)
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.runtimes.vulkan.tuning import fitting, tune
from mobopt.runtimes.vulkan.tuning.families import carried_over, gpu_family, scaled, with_units
from mobopt.runtimes.vulkan.tuning.kept import keep_costs
from mobopt.runtimes.vulkan.tuning.layers import LAYERS, Layer, PreparedLayer, forced
from mobopt.runtimes.vulkan.tuning.measuring import Bench, Measured
from mobopt.runtimes.vulkan.tuning.result import Tuning

LAYER = Layer(1, 1, 1)
SHAPES = [
    ProductShape(rows, inner, columns, columns) for rows, inner, columns in ((196, 96, 24), (49, 240, 80), (7, 9, 4))
]
START = {"threads": 4.0, "fetch": 12.5, "multiply": 11.0, "store": 125.0, "start": 250.0, "broadcast": 20.0}
TRUE = replace(cpu_rows()[0], threads=4, fetch=40.0, multiply=3.0, store=300.0, start=4000.0, broadcast=5.0)


TINY = {
    SHARED: (Layer(20, 24, 16), Layer(9, 5, 7, is_convolution=True)),
    HALVES: (Layer(20, 24, 16, are_halves=True), Layer(9, 8, 8, is_convolution=True, are_halves=True)),
    SPLIT: (Layer(17, 23, 9), Layer(9, 8, 8, is_convolution=True)),
    FRAGMENTS: (Layer(20, 24, 16, are_halves=True), Layer(9, 8, 8, is_convolution=True, are_halves=True)),
    SPLIT_FRAGMENTS: (Layer(20, 24, 16), Layer(9, 8, 8, is_convolution=True)),
    ROWS: (Layer(1, 24, 40), Layer(3, 13, 9, are_halves=True)),
    FEW_BITS: (Layer(1, 64, 40, bits=4), Layer(2, 30, 9, bits=8)),
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def model(parameters: Mapping[str, float]) -> fitting.Predict:
    costs = with_costs(TRUE, CPU, parameters)

    def predict(kernel, shape):
        return tile_nanoseconds(kernel, shape, costs)

    return predict


def kernels_for(shape: ProductShape) -> list[TileKernel]:
    return tile_kernels(shape, TRUE, broadcasts=True)


def test_a_fit_finds_the_costs_that_times_were_made_of() -> None:
    measured = [
        Measured(LAYER, shape, {kernel: tile_nanoseconds(kernel, shape, TRUE) for kernel in kernels_for(shape)})
        for shape in SHAPES
    ]
    fitted = fitting.fit(START, model, measured)
    assert fitting.mistake(model(fitted), measured) < 0.2 * fitting.mistake(model(START), measured)
    for item in measured:
        chosen = fitting.chosen(item.times, model(fitted), item.shape)
        assert item.times[chosen] <= 1.02 * item.least
    assert fitted["threads"] == 4.0


def test_costs_that_decide_nothing_stay() -> None:
    """Times of one kernel a shape fit many costs; those of the start are as good as any."""
    kernel = kernels_for(SHAPES[0])[0]
    measured = [Measured(LAYER, SHAPES[0], {kernel: model(START)(kernel, SHAPES[0])})]
    assert fitting.fit(START, model, measured) == START


def a_gpu_with_units() -> DeviceInfo:
    """A device that nobody has measured, with matrix units."""
    h200 = known_device("nvidia_h200")
    amd = known_device("amd_rx_6800_radv")
    return replace(amd, matrix_shapes=h200.matrix_shapes, subgroup_size=32, features=amd.features | {"matrix_units"})


def another_gpu(costs: DeviceCosts) -> DeviceCosts:
    """Costs far from a device's own, in ways that change choices."""
    factors = {
        SHARED: {"cycles_per_nanosecond": 0.4, "latency_cycles": 9.0, "second_dispatch_nanoseconds": 6.0,
                 "fetch_cycles": 0.3, "store_cycles": 4.0, "joined_sum_nanoseconds": 5.0},
        HALVES: {"multiplications_per_cycle": 0.05, "latency_cycles": 14.0, "start_cycles": 0.2, "read_cycles": 0.2},
        SPLIT: {"multiplications_per_cycle": 0.2, "fetch_cycles": 0.15, "latency_cycles": 20.0, "start_cycles": 0.1},
        ROWS: {"row_turn_cycles": 12.0, "row_stage_cycles": 0.1, "row_gap": 8.0},
        FEW_BITS: {"read_nanoseconds": 3.0, "turn_nanoseconds": 0.1, "stage_nanoseconds": 7.0, "gap": 20.0},
    }  # fmt: skip
    for name, changes in factors.items():
        own = costs_of(costs, name)
        costs = with_costs(costs, name, {key: value * changes.get(key, 1.0) for key, value in own.items()})
    return costs


def shape_of(layer: Layer, info: DeviceInfo) -> ProductShape:
    return _shape_of(layer, info, tuned_costs(info))


@cache
def _shape_of(layer: Layer, info: DeviceInfo, known: TunedCosts) -> ProductShape:
    """By the costs that are known now."""
    return PreparedLayer(layer).shape(info)


class MadeUpBench:
    """Stands for a device whose times are made of costs, with a little noise."""

    true: DeviceCosts
    emulates_units = 1.0
    """How many times as long products by matrix units take."""
    noise = 0.02

    def __init__(self, device: Device, layers: Sequence[Layer]) -> None:
        load_lowerings()
        self.info = device.info
        self.items = [Measured(layer, shape_of(layer, self.info)) for layer in layers]

    def __enter__(self) -> MadeUpBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def kernels(self) -> int:
        return 0

    def prepare(self, choose: Callable[[Measured], Iterable[ProductKernel]], show: Callable[[str], None]) -> None:
        for item in self.items:
            for kernel in choose(item):
                noise = 1 + self.noise * (zlib.crc32(repr((kernel, item.layer)).encode()) % 1000) / 1000
                item.times[kernel] = noise * self.time(self.info, kernel, item.shape)
                item.next_times[kernel] = 1.01 * item.times[kernel]

    def measure(self, seconds: float) -> None:
        pass

    @classmethod
    def time(cls, info: DeviceInfo, kernel: ProductKernel, shape: ProductShape) -> float:
        """Without noise."""
        factor = cls.emulates_units if isinstance(kernel, MatrixKernel) else 1.0
        return 2500.0 + factor * nanoseconds(kernel, shape, cls.true, core_count(info))


def tuned(
    monkeypatch: pytest.MonkeyPatch,
    info: DeviceInfo,
    true: DeviceCosts,
    emulates_units: float = 1.0,
    error: float = 0.0,
    wrong: Collection[torch.dtype] = (torch.float16, torch.bfloat16),
) -> Tuning:
    """What tuning makes of times that are made of costs, and of results that are wrong by an error, of some halves."""
    monkeypatch.setattr(MadeUpBench, "true", true, raising=False)
    monkeypatch.setattr(MadeUpBench, "emulates_units", emulates_units)
    monkeypatch.setattr(tune, "Bench", MadeUpBench)
    monkeypatch.setattr(PreparedLayer, "error", lambda layer, device, choose: error if layer.half in wrong else 0.0)
    return tune.tune(SimpleNamespace(info=info), 0.0)  # type: ignore[arg-type]


def lost(info: DeviceInfo, layers: Iterable[Layer]) -> float:
    """How much longer what is chosen takes than the best of all kernels: a mean of logarithms."""
    total = []
    for layer in layers:
        shape = shape_of(layer, info)
        costs = with_units(info, device_costs(info), SPLIT)
        assert costs is not None
        few = [*row_kernels(info, shape)]
        kernels = few or [*shared_kernels(info, costs, shape), *matrix_kernels(info, costs, shape)]
        best = min(MadeUpBench.time(info, kernel, shape) for kernel in kernels)
        total.append(math.log(max(MadeUpBench.time(info, choose_gpu_kernel(info, shape), shape) / best, 1.0)))
    return sum(total) / len(total)


@pytest.mark.sweep
def test_a_fit_gets_far_from_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made of other costs than the table's; what is chosen then takes a few percent more than the best of all
    kernels, also of those that weren't measured."""
    info = a_gpu_with_units()
    table = with_units(info, device_costs(info), SPLIT)
    assert table is not None
    found = tuned(monkeypatch, info, another_gpu(table))
    before = {name: lost(info, LAYERS[name]) for name in (SHARED, HALVES, SPLIT, ROWS, FEW_BITS)}
    assert keep_costs(info, found)
    after = {name: lost(info, LAYERS[name]) for name in before}
    assert all(after[name] < 0.05 < before[name] for name in before)
    assert [family.name for family in found.families if not family.before] == [HALVES, SPLIT]
    forget_tuned(info)


WIDE = ProductShape(784, 128, 128, 128, half_run=8)
FLOATS = replace(WIDE, half_run=0, float_run=8)


def uses_units(info: DeviceInfo, shape: ProductShape) -> bool:
    return isinstance(choose_gpu_kernel(info, shape), MatrixKernel)


@pytest.mark.sweep
def test_matrix_units_are_used_where_they_take_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    info = a_gpu_with_units()
    true = with_units(info, device_costs(info), SPLIT)
    assert true is not None
    assert not uses_units(info, WIDE) and units_lanes(info, device_costs(info)) == 0 and not splits(info)
    found = tuned(monkeypatch, info, true)
    assert [family.units.is_used for family in found.families if family.units] == [True, True]
    assert found.is_better and keep_costs(info, found)
    assert uses_units(info, WIDE) and uses_units(info, FLOATS) and splits(info)
    for switches, of_halves, of_floats in (
        ("no-matrix-units", False, False),
        ("no-split-products", True, False),
        ("split-products", True, True),
    ):
        switched = replace(info, switches=frozenset({switches}))
        assert (uses_units(switched, WIDE), uses_units(switched, FLOATS)) == (of_halves, of_floats)
    again = tuned(monkeypatch, info, true)
    assert again.excess_after <= again.excess_before and not any(family.changes_units for family in again.families)
    forget_tuned(info)
    assert not uses_units(info, WIDE)


@pytest.mark.sweep
def test_matrix_units_are_not_used_where_they_take_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a driver that offers them without having hardware for them, on a device that would use them untuned."""
    h200 = known_device("nvidia_h200")
    table = device_costs(h200)
    assert uses_units(h200, WIDE) and uses_units(h200, FLOATS)
    found = tuned(monkeypatch, h200, table, emulates_units=40.0)
    names = [family.name for family in found.families]
    assert names == [SHARED, HALVES, ROWS, FEW_BITS]  # splitting floats can't pay where halves don't
    halves = found.families[1]
    assert halves.units is not None and not halves.units.is_used and halves.changes_units and found.is_better
    assert halves.excess_after < halves.excess_before
    keep_costs(h200, found)
    assert not uses_units(h200, WIDE) and not uses_units(h200, FLOATS) and not splits(h200)
    assert uses_units(replace(h200, switches=frozenset({"split-products"})), FLOATS)
    assert uses_units(replace(h200, switches=frozenset({"emulated-matrix-units"})), WIDE)
    found = tuned(monkeypatch, h200, table)  # now they are fast
    keep_costs(h200, found)
    assert uses_units(h200, WIDE) and uses_units(h200, FLOATS)
    forget_tuned(h200)


@pytest.mark.sweep
def test_times_of_a_slow_device_compare_with_those_of_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's costs choose the right blocks, and are as right of how long these take, beside units."""
    info = a_gpu_with_units()
    table = with_units(info, device_costs(info), SPLIT)
    assert table is not None
    slow = with_costs(table, SHARED, scaled(costs_of(table, SHARED), 8.0))
    found = tuned(monkeypatch, info, carried_over(slow, table))
    blocks = found.families[0]
    assert blocks.excess_after <= blocks.excess_before < 0.01
    assert blocks.before["cycles_per_nanosecond"] / blocks.after["cycles_per_nanosecond"] == pytest.approx(8.0, rel=0.3)
    keep_costs(info, found)
    assert uses_units(info, WIDE) and uses_units(info, FLOATS) and found.excess_after < 0.01
    forget_tuned(info)


@pytest.mark.sweep
def test_noise_is_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that happen to choose faster kernels of those that were measured choose no faster ones of other layers."""
    h200 = known_device("nvidia_h200")
    monkeypatch.setattr(MadeUpBench, "noise", 0.3)
    found = tuned(monkeypatch, h200, device_costs(h200))
    assert sum(family.before == family.after for family in found.families) >= 4
    assert found.excess_after - 0.02 < found.excess_before < 0.25 and found.excess_after <= found.excess_before


@pytest.mark.parametrize("error", [0.1, math.nan])
def test_matrix_units_with_wrong_results_are_not_used(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    h200 = known_device("nvidia_h200")
    found = tuned(monkeypatch, h200, device_costs(h200), error=error)
    (units,) = [family.units for family in found.families if family.units is not None]
    assert not units.is_right and not units.is_used and found.is_better
    keep_costs(h200, found)
    assert not uses_units(h200, WIDE) and tuned_costs(h200).units[HALVES] == units
    forget_tuned(h200)


@pytest.mark.sweep
def test_matrix_units_that_multiply_bfloat16_wrongly_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them, unless the device doesn't say that it multiplies it."""
    h200 = known_device("nvidia_h200")
    for info, is_right in ((h200, False), (replace(h200, bfloat_shapes=()), True)):
        found = tuned(monkeypatch, info, device_costs(info), error=0.1, wrong={torch.bfloat16})
        assert next(family.units for family in found.families if family.name == HALVES).is_right == is_right


@pytest.mark.sweep
def test_a_driver_that_refuses_kernels_for_matrix_units(
    units: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are tuned; another error ends the tuning."""
    monkeypatch.setattr(units, "info", replace(units.info, kind="discrete"))
    gc.collect()
    prepare, before = Bench.prepare, units.live_objects["CommandPool"]

    def refuse(bench: Bench, choose: Any, show: Any) -> None:
        if any(isinstance(kernel, (MatrixKernel, FragmentKernel)) for item in bench.items for kernel in choose(item)):
            raise DeviceError("no such instructions")
        prepare(bench, choose, show)

    monkeypatch.setattr(Bench, "prepare", refuse)
    found = tune.tune(units, 0.0, TINY)
    assert [family.name for family in found.families] == [SHARED, ROWS, FEW_BITS]
    assert "no such instructions" in caplog.text and units.live_objects["CommandPool"] == before
    monkeypatch.setattr(Bench, "prepare", lambda *args: (_ for _ in ()).throw(DeviceError("lost")))
    with pytest.raises(DeviceError, match="lost"):
        tune.tune(units, 0.0, TINY)


@pytest.mark.parametrize(
    ("layer", "half"),
    [
        *((layer, half) for layer in TINY[HALVES] for half in (torch.float16, torch.bfloat16)),
        *((layer, torch.float16) for layer in TINY[SPLIT]),
    ],
    ids=str,
)
def test_results_are_checked(units: Device, layer: Layer, half: torch.dtype) -> None:
    """Those of emulated units are right."""
    load_lowerings()
    prepared, info = PreparedLayer(layer, half), replace(units.info, kind="discrete")
    shape, exact = prepared.shape(info), prepared._exact()
    kernel = min(matrix_kernels(info, device_costs(info), shape), key=lambda kernel: kernel.parts)
    bounds = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2} if layer.are_halves else {torch.float16: 1e-5}
    assert 0 < prepared.error(units, forced(kernel)) <= bounds[half]
    with patch.object(PreparedLayer, "_exact", lambda layer: 1.1 * exact):
        assert 0.08 < prepared.error(units, forced(kernel)) < 0.1


def test_a_gain_within_noise_is_none() -> None:
    h200 = known_device("nvidia_h200")
    units, other = (choose_gpu_kernel(h200, shape) for shape in (WIDE, replace(WIDE, half_run=0)))

    def use(time: float, noise: float) -> UnitsUse:
        times = {units: time, other: 100.0}
        slower = {kernel: taken * (1 + noise) for kernel, taken in times.items()}
        predict = {units: 1.0, other: 2.0}.__getitem__
        return tune.units_use([Measured(LAYER, WIDE, times, slower)], lambda kernel, shape: predict(kernel))

    assert use(95.0, 0.01) == UnitsUse(True, 95.0, 100.0)
    assert not use(98.0, 0.01).is_used and not use(95.0, 0.1).is_used and not use(105.0, 0.01).is_used


def test_other_families_predict_what_they_did_when_blocks_are_fitted() -> None:
    h200 = known_device("nvidia_h200")
    before = device_costs(h200)
    costs = carried_over(replace(before, cycles_per_nanosecond=0.7, fetch_cycles=5.0), before)
    for name in (HALVES, SPLIT, ROWS):
        old, new = (gpu_family(name, h200, known, known).before for known in (before, costs))
        for layer in LAYERS[name]:
            shape = shape_of(layer, h200)
            ratios = [
                (new(kernel, shape) - 1000) / (old(kernel, shape) - 1000)
                for kernel in gpu_family(name, h200, before, before).kernels(shape)
                if kernel.parts == 1
            ]
            assert max(ratios) == pytest.approx(min(ratios)) and (name == ROWS or ratios[0] == pytest.approx(1))


def test_few_kernels_are_measured() -> None:
    """A pipeline takes a driver up to .3 s."""
    load_lowerings()
    h200, count = known_device("nvidia_h200"), 0
    for name in (SHARED, HALVES, SPLIT, ROWS, FEW_BITS):
        family = gpu_family(name, h200, device_costs(h200), device_costs(h200))
        count += sum(len({*family.first(Measured(layer, shape_of(layer, h200)))}) for layer in LAYERS[name])
    assert count < 450


FITTED_ON_CPU = {"threads": 8.0, "fetch": 1.0, "multiply": 2.0, "store": 3.0, "start": 4.0, "broadcast": 5.0}


def test_kept_costs_are_read_and_forgotten(device: Device) -> None:
    cpu, gpu = replace(device.info, kind="cpu"), known_device("nvidia_h200")
    table = cpu_costs(cpu), device_costs(gpu)
    fitted = TunedCosts({CPU: FITTED_ON_CPU}, {})
    assert keep_tuned(cpu, fitted) and tuned_costs(cpu).costs == fitted.costs
    assert cpu_costs(cpu) == replace(table[0], **FITTED_ON_CPU) and isinstance(cpu_costs(cpu).threads, int)
    assert device_costs(cpu).name in [profile.name for profile in profiles()]  # of kernels for GPUs on it
    assert device_costs(gpu) == table[1]  # another device
    assert (
        tuned_costs(replace(cpu, driver_version=cpu.driver_version + 1)) is NOT_TUNED
    )  # another release of the driver
    assert forget_tuned(cpu) and not forget_tuned(cpu) and cpu_costs(cpu) == table[0]


def test_every_family_is_kept() -> None:
    gpu = known_device("nvidia_h200")
    table = device_costs(gpu)
    costs = {name: {key: 2 * value for key, value in costs_of(table, name).items()} for name in FITTED if name != CPU}
    units = {HALVES: UnitsUse(True, 1.0, 2.0), SPLIT: UnitsUse(False, 2.0, 1.0)}
    keep_tuned(gpu, TunedCosts(costs, units))
    read = device_costs(gpu)
    assert all(costs_of(read, name) == costs[name] for name in costs)
    assert read.uses_units and read.split_names == () and tuned_costs(gpu).units == units
    assert read.cores == table.cores and read.origin == table.origin
    forget_tuned(gpu)
    assert device_costs(gpu) == table


def _form(**changes: object) -> str:
    good: dict[str, object] = {"form": 3, "costs": {CPU: FITTED_ON_CPU}, "units": {}}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"fetch": 1}', json.dumps(FITTED_ON_CPU), json.dumps(costs_of(profiles()[0], SHARED))),
        *(_form(form=2), _form(costs={}), _form(costs={CPU: {**FITTED_ON_CPU, "fetch": -1}}), _form(units=[])),
        *(_form(costs={CPU: {"fetch": 1}}), _form(costs={SHARED: costs_of(profiles()[0], SHARED)})),
        *(_form(units={HALVES: {"is_used": True}}), _form(units={HALVES: {**vars(UnitsUse(True, 1, 2))}})),
    ],
)
def test_a_bad_file_is_not_used(device: Device, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """One of an older release, too: it had other costs, by names alone."""
    cpu = replace(device.info, kind="cpu")
    table = cpu_costs(cpu)
    path = device_file("costs", cpu, ".json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    unread = replace(cpu, index=99)  # of the device itself it is remembered that there was no file
    assert cpu_costs(unread) == table and "is not used" in caplog.text


def test_gpus_choose_by_kept_costs() -> None:
    gpu = known_device("nvidia_h200")
    shape = ProductShape(49, 1152, 128, 128)
    before = choose_gpu_kernel(gpu, shape)
    costs = {**costs_of(device_costs(gpu), SHARED), "second_dispatch_nanoseconds": 1e9}
    keep_tuned(gpu, TunedCosts({SHARED: costs}, {}))
    assert before.parts > 1 == choose_gpu_kernel(gpu, shape).parts
    forget_tuned(gpu)
    assert choose_gpu_kernel(gpu, shape) == before


@pytest.mark.sweep
def test_all_families_of_a_gpu(units: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, with emulated units; all executables are closed."""
    monkeypatch.setattr(units, "info", replace(units.info, kind="discrete"))
    steps: list[str] = []
    names = ("CommandPool", "DescriptorPool", "QueryPool")
    gc.collect()  # executables of tests before this one, which would go meanwhile
    before = [units.live_objects[name] for name in names]
    found = tune.tune(units, 0.0, TINY, steps.append)
    assert [family.name for family in found.families][:2] == [SHARED, HALVES]
    # There are none of these where units were no faster for such small layers.
    others = {SPLIT, FRAGMENTS, SPLIT_FRAGMENTS}
    assert {family.name for family in found.families} - others == {SHARED, HALVES, ROWS, FEW_BITS}
    for family in found.families:
        assert family.after.keys() == set(FITTED[family.name]) and family.excess_after >= 0
        assert [choice.layer for choice in family.choices] == [str(layer) for layer in TINY[family.name]]
        assert all(choice.after_time >= choice.least_time > 0 for choice in family.choices)
    assert any("20 x 24 by 16" in step for step in steps)
    assert before == [units.live_objects[name] for name in names]
    assert keep_costs(units.info, found)
    other = replace(units.info, index=99)
    for family in found.families:
        assert costs_of(device_costs(other), family.name) == pytest.approx(family.after)
    assert forget_tuned(units.info) and tuned_costs(units.info) is NOT_TUNED


def test_what_is_measured_reads_what_it_should(units: Device) -> None:
    """Layers are lowered to products only, of the elements that their family is for."""
    load_lowerings()
    gpu = replace(units.info, kind="discrete")
    for name, layers in LAYERS.items():
        for layer in layers if name != CPU else ():
            prepared = PreparedLayer(layer)
            shape = prepared.shape(gpu)
            assert bool(shape.half_run) == layer.are_halves and shape.bits == layer.bits
            assert shape.taps == (9 if layer.is_convolution else 1) and shape.rows == layer.rows
            stream = prepared.stream(gpu, lambda info, shape, texels: choose_gpu_kernel(info, shape))
            assert all(isinstance(step, Dispatch) and step.shader.startswith("product") for step in stream.operations)


def test_bad_costs_change_kernels_and_tuning_brings_them_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay right whatever the costs are. Times of a busy machine say nothing: those that are fitted are made
    up."""
    if not device.info.is_cpu:
        pytest.skip("the costs of CPU drivers")
    x, model = torch.randn(150, 70), nn.Linear(70, 96).eval()

    def run() -> set[tuple[int | float, ...]]:
        program = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
        steps = [item.operation for item in program.profile([x])]
        return {step.specialization for step in steps if isinstance(step, Dispatch) and "product" in step.shader}

    before = run()
    # As if all workgroups were computed at once: the smallest are the best then.
    keep_tuned(device.info, TunedCosts({CPU: {**START, "threads": 1e6}}, {}))
    assert run() != before
    layers = {CPU: [Layer(150, 70, 96)]}
    found = tune.tune(device, 0.0, layers)
    assert found.kernels > 10
    shape = ProductShape(150, 18, 24, 24)
    times = {kernel: tile_nanoseconds(kernel, shape, TRUE) for kernel in kernels_for(shape)}
    monkeypatch.setattr(MadeUpBench, "prepare", lambda *_: None)
    monkeypatch.setattr(MadeUpBench, "__init__", lambda bench, *_: None)
    monkeypatch.setattr(MadeUpBench, "items", [Measured(LAYER, shape, times, dict(times))], raising=False)
    monkeypatch.setattr(tune, "Bench", MadeUpBench)
    found = tune.tune(device, 0.0, layers)
    assert found.families[0].after["threads"] < 1e6
    keep_costs(device.info, found)
    run()
    forget_tuned(device.info)
    assert run() == before
