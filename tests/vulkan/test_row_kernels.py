"""Products of a few rows, by the kernel that reads factors straight from memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from products import check_product

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation, clamp
from mobopt.runtimes.vulkan.kernels.device_costs import core_count, device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import GpuKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import _SHARE_AHEAD, MOST_ROWS, RowKernel, _resident, row_kernels
from mobopt.shaders.enumerations import Opcode

H200 = known_device("nvidia_h200")
ALL = [*row_kernels(H200, ProductShape(1, 100, 100, 100, is_plain=True))]
SMALL = [RowKernel(1, 4, 8, 1), RowKernel(1, 8, 16, 4), RowKernel(2, 4, 8, 2), RowKernel(4, 16, 4, 1)]

Force = Callable[[GpuKernel], None]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Force:
    """Has every product be computed by one kernel."""

    def forced(kernel: GpuKernel) -> None:
        monkeypatch.setattr(product_kernels, "use_shared_memory", lambda device: True)
        monkeypatch.setattr(product_kernels, "choose_gpu_kernel", lambda device, shape: kernel)

    return forced


def _operands(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * inner + columns)
    return [torch.randn(size, generator=generator).to(dtype) for size in ((rows, inner), (columns, inner), (columns,))]


@pytest.mark.parametrize("kernel", SMALL, ids=str)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 301, 37), (2, 70, 9), (3, 129, 130), (5, 3, 1)])
def test_linear(device: Device, force: Force, kernel: RowKernel, rows: int, inner: int, columns: int) -> None:
    force(kernel)
    check_product(device, "aten::linear", *_operands(rows, inner, columns), constants=(1, 2))


@pytest.mark.parametrize("kernel", ALL, ids=str)
@pytest.mark.parametrize("rows", [1, pytest.param(MOST_ROWS, marks=pytest.mark.sweep)])
def test_every_block(device: Device, force: Force, kernel: RowKernel, rows: int) -> None:
    kernel = replace(kernel, rows=rows)
    if not kernel.fits(device.info):
        pytest.skip("larger than this device's workgroups")
    force(kernel)
    check_product(device, "aten::linear", *_operands(rows, 1031, 67), constants=(1, 2))


@pytest.mark.parametrize("kernel", SMALL, ids=str)
def test_batches(device: Device, force: Force, kernel: RowKernel) -> None:
    force(kernel)
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(3, 2, 70, generator=generator), torch.randn(3, 70, 21, generator=generator)
    check_product(device, "aten::bmm", first, second)


@pytest.mark.parametrize("kernel", SMALL, ids=str)
def test_epilogue(device: Device, force: Force, kernel: RowKernel) -> None:
    force(kernel)
    source, weight, bias = _operands(3, 70, 22)
    residual = torch.randn(3, 22, generator=torch.Generator().manual_seed(2))
    epilogue = Epilogue(clamp(0.0, 6.0), Value.of_tensor(torch.float32, (3, 22)), Activation(Opcode.RELU))
    expected = torch.relu(torch.nn.functional.linear(source, weight, bias).clamp(0, 6) + residual)
    check_product(
        device, "aten::linear", source, weight, bias, constants=(1, 2), epilogue=epilogue, expected=expected,
        residual=residual,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(device: Device, force: Force, dtype: torch.dtype) -> None:
    force(SMALL[1])
    check_product(device, "aten::linear", *_operands(1, 130, 37, dtype), constants=(1, 2))


def test_what_is_not_finite_stays_in_its_column(device: Device, force: Force) -> None:
    """Invocations read factors of lines and columns that don't exist as zeros, and values of such lines too."""
    force(RowKernel(2, 8, 16, 2))
    source, weight, bias = _operands(2, 37, 13)
    source[0, 36], weight[12, 5], weight[11, 36] = torch.inf, torch.inf, -torch.inf
    check_product(device, "aten::linear", source, weight, bias, constants=(1, 2))


def test_they_are_chosen_for_few_rows() -> None:
    def chosen(rows: int, **changes: object) -> GpuKernel:
        shape = ProductShape(rows, 192, 768, 768, is_plain=True)
        return choose_gpu_kernel(H200, replace(shape, **changes))  # type: ignore[arg-type]

    assert isinstance(chosen(1), RowKernel)
    assert chosen(MOST_ROWS).group_rows == MOST_ROWS
    assert not isinstance(chosen(MOST_ROWS + 1), RowKernel)
    assert not isinstance(chosen(1, is_plain=False), RowKernel)
    assert isinstance(chosen(1, half_run=8), RowKernel)
    assert isinstance(chosen(3, half_run=8), MatrixKernel) == (device_costs(H200).matrix is not None)


