"""Up to how many workgroups dispatches wait by counters, as measured: what is chosen, kept, and used."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_infos import known_device
from test_chains import able, emulating  # noqa: F401  (a fixture)

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Stream
from mobopt.runtimes.vulkan.kernels import convolution_kernels
from mobopt.runtimes.vulkan.kernels import tuned_costs as tuned_costs_module
from mobopt.runtimes.vulkan.kernels.device_costs import (
    ahead_workgroups,
    chained_workgroups,
    code_ahead_bytes,
    device_costs,
)
from mobopt.runtimes.vulkan.kernels.gpu_kernels import DepthwiseDivision
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    NOT_TUNED,
    SHARED,
    ChainsUse,
    TunedCosts,
    costs_of,
    forget_tuned,
    keep_tuned,
    tuned_costs,
)
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.tuning import chains, tune
from mobopt.runtimes.vulkan.tuning.chains import choose_limit, tune_chains
from mobopt.runtimes.vulkan.tuning.kept import keep_costs
from mobopt.runtimes.vulkan.tuning.result import ChainsTuning, FamilyTuning, StretchTimes, Tuning
from mobopt.runtimes.vulkan.tuning.stretches import (
    BOTTLENECKS,
    INVERTED_RESIDUALS,
    STRETCHES,
    TRANSFORMER,
    PreparedStretch,
    Stretch,
)

TINY = (
    Stretch(INVERTED_RESIDUALS, 7, 12, 20, 2),
    Stretch(BOTTLENECKS, 5, 13, 9, 1),
    Stretch(TRANSFORMER, 17, 24, 35, 2),
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    load_lowerings()


def timed(*by_limit: Mapping[int, float], noise: float = 0.01) -> list[StretchTimes]:
    return [StretchTimes(str(number), times, noise) for number, times in enumerate(by_limit)]


def test_the_limit_with_the_least_time_is_chosen() -> None:
    found = choose_limit(timed({0: 100.0, 2: 70.0, 10: 80.0}, {0: 1000.0, 2: 800.0, 10: 900.0}), before=10)
    assert found.after == 2 and found.changes and found.is_right
    assert found.shares == pytest.approx({0: 1.0, 2: math.sqrt(0.56), 10: math.sqrt(0.72)})


def test_barriers_are_chosen_where_counters_take_longer() -> None:
    assert choose_limit(timed({0: 100.0, 2: 130.0, 10: 150.0}), before=10).after == 0


@pytest.mark.parametrize(("noise", "after"), [(0.01, 2), (0.1, 10)])
def test_a_gain_within_noise_is_none(noise: float, after: int) -> None:
    assert choose_limit(timed({0: 100.0, 2: 75.0, 10: 79.0}, noise=noise), before=10).after == after
    assert choose_limit(timed({0: 100.0, 2: 78.0, 10: 79.0}, noise=noise), before=10).after == 10


def test_stretches_are_those_of_networks() -> None:
    """Each step reads what the one before made, by one dispatch, or by two where sums are divided."""
    h200 = known_device("nvidia_h200")
    for stretch in STRETCHES:
        stream = PreparedStretch(stretch).stream(h200)
        steps = [step for step in stream.operations if isinstance(step, Dispatch)]
        assert 3 * stretch.blocks <= len(steps) <= 4 * stretch.blocks + 1
        for earlier, later in pairwise(steps):
            written = {binding.storage for binding in earlier.bindings if binding.writes}
            assert written & {binding.storage for binding in later.bindings if binding.reads}


@pytest.mark.parametrize("are_halves", [False, True])
@pytest.mark.parametrize("stretch", TINY, ids=str)
def test_stretches_compute(device: Device, stretch: Stretch, are_halves: bool) -> None:
    """As torch does."""
    prepared = PreparedStretch(replace(stretch, are_halves=are_halves))
    (x,) = prepared.inputs(1)
    (found,) = chains._results(device, prepared.stream(device.info, is_read=True), [x], 1)
    expected = x
    for step in prepared._steps:
        args = [arg.elements if isinstance(arg, Value) else arg for arg in step.args]
        expected = getattr(torch.ops.aten, step.operator.removeprefix("aten::"))(expected, *args)
    assert 0.1 < float(expected.std()) < 10
    assert float((found - expected).abs().max() / expected.abs().max()) < (4e-3 if are_halves else 1e-5)


@pytest.fixture
def gpu(emulating: Device, monkeypatch: pytest.MonkeyPatch) -> Device:  # noqa: F811
    """As a GPU whose dispatches may wait by counters, with barriers all the same."""
    monkeypatch.setattr(emulating, "info", replace(emulating.info, kind="discrete", cores=2))
    # llvmpipe 22.3 loses invocations behind a loop that others leave early, as that of teams: they never arrive.
    monkeypatch.setattr(convolution_kernels, "_divided", lambda *_: DepthwiseDivision(1, 4))
    return emulating


def test_stretches_are_measured(gpu: Device) -> None:
    """For real; what isn't needed any more is given back."""
    gc.collect()  # executables of tests before this one
    names, steps = ("CommandPool", "DescriptorPool", "DeviceMemory"), list[str]()
    before = [gpu.live_objects[name] for name in names]
    found = tune_chains(gpu, 0.0, steps.append, TINY)
    assert [gpu.live_objects[name] for name in names] == before
    assert gpu.chains and found.is_right and found.shares[0] == 1.0
    assert found.before == device_costs(gpu.info).chained_workgroups_per_core
    assert [one.stretch for one in found.stretches] == [str(stretch) for stretch in TINY]
    for one in found.stretches:
        assert list(one.nanoseconds) == [0, 1, 2, 4, 6, 10, 20] and min(one.nanoseconds.values()) > 1e4
        assert one.nanoseconds[20] == one.nanoseconds[10] != one.nanoseconds[0]  # the same dispatches wait
    assert steps[:3] == [f"preparing {stretch}" for stretch in TINY]


