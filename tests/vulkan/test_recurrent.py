"""Recurrent layers and cells beside torch's, on a CPU driver and on one that is taken for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from one_node import Constant, check, graph_of

from mobopt.ops.contexts import GruPackedContext, LstmPackedContext
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import lower, why_unsupported

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@pytest.fixture(params=["cpu", "discrete"])
def either(request: pytest.FixtureRequest, device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device as what it is, and taken for a GPU."""
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind=request.param))
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


def test_a_sequence_is_one_product_and_a_dispatch_a_step() -> None:
    from device_infos import device_info

    op, args = layer("lstm", 50, 1, 8, 16)
    graph, _, _ = graph_of(op, *args, returned=3)
    plan = Plan(device_info("discrete"))
    for value in graph.inputs:
        plan.place(value, plan.empty(value.sizes))
    lower(plan, next(iter(graph.block.nodes)))
    shaders = [each.shader for each in plan.stream.operations if isinstance(each, Dispatch)]
    assert shaders.count("recurrent") == 50 and len(shaders) < 50 + 8


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
