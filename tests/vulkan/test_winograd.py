"""Convolutions of 3 x 3 taps by fewer multiplications: odd sizes, beside torch; and where they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels import convolution_kernels, winograd, winograd_weights
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.push_constants import ProductPush

pytestmark = pytest.mark.usefixtures("own_costs")
KERNELS = ["winograd_spread", "winograd_gather"]


@pytest.fixture(params=["", "shared-products", "no-texels"])
def chosen(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device on which every convolution that can be is computed so, also as a GPU does it."""
    switches = device.info.switches | ({request.param} if request.param else set())
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset(switches)))
    monkeypatch.setattr(convolution_kernels, "is_faster", lambda *_: True)
    return device


def floats(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def filters(model: nn.Module) -> nn.Module:
    """The model with seeded weights, for inference."""
    for parameter in model.parameters():
        parameter.data = floats(*parameter.shape) / max(parameter[0].numel(), 1) ** 0.5
    return model.eval()


def run(device: Device, model: nn.Module, *inputs: Tensor, precision: str = "fp32") -> tuple[Tensor, list[str]]:
    """What a model gives, and its shaders in order, without their variants' endings."""
    scripted = torch.jit.trace(model, inputs, check_trace=False)  # type: ignore[no-untyped-call]
    program = program_from_script_module(scripted)
    shaders: list[str] = []
    dispatch = Plan.dispatch

    def noting(plan: Plan, shader: str, *args: object, **named: object) -> None:
        shaders.append(shader.removesuffix("_texels"))
        dispatch(plan, shader, *args, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "dispatch", noting)
        runner = VulkanProgram(program, device, fallback="error", precision=PrecisionChoice.of(precision))
        result = runner.run("forward", list(inputs))
    return result, shaders


@torch.no_grad()
def assert_exact(found: Tensor, model: nn.Module, *inputs: Tensor, error: float = 3e-6) -> None:
    """At most so much of the result's scale from float64."""
    exact = model.double()(*(x.double() for x in inputs))
    model.float()
    assert found.shape == exact.shape
    assert float((found.double() - exact).abs().max()) <= error * float(exact.abs().max())


SIZES = [  # batch, channels, height, width; results; padding
    ((1, 8, 12, 16), 8, 1),
    ((1, 13, 11, 17), 22, (1, 1)),
    ((2, 7, 9, 5), 5, (0, 0)),
    ((3, 5, 3, 3), 3, 0),
    ((1, 5, 1, 1), 4, 1),
    ((2, 33, 7, 13), 65, (3, 2)),
    ((1, 64, 19, 23), 31, 2),
]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes[0])))
def test_beside_float64(chosen: Device, sizes: tuple[tuple[int, ...], int, int]) -> None:
    (batch, channels, high, wide), results, padding = sizes
    for has_bias in (True, False):
        model = filters(nn.Conv2d(channels, results, 3, padding=padding, bias=has_bias))
        x = floats(batch, channels, high, wide)
        found, shaders = run(chosen, model, x)
        assert set(KERNELS) <= set(shaders)
        assert_exact(found, model, x)


class Residual(nn.Module):
    """Activations before and after what is added, and results that are parts of a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first(x).clamp(-0.5, 0.75) + x)
        return torch.cat([inner, nn.functional.silu(self.second(inner)), x], 1)


def test_epilogues_and_parts(chosen: Device) -> None:
    model, x = filters(Residual()), floats(2, 12, 10, 7)
    found, shaders = run(chosen, model, x)
    assert shaders.count(KERNELS[0]) == shaders.count(KERNELS[1]) == 2
    assert_exact(found, model, x)


def test_views_of_other_layouts(chosen: Device) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 9, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv((x * 2).transpose(2, 3)[:, 1:7, 1:])

    model, x = filters(Turned()), floats(2, 8, 11, 9)
    found, _ = run(chosen, model, x)
    assert_exact(found, model, x)


@pytest.mark.parametrize("sizes", [(3, 1, 1), (5, 2, 1), (6, 2, 4)], ids=str)
def test_transposed_convolutions(chosen: Device, sizes: tuple[int, int, int]) -> None:
    """Of which one phase of the stride, or each, has 3 x 3 taps."""
    taps, stride, phases = sizes
    model, x = filters(nn.ConvTranspose2d(7, 10, taps, stride, padding=2)), floats(2, 7, 9, 8)
    found, shaders = run(chosen, model, x)
    assert shaders.count(KERNELS[0]) == phases
    assert_exact(found, model, x)


def test_bands(chosen: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 tiles in several images, seven at a time."""
    numbers = 36 * 7 * 4 * (2 + 3)
    monkeypatch.setattr(winograd, "_BAND_NUMBERS", numbers)
    monkeypatch.setattr(winograd, "_GPU_BAND_NUMBERS", numbers)
    model, x = filters(nn.Conv2d(7, 11, 3, padding=1)), floats(3, 7, 18, 7)
    found, shaders = run(chosen, model, x)
    assert shaders.count(KERNELS[0]) == 5
    assert_exact(found, model, x)


