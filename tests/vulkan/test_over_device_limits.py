"""What exceeds a limit of the device runs on the CPU and says so, or is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from applied import Applied

from mobopt.errors import UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram

BYTES = 4096


@pytest.fixture
def small(device, monkeypatch):
    """A device whose buffers hold 1,024 elements."""
    limits = replace(device.info.limits, max_storage_buffer_range=BYTES)
    monkeypatch.setattr(device, "info", replace(device.info, limits=limits))
    return device


def program(device, function, *inputs, fallback="cpu"):
    return VulkanProgram(program_from_script_module(torch.jit.trace(Applied(function), inputs)), device, fallback)


def check(device, function, *inputs):
    """Compare two runs with torch; returns the dispatches and what runs on the CPU, each by its operator."""
    made = program(device, function, *inputs)
    kept = [x.clone() for x in inputs]
    for _ in range(2):
        torch.testing.assert_close(made.run("forward", inputs), function(*inputs))
    assert all(torch.equal(x, y) for x, y in zip(inputs, kept, strict=True))
    report = made.plan_report(inputs)
    made.close()
    return report.dispatches, [fallback.op.removeprefix("aten::") for fallback in report.fallbacks], report.fallbacks


def test_the_calls_of_a_large_tensor_run_on_the_cpu(small):
    x = torch.randn(2000)
    dispatches, hosted, reasons = check(small, lambda x: (x.relu() * 2).reshape(40, 50).sum(0).neg(), x)
    assert (dispatches, hosted) == (1, ["relu", "mul.Scalar", "reshape", "sum.dim_IntList"])
    assert "a tensor of 2000 takes 8000 bytes, but the maxStorageBufferRange of" in str(reasons[0])
    assert str(reasons[0]).endswith("is 4096")


def test_large_inputs_and_results_never_reach_the_device(small):
    x, y = torch.randn(2000), torch.randn(3)
    assert check(small, lambda x: x.relu() + 1, x)[:2] == (0, ["relu", "add.Scalar"])
    assert check(small, lambda x, y: (x.tanh(), y.tanh()), x, y)[:2] == (1, ["tanh"])
    assert check(small, lambda x, y: (x.flip(0), y * 2), x, y)[:2] == (1, ["flip"])


def test_large_tensors_between_calls_of_the_device(small):
    """What is made large stays on the host while the device computes something else."""

    def function(x, y):
        wide = x.repeat(60)
        return wide.sum() + (y.exp() * x.sum()).sum() + wide.max()

    _, hosted, _ = check(small, function, torch.randn(40), torch.randn(7))
    assert hosted == ["repeat", "sum", "max"]


def test_large_weights(small):
    weight = torch.randn(50, 40)
    assert check(small, lambda x: functional.linear(x, weight).relu() + 1, torch.randn(3, 40))[1] == ["linear"]


def test_what_a_kernel_needs_beside_its_operands_counts(small):
    """Three channels are padded to four on the device, which no longer fits; the activation was fused."""
    weight = torch.randn(3, 3, 1, 1)
    dispatches, hosted, reasons = check(
        small, lambda x: functional.conv2d(x, weight).relu().mean(), torch.randn(1, 3, 18, 18)
    )
    assert hosted == ["_convolution", "relu"]
    assert dispatches > 0
    assert "5184 bytes" in str(reasons[0])


def test_concatenations_that_are_too_large(small):
    def function(x):
        return torch.cat([x.relu(), x.tanh(), x + 1, x - 1], 1).sum((2, 3)) * 2

    assert check(small, function, torch.randn(1, 4, 15, 16))[1] == ["cat", "sum.dim_IntList"]


def test_refused_where_the_cpu_may_not_compute(small):
    x = torch.randn(2000)
    made = program(small, lambda x: x.relu().sum(), x, fallback="error")
    with pytest.raises(UnsupportedError, match=r"aten::relu of float32.* 2000 takes 8000 bytes.*aten::sum of float32"):
        made.run("forward", [x])
    weight = torch.randn(3, 3, 1, 1)
    image = torch.randn(1, 3, 18, 18)
    made = program(small, lambda x: functional.conv2d(x, weight).sum(), image, fallback="error")
    with pytest.raises(UnsupportedError, match=r"aten::_convolution of float32.* 5184 bytes"):
        made.run("forward", [image])


def test_few_workgroups(device, monkeypatch):
    """A device that counts no further than a few workgroups in a dimension: products and all else are divided."""
    limits = replace(device.info.limits, max_compute_work_group_count=(65535, 3, 30))
    monkeypatch.setattr(device, "info", replace(device.info, limits=limits))
    left, right = torch.randn(101, 7, 3), torch.randn(101, 3, 5)
    assert check(device, lambda x, y: x @ y, left, right)[1] == []
    weight, bias = torch.randn(8, 3, 3, 3), torch.randn(8)
    image = torch.randn(2, 3, 67, 71)
    assert check(device, lambda x: functional.conv2d(x, weight, bias, padding=1).relu(), image)[1] == []
    whole = [torch.randint(-2, 3, (rows, 40_000)).float() for rows in (700, 3)]  # sums of whole numbers are exact
    assert check(device, lambda x, y: functional.linear(x, y), *whole)[1] == []


def test_integers_of_64_bits_take_twice_the_room(small):
    """800 fit with 32 bits, and not with 64."""
    x = torch.arange(800)
    assert check(small, lambda x: (x * 2).flip(0), x)[1] == []
    _, hosted, reasons = check(small, lambda x: (x * 2).flip(0) + 1, x * 2**40)
    assert hosted == ["mul.Scalar", "flip", "add.Scalar"]
    assert "6400 bytes, but the maxStorageBufferRange of" in str(reasons[0])