def choosing(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Whatever is measured, a limit is chosen."""
    choose = choose_limit
    monkeypatch.setattr(chains, "choose_limit", lambda times, before: replace(choose(times, before), after=limit))


def test_results_are_compared(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    choosing(monkeypatch, 10)
    found = tune_chains(gpu, 0.0, lambda step: None, TINY)
    assert (found.after, found.is_right) == (10, True)
    results = chains._results

    def wrong(device: Device, stream: Stream, inputs: Sequence[torch.Tensor], repeats: int) -> list[torch.Tensor]:
        made = results(device, stream, inputs, repeats)
        if repeats > len(inputs):
            made[17][..., -1] += 1e-3
        return made

    monkeypatch.setattr(chains, "_results", wrong)
    found = tune_chains(gpu, 0.0, lambda step: None, TINY)
    assert (found.after, found.is_right) == (0, False)


@pytest.mark.parametrize("when", ["measured", "compared"])
def test_what_is_waited_for_in_vain_is_not_used(gpu: Device, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    choosing(monkeypatch, 10)
    name = {"measured": "_measured", "compared": "_results"}[when]
    real = getattr(chains, name)

    def late(device: Device, *args: object) -> object:
        made = real(device, *args)
        device.chains = False
        return made

    monkeypatch.setattr(chains, name, late)
    found = tune_chains(gpu, 0.0, lambda step: None, TINY)
    assert (found.after, found.is_right) == (0, False)


FAMILY = FamilyTuning(SHARED, {}, costs_of(device_costs(known_device("nvidia_h200")), SHARED), (), 3, 0.01)


def tuning(after: int, **changes: Any) -> Tuning:
    shares = {0: 1.0, after: 0.9}
    return Tuning((FAMILY,), ChainsTuning(10, after, shares, (StretchTimes("one", shares, 0.01),), 0.01, **changes))


def test_what_is_kept_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "excess_before", 0.0)
    monkeypatch.setattr(Tuning, "excess_after", 0.0)
    nvidia = able(4, 0x10DE)
    assert chained_workgroups(nvidia) == 300 and not tuning(10).is_better and tuning(2).is_better
    assert keep_costs(nvidia, tuning(2)) and chained_workgroups(nvidia) == 60
    assert tuned_costs(nvidia).chains == ChainsUse(2, 0.9)
    assert keep_costs(nvidia, Tuning((FAMILY,))) and chained_workgroups(nvidia) == 60  # not measured this time
    assert chained_workgroups(replace(nvidia, switches=frozenset({"no-chains"}))) == 0
    assert keep_costs(nvidia, tuning(0, is_right=False)) and chained_workgroups(nvidia) == 0
    assert code_ahead_bytes(nvidia) is None and ahead_workgroups(nvidia) == 0
    assert forget_tuned(nvidia) and chained_workgroups(nvidia) == 300
    mesa = replace(nvidia, driver_id=23)  # whatever a file says
    assert keep_costs(mesa, tuning(2)) and chained_workgroups(mesa) == 0


@pytest.mark.parametrize(
    "chains",
    [3, {}, {"workgroups_per_core": 2}, *({**asdict(ChainsUse(2, 0.9)), **bad} for bad in (
        {"workgroups_per_core": -1}, {"workgroups_per_core": 2.5}, {"workgroups_per_core": True},
        {"workgroups_per_core": 10**9}, {"share": 0}, {"is_right": 1},
    ))],
    ids=str,
)  # fmt: skip
def test_a_bad_file_is_not_used(chains: object, caplog: pytest.LogCaptureFixture) -> None:
    nvidia = able(4, 0x10DE)
    keep_tuned(nvidia, TunedCosts({SHARED: FAMILY.after}, {}, ChainsUse(2, 0.9)))
    path = device_file("costs", nvidia, ".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "chains": chains}))
    tuned_costs_module._read_tuned.cache_clear()
    assert tuned_costs(nvidia) is NOT_TUNED and "is not used" in caplog.text and chained_workgroups(nvidia) == 300


def test_only_drivers_that_start_workgroups_in_order_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    monkeypatch.setattr(tune, "_gpu_families", lambda device, seconds, tuner: tried.append(seconds) or ())
    monkeypatch.setattr(tune, "tune_chains", lambda device, seconds, show: tried.append(seconds))
    for info, seconds in ((able(1, 0x1002), [60.0]), (able(23, 0x10DE), [60.0]), (able(4, 0x10DE), [54.0, 6.0])):
        tried.clear()
        tune.tune(SimpleNamespace(info=info))  # type: ignore[arg-type]
        assert tried == pytest.approx(seconds)
