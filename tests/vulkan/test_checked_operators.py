"""Operators that refuse some elements: on the device for all others, and torch's error for those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from sampling import sampled
from torch import Tensor, nn
from torch.nn import functional

from mobopt.errors import DeviceError, InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan import program as program_module
from mobopt.runtimes.vulkan.call_plan import WideFloatsError
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

_RANDOM = torch.Generator().manual_seed(0)
CHANCES, SHARES = (torch.rand(3, 7, generator=_RANDOM) for _ in range(2))
CLASSES = torch.randint(0, 7, (2, 3, 5), generator=_RANDOM)
TABLE = torch.randn(11, 5, generator=_RANDOM)


def normed(rows: Tensor, table: Tensor, norm: float) -> Tensor:
    return functional.embedding(rows, table.clone(), max_norm=0.9, norm_type=norm)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Tensor, str]] = {
    # the call, its arguments, a first argument that it refuses, and with what words
    "one_hot": (lambda x: functional.one_hot(x, 7), (CLASSES,), CLASSES + 1, "Class values must be smaller"),
    "one_hot of a class": (lambda x: functional.one_hot(x, 3), (torch.tensor(2),), torch.tensor(-1), "Class values"),
    **{
        f"binary_cross_entropy {reduction}": (
            lambda x, y, reduction=reduction: functional.binary_cross_entropy(x, y, reduction=reduction),
            (torch.where(CHANCES > 0.8, 1.0, CHANCES), SHARES),
            CHANCES + 0.5,
            "between 0 and 1",
        )
        for reduction in ("mean", "sum", "none")
    },
    "binary_cross_entropy by weights": (
        lambda x, y, w: functional.binary_cross_entropy(x, y, w),
        (CHANCES, SHARES, CHANCES[0] + 1),
        torch.full_like(CHANCES, torch.nan),
        "between 0 and 1",
    ),
    **{
        f"rows of a norm {norm}": (
            lambda rows, table, norm=norm: normed(rows, table, norm),
            (CLASSES, TABLE),
            CLASSES + 9,
            r"index 1\d out of range",
        )
        for norm in (1.0, 2.0)
    },
}


@pytest.mark.parametrize("name", sampled(CASES, one_in=2))
def test_what_is_refused_is_torchs_error_and_the_rest_is_native(device: Device, name: str) -> None:
    function, given, bad, words = CASES[name]
    traced = torch.jit.trace(Applied(function), given, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(*given), function(*given))
    assert not program.plan_report(list(given)).fallbacks
    with pytest.raises(InputError, match=words):
        program(bad, *given[1:])
    torch.testing.assert_close(program(*given), function(*given))


def test_randomised_slopes_are_one_outside_of_training(device: Device) -> None:
    module, x = nn.RReLU(0.1, 0.5).eval(), torch.randn(3, 7, generator=_RANDOM)
    traced = torch.jit.trace(module, x)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(x), module(x))
    assert not program.plan_report([x]).fallbacks


def test_a_kernel_that_refuses_what_torch_takes_is_an_error(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a call that begins anew for ever; a large float is what else it may have met, once."""
    faults: list[object] = []

    def find_none(*_: object) -> None:
        faults.append(None)
        raise WideFloatsError

    monkeypatch.setattr(program_module, "find_fault", find_none)
    call, arguments, bad, _ = CASES["one_hot"]
    traced = torch.jit.trace(Applied(call), arguments, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device, fallback="error")
    with pytest.raises(DeviceError, match="a fault of mobopt"):
        program.run("forward", [bad])
    assert len(faults) == 2
    torch.testing.assert_close(program.run("forward", list(arguments)), call(*arguments))
