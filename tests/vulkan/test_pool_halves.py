"""Largest elements of windows of halves, compared as they lie: bit-equal to those of floats that they stand for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_chains import emulating  # noqa: F401  (a fixture)
from test_half_precision import numbers, seeded
from test_planar_inputs import scripted, shaders, with_switches  # noqa: F401  (a fixture)
from torch import Tensor, nn

from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

# kernel, stride, padding, dilation, whether the last windows may be cut off
WINDOWS = [
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, False),
    ((5, 3), (1, 3), (2, 1), 1, True),
    ((1, 7), (3, 2), (0, 3), 1, False),
    (13, 1, 6, 1, False),
]


class Pooled(nn.Module):
    """A pooling between two convolutions, so that it reads and makes halves."""

    def __init__(self, pool: nn.Module, channels: int = 24, groups: int = 1, *, three: bool = False) -> None:
        super().__init__()
        convolution = nn.Conv3d if three else nn.Conv2d
        self.before, self.pool = convolution(channels, channels, 1, groups=groups), pool
        self.after = convolution(channels, channels, 1, groups=groups)
        with torch.no_grad():
            for layer in (self.before, self.after):
                layer.weight.copy_(numbers(*layer.weight.shape).half())

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.pool(self.before(x)))


@pytest.fixture
def device_of_halves(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device by whose plans halves are compared, as a GPU's."""
    if "float16" not in device.info.features:
        pytest.skip("the device has no type of halves")
    with_switches(device, monkeypatch, "no-texels")
    return device


def both(device: Device, monkeypatch: pytest.MonkeyPatch, model: nn.Module, x: Tensor, *more: Tensor) -> list[Tensor]:
    """What pooling of halves gives, and pooling of floats."""
    results = []
    for features in (device.info.features, device.info.features - {"float16"}):
        with monkeypatch.context() as patch:
            patch.setattr(device, "info", replace(device.info, features=features))
            runner = VulkanProgram(scripted(model), device, precision=PrecisionChoice("fp16"))
            runner(x)  # the first call's numbers are those that say where halves will do
            results.append(torch.stack([runner(each) for each in (x, *more)]))
    return results


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@torch.no_grad()
def test_windows(device_of_halves: Device, monkeypatch, shaders, window: tuple) -> None:  # noqa: F811
    *sizes, ceil = window
    model = seeded(Pooled(nn.MaxPool2d(*sizes, ceil_mode=ceil)))
    halves, floats = both(device_of_halves, monkeypatch, model, numbers(2, 24, 17, 23))
    assert shaders.count("pool_halves") == shaders.count("pool") == 1
    assert torch.equal(halves, floats)


@torch.no_grad()
def test_volumes(device_of_halves: Device, monkeypatch, shaders) -> None:  # noqa: F811
    model = seeded(Pooled(nn.MaxPool3d((2, 3, 2), (2, 1, 3), (1, 1, 0)), three=True))
    halves, floats = both(device_of_halves, monkeypatch, model, numbers(1, 24, 5, 7, 11))
    assert torch.equal(halves, floats)


@torch.no_grad()
def test_numbers_that_are_no_ordinary_ones(device_of_halves: Device, monkeypatch, shaders) -> None:  # noqa: F811
    """Both signs of NaN, infinities and zeros, at corners and inside; no channel has another's."""
    model = seeded(Pooled(nn.MaxPool2d(3, 2, 1), groups=24))
    for layer in (model.before, model.after):
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    x = numbers(1, 24, 9, 11)
    special = x.clone()
    for place, number in enumerate([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0]):
        special[0, place, 0, 0] = special[0, place, 8, 10] = special[0, place, 4, 5] = number
    special[0, 6] = -math.inf
    halves, floats = both(device_of_halves, monkeypatch, model, x, special)
    assert "pool_halves" in shaders
    assert torch.equal(halves.isnan(), floats.isnan()) and torch.equal(halves.nan_to_num(), floats.nan_to_num())
    pooled = nn.functional.max_pool2d(special.half().float(), 3, 2, 1)
    assert torch.equal(halves[1].isnan(), pooled.isnan()) and torch.equal(halves[1].isinf(), pooled.isinf())
    assert bool(pooled.isnan().any()) and bool(pooled.isinf().any())


@pytest.mark.parametrize(
    "pool, channels",
    [(nn.MaxPool2d(3, 1, dilation=2), 24), (nn.AvgPool2d(3), 24), (nn.AdaptiveMaxPool2d(3), 24), (nn.MaxPool2d(3), 20)],
    ids=["gaps", "mean", "shares", "channels"],
)
@torch.no_grad()
def test_what_it_does_not_do(device_of_halves: Device, shaders, pool: nn.Module, channels: int) -> None:  # noqa: F811
    model, x = seeded(Pooled(pool, channels)), numbers(1, channels, 13, 11)
    found = VulkanProgram(scripted(model), device_of_halves, precision=PrecisionChoice("fp16"))(x)
    assert "pool" in shaders and "pool_halves" not in shaders
    expected = model(x.half().float())
    assert float((found - expected).abs().max()) <= 4e-3 * float(expected.abs().max())


@torch.no_grad()
def test_floats_are_left_to_the_other_kernel(device_of_halves: Device, shaders) -> None:  # noqa: F811
    model, x = seeded(Pooled(nn.MaxPool2d(3, 2, 1))), numbers(1, 24, 13, 11)
    VulkanProgram(scripted(model), device_of_halves)(x)
    assert "pool" in shaders and "pool_halves" not in shaders


@torch.no_grad()
def test_dispatches_that_wait_by_a_counter(emulating: Device, monkeypatch, shaders) -> None:  # noqa: F811
    monkeypatch.setattr(emulating, "info", replace(emulating.info, switches=emulating.info.switches | {"no-texels"}))
    model = seeded(Pooled(nn.MaxPool2d(3, 2, 1)))
    halves, floats = both(emulating, monkeypatch, model, numbers(1, 24, 13, 11), 2 * numbers(1, 24, 13, 11))
    assert "pool_halves" in shaders and torch.equal(halves, floats)
