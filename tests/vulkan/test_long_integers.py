"""Integers of 64 bits: what they compute at the edges of 32, 53 and 64 bits is what torch computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from sampling import sampled
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.limits import LimitError
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.kernels import sort_kernel
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.program import VulkanProgram

_LARGEST, _LOWEST = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min
_INT = torch.int32


def program_of(device: Device, function: Callable[..., Any], *args: Tensor) -> VulkanProgram:
    traced = torch.jit.trace(Applied(function), args, check_trace=False, strict=False)
    return VulkanProgram(program_from_script_module(traced), device)


def assert_exact(found: Any, expected: Any, name: str) -> None:
    for result, eager in zip(*([x] if isinstance(x, Tensor) else x for x in (found, expected)), strict=True):
        assert result.dtype == eager.dtype, name
        assert torch.equal(result, eager), f"{name}: {result[result != eager]} is not {eager[result != eager]}"


_EDGES = torch.tensor(
    [
        *(0, 1, -1, 2, -7, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**32 + 1, -(2**32), 2**53, 2**53 + 1),
        *(-(2**53) - 1, _LARGEST, _LOWEST, 3037000500, 10**18),
    ]
)
_PAIRS = torch.cartesian_prod(_EDGES, _EDGES)
_FLOATS = torch.tensor(
    [
        *(3e9, -3e9, 1e10, 2.0**53, 2.0**62, -(2.0**63), 2.0**63, 1e30, 0.5, -1.5, 16777217.0, -0.0),
        *(float("inf"), float("-inf"), float("nan")),
    ]
)
_PLACES = torch.arange(361) % 9
LONG: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "arithmetic": lambda a, b: (a + b, a - b, a * b, -a, a.abs(), a.sign(), torch.add(a, b, alpha=3), 5 - a, a**3),
    "comparisons": lambda a, b: (a < b, a <= b, a == b, a != b, a >= b, a < 2**40, a == 2**53 + 1, a < 2.5),
    "extremes": lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.clamp(-(2**40), 2**40), a.clamp(b, None)),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a, a & 2**40),
    "shifts": lambda a, b: (a << b, a >> b, a << b % 64, a >> b % 64, a << 33, a >> 33, a << 63, a >> 64),
    "conversions": lambda a, b: (a.float(), a.half(), a.bfloat16(), a.int(), a.short(), a.byte(), a.bool(), a * 0.5),
    "where": lambda a, b: (torch.where(a > b, a, b), torch.where(a > 0, a, 2**40), a.masked_fill(b > 0, _LOWEST)),
    "divided": lambda a, b: (a // 7, a % 7, a // -7, a % -7, torch.fmod(a, 2**33), a // 2**33, a % 2**33),
    "moved": lambda a, b: (a.flip(0), torch.cat([a, _PLACES, b]), torch.stack([a, b], 1), a.roll(5), a[::3], a[1:-2]),
    "viewed": lambda a, b: (a.view(19, 19).t().contiguous(), a.view(19, 19)[3:, 2:5] + 1, a.view(19, 19).tril(-1)),
    "viewed like longs": lambda a, b: (_PLACES.view_as(a) + 1, _PLACES.view(1, 361).expand_as(a.view(1, 361)) * 2),
    "chosen": lambda a, b: (a.gather(0, _PLACES), a[_PLACES - 3], a.view(19, 19)[_PLACES, a % 19, None]),
    "padded": lambda a, b: (nn.functional.pad(a, (1, 2), value=2**40), a.repeat(2), torch.full_like(a, _LARGEST)),
    "mirrored": lambda a, b: tuple(
        nn.functional.pad(a.view(19, 19)[None], (2, 1), mode) for mode in ("reflect", "replicate", "circular")
    ),
    "put": lambda a, b: (a.scatter(0, _PLACES, b), a.index_fill(0, _PLACES, 2**50), a.scatter_add(0, _PLACES, b)),
    "combined": lambda a, b: tuple(
        torch.ones(9).long().scatter_reduce(0, _PLACES, a, how, include_self=how == "amin")
        for how in ("sum", "prod", "amin", "amax")
    ),
    "reduced": lambda a, b: (a.sum(), a.prod(), a.amax(), a.amin(), a.any(), a.all(), a.argmax(), a.argmin(), a.max()),
    "of rows": lambda a, b: (*a.view(19, 19).max(1), *a.view(19, 19).min(0), a.view(19, 19).sum(0), a.sum(dtype=_INT)),
    "running": lambda a, b: (a.cumsum(0), a.cumprod(0), a.view(19, 19).cumsum(1), a.view(19, 19).cumsum(0)),
    "sorted": lambda a, b: (*a.sort(stable=True), a.argsort(stable=True, descending=True), a.topk(5)[0], a.median()),
    "searched": lambda a, b: (
        torch.searchsorted(a.sort()[0], b.clone()),
        torch.bucketize(a, _EDGES[[16, 6, 9]], right=True),
    ),
    "products": lambda a, b: (a.view(19, 19) @ b[:19], a[:361:6].view(1, 61) @ b[:61], a.dot(b), torch.outer(a, b[:5])),
    "of mixed widths": lambda a, b: ((a.int() * b.int() >> 3).long() * 2**35, (a.byte() + b.byte()) * a, a * _PLACES),
}


@pytest.mark.parametrize("name", sampled(LONG, one_in=2))
def test_64_bits_are_exact_at_the_edges(any_device: Device, name: str) -> None:
    a, b = _PAIRS.t().contiguous()
    program = program_of(any_device, LONG[name], a, b)
    assert_exact(program(a, b), LONG[name](a, b), name)
    assert not program.plan_report((a, b)).fallbacks
    program.close()


def test_runs_that_are_merged_at_once_as_on_gpus(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_kernel, "_CPU_WAYS", 16)
    a, b = _PAIRS.t().contiguous()
    program = program_of(device, LONG["sorted"], a, b)
    assert_exact(program(a, b), LONG["sorted"](a, b), "sorted")
    program.close()


def test_floats_become_what_they_are_on_a_processor(device: Device) -> None:
    program = program_of(device, lambda x: (x.long(), x.sum(dtype=torch.int64), x.half().long()), _FLOATS)
    found = program(_FLOATS)
    assert_exact(found[::2], (_FLOATS.long(), _FLOATS.half().long()), "floats")
    assert torch.equal(found[1], _FLOATS.long().sum())
    assert not program.plan_report((_FLOATS,)).fallbacks
    program.close()


def test_functions_take_64_bits_as_floats(device: Device) -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = b.float()
        return a.sqrt(), a.atan(), a.sin(), torch.pow(a, 0.5), y // 3 + a, a.isfinite(), a.angle(), (a * 3).exp(), a / b

    a, b = _PAIRS[_PAIRS[:, 1] != 0].t().contiguous()
    program = program_of(device, function, a, b)
    for result, eager in zip(program(a, b), function(a, b), strict=True):
        torch.testing.assert_close(result, eager, equal_nan=True)
    assert not program.plan_report((a, b)).fallbacks
    program.close()


def test_indices_of_64_bits_choose_places_of_narrow_tensors(device: Device) -> None:
    """So many that equal ones would be combined by atomic operations, which only 32 bits have."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        places = (x >> 63) + 1
        ones = torch.ones(3001, dtype=_INT)
        counts = torch.zeros(2, dtype=_INT)
        return counts.scatter_add(0, places, ones), counts.index_add(0, places, ones), ones.float().cumsum(0)[places]

    x = torch.arange(3001) - 1300
    x[0] = -(2**40)
    program = program_of(device, function, x)
    assert_exact(program(x), function(x), "narrow tensors")
    assert not program.plan_report((x,)).fallbacks
    program.close()


