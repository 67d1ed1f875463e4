"""Device profiles, and what is too large for a device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.errors import InputError
from mobopt.ir.facts import TensorFacts
from mobopt.ops.targets.device_profiles import (
    ANY_PHONE,
    DeviceProfile,
    device_profiles,
    find_profile,
    tensor_extent,
    weight_extent,
)
from mobopt.ops.targets.verdicts import image_misfit
from mobopt.tools.audit import audit


@pytest.mark.parametrize("profile", device_profiles().values(), ids=list(device_profiles()))
def test_every_profile_says_where_its_figures_come_from(profile: DeviceProfile) -> None:
    assert profile.device
    assert profile.source
    assert profile.backend in ("vulkan", "metal")
    assert profile.image_2d >= profile.image_3d >= 256, "Vulkan requires 256"
    assert profile.image_2d >= 4096
    assert profile.storage_buffer is None or profile.storage_buffer >= 1 << 27


def test_profiles_are_found_by_name_and_backend() -> None:
    assert find_profile("adreno-6xx", "vulkan").image_3d == 2048
    with pytest.raises(InputError, match="did you mean adreno-6xx"):
        find_profile("adreno6xx", "vulkan")
    with pytest.raises(InputError, match="is for metal"):
        find_profile("apple-a9", "vulkan")
    with pytest.raises(InputError, match="no device profiles for the backend cpu"):
        find_profile("adreno-6xx", "cpu")


@pytest.mark.parametrize(
    ("sizes", "extent"),
    [
        ((7,), (7, 1, 1)),
        ((3, 7), (7, 3, 1)),
        ((9, 3, 7), (7, 3, 3)),
        ((2, 9, 3, 7), (7, 3, 6)),
        ((1, 4, 1, 1), (1, 1, 1)),
    ],
)
def test_the_image_of_a_tensor(sizes: tuple[int, ...], extent: tuple[int, int, int]) -> None:
    assert tensor_extent(sizes) == extent


@pytest.mark.parametrize("sizes", [(), (1, 2, 3, 4, 5), (0, 3)])
def test_what_is_no_image(sizes: tuple[int, ...]) -> None:
    assert tensor_extent(sizes) is None


@pytest.mark.parametrize(
    "sizes", [(2048,), (2049,), (1, 8192, 1, 1), (1, 8193, 1, 1), (3, 4 * 683, 5, 5), (1, 1, 2049, 1), (2, 4096, 1, 1)]
)
def test_most_phones_hold_what_target_rows_let_pass(sizes: tuple[int, ...]) -> None:
    extent = tensor_extent(sizes)
    assert extent is not None
    assert bool(ANY_PHONE.misfit(extent)) == bool(image_misfit(TensorFacts("float32", sizes)))


@pytest.mark.parametrize(
    ("operator", "shape", "groups", "transposed", "runtime", "extent"),
    [
        # What PyTorch's own comments in ops/Convolution.cpp compute for these weights.
        ("aten::conv2d", (10, 7, 3, 3), 1, False, "2.6", (24, 9, 1)),
        ("aten::conv2d", (11, 1, 3, 3), 11, False, "2.6", (9, 3, 1)),
        ("aten::conv_transpose2d.input", (7, 10, 3, 3), 1, True, "2.1", (24, 9, 1)),
        ("aten::linear", (10, 7), 1, False, "1.13", (5, 4, 1)),
        ("aten::linear", (10, 7), 1, False, "2.1", (10, 7, 1)),
        ("aten::conv1d", (10, 7, 3), 1, False, "2.6", None),
    ],
)
def test_the_image_of_a_packed_weight(
    operator: str, shape: tuple[int, ...], groups: int, transposed: bool, runtime: str, extent: object
) -> None:
    assert weight_extent(operator, shape, groups, transposed, runtime) == extent


class _Wide(nn.Module):
    """A convolution whose packed weight is three texels wide for each channel, and one with 1100 channels behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 1100, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_weights_and_tensors_over_a_limit_are_named() -> None:
    module, x = torch.jit.script(_Wide(600).eval()), torch.rand(1, 600, 5, 7)
    file = optimize_for_mobile(module, backend="vulkan", example_inputs=[x])
    found = audit(file, example_inputs=[x], device_profile="vulkan-minimum")
    subjects = {item.subject: item for item in found.limits}
    assert set(subjects) == {
        "weight float32[8, 600, 3, 3]",
        "weight float32[1100, 8, 1, 1]",
        "result float32[1, 1100, 5, 7]",
    }
    weight = subjects["weight float32[8, 600, 3, 3]"]
    assert weight.extent == (1800, 6, 1)
    assert "in first" in weight.source
    assert "input channels" in weight.help
    assert "256x256x256" in weight.problem
    assert "output channels" in subjects["weight float32[1100, 8, 1, 1]"].help
    assert "channels" in subjects["result float32[1, 1100, 5, 7]"].help
    assert not found.is_good
    assert found.problems == ["3 too large for vulkan-minimum"]
    before = audit(module, example_inputs=[x], device_profile="vulkan-minimum")
    assert {item.subject for item in before.limits} == set(), "what is too large is divided or on the CPU"


def test_weights_of_convolutions_are_flat_since_2_6() -> None:
    module, x = torch.jit.script(_Wide(700).eval()), torch.rand(1, 700, 5, 7)

    def limits(profile: str | None, runtime: str) -> list[str]:
        file = optimize_for_mobile(module, backend="vulkan", example_inputs=[x], runtime=runtime, legalize="off")
        found = audit(file, example_inputs=[x], device_profile=profile, runtime=runtime)
        assert found.is_good == (not found.limits)
        return [item.subject for item in found.limits]

    assert limits(None, "2.2") == ["weight float32[8, 700, 3, 3]"]
    assert limits(None, "2.6") == limits("mali-g78", "2.2") == []
    assert "weight float32[8, 700, 3, 3]" not in limits("vulkan-minimum", "2.6")


def test_metal_counts_the_slices_of_texture_arrays() -> None:
    module, x = torch.jit.script(nn.Conv2d(3, 8200, 1).eval()), torch.rand(1, 3, 2, 2)
    found = audit(module, "metal", example_inputs=[x], device_profile="apple-a9")
    assert [item.extent for item in found.limits] == [(2, 2, 2050)]
    assert "16384x16384x2048" in found.limits[0].problem
