"""The kernels for GPUs on software drivers: every block, with its inner dimension divided or not, and their choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from products import check_product

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Value
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation, clamp
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import (
    BLOCKS,
    SharedKernel,
    choose_gpu_kernel,
    core_count,
    depthwise_division,
)
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

# input, filter, stride, padding, dilation, groups
CASES = [
    ((1, 3, 13, 11), (16, 3, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((2, 37, 6, 5), (41, 37, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((1, 70, 9, 9), (35, 70, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 16, 9, 7), (24, 8, 3, 3), (1, 1), (2, 1), (2, 1), 2),
    ((1, 130, 1, 1), (20, 130, 1, 1), (1, 1), (0, 0), (1, 1), 1),
]
FEW = CASES[::3]
"""Those of the default run: an odd layer with strides, and groups with dilations."""
each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in FEW else pytest.mark.sweep) for case in CASES]
)


WITHOUT_TEAMS, WITH_TEAMS = BLOCKS[0], SharedKernel(32, 8, rows=8, columns=1, inner_block=8, teams=4)


def fitting(device, kernels=(WITHOUT_TEAMS, WITH_TEAMS)):
    """The kernels that the device can run; the others run on devices with more shared memory."""
    found = [kernel for kernel in kernels if kernel.fits(device.info)]
    assert found
    return found


def force(monkeypatch, kernel):
    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda device: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", lambda device, shape: kernel)


@each_case
def test_convolution(device, monkeypatch, case):
    source, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][0])
    for kernel in fitting(device, BLOCKS):
        force(monkeypatch, kernel)
        check_product(device, "aten::conv2d", source, weight, bias, *case[2:], constants=(1, 2))


each_way = pytest.mark.parametrize(("parts", "joins"), [(2, False), (7, False), (2, True), (7, True)])
"""Into how many parts, and whether the last workgroup to arrive adds them up."""


@each_case
@each_way
def test_convolution_in_parts(device, monkeypatch, parts, joins, case):
    source, weight, bias = torch.randn(case[0]), torch.randn(case[1]), torch.randn(case[1][0])
    for kernel in fitting(device):
        force(monkeypatch, replace(kernel, parts=parts, joins=joins))
        check_product(device, "aten::conv2d", source, weight, bias, *case[2:], constants=(1, 2))


@pytest.mark.parametrize(("parts", "joins"), [(1, False), (2, False), (2, True)])
def test_epilogue(device, monkeypatch, parts, joins):
    source, weight, bias = torch.randn(1, 40, 5, 7), torch.randn(22, 40, 3, 3), torch.randn(22)
    residual = torch.randn(1, 22, 5, 7)
    epilogue = Epilogue(clamp(0.0, 6.0), Value.of_tensor(torch.float32, (1, 22, 5, 7)), Activation(Opcode.RELU))
    expected = torch.relu(torch.conv2d(source, weight, bias, padding=1).clamp(0, 6) + residual)
    for kernel in fitting(device):
        force(monkeypatch, replace(kernel, parts=parts, joins=joins))
        check_product(
            device, "aten::conv2d", source, weight, bias, 1, 1, constants=(1, 2), epilogue=epilogue, expected=expected,
            residual=residual,
        )  # fmt: skip


@pytest.mark.parametrize(("parts", "joins"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("sizes", [((3, 9, 70), (3, 70, 21)), ((2, 1, 301), (2, 301, 8)), ((1, 33, 6), (1, 6, 130))])
def test_batches(device, monkeypatch, parts, joins, sizes):
    first, second = torch.randn(sizes[0]), torch.randn(sizes[1])
    for kernel in fitting(device, (WITHOUT_TEAMS, WITH_TEAMS, BLOCKS[-1])):
        force(monkeypatch, replace(kernel, parts=parts, joins=joins))
        check_product(device, "aten::bmm", first, second)


class _Narrow(torch.nn.Module):
    """Long sums, some of them independent of each other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(37, 13, 3, padding=1), torch.nn.Conv2d(37, 13, 1)
        self.last = torch.nn.Linear(13 * 7 * 5, 11)

    def forward(self, x):
        return self.last((torch.relu(self.first(x)) * self.second(x)).flatten(1))


