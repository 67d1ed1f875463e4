"""Norms of groups of channels, read in the order of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device
from harness import check_op
from test_loop_bounds import lowered

from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import channel_groups, combine
from mobopt.runtimes.vulkan.kernels import normalization_in_registers as in_registers

H200 = known_device("nvidia_h200")


@pytest.fixture
def gpu(device: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device as one with some cores, which is checked to have used the kernel for what lies as images do."""
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", cores=6))
    costs = replace(in_registers.device_costs(device.info), normalizing_lanes=0)  # no workgroup holds a group
    monkeypatch.setattr(in_registers, "device_costs", lambda info: costs)
    monkeypatch.setattr(channel_groups, "_LEAST_ELEMENTS", 1)
    monkeypatch.setattr(channel_groups, "_FEW_CHANNELS", 1 << 20)
    done = []
    append = combine.append_channel_moments
    monkeypatch.setattr(combine, "append_channel_moments", lambda *args: done.append(append(*args)) or done[-1])
    yield device
    assert done[0]


def images(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))) * 2 - 30


@pytest.mark.parametrize(("channels", "groups"), [(40, 4), (8, 4), (100, 5), (24, 2), (1100, 11), (60, 12)])
@pytest.mark.parametrize("space", [(5, 7), (31, 29), (1, 613)])
def test_group_norms(gpu: Device, channels: int, groups: int, space: tuple[int, int]) -> None:
    x = images(2, channels, *space)
    weight, bias = torch.randn(2, channels, generator=torch.Generator().manual_seed(1))
    check_op(gpu, "aten::group_norm", x, groups, weight, bias, relative=2e-6)
    check_op(gpu, "aten::group_norm", x[:1], groups, None, None, relative=2e-6)


def test_statistics(gpu: Device) -> None:
    x = images(3, 12, 17, 19)
    check_op(gpu, "aten::native_group_norm", x, None, None, 3, 12, 17 * 19, 3, 1e-5, relative=2e-6)


@pytest.mark.parametrize("correction", [0, 1, 3])
def test_variances_of_channels(gpu: Device, correction: int) -> None:
    x = images(5, 16, 23, 7)
    check_op(gpu, "aten::var_mean.correction", x, [0, 2, 3], correction=correction, keepdim=True, relative=2e-6)
    check_op(gpu, "aten::std.correction", x, [2, 3], correction=correction, relative=2e-6)
    check_op(gpu, "aten::var.correction", images(1009, 24), [0], correction=correction, relative=2e-6)


def test_elements_that_are_equal_or_far_from_zero(gpu: Device) -> None:
    x = torch.full((1, 8, 37, 41), 1000.1)
    x[:, :4] += 1e-3 * images(1, 4, 37, 41)
    check_op(gpu, "aten::group_norm", x, 2, None, None, relative=3e-2)  # float32 has six bits of these distances
    check_op(gpu, "aten::group_norm", torch.full_like(x, 17.3), 4, None, None)


def test_infinities_and_nan(gpu: Device) -> None:
    x = images(1, 24, 19, 23)
    x[0, 3, 4, 5], x[0, 9, 18, 22] = torch.inf, torch.nan
    check_op(gpu, "aten::group_norm", x, 6, torch.ones(24), torch.zeros(24), relative=2e-6)


def test_halves(gpu: Device) -> None:
    x = images(2, 24, 19, 23).half()
    check_op(gpu, "aten::group_norm", x, 3, None, None, relative=2e-3)


def test_many_parts_of_one_image(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "info", replace(gpu.info, cores=96))
    check_op(gpu, "aten::group_norm", images(1, 64, 61, 67), 16, None, None, relative=2e-6)


@pytest.mark.parametrize(
    ("sizes", "groups", "shaders"),
    [
        ((1, 320, 64, 64), 32, ["channel_moments", "normalize_channels"]),
        ((1, 128, 512, 512), 32, ["channel_moments", "normalize_channels"]),
        ((16, 128, 96, 96), 32, ["channel_moments", "normalize_channels"]),
        ((1, 2560, 32, 32), 32, ["channel_moments", "normalize_channels"]),  # groups of whole cache lines, but too few
        ((1, 320, 7, 8), 32, ["normalize"]),  # small
        ((1, 318, 64, 64), 6, ["moments_part", "moments_merge", "pointwise_2_0"]),  # no whole vec4s
    ],
)
def test_where_it_pays(sizes: tuple[int, ...], groups: int, shaders: list[str]) -> None:
    call = lowered(H200, "group_norm", (torch.empty(sizes, device="meta"), groups, None, None))
    assert [each.shader for each in call] == shaders
