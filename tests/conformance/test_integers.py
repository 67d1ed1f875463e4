"""int64 is exact: with 32 bits on the device where its values fit, else with 64, and on the CPU where no kernel can."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from sampling import sampled
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.integer_ranges import IntegerRanges, Interval
from mobopt.runtimes.vulkan.program import VulkanProgram

_Function = Callable[..., Any]


def program_of(device: Any, function: _Function, *args: Tensor) -> VulkanProgram:
    traced = torch.jit.trace(Applied(function), args, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    return VulkanProgram(program_from_script_module(traced), device)


def assert_exact(found: Any, expected: Any, name: str) -> None:
    pairs = zip(*([value] if isinstance(value, Tensor) else value for value in (found, expected)), strict=True)
    for result, eager in pairs:
        assert result.dtype == eager.dtype, name
        assert torch.equal(result, eager), f"{name}: {result} is not {eager}"


_LARGEST, _LOWEST = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min
_IN = torch.tensor([-100000, -1, 0, 1, 5, 100000, 2**31 - 1, -(2**31)])
WIDE: dict[str, tuple[_Function, Tensor]] = {
    "sum beyond": (lambda x: x + 1, _IN),
    "product": (lambda x: x * x // 100000, _IN),
    "product as float": (lambda x: (x * 100000).float(), _IN),
    "negative": (lambda x: (-x, x.abs()), _IN),
    "compared with a large number": (lambda x: (x < 2**40, x == 2**32 + 5), _IN),
    "clamped by a large number": (lambda x: x.clamp(max=2**40), _IN),
    "filled with the largest": (lambda x: x.masked_fill(x < 0, _LARGEST).min(), _IN),
    "filled with the lowest": (lambda x: x.masked_fill(x < 0, _LOWEST), _IN),
    "where": (lambda x: torch.where(x > 0, x, 2**35), _IN),
    "shifts": (lambda x: (x << 33, x >> 33, (x << 20) >> 20), _IN),
    "sum": (lambda x: x.sum(), torch.full((100000,), 100000)),
    "cumsum": (lambda x: x.cumsum(0)[-3:], torch.full((30000,), 100000)),
    "prod": (lambda x: x.prod(), torch.full((20,), 9)),
    "power": (lambda x: x**3, _IN),
    "bits": (lambda x: (x ^ 2**33, ~x, x | -(2**40)), _IN),
    "wide input": (lambda x: (x.float(), x + 1, x % 1000, (x % 7).float()), torch.tensor([2**40, -(2**62), 3])),
    "lowest": (lambda x: (x.abs(), -x, x - 1), torch.tensor([_LOWEST, _LARGEST])),
    "constants": (lambda x: x + torch.tensor([2**40, 1, 2, 3, 4, 5, 6, 7]), _IN),
    "arange": (lambda x: torch.arange(8) * 2**33 + x, _IN),
    "full": (lambda x: torch.full_like(x, 2**33) - x, _IN),
    "sum of int32": (lambda x: x.int().sum(), _IN),
    "product of bytes": (lambda x: (x % 100).to(torch.uint8).prod(), torch.full((9,), 99)),
    "padded": (lambda x: nn.functional.pad(x, (1, 1), value=2**36), _IN),
    "back to int32": (lambda x: (x * x).int(), _IN),
}


@pytest.mark.parametrize("name", sampled(WIDE, one_in=2))
def test_what_may_not_fit_is_computed_with_64_bits(device: Any, name: str) -> None:
    function, x = WIDE[name]
    program = program_of(device, function, x)
    assert_exact(program(x), function(x), name)
    assert not program.plan_report((x,)).fallbacks
    program.close()


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) * mask - 1).clamp(min=0)


def _corners(ids: Tensor, mask: Tensor, x: Tensor) -> Tensor:
    left = torch.floor(x * 3).long()
    right = (left + 1).clamp(0, 6)
    return left.clamp(0, 6) * 7 + right


NARROW: dict[str, _Function] = {
    "positions": lambda ids, mask, x: _positions(mask) + 2,
    "positions of what is no padding": lambda ids, mask, x: ids.ne(1).int().cumsum(1).type_as(mask) * ids.ne(1) + 1,
    "lengths": lambda ids, mask, x: (mask.sum(1) - 1, mask.sum()),
    "last token": lambda ids, mask, x: ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0)),
    "comparisons": lambda ids, mask, x: (ids < 50257, ids == 3, ids.ne(0) & mask.bool()),
    "buckets": lambda ids, mask, x: torch.where(ids < 32, ids, (ids // 16).clamp(max=63)) + ids % 8,
    "places": lambda ids, mask, x: x.argmax(1) * 11 + x.max(1).indices,
    "grids": lambda ids, mask, x: torch.arange(5)[:, None] * 11 + torch.arange(11)[None, :] + mask[:1, :1],
    "corners": _corners,
    "of floats": lambda ids, mask, x: (x * 100).long(),
    "narrowed": lambda ids, mask, x: (ids.int() * 3, ids.to(torch.uint8)),
    "joined": lambda ids, mask, x: torch.cat([ids, mask, torch.zeros_like(ids)], 1)[:, 3:],
}


@pytest.mark.parametrize("name", NARROW)
def test_what_models_do_with_tokens_stays_on_the_device(device: Any, name: str) -> None:
    """For token numbers of any vocabulary, and with one plan for all of them."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.randint(2, (3, 11), generator=generator)
    x = torch.rand(3, 11, generator=generator) * 2
    program = None
    for vocabulary in (50257, 2, 1000, 2**20):
        args = (torch.randint(vocabulary, (3, 11), generator=generator), mask, x)
        program = program or program_of(device, NARROW[name], *args)
        assert_exact(program(*args), NARROW[name](*args), name)
        assert not program.plan_report(args).fallbacks
    assert program is not None
    assert len(program._plans) <= 2
    program.close()


