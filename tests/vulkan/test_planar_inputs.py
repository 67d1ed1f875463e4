"""Images that the first convolution reads as planes: odd sizes, beside torch; and where they are copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import device_info, known_device
from harness import assert_close, run_calls, with_defaults
from products import constant_call, with_epilogue
from test_chains import emulating  # noqa: F401  (a fixture)
from test_matrix_units import LLVMPIPE_TURNS, emulated_turns
from test_recorded import Checked
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, Value
from mobopt.options import PrecisionChoice
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import gpu_kernels, matrix_kernels, product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.balanced_rounding import balanced_halves
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import SharedKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MatrixKernel
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan
from mobopt.runtimes.vulkan.kernels.product_planes import reads_planes
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

SUM_LOSS = 2e-6
"""Of the scale of a product: what sums in float32, and halves that floats are split into, lose."""
BLOCKS = (
    gpu_kernels.BLOCKS[0],
    SharedKernel(32, 8, rows=8, columns=1, inner_block=8, teams=4),
    gpu_kernels.BLOCKS[-1],
    replace(gpu_kernels.BLOCKS[0], parts=2),
    replace(gpu_kernels.BLOCKS[0], parts=3, joins=True),
)
SPLIT_BLOCKS = (
    matrix_kernels.SPLIT_BLOCKS[0],
    matrix_kernels.SPLIT_BLOCKS[-1],
    replace(matrix_kernels.SPLIT_BLOCKS[0], parts=2),
)
HALF_BLOCKS = matrix_kernels.BLOCKS[0], matrix_kernels.BLOCKS[-2], replace(matrix_kernels.BLOCKS[0], parts=2)

# input, filter, stride, padding, dilation
CASES = [
    ((1, 3, 13, 11), (16, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 1, 7, 5), (41, 1, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 2, 17, 7), (5, 2, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((2, 4, 9, 7), (37, 4, 2, 3), (1, 2), (0, 2), (2, 3)),
    ((2, 3, 13, 17), (21, 3, 4, 4), (4, 4), (0, 0), (1, 1)),
    ((2, 3, 5, 7), (24, 3, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 4, 1, 19), (7, 4, 1, 5), (1, 1), (0, 1), (1, 2)),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, (*case[0], *case[1]))))


def floats(*sizes: int) -> Tensor:
    """Seeded numbers of all 24 bits."""
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes))) - 0.3


@pytest.fixture
def shaders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shaders of all plans that are made."""
    names: list[str] = []
    dispatch = Plan.dispatch

    def noting(plan: Plan, shader: str, *args: object, **named: object) -> None:
        names.append(shader)
        dispatch(plan, shader, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "dispatch", noting)
    return names


