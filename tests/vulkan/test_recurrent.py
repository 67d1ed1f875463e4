"""Recurrent layers and cells beside torch's, on a CPU driver and on one that is taken for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device, lavapipe
from one_node import Constant, check, graph_of

from mobopt.ops.contexts import GruPackedContext, LstmPackedContext
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import MAX_ITERATIONS, Dispatch, moved_bytes
from mobopt.runtimes.vulkan.kernels import recurrent_kernel
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.recurrent_division import Division, RecurrentShape, divided
from mobopt.runtimes.vulkan.lowerings.registry import lower, why_unsupported
from mobopt.shaders.enumerations import Cell

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


NVIDIA = 0x10DE


@pytest.fixture(params=["cpu", "integrated", "nvidia"])
def either(request: pytest.FixtureRequest, device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device as what it is, and taken for GPUs, one of which keeps weights in registers."""
    torch.manual_seed(0)
    changes = {"kind": "discrete", "vendor_id": NVIDIA} if request.param == "nvidia" else {"kind": request.param}
    monkeypatch.setattr(device, "info", replace(device.info, **changes))
    return device


def parameters(
    op: str, size: int, units: int, layers: int = 1, directions: int = 1, biases: bool = True, projected: int = 0
) -> list[Constant]:
    rows = GATES[op] * units
    found = []
    for layer in range(layers):
        width = directions * (projected or units) if layer else size
        for _ in range(directions):
            found += [torch.randn(rows, width), torch.randn(rows, projected or units)]
            found += [torch.randn(rows), torch.randn(rows)] if biases else []
            found += [torch.randn(projected, units)] if projected else []
    return [Constant(tensor * 0.4) for tensor in found]


def layer(op: str, steps: int, batch: int, size: int, units: int, **options: Any) -> tuple[str, tuple[Any, ...]]:
    """A call of a layer; ``options`` are those of :func:`parameters`, and ``batch_first``."""
    batch_first = options.pop("batch_first", False)
    layers, directions = options.get("layers", 1), options.get("directions", 1)
    x = torch.randn(batch, steps, size) if batch_first else torch.randn(steps, batch, size)
    state = torch.randn(layers * directions, batch, options.get("projected") or units)
    states = [state, torch.randn(layers * directions, batch, units)] if op == "lstm" else state
    flags = (options.get("biases", True), layers, 0.0, False, directions == 2, batch_first)
    return f"aten::{op}.input", (x, states, parameters(op, size, units, **options), *flags)


def _calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield layer("lstm", 5, 3, 5, 7, layers=2, directions=2)
    yield layer("gru", 3, 2, 5, 9, directions=2, batch_first=True)
    yield layer("rnn_relu", 3, 2, 3, 5, layers=2, biases=False)
    yield layer("lstm", 4, 2, 5, 7, layers=2, directions=2, projected=3)
    for op in GATES:
        yield layer(op, 1, 1, 1, 1)
        yield layer(op, 4, 3, 13, 67, directions=2, biases=False)
        yield layer(op, 4, 3, 6, 8, layers=3, batch_first=True)


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_layers(either: Any, few: bool) -> None:
    for op, args in list(_calls())[: 1 if few else None]:
        check(either, op, *args, returned=3 if op == "aten::lstm.input" else 2)


@pytest.mark.sweep
def test_cells(either: Any) -> None:
    for op in GATES:
        for biases in (True, False):
            state = torch.randn(3, 7)
            states = [state, torch.randn(3, 7)] if op == "lstm" else state
            name, weights = f"aten::{op}_cell", parameters(op, 5, 7, biases=biases)
            check(either, name, torch.randn(3, 5), states, *weights, returned=2 if op == "lstm" else 1)


def test_halves(device: Any) -> None:
    torch.manual_seed(0)
    op, (x, state, weights, *flags) = layer("gru", 3, 2, 5, 7)
    halves = [Constant(weight.elements.half()) for weight in weights]
    check(device, op, x.half(), state.half(), halves, *flags, returned=2, relative=4e-3)


@pytest.mark.sweep
def test_packed_contexts(device: Any) -> None:
    torch.manual_seed(0)
    for op, kind in (("lstm", LstmPackedContext), ("gru", GruPackedContext)):
        _, (x, states, weights, *flags) = layer(op, 4, 3, 5, 7, layers=2)
        given = [x, *(states if op == "lstm" else [states])]
        whole, (split, count) = [weight.elements for weight in weights], ([], GATES[op])
        for first in (0, 4):
            order = [whole[first + place].chunk(count) for place in (0, 2, 1, 3)]
            split += [order[part][gate] for gate in range(count) for part in range(4)]
        for stored in (whole, split):
            context = kind(stored, *flags)
            check(device, f"vulkan_prepack::run_{op}_context", *given, context, returned=len(given))


