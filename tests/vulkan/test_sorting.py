"""Sorting, searching and what is made of them, beside torch: ties, NaN, signs of zeros, dtypes, lengths, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from harness import check_op, run_op
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import sort_kernel
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


def _few(*sizes: int) -> Tensor:
    """Elements of which many are equal."""
    return torch.randint(-3, 4, sizes, generator=_RANDOM)


SPECIAL = torch.tensor([1.0, torch.nan, -0.0, 0.0, -torch.inf, torch.inf, -torch.nan, 1e-45, -1e-45, 0.0, -0.0, 2.0])
TURNED = _randn(5, 2, 67, 3).permute(1, 2, 0, 3)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("x", "dim"),
    [
        *((_few(length).float(), 0) for length in (1, 2, 31, 32, 33, 64, 97, 1021)),
        (SPECIAL, 0),
        (TURNED, 1),
        (TURNED, -1),
        (_few(3, 131, 2).half(), 1),
        (_few(2, 300).bfloat16(), 1),
        (_few(7, 70), 0),
        (_few(7, 70).to(torch.uint8), 1),
        (_few(200) > 0, 0),
        (torch.tensor(3.0), 0),
        (torch.zeros(3, 0), 1),
    ],
)
def test_order_is_stable(any_device: Device, x: Tensor, dim: int, descending: bool) -> None:
    for op in ("sort.stable", "argsort.stable"):
        options = {"stable": True, "dim": dim, "descending": descending}
        check_op(any_device, f"aten::{op}", x, relative=0, **options)


@pytest.mark.parametrize("ways", [2, 4, 16])
@pytest.mark.parametrize("length", [509, 513, 1021, 9001])
def test_runs_that_are_merged_at_once(
    any_device: Device, monkeypatch: pytest.MonkeyPatch, length: int, ways: int
) -> None:
    """Two on CPUs, and more on GPUs; the last ones are shorter, or not there."""
    for name in ("_WAYS", "_CPU_WAYS"):
        monkeypatch.setattr(sort_kernel, name, ways)
    for x in (_few(3, length), _randn(3, length)):
        found = run_op(any_device, "aten::sort.stable", x, stable=True, dim=1, descending=False)
        assert all(map(torch.equal, found, torch.sort(x, dim=1, stable=True)))


def test_signs_of_zeros_stay(any_device: Device) -> None:
    values, _ = run_op(any_device, "aten::sort.stable", SPECIAL, stable=True, dim=0, descending=False)
    expected = SPECIAL.sort(stable=True).values
    assert torch.equal(values.signbit()[:10], expected.signbit()[:10])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("as_int32", [False, True])
def test_search(any_device: Device, right: bool, as_int32: bool) -> None:
    rows = _few(3, 2, 101).sort().values
    line = SPECIAL[~SPECIAL.isnan()].sort().values
    for lines, values in (
        (rows, _few(3, 2, 7)),
        (rows.float(), _few(3, 2, 7).float() + 0.5),
        (rows.half().transpose(0, 1), _few(7, 3, 2).half().permute(2, 1, 0)),
        (line, torch.cat([SPECIAL, _randn(7)]).reshape(1, -1)),
        (line, torch.tensor(0.5)),
        (line[:0], _randn(3)),
    ):
        check_op(any_device, "aten::searchsorted.Tensor", lines, values, out_int32=as_int32, right=right)


WITH_NAN = torch.where(_randn(5, 7) > 1, torch.nan, _randn(5, 7))
X, MASK = _randn(4, 3, 5), _randn(4, 3) > 0
COUNT = int(MASK.sum())
FRACTIONS = torch.tensor([0.0, 0.31, 0.5, 1.0])
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "topk": (lambda x: x.topk(7, 1, largest=False), (_randn(3, 1009),)),
    "kthvalue": (lambda x: x.kthvalue(3, 1, keepdim=True), (TURNED,)),
    "median": (lambda x: (x.median(1), x.median(), x.nanmedian(1), x.nanmedian()), (WITH_NAN,)),
    "median of integers": (lambda x: x.median(), (_few(4, 6),)),
    "mode": (lambda x: x.mode(0)[0], (_few(301, 3),)),
    "cummax": (lambda x: x.cummax(1), (_few(5, 131).float(),)),
    "cummin with NaN": (lambda x: x.cummin(1), (WITH_NAN,)),
    "quantile": (lambda x: torch.quantile(x, torch.tensor([0.1, 0.75]), 1), (_randn(3, 37),)),
    "nanquantile": (lambda x: torch.nanquantile(x, 0.4, 1, interpolation="nearest"), (WITH_NAN,)),
    "quantiles between dimensions": (
        lambda x: (
            torch.quantile(x, 0.3, 1, True),
            torch.quantile(x, FRACTIONS, -2, True),
            torch.quantile(x, FRACTIONS),
        ),
        (_randn(3, 11, 5),),
    ),
    "quantile with NaN": (lambda x: torch.quantile(x, FRACTIONS, 0, interpolation="higher"), (WITH_NAN,)),
    "quantile of one": (lambda x: torch.quantile(x.sum(), FRACTIONS, interpolation="lower"), (_randn(3),)),
    "nanquantiles": (
        lambda x: (
            torch.nanquantile(x, FRACTIONS, 1),
            torch.nanquantile(x, 0.7, 0, True, interpolation="midpoint"),
            torch.nanquantile(x[:1] / 0 * 0, 0.5, 1),
        ),
        (WITH_NAN,),
    ),
    "quantile of infinities": (lambda x: torch.quantile(x / 0, 0.5, 1), (_few(7, 11).float(),)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True), (X,)),
    "bucketize one of a wider dtype": (
        lambda x, v: torch.bucketize(v, x, right=True),
        (torch.tensor([0, 1, 1, 7, 200, 251, 254]).to(torch.uint8), torch.tensor(-4)),
    ),
    "isin": (torch.isin, (_few(5, 7), torch.tensor([3, -2, 3]))),
    "sorter": (lambda x, v: torch.searchsorted(x, v, sorter=x.argsort()), (_randn(101), _randn(7))),
    "mask, a number": (lambda x: x.masked_scatter(x > 0, torch.arange(60.0)), (X,)),
    "mask and rows": (lambda x, m, v: x.index_put((m,), v), (X, MASK, _randn(COUNT, 5))),
    "mask, rows added": (lambda x, m, v: x.index_put((m,), v, accumulate=True), (X, MASK, _randn(COUNT, 1))),
    "mask of a later dimension": (
        lambda x, m, v: x.index_put((torch.ones(4) > 0,), v).index_put((m,), v[0, 0]),
        (X, MASK, _randn(4, 3, 5)),
    ),
    "put": (lambda x, v: x.put(torch.tensor([3, -1, 3]), v, accumulate=True), (X, _randn(3))),
}


class _Quantiles(nn.Module):
    """Quantiles whose fractions are a constant of the model: shape rules don't look at its elements."""

    def __init__(self, fractions: list[float], skips_nan: bool) -> None:
        super().__init__()
        self.skips_nan = skips_nan
        self.register_buffer("fractions", torch.tensor(fractions))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nanquantile(x, self.fractions, 1) if self.skips_nan else torch.quantile(x, self.fractions, 1)