def test_inputs_that_grow_get_other_plans(device: Any) -> None:
    program = program_of(device, lambda x: (x * 2 + 1, x > 5), torch.tensor([3, 4]))
    for values in ([3, 4], [2**20, 5], [2**31 - 1, 5], [-(2**31), 5], [2**40, 5], [1, 2], [2**62, -(2**62)]):
        x = torch.tensor(values)
        assert_exact(program(x), (x * 2 + 1, x > 5), str(values))
        assert not program.plan_report((x,)).fallbacks
    assert 2 <= len(program._plans) <= 3
    program.close()


def test_large_floats_become_int64_exactly(device: Any) -> None:
    program = program_of(device, lambda x: (x.long() + 1, x.relu()), torch.tensor([3.0, 4.0]))
    for values in (
        [1.5, 2.0],
        [3e9, 1.0],
        [float("nan"), float("inf")],
        [-1e30, 2.0**24],
        [1.0, 2.0],
    ):
        x = torch.tensor(values)
        found = program(x)
        assert torch.equal(found[0], x.long() + 1), values
        assert not program.plan_report((x,)).fallbacks
    program.close()


# Soundness of the intervals: whatever inputs within theirs, results are within theirs.

RULES: list[_Function] = [
    lambda a, b: a + b,
    lambda a, b: torch.sub(a, b, alpha=3),
    lambda a, b: torch.rsub(a, b, alpha=-2),
    lambda a, b: 7 - a,
    lambda a, b: a * b,
    lambda a, b: -a,
    lambda a, b: a.abs(),
    lambda a, b: a.sign(),
    lambda a, b: a.square(),
    lambda a, b: torch.addcmul(a, a, b, value=-2),
    lambda a, b: a // (b.abs() + 1),
    lambda a, b: torch.div(a, b.abs() + 2, rounding_mode="trunc"),
    lambda a, b: a // -3,
    lambda a, b: a % (b.abs() + 1),
    lambda a, b: a % -7,
    lambda a, b: torch.fmod(a, b.abs() + 1),
    lambda a, b: a**3,
    lambda a, b: a & b,
    lambda a, b: a | b,
    lambda a, b: a ^ b,
    lambda a, b: ~a,
    lambda a, b: a << 5,
    lambda a, b: a << (b % 9),
    lambda a, b: a >> 3,
    lambda a, b: a >> (b % 70),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.minimum(a, b),
    lambda a, b: a.clamp(-5, 9),
    lambda a, b: a.clamp(min=b),
    lambda a, b: a.relu(),
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: torch.where(a > 0, a, -3),
    lambda a, b: a.masked_fill(b > 0, 77),
    lambda a, b: a.sum(),
    lambda a, b: a.sum(1),
    lambda a, b: a.cumsum(-1),
    lambda a, b: (a % 5).prod(1),
    lambda a, b: (a % 3 - 1).cumprod(0),
    lambda a, b: a.max(1).indices,
    lambda a, b: a.min(1).values,
    lambda a, b: a.argmax(),
    lambda a, b: a.sort(1).indices,
    lambda a, b: a.topk(2, 1).values,
    lambda a, b: a @ b.t(),
    lambda a, b: torch.cat([a, b], 1),
    lambda a, b: nn.functional.pad(a, (1, 0), value=123),
    lambda a, b: a.tril(),
    lambda a, b: a.gather(1, (b % 3).abs()),
    lambda a, b: a.scatter(1, (b % 3).abs(), 55),
    lambda a, b: a.scatter_add(1, (b % 3).abs(), b),
    lambda a, b: a.index_select(0, (b[0] % 2).abs()),
    lambda a, b: nn.functional.one_hot(a.abs() % 4, 4),
    lambda a, b: a.int() * b.int(),
    lambda a, b: a.to(torch.int8) + 100,
    lambda a, b: torch.count_nonzero(a, 1),
    lambda a, b: torch.searchsorted(torch.arange(3), b),
    lambda a, b: a.flip(0).permute(1, 0).reshape(-1),
]