@pytest.fixture
def only_units(units: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device with no other kernels of shared memory, which a GPU may take for small products."""
    monkeypatch.setattr(gpu_kernels, "shared_kernels", lambda *_: iter(()))
    gpu_kernels._choose.cache_clear()
    yield units
    gpu_kernels._choose.cache_clear()


def force(monkeypatch: pytest.MonkeyPatch, device: Device, block: SharedKernel | MatrixKernel, split: bool) -> None:
    """Have products computed by a block, by matrix units if the device has them."""

    def choose(info: DeviceInfo, shape: ProductShape) -> SharedKernel | MatrixKernel:
        kernel = block
        if isinstance(kernel, MatrixKernel):
            assert (shape.float_run if split else shape.half_run) == 4
            emulated = "matrix_units" not in info.features
            lanes = 32 if emulated else info.subgroup_size
            kernel = replace(kernel, lanes=lanes, narrow=True, emulated=emulated, split=split)
            if emulated and (3 if split else 1) * emulated_turns(kernel, shape) > LLVMPIPE_TURNS:
                pytest.skip("llvmpipe would end the loops that stand for matrix units")
        if not kernel.fits(info):
            pytest.skip("the block needs more shared memory, or more invocations")
        return kernel

    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)


def convolved(device: Device, source: Tensor, weight: Tensor, bias: Tensor | None, *steps: Sequence[int]) -> Tensor:
    """What the device computes of an image that lies as torch's does, with stride, padding and dilation."""
    args = with_defaults("aten::conv2d", (source, weight, bias, *map(list, steps)), {})
    call = constant_call("aten::conv2d", args, (1, 2), torch.conv2d(source, weight, bias, *steps))
    (found,) = run_calls(device, [call], [(call.args[0], source)], list(call.outputs), device_layout=False)
    return found


def check(device: Device, source: Tensor, weight: Tensor, *steps: Sequence[int]) -> None:
    """Compare with float64."""
    bias = floats(weight.shape[0])
    found = convolved(device, source, weight, bias, *steps)
    exact = torch.conv2d(source.double(), weight.double(), bias.double(), *steps)
    assert found.shape == exact.shape
    assert float((found.double() - exact).abs().max()) <= SUM_LOSS * float(exact.abs().max())


def name_of(block: SharedKernel | MatrixKernel, split: bool = False) -> str:
    """What a shader that reads planes by a block is called, but for emulation."""
    return replace(block, split=split, planar=True).shader if split else replace(block, planar=True).shader


@each_case
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.block_rows}-{block.parts}-{block.joins}")
def test_by_shared_memory(device, monkeypatch, shaders, block, case) -> None:
    force(monkeypatch, device, block, split=False)
    check(device, floats(*case[0]), floats(*case[1]), *case[2:])
    assert shaders[0] == name_of(block)


@each_case
@pytest.mark.parametrize("block", SPLIT_BLOCKS, ids=lambda block: f"{block.block_rows}-{block.parts}")
def test_by_units_of_split_floats(device, monkeypatch, shaders, block, case) -> None:
    force(monkeypatch, device, block, split=True)
    check(device, floats(*case[0]), floats(*case[1]), *case[2:])
    assert shaders[0].startswith(name_of(block, split=True))


@each_case
@pytest.mark.parametrize("block", HALF_BLOCKS, ids=lambda block: f"{block.block_rows}-{block.parts}")
def test_by_units_of_halves(units, monkeypatch, shaders, block, case) -> None:
    """The kernel rounds the image, ties to even."""
    force(monkeypatch, units, block, split=False)
    sizes, (outer, inner, *taps), stride, padding, dilation = case
    module = nn.Conv2d(inner, outer, taps, stride, padding, dilation)
    with torch.no_grad():
        module.weight.copy_(floats(outer, inner, *taps))
        module.bias.copy_(floats(outer))
    x = floats(*sizes)
    x.flatten()[::3] = 1 + torch.arange(len(x.flatten()[::3])) * 2.0**-11  # half of them between two halves
    found = VulkanProgram(scripted(module), units, precision=PrecisionChoice("fp16"))(x)
    assert shaders[0].startswith(name_of(block))
    weight = balanced_halves(module.weight.detach().flatten(1), torch.float16).double().reshape(module.weight.shape)
    bias = module.bias.detach().double()
    exact = torch.conv2d(x.half().double(), weight, bias, stride, padding, dilation)
    assert float((found.double() - exact).abs().max()) <= SUM_LOSS * float(exact.abs().max())


def scripted(module: nn.Module) -> Program:
    return program_from_script_module(torch.jit.script(module.eval()))


EACH_FAMILY = [(BLOCKS[0], False), (BLOCKS[1], False), (SPLIT_BLOCKS[0], True)]
each_family = pytest.mark.parametrize(("block", "split"), EACH_FAMILY, ids=["shared", "teams", "split"])


