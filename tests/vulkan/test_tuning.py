"""Costs that are fitted to a device: what they change, and that nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan import tuning
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.device_costs import (
    cpu_costs,
    cpu_rows,
    device_costs,
    forget_tuned,
    keep_tuned,
    tuned_costs,
)
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.product_kernels import TileKernel, tile_kernels, tile_nanoseconds
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.program import VulkanProgram

SHAPES = [
    ProductShape(rows, inner, columns, columns) for rows, inner, columns in ((196, 96, 24), (49, 240, 80), (7, 9, 4))
]
START = {"threads": 4.0, "fetch": 12.5, "multiply": 11.0, "store": 125.0, "start": 250.0, "broadcast": 20.0}
TRUE = replace(cpu_rows()[0], threads=4, fetch=40.0, multiply=3.0, store=300.0, start=4000.0, broadcast=5.0)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def predict(parameters, kernel, shape):
    return tile_nanoseconds(kernel, shape, replace(TRUE, **{**parameters, "threads": round(parameters["threads"])}))


def kernels_for(shape: ProductShape) -> list[TileKernel]:
    return tile_kernels(shape, TRUE, broadcasts=True)


def test_a_fit_finds_the_costs_that_times_were_made_of() -> None:
    measured = [
        tuning.Measured(shape, {kernel: tile_nanoseconds(kernel, shape, TRUE) for kernel in kernels_for(shape)})
        for shape in SHAPES
    ]
    fitted = tuning.fit(START, predict, measured)
    assert tuning.mistake(fitted, predict, measured) < 0.2 * tuning.mistake(START, predict, measured)
    for item in measured:
        chosen = min(item.times, key=lambda kernel: predict(fitted, kernel, item.shape))
        assert item.times[chosen] <= 1.1 * item.least
    assert fitted["threads"] == 4.0


def test_costs_that_decide_nothing_stay() -> None:
    """Times of one kernel a shape fit many costs; those of the start are as good as any."""
    kernel = kernels_for(SHAPES[0])[0]
    measured = [tuning.Measured(SHAPES[0], {kernel: predict(START, kernel, SHAPES[0])})]
    assert tuning.fit(START, predict, measured) == START


def test_kept_costs_are_read_and_forgotten(device: Device) -> None:
    cpu, gpu = replace(device.info, kind="cpu"), known_device("nvidia_h200")
    table = cpu_costs(cpu), device_costs(gpu)
    fitted = {"threads": 8.0, "fetch": 1.0, "multiply": 2.0, "store": 3.0, "start": 4.0, "broadcast": 5.0}
    assert keep_tuned(cpu, fitted) and tuned_costs(cpu) == fitted
    assert cpu_costs(cpu) == replace(table[0], **fitted) and isinstance(cpu_costs(cpu).threads, int)
    assert device_costs(gpu) == table[1]  # another device
    assert tuned_costs(replace(cpu, driver_version=cpu.driver_version + 1)) == {}  # another release of the driver
    assert forget_tuned(cpu) and not forget_tuned(cpu) and cpu_costs(cpu) == table[0]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"fetch": 1}', '{"threads": 2, "fetch": -1, "multiply": 1, "store": 1, "start": 1, "broadcast": 1}'],
)
def test_a_bad_file_is_not_used(device: Device, text: str, caplog: pytest.LogCaptureFixture) -> None:
    cpu = replace(device.info, kind="cpu")
    table = cpu_costs(cpu)
    path = device_file("costs", cpu, ".json")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    unread = replace(cpu, index=99)  # of the device itself it is remembered that there was no file
    assert cpu_costs(unread) == table and "is not used" in caplog.text


def test_gpus_choose_by_kept_costs() -> None:
    gpu = known_device("nvidia_h200")
    shape = ProductShape(49, 1152, 128, 128)
    before = choose_gpu_kernel(gpu, shape)
    costs = {name: float(getattr(device_costs(gpu), name)) for name in tuning.TUNED_ON_GPUS}
    keep_tuned(gpu, {**costs, "second_dispatch_nanoseconds": 1e9})
    assert before.parts > 1 == choose_gpu_kernel(gpu, shape).parts
    forget_tuned(gpu)
    assert choose_gpu_kernel(gpu, shape) == before


def test_bad_costs_change_kernels_and_tuning_brings_them_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay right whatever the costs are. Times of a busy machine say nothing: those that are fitted are made
    up."""
    if not device.info.is_cpu:
        pytest.skip("the costs of CPU drivers")
    x, model = torch.randn(150, 70), nn.Linear(70, 96).eval()

    def run() -> set[tuple[int | float, ...]]:
        program = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
        steps = [item.operation for item in program.profile([x])]
        return {step.specialization for step in steps if isinstance(step, Dispatch) and "product" in step.shader}

    before = run()
    # As if all workgroups were computed at once: the smallest are the best then.
    keep_tuned(device.info, {**START, "threads": 1e6})
    assert run() != before
    found = tuning.tune(device, 0.0, [(150, 70, 96)])
    assert found.kernels > 10
    shape = ProductShape(150, 18, 24, 24)
    times = {kernel: tile_nanoseconds(kernel, shape, TRUE) for kernel in kernels_for(shape)}
    monkeypatch.setattr(tuning, "_measure", lambda *_: [tuning.Measured(shape, times, dict(times))])
    found = tuning.tune(device, 0.0, [(150, 70, 96)])
    assert found.after["threads"] < 1e6
    keep_tuned(device.info, found.after)
    run()
    forget_tuned(device.info)
    assert run() == before
