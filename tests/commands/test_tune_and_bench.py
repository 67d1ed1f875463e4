"""``mobopt tune`` and ``mobopt bench``."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_harness import DEVICE, Invoke, assert_refused

from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.open_source import read_program
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan import device_roofs
from mobopt.runtimes.vulkan.device_roofs import DeviceRoofs
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.device_costs import profiles
from mobopt.runtimes.vulkan.kernels.tuned_costs import (
    CPU,
    FEW_BITS,
    FITTED,
    HALVES,
    ROWS,
    SHARED,
    TunedCosts,
    costs_of,
)
from mobopt.runtimes.vulkan.tuning import result, tune
from mobopt.runtimes.vulkan.tuning.layers import LAYERS, Layer
from mobopt.samples.inputs import random_inputs
from mobopt.tools import bench, bench_folder
from mobopt.tools import tuning as tools_tuning
from mobopt.tools.bench_peers import PEERS, Bench, Contestant, Peer

RANDOM = ("--random", "1,3,5,5")
QUICK = (*RANDOM, "--rounds", 1, "--seconds", 0)


@pytest.fixture(autouse=True)
def chosen_device(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The device that tests use, with a cache of its own."""
    monkeypatch.setenv("MOBOPT_DEVICE", DEVICE)
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


class Rival(Peer):
    """A rival of the tests."""

    form = ".ptl"  # which mobopt has written: exporting takes long

    def __init__(self, name: str, answer: Callable[[], torch.Tensor], missing: str = "") -> None:
        self.name, self._answer, self._missing = name, answer, missing

    def missing(self) -> str:
        return self._missing

    def open(self, bench: Bench) -> Contestant:
        return Contestant(self._answer, "nowhere")


def crash() -> torch.Tensor:
    raise RuntimeError("no kernel\nat all")


