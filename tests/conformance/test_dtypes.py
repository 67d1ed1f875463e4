"""What a dtype says is what it is: dtypes and values of results against eager mode, for operators of every family.

Halves are computed in float32 and rounded once for each operator; integers narrower than 32 bits wrap. Every result is
also converted by the model itself, since the host would round what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from torch import Tensor, nn
from torch.nn import functional

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram

HALVES = (torch.float16, torch.bfloat16)
NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)
_Function = Callable[..., Tensor]


class Each(nn.Module):
    """Applies functions to the same arguments; gives each result as it is, and as float32 or int64."""

    def __init__(self, functions: dict[str, _Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Tensor) -> list[Tensor]:
        results = [function(*args) for function in self.functions.values()]
        return results + [each.float() if each.is_floating_point() else each.long() for each in results]


def computed(device: Any, functions: dict[str, _Function], *args: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """By name what the device gives: the result, and the same as the model sees it."""
    traced = torch.jit.trace(Each(functions), args, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device, fallback="error")
    found = program(*args)
    program.close()
    return dict(zip(functions, zip(found[: len(functions)], found[len(functions) :], strict=True), strict=True))


def swept(case: Any) -> Any:
    """A case whose tests belong to the sweep."""
    return pytest.param(case, marks=pytest.mark.sweep)


def uniform(*sizes: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(sizes, generator=generator) * 2 - 1) * scale


_NAMES = (
    "exp",
    "sqrt",
    "rsqrt",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "reciprocal",
    "neg",
    "floor",
    "round",
    "relu",
    "log1p",
)
_ACTIVATIONS = ("silu", "mish", "gelu", "softplus", "hardswish", "hardsigmoid", "elu", "hardshrink", "softshrink")


def _named(library: Any, name: str) -> _Function:
    function = getattr(library, name)
    return lambda x, y, im: function(x.abs() + 0.25 if library is torch else x * 2)


POINTWISE: dict[str, _Function] = {
    **{name: _named(torch, name) for name in _NAMES},
    **{name: _named(functional, name) for name in _ACTIVATIONS},
    "atan2": lambda x, y, im: torch.atan2(x, y),
    "pow": lambda x, y, im: x.abs() ** y,
    "lerp": lambda x, y, im: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y, im: torch.addcmul(x, x, y, value=0.3),
    "addcdiv": lambda x, y, im: torch.addcdiv(x, x, y.abs() + 1, value=0.3),
    "prelu": lambda x, y, im: functional.prelu(x, y[0, :1].abs()),
    "glu": lambda x, y, im: functional.glu(x[:, :6]),
    "where": lambda x, y, im: torch.where(x > y, x, y),
    "clamp": lambda x, y, im: x.clamp(-0.3, 0.7),
    "masked_fill": lambda x, y, im: x.masked_fill(x > 0, -1e4),
    "tril": lambda x, y, im: x.tril(),
    "addition of float32": lambda x, y, im: x.float() + y,
}
REDUCTIONS: dict[str, _Function] = {
    "sum": lambda x, y, im: im.sum((2, 3)),
    "sum of all": lambda x, y, im: x.sum(),
    "mean": lambda x, y, im: im.mean((2, 3)),
    "mean of float32": lambda x, y, im: im.mean((2, 3), dtype=torch.float32),
    "var": lambda x, y, im: x.var(1),
    "std": lambda x, y, im: x.std(0),
    "amax": lambda x, y, im: im.amax(1),
    "prod": lambda x, y, im: x.prod(1),
    "norm": lambda x, y, im: x.norm(dim=1),
    "cumsum": lambda x, y, im: x.cumsum(1),
    "softmax": lambda x, y, im: im.softmax(1),
    "softmax of float32": lambda x, y, im: x.softmax(1, dtype=torch.float32),
    "log_softmax": lambda x, y, im: x.log_softmax(1),
    "logsumexp": lambda x, y, im: (x * 0.125).logsumexp(1),
    "argmax": lambda x, y, im: im.argmax(2),
    "any": lambda x, y, im: (x > 1.5).any(1),
}
PRODUCTS: dict[str, _Function] = {
    "mm": lambda x, y, im: x @ y.t(),
    "mv": lambda x, y, im: x @ y[0],
    "linear": lambda x, y, im: functional.linear(x, y, y[:, 0]),
    "linear and relu": lambda x, y, im: functional.linear(x, y, y[:, 0]).relu(),
    "addmm": lambda x, y, im: torch.addmm(y[:, :5], x, y.t(), beta=0.5, alpha=2.0),
    "bmm": lambda x, y, im: torch.bmm(im[0], im[0].transpose(1, 2)),
    "baddbmm": lambda x, y, im: torch.baddbmm(im[0, :, :, :1], im[0], im[0].transpose(1, 2)),
    "matmul": lambda x, y, im: im @ im[0, 0].t(),
    "conv2d": lambda x, y, im: functional.conv2d(
        im, im[:, :, :3, :3].transpose(0, 1)[:, :1].repeat(1, 6, 1, 1), padding=1
    ),
    "depthwise": lambda x, y, im: functional.conv2d(im, im[:1, :, :3, :3].transpose(0, 1).contiguous(), groups=6),
    "conv1d": lambda x, y, im: functional.conv1d(
        im[0], im[0, :4, :9, :3].transpose(1, 2)[:, :3].repeat(1, 3, 1)[:, :9]
    ),
}
LAYERS: dict[str, _Function] = {
    "layer_norm": lambda x, y, im: functional.layer_norm(x, (7,), y[0], y[1]),
    "group_norm": lambda x, y, im: functional.group_norm(im, 3),
    "batch_norm": lambda x, y, im: functional.batch_norm(im, im[0, :, 0, 0], im[0, :, 0, 1].abs() + 1),
    "avg_pool2d": lambda x, y, im: functional.avg_pool2d(im, 3, 2, 1),
    "max_pool2d": lambda x, y, im: functional.max_pool2d(im, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x, y, im: functional.adaptive_avg_pool2d(im, (3, 4)),
    "global average": lambda x, y, im: functional.adaptive_avg_pool2d(im, 1),
    "bilinear": lambda x, y, im: functional.interpolate(im, scale_factor=1.7, mode="bilinear"),
    "nearest": lambda x, y, im: functional.interpolate(im, scale_factor=2.0),
}
MOVES: dict[str, _Function] = {
    "embedding": lambda x, y, im: functional.embedding((y[:, 0] > 0).long() + 2, x),
    "index": lambda x, y, im: x[:, (y[0] > 0).long()],
    "cat": lambda x, y, im: torch.cat([x, y], 1),
    "cat of images": lambda x, y, im: torch.cat([im[:, :4], im[:, 2:] * 2], 1),
    "cat with float32": lambda x, y, im: torch.cat([x, y.float() * 1.001], 1),
    "stack": lambda x, y, im: torch.stack([x, y]),
    "flip": lambda x, y, im: im.flip(2),
    "pad": lambda x, y, im: functional.pad(im, (1, 2, 1, 0), value=0.1),
    "reflected": lambda x, y, im: functional.pad(im, (1, 2, 1, 0), mode="reflect"),
    "transposed copy": lambda x, y, im: im.permute(0, 2, 3, 1).contiguous(),
    "full": lambda x, y, im: torch.full_like(x, 0.1),
    "linspace": lambda x, y, im: torch.linspace(0, 1, 7, dtype=x.dtype) + x * 0,
    "to half": lambda x, y, im: (x.float() * 1.001).to(x.dtype),
}
# What rounds once is within a unit of the last place of eager mode; sums are in another order there.
FAMILIES = {
    "pointwise": (POINTWISE, 1),
    "reductions": (REDUCTIONS, 2),
    "products": (PRODUCTS, 2),
    "layers": (LAYERS, 2),
    "moves": (MOVES, 0),
}


@pytest.mark.parametrize("dtype", [torch.float16, swept(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("family", [swept("pointwise"), *list(FAMILIES)[1:]])
def test_operators_on_halves(device: Any, dtype: torch.dtype, family: str) -> None:
    functions, units = FAMILIES[family]
    args = [uniform(5, 7).to(dtype), uniform(5, 7, seed=1).to(dtype), uniform(2, 6, 9, 11, seed=2).to(dtype)]
    for name, (result, seen) in computed(device, functions, *args).items():
        eager = functions[name](*args)
        assert (result.dtype, result.shape) == (eager.dtype, eager.shape), name
        if not result.is_floating_point():
            assert torch.equal(result, eager), name
            continue
        assert torch.equal(seen.to(result.dtype).float(), seen), f"{name} is not rounded on the device"
        assert torch.equal(result.float(), seen), name
        exact = eager.double()
        unit = (2**-20 if result.dtype == torch.float32 else torch.finfo(dtype).eps) * (exact.abs() + 2**-14)
        error = (seen.double() - exact).abs()
        assert bool((error <= units * unit).all()), f"{name}: {float((error / unit).max())} units"


@pytest.mark.parametrize("dtype", [swept(torch.float16), torch.bfloat16], ids=str)
def test_activations_that_store_single_elements(device: Any, dtype: torch.dtype) -> None:
    # Drivers compile each function together with the store: llvmpipe on AVX-512 confused both for softshrink alone.
    functions = {name: lambda x, name=name: getattr(functional, name)(x) for name in _ACTIVATIONS}
    x = uniform(5, scale=6.0).to(dtype)
    for name, (result, _) in computed(device, functions, x).items():
        error = (result.double() - functions[name](x).double()).abs()
        assert bool((error <= torch.finfo(dtype).eps * x.double().abs()).all()), name


CHAINS: dict[str, _Function] = {
    "arithmetic": lambda x, y, i: (x * y + x - y * 0.3) / (y.abs() + 0.7),
    "numbers are rounded": lambda x, y, i: (x + 0.1) % 0.3 - (0.7 - y),
    "numbers keep their precision": lambda x, y, i: x * 0.1 / 0.3,
    "alpha": lambda x, y, i: torch.add(x, y, alpha=0.37) - torch.sub(y, x, alpha=1.7),
    "quotients": lambda x, y, i: torch.div(x, y, rounding_mode="trunc") + torch.fmod(x, 0.3),
    "integers are rounded first": lambda x, y, i: (i + x) * (i - y),
    "extremes": lambda x, y, i: torch.maximum(x, y).clamp(-1.1, 0.1) * torch.minimum(x, y),
    "compared with a number": lambda x, y, i: ((x == 0.1) | (x < 0.3)) & (y >= -0.7),
    "compared with integers": lambda x, y, i: (x * 100 == i) | (x * 100 <= i),
    "masks": lambda x, y, i: x.masked_fill(y > 0, 0.1) + torch.where(x > 0, x, y * 2.5),
    "overflow": lambda x, y, i: x * 1e4 * 1e4 - y * 3e38,
    "subnormal": lambda x, y, i: x * 1e-6 + y * 3e-7,
    "of a tensor without dimensions": lambda x, y, i: (x + x[0, 0]) * y[0, 1] + x.float()[0, 0],
}


@pytest.mark.parametrize("dtype", [torch.float16, swept(torch.bfloat16)], ids=str)
def test_chains_on_halves_are_those_of_eager_mode_bit_by_bit(device: Any, dtype: torch.dtype) -> None:
    # Whole vectors of the CPU: its kernels round products with alpha once more in what is left.
    integers = torch.randint(-3000, 3000, (7, 64), generator=torch.Generator().manual_seed(3))
    x, y = uniform(7, 64).to(dtype), uniform(7, 64, seed=1).to(dtype)
    x[0, :4] = torch.tensor([0.1, 0.3, -0.1, 0.7]).to(dtype)
    for name, (result, seen) in computed(device, CHAINS, x, y, integers).items():
        eager = CHAINS[name](x, y, integers)
        assert result.dtype == eager.dtype, name
        expected = eager.float() if eager.is_floating_point() else eager.long()
        torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True, msg=name)


def test_conversions_to_halves(device: Any) -> None:
    """Ties to even, overflow from 65520 on, subnormal numbers, infinities and NaN."""
    edges = [1.0001, 70000.0, 65519.9, 65520.0, 65504.0, 1e-7, 3e-8, 2.98e-8, 2.9e-8, -1e-6, 0.0, -0.0, 0.1, 3.4e38]
    ties = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 2**-14 * (1 - 2**-11), 2**-25, 3 * 2**-25]
    bits = torch.randint(-(2**31), 2**31 - 1, (4001,), generator=torch.Generator().manual_seed(4)).int()
    anything = bits.view(torch.float32)
    anything = torch.where(anything.abs() < 2.0**-126, torch.ones(()), anything)  # drivers may flush these
    x = torch.cat([torch.tensor([*edges, *ties, float("inf"), float("-inf"), float("nan")]), anything])
    functions = {str(dtype): lambda x, i, dtype=dtype: x.to(dtype) for dtype in HALVES}
    functions |= {f"{dtype} of integers": lambda x, i, dtype=dtype: i.to(dtype) for dtype in HALVES}
    integers = torch.tensor([2049, 65519, 65520, 70000, 257, -2051, 2**31 - 1])
    for name, (_, seen) in computed(device, functions, x, integers).items():
        expected = functions[name](x, integers).float()
        torch.testing.assert_close(seen, expected, rtol=0, atol=0, equal_nan=True, msg=name)
        finite = seen.isfinite() & (seen == 0)
        assert torch.equal(seen[finite].signbit(), expected[finite].signbit()), name


_SHIFTS = (0, 3, 7, 8, 15, 16, 31, 32, 33, -1)
INTEGERS: dict[str, _Function] = {
    "add": lambda x, y, p: x + y * 3,
    "alpha": lambda x, y, p: torch.sub(x, y, alpha=7),
    "mul": lambda x, y, p: x * y * x,
    "neg": lambda x, y, p: -x,
    "abs": lambda x, y, p: x.abs(),
    "square": lambda x, y, p: x.square(),
    "pow": lambda x, y, p: x ** (p % 5),
    "floor": lambda x, y, p: x // p,
    "trunc": lambda x, y, p: torch.div(x, p, rounding_mode="trunc"),
    "true division": lambda x, y, p: x / p,
    "remainder": lambda x, y, p: x % p,
    "fmod": lambda x, y, p: torch.fmod(x, p),
    "bits": lambda x, y, p: (x & y) ^ (x | ~y),
    "extremes": lambda x, y, p: torch.maximum(x, y).clamp(3, 50) + torch.minimum(x, y),
    "where": lambda x, y, p: torch.where(x > y, x, y) - 100,
    "long chain": lambda x, y, p: ((x + y) * y - x) * (y - p) + x * x - y,
    "sum": lambda x, y, p: x.sum(1, dtype=x.dtype),
    "cumsum": lambda x, y, p: x.cumsum(0, dtype=x.dtype),
    "prod": lambda x, y, p: x.prod(1, dtype=x.dtype),
    "amax": lambda x, y, p: x.amax(0),
    "any": lambda x, y, p: (x > 100).any(1),
    "cat": lambda x, y, p: torch.cat([x, y + 100], 1),
    **{f"<< {count}": lambda x, y, p, count=count: x << count for count in _SHIFTS},
    **{f">> {count}": lambda x, y, p, count=count: x >> count for count in _SHIFTS},
    **{f"<< tensor of {count}": lambda x, y, p, count=count: x << torch.full_like(x, count) for count in (3, 9, 40)},
}


@pytest.mark.parametrize("dtype", [torch.int8, *map(swept, NARROW[1:])], ids=str)
def test_narrow_integers_wrap(device: Any, dtype: torch.dtype) -> None:
    generator, limits = torch.Generator().manual_seed(5), torch.iinfo(dtype)
    x, y = (torch.randint(limits.min, limits.max + 1, (5, 7), generator=generator).to(dtype) for _ in range(2))
    x[0, 0], y[0, 0] = limits.min, limits.max
    positive = torch.randint(1, 100, (5, 7), generator=generator).to(dtype)
    functions = {
        name: function
        for name, function in INTEGERS.items()
        if not (name.endswith("-1") and dtype == torch.uint8) and not ("tensor of 40" in name and dtype == torch.int8)
    }
    for name, (result, seen) in computed(device, functions, x, y, positive).items():
        eager = functions[name](x, y, positive)
        assert result.dtype == eager.dtype, name
        assert torch.equal(result, eager), f"{name}: {result} is not {eager}"
        assert torch.equal(seen, eager.float() if eager.is_floating_point() else eager.long()), name


def test_floats_become_integers_as_on_x86(device: Any) -> None:
    values = [3e9, -3e9, float("nan"), float("inf"), 300.0, -1.5, 2147483648.0, 70000.0, -129.0, 127.9, -0.4]
    x = torch.tensor(values)
    functions = {str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in (*NARROW, torch.bool)}
    for name, (result, _) in computed(device, functions, x).items():
        assert torch.equal(result, functions[name](x)), name


def _complex(x: Tensor) -> list[Tensor]:
    turned = torch.view_as_complex(x.reshape(-1, 2)) * torch.view_as_complex(x.reshape(-1, 2))
    return [turned, torch.view_as_real(turned) + 1, torch.fft.rfft(x).abs() * 2, x.relu()]


HOST_CASES: dict[str, tuple[_Function, tuple[Tensor, ...]]] = {
    "float64 in, float32 out": (lambda x: x.float() * 2 + 1, (uniform(3, 4).double(),)),
    "float64 between": (lambda x: ((x + 1).double() * 1e-9 + 1e9).sub(1e9).float() * 2, (uniform(3, 4),)),
    "float64 in and out": (lambda x, y: (x * y + 1, y.relu(), x.t()), (uniform(3, 4).double(), uniform(3, 4))),
    "float64 without dimensions": (lambda x, y: x * y, (torch.tensor(2.5).double(), uniform(2))),
    "complex": (_complex, (uniform(4, 6),)),
    "complex in": (lambda x: (x.abs() + 1, x * 2, x.real), (torch.complex(uniform(3), uniform(3, seed=1)),)),
    "uint64": (lambda x: (x, x.float() + 1), (torch.tensor([1, 2**63 + 1], dtype=torch.uint64),)),
    "uint16": (lambda x: (x.int() + 1).relu(), (torch.tensor([1, 65535], dtype=torch.uint16),)),
    "host and device in turns": (
        lambda x: ((x.relu().double() * 3).float().sigmoid().double() + x.double()).float().tanh(),
        (uniform(5, 3),),
    ),
}


@pytest.mark.parametrize("name", HOST_CASES)
def test_what_the_device_has_no_elements_for_lives_on_the_host(device: Any, name: str) -> None:
    function, args = HOST_CASES[name]
    copies = [arg.clone() for arg in args]
    traced = torch.jit.trace(Applied(function), args, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    for _ in range(2):
        found, expected = program(*args), function(*args)
        for result, eager in zip(_listed(found), _listed(expected), strict=True):
            assert (result.dtype, result.shape) == (eager.dtype, eager.shape)
            torch.testing.assert_close(result, eager)
    assert all(torch.equal(arg, copy) for arg, copy in zip(args, copies, strict=True))
    program.close()


def _listed(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)
