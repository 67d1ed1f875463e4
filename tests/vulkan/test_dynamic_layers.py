"""Layers that round their inputs by the least and the greatest element of each call, by the kernels of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers PT2E's operators
from device_infos import known_device
from torch import Tensor

from mobopt import MobileModule, optimize_for_mobile
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

PT2E = torch.ops.quantized_decomposed
INT8 = -128, 127, torch.int8


def module_of(rows: int, width: int) -> tuple[MobileModule, Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(width, 96), torch.nn.GELU(), torch.nn.Linear(96, width)
    x = torch.randn(rows, width)
    exported = torch.export.export(torch.nn.Sequential(*layers).eval(), (x,))
    return optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize="int8_dynamic"), x


def shaders_of(module: MobileModule, x: Tensor) -> list[str]:
    """The dispatches of a plan for an H200."""
    built = build_stream(specialize(module.program, "forward", [x]), known_device("nvidia_h200"), ConstantStore())
    return [operation.shader for operation in built.stream.operations if isinstance(operation, Dispatch)]


@pytest.mark.parametrize("rows", [1, 61])
def test_a_layer_takes_three_dispatches(rows: int) -> None:
    module, x = module_of(rows, 64)
    shaders = shaders_of(module, x)
    assert len(shaders) == 6
    assert shaders[::3] == ["extremes_whole"] * 2 and shaders[1::3] == ["pointwise_24_0"] * 2


def by_tensor(x: Tensor) -> Tensor:
    scale, zero = PT2E.choose_qparams.tensor(x, *INT8[:2], 1e-5, INT8[2])
    rounded = PT2E.quantize_per_tensor.tensor(x, scale, zero, *INT8)
    return PT2E.dequantize_per_tensor.tensor(rounded, scale, zero, *INT8)


def by_tokens(x: Tensor) -> Tensor:
    scale, zero = PT2E.choose_qparams_per_token(x, INT8[2])
    return PT2E.dequantize_per_token(PT2E.quantize_per_token(x, scale, zero, *INT8), scale, zero, *INT8, torch.float32)


def by_tokens_asymmetrically(x: Tensor) -> Tensor:
    scale, zero = PT2E.choose_qparams_per_token_asymmetric(x, INT8[2])
    return PT2E.dequantize_per_token(PT2E.quantize_per_token(x, scale, zero, *INT8), scale, zero, *INT8, torch.float32)


class Rounded(torch.nn.Linear):
    """A layer whose input is rounded as in PT2E's exports."""

    def __init__(self, inner: int, columns: int, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__(inner, columns)
        self.rounded = rounded

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.rounded(x))


@pytest.mark.parametrize("rounded", [by_tensor, by_tokens, by_tokens_asymmetrically])
def test_layers_of_other_exporters(
    device: Any, monkeypatch: pytest.MonkeyPatch, rounded: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Rounded(64, 96, rounded), torch.nn.GELU(), Rounded(96, 64, rounded)).eval()
    model.requires_grad_(False)
    x = torch.randn(3, 7, 64)
    module = optimize_for_mobile(torch.export.export(model, (x,)), backend="vulkan", runtime="mobopt")
    assert len(shaders_of(module, x)) == 6
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=16))
    for given in (x, 1e3 * x - 700, torch.zeros_like(x)):
        error = (module(given) - model(given)).abs() / model(given).abs().max()
        assert error.max() < 0.02 and error.median() < 1e-6


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
