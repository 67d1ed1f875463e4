"""Every pointwise function against float64, over its whole range."""

from __future__ import annotations

import math

import pytest
import torch
from sampling import sampled

from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings import special_pointwise
from mobopt.runtimes.vulkan.lowerings.pointwise_expressions import EXPRESSIONS
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lowering_of, supported_operators
from mobopt.tools.accuracy import DENSE, SMALLEST, Accuracy, measure, run
from mobopt.tools.accuracy_functions import MOVES, ON_INTEGERS, Domain, Function, functions

FUNCTIONS = {function.name: function for function in functions()}
FEW = 8


def pointwise_names() -> set[str]:
    """Names, without namespaces and overloads, of every operator of torch with a pointwise lowering."""
    load_lowerings()
    special = [
        operator
        for operator in supported_operators()
        if (lowering := lowering_of(operator)) and lowering.function.__module__ == special_pointwise.__name__
    ]
    names = [name for name in (*EXPRESSIONS, *special) if name.startswith("aten::")]
    return {name.removeprefix("aten::").partition(".")[0] for name in names}


def test_every_pointwise_operator_is_measured() -> None:
    measured = {operator for function in functions() for operator in function.operators}
    assert pointwise_names() == measured | ON_INTEGERS | MOVES
    assert not measured & (ON_INTEGERS | MOVES)


def check(function: Function, found: Accuracy) -> None:
    assert not found.special
    assert found.ulp <= function.bar, f"{found.ulp} ulp at {found.at}: {found.found}, not {found.wanted}"


@pytest.mark.parametrize("name", sampled(FUNCTIONS, one_in=6))
def test_a_sample_of_the_range(device: Device, name: str) -> None:
    check(FUNCTIONS[name], measure(device, FUNCTIONS[name], FEW))


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_whole_range(device: Device, name: str) -> None:
    check(FUNCTIONS[name], measure(device, FUNCTIONS[name], DENSE))


def test_an_error_is_found(device: Device) -> None:
    """The measure itself: a function that is off by a part in 10^5 in a narrow range, and one with a wrong zero."""
    off = Function("off", (), 4, lambda x: torch.where((x > 1) & (x < 1.01), x * 1.00001, x), lambda x: x)
    found = measure(device, off, 200)
    assert 50 < found.ulp < 200
    assert 1 < found.at[0] < 1.01
    signless = Function("signless", (), 4, lambda x: torch.where(x == 0, 0.0, x), lambda x: x)
    assert measure(device, signless, FEW).special == ("signless(-0) is 0, not -0",)
    pairs = Function("far", (), 4, lambda a, b: a, lambda a, b: torch.where(b > 1, a * 2, a), Domain.TWO)
    assert measure(device, pairs, FEW).ulp > 2**22


def test_subnormal_arguments_that_no_device_flushes(device: Device) -> None:
    tiny = torch.tensor([1e-40, -3e-41, 1.4e-45, SMALLEST / 2])
    for name in ("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p"):
        assert torch.equal(run(device, FUNCTIONS[name].compute, [tiny]), tiny), name
    expected = tiny.abs().double().log().float()
    torch.testing.assert_close(run(device, torch.log, [tiny.abs()]), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("compute", "arguments", "wanted"),
    [
        (lambda x: x**-1, [0.0, -0.0], [math.inf, -math.inf]),
        (lambda x: x**-2, [0.0, 2.0], [math.inf, 0.25]),
        (lambda x: x**0.5, [-0.0, 4.0], [-0.0, 2.0]),
        (lambda x: 0.0**x, [0.0, -1.0, 2.0], [1.0, math.inf, 0.0]),
        (lambda x: (-1.0) ** x, [math.inf, 3.0, 2.5], [1.0, -1.0, math.nan]),
        (lambda x: x % math.inf, [1.0, -1.0], [1.0, math.inf]),
        (lambda x: x // math.inf, [1.0, -1.0], [0.0, -1.0]),
        (lambda x: x % 3, [1e10, -0.0, 3.4e38], [1e10 % 3, -0.0, torch.tensor(3.4e38).item() % 3]),
        (lambda x: torch.fmod(x, 0.7), [3.4e38, 1591.9609375], None),
        (torch.nn.functional.hardswish, [3.4e38, -math.inf], [3.4e38, math.nan]),
        (torch.asinh, [2e19, -3.4e38], None),
        (torch.sin, [1e5, 1e10, 3.4e38], None),
    ],
)
def test_values_that_drivers_get_wrong(device: Device, compute, arguments, wanted) -> None:
    x = torch.tensor(arguments)
    found = run(device, compute, [x])
    expected = torch.tensor(wanted) if wanted is not None else reference(compute, x)
    torch.testing.assert_close(found, expected, rtol=4e-7, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


def reference(compute, x: torch.Tensor) -> torch.Tensor:
    """In float64; the divisor 0.7 is a float32."""
    if compute in (torch.asinh, torch.sin):
        return compute(x.double()).float()
    return torch.fmod(x.double(), torch.tensor(0.7).double()).float()
