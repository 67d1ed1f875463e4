"""Images whose pixels are put beside each other for the first convolution: odd sizes, beside torch; and which are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from harness import assert_close
from test_chains import emulating  # noqa: F401  (a fixture)
from test_planar_inputs import (
    FIRST_LAYERS,
    SUM_LOSS,
    convolved,
    floats,
    only_units,  # noqa: F401  (a fixture)
    scripted,
    shaders,  # noqa: F401  (a fixture)
    with_switches,
)
from test_recorded import Checked
from torch import Tensor, nn

from mobopt.options import PrecisionChoice
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.call_plan import CallPlan
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import convolution_kernels
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel, takes_fragments
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import units_lanes
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.product_planes import reads_planes
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.program import VulkanProgram

# input, filter, stride, padding, dilation: odd and even taps and strides
CASES = [
    ((1, 3, 31, 37), (24, 3, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((2, 3, 31, 38), (11, 3, 5, 7), (3, 2), (2, 3), (1, 1)),
    ((3, 1, 17, 19), (8, 1, 3, 3), (2, 2), (1, 1), (1, 1)),
    ((1, 4, 32, 29), (41, 4, 4, 4), (4, 4), (0, 0), (1, 1)),
    ((2, 3, 23, 29), (20, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 3, 23, 29), (20, 3, 5, 5), (3, 3), (1, 4), (1, 1)),
    ((1, 2, 23, 29), (7, 2, 3, 2), (1, 2), (1, 1), (2, 1)),
    ((2, 3, 1, 19), (13, 3, 1, 6), (1, 5), (0, 2), (1, 1)),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, (*case[0], *case[1]))))


@pytest.fixture
def in_rows(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device by whose plans no convolution reads planes, as a GPU's."""
    monkeypatch.setattr(convolution_kernels, "reads_planes", lambda *_: False)
    with_switches(device, monkeypatch, "shared-products")
    return device


@each_case
def test_floats(in_rows: Device, shaders: list[str], case: Sequence[Sequence[int]]) -> None:  # noqa: F811
    source, weight, bias = floats(*case[0]), floats(*case[1]), floats(case[1][0])
    found = convolved(in_rows, source, weight, bias, *case[2:])
    exact = torch.conv2d(source.double(), weight.double(), bias.double(), *case[2:])
    assert shaders[0] == "image_rows"
    assert float((found.double() - exact).abs().max()) <= SUM_LOSS * float(exact.abs().max())


def halves_of(case: Sequence[Sequence[int]]) -> tuple[nn.Module, Tensor]:
    """A convolution, and another that reads its result as halves; and an image."""
    sizes, filters, stride, padding, dilation = case
    first = nn.Conv2d(sizes[1], filters[0], tuple(filters[2:]), stride, padding, dilation)
    model = nn.Sequential(first, nn.ReLU(), nn.Conv2d(filters[0], 9, 1)).eval()
    for parameter in model.parameters():
        parameter.data = floats(*parameter.shape) / parameter[0].numel() ** 0.5
    return model, floats(*case[0])


@each_case
@torch.no_grad()
def test_halves(only_units: Device, monkeypatch, shaders, case: Sequence[Sequence[int]]) -> None:  # noqa: F811
    """By matrix units: pairs of pixels straight to registers where the device has its fragments known."""
    monkeypatch.setattr(convolution_kernels, "reads_planes", lambda *_: False)
    model, x = halves_of(case)
    found = VulkanProgram(scripted(model), only_units, precision=PrecisionChoice("fp16"))(x)
    assert shaders[0] == "image_rows"
    kind = "fragments" if takes_fragments(only_units.info) else "matrix"
    assert shaders[1].startswith(f"product_{kind}") and "planar" not in shaders[1]
    expected = model(x.half().float())
    assert float((found - expected).abs().max()) <= 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("case", CASES[:5], ids=lambda case: "x".join(map(str, (*case[0], *case[1]))))