def test_joined_parts_are_the_same_in_every_run(device, monkeypatch):
    """Counters are zero again after each call, memory is full of NaN before it, and the last workgroup may be any."""
    torch.manual_seed(0)
    model, x = _Narrow().eval(), torch.randn(2, 37, 7, 5)
    program = program_from_script_module(torch.jit.script(model))
    found = {}
    for joins in (True, False):
        force(monkeypatch, replace(BLOCKS[0], parts=4, joins=joins))
        runner = VulkanProgram(program, device)
        found[joins], repeats = runner(x), [runner(x) for _ in range(200)]
        assert all(torch.equal(found[joins], again) for again in repeats)
        device.poisons = True
        try:
            assert torch.equal(runner(x), found[joins])
        finally:
            device.poisons = False
        runner.close()
    assert torch.equal(found[True], found[False])
    torch.testing.assert_close(found[True], model(x), rtol=1e-4, atol=1e-5)


def test_calls_in_flight_have_counters_of_their_own(device, monkeypatch):
    torch.manual_seed(0)
    model, inputs = _Narrow().eval(), [torch.randn(2, 37, 7, 5) for _ in range(24)]
    force(monkeypatch, replace(BLOCKS[0], parts=7, joins=True))
    runner = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
    expected = [runner(x) for x in inputs]
    futures = [runner.submit("forward", [x]) for x in inputs]
    assert all(torch.equal(future.result(), alone) for future, alone in zip(futures, expected, strict=True))
    runner.close()


def test_joined_parts_are_a_dispatch_less(device):
    h200 = known_device("nvidia_h200")
    shape = ProductShape(49, 512, 128, 128)
    few = replace(h200, limits=replace(h200.limits, max_storage_buffers=6))
    forbidden = replace(h200, switches=frozenset({"no-joins"}))
    chosen = [choose_gpu_kernel(device, shape) for device in (h200, forbidden, few)]
    assert [isinstance(kernel, SharedKernel) and kernel.joins for kernel in chosen] == [True, False, False]


def test_some_block_fits_every_device():
    assert BLOCKS[0].invocations <= 128
    assert BLOCKS[0].shared_bytes <= 16384


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_divided_evenly(block):
    assert block.block_rows % block.rows == 0
    assert block.block_columns % block.columns == 0
    assert block.inner_block % block.teams == 0
    assert block.invocations % block.inner_block == 0
    assert block.invocations % block.block_columns == 0


def a_gpu(device):
    limits = replace(
        device.info.limits, max_compute_shared_memory_size=49152, max_compute_work_group_invocations=1024,
        max_compute_work_group_size=(1024, 1024, 64),
    )  # fmt: skip
    return replace(device.info, kind="discrete", vendor_id=0x10DE, cores=0, limits=limits)


def test_choice(device):
    gpu = a_gpu(device)

    def choose(rows, inner, columns):
        return choose_gpu_kernel(gpu, ProductShape(rows, inner, columns, columns))

    large = choose(4096, 1024, 1024)
    assert (large.block_rows, large.parts) == (128, 1)
    assert choose(1, 320, 250).block_rows == 1
    assert (
        choose(49, 1152, 128).parts > 1
    )  # 512 channels, 3x3, 7x7 pixels: too few blocks for so long an inner dimension
    small = choose(49, 40, 240)
    assert small.block_rows <= 32
    assert small.parts == 1


def test_choice_respects_limits(device):
    gpu = a_gpu(device)
    least = replace(
        gpu, limits=replace(gpu.limits, max_compute_shared_memory_size=16384, max_compute_work_group_invocations=128)
    )
    for rows in (1, 49, 4096):
        assert choose_gpu_kernel(least, ProductShape(rows, 512, 512, 512)).fits(least)


def test_choice_respects_the_number_of_workgroups(device):
    gpu = a_gpu(device)
    narrow = replace(gpu, limits=replace(gpu.limits, max_compute_work_group_count=(65535, 10, 65535)))
    shape = ProductShape(1000, 40, 64, 64)
    assert choose_gpu_kernel(gpu, shape).groups(shape)[1] > 10
    assert choose_gpu_kernel(narrow, shape).groups(shape)[1] <= 10


def test_depthwise_division(device):
    gpu = a_gpu(device)
    assert depthwise_division(gpu, 1120, 112, 80, (3, 3)) == (2, 2, 1)
    assert depthwise_division(gpu, 7, 7, 240, (3, 3)) == (1, 4, 3)
    assert depthwise_division(gpu, 1, 100, 240, (1, 9)) == (1, 4, 1)
    assert depthwise_division(gpu, 100, 1, 240, (9, 1)) == (1, 1, 8)


def test_core_count(device):
    gpu = a_gpu(device)
    assert core_count(replace(gpu, cores=7)) == 7
    assert core_count(gpu) > core_count(replace(gpu, kind="integrated"))
