"""Layers that round their inputs by the least and the greatest element of each call, by the kernels of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device

from mobopt import MobileModule, optimize_for_mobile
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore


def module_of(rows: int, width: int) -> tuple[MobileModule, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(width, 96), torch.nn.GELU(), torch.nn.Linear(96, width)
    x = torch.randn(rows, width)
    exported = torch.export.export(torch.nn.Sequential(*layers).eval(), (x,))
    return optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize="int8_dynamic"), x


@pytest.mark.parametrize("rows", [1, 61])
def test_a_layer_takes_three_dispatches(rows: int) -> None:
    module, x = module_of(rows, 64)
    built = build_stream(specialize(module.program, "forward", [x]), known_device("nvidia_h200"), ConstantStore())
    shaders = [operation.shader for operation in built.stream.operations if isinstance(operation, Dispatch)]
    assert len(shaders) == 6
    assert shaders[::3] == ["extremes_whole"] * 2 and shaders[1::3] == ["pointwise_24_0"] * 2


@pytest.mark.parametrize("rows", [1, 5, 61])
def test_numbers_beside_the_reference(device: Any, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=16))
    module, x = module_of(rows, 67)
    reference = MobileModule(module.program, "cpu")
    for given in (x, 1e3 * x - 700, 1e-3 * x, torch.zeros_like(x), -x.abs()):
        found, expected = module(given), reference(given)
        error = (found - expected).abs() / expected.abs().max()
        # Where floats differ in the last bit an input may take the next step.
        assert error.max() < 0.02 and error.median() < 1e-6
    with_nan = x.index_fill(1, torch.tensor([3]), torch.nan)
    assert torch.equal(module(with_nan).isnan(), reference(with_nan).isnan())
