"""Dispatches that wait for each other by a counter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import device_info
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine import executable as executable_module
from mobopt.runtimes.vulkan.engine import lane as lane_module
from mobopt.runtimes.vulkan.engine.chains import Chained, may_chain, plan_chain
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.hazards import Barrier, GpuOperation
from mobopt.runtimes.vulkan.engine.recording import Recordable
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Dispatch, Stream
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.runtimes.vulkan.kernels.device_costs import ahead_workgroups, chained_workgroups
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.push_constants import CHAIN_END, NO_LINK, Link

FLUSH, ORDER = Barrier(after_writes=True), Barrier(after_writes=False)


def step(workgroups: int, shader: str = "depthwise", texel_words: int = 0) -> Dispatch:
    return Dispatch(shader, (Binding(Storage(64), 0, 64, texel_words=texel_words),), (workgroups, 1, 1), 0)


def planned(steps: Sequence[GpuOperation], barriers: Sequence[Barrier | None], most: int) -> Chained:
    def is_chained(operation: GpuOperation) -> bool:
        return isinstance(operation, Dispatch) and may_chain(operation, most)

    return plan_chain(steps, barriers, is_chained, lambda storage: (id(storage), 0))


def test_each_waits_for_all_before_it() -> None:
    chained = planned([step(3), step(5), step(7), step(2)], [None, FLUSH, None, ORDER], 8)
    assert chained.barriers == [None] * 4
    assert chained.links == [Link(0, 0, 17), Link(0, 3, 17), Link(0, 3, 17), Link(3, 15, 17)]


def test_who_reads_what_was_rewritten_empties_its_cache_last() -> None:
    """Of what a dispatch reads and writes, a cache may have what was there before."""
    rewritten, other = Storage(64), Storage(64)

    def steps_of(read: Storage, written: Storage) -> Dispatch:
        target = Binding(written, 0, 64, reads=False, writes=True)
        return Dispatch("depthwise", (Binding(read, 0, 64), target), (3, 1, 1), 0)

    in_place = [step(3), steps_of(rewritten, rewritten), steps_of(rewritten, other), steps_of(other, rewritten)]
    chained = planned(in_place, [None, FLUSH, FLUSH, FLUSH], 8)
    assert chained.links == [Link(0, 0, 12), Link(0, 3, 12), Link(6, 6, 12), Link(6, 9, 12)]
    elsewhere = [step(3), steps_of(rewritten, other), steps_of(other, rewritten), step(3)]
    chained = planned(elsewhere, [None, FLUSH, FLUSH, FLUSH], 8)
    assert chained.links == [Link(0, 0, 12), Link(0, 3, 12), Link(3, 6, 12), Link(6, 9, 12)]


def test_wide_dispatches_copies_and_kernels_without_a_twin_keep_their_barriers() -> None:
    copy = Copy(Binding(Storage(16), 0, 16), Binding(Storage(16), 0, 16, reads=False, writes=True))
    for other in (step(9), copy, step(1, "sort"), step(1, texel_words=4)):
        steps = [step(3), step(5), other, step(7), step(2)]
        chained = planned(steps, [None, FLUSH, ORDER, FLUSH, FLUSH], 8)
        # The writes of the first one have no other barrier any more that flushes them.
        assert chained.barriers == [None, None, FLUSH, FLUSH, None]
        # Nobody waits for the second one, whom the barrier is after, so it doesn't arrive.
        assert chained.links == [Link(0, 0, 12), Link(0, 3, 0), NO_LINK, Link(0, 0, 12), Link(3, 10, 12)]


def test_a_group_with_one_that_can_not_wait_has_barriers() -> None:
    barriers = [None, FLUSH, None, ORDER]
    chained = planned([step(3), step(5), step(9), step(2)], barriers, 8)
    assert chained == Chained(barriers, [NO_LINK] * 4)


def test_more_arrivals_than_a_counter_holds() -> None:
    barriers = [None, FLUSH]
    assert planned([step(2**30), step(2**30)], barriers, 2**31) == Chained(barriers, [NO_LINK] * 2)


def able(driver: int, vendor: int, *switches: str) -> DeviceInfo:
    info = device_info("discrete", max_push_constants_size=256)
    features = frozenset({"device_memory_model"})
    return replace(info, driver_id=driver, vendor_id=vendor, cores=30, features=features, switches=frozenset(switches))


def test_which_devices_chain() -> None:
    nvidia = able(4, 0x10DE)
    assert chained_workgroups(nvidia) == 300
    assert ahead_workgroups(nvidia) == 60
    assert ahead_workgroups(able(4, 0x10DE, "no-chains")) == 0
    assert chained_workgroups(replace(nvidia, driver_id=23)) == 0  # Mesa's NVK was not tried
    assert chained_workgroups(replace(nvidia, features=frozenset())) == 0
    assert chained_workgroups(replace(nvidia, limits=replace(nvidia.limits, max_push_constants_size=128))) == 0
    assert chained_workgroups(able(4, 0x10DE, "no-chains")) == 0
    assert chained_workgroups(able(1, 0x1002)) == 0
    assert chained_workgroups(able(1, 0x1002, "emulated-chains")) > 2**20


@pytest.fixture
def emulating(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that counts, with barriers all the same, and may stop to."""
    if device.info.limits.max_push_constants_size < CHAIN_END:
        pytest.skip(f"{device.info.name} has push constants of {device.info.limits.max_push_constants_size} bytes")
    switches = frozenset({"emulated-chains", "no-texels", "shared-products"})
    monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    monkeypatch.setattr(device, "chains", True)
    return device


