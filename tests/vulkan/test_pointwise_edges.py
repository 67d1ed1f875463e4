"""What compilers of drivers and kernels of float32 easily get wrong at infinities, NaN, zeros and halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from sampling import sampled
from torch import Tensor, nn
from torch.nn import functional

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

EDGES = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0, 3.39e38])
ZEROS = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0])
OTHER_ZEROS = torch.tensor([-0.0, 0.0, 0.0, -0.0, 0.0])
WITH_ITSELF: dict[str, Callable[[Tensor], Tensor]] = {
    "x - x": lambda x: x - x,
    "a sum without itself": lambda x: (x + 1.0) - (x + 1.0),
    "a product without itself": lambda x: x * x - x * x,
    "x + -x": lambda x: x + (-x),
    "addcmul": lambda x: torch.addcmul(-(x * x.sign()), x, x.sign()),
    "mse_loss": lambda x: functional.mse_loss(x, x, reduction="none"),
    "lerp": lambda x: torch.lerp(x, x, 0.25),
    "x / x": lambda x: x / x,
    "x % x": lambda x: x % x,
    "x == x": lambda x: (x == x).float(),
    "0 * x": lambda x: 0 * x,
    "x * false": lambda x: x * (x != x),
    "true * x": lambda x: (x == x) * x,
    "x + y * false": lambda x: torch.addcmul(x, x, (x != x).float()),
}
OF_TWO_ZEROS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp_min": lambda x, y: x.clamp_min(0),
    "clamp_max": lambda x, y: x.clamp_max(-0.0),
    "clamp": lambda x, y: x.clamp(y, None),
}


def computed(device: Device, function: Callable[..., Tensor], *args: Tensor, fallback: str = "error") -> Tensor:
    class Model(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return function(*given)

    traced = torch.jit.trace(Model(), args, check_trace=False)
    program = VulkanProgram(program_from_script_module(traced), device, fallback=fallback)
    found = program(*args)
    program.close()
    return found


def same(found: Tensor, expected: Tensor) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    number = ~expected.isnan()
    assert torch.equal(found[number].signbit(), expected[number].signbit()), f"{found} is not {expected}"


@pytest.mark.parametrize("name", WITH_ITSELF)
def test_operands_that_are_one(name: str, device: Device) -> None:
    """A compiler may think that a difference is 0, or anything times false."""
    same(computed(device, WITH_ITSELF[name], EDGES), WITH_ITSELF[name](EDGES))


@pytest.mark.parametrize("name", OF_TWO_ZEROS)
def test_of_two_zeros_the_first(name: str, device: Device) -> None:
    function = OF_TWO_ZEROS[name]
    same(computed(device, function, ZEROS, OTHER_ZEROS), function(ZEROS, OTHER_ZEROS))


@pytest.mark.parametrize("order", [2, 1, 3, -1, 0.5, math.inf, -math.inf, 0])
def test_norms_of_single_elements(order: float, device: Device) -> None:
    """Their squares may overflow, or vanish."""
    x = torch.tensor([[3.39e38, 1e-30, -2e-38, math.nan, 0.0, -math.inf]])
    same(
        computed(device, lambda x: torch.linalg.vector_norm(x, order, dim=0), x), torch.linalg.vector_norm(x, order, 0)
    )


def test_normalized_single_elements(device: Device) -> None:
    x = torch.tensor([[3.39e38, 1e-30, -5.0]])
    same(computed(device, lambda x: functional.normalize(x, dim=0), x), functional.normalize(x, dim=0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_next_number_of_a_dtype(dtype: torch.dtype, device: Device) -> None:
    x, y = torch.tensor([1.0, -2.0, 0.0, 3.0]).to(dtype), torch.tensor([2.0, 0.0, -1.0, 3.0]).to(dtype)
    fallback = "error" if dtype == torch.float32 else "cpu"
    same(computed(device, torch.nextafter, x, y, fallback=fallback), torch.nextafter(x, y))


@pytest.mark.parametrize("value", [0.25, -3.0, 0.0])
def test_bools_padded_with_numbers(value: float, device: Device) -> None:
    x = torch.tensor([[True, False, True]])
    same(computed(device, lambda x: functional.pad(x, (1, 2), value=value), x), functional.pad(x, (1, 2), value=value))


MANTISSAS = (torch.tensor([True]), torch.tensor([2, 3]), torch.tensor([1.0, 3.0]).half(), torch.tensor([1.5]))
EXPONENTS = (
    torch.tensor(1.0).half(),
    torch.tensor([1.0]).bfloat16(),
    torch.tensor(2),
    torch.tensor([2]).to(torch.int8),
)


@pytest.mark.parametrize(("mantissa", "exponent"), sampled(product(MANTISSAS, EXPONENTS), one_in=3))
def test_ldexp_has_the_dtype_of_eager(mantissa: Tensor, exponent: Tensor, device: Device) -> None:
    found = computed(device, torch.ldexp, mantissa, exponent, fallback="cpu")
    same(found, torch.ldexp(mantissa, exponent))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_as_powers_at_negative_infinity_and_zero(device: Device, dtype: torch.dtype, exponent: float) -> None:
    x = torch.tensor([-math.inf, math.inf, -0.0, 0.0, -4.0, math.nan, 1.0]).to(dtype)
    same(computed(device, lambda x: x**exponent, x), x**exponent)


@pytest.mark.parametrize("function", [torch.addcmul, torch.addcdiv, torch.mul, torch.div])
def test_tensors_without_dimensions_beside_halves(device: Device, function: Callable[..., Tensor]) -> None:
    """1e5 is infinite as a half, which combinations make of it, and products and quotients do not."""
    x = torch.tensor([0.0, 1.0, -0.5, 0.25, 3.0], dtype=torch.float16)
    args = (x, torch.tensor(1e5)) if function in (torch.mul, torch.div) else (x, x, torch.tensor(1e5))
    same(computed(device, function, *args), function(*args))


@pytest.mark.parametrize("alpha", [-1, 0, 5])
def test_factors_of_truth_values_are_truth_values(device: Device, alpha: int) -> None:
    x, y = torch.tensor([[True, False, True, False], [True, True, False, False]])
    same(computed(device, lambda x, y: torch.add(x, y, alpha=alpha), x, y), torch.add(x, y, alpha=alpha))


NARROW = (torch.uint8, torch.int16)
WRAPPED: list[tuple[int, torch.dtype]] = [(-1, torch.int64), (2**40 + 1, torch.int64), (-3, torch.int8)]


@pytest.mark.parametrize(("number", "dtype"), sampled([*WRAPPED, (300, torch.int64), (70_003, torch.int32)], 2))
def test_integers_without_dimensions_wrap_around_before_they_are_compared(
    device: Device, number: int, dtype: torch.dtype
) -> None:
    """Of uint8 and int64 without dimensions, torch makes uint8 of both: 254 is less than -1, which is 255 then."""
    integers, wide = torch.tensor([6, 4, 6, 254, 1, 0, 44]), torch.tensor(number, dtype=dtype)

    def compared(wide: Tensor, *tensors: Tensor) -> Tensor:
        results: list[Tensor] = []
        for x in tensors:
            results += [torch.lt(x, wide), torch.maximum(x, wide), torch.remainder(x, wide), x >> wide]
        return torch.stack([result.long() for result in results])

    tensors = [integers.to(narrow) for narrow in NARROW]
    same(computed(device, compared, wide, *tensors), compared(wide, *tensors))


def test_integers_are_not_raised_to_negative_numbers(device: Device) -> None:
    x = torch.tensor([2, -3, 1, 5])
    with pytest.raises((RuntimeError, MoboptError), match="Integers to negative integer powers are not allowed"):
        computed(device, lambda x: x**-1, x, fallback="cpu")
