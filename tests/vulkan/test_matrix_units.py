"""Products of halves by matrix units, emulated where the device has none: every block on odd sizes, beside float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import device_info, known_device
from harness import run_calls, torch_operator, with_defaults
from products import constant_call, with_epilogue

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import BLOCKS, MatrixKernel
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.shaders.enumerations import Opcode

SUM_LOSS = 2e-6
"""Of the scale of a product: what sums in float32 lose."""
ROUNDINGS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Of each element that is stored as a half."""

# input, filter, stride, padding, dilation, groups
CONVOLUTIONS = [
    ((1, 24, 13, 11), (40, 24, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((2, 37, 7, 5), (41, 37, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((1, 67, 9, 9), (35, 67, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 16, 9, 7), (32, 8, 3, 3), (1, 1), (2, 1), (2, 1), 2),
    ((1, 8, 11, 3), (16, 8, 2, 3), (1, 2), (0, 2), (1, 1), 1),
]
# batches, rows, inner and columns, and how many halves lie side by side
BATCHES = [
    ((3, 19, 70, 21), 4),
    ((2, 1, 301, 8), 4),
    ((1, 67, 8, 136), 8),
    ((5, 17, 48, 24), 8),
    ((1, 131, 127, 129), 4),
]
DEFAULT = BLOCKS[0], BLOCKS[-2]
"""Of the default run: two buffers, and many teams."""
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block in DEFAULT else pytest.mark.sweep) for block in BLOCKS]
)


def halves(*sizes: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Seeded numbers that are halves."""
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.rand(sizes, generator=generator) - 0.3).to(dtype)


LLVMPIPE_TURNS = 60_000
"""Of all loops of an invocation: llvmpipe ends shaders after 65,535, those around the emulation included."""


def emulated_turns(kernel: MatrixKernel, shape: ProductShape) -> int:
    """How often an invocation goes round the loops that stand for matrix units (``matrix_units.glsl``)."""
    fragments = kernel.rows // 16 * (4 * kernel.columns // 16)
    steps = 4 * kernel.inner_block // (16 * kernel.teams)
    tiles = -(-shape.inner // (kernel.parts * kernel.inner_block))
    return tiles * steps * fragments * (256 // 32) * (16 + 1)


def force(monkeypatch: pytest.MonkeyPatch, device: Device, block: MatrixKernel, run: int, parts: int = 1) -> None:
    """Have products computed by a block, by matrix units if the device has them; they must read runs of ``run``."""
    emulated = "matrix_units" not in device.info.features
    lanes = 32 if emulated else device.info.subgroup_size
    kernel = replace(block, lanes=lanes, parts=parts, narrow=run < 8, emulated=emulated)
    if not kernel.fits(device.info):
        pytest.skip("the block needs more shared memory, or more invocations")

    def choose(info: DeviceInfo, shape: ProductShape) -> MatrixKernel:
        assert shape.half_run == run
        if emulated and emulated_turns(kernel, shape) > LLVMPIPE_TURNS:
            pytest.skip("llvmpipe would end the loops that stand for matrix units")
        return kernel

    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)


def check(
    device: Device,
    op: str,
    *args: Any,
    constants: Sequence[int] = (),
    epilogue: Epilogue | None = None,
    residual: torch.Tensor | None = None,
) -> None:
    """Compare with float64 of the same halves; steps of an epilogue round in between."""
    given, dtype = len(args), args[0].dtype
    args = with_defaults(op, args, {})
    wide = [value.double() if isinstance(value, torch.Tensor) else value for value in args]
    exact = torch_operator(op)(*wide[:given])
    call = constant_call(op, args, constants, exact.to(dtype))
    inputs = [
        (ref, value)
        for ref, value in zip(call.args, args, strict=True)
        if isinstance(ref, Value) and not ref.is_constant
    ]
    roundings = 1
    if epilogue is not None:
        call = with_epilogue(call, epilogue)
        assert epilogue.residual is not None and residual is not None
        inputs.append((epilogue.residual, residual))
        exact, roundings = torch.relu(exact) + residual.double(), 3
    (found,) = run_calls(device, [call], inputs, list(call.outputs))
    assert found.dtype == dtype and found.shape == exact.shape
    scale, rounding = float(exact.abs().max()), ROUNDINGS[dtype]
    error = (found.double() - exact).abs() - roundings * rounding * exact.abs()
    assert float(error.max()) <= SUM_LOSS * scale + (roundings - 1) * rounding * scale


@each_block
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("case", "run"), [*zip(CONVOLUTIONS, (8, 4, 4, 8, 8), strict=True)])
def test_convolution(device, monkeypatch, block, case, run, parts):
    force(monkeypatch, device, block, run, parts)
    bias = halves(case[1][0])
    check(device, "aten::conv2d", halves(*case[0]), halves(*case[1]), bias, *map(list, case[2:5]), case[5],
          constants=(1, 2))  # fmt: skip


@each_block
@pytest.mark.parametrize(
    ("sizes", "run"),
    BATCHES,
)
def test_batches(device, monkeypatch, block, sizes, run):
    force(monkeypatch, device, block, run)
    batch, rows, inner, columns = sizes
    check(device, "aten::bmm", halves(batch, rows, inner), halves(batch, inner, columns))


@each_block
@pytest.mark.parametrize("parts", [1, 2])
def test_linear_layer(device, monkeypatch, block, parts):
    force(monkeypatch, device, block, 8, parts)
    check(device, "aten::linear", halves(43, 88), halves(104, 88), halves(104), constants=(1, 2))


@pytest.mark.parametrize("parts", [1, 2])
def test_epilogue(device, monkeypatch, parts):
    force(monkeypatch, device, BLOCKS[0], 8, parts)
    source, weight, residual = halves(1, 40, 5, 7), halves(23, 40, 3, 3), halves(1, 23, 5, 7)
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.float16, (1, 23, 5, 7)))
    check(device, "aten::conv2d", source, weight, None, [1, 1], [1, 1], constants=(1,), epilogue=steps,
          residual=residual)  # fmt: skip


def test_nothing_comes_of_numbers_beside_a_matrix(device, monkeypatch):
    """Rows of a tensor lie in whole vec4s; what is beside them may be NaN."""
    force(monkeypatch, device, BLOCKS[0], 4)
    wide = halves(9, 8)
    wide[:, 5:] = float("nan")
    weight = halves(11, 5)
    exact = wide[:, :5].double() @ weight.double().t()
    call = constant_call("aten::linear", (wide[:, :5], weight, None), (1,), exact.half())
    (found,) = run_calls(device, [call], [(call.args[0], wide[:, :5])], list(call.outputs), device_layout=False)
    assert torch.allclose(found.double(), exact, rtol=ROUNDINGS[torch.float16], atol=1e-5)


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_divided_evenly(block):
    assert block.rows % 16 == 0 and block.block_rows % block.rows == 0
    assert block.columns % 4 == 0 and block.block_columns % block.columns == 0
    assert 4 * block.inner_block % (16 * block.teams) == 0
    for vectors in (1, 2):
        assert block.invocations % (block.inner_block // vectors) == 0
        assert block.invocations % (block.block_columns // vectors) == 0
    assert block.invocations <= 1024 and block.shared_bytes <= 49152


SHAPE = ProductShape(197, 96, 384, 384, half_run=8)


def with_matrix_units(device: DeviceInfo) -> DeviceInfo:
    h200 = known_device("nvidia_h200")
    features = device.features | {"matrix_units"}
    return replace(device, matrix_shapes=h200.matrix_shapes, features=features, limits=h200.limits)


def test_they_are_chosen_where_they_are_known_to_be_fast():
    h200 = known_device("nvidia_h200")
    assert isinstance(choose_gpu_kernel(h200, SHAPE), MatrixKernel)
    for device, shape in (
        (h200, replace(SHAPE, half_run=0)),
        (replace(h200, matrix_shapes=()), SHAPE),
        (replace(h200, matrix_shapes=((8, 8, 16),)), SHAPE),
        (replace(h200, switches=frozenset({"no-matrix-units"})), SHAPE),
        (with_matrix_units(device_info("integrated")), SHAPE),
    ):
        assert isinstance(choose_gpu_kernel(device, shape), SharedKernel)


# rows, inner and columns, elements; what was the fastest on an H200, or within 3 % of it
FASTEST = [
    ((128, 1536, 384), (16, 8, 64, 8)),
    ((197, 384, 1536), (64, 16, 32, 4)),
    ((784, 512, 128), (32, 8, 64, 8)),
    ((3136, 64, 256), (128, 16, 16, 1)),
    ((49, 2048, 512), (16, 4, 128, 16)),
    ((4096, 4096, 4096), (128, 64, 8, 1)),
]


@pytest.mark.parametrize(("sizes", "chosen"), FASTEST)
def test_blocks_of_the_device_that_the_costs_were_fitted_to(sizes, chosen):
    rows, inner, columns = sizes
    shape = ProductShape(rows, inner // 4, columns // 4, columns // 4, half_run=8)
    found = choose_gpu_kernel(known_device("nvidia_h200"), shape)
    assert isinstance(found, MatrixKernel) and found.parts == 1
    assert (found.block_rows, found.block_columns, found.inner_block, found.teams) == chosen


def test_a_driver_on_the_cpu_does_not_use_them():
    device = with_matrix_units(device_info("cpu"))
    assert isinstance(product_kernels.choose_product_kernel(device, SHAPE, False), product_kernels.TileKernel)


def test_emulation_is_chosen_by_a_switch():
    device = replace(device_info("cpu"), switches=frozenset({"emulated-matrix-units"}))
    found = product_kernels.choose_product_kernel(device, SHAPE, False)
    assert isinstance(found, MatrixKernel) and found.emulated and found.shader == "product_matrix_emulated"
