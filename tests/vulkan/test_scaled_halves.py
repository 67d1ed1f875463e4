"""Scaled inputs of products in ``precision="fp16"`` and ``"bf16"``: odd sizes beside the CPU, and what isn't folded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from test_chains import emulating  # noqa: F401  (a fixture)
from test_half_precision import LOSSES, numbers, seeded
from test_matrix_units import LLVMPIPE_TURNS, emulated_turns
from test_planar_inputs import SUM_LOSS, scripted, shaders  # noqa: F401  (a fixture)
from torch import Tensor, nn

from mobopt.options import PrecisionChoice
from mobopt.runtimes.half_ranges import ValueRanges
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.precision import Halving
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import gpu_kernels, matrix_kernels, product_kernels
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.program import VulkanProgram

FP16 = PrecisionChoice("fp16")


class Scaled(nn.Module):
    """A scaling, a shift and a relu before a convolution."""

    def __init__(self, channels: int, columns: int, stride: int = 1) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, columns, 1, stride)
        self.shift = nn.Parameter(grid(channels, 1, 1))
        with torch.no_grad():
            self.layer.weight.copy_(numbers(columns, channels, 1, 1).half())

    def forward(self, x: Tensor, factor: Tensor) -> Tensor:
        return self.layer(torch.relu(x * factor + self.shift))

    def exact(self, x: Tensor, factor: Tensor, halves: torch.dtype = torch.float16) -> Tensor:
        """With float64 sums of halves, to which the scaled image is rounded."""
        scaled = torch.relu(x * factor + self.shift).to(halves)
        weight, bias = self.layer.weight.double(), self.layer.bias.double()
        return torch.conv2d(scaled.double(), weight, bias, self.layer.stride)


def grid(*sizes: int) -> Tensor:
    """Seeded numbers of so few bits that their products, and sums of these, are exact in float32: 128ths up to 1."""
    return torch.randint(-127, 128, sizes, generator=torch.Generator().manual_seed(sum(sizes))) / 128


def force(monkeypatch: pytest.MonkeyPatch, device: Device, block: MatrixKernel) -> None:
    """Have products of halves computed by a block of matrix units."""
    emulated = "matrix_units" not in device.info.features

    def choose(info: DeviceInfo, shape: ProductShape) -> MatrixKernel:
        assert shape.half_run and not shape.is_plain
        lanes = 32 if emulated else info.subgroup_size
        kernel = replace(block, lanes=lanes, narrow=shape.half_run < 8, emulated=emulated)
        if emulated and emulated_turns(kernel, shape) > LLVMPIPE_TURNS:
            pytest.skip("llvmpipe would end the loops that stand for matrix units")
        if not kernel.fits(info):
            pytest.skip("the block needs more shared memory, or more invocations")
        return kernel

    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)


def agrees(found: Tensor, exact: Tensor) -> None:
    """Within what sums in float32 lose; NaN and infinities are where they should be."""
    assert found.shape == exact.shape
    scale = float(exact[exact.isfinite()].abs().max())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=SUM_LOSS * scale, equal_nan=True)


BLOCKS = matrix_kernels.BLOCKS[0], matrix_kernels.BLOCKS[-2], replace(matrix_kernels.BLOCKS[0], parts=2)
each_block = pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.block_rows}-{block.parts}")
# images, channels, columns, stride, and whether each image has its own factors
CASES = [
    (1, 24, 40, 1, True),
    (3, 13, 37, 1, True),
    (2, 20, 11, 2, True),
    (2, 64, 24, 2, True),
    (2, 67, 35, 1, False),
    (3, 136, 16, 1, True),
]


@each_block
@pytest.mark.parametrize(("batch", "channels", "columns", "stride", "own"), CASES)
def test_by_units(units, monkeypatch, shaders, block, batch, channels, columns, stride, own) -> None:  # noqa: F811
    """The scaled image is rounded to halves, ties to even; pad lanes and rows beside the product's stay harmless."""
    force(monkeypatch, units, block)
    model = Scaled(channels, columns, stride).eval()
    x, factor = grid(batch, channels, 11, 7), grid(*([batch] if own else []), channels, 1, 1)
    found = VulkanProgram(scripted(model), units, precision=FP16)(x, factor)
    (product,) = [shader for shader in shaders if shader.startswith("product_matrix")]
    assert product.startswith("product_matrix_scaled" + ("" if channels % 8 == 0 else "_narrow"))
    assert ("product_sum" in shaders) == (block.parts > 1)
    scaled = torch.relu(x * factor + model.shift)
    assert (scaled != scaled.half()).any()
    agrees(found, model.exact(x, factor).detach())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 60000.0])
