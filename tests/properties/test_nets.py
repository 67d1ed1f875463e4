"""Small copies of published nets mean the same on every road; ``tests/genuine`` runs them on PyTorch's own kernels."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from nets import NETS
from sampling import sampled
from test_random_graphs import VARIANTS, assert_same
from torch.jit.mobile import _load_for_lite_interpreter

from mobopt import optimize_for_mobile
from mobopt.bundle import read_bundle
from mobopt.runtimes.cpu import Interpreter

# Sizes of some random programs and nets depend on more than their inputs.
pytestmark = pytest.mark.filterwarnings("ignore:.* operators? runs? on the phone's CPU")

BOTH = [(name, way) for name, net in NETS.items() for way in net.ways]
ONE = {name: net.ways[number % len(net.ways)] for number, (name, net) in enumerate(NETS.items())}
"""The way of each net that the default run takes."""


def source(name: str, way: str) -> tuple[torch.jit.ScriptModule, list[torch.Tensor], Any]:
    """A net in TorchScript, its inputs, and what eager gives."""
    module, inputs = NETS[name].module(), NETS[name].inputs()
    with torch.no_grad():
        expected = module(*inputs)
        if way == "scripted":
            return torch.jit.script(module), inputs, expected
        return torch.jit.trace(module, tuple(inputs), check_trace=False, strict=False), inputs, expected  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.sweep
@pytest.mark.parametrize("variant", [*VARIANTS, "vulkan 1.13", "vulkan 2.6"])
@pytest.mark.parametrize(("name", "way"), BOTH)
def test_files_give_the_numbers_of_eager(name: str, way: str, variant: str) -> None:
    script, inputs, expected = source(name, way)
    backend, _, runtime = variant.partition(" ")
    options = VARIANTS[backend] | ({"runtime": runtime} if runtime else {})
    module = optimize_for_mobile(script, **options, example_inputs=inputs)
    data = module._save_to_buffer_for_lite_interpreter()
    assert_same(Interpreter(read_bundle(io.BytesIO(data))).run("forward", inputs), expected, variant)
    if backend == "cpu":
        assert_same(_load_for_lite_interpreter(io.BytesIO(data))(*inputs), expected, "stock lite loader")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *sampled(ONE.items(), one_in=5),
        *(pytest.param(name, way, marks=pytest.mark.sweep) for name, way in BOTH if way != ONE[name]),
    ],
)
def test_our_runtime_gives_the_numbers_of_eager(name: str, way: str) -> None:
    script, inputs, expected = source(name, way)
    module = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=inputs)
    assert_same(module(*inputs), expected, "Vulkan")
