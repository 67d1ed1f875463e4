"""Products of floats by matrix units for halves, emulated where the device has none: odd sizes, beside float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device
from harness import run_calls, torch_operator, with_defaults
from products import constant_call, with_epilogue
from test_matrix_units import BATCHES, CONVOLUTIONS, LLVMPIPE_TURNS, emulated_turns
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import SPLIT_BLOCKS, MatrixKernel, splits
from mobopt.runtimes.vulkan.kernels.plan import constant_tensor
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import RowKernel
from mobopt.runtimes.vulkan.kernels.split_floats import FACTOR_SCALE, split_weights
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

LOSS = 1e-6
"""Of the sums of magnitudes: what is left out of products, 2^-22, and what sums in float32 lose."""
DEFAULT = SPLIT_BLOCKS[0], SPLIT_BLOCKS[-1]
"""Of the default run: two buffers, and many teams."""
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block in DEFAULT else pytest.mark.sweep) for block in SPLIT_BLOCKS]
)


def floats(*sizes: int) -> Tensor:
    """Seeded numbers of all 24 bits."""
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes))) - 0.3


def force(monkeypatch: pytest.MonkeyPatch, device: Device, block: MatrixKernel, run: int = 0, parts: int = 1) -> None:
    """Have products computed by a block, by matrix units if the device has them; they must read runs of ``run``, if
    that is given."""
    emulated = "matrix_units" not in device.info.features
    lanes = 32 if emulated else device.info.subgroup_size

    def choose(info: DeviceInfo, shape: ProductShape) -> MatrixKernel:
        assert not shape.half_run and shape.float_run == (run or shape.float_run) != 0
        kernel = replace(block, lanes=lanes, parts=parts, narrow=shape.float_run < 8, emulated=emulated, split=True)
        if not kernel.fits(info):
            pytest.skip("the block needs more shared memory, or more invocations")
        if emulated and 3 * emulated_turns(kernel, shape) > LLVMPIPE_TURNS:
            pytest.skip("llvmpipe would end the loops that stand for matrix units")
        return kernel

    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)


def run(
    device: Device,
    op: str,
    args: Sequence[Any],
    constants: Sequence[int] = (),
    epilogue: Epilogue | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """What the device computes."""
    given = len(args)
    args = with_defaults(op, args, {})
    call = constant_call(op, args, constants, torch_operator(op)(*args[:given]).float())
    inputs = [
        (ref, value)
        for ref, value in zip(call.args, args, strict=True)
        if isinstance(ref, Value) and not ref.is_constant
    ]
    if epilogue is not None:
        call = with_epilogue(call, epilogue)
        assert epilogue.residual is not None
        inputs.append((epilogue.residual, residual))
    (found,) = run_calls(device, [call], inputs, list(call.outputs))
    return found


def wide(args: Sequence[Any], magnitudes: bool = False) -> list[Any]:
    """Arguments in float64, or their magnitudes."""
    tensors = [value.double() if isinstance(value, Tensor) else value for value in args]
    return [value.abs() if magnitudes and isinstance(value, Tensor) else value for value in tensors]


def check(device: Device, op: str, *args: Any, constants: Sequence[int] = ()) -> None:
    """Compare with float64, by the sums of magnitudes."""
    found = run(device, op, args, constants)
    exact, scale = torch_operator(op)(*wide(args)), torch_operator(op)(*wide(args, magnitudes=True))
    assert found.shape == exact.shape
    assert float(((found.double() - exact).abs() / scale.clamp(min=1e-300)).max()) <= LOSS


@each_block
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("case", "length"), [*zip(CONVOLUTIONS, (8, 4, 4, 8, 8), strict=True)])
def test_convolution(device, monkeypatch, block, case, length, parts):
    force(monkeypatch, device, block, length, parts)
    bias = floats(case[1][0])
    check(device, "aten::conv2d", floats(*case[0]), floats(*case[1]), bias, *map(list, case[2:5]), case[5],
          constants=(1, 2))  # fmt: skip


@each_block
@pytest.mark.parametrize(
    ("sizes", "length"),
    BATCHES,
)
def test_batches(device, monkeypatch, block, sizes, length):
    force(monkeypatch, device, block, length)
    batch, rows, inner, columns = sizes
    check(device, "aten::bmm", floats(batch, rows, inner), floats(batch, inner, columns))


@each_block
@pytest.mark.parametrize("parts", [1, 2])
def test_linear_layer(device, monkeypatch, block, parts):
    force(monkeypatch, device, block, 8, parts)
    check(device, "aten::linear", floats(43, 88), floats(104, 88), floats(104), constants=(1, 2))


@pytest.mark.parametrize("parts", [1, 2])
def test_epilogue(device, monkeypatch, parts):
    force(monkeypatch, device, SPLIT_BLOCKS[0], 8, parts)
    source, weight, residual = floats(1, 40, 5, 7), floats(23, 40, 3, 3), floats(1, 23, 5, 7)
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.float32, (1, 23, 5, 7)))
    found = run(device, "aten::conv2d", (source, weight, None, [1, 1], [1, 1]), (1,), steps, residual)
    exact = torch.relu(torch.conv2d(source.double(), weight.double(), None, 1, 1)) + residual.double()
    torch.testing.assert_close(found.double(), exact, rtol=LOSS, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_beside_halves(device, monkeypatch, dtype):
    """As delicate nodes of a model in half precision read them."""
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    weight = floats(24, 40).to(dtype)
    exact = floats(19, 40).double() @ weight.double().t()
    call = constant_call("aten::linear", (floats(19, 40), weight, None), (1,), exact.float())
    (found,) = run_calls(device, [call], [(call.args[0], floats(19, 40))], list(call.outputs))
    torch.testing.assert_close(found.double(), exact, rtol=LOSS, atol=1e-5)


# Of values and of factors: what the scales suit, what needs others, and what no scale suits.
MAGNITUDES = [(0, 0), (-6, 6), (10, 7), (11, -11), (20, -20), (-30, -12), (38, 38), (-39, 39), (60, -55), (-70, 30)]


@pytest.mark.parametrize(("values", "factors"), MAGNITUDES)
@pytest.mark.parametrize("parts", [1, 2])
def test_magnitudes(device, monkeypatch, values, factors, parts):
    force(monkeypatch, device, SPLIT_BLOCKS[0], 8, parts)
    case = floats(1, 24, 7, 5) * 2.0**values, floats(16, 24, 3, 3) * 2.0**factors
    check(device, "aten::conv2d", *case, None, [1, 1], [1, 1], constants=(1,))


def test_one_large_magnitude_among_small_ones(device, monkeypatch):
    """Errors are of the scale of the result, as those of sums in float32 are."""
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    source, weight = floats(19, 40), floats(24, 40)
    source[3, 7] = 3e5
    found = run(device, "aten::linear", (source, weight, None), (1,))
    exact = source.double() @ weight.double().t()
    assert float((found.double() - exact).abs().max()) <= LOSS * float(exact.abs().max())
    assert torch.allclose(found[3].double(), exact[3], rtol=1e-6)


# rows, inner and columns, elements; what was the fastest on an H100, or within 2 % of it, apart from parts
FASTEST = [
    ((49, 4608, 512), (64, 16, 16, 4, 16)),
    ((128, 384, 1536), (32, 16, 16, 4, 1)),
    ((512, 768, 2304), (96, 32, 8, 1, 1)),
    ((512, 3072, 768), (128, 32, 8, 1, 4)),
    ((12544, 1152, 128), (96, 32, 8, 1, 1)),
    ((4096, 4096, 4096), (128, 32, 8, 1, 1)),
]


@pytest.mark.parametrize(("sizes", "chosen"), FASTEST)
def test_blocks_of_the_device_that_the_costs_were_fitted_to(sizes, chosen):
    rows, inner, columns = sizes
    shape = ProductShape(rows, inner // 4, columns // 4, columns // 4, float_run=8)
    found = choose_gpu_kernel(known_device("nvidia_h200"), shape)
    assert isinstance(found, MatrixKernel) and found.split
    assert (found.block_rows, found.block_columns, found.inner_block, found.teams, found.parts) == chosen


def test_where_floats_are_split():
    h200 = known_device("nvidia_h200")
    shape = ProductShape(4096, 1024, 1024, 1024, float_run=8)

    def is_split(name: str = "NVIDIA H200", switches: frozenset[str] = frozenset()) -> bool:
        device = replace(h200, name=name, switches=switches)
        kernel = choose_gpu_kernel(device, shape)
        assert splits(device) == isinstance(kernel, MatrixKernel)
        return isinstance(kernel, MatrixKernel)

    assert is_split() and is_split("NVIDIA H100 80GB HBM3")
    assert not is_split("NVIDIA GeForce RTX 4090")
    assert is_split("NVIDIA A100", frozenset({"split-products"}))
    assert not is_split(switches=frozenset({"no-split-products"}))
    assert not is_split(switches=frozenset({"no-matrix-units"}))
    few = ProductShape(3, 1024, 1024, 1024, float_run=8, is_plain=True)
    assert isinstance(choose_gpu_kernel(h200, few), RowKernel)


@pytest.mark.parametrize("block", SPLIT_BLOCKS)
def test_blocks_are_divided_evenly(block):
    block = replace(block, split=True)
    assert block.rows % 16 == 0 and block.block_rows % block.rows == 0
    assert block.columns % 4 == 0 and block.block_columns % block.columns == 0
    assert 4 * block.inner_block % (16 * block.teams) == 0
    for vectors in (1, 2):
        assert block.invocations % (block.inner_block // vectors) == 0
        assert block.invocations % (block.block_columns // vectors) == 0
    assert block.invocations <= 1024 and block.shared_bytes <= 49152


def test_weights_that_the_host_splits():
    data = floats(64) * 2.0 ** torch.arange(-20, 5).repeat(3)[:64]
    weights = constant_tensor(data)
    halves = split_weights(weights).data.view(torch.float16).reshape(-1, 2, 4).double()
    error = (halves.sum(1).reshape(-1) / FACTOR_SCALE - data.double()).abs()
    assert (error <= 2.0**-22 * data.abs() + 2.0**-33).all()
    assert split_weights(weights).nbytes == weights.storage.nbytes
    for unsuited in (data * 2.0**20, data * 2.0**-30, torch.full((4,), math.inf), torch.full((4,), math.nan)):
        assert split_weights(constant_tensor(unsuited)) is None
    assert split_weights(constant_tensor(data.half())) is None
    assert split_weights(constant_tensor(torch.zeros(8))) is not None


SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e-30, 65504.0, 70000.0, 6e-8]


@pytest.mark.parametrize("number", SPECIAL)
@pytest.mark.parametrize("filled", [False, True])
def test_special_numbers(device, monkeypatch, number, filled):
    """What infinities and NaN become is what products of floats make of them."""
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    source, weight = floats(2, 19, 37), floats(2, 37, 24)
    source[1, 4, 5] = number
    if filled:
        source[0] = number
    found, exact = run(device, "aten::bmm", (source, weight)), torch.bmm(source.double(), weight.double()).float()
    scale = torch.bmm(source.double().abs(), weight.double().abs()).float()
    assert torch.equal(found.isnan(), exact.isnan())
    rest = ~exact.isnan()
    finite = rest & exact.isfinite()
    assert torch.equal(found[rest & ~finite], exact[rest & ~finite])
    assert float(((found - exact).abs()[finite] / scale[finite].clamp(min=1e-37)).max()) <= LOSS


def test_integers_are_exact(device, monkeypatch):
    """Those of up to 11 bits are halves, so what is computed of bytes is exact."""
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-255, 256, sizes, generator=generator).float() for sizes in ((1, 37, 96), (1, 96, 29)))
    assert torch.equal(run(device, "aten::bmm", (left, right)), torch.bmm(left, right))


def test_nothing_comes_of_numbers_beside_a_matrix(device, monkeypatch):
    """Rows of a tensor lie in whole vec4s; what is beside them may be NaN."""
    force(monkeypatch, device, SPLIT_BLOCKS[0], 4)
    wide_rows = floats(9, 8)
    wide_rows[:, 5:] = float("nan")
    weight = floats(11, 5)
    exact = wide_rows[:, :5].double() @ weight.double().t()
    call = constant_call("aten::linear", (wide_rows[:, :5], weight, None), (1,), exact.float())
    (found,) = run_calls(device, [call], [(call.args[0], wide_rows[:, :5])], list(call.outputs), device_layout=False)
    torch.testing.assert_close(found.double(), exact, rtol=LOSS, atol=1e-6)


@pytest.mark.parametrize("number", [math.nan, 1e9])
def test_nothing_comes_of_numbers_beside_factors(device, monkeypatch, number):
    """They would decide about scales."""
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    wide_rows = floats(2, 37, 12)
    wide_rows[..., 9:] = number
    left, right = floats(2, 19, 37), wide_rows[..., :9]
    exact = torch.bmm(left.double(), right.double())
    call = constant_call("aten::bmm", (left, right), (), exact.float())
    (found,) = run_calls(
        device, [call], [*zip(call.args, (left, right), strict=True)], list(call.outputs), device_layout=False
    )
    torch.testing.assert_close(found.double(), exact, rtol=LOSS, atol=1e-6)


class Scaled(nn.Module):
    """A normalisation before a convolution, and a squeeze-and-excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor, self.shift = nn.Parameter(floats(channels, 1, 1)), nn.Parameter(floats(channels, 1, 1))
        self.first, self.second = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(torch.relu(x * self.factor + self.shift))
        return self.second(x * torch.sigmoid(x.mean((2, 3), keepdim=True)))


@pytest.mark.parametrize("channels", [10, 24])
@pytest.mark.parametrize("magnitude", [1.0, 1e5, float("inf")])
def test_scaled_inputs(device, monkeypatch, channels, magnitude):
    if "matrix_units" not in device.info.features:
        monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    force(monkeypatch, device, SPLIT_BLOCKS[0])
    torch.manual_seed(0)
    model = Scaled(channels).eval()
    x = floats(2, channels, 5, 7)
    x[0, 3, 2, 2] = magnitude
    runner = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
    found = runner(x)
    shaders = [step.operation.shader for step in runner.profile([x]) if isinstance(step.operation, Dispatch)]
    assert sum(shader.startswith("product_matrix_split_scaled") for shader in shaders) == 2
    runner.close()
    with torch.no_grad():
        exact = model.double()(x.double()).float()
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5, equal_nan=True)