def test_padding_of_channels_may_hold_anything(chosen: Device) -> None:
    """The fourth channel of the first result's vec4s is never read as a number."""
    model = filters(nn.Sequential(nn.Conv2d(5, 3, 1), nn.ReLU(), nn.Conv2d(3, 6, 3, padding=1)))
    x = floats(1, 5, 9, 9)
    found, shaders = run(chosen, model, x)
    assert KERNELS[0] in shaders
    assert_exact(found, model, x)


@pytest.mark.parametrize(
    "model",
    [
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Conv2d(8, 8, 3, dilation=2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, (3, 1)),
    ],
    ids=lambda model: str(model),
)
def test_others_are_not(chosen: Device, model: nn.Module) -> None:
    x = floats(1, 8, 11, 13)
    found, shaders = run(chosen, filters(model), x)
    assert not set(KERNELS) & set(shaders)
    assert_exact(found, model, x)


def test_halves_are_not(chosen: Device) -> None:
    """36 numbers of a tile are larger than its own: halves would lose more, and matrix units don't need it."""
    model = filters(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)))
    x = floats(1, 8, 11, 13)
    found, shaders = run(chosen, model, x, precision="fp16")
    assert KERNELS[0] not in shaders
    assert_exact(found, model, x, error=2e-3)


def test_a_switch_leaves_it_out(lavapipe: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = filters(nn.Conv2d(64, 64, 3, padding=1)), floats(1, 64, 56, 56)
    seen = run(lavapipe, model, x)[1]
    monkeypatch.setattr(lavapipe, "info", replace(lavapipe.info, switches=lavapipe.info.switches | {"no-winograd"}))
    assert KERNELS[0] in seen and KERNELS[0] not in run(lavapipe, model, x)[1]


def is_chosen(device: DeviceInfo, batch: int, channels: int, size: int) -> bool:
    vectors, rows = channels // 4, batch * size * size
    product = ProductPush(rows, vectors, vectors, 0, vectors, out_height=size, out_width=size)
    return winograd.is_faster(device, product, 0)


H200 = replace(known_device("nvidia_h200"), driver_id=4)
ORDINARY = replace(H200, switches=frozenset({"no-split-products"}))


@pytest.mark.parametrize(
    ("info", "batch", "channels", "size", "expected"),
    [  # as it was measured on an H200
        (ORDINARY, 1, 64, 56, False),
        (ORDINARY, 1, 512, 7, False),
        (ORDINARY, 8, 64, 56, True),
        (ORDINARY, 8, 512, 7, True),
        (ORDINARY, 1, 64, 224, True),
        (H200, 8, 64, 56, False),
        (H200, 1, 64, 224, False),
        (H200, 1, 256, 56, False),
        (H200, 1, 128, 112, True),
        (H200, 32, 256, 14, True),
    ],
)
def test_what_gpus_choose(info: DeviceInfo, batch: int, channels: int, size: int, expected: bool) -> None:
    assert is_chosen(info, batch, channels, size) == expected


def test_what_cpus_choose(lavapipe: Device) -> None:
    found = [is_chosen(lavapipe.info, 1, channels, size) for channels, size in ((64, 56), (256, 14), (16, 56), (64, 7))]
    assert found == [True, True, False, False]


def test_the_three_matrices_are_a_convolution() -> None:
    """A filter of three taps over six numbers, in float64, by the matrices of ``winograd.glsl``."""
    a = winograd_weights.POINT
    spread = torch.tensor(
        [
            [4 * a**4, 0, -5 * a**2, 0, 1, 0],
            [0, -4 * a**3, -4 * a**2, a, 1, 0],
            [0, 4 * a**3, -4 * a**2, -a, 1, 0],
            [0, -2 * a**3, -(a**2), 2 * a, 1, 0],
            [0, 2 * a**3, -(a**2), -2 * a, 1, 0],
            [0, 4 * a**4, 0, -5 * a**2, 0, 1],
        ],
        dtype=torch.float64,
    )
    gather = torch.tensor(
        [[point**power for point in (0, a, -a, 2 * a, -2 * a)] + [power // 3] for power in range(4)],
        dtype=torch.float64,
    )
    numbers, taps = floats(6).double(), floats(3).double()
    found = gather @ ((winograd_weights.filter_transform() @ taps) * (spread @ numbers))
    torch.testing.assert_close(found, numbers.unfold(0, 3, 1) @ taps, rtol=0, atol=1e-14)