def _random_interval(chance: random.Random) -> Interval:
    size = 2 ** chance.choice([1, 4, 10, 20])
    low = chance.randint(-size, size)
    return low, low + chance.randint(0, size)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_intervals_hold_what_operators_make(number: int) -> None:
    chance, generator = random.Random(number), torch.Generator().manual_seed(number)
    sizes = (3, 4)
    example = tuple(torch.ones(sizes, dtype=torch.int64) for _ in range(2))
    traced = torch.jit.trace(Applied(RULES[number]), example, check_trace=False)  # type: ignore[no-untyped-call]
    segment = specialize(program_from_script_module(traced), "forward", example)
    for _ in range(20):
        intervals = [_random_interval(chance) for _ in example]
        ranges = IntegerRanges(dict(zip(segment.inputs, intervals, strict=True)))
        for node in segment.graph.block.nodes:
            ranges.record(node, floats_fit=True)
        low, high = ranges.of(segment.graph.outputs[0])
        for _ in range(4):
            given = [torch.randint(a, b + 1, sizes, generator=generator) for a, b in intervals]
            for tensor, (a, b) in zip(given, intervals, strict=True):
                tensor[0, :2] = torch.tensor([a, b])
            made = RULES[number](*given)
            assert low <= int(made.min()) and int(made.max()) <= high, (intervals, low, high, made)


_SAME_SIZES = [rule for rule in RULES if rule(torch.ones(3, 4).long(), torch.ones(3, 4).long()).shape == (3, 4)]


@pytest.mark.parametrize("seed", sampled(range(12), one_in=3))
def test_random_chains_are_exact(device: Any, seed: int) -> None:
    """Several operators after each other, on small and large numbers: results are exact, wherever they are made."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    chosen = [chance.choice(_SAME_SIZES) for _ in range(6)]

    def chain(a: Tensor, b: Tensor) -> list[Tensor]:
        made = [a, b]
        for number, rule in enumerate(chosen):
            made.append(rule(made[-1].long(), made[number].long()))
        return made[2:]

    def argument(bits: int) -> Tensor:
        return torch.randint(-(2**bits), 2**bits, (3, 4), generator=generator)

    program = program_of(device, chain, argument(3), argument(3))
    for bits in (3, 12, 31, 40):
        args = argument(bits), argument(3)
        assert_exact(program(*args), chain(*args), f"seed {seed}, {bits} bits")
    program.close()