@torch.no_grad()
def test_pixels_beside_a_row_of_taps(only_units: Device, monkeypatch, case, number: float) -> None:  # noqa: F811
    """An odd row of taps is read with the pixel after it, which is no part of the sum, whatever it is."""
    monkeypatch.setattr(convolution_kernels, "reads_planes", lambda *_: False)
    model, x = halves_of(case)
    runner = VulkanProgram(scripted(model[:2]), only_units, precision=PrecisionChoice("fp16"))
    runner(x)  # with ordinary numbers: the input is one that halves hold
    for place in (0, x.shape[3] // 2, x.shape[3] - 1):
        special = x.clone()
        special[0, 0, x.shape[2] // 2, place] = number
        found, expected = runner(special), model[:2](special.half().float())
        assert torch.equal(found.isfinite(), expected.isfinite())


@torch.no_grad()
def test_dispatches_that_wait_by_a_counter(emulating: Device, monkeypatch, shaders) -> None:  # noqa: F811
    monkeypatch.setattr(convolution_kernels, "reads_planes", lambda *_: False)
    model, x = halves_of(CASES[0])
    runner = VulkanProgram(scripted(model), emulating)
    for seed in range(3):
        assert_close(runner(x + seed), model(x + seed))
    assert emulating.chains and shaders[0] == "image_rows"


class TwoImages(nn.Module):
    """A layer of images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def test_each_size_has_rows_of_its_own() -> None:
    """Plans of new sizes are made from recorded steps, and are those that would be made anew."""
    program = scripted(TwoImages())
    h200 = replace(known_device("nvidia_h200"), driver_id=4)
    checked = Checked(program, h200)
    firsts = set()
    for side in (31, 512, 700, 33, 1024, 515):
        images = [torch.zeros(8, 3, side, side + 1)]
        checked.check(images)
        stream = build_stream(specialize(program, "forward", images), h200, ConstantStore()).stream
        firsts.add(next(step.shader for step in stream.operations if isinstance(step, Dispatch)))
    assert checked.hits >= 3 and "image_rows" in firsts


@pytest.mark.parametrize(
    ("net", "batch", "planes"),
    [("ResNet50", 1, False), ("ResNet50", 32, False), ("MobileNetV2", 1, True), ("MobileNetV2", 8, False),
     ("ViT-small", 1, False), ("U-Net", 1, False), ("ConvNeXt-tiny", 8, False)],
)  # fmt: skip
def test_first_layers_of_halves(net: str, batch: int, planes: bool) -> None:
    """As was measured on an H200."""
    (side, columns), taps, pixels = FIRST_LAYERS[net]
    h200 = replace(known_device("nvidia_h200"), driver_id=4)
    vectors = columns // 4
    rows = batch * side * side
    shape = ProductShape(rows, taps * taps, vectors, vectors, taps=taps * taps, half_run=4, fits_fragments=True)
    kernel = choose_gpu_kernel(h200, shape)
    assert isinstance(kernel, FragmentKernel)
    assert reads_planes(h200, kernel, shape, 3, batch * pixels * pixels) == planes


# What the host writes.


def written(runner: VulkanProgram, monkeypatch: pytest.MonkeyPatch, *args: Tensor) -> list[torch.dtype]:
    """Of which type the elements are that the host writes for a call."""
    found: list[torch.dtype] = []
    compute = CallPlan.compute

    def noting(plan: CallPlan, given: object) -> object:
        assert plan.executable is not None
        found.extend(tensor.elements for tensor in plan.executable._staged.inputs)  # type: ignore[union-attr]
        return compute(plan, given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(CallPlan, "compute", noting)
        patch.setattr(CallPlan, "run", lambda plan, given: plan.deliver(given, noting(plan, given)))  # type: ignore[arg-type]
        runner(*args)
    return found


class Sum(nn.Module):
    """An image that is added to what is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x


@torch.no_grad()
def test_images_are_written_as_halves(device: Device, monkeypatch) -> None:
    """Where convolutions by matrix units alone read them, and halves hold them; results are those of an image of
    halves."""
    model, x = halves_of(CASES[0])
    if not units_lanes(device.info, device_costs(device.info)):
        plain = VulkanProgram(scripted(model), device, precision=PrecisionChoice("fp16"))
        assert written(plain, monkeypatch, x) == [torch.float32]
    with_switches(device, monkeypatch, "emulated-matrix-units")
    fp16 = PrecisionChoice("fp16")
    runner = VulkanProgram(scripted(model), device, precision=fp16)
    assert written(runner, monkeypatch, x) == [torch.float16]
    assert torch.equal(runner(x), runner(x.half().float()))
    far = VulkanProgram(scripted(model), device, precision=fp16)
    assert written(far, monkeypatch, x * 1e6) == [torch.float32]
    assert written(VulkanProgram(scripted(Sum().eval()), device, precision=fp16), monkeypatch, x) == [torch.float32]
    single = VulkanProgram(scripted(model), device)
    assert written(single, monkeypatch, x) == [torch.float32]
    named = VulkanProgram(scripted(model), device, precision=PrecisionChoice("fp16", ("aten::conv2d",)))
    assert written(named, monkeypatch, x) == [torch.float32]


@pytest.mark.sweep
@torch.no_grad()
def test_images_on_the_device_are_read_where_they_lie(device: Device, monkeypatch) -> None:
    with_switches(device, monkeypatch, "emulated-matrix-units")
    model, x = halves_of(CASES[1])
    runner = VulkanProgram(scripted(model), device, precision=PrecisionChoice("fp16"))
    expected = runner(x)
    array = runner.run_on_device("forward", (x,))
    image = DeviceArray.from_tensor(device, x)
    found = runner.run_on_device("forward", (image,))
    assert isinstance(found, DeviceArray) and isinstance(array, DeviceArray)
    scale = float(expected.abs().max())
    for result in (array, found):
        assert float((result.tensor() - expected).abs().max()) <= 2e-3 * scale
    assert torch.equal(image.tensor(), x)