@each_family
@pytest.mark.parametrize("parts", [1, 2])
def test_epilogue(device, monkeypatch, shaders, block, split, parts) -> None:
    force(monkeypatch, device, replace(block, parts=parts), split)
    source, weight, residual = floats(2, 3, 5, 7), floats(23, 3, 3, 3), floats(2, 23, 5, 7)
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.float32, (2, 23, 5, 7)))
    args = with_defaults("aten::conv2d", (source, weight, None, [1, 1], [1, 1]), {})
    call = constant_call("aten::conv2d", args, (1,), torch.conv2d(source, weight, None, 1, 1))
    inputs = [(call.args[0], source)]
    call = with_epilogue(call, steps)
    assert steps.residual is not None
    inputs.append((steps.residual, residual))
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout=False)
    exact = torch.relu(torch.conv2d(source.double(), weight.double(), None, 1, 1)) + residual.double()
    assert any("planar" in shader for shader in shaders)
    torch.testing.assert_close(found.double(), exact, rtol=SUM_LOSS, atol=1e-5)


@each_family
@pytest.mark.parametrize("number", [math.nan, math.inf, 1e30, -1e-30, 3e5])
def test_special_numbers_beside_padding(device, monkeypatch, shaders, block, split, number) -> None:
    """Padding is zero whatever is next to it, in the planes too; and what no scale of split floats suits is summed up
    from the planes."""
    force(monkeypatch, device, block, split)
    source, weight = floats(2, 3, 7, 5), floats(19, 3, 3, 3)
    source[0, 0, 0, 0] = source[1, 2, -1, -1] = source[0, 1, 3, -1] = number
    found = convolved(device, source, weight, None, (1, 1), (2, 2), (1, 1))
    assert "planar" in shaders[0]
    exact = torch.conv2d(source.double(), weight.double(), None, 1, 2).float()
    assert_close(found, exact)


@each_family
def test_images_of_one_magnitude(device, monkeypatch, shaders, block, split) -> None:
    """Other scales, and beyond them ordinary arithmetic, where the split has any."""
    force(monkeypatch, device, block, split)
    for exponent in (-60, -20, 9, 20, 45):
        check(device, floats(2, 3, 7, 5) * 2.0**exponent, floats(19, 3, 3, 3), (2, 1), (1, 1), (1, 1))
    assert all("planar" in shader for shader in shaders if shader.startswith("product_"))


@each_family
def test_images_that_lie_in_something_larger(device, monkeypatch, shaders, block, split) -> None:
    """Rows of a batch are planes at any place; what is no run of planes is copied."""
    force(monkeypatch, device, block, split)
    whole, weight, steps = floats(5, 3, 7, 5), floats(19, 3, 3, 3), ((1, 1), (1, 1), (1, 1))
    planar = [whole[2:4], whole[4:], floats(7, 7, 5)[3:6].unsqueeze(0), floats(106)[1:].view(1, 3, 7, 5)]
    copied = [whole[..., 1:], whole[:, :, 1:], whole[::2], whole.transpose(2, 3), floats(2, 5, 7, 5)[:, 1:4]]
    copied += [floats(2, 7, 5, 3).permute(0, 3, 1, 2), whole[:1, :, :1].expand(2, 3, 4, 5)]
    for sources, first in ((planar, True), (copied, False)):
        for source in sources:
            shaders.clear()
            check(device, source, weight, *steps)
            assert ("planar" in shaders[0]) == first, source.stride()
    shaders.clear()
    check(device, floats(2, 5, 7, 5), floats(19, 5, 3, 3), *steps)
    assert not any("planar" in shader for shader in shaders)


def test_planes_of_halves(device, monkeypatch, shaders) -> None:
    """As a caller gives them: two share a word."""
    force(monkeypatch, device, BLOCKS[0], split=False)
    source, weight = floats(2, 3, 7, 5).half(), floats(19, 3, 3, 3).half()
    call = constant_call("aten::conv2d", with_defaults("aten::conv2d", (source, weight), {}), (1,),
                         torch.conv2d(source, weight))  # fmt: skip
    (found,) = run_calls(device, [call], [(call.args[0], source)], list(call.outputs), device_layout=False)
    assert "planar" in shaders[0]
    torch.testing.assert_close(found, torch.conv2d(source.double(), weight.double()).half(), rtol=2e-3, atol=2e-3)


