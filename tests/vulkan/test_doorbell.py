"""Calls that are submitted before the host has written their inputs."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from device_infos import device_info
from engine_shaders import chain, scale, tensor
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.doorbell import Doorbell, DoorbellPlan, plan_doorbell
from mobopt.runtimes.vulkan.engine.exchange import DeviceSlot
from mobopt.runtimes.vulkan.engine.hazards import Barrier
from mobopt.runtimes.vulkan.engine.recording import Submission
from mobopt.runtimes.vulkan.engine.staging import stage
from mobopt.runtimes.vulkan.engine.stream import HostCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import StorageKind
from mobopt.runtimes.vulkan.kernels.device_costs import doorbell_bytes
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.push_constants import CHAIN_END

FLUSH = Barrier(after_writes=True)


def planned(
    stream: Stream, least: int | None, arrays: tuple[int, ...] = (), copies: bool = False
) -> DoorbellPlan | None:
    staged = stage(stream, stage_inputs=copies, stage_outputs=False, array_inputs=arrays)
    return plan_doorbell(device_info("discrete"), staged, least)


def test_who_writes_enough_rings() -> None:
    stream = chain(2, 16)
    assert planned(stream, 65) is None and planned(stream, None) is None
    assert planned(stream, 0, arrays=(0,)) is None  # nothing is written
    plan = planned(stream, 64)
    assert plan is not None and plan.first_reader == 0
    operations, barriers = plan.before(stream.operations, [None, FLUSH])  # type: ignore[arg-type]
    assert operations == [plan.dispatch, *stream.operations]
    assert barriers == [None, FLUSH, FLUSH]


def test_what_does_not_need_the_inputs_does_not_wait() -> None:
    stream = chain(1, 16)
    constant, made = tensor(StorageKind.CONSTANT, 16), tensor(StorageKind.TEMPORARY, 16)
    stream.operations.insert(0, scale(constant, made, 2.0))
    plan = planned(stream, 0)
    assert plan is not None and plan.first_reader == 1
    assert plan.before(stream.operations, [None, None])[1] == [None, None, FLUSH]  # type: ignore[arg-type]


def test_a_copy_to_memory_of_the_device_waits() -> None:
    plan = planned(chain(1, 16), 0, copies=True)
    assert plan is not None and plan.first_reader == 0


def test_a_host_that_computes_first_has_written_its_inputs() -> None:
    stream = chain(1, 16)
    stream.operations.insert(0, HostCall(run=lambda: ()))
    assert planned(stream, 0) is None


def named(name: str, *switches: str, driver: int = 4) -> DeviceInfo:
    info = device_info("discrete")
    return replace(info, name=name, driver_id=driver, vendor_id=0x10DE, switches=frozenset(switches))


def test_which_devices_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert doorbell_bytes(named("NVIDIA H200")) == doorbell_bytes(named("NVIDIA H100 80GB HBM3")) == 100_000
    assert doorbell_bytes(named("NVIDIA A100-SXM4-80GB")) is None  # its writes over the bus have no order
    assert doorbell_bytes(named("NVIDIA H200", driver=23)) is None
    assert doorbell_bytes(named("NVIDIA H200", "no-doorbells")) is None
    assert doorbell_bytes(named("any", "emulated-doorbells")) == 0
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert doorbell_bytes(named("NVIDIA GH200 480GB")) is None  # two ways lead to it


class Net(nn.Module):
    """Takes an image and a row of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 13, 3, stride=2), nn.Conv2d(13, 7, 1)
        self.table = nn.Embedding(11, 7)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).flatten(2) + self.table(numbers).sum(1).unsqueeze(2)


@pytest.fixture(params=["counters", "barriers"])
def waiting(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device on which calls wait for the host."""
    switches = {"emulated-doorbells"}
    if request.param == "counters":
        if device.info.limits.max_push_constants_size < CHAIN_END:
            pytest.skip(f"{device.info.name} has push constants of {device.info.limits.max_push_constants_size} bytes")
        switches |= {"emulated-chains", "no-texels", "shared-products"}
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset(switches)))
    monkeypatch.setattr(device, "chains", True)
    return device


@pytest.fixture
def net(waiting: Device) -> Iterator[tuple[VulkanProgram, Net]]:
    torch.manual_seed(7)
    model = Net().eval()
    program = VulkanProgram(program_from_script_module(torch.jit.script(model)), waiting)
    yield program, model
    program.close()


def inputs(seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 23, 17, generator=made), torch.randint(11, (2, 5), generator=made)


def is_right(net: tuple[VulkanProgram, Net], seed: int) -> bool:
    program, model = net
    x, numbers = inputs(seed)
    with torch.no_grad():
        return torch.allclose(program(x, numbers), model(x, numbers), rtol=0, atol=1e-5)


@pytest.fixture
def order(net: tuple[VulkanProgram, Net], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens in which order, from the second call on."""
    seen: list[str] = []
    for kind, name in ((Submission, "begin"), (DeviceSlot, "write"), (Doorbell, "ring")):
        known = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given, known=known, name=name: (seen.append(name), known(*given))[1])
    assert is_right(net, 0)
    seen.clear()
    return seen


def test_results_are_right(net: tuple[VulkanProgram, Net], waiting: Device) -> None:
    assert all(is_right(net, seed) for seed in range(40))
    assert waiting.chains


EARLY, ORDINARY = ["begin", "write", "write", "ring"], ["write", "write", "ring", "begin"]


def test_the_device_waits_while_the_host_writes(net: tuple[VulkanProgram, Net], order: list[str]) -> None:
    assert is_right(net, 1)
    assert order in (EARLY, EARLY + ORDINARY)  # a driver that computes on the CPU may give up soon


def test_beside_another_call_the_inputs_are_written_first(
    net: tuple[VulkanProgram, Net], order: list[str], waiting: Device
) -> None:
    waiting.in_use.stay()
    with waiting.in_use.leaving():
        assert is_right(net, 1)
    assert order == ORDINARY


def test_a_host_that_rings_late_computes_anew(
    net: tuple[VulkanProgram, Net], order: list[str], monkeypatch: pytest.MonkeyPatch, waiting: Device
) -> None:
    write = DeviceSlot.write

    def slowly(slot: DeviceSlot, values: Tensor) -> None:
        time.sleep(0.5)
        write(slot, values)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceSlot, "write", slowly)
        assert is_right(net, 3)
    assert order == EARLY + ORDINARY
    assert waiting.chains  # dispatches that wait for the one that gave up had not
    assert all(is_right(net, seed) for seed in range(4, 8))


def test_an_interrupt_while_the_host_writes(net: tuple[VulkanProgram, Net], monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right(net, 0)

    def interrupted(slot: DeviceSlot, values: Tensor) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeviceSlot, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net[0](*inputs(1))
    assert all(is_right(net, seed) for seed in range(2, 6))


def test_profiles_do_not_wait(net: tuple[VulkanProgram, Net], order: list[str]) -> None:
    if "timestamps" not in net[0].device.info.features:
        pytest.skip("there are no timestamps")
    times = net[0].profile(inputs(1))
    assert times and "ring" not in order and not any("host" in str(one) for one in times)