def test_bench(invoke: Invoke, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random_inputs(["1,3,5,5"])
    for rival in (
        Rival("right", lambda: Interpreter(read_program(files / "scripted.pt")).run("forward", x)),
        Rival("absent", crash, "not installed: pip install absent"),
        Rival("wrong", lambda: torch.zeros(1, 2)),
        Rival("crashing", crash),
    ):
        monkeypatch.setitem(PEERS, rival.name, rival)
    options = ("--peers", "right,absent,wrong,crashing", "--no-starts", "--pause", "0.001")
    result = invoke("bench", files / "scripted.pt", *QUICK, *options, "--json")
    assert result.exit_code == 0, result.output
    found = {entry["name"]: entry for entry in json.loads(result.stdout)["entries"]}
    for name in ("mobopt", "right"):
        entry = found[name]
        assert len(entry["seconds"]) == len(entry["paused_seconds"]) == bench.TIMED
        assert entry["agreement"]["relative"] < 1e-5 and entry["median_seconds"] > 0 and not entry["problem"]
    assert "pip install absent" in found["absent"]["problem"] and not found["absent"]["seconds"]
    assert "another" in found["wrong"]["problem"] and not found["wrong"]["seconds"]
    assert found["crashing"]["problem"] == "RuntimeError: no kernel"
    result = invoke("bench", files / "bundle.ptl", *QUICK, *options)
    assert result.exit_code == 0 and "absent: not installed" in result.stdout and "right" in result.stdout


def test_a_folder_for_elsewhere(invoke: Invoke, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved here; measured where the model is not, by rivals that find their forms, or say why there is none."""
    monkeypatch.setattr(bench_folder, "PEERS", {name: PEERS[name] for name in ("mobopt", "eager", "ncnn")})
    saved = tmp_path / "saved"
    result = invoke("bench", files / "scripted.pt", *RANDOM, "--save", saved)
    assert result.exit_code == 0 and "mobopt bench" in result.stdout, result.output
    assert {path.name for path in saved.iterdir()} == {
        *("bench.json", "expected.pt", "args.pt", "model.ptl", "model.pt2", "model.pt"),
    }
    before = {path: path.read_bytes() for path in saved.iterdir()}
    monkeypatch.setitem(PEERS, "onnx", type("Onnx", (Rival,), {"form": ".onnx"})("onnx", crash))
    options = ("--rounds", 1, "--seconds", 0, "--no-starts", "--peers", "eager,onnx", "--json")
    result = invoke("bench", saved, *options)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    found = {entry["name"]: entry for entry in data["entries"]}
    assert data["model"] == "scripted.pt" and "1, 3, 5, 5" in data["inputs"] and data["agrees"]
    for name in ("mobopt", "eager"):
        assert found[name]["agreement"]["relative"] < 1e-5 and len(found[name]["seconds"]) == bench.TIMED
    assert found["onnx"]["problem"] == "InputError: the folder has no model.onnx"
    assert {path: path.read_bytes() for path in saved.iterdir()} == before
    assert_refused(invoke("bench", files / "scripted.pt", *RANDOM, "--save", saved), "is there already")
    assert_refused(invoke("bench", saved, *RANDOM), "inputs and a method of its own")
    (saved / "expected.pt").write_bytes(b"no archive")
    assert_refused(invoke("bench", saved, *options), "is no folder of mobopt bench --save")
    assert_refused(invoke("bench", files, *options), "is no folder of mobopt bench --save")


def test_a_form_that_can_not_be_written_is_told(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path) -> None:
        raise UnsupportedError("no exporter")

    monkeypatch.setattr(bench_folder, "target_of", refuse)
    problems = bench_folder.save_bench(files / "scripted.pt", tmp_path / "saved", random_inputs(["1,3,5,5"]))
    assert problems == dict.fromkeys((".pt2", ".onnx", ".pt"), "no exporter")
    with pytest.raises(InputError, match="no exporter"):
        bench_folder.open_saved(tmp_path / "saved").write(tmp_path / "model.onnx")


def test_bench_where_mobopt_is_wrong(invoke: Invoke, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "mobopt", Rival("mobopt", lambda: torch.zeros(1, 2)))
    result = invoke("bench", files / "scripted.pt", *QUICK, "--peers", "", "--no-starts")
    assert result.exit_code == 1 and "mobopt: its result is another" in result.stdout


def test_bench_refuses(invoke: Invoke, files: Path) -> None:
    assert_refused(invoke("bench", files / "scripted.pt", *QUICK, "--peers", "eager,tvm"), "'tvm'", "cuda-graph")
    assert_refused(invoke("bench", files / "scripted.pt", "--random", "1,4,5,5"), "[1, 4, 5, 5]")
    assert_refused(invoke("bench", files / "scripted.pt", *QUICK, "--device", "nosuchdevice"), "nosuchdevice")


@pytest.mark.sweep
def test_bench_of_starts(invoke: Invoke, files: Path) -> None:
    result = invoke("bench", files / "scripted.pt", *QUICK, "--peers", "eager", "--json")
    assert result.exit_code == 0, result.output
    for entry in json.loads(result.stdout)["entries"]:
        start = entry["start"]
        assert 0 < start["torch_seconds"] < start["warm_seconds"] and start["cold_seconds"] > 0
        assert start["host_bytes"] > 1e7
    own = json.loads(result.stdout)["entries"][0]["start"]
    assert own["cold_seconds"] > own["warm_seconds"] and own["device_bytes"] > 0


def test_turns_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_WARM_SECONDS", 0.0)
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = bench.by_turns(calls, 2, 0.0)
    each = bench.UNTIMED + bench.TIMED
    assert "".join(order) == ("a" * each + "b" * each) * 2
    assert [len(taken) for taken in times.values()] == [2 * bench.TIMED] * 2
    order.clear()
    assert len(bench.with_pauses(calls, 3, 0.0)["a"]) == 3 and "".join(order) == "ababab"
    assert bench.spread([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 3.0, 4.0) and bench.spread([7.0]) == (7.0, 7.0, 7.0)


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes little time: a layer a family, and known roofs."""
    for name in LAYERS:
        layer = Layer(2 if name in (ROWS, FEW_BITS) else 20, 24, 16, are_halves=name == HALVES)
        monkeypatch.setitem(LAYERS, name, (replace(layer, bits=8 if name == FEW_BITS else 0),))
    monkeypatch.setattr(device_roofs, "measure_roofs", lambda device: DeviceRoofs(1e10, 4e10, 5e-5))


@pytest.mark.usefixtures("few_layers", "own_costs")
def test_tune(invoke: Invoke, device: Device) -> None:
    assert "is not tuned" in invoke("tune", "--show").stdout
    result = invoke("tune", "--seconds", 0)
    assert result.exit_code == 0, result.output
    assert "kernels measured" in result.stdout and "20 x 24 by 16" in result.stdout
    assert ("matrix units" in result.stdout) != device.info.is_cpu
    is_kept = "--forget" in result.stdout
    shown = json.loads(invoke("tune", "--show", "--json").stdout)
    assert bool(shown["costs"]) == is_kept and (shown["units"] == {} or not device.info.is_cpu)
    assert ("is forgotten" if is_kept else "nothing was kept") in invoke("tune", "--forget").stdout
    assert "is not tuned" in invoke("tune", "--show").stdout
    assert_refused(invoke("tune", "--show", "--forget"), "not both")
    assert_refused(invoke("tune", "--device", "nosuchdevice"), "nosuchdevice")


def test_the_clock_is_held_while_a_gpu_is_tuned(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    held: weakref.WeakSet[object] = weakref.WeakSet()
    counts: list[int] = []

    class Clock:
        def __init__(self, info: DeviceInfo) -> None:
            held.add(self)

    def note(*args: object, **named: object) -> None:
        counts.append(len(held))
        raise UnsupportedError("seen enough")

    monkeypatch.setattr(tools_tuning, "KeptClock", Clock)
    monkeypatch.setattr(tools_tuning, "measured", note)
    with pytest.raises(UnsupportedError, match="seen enough"):
        tools_tuning.tune(DEVICE, 0.0)
    assert counts == [1] and not held


@pytest.mark.usefixtures("few_layers", "own_costs")
def test_tune_a_gpu(invoke: Invoke, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With emulated units, which take longer than anything else."""
    if not device.info.is_cpu:
        pytest.skip("its units are real, and their costs may be known")
    switches = device.info.switches | {"emulated-matrix-units"}
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", switches=switches))
    monkeypatch.setattr(tools_tuning, "open_device", lambda name: device)
    monkeypatch.setattr(tune, "LEAST_GAIN", 1e9)  # so that noise decides nothing
    monkeypatch.setattr(result, "MOST_NOISE", -1.0)
    noisy = invoke("tune", "--seconds", 0).stdout
    assert "nothing is kept" in noisy and "matrix units are used, as before, for halves: the layers take" in noisy
    monkeypatch.setattr(result, "MOST_NOISE", 1e9)
    made = invoke("tune", "--seconds", 0)
    assert made.exit_code == 0, made.output
    for text in (
        *("products of floats", "products of a few rows", "products of a few rows by integers", "row_gap"),
        *("products of halves by matrix units", "unknown", "2 x 24 by 16, int8", "20 x 24 by 16, halves"),
        *(
            "matrix units are not used from now on for halves: the layers take ",
            "where they may not",
            "kept; `mobopt tune --forget`",
        ),
    ):
        assert text in made.stdout
    shown = invoke("tune", "--show").stdout
    assert "matrix units are not used for halves" in shown and "few_bits" not in shown and "read_nanoseconds" in shown
    kept = json.loads(invoke("tune", "--show", "--json").stdout)
    assert kept["costs"].keys() == {SHARED, HALVES, ROWS, FEW_BITS} and not kept["units"][HALVES]["is_used"]
    data = json.loads(invoke("tune", "--seconds", 0, "--json").stdout)
    assert {"device", "tuning", "roofs", "is_kept"} == data.keys()
    family = data["tuning"]["families"][1]
    assert family["name"] == HALVES and family["units"]["nanoseconds_without"] > 0 and family["choices"][0]["before"]
    monkeypatch.setattr(tools_tuning, "kept_costs", lambda info: TunedCosts(kept["costs"], {HALVES: wrong}))
    wrong = tools_tuning.UnitsUse(False, 1.0, 2.0, is_right=False)
    assert "not used for halves: their results are wrong" in invoke("tune", "--show").stdout
    assert "is forgotten" in invoke("tune", "--forget").stdout


def chains_tuning(after: int, **changes: bool) -> result.ChainsTuning:
    shares = {0: 1.0, 2: 0.9, 10: 0.8}
    times = (result.StretchTimes("bottlenecks", {limit: 1e5 * share for limit, share in shares.items()}, 0.01),)
    return result.ChainsTuning(10, after, shares, times, 0.01, **changes)


@pytest.mark.parametrize(
    ("chains", "end", "shown"),
    [
        (
            chains_tuning(10),
            "by counters up to 10 workgroups a core, as before: stretches of networks take 80% of",
            "by counters up to 10 ",
        ),
        (
            chains_tuning(2),
            "by counters up to 2 workgroups a core, from now on: stretches of networks take 90% of",
            "by counters up to 2 ",
        ),
        (chains_tuning(0), "by barriers, from now on\n", "by barriers\n"),
        (
            chains_tuning(0, is_right=False),
            "by barriers, from now on: with counters results were wrong",
            "by barriers: with ",
        ),
        (None, "by barriers: this driver wasn't seen to start workgroups", ""),
    ],
    ids=["as before", "fewer", "barriers", "wrong", "not in order"],
)
@pytest.mark.usefixtures("few_layers", "own_costs")
def test_everything_that_tuning_finds_is_printed(
    invoke: Invoke,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    chains: result.ChainsTuning | None,
    end: str,
    shown: str,
) -> None:
    """Of every family, and of waits."""
    names = [name for name in FITTED if name != CPU]
    choice = result.Choice("one layer", "a", "b", 2e3, 1e3, 1e3, 2e3, 1e3)
    costs = {name: costs_of(profiles()[0], name) for name in names}
    families = tuple(result.FamilyTuning(name, {}, costs[name], (choice,), 3, 0.01) for name in names)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    monkeypatch.setattr(tools_tuning, "open_device", lambda name: device)
    monkeypatch.setattr(tools_tuning, "measured", lambda *args, **named: result.Tuning(families, chains))
    made = invoke("tune")
    assert made.exit_code == 0, made.output
    assert made.stdout.count("3 kernels measured") == len(names) and f"dispatches wait {end}" in made.stdout
    assert ("bottlenecks" in made.stdout) == (chains is not None)
    kept = invoke("tune", "--show").stdout
    assert f"dispatches wait {shown}" in kept if shown else "dispatches wait" not in kept
    data = json.loads(invoke("tune", "--json").stdout)["tuning"]["chains"]
    assert data is None if chains is None else data["shares"] == {"0": 1.0, "2": 0.9, "10": 0.8}