class Readers(nn.Module):
    """An image that convolutions read, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 11, 3, stride=2, padding=1), nn.Conv2d(3, 7, 5, stride=2, padding=2)
        self.own = nn.Conv2d(3, 3, 3, padding=1, groups=3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.one(x), self.two(x), torch.max_pool2d(x, 2), self.own(x) * x


def with_switches(device: Device, monkeypatch: pytest.MonkeyPatch, *switches: str) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset(switches)))


def outputs_agree(model: nn.Module, device: Device, x: Tensor) -> None:
    found, expected = VulkanProgram(scripted(model), device)(x), model(x)
    for one, other in zip(*((found, expected) if isinstance(expected, tuple) else ([found], [expected])), strict=True):
        assert_close(one, other)


@torch.no_grad()
def test_other_readers_of_an_image(device, monkeypatch, shaders) -> None:
    """Copies are each reader's own, so those that read planes need none, whoever else reads the image."""
    torch.manual_seed(3)
    with_switches(device, monkeypatch, "shared-products")
    outputs_agree(Readers(), device, floats(2, 3, 13, 11))
    assert sum("planar" in shader for shader in shaders) == 2
    planar = len(shaders)
    shaders.clear()
    with_switches(device, monkeypatch, "shared-products", "no-planar-inputs")
    outputs_agree(Readers(), device, floats(2, 3, 13, 11))
    assert len(shaders) == planar + 2
    assert not any("planar" in shader for shader in shaders)


@torch.no_grad()
def test_a_slice_inside_a_model(device, monkeypatch, shaders) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 11, 3, padding=1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x[1:]), self.layer(x[:, :, 1:])

    torch.manual_seed(3)
    with_switches(device, monkeypatch, "shared-products")
    outputs_agree(Sliced(), device, floats(3, 3, 7, 5))
    assert sum("planar" in shader for shader in shaders) == 1


@torch.no_grad()
def test_images_of_one_dimension(device, monkeypatch, shaders) -> None:
    torch.manual_seed(3)
    with_switches(device, monkeypatch, "shared-products")
    outputs_agree(nn.Sequential(nn.Conv1d(2, 13, 7, stride=3, padding=4, dilation=2)), device, floats(3, 2, 41))
    assert "planar" in shaders[0]


@torch.no_grad()
def test_drivers_on_the_cpu_copy(device, shaders) -> None:
    torch.manual_seed(3)
    if device.info.is_cpu:
        outputs_agree(nn.Conv2d(3, 16, 3), device, floats(1, 3, 9, 9))
        assert not any("planar" in shader for shader in shaders)


@torch.no_grad()
def test_dispatches_that_wait_by_a_counter(emulating, shaders) -> None:  # noqa: F811
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 13, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(13, 5, 1))
    runner = VulkanProgram(scripted(model), emulating)
    for seed in range(3):
        x = floats(2, 3, 23, 17) + seed
        assert_close(runner(x), model(x))
    assert emulating.chains and "planar" in shaders[0]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@torch.no_grad()
def test_images_in_half_precision(only_units, shaders, channels) -> None:
    """One channel too, which is channels_last as it lies, but for its pitch."""
    generator = torch.Generator().manual_seed(channels)
    module = nn.Sequential(nn.Conv2d(channels, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 7, 1)).eval()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / 4
    x = floats(2, channels, 13, 11)
    found = VulkanProgram(scripted(module), only_units, precision=PrecisionChoice("fp16"))(x)
    kind = "fragments" if takes_fragments(only_units.info) else "matrix"
    assert shaders[0].startswith(f"product_{kind}_planar")
    halves = [nn.functional.conv2d(x.half().float(), module[0].weight.half().float(), module[0].bias, 2, 1)]
    halves.append(
        nn.functional.conv2d(halves[0].relu().half().float(), module[2].weight.half().float(), module[2].bias)
    )
    assert float((found - halves[1]).abs().max()) <= 1e-3 * float(halves[1].abs().max())


