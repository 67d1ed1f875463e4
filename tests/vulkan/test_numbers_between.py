"""Numbers between two that are computed, powers, choices, and places of what isn't zero, beside torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_node import check
from torch import Tensor

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_between_two_tensors(computer: Any, steps: int) -> None:
    low, high = torch.tensor(-2.5), torch.tensor(71.25)
    for name in ("linspace", "logspace"):
        more = {} if name == "linspace" else {"base": 1.5}
        check(computer, f"aten::{name}.Tensor_Tensor", low, high, steps, **more)
        check(computer, f"aten::{name}.Tensor_Tensor", high, low, steps, **more)
        check(computer, f"aten::{name}.Tensor_Scalar", low, 3, steps, **more)
        if steps > 1:
            check(computer, f"aten::{name}.Scalar_Tensor", 0.5, high, steps, **more)


def test_powers(computer: Any) -> None:
    for x in (torch.randn(5), torch.randint(-9, 9, (7,)), torch.randint(0, 5, (3,), dtype=torch.uint8)):
        for count in (None, 1, 4):
            for increasing in (False, True):
                check(computer, "aten::vander", x, count, increasing)


def test_choices(computer: Any) -> None:
    for x in (torch.randn(5), torch.arange(7) > 3, torch.arange(6)):
        for count in (1, 2, 4):
            for again in (False, True):
                check(computer, "aten::combinations", x, count, again)


@pytest.mark.parametrize("size", [1, 7, 23, 105])
def test_places_of_what_is_not_zero(computer: Any, size: int) -> None:
    x = torch.randn(3, 5, 7).relu()
    for given in (x, x > 0, (x * 3).int(), x[0, 0], x * 0, x + 1):
        check(computer, "aten::nonzero_static", given, size=size)
        check(computer, "aten::nonzero_static", given, size=size, fill_value=-100)


class Histogram(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.histc(x, 7)


def test_what_has_no_bounds_is_torchs_error(device: Device) -> None:
    good = torch.randn(17)
    traced = torch.jit.trace(Histogram(), good)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(good), torch.histc(good, 7))
    assert not program.plan_report([good]).fallbacks
    for wrong in (torch.inf, torch.nan):
        with pytest.raises(InputError, match="is not finite"):
            program(good.index_fill(0, torch.tensor([3]), wrong))
    torch.testing.assert_close(program(good), torch.histc(good, 7))