@pytest.mark.parametrize("fractions", [[0.5, 1.5], [-0.25], [float("nan")]])
@pytest.mark.parametrize("skips_nan", [True, False])
def test_fractions_that_torch_refuses(device: Device, fractions: list[float], skips_nan: bool) -> None:
    program = program_from_script_module(torch.jit.script(_Quantiles(fractions, skips_nan).eval()))
    with pytest.raises(InputError, match=r"in the range \[0, 1\]"):
        VulkanProgram(program, device).run("forward", [_randn(3, 7)])


@pytest.mark.parametrize("name", CASES)
def test_made_of_orders(device: Device, name: str) -> None:
    function, given = CASES[name]
    traced = torch.jit.trace(Applied(function), given, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    found, expected = program.run("forward", list(given)), function(*given)
    torch.testing.assert_close(found, type(found)(expected) if isinstance(found, tuple) else expected, equal_nan=True)
    assert not program.plan_report(list(given)).fallbacks


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (lambda x, m: x.index_put((m > 0,), torch.ones(2)), [1, 0, 0, 1], [1, 0, 1, 1]),
        (lambda x, m: x.index_put((m > 0,), torch.ones(3)), [1, 0, 1, 1], [1, 0, 0, 1]),
        (lambda x, m: x.masked_scatter(m > 0, torch.ones(2)), [1, 0, 0, 1], [1, 0, 1, 1]),
        (lambda x, m: x.put(m, torch.ones(4)), [1, 0, 0, -4], [1, 0, 0, -5]),
    ],
)
def test_what_does_not_fit_is_refused(device: Device, function: Any, good: list[int], bad: list[int]) -> None:
    x, right, wrong = torch.arange(4.0), torch.tensor(good), torch.tensor(bad)
    traced = torch.jit.trace(Applied(function), (x, right), check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(x, right), function(x, right))
    with pytest.raises(InputError, match="test_sorting"):
        program(x, wrong)
    torch.testing.assert_close(program(x, right), function(x, right))


class _Searched(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        few = torch.tensor([torch.inf, 2.0, torch.nan]).to(x.dtype)
        return [torch.isin(x, x), torch.isin(few, x), torch.isin(x, few, invert=True)]


@pytest.mark.parametrize("count", [1, 4, 61])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_searches_among_nan(dtype: torch.dtype, count: int, device: Device) -> None:
    """A binary search that meets NaN goes on behind it, past the largest numbers."""
    x = torch.randint(-9, 9, (67,), generator=torch.Generator().manual_seed(count)).to(dtype)
    x[torch.randperm(67, generator=torch.Generator().manual_seed(count))[:count]] = torch.nan
    program = VulkanProgram(program_from_script_module(torch.jit.script(_Searched())), device)
    found = program(x)
    program.close()
    for ours, theirs in zip(found, _Searched()(x), strict=True):
        assert torch.equal(ours, theirs)
