"""Random compositions of operators are what eager makes of them: dtypes, sizes, numbers, and writes through views.

torch's own interpreter may take a program in another way than eager does: a trace that is saved forgets which constants
were numbers, a script computes ``3 // x`` of one element as an ``int``. Then what torch makes of the program counts;
once it is frozen, tensors without dimensions that were folded are taken for numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from composed_programs import Composition, composition, distances, slack
from torch import Tensor

from mobopt import optimize_for_mobile

_ROUNDING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
_ROADS = ("script", "trace", "export")
_TAKEN = {"script": (3, 5), "trace": (3, 4), "export": (1, 7)}
"""Seeds of the default run, of programs that cost little."""
_TIMES_NOISE = 16
"""How much more than the noise of four runs may carry a result."""


def torchs(program: Composition, road: str) -> tuple[Any, list[Any]] | None:
    """A program as torch takes it, and what torch itself makes of it; None if it takes it on no such road."""
    module = program.module()
    try:
        if road == "export":
            exported = torch.export.export(module, tuple(program.arguments()))
            return exported, list(exported.module()(*program.arguments()))
        if road == "script":
            made = torch.jit.script(module)
        else:
            made = torch.jit.trace(module, tuple(program.arguments()), check_trace=False)
        return made, list(made(*program.arguments()))
    except Exception:  # whatever torch says of a program that it can't take
        return None


def difference(found: Sequence[Any], expected: Sequence[Any], spread: Sequence[Tensor | None]) -> str | None:
    """None if two results agree as far as rounding allows, else where they don't."""
    for number, (ours, theirs, noise) in enumerate(zip(found, expected, spread, strict=True)):
        if not (isinstance(ours, Tensor) and isinstance(theirs, Tensor)):
            if noise is not None and repr(ours) != repr(theirs):
                return f"result {number} is {ours!r}, not {theirs!r}"
            continue
        if noise is None or noise.shape != theirs.shape:
            continue
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"result {number} is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        far = distances(ours, theirs) > _TIMES_NOISE * noise + _roundings(theirs)
        if bool(far.any()):
            where = tuple(far.nonzero()[0].tolist())
            return f"result {number} is {ours[where].item()!r}, not {theirs[where].item()!r} at {where}"
    return None


def _roundings(expected: Tensor) -> Tensor:
    """A few roundings of each element, and one of the largest, which sums have."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.zeros(expected.shape, dtype=torch.float64)
    sizes = expected.abs().double().nan_to_num(0.0, 0.0, 0.0)
    largest = float(sizes.max().clamp(max=1e30)) if sizes.numel() else 0.0
    return _ROUNDING.get(expected.dtype, 1e-6) * (4 * sizes + largest) + 1e-37


def check(seed: int, road: str, **target: Any) -> bool:
    """Whether torch takes the program; mobopt computes what eager or torch does then, twice."""
    program = composition(seed, road == "script")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        spread = slack(program, seed)
        taken = torchs(program, road)
        if taken is None:
            return False
        made, theirs = taken
        eager = list(program.module()(*program.arguments()))
        given = program.arguments() if road == "export" or seed % 3 == 0 else None
        module = optimize_for_mobile(made, example_inputs=given, **target)
        for _ in range(2):
            found = list(module(*program.arguments()))
            wrong = difference(found, eager, spread)
            if wrong is not None and difference(found, theirs, spread) is not None:
                frozen = list(torch.jit.freeze(made.eval())(*program.arguments())) if road != "export" else eager
                assert difference(found, frozen, spread) is None, f"{road} {seed}: {wrong}\n{program}"
    return True


@pytest.mark.parametrize("road", _ROADS)
def test_compositions(road: str) -> None:
    assert all(check(seed, road, backend="vulkan", runtime="mobopt") for seed in _TAKEN[road])


def test_compositions_on_the_cpu() -> None:
    assert sum([check(seed, "trace", backend="cpu") for seed in range(4)]) >= 2


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(1000, 5000, 100))
@pytest.mark.parametrize("road", _ROADS)
def test_many_compositions(road: str, first: int) -> None:
    assert sum([check(seed, road, backend="vulkan", runtime="mobopt") for seed in range(first, first + 100)]) >= 30