def test_all_of_the_inner_dimension_is_read_ahead_if_it_can_be() -> None:
    shape = ProductShape(1, 192, 192, 192, ahead=264, is_plain=True)
    kernel = choose_gpu_kernel(H200, shape)
    assert isinstance(kernel, RowKernel) and kernel.turns(shape) == 1 and kernel.groups(shape)[0] <= 264
    assert isinstance(choose_gpu_kernel(H200, replace(shape, inner=0)), RowKernel)  # nothing is read, ahead or not
    wide = replace(shape, columns=12565, group_columns=12565)  # more workgroups than may wait
    assert choose_gpu_kernel(H200, wide) == choose_gpu_kernel(H200, replace(wide, ahead=0))


@pytest.mark.parametrize("columns", [576, 768, 1024])
def test_workgroups_have_room_beside_those_that_they_wait_for(columns: int) -> None:
    """144 workgroups of 512 invocations that hold two steps each would read all ahead, but a core has room for one."""
    shape = ProductShape(1, 192, columns, columns, ahead=264, is_plain=True)
    kernel = choose_gpu_kernel(H200, shape)
    assert isinstance(kernel, RowKernel) and kernel.turns(shape) > 1
    assert kernel.groups(shape)[0] <= _SHARE_AHEAD * core_count(H200) * _resident(kernel)


@pytest.mark.parametrize(("inner", "columns", "least"), [(192, 192, 48), (768, 192, 48), (192, 12565, 264)])
def test_many_cores_have_work(inner: int, columns: int, least: int) -> None:
    kernel = choose_gpu_kernel(H200, shape := ProductShape(1, inner, columns, columns, is_plain=True))
    across, down, deep = kernel.groups(shape)
    assert across * down * deep >= least


@pytest.mark.parametrize("name", ["arm_mali_g78", "qualcomm_adreno_650", "apple_m1_moltenvk"])
def test_blocks_fit_phones(name: str) -> None:
    device = known_device(name)
    for rows in range(1, MOST_ROWS + 1):
        kernel = choose_gpu_kernel(device, ProductShape(rows, 192, 768, 768, is_plain=True))
        assert isinstance(kernel, RowKernel) and kernel.fits(device)


def _of_few_bits(inner: int, columns: int, bits: int = 4) -> ProductShape:
    return ProductShape(1, inner // 4, columns // 4, columns // 4, ahead=264, is_plain=True, bits=bits)


def test_blocks_of_few_bits() -> None:
    """Few columns are divided among many invocations; many columns have wide blocks, whose loads lie side by side."""

    def chosen(shape: ProductShape) -> tuple[int, int, int]:
        kernel = choose_gpu_kernel(H200, shape)
        assert isinstance(kernel, RowKernel) and kernel.bits == shape.bits
        return kernel.columns, kernel.teams, kernel.steps

    assert chosen(_of_few_bits(768, 768)) == (2, 128, 2)
    assert chosen(_of_few_bits(5632, 2048)) == (2, 256, 2)
    assert chosen(_of_few_bits(2048, 11264)) == (6, 64, 2)
    assert chosen(_of_few_bits(768, 32000)) == (16, 16, 4)
    assert chosen(_of_few_bits(2048, 32000, bits=8)) == (8, 32, 4)


@pytest.mark.parametrize("bits", [4, 8])
def test_workgroups_of_few_bits_cover_all_columns(bits: int) -> None:
    shape = _of_few_bits(64, 4 * 37, bits)
    for kernel in row_kernels(H200, shape):
        across = kernel.groups(shape)[0] * kernel.columns * kernel.vectors
        assert shape.columns <= across < shape.columns + kernel.columns * kernel.vectors


@pytest.mark.parametrize("name", ["arm_mali_g78", "qualcomm_adreno_650", "apple_m1_moltenvk"])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_of_few_bits_fit_phones(name: str, bits: int) -> None:
    device = known_device(name)
    for rows in range(1, MOST_ROWS + 1):
        kernel = choose_gpu_kernel(device, replace(_of_few_bits(768, 3072, bits), rows=rows))
        assert isinstance(kernel, RowKernel) and kernel.fits(device)
