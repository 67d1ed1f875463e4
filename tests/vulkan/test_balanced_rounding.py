"""Weights as halves whose errors cancel: each next to its float, rows that sum up to what they did, and nets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import mobopt
from mobopt.runtimes.vulkan.kernels import balanced_rounding
from mobopt.runtimes.vulkan.kernels.balanced_rounding import balanced_halves

HALVES = (torch.float16, torch.bfloat16)


def floats(*sizes: int, scale: float = 0.05) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))) * scale


def steps_of(halves: torch.Tensor) -> torch.Tensor:
    """From each half to the next one away from zero."""
    return ((halves.view(torch.int16) + 1).view(halves.dtype).double() - halves.double()).abs()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("sizes", [(7, 1), (5, 2), (31, 9), (13, 147), (3, 4609)])
def test_rows_keep_their_sums(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    rows = floats(*sizes)
    halves = balanced_halves(rows, dtype)
    assert (halves.dtype, halves.shape) == (dtype, rows.shape)
    errors = halves.double() - rows.double()
    steps = steps_of(halves)
    assert bool((errors.abs() <= steps).all())
    assert bool((errors.sum(1).abs() <= steps.amax(1)).all())
    nearest = rows.to(dtype).double() - rows.double()

    def losses(each: torch.Tensor) -> torch.Tensor:
        return each.sum(1).square() + each.square().sum(1)

    assert bool((losses(errors) <= losses(nearest) * (1 + 1e-6)).all())
    if sizes[1] > 9:
        assert errors.sum(1).square().mean() < 0.05 * nearest.sum(1).square().mean()
        assert errors.square().mean() < 1.02 * nearest.square().mean()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_stay_what_they_are(dtype: torch.dtype) -> None:
    rows = torch.cat([floats(9, 40).to(dtype).float(), torch.zeros(2, 40), torch.full((1, 40), 6e-8)])
    assert torch.equal(balanced_halves(rows, dtype)[:11].float(), rows[:11])


def test_values_at_the_ends() -> None:
    """Subnormal numbers, the largest, infinities and NaN are rounded to the nearest or to what lies next to them."""
    rows = torch.tensor([[65519.0, 65500.0, 3e-8, 1e-7], [torch.inf, 1.0003, 1.0003, 1.0003], [torch.nan, 1, 2, 3]])
    halves = balanced_halves(rows, torch.float16)
    assert halves.isnan().sum() == 1
    assert halves.isinf().tolist()[1] == [True, False, False, False]
    assert bool(halves[0].isfinite().all())


def test_large_matrices_are_rounded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = floats(37, 53)
    whole = balanced_halves(rows, torch.float16)
    monkeypatch.setattr(balanced_rounding, "_CHUNK", 200)
    assert torch.equal(balanced_halves(rows, torch.float16), whole)


class Positive(nn.Module):
    """Convolutions of inputs that have a mean, averaged over all pixels: what errors have in common stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(24, 96, 3, padding=1), nn.Conv2d(96, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).mean((2, 3))


def test_a_net_loses_less(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model, x = Positive().eval(), torch.rand(2, 24, 31, 29)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
    script = torch.jit.script(model)

    def loss() -> float:
        module = mobopt.optimize_for_mobile(
            script, backend="vulkan", runtime="mobopt", example_inputs=[x], precision="fp16"
        )
        return float((module(x).double() - exact).abs().max() / exact.abs().max())

    balanced = loss()
    monkeypatch.setattr("mobopt.runtimes.vulkan.kernels.weight_packing._MOST_BALANCED", 0)
    assert balanced < 0.6 * loss()
