"""Products whose operands go from memory straight to the registers of matrix units, emulated where the device has none:
odd sizes, beside float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import test_matrix_units as of_halves
import test_normalized_products as normalized
import test_split_products as of_floats
import torch
from device_infos import device_info, known_device
from test_normalized_products import Layer
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Value
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import (
    BLOCKS,
    SPLIT_BLOCKS,
    FragmentKernel,
    fragment_kernels,
    takes_fragments,
)
from mobopt.runtimes.vulkan.kernels.fragment_weights import fragment_weights
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel
from mobopt.runtimes.vulkan.kernels.plan import constant_tensor
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.split_floats import FACTOR_SCALE, split_weights
from mobopt.runtimes.vulkan.lowerings import matmul
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

floats = of_floats.floats
SMALL = FragmentKernel(16, 8, across=2), FragmentKernel(32, 4, teams=3, depth=2)
MOST_EMULATED = 128
"""Rows times vec4s of a subgroup."""
each_block = pytest.mark.parametrize("block", SMALL, ids=lambda block: "-".join(map(str, block.constants[:7])))


def forced(monkeypatch: pytest.MonkeyPatch, units: Device, block: FragmentKernel) -> list[FragmentKernel]:
    """Have products that these kernels can compute computed by a block; which ones were is what the list gets."""
    emulated = "matrix_units" not in units.info.features
    if emulated and block.rows * block.columns > MOST_EMULATED:
        pytest.skip("llvmpipe would take minutes to compile it")
    seen: list[FragmentKernel] = []

    def choose(info: DeviceInfo, shape: ProductShape) -> object:
        if not shape.fits_fragments:
            return choose_gpu_kernel(info, shape)
        kernel = replace(block, emulated=emulated, split=not shape.half_run, normalized=shape.is_normalized)
        if not kernel.fits(info):
            pytest.skip("the block needs more shared memory, or more invocations")
        seen.append(kernel)
        return kernel

    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)
    return seen


# input, filter, stride, padding and dilation
CONVOLUTIONS = [
    ((1, 24, 13, 11), (40, 24, 3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 40, 7, 5), (41, 40, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 72, 9, 9), (35, 72, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 16, 9, 7), (32, 16, 3, 3), (1, 1), (2, 1), (2, 1)),
    ((1, 8, 11, 3), (16, 8, 2, 3), (1, 2), (0, 2), (1, 1)),
    ((3, 264, 3, 1), (130, 264, 1, 1), (1, 1), (0, 0), (1, 1)),
]


@each_block
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_of_halves(units: Device, monkeypatch, block: FragmentKernel, case: Any, parts: int) -> None:
    seen = forced(monkeypatch, units, replace(block, parts=parts))
    args = [of_halves.halves(*case[0]), of_halves.halves(*case[1]), of_halves.halves(case[1][0])]
    of_halves.check(units, "aten::conv2d", *args, *map(list, case[2:5]), 1, constants=(1, 2))
    assert seen


@each_block
@pytest.mark.parametrize(("case", "parts"), [(CONVOLUTIONS[0], 1), (CONVOLUTIONS[1], 3), (CONVOLUTIONS[3], 1)])
def test_convolution_of_floats(units: Device, monkeypatch, block: FragmentKernel, case: Any, parts: int) -> None:
    seen = forced(monkeypatch, units, replace(block, parts=parts))
    args = [floats(*case[0]), floats(*case[1]), floats(case[1][0])]
    of_floats.check(units, "aten::conv2d", *args, *map(list, case[2:5]), 1, constants=(1, 2))
    assert seen


@pytest.mark.sweep
@pytest.mark.parametrize("block", BLOCKS)
def test_every_block(units: Device, monkeypatch, block: FragmentKernel) -> None:
    case = CONVOLUTIONS[2]
    seen = forced(monkeypatch, units, block)
    args = [of_halves.halves(*case[0]), of_halves.halves(*case[1]), of_halves.halves(case[1][0])]
    of_halves.check(units, "aten::conv2d", *args, *map(list, case[2:5]), 1, constants=(1, 2))
    assert seen


@pytest.mark.sweep
@pytest.mark.parametrize("block", SPLIT_BLOCKS)
def test_every_block_of_floats(units: Device, monkeypatch, block: FragmentKernel) -> None:
    case = CONVOLUTIONS[2]
    seen = forced(monkeypatch, units, block)
    args = [floats(*case[0]), floats(*case[1]), floats(case[1][0])]
    of_floats.check(units, "aten::conv2d", *args, *map(list, case[2:5]), 1, constants=(1, 2))
    assert seen


# What the scale suits, what needs others, and what none suits.
@pytest.mark.parametrize(
    ("exponent", "parts"), [*((exponent, 1) for exponent in (-6, 10, 11, -20, 38, -39, -70)), (-20, 2), (60, 2)]
)
def test_magnitudes(units: Device, monkeypatch, exponent: int, parts: int) -> None:
    seen = forced(monkeypatch, units, replace(SMALL[1], parts=parts))
    case = floats(1, 24, 7, 5) * 2.0**exponent, floats(19, 24, 3, 3)
    of_floats.check(units, "aten::conv2d", *case, None, [1, 1], [1, 1], constants=(1,))
    assert [kernel.split for kernel in seen] == [True]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.0, 1e6, -1e-30])
@pytest.mark.parametrize("filled", [False, True])
def test_special_numbers(units: Device, monkeypatch, number: float, filled: bool) -> None:
    """What infinities and NaN become is what products of floats make of them; blocks without them keep theirs."""
    forced(monkeypatch, units, SMALL[0])
    source, weight, bias = floats(43, 40), floats(24, 40), floats(24)
    source[slice(19) if filled else 5, 7] = number
    found = of_floats.run(units, "aten::linear", (source, weight, bias), (1, 2))
    exact = (source.double() @ weight.double().t() + bias.double()).float()
    assert torch.equal(found.isnan(), exact.isnan())
    finite = exact.isfinite()
    assert torch.equal(found[~finite & ~exact.isnan()], exact[~finite & ~exact.isnan()])
    assert float((found - exact)[finite].abs().max()) <= of_floats.LOSS * float(exact[finite].abs().max())


@pytest.mark.parametrize("exponent", [-20, 9])
def test_weights_that_the_scale_does_not_suit_go_through_shared_memory(units, monkeypatch, exponent: int) -> None:
    seen = forced(monkeypatch, units, SMALL[0])
    of_floats.check(units, "aten::linear", floats(9, 40), floats(24, 40) * 2.0**exponent, None, constants=(1,))
    assert not seen


@each_block
@pytest.mark.parametrize("inner", [8, 88, 520])
def test_linear_layers(units: Device, monkeypatch, block: FragmentKernel, inner: int) -> None:
    seen = forced(monkeypatch, units, block)
    halves = of_halves.halves(43, inner), of_halves.halves(104, inner), of_halves.halves(104)
    of_halves.check(units, "aten::linear", *halves, constants=(1, 2))
    assert seen


@pytest.mark.parametrize("parts", [1, 2])
def test_epilogue(units: Device, monkeypatch, parts: int) -> None:
    seen = forced(monkeypatch, units, replace(SMALL[0], parts=parts))
    source, weight, residual = (
        of_halves.halves(1, 40, 5, 7),
        of_halves.halves(23, 40, 3, 3),
        of_halves.halves(1, 23, 5, 7),
    )
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.float16, (1, 23, 5, 7)))
    of_halves.check(units, "aten::conv2d", source, weight, None, [1, 1], [1, 1], constants=(1,), epilogue=steps,
                    residual=residual)  # fmt: skip
    assert seen


def normalizing(monkeypatch: pytest.MonkeyPatch, units: Device, block: FragmentKernel) -> None:
    """Have norms computed by the products of a block."""
    forced(monkeypatch, units, block)
    monkeypatch.setattr(matmul, "pays", lambda *sizes: True)


@each_block
@pytest.mark.parametrize(("sizes", "offset"), [((67, 104, 64), 0.0), ((19, 24, 24), 0.0), ((40, 264, 72), 20.0)])
def test_normalized_halves(units: Device, monkeypatch, block, sizes: tuple[int, int, int], offset: float) -> None:
    rows, inner, columns = sizes
    normalizing(monkeypatch, units, block)
    bound = 1.5e-3 * max(1.0, offset / 2)  # halves of what has an offset have lost digits before
    shader = "product_fragments_normalized"
    x = normalized.floats(rows, inner)
    normalized.check(units, Layer(inner, columns), x, torch.tensor(offset), shader, "fp16", bound)


class Gated(nn.Module):
    """A 1x1 convolution whose input is scaled, image by image, and then shifted, as squeeze-and-excitation and
    DenseNet's norms have it."""

    def __init__(self, channels: int, columns: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, columns, 1)
        self.shift = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        return self.layer(torch.relu(self.first(x) * factor + self.shift))