@pytest.mark.parametrize("channels", [13, 20, 24])
def test_special_numbers(units, monkeypatch, shaders, channels, number) -> None:  # noqa: F811
    """They stay in their pixels; 60000 is scaled to what float16 doesn't hold, on a call that wasn't planned for."""
    force(monkeypatch, units, BLOCKS[0])
    model, factor = Scaled(channels, 21).eval(), grid(2, channels, 1, 1) + 2
    program = VulkanProgram(scripted(model), units, precision=FP16)
    x = grid(2, channels, 5, 7)
    program(x, factor)
    x[0, 3, 2, 2] = x[1, channels - 1, 4, 6] = x[1, 0, 0, 0] = number
    found = program(x, factor)
    assert any(shader.startswith("product_matrix_scaled") for shader in shaders)
    agrees(found, model.exact(x, factor).detach())


@torch.no_grad()
@pytest.mark.parametrize("factor", [2.0**17, 2.0**-12])
def test_scaled_images_that_halves_do_not_hold(units, shaders, factor) -> None:  # noqa: F811
    """Too large or too small on the inputs that were seen, although the image and the result are not."""
    model, x = Scaled(24, 21).eval(), grid(2, 24, 5, 7)
    model.shift.zero_()
    model.layer.weight.mul_(2.0**-7 if factor > 1 else 1.0)
    factors = torch.full((24, 1, 1), factor)
    found = VulkanProgram(scripted(model), units, precision=FP16)(x, factors)
    assert not any("scaled" in shader for shader in shaders)
    expected = model(x, factors)
    torch.testing.assert_close(found, expected, rtol=0, atol=LOSSES["fp16"] * float(expected.abs().max()))


def test_what_is_large_in_registers_only(units, monkeypatch, shaders) -> None:  # noqa: F811
    """The product with the factor is: the shifted image, which becomes halves, isn't."""
    force(monkeypatch, units, BLOCKS[0])
    model, x = Scaled(24, 21).eval(), grid(2, 24, 5, 7).abs() + 1
    with torch.no_grad():
        model.shift.fill_(-24576.0)
        model.layer.weight.copy_((model.layer.weight / 128).half())
    factors = torch.full((24, 1, 1), 16384.0)
    found = VulkanProgram(scripted(model), units, precision=FP16)(x, factors)
    assert any(shader.startswith("product_matrix_scaled") for shader in shaders)
    agrees(found, model.exact(x, factors).detach())


class Excited(nn.Module):
    """Squeeze-and-excitation, and two normalisations before convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(5, channels, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(channels, 5, 1), nn.Conv2d(5, channels, 1)
        self.second, self.norm = nn.Conv2d(channels, 37, 1), nn.BatchNorm2d(37)
        self.third, self.last = nn.Conv2d(37, 22, 1, 2), nn.Conv2d(22, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean([2, 3], keepdim=True)))))
        x = torch.relu(self.second(gate * x))
        x = torch.relu(self.norm(x))
        return self.last(torch.relu(self.third(x)))


def excited(channels: int) -> nn.Module:
    model = seeded(Excited(channels))
    model.norm.running_mean.copy_(numbers(37) / 3)
    model.norm.running_var.copy_(1 + numbers(37) ** 2)
    return model


def check(device: Device, model: nn.Module, x: Tensor, precision: PrecisionChoice) -> None:
    """Compare with the CPU."""
    with torch.no_grad():
        expected = model(x)
    found = VulkanProgram(scripted(model), device, precision=precision)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=LOSSES[precision.precision] * float(expected.abs().max()))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("parts", "joins"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize(("batch", "channels"), [(3, 13), (2, 24)])
def test_by_shared_memory(device, monkeypatch, shaders, batch, channels, parts, joins, precision) -> None:  # noqa: F811
    """Kernels of float32 arithmetic, which read halves."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"shared-products"})))
    kernel = replace(gpu_kernels.BLOCKS[0], parts=parts, joins=joins)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", lambda info, shape: kernel)
    check(device, excited(channels), numbers(batch, 5, 11, 7), PrecisionChoice(precision))
    assert sum("scaled" in shader for shader in shaders) == 2