def test_values_that_halves_do_not_hold_stay_floats(only_units, shaders) -> None:
    module = nn.Conv2d(3, 24, 3, padding=1).eval()
    x = floats(2, 3, 13, 11) * 1e6
    with torch.no_grad():
        module.weight.copy_((floats(24, 3, 3, 3) / 100).half())
        expected = module(x)
        found = VulkanProgram(scripted(module), only_units, precision=PrecisionChoice("fp16"))(x)
    assert shaders[0].startswith("product_matrix_split_planar")
    assert_close(found, expected)


# rows, columns, filter, pixels of the input
FIRST_LAYERS = {
    "MobileNetV2": ((112, 32), 3, 224),
    "ResNet50": ((112, 64), 7, 224),
    "ConvNeXt-tiny": ((56, 96), 4, 224),
    "ViT-small": ((14, 384), 16, 224),
    "ViT-large": ((14, 1024), 16, 224),
    "U-Net": ((224, 24), 3, 224),
}


def choice(device: DeviceInfo, batch: int, side: int, columns: int, taps: int, pixels: int, **runs: int) -> bool:
    """Whether a layer reads planes of three channels."""
    vectors = columns // 4
    shape = ProductShape(batch * side * side, taps * taps, vectors, vectors, taps=taps * taps, **runs)
    kernel = choose_gpu_kernel(device, shape)
    return reads_planes(device, kernel, shape, 3, batch * pixels * pixels)


@pytest.mark.parametrize("net", FIRST_LAYERS)
@pytest.mark.parametrize("runs", [{}, {"float_run": 4}, {"half_run": 4}], ids=["floats", "split", "halves"])
def test_first_layers_of_networks(net, runs) -> None:
    (side, columns), taps, pixels = FIRST_LAYERS[net]
    assert choice(known_device("nvidia_h200"), 1, side, columns, taps, pixels, **runs)


@pytest.mark.parametrize(("net", "batch"), [("ResNet50", 8), ("ResNet50", 32)])
def test_batches_of_halves_are_copied(net, batch) -> None:
    """As was measured: each pixel is read and rounded a dozen times."""
    (side, columns), taps, pixels = FIRST_LAYERS[net]
    assert not choice(known_device("nvidia_h200"), batch, side, columns, taps, pixels, half_run=4)


def test_where_a_copy_costs_less() -> None:
    """Large filters that overlap, or many columns of them, read a pixel more often than a copy does."""
    h200 = known_device("nvidia_h200")
    assert choice(h200, 1, 64, 64, 7, 64)
    assert not choice(h200, 8, 512, 64, 7, 512)
    assert not choice(h200, 1, 512, 1024, 3, 512)
    assert not choice(replace(h200, switches=frozenset({"no-planar-inputs"})), 1, 112, 32, 3, 224)
    cpu = device_info("cpu")
    shape = ProductShape(12544, 9, 8, 8, taps=9)
    assert not reads_planes(cpu, product_kernels.choose_product_kernel(cpu, shape, False), shape, 3, 50176)


class Wide(nn.Module):
    """A layer of two images that reads planes of small ones only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 7, padding=3), nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) - self.second(torch.relu(self.first(y)))


def test_each_size_decides_for_itself() -> None:
    program, h200 = scripted(Wide()), known_device("nvidia_h200")
    checked = Checked(program, h200)
    firsts = set()
    for side in (31, 33, 64, 700, 47, 512, 1024):
        images = [torch.zeros(2, 3, side, side + 1) for _ in range(2)]
        checked.check(images)
        stream = build_stream(specialize(program, "forward", images), h200, ConstantStore()).stream
        firsts.add(next(step.shader for step in stream.operations if isinstance(step, Dispatch)))
    assert checked.hits >= 5
    assert any("planar" in first for first in firsts) and any("planar" not in first for first in firsts)