class Net(nn.Module):
    """Most kinds of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 13, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(13, 13, 3, padding=1, groups=13)
        self.last = nn.Conv2d(13, 29, 1)
        self.attention = nn.MultiheadAttention(29, 1, batch_first=True)
        self.norm = nn.LayerNorm(29)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.sigmoid(self.first(x))
        rows = self.last(self.depthwise(x) + x).flatten(2).transpose(1, 2)
        rows = self.norm(rows + self.attention(rows, rows, rows, need_weights=False)[0])
        return rows, torch.softmax(rows.mean(1), 1)


def built(device: Device) -> tuple[VulkanProgram, list[torch.Tensor], list[list[torch.Tensor]]]:
    """A net, inputs, and what it computes with barriers alone."""
    torch.manual_seed(5)
    inputs = [torch.randn(2, 3, 23, 17) for _ in range(3)]
    program = program_from_script_module(torch.jit.trace(Net().eval(), inputs[0]))
    info = device.info
    device.info = replace(info, switches=info.switches | {"no-chains"})
    try:
        expected = [VulkanProgram(program, device)(x) for x in inputs]
    finally:
        device.info = info
    return VulkanProgram(program, device), inputs, expected


def test_results_are_those_of_barriers(emulating: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Chained] = []

    def plan(*args: object) -> Chained:
        plans.append(plan_chain(*args))  # type: ignore[arg-type]
        return plans[-1]

    monkeypatch.setattr(lane_module, "plan_chain", plan)
    net, inputs, expected = built(emulating)
    for _ in range(3):  # the counter must be zero again
        for x, results in zip(inputs, expected, strict=True):
            assert all(map(torch.equal, net(x), results))
    assert emulating.chains
    assert sum(link.arrivals_before > 0 for link in plans[0].links) >= 5


def test_emulation_keeps_the_barriers(emulating: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Recordable] = []
    record = lane_module.CommandPool.record

    def noted(pool: lane_module.CommandPool, run: Recordable, *queries: object) -> object:
        runs.append(run)
        return record(pool, run, *queries)

    monkeypatch.setattr(lane_module.CommandPool, "record", noted)
    net, inputs, _ = built(emulating)
    plain = runs[0].barriers
    runs.clear()
    net(inputs[0])
    assert list(runs[0].barriers) == list(plain) and any(plain)


def test_who_waits_in_vain_gives_up_and_computes_with_barriers(
    emulating: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(*args: object) -> Chained:
        chained = plan_chain(*args)  # type: ignore[arg-type]
        waits = [link.arrivals_before + 10**6 if link.arrivals_before else 0 for link in chained.links]
        late = [replace(link, arrivals_before=count) for link, count in zip(chained.links, waits, strict=True)]
        return Chained(chained.barriers, late)

    monkeypatch.setattr(lane_module, "plan_chain", plan)
    net, inputs, expected = built(emulating)
    with caplog.at_level(logging.WARNING, "mobopt.vulkan"):
        for x, results in zip(inputs, expected, strict=True):
            assert all(map(torch.equal, net(x), results))
    assert not emulating.chains
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not start workgroups in the order of their dispatches" in caplog.text


class Rows(nn.Module):
    """Products of a row, weights of which are read ahead: in one turn and in several, and of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep, self.narrow = nn.Linear(37, 2309), nn.Linear(2309, 41), nn.Linear(41, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = torch.relu(self.deep(torch.tanh(self.wide(x))))
        return self.narrow(deep) + nn.functional.linear(deep, deep.expand(3, 41) + 1)


@pytest.mark.parametrize("rows", [1, 3])
def test_weights_that_are_read_ahead(emulating: Device, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    seen: list[Dispatch] = []

    def bound(dispatch: Dispatch, most: int) -> bool:
        seen.append(dispatch)
        return may_chain(dispatch, most)

    monkeypatch.setattr(executable_module, "may_chain", bound)
    torch.manual_seed(6)
    model, inputs = Rows().eval(), [torch.randn(rows, 37) for _ in range(3)]
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, inputs[0])), emulating)
    for x in [*inputs, *inputs]:
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=2e-5)
    ahead = [step.specialization[17] for step in seen if step.shader == "product_rows"]
    assert ahead == [1, 1, 1, 0]  # the last one's weights are computed


def test_how_many_workgroups_chain() -> None:
    assert may_chain(step(8), 8) and not may_chain(step(9), 8)
    assert may_chain(step(8, "product_rows"), 8) and not may_chain(step(9, "product_rows"), 8)
    assert not may_chain(step(8, "attention"), 8)  # it has no twin


def test_a_stream_is_not_chained_unless_it_says_so() -> None:
    assert Stream().chained_workgroups == 0
    assert not may_chain(step(1), 0)