@torch.no_grad()
@pytest.mark.parametrize("block", SMALL[:1])
@pytest.mark.parametrize(
    ("batch", "own", "precision"), [(1, True, "fp16"), (3, True, "fp16"), (2, False, "fp16"), (3, True, "fp32")]
)
def test_scaled_inputs(units: Device, monkeypatch, block, batch: int, own: bool, precision: str) -> None:
    forced(monkeypatch, units, block)
    model = Gated(40, 37).eval()
    x, factor = normalized.floats(batch, 40, 7, 5), normalized.floats(*([batch] if own else []), 40, 1, 1)
    runner = VulkanProgram(
        program_from_script_module(torch.jit.script(model)), units, precision=PrecisionChoice.of(precision)
    )
    found = runner(x, factor)
    steps = [item.operation for item in runner.profile([x, factor])]
    assert any("fragments" in step.shader and "scaled" in step.shader for step in steps if isinstance(step, Dispatch))
    exact = model.double()(x.double(), factor.double())
    runner.close()
    bound = 3e-3 if precision == "fp16" else 2e-6
    assert float((found.double() - exact).abs().max() / exact.abs().max()) <= bound


@torch.no_grad()
@pytest.mark.parametrize("block", SMALL[:1])
@pytest.mark.parametrize(("channels", "taps", "batch"), [(3, 7, 1), (1, 3, 3), (4, 2, 2)])
def test_planes(units: Device, monkeypatch, block, channels: int, taps: int, batch: int) -> None:
    """A run is two taps, of which the last may not be there."""
    forced(monkeypatch, units, block)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(channels, 21, taps, stride=2, padding=taps // 2), nn.Conv2d(21, 8, 1)).eval()
    x = normalized.floats(batch, channels, 19, 23)
    program = program_from_script_module(torch.jit.script(model))
    runner = VulkanProgram(program, units, precision=PrecisionChoice.of("fp16"))
    found = runner(x)
    steps = [item.operation for item in runner.profile([x])]
    assert any("fragments_planar" in step.shader for step in steps if isinstance(step, Dispatch))
    exact = model.double()(x.double())
    runner.close()
    assert float((found.double() - exact).abs().max() / exact.abs().max()) <= 2e-3


def test_order_of_split_weights() -> None:
    """Of eight columns there are first the high halves, then the low ones."""
    lines, columns = 72, 20
    matrix = floats(lines, columns)
    split = split_weights(constant_tensor(matrix))
    assert split is not None
    found = fragment_weights(split, lines, split=True)
    assert found.data is not None and found.nbytes == found.data.nbytes
    ordered = found.data.view(torch.float16)[: 3 * 3 * 512].reshape(3, 3, 2, 8, 4, 8)  # step, eight, part, column, run
    for line, column in [(0, 0), (71, 19), (33, 9), (40, 16)]:
        halves = ordered[line // 32, column // 8, :, column % 8, line % 32 // 8, line % 8].double()
        assert float(halves.sum()) / FACTOR_SCALE == pytest.approx(float(matrix[line, column]), rel=2.0**-21, abs=0)
        assert halves[1].abs() <= 2.0**-11 * halves[0].abs()
    assert not ordered[2, :, :, :, 1:].any() and not ordered[:, 2, :, 4:].any()  # padding


def test_order_of_weights() -> None:
    lines, columns = 72, 20
    matrix = of_halves.halves(lines, columns)
    found = fragment_weights(constant_tensor(matrix).storage, lines)
    assert found.data is not None and found.nbytes == found.data.nbytes
    ordered = found.data[: 3 * 3 * 256].reshape(3, 3, 8, 4, 8)  # step, eight, column, run, neighbour
    for line, column in [(0, 0), (71, 19), (33, 9), (40, 16)]:
        assert ordered[line // 32, column // 8, column % 8, line % 32 // 8, line % 8] == matrix[line, column]
    assert not ordered[2, :, :, 1:].any() and not ordered[:, 2, 4:].any()  # padding


H200 = replace(known_device("nvidia_h200"), driver_id=4)
SHAPE = ProductShape(197, 384, 96, 96, half_run=8, fits_fragments=True)


def test_where_they_are_chosen() -> None:
    """Where weights are constants, runs of eight line up, and fragments are in the order of the shaders."""
    assert takes_fragments(H200) and isinstance(choose_gpu_kernel(H200, SHAPE), FragmentKernel)
    others = (
        replace(H200, features=H200.features - {ORDERED_FRAGMENTS}),
        replace(H200, switches=frozenset({"no-fragments"})),
    )
    for device, shape in ((H200, replace(SHAPE, fits_fragments=False)), *((other, SHAPE) for other in others)):
        assert not isinstance(choose_gpu_kernel(device, shape), FragmentKernel)
    assert not [*fragment_kernels(device_info("integrated"), device_costs(H200), SHAPE)]


# rows, inner and columns, elements; taps; what was the fastest on an H100 and an H200, or within 2 % of it
FASTEST = [
    ((3136, 576, 64), 9, (16, 8, 1, 4)),
    ((784, 1152, 128), 9, (32, 8, 1, 8)),
    ((49, 4608, 512), 9, (16, 4, 1, 16)),
    ((1568, 2304, 256), 9, (48, 8, 1, 4)),
    ((3136, 64, 256), 1, (16, 8, 4, 1)),
]


@pytest.mark.parametrize(("sizes", "taps", "chosen"), FASTEST)
def test_blocks_of_floats_on_the_devices_that_the_costs_were_fitted_to(sizes, taps, chosen) -> None:
    rows, inner, columns = sizes
    shape = ProductShape(rows, inner // 4, columns // 4, columns // 4, taps=taps, float_run=8, fits_fragments=True)
    found = choose_gpu_kernel(H200, shape)
    assert isinstance(found, FragmentKernel) and found.split
    assert (found.rows, found.columns, found.across, found.teams) == chosen


def test_where_floats_are_split_in_registers() -> None:
    shape = ProductShape(784, 288, 32, 32, taps=9, float_run=8, fits_fragments=True)
    assert isinstance(choose_gpu_kernel(H200, shape), FragmentKernel)
    assert isinstance(choose_gpu_kernel(replace(H200, switches=frozenset({"no-fragments"})), shape), MatrixKernel)
    for device in (replace(H200, switches=frozenset({"no-split-products"})), replace(H200, name="NVIDIA A100")):
        assert isinstance(choose_gpu_kernel(device, shape), SharedKernel)
    # Ordinary arithmetic takes no longer where there is little to multiply.
    small = ProductShape(3136, 6, 36, 36, float_run=8, fits_fragments=True)
    assert not isinstance(choose_gpu_kernel(H200, small), FragmentKernel)


@pytest.mark.parametrize("block", [*BLOCKS, *SPLIT_BLOCKS])
def test_blocks_are_divided_evenly(block: FragmentKernel) -> None:
    assert block.rows % 16 == 0 and block.columns % 4 == 0 and block.depth in (1, 2)
    assert block.block_columns <= 64  # weights have as many zeros behind them
    for normalizes in (False, True):
        assert replace(block, normalized=normalizes).shared_bytes <= 49152 and block.invocations <= 512


@pytest.mark.parametrize(
    ("channels", "side", "is_shared"),
    [(512, 128, True), (256, 256, True), (512, 64, True), (512, 28, False), (128, 512, False), (256, 28, False)],
)
def test_large_convolutions_of_halves_go_through_shared_memory(channels: int, side: int, is_shared: bool) -> None:
    wide = channels // 4
    shape = ProductShape(side * side, 9 * wide, wide, wide, taps=9, half_run=8, fits_fragments=True)
    assert isinstance(choose_gpu_kernel(H200, shape), MatrixKernel) == is_shared
    assert isinstance(choose_gpu_kernel(H200, replace(shape, shortcut=8)), FragmentKernel)
