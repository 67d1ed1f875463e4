"""How many bytes a dispatch reads and writes, and what profiles make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan import device_roofs
from mobopt.runtimes.vulkan.device_roofs import DeviceRoofs, roofs_of
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.profiling import OperationTime
from mobopt.runtimes.vulkan.engine.stream import Dispatch, moved_bytes
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.tools.profiling import layers_of, median_times, shaders_of

ROOFS = DeviceRoofs(1e10, 4e10, 5e-5)


def profiled(model: nn.Module, device: Device, *inputs: torch.Tensor) -> list[OperationTime]:
    return VulkanProgram(program_from_script_module(torch.jit.script(model.eval())), device).profile(inputs)


def dispatches(times: list[OperationTime]) -> list[Dispatch]:
    return [item.operation for item in times if isinstance(item.operation, Dispatch)]


class Joined(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.relu(), x.exp(), x.sin()], 1)


class Broadcast(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_elements_count_once(device: Device) -> None:
    (only,) = dispatches(profiled(Broadcast(), device, torch.rand(7, 9), torch.rand(9)))
    assert moved_bytes(only) == (4 * (63 + 9), 4 * 63)
    assert (only.call.operators, only.call.flops) == (("aten::add.Tensor",), 63)


def test_a_slice_of_a_storage_counts_its_own_elements(device: Device) -> None:
    found = dispatches(profiled(Joined(), device, torch.rand(1, 5, 6, 7)))
    assert [moved_bytes(one)[1] for one in found if one.call.flops] == [4 * 210] * 3


def test_a_table_counts_what_is_taken_of_it(device: Device) -> None:
    times = profiled(nn.Embedding(5000, 16), device, torch.tensor([[3, 4999, 7]]))
    read = sum(moved_bytes(one)[0] for one in dispatches(times))
    assert read == 3 * 16 * 4 + 3 * 4  # and the places, which are int32 on the device


def test_a_fused_layer_lists_all_of_its_nodes(device: Device) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return torch.relu(y)

    times = profiled(Block(), device, torch.rand(1, 4, 9, 8))
    layer = next(layer for layer in layers_of(times, ROOFS) if "conv2d" in layer.title)
    assert layer.operators == ("aten::conv2d", "aten::relu") and layer.title.endswith(" + relu")
    assert len(layer.source) >= 2  # the convolution's line in torch, and the user's
    assert layer.work.flops == 2 * 8 * 42 * 36 + 8 * 42
    assert layer.work.bytes_written >= 4 * 8 * 42


def test_medians_and_turns(device: Device) -> None:
    program = VulkanProgram(program_from_script_module(torch.jit.script(Joined())), device)
    x = torch.rand(1, 4, 3, 3)
    runs = [[replace(item, duration_ns=duration) for item in program.profile([x])] for duration in (900, 10, 30, 20)]
    times, count = median_times(runs)
    assert count == 3 and {item.duration_ns for item in times} == {20}  # the first one warms up
    assert [item.start_ns for item in times] == list(range(0, 20 * len(times), 20))
    again = [*times, *times]  # as in a loop of the model
    once, twice = (sum(layer.work.flops for layer in layers_of(run, ROOFS)) for run in (times, again))
    assert twice == 2 * once > 0
    assert sum(use.work.flops for use in shaders_of(again, ROOFS)) == pytest.approx(twice, abs=len(again))


def test_roofs_are_measured_once(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> None:
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(device_roofs, "_COPIED_BYTES", (1 << 20, 2 << 20))
    monkeypatch.setattr(device_roofs, "_PRODUCT_ROWS", (32, 64))
    monkeypatch.setattr(device_roofs, "_SECONDS", 0.0)
    found = roofs_of(device)
    assert 1e7 < found.bytes_per_second < 1e14 and 1e6 < found.flops_per_second < 1e16
    assert 1e-7 < found.dispatch_seconds < 1e-1
    other = DeviceRoofs(found.bytes_per_second * 2, found.flops_per_second / 2, found.dispatch_seconds / 2)
    monkeypatch.setattr(device_roofs, "measure_roofs", lambda device: other)
    assert roofs_of(device) == found
    best = replace(other, flops_per_second=found.flops_per_second)
    assert roofs_of(device, again=True) == best == roofs_of(device)
    device_file("roofs", device.info, ".json").write_text("[1")
    monkeypatch.setattr(device_roofs, "measure_roofs", lambda device: found)
    assert roofs_of(device) == found
