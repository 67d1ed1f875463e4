"""Small matrices beside torch: factors, determinants, inverses and systems, of any batch; what can't be divided by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import assert_close
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def _run(device: Device, function: Callable[..., Any], *given: Tensor) -> tuple[VulkanProgram, list[Tensor]]:
    traced = torch.jit.trace(Applied(function), given, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    found = program.run("forward", list(given))
    return program, list(found) if isinstance(found, tuple) else [found]


MATRIX, LARGE, CAMERAS = _randn(5, 5), _randn(32, 32), _randn(7, 2, 3, 3)
DEFINITE = CAMERAS @ CAMERAS.mT + torch.eye(3)
TRIANGLE = torch.linalg.cholesky(DEFINITE)
FACTORS, PIVOTS = torch.linalg.lu_factor(CAMERAS)
SINGULAR = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "inverse": (torch.linalg.inv, (CAMERAS,)),
    "inverse of a large one": (torch.inverse, (LARGE,)),
    "inverse, transposed": (lambda x: torch.linalg.inv(x.mT), (MATRIX,)),
    "empty": (lambda x, y: (torch.linalg.inv(x), torch.linalg.det(y)), (CAMERAS[:0], MATRIX[:0, :0])),
    "det": (torch.linalg.det, (CAMERAS,)),
    "det of a singular one": (torch.linalg.det, (torch.zeros(3, 3),)),
    "slogdet": (torch.linalg.slogdet, (CAMERAS,)),
    "lu of tall ones": (torch.linalg.lu, (_randn(2, 7, 3),)),
    "lu of wide ones": (torch.linalg.lu, (_randn(3, 7),)),
    "solve": (torch.linalg.solve, (CAMERAS, _randn(2, 3, 4))),
    "solve vectors": (torch.linalg.solve, (CAMERAS, _randn(7, 2, 3))),
    "solve from the right": (lambda a, b: torch.linalg.solve(a, b, left=False), (CAMERAS, _randn(7, 2, 4, 3))),
    "cholesky": (torch.linalg.cholesky, (DEFINITE,)),
    "cholesky, upper": (lambda x: torch.linalg.cholesky(x, upper=True), (DEFINITE,)),
    "cholesky_solve": (torch.cholesky_solve, (_randn(7, 2, 3, 2), TRIANGLE)),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(x.mT, upper=True), (TRIANGLE,)),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, left=False, unitriangular=True),
        (TRIANGLE, _randn(2, 5, 3)),
    ),
    "triangular, old": (
        lambda b, a: torch.triangular_solve(b, a, upper=False, transpose=True),
        (_randn(3, 2), TRIANGLE),
    ),
    **{
        f"lu_solve {left} {adjoint}": (
            lambda b, left=left, adjoint=adjoint: torch.linalg.lu_solve(FACTORS, PIVOTS, b, left=left, adjoint=adjoint),
            (_randn(7, 2, 3, 3),),
        )
        for left in (False, True)
        for adjoint in (False, True)
    },
}


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@pytest.mark.parametrize("name", CASES)
def test_small_matrices(device: Device, name: str) -> None:
    function, given = CASES[name]
    program, found = _run(device, function, *given)
    expected = function(*given)
    wanted = list(expected) if isinstance(expected, tuple) else [expected]
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close(ours, theirs, 1e-4, name)
    assert not program.plan_report(list(given)).fallbacks


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        torch.linalg.cholesky,
        lambda x: torch.linalg.solve(x, x[:, :1]),
    ],
)
def test_what_has_no_result_is_torchs_error(device: Device, function: Callable[..., Any]) -> None:
    good = torch.eye(3)
    program, _ = _run(device, function, good)
    with pytest.raises(RuntimeError) as theirs:
        function(SINGULAR)
    with pytest.raises(InputError) as ours:
        program(SINGULAR)
    assert str(theirs.value).partition(":")[2].split(".")[0] in str(ours.value)
    torch.testing.assert_close(program(good), function(good))


def test_failures_are_told_where_they_are_asked_for(device: Device) -> None:
    both = torch.stack([SINGULAR, torch.eye(3)])
    _, (_, info) = _run(device, torch.linalg.inv_ex, both)
    assert torch.equal(info, torch.linalg.inv_ex(both).info)


def test_large_matrices_stay_on_the_cpu(device: Device) -> None:
    large = _randn(33, 33)
    program, (found,) = _run(device, torch.linalg.inv, large)
    torch.testing.assert_close(found, torch.linalg.inv(large), rtol=1e-3, atol=1e-3)
    (fallback,) = program.plan_report([large]).fallbacks
    assert "at most 32 rows and columns" in str(fallback)