@pytest.mark.parametrize(
    ("precision", "first", "second"),
    [
        ("fp16", "product_fragments_scaled", "product_matrix_scaled_narrow"),
        ("bf16", "product_fragments_bfloat_scaled", "product_matrix_bfloat_scaled_narrow"),
    ],
)
@pytest.mark.parametrize(("batch", "channels"), [(1, 24), (3, 13), (2, 41)])
def test_networks_by_units(units, shaders, batch, channels, precision, first, second) -> None:  # noqa: F811
    """The second scaled image has an odd number of channels, the first as many as are given."""
    check(units, excited(channels), numbers(batch, 5, 11, 7), PrecisionChoice(precision))
    if "matrix_units" not in units.info.features:  # emulated ones are always chosen
        found = [shader for shader in shaders if "scaled" in shader]
        assert len(found) == 2 and found[1].startswith(second)
        assert found[0].startswith(first if channels % 8 == 0 else second)


@pytest.mark.parametrize(
    ("pattern", "count"), [("aten::mul*", 1), ("aten::conv2d", 0), ("aten::relu", 0), ("aten::sigmoid", 2)]
)
def test_patterns_name_what_stays_apart(units, shaders, pattern, count) -> None:  # noqa: F811
    check(units, excited(24), numbers(2, 5, 11, 7), PrecisionChoice("fp16", (pattern,)))
    assert sum("scaled" in shader for shader in shaders) == count


def test_each_size_is_lowered(units, shaders) -> None:  # noqa: F811
    model = excited(13)
    program = VulkanProgram(scripted(model), units, precision=FP16)
    for sizes in ((1, 5, 11, 7), (3, 5, 7, 13), (2, 5, 5, 5), (3, 5, 7, 13)):
        x = numbers(*sizes)
        expected = model(x).detach()
        torch.testing.assert_close(program(x), expected, rtol=0, atol=LOSSES["fp16"] * float(expected.abs().max()))
    assert sum("scaled" in shader for shader in shaders) == 6


def test_dispatches_that_wait_by_a_counter(emulating, monkeypatch, shaders) -> None:  # noqa: F811
    switches = emulating.info.switches | {"emulated-matrix-units"}
    monkeypatch.setattr(emulating, "info", replace(emulating.info, switches=switches))
    check(emulating, excited(24), numbers(2, 5, 11, 7), FP16)
    assert emulating.chains
    assert sum(shader.startswith(("product_fragments_scaled", "product_matrix_scaled")) for shader in shaders) == 2


class Dense(nn.Module):
    """A layer of DenseNet, and the squeeze-and-excitation of a MobileNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Conv2d(16, 64, 1), nn.BatchNorm2d(64), nn.Conv2d(64, 128, 1, bias=False)
        self.outer = nn.Conv2d(128, 32, 3, padding=1, bias=False)
        self.squeeze, self.excite = nn.Conv2d(96, 24, 1), nn.Conv2d(24, 96, 1)
        self.last = nn.Conv2d(96, 40, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = self.inner(torch.relu(self.norm(x)))
        x = torch.cat([x, self.outer(torch.relu(y))], 1)
        gate = nn.functional.hardsigmoid(self.excite(torch.relu(self.squeeze(x.mean([2, 3], keepdim=True)))))
        return torch.relu(self.last(x * gate))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_dispatches_on_a_gpu(precision) -> None:
    """As many as in float32: gates are float32, so nothing copies them."""
    x, h200 = numbers(1, 16, 14, 14), known_device("nvidia_h200")
    h200 = replace(h200, features=h200.features - {ORDERED_FRAGMENTS})  # all go by way of shared memory
    program = scripted(seeded(Dense()))

    def names(halving: Halving | None) -> list[str]:
        segment = specialize(program, "forward", [x])
        stream = build_stream(segment, h200, ConstantStore(), halving=halving).stream
        return [step.shader for step in stream.operations if isinstance(step, Dispatch)]

    found = names(Halving(precision, (), ValueRanges(), lambda: [x]))
    assert len(found) == len(names(None)) == 8
    assert sum("scaled" in name for name in found) == 2
    assert not any(name.startswith("pointwise") for name in found[1:-1])
    assert any(name.startswith("product_matrix_scaled") for name in found) == (precision == "fp16")
