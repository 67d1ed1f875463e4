"""Special functions on tensors of several layouts and dtypes; how exact they are is measured elsewhere."""

from __future__ import annotations

import pytest
import torch
from harness import check_op
from sampling import sampled

from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.pointwise_program import MAX_SPECIAL_STEPS, Kind, Opcode, ProgramBuilder

ONE = (
    *("lgamma", "digamma", "erfc", "erfinv", "i0", "special_i1", "special_i0e", "special_i1e", "special_erfcx"),
    *("special_log_ndtr", "special_bessel_j0", "special_bessel_j1", "signbit", "angle", "frexp.Tensor"),
)
OF_POSITIVE = (
    *("special_bessel_y0", "special_bessel_y1", "special_ndtri", "special_modified_bessel_k0"),
    *("special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1"),
)


def layouts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 7, 5, generator=generator) * 1.8 - 0.9
    return [x, x.permute(2, 0, 1)[:, 1:], x[0, 0, 0]]


@pytest.mark.parametrize("name", sampled([*ONE, *OF_POSITIVE], one_in=2))
def test_functions_of_one_number(device: Device, name: str) -> None:
    for x in layouts():
        check_op(device, f"aten::{name}", x.abs() if name in OF_POSITIVE else x, relative=2e-6, device_layout=True)


def test_functions_of_two_numbers(device: Device) -> None:
    x, y = layouts()[0] * 9, layouts()[1].permute(1, 2, 0)[:1, :1]
    for name in ("copysign.Tensor", "nextafter"):
        check_op(device, f"aten::{name}", x, y, relative=0, device_layout=True)
    check_op(device, "aten::special_zeta", x.abs() + 1.1, y.abs() + 0.3, relative=2e-6, device_layout=True)


def test_other_dtypes(device: Device) -> None:
    x = layouts()[0]
    for dtype, relative in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        for name in ("lgamma", "erfc", "i0"):
            check_op(device, f"aten::{name}", (x + 3).to(dtype), relative=relative, device_layout=True)
    whole = (x * 9).int()
    for name in ("lgamma", "erfc", "signbit", "angle"):
        check_op(device, f"aten::{name}", whole, relative=2e-6, device_layout=True)


@pytest.mark.parametrize("order", range(5))
def test_derivatives_of_the_gamma_functions_logarithm(device: Device, order: int) -> None:
    x = torch.cat((torch.linspace(0.07, 40, 31), torch.linspace(-7.3, -0.2, 13)))
    check_op(device, "aten::polygamma", order, x, relative=1e-5, device_layout=True)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 36, 171])
def test_derivatives_at_large_numbers(device: Device, order: int) -> None:
    infinite = (torch.inf, -torch.inf) if order > 1 else ()  # torch's first derivative is another function there
    for x in (2.0, 9e5, 3e9, 4e12, 7e18, torch.nan, *infinite):
        check_op(device, "aten::polygamma", order, torch.tensor([x]), relative=1e-6)


def test_programs_with_special_functions_are_short() -> None:
    builder = ProgramBuilder()
    value = builder.scalar(0.5, Kind.FLOAT)
    for _ in range(MAX_SPECIAL_STEPS):
        value = builder.step(Opcode.LGAMMA, value)
        assert builder.fits
    builder.step(Opcode.ADD, value, value)
    assert not builder.fits
    checked = ProgramBuilder()
    checked.step(Opcode.FLOAT_TO_SMALL, checked.step(Opcode.LGAMMA, checked.scalar(0.5, Kind.FLOAT)), kind=Kind.INTEGER)
    assert not checked.fits
