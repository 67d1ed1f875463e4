"""Small matrices beside torch: factors, determinants, inverses and systems, of any batch; what can't be divided by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from harness import assert_close
from sampling import sampled
from torch import Tensor

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


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
SYMMETRIC = SINGULAR + SINGULAR.mT
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
        f"qr {mode} {'x'.join(map(str, x.shape))}": (lambda x, mode=mode: torch.linalg.qr(x, mode), (x,))
        for mode in ("reduced", "complete", "r")
        for x in (CAMERAS, LARGE, _randn(2, 7, 3), _randn(3, 7), _randn(2, 5, 1))
    },
    "qr of what needs no reflection": (torch.linalg.qr, (torch.tensor([[2.0, 1.0], [0.0, -3.0], [0.0, 0.0]]),)),
    "qr of small and large numbers": (torch.linalg.qr, (MATRIX * torch.tensor([1e-25, 1e25, 1.0, 1e-30, 1e30]),)),
    "qr, empty": (torch.linalg.qr, (CAMERAS[:0],)),
    "svdvals": (torch.linalg.svdvals, (CAMERAS,)),
    "svdvals of a large one": (torch.linalg.svdvals, (LARGE,)),
    "svdvals of wide ones": (torch.linalg.svdvals, (_randn(2, 3, 17),)),
    "svdvals of singular ones": (torch.linalg.svdvals, (torch.stack([SINGULAR, torch.zeros(3, 3), torch.eye(3)]),)),
    "svdvals of vectors": (torch.linalg.svdvals, (_randn(7, 1),)),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(x, "nuc"), (CAMERAS,)),
    "spectral norm": (lambda x: torch.linalg.matrix_norm(x, 2), (_randn(3, 5, 7),)),
    "norms of any dimensions": (
        lambda x: (
            torch.linalg.norm(x, 2, (0, 3), True),
            torch.linalg.norm(x[0, 0], "nuc"),
            torch.linalg.norm(x, 2, 1),
        ),
        (CAMERAS,),
    ),
    "condition, the other way": (lambda x: torch.linalg.cond(x, -2), (CAMERAS,)),
    "rank above a limit": (
        lambda x, y: (torch.linalg.matrix_rank(x, atol=0.5), torch.linalg.matrix_rank(x, atol=y, rtol=y / 10)),
        (CAMERAS, CAMERAS[..., 0, 0].abs()),
    ),
    "eigenvalues": (torch.linalg.eigvalsh, (_randn(2, 17, 17),)),
    "eigenvalues of an upper triangle": (lambda x: torch.linalg.eigvalsh(x, UPLO="U"), (LARGE,)),
    "eigenvalues of large and small numbers": (torch.linalg.eigvalsh, (torch.stack([MATRIX * 1e30, MATRIX * 1e-30]),)),
    "rank of symmetric ones": (
        lambda x: torch.linalg.matrix_rank(x, hermitian=True, atol=1e-4),
        (torch.stack([SYMMETRIC, -torch.eye(3), torch.zeros(3, 3)]),),
    ),
    "rank of no absolute limit": (
        lambda x, y: (torch.linalg.matrix_rank(x, atol=0.0), torch.linalg.matrix_rank(x, atol=y)),
        (torch.stack([SINGULAR, SINGULAR, torch.eye(3)]), torch.tensor([0.0, 2.0, 0.5])),
    ),
    "older forms of ranks": (
        lambda x, y: (torch.linalg.matrix_rank(x, 0.5), torch.linalg.matrix_rank(x, y, hermitian=True)),
        (SYMMETRIC, torch.tensor(0.25)),
    ),
    "pseudoinverse of symmetric ones": (lambda x: torch.linalg.pinv(x, hermitian=True), (SYMMETRIC + torch.eye(3),)),
    "older forms of pseudoinverses": (
        lambda x, y: (torch.pinverse(x, 0.1), torch.linalg.pinv(x, 0.2), torch.linalg.pinv(x, y)),
        (_randn(5, 3), torch.tensor(0.3)),
    ),
    "svd, old": (lambda x: torch.svd(x)[1], (_randn(3, 7),)),
    "condition": (torch.linalg.cond, (CAMERAS,)),
    "rank": (torch.linalg.matrix_rank, (torch.stack([SINGULAR, torch.eye(3)]),)),
    "pseudoinverse": (torch.linalg.pinv, (torch.stack([SINGULAR, torch.eye(3) + 1]),)),
    "pseudoinverse of wide ones": (torch.linalg.pinv, (_randn(2, 3, 7),)),
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
@pytest.mark.parametrize("name", sampled(CASES, one_in=2))
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


SPLIT = {
    "square": CAMERAS,
    "large": LARGE,
    "tall": _randn(2, 17, 5),
    "wide": _randn(3, 5, 17),
    "of a lower rank": torch.stack([SINGULAR, torch.zeros(3, 3), torch.ones(3, 3)]),
    "a column": _randn(5, 1),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", SPLIT)
def test_singular_vectors_are_orthogonal_and_make_the_matrix(device: Device, name: str, full: bool) -> None:
    """Their signs, and those of equal values altogether, are nobody's: torch's own differ from device to device."""
    x = SPLIT[name]
    program, (left, values, right) = _run(device, lambda x: torch.linalg.svd(x, full_matrices=full), x)
    expected = torch.linalg.svd(x, full_matrices=full)
    assert [left.shape, values.shape, right.shape] == [part.shape for part in expected]
    scale = float(x.abs().max())
    torch.testing.assert_close(values, expected.S, rtol=1e-5, atol=1e-5 * scale)
    steps = values.shape[-1]
    made = left[..., :steps] * values.unsqueeze(-2) @ right[..., :steps, :]
    torch.testing.assert_close(made, x, rtol=1e-4, atol=1e-5 * scale)
    for part in (left.mT @ left, right @ right.mT):
        torch.testing.assert_close(part, torch.eye(part.shape[-1]).expand_as(part), rtol=0, atol=1e-5)
    assert not program.plan_report([x]).fallbacks


SYMMETRIES = {
    "rank 2": SINGULAR + SINGULAR.mT,
    "large": LARGE @ LARGE.mT,
    "without a positive value": -(LARGE @ LARGE.mT),
    "one value": 3 * torch.eye(5),
    "two values": torch.eye(7) - 2 * torch.ones(7, 7) / 7,
    "batches": CAMERAS,
    "zeros and one number": torch.tensor([[[0.0]], [[-5.0]]]),
}


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", SYMMETRIES)
def test_eigenvectors_are_orthogonal_and_make_the_matrix(device: Device, name: str, upper: bool) -> None:
    x, triangle = SYMMETRIES[name], "U" if upper else "L"
    program, (values, vectors) = _run(device, lambda x: torch.linalg.eigh(x, triangle), x)
    half = x.triu() if upper else x.tril()
    whole, scale = half + half.mT - torch.diag_embed(x.diagonal(0, -2, -1)), float(x.abs().max())
    expected = torch.linalg.eigvalsh(x.double(), triangle).float()
    torch.testing.assert_close(values, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()))
    torch.testing.assert_close(vectors * values.unsqueeze(-2) @ vectors.mT, whole, rtol=1e-5, atol=1e-5 * scale)
    products = vectors.mT @ vectors
    torch.testing.assert_close(products, torch.eye(x.shape[-1]).expand_as(products), rtol=0, atol=2e-6)
    assert not program.plan_report([x]).fallbacks


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_singular_values_whose_squares_do_not_fit(device: Device, factor: float) -> None:
    program, (found,) = _run(device, torch.linalg.svdvals, CAMERAS * factor)
    torch.testing.assert_close(found, torch.linalg.svdvals(CAMERAS * factor), rtol=1e-5, atol=0)
    assert not program.plan_report([CAMERAS]).fallbacks


def test_what_has_no_singular_values_is_torchs_error(device: Device) -> None:
    program, _ = _run(device, torch.linalg.svdvals, torch.eye(3))
    with pytest.raises(InputError, match="failed to converge"):
        program(torch.full((3, 3), torch.nan))