DIVISIONS = {
    "threads and rows": {"size": 32, "threads": 4, "rows": 3, "passes": 1},
    "fewer rows than threads": {"size": 64, "threads": 8, "rows": 2, "passes": 1},
    "several passes": {"size": 8, "threads": 1, "rows": 2, "passes": 3},
    "passes of threads": {"size": 16, "threads": 2, "rows": 3, "passes": 3},
    "all weights kept": {"size": 48, "threads": 2, "rows": 1, "passes": 1, "kept": 1},
    "some weights kept": {"size": 32, "threads": 1, "rows": 3, "passes": 1, "kept": 1},
    "units divided": {"size": 32, "threads": 4, "rows": 3, "passes": 1},
    "units divided, passes": {"size": 8, "threads": 1, "rows": 2, "passes": 2},
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions(either: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    units = 31 if "divided" in name else 23 if "passes" in name else 7
    monkeypatch.setattr(recurrent_kernel, "divided", lambda _, shape: Division(shape, **DIVISIONS[name]))
    monkeypatch.setattr(Division, "most_steps", property(lambda self: 3 if self.goes_on else 1))
    for op in GATES:
        calls = [layer(op, 8, 5, 5, units, directions=2)]
        calls += [layer(op, 5, 4, 5, units, directions=2, projected=6)] if op == "lstm" else []
        for called, args in calls:
            check(either, called, *args, returned=3 if op == "lstm" else 2)


def dispatches(device: DeviceInfo, op: str, args: Any) -> list[Dispatch]:
    """Of ``recurrent.comp``, for a call."""
    graph, _, _ = graph_of(op, *args, returned=3)
    plan = Plan(device)
    for value in graph.inputs:
        plan.place(value, plan.empty(value.sizes))
    lower(plan, next(iter(graph.block.nodes)))
    shaders = [each for each in plan.stream.operations if isinstance(each, Dispatch)]
    found = [each for each in shaders if each.shader.startswith("recurrent")]
    assert len(shaders) < len(found) + 8
    return found


DEVICES = {
    "NVIDIA H200": known_device("nvidia_h200"),
    "Adreno 650": known_device("qualcomm_adreno_650"),
    "lavapipe": lavapipe("25.0.7"),
    "least limits": known_device("least_vulkan_1_1"),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_small_layer_is_one_dispatch_and_a_large_one_a_dispatch_a_step(name: str) -> None:
    device = DEVICES[name]
    assert len(dispatches(device, *layer("lstm", 50, 3, 8, 32, directions=2))) == 1
    assert len(dispatches(device, *layer("lstm", 50, 1, 8, 1024))) == 50


def test_what_a_layer_moves_is_no_less_than_nothing() -> None:
    """The end of the second direction lies before that of the first: a view with a negative stride."""
    op, args = layer("lstm", 9, 2, 8, 16, directions=2)
    graph, _, _ = graph_of(op, *args, returned=3)
    plan = Plan(DEVICES["NVIDIA H200"])
    for value in graph.inputs:
        plan.place(value, plan.empty(value.sizes))
    lower(plan, next(iter(graph.block.nodes)))
    assert all(0 < number < 1 << 20 for each in plan.stream.operations for number in moved_bytes(each))


def test_loops_are_as_long_as_drivers_let_them_be() -> None:
    several = dispatches(DEVICES["lavapipe"], *layer("lstm", 2000, 1, 8, 64))
    assert len(several) > 1
    assert all(each.iterations <= MAX_ITERATIONS for each in several)


@pytest.mark.parametrize("units", [1, 31, 64, 257, 1500])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_divisions_are_within_limits(units: int, rows: int) -> None:
    for device in DEVICES.values():
        for steps in (1, 40):
            shape = RecurrentShape(Cell.LSTM, steps, 2, rows, units, units, 4)
            division = divided(device, shape)
            assert device.is_cpu or division.shared_bytes <= device.shared_memory_bytes
            assert division.size <= device.limits.max_compute_work_group_invocations
            assert division.size % division.threads == 0
            assert division.workgroups * division.rows * division.units >= 2 * rows * units


def test_what_stays_on_the_cpu() -> None:
    op, (x, states, weights, *flags) = layer("gru", 3, 2, 5, 7, layers=2)
    computed = [weight.elements for weight in weights]
    for given, reason in (
        ((x, states, computed, *flags), "weights are computed"),
        ((x, states, weights, True, 2, 0.5, True, False, False), "dropout draws random numbers"),
    ):
        graph, _, _ = graph_of(op, *given, returned=2)
        decompose(graph)
        assert reason in str(why_unsupported(next(iter(graph.block.nodes))))


@pytest.mark.parametrize("name", ["all weights kept", "some weights kept", "units divided"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_weights_in_halves(device: Any, name: str, half: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="integrated"))
    monkeypatch.setattr(recurrent_kernel, "_LEAST_HALVED_BYTES", 0)
    monkeypatch.setattr(recurrent_kernel, "divided", lambda _, shape: Division(shape, **DIVISIONS[name]))
    monkeypatch.setattr(Division, "most_steps", property(lambda self: 3 if self.goes_on else 1))
    units = 31 if "divided" in name else 7
    for op in ("lstm", "gru"):
        called, (x, state, weights, *flags) = layer(op, 8, 5, 5, units, directions=2)
        rounded = [Constant(weight.elements.to(half)) for weight in weights]
        states = [each.to(half) for each in state] if op == "lstm" else state.to(half)
        relative = 4e-3 if half == torch.float16 else 4e-2
        check(device, called, x.to(half), states, rounded, *flags, returned=3 if op == "lstm" else 2, relative=relative)


def test_infinite_states(either: Any) -> None:
    """They are cut off where weights are negative, and meet no zero that pads something, which would make NaN."""
    units = 9
    weights = [Constant(torch.ones(units, 3)), Constant(-torch.ones(units, units))]
    state = torch.full((1, 2, units), torch.inf)
    args = (torch.ones(4, 2, 3), state, weights, False, 1, 0.0, False, False, False)
    check(either, "aten::rnn_relu.input", *args, returned=2)


@pytest.mark.parametrize("name", ["several passes", "threads and rows"])
def test_more_units_than_projected_states(either: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step makes is longer than what a workgroup holds of the step before, and stays out of its neighbours'."""
    monkeypatch.setattr(recurrent_kernel, "divided", lambda _, shape: Division(shape, **DIVISIONS[name]))
    for seed in range(8):  # whether a neighbour is hit depends on which workgroup is first
        torch.manual_seed(seed)
        units = 23 if name == "several passes" else 8
        op, args = layer("lstm", 5, 7, 5, units, directions=2, projected=3)
        check(either, op, *args, returned=3)