def test_quotients_are_exact(any_device: Device) -> None:
    """But for the lowest by -1, of which processors know no quotient, and by zero, which is refused."""

    def divide(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")

    generator = torch.Generator().manual_seed(3)
    anything = torch.randint(_LOWEST, _LARGEST, (5003, 2), generator=generator)
    pairs = torch.cat([_PAIRS, anything >> torch.randint(64, (5003, 2), generator=generator)])
    a, b = pairs[(pairs[:, 1] != 0) & ~((pairs[:, 0] == _LOWEST) & (pairs[:, 1] == -1))].unbind(1)
    program = program_of(any_device, divide, a, b)
    assert_exact(program(a, b), divide(a, b), "quotients")
    assert not program.plan_report((a, b)).fallbacks
    with pytest.raises(InputError, match="ZeroDivisionError"):
        program(a, torch.zeros_like(b))
    program.close()


def test_long_dimensions_of_64_bits(any_road: Device) -> None:
    x = torch.randint(-(2**62), 2**62, (3, 70001), generator=torch.Generator().manual_seed(2))

    def reduced(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.sum(1), x.cumsum(1), x.argmax(1), x.amin(1), x.sum(0), x.t().cumsum(0), x.int().sum()

    program = program_of(any_road, reduced, x)
    assert_exact(program(x), reduced(x), "long dimensions")
    assert not program.plan_report((x,)).fallbacks
    program.close()


def test_arrays_hold_64_bits_where_they_must(device: Device) -> None:
    """What one call gives, the next takes, whatever was assumed of its integers."""
    program = program_of(device, lambda x: x * x, _PLACES)
    for x in (_PLACES, _EDGES, torch.tensor([3, -4]), _EDGES):
        squares = program.run_on_device("forward", (DeviceArray.from_tensor(device, x),))
        assert torch.equal(squares.tensor(), x * x)
        fourth = program.run_on_device("forward", (squares,))
        assert torch.equal(fourth.tensor(), x * x * x * x)
        assert torch.equal(fourth.clone().tensor(), fourth.tensor())
        assert torch.equal(fourth.as_strided((2,), (1,), 0).tensor(), fourth.tensor()[:2])
    program.close()


def test_no_shader_of_32_bits_gets_64(device: Device) -> None:
    plan = Plan(device.info)
    data = plan.empty((4,), torch.int64, elements=torch.int64)
    with pytest.raises(LimitError, match="pool has no integers of 64 bits"):
        plan.dispatch("pool", [bind(data)], (1, 1, 1), iterations=1)


def test_what_has_no_kernel_of_64_bits_runs_on_the_cpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mobopt.runtimes.vulkan.compile.placement.takes_longs", lambda call: call.op != "aten::flip")
    program = program_of(device, lambda x: (x + 1).flip(0) - 1, _EDGES)
    assert_exact(program(_EDGES), _EDGES.flip(0), "turned round")
    (fallback,) = program.plan_report((_EDGES,)).fallbacks
    assert (fallback.op, fallback.reason) == (
        "aten::flip",
        "int64 of any size may come, and the kernel's integers have 32 bits",
    )
    program.close()


def test_new_sizes_need_no_lowering_of_their_own(device: Device) -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (a * b + 2**40) % 1000, a.cumsum(0), b.sum(), torch.cat([a, b]).sort()[0], b[a % 3]

    a, b = _PAIRS.t().contiguous()
    program = program_of(device, function, a[:5], b[:5])
    for count in (5, 7, 11, 13):
        assert_exact(program(a[:count], b[:count]), function(a[:count], b[:count]), f"{count} elements")
        assert not program.plan_report((a[:count], b[:count])).fallbacks
    program.close()
