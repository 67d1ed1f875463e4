"""Complex tensors as pairs of real ones, beside torch's own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_call
from real_parts import assert_near, check
from torch import Tensor
from torch.nn import functional

from mobopt.errors import UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import NOWHERE, Graph, Value, print_graph
from mobopt.runtimes.abstract import whole
from mobopt.runtimes.cpu.interpreter import Interpreter
from mobopt.runtimes.recorder import Recorder
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


def _numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def _write_to_parts(z: Tensor) -> Tensor:
    y = z * 2
    y.imag[1:] = 0
    y.conj()[0] = 1j
    y.real.add_(1)
    torch.view_as_real(y)[..., 2:5, 1] = 3.0
    y.conj().imag[2] = 7.0
    return y * 1


def _write_to_floats(z: Tensor) -> Tensor:
    x = torch.stack([z.real, z.abs()], -1)
    torch.view_as_complex(x)[1] = 2 + 3j
    return x * 1


Z, Y, V = _numbers(3, 7), _numbers(3, 7, seed=1), _numbers(7, 5, seed=2)
X = torch.randn(3, 7, generator=torch.Generator().manual_seed(3))
PLACES = torch.tensor([2, 0])
SPECIAL = torch.complex(
    *(part.flatten() for part in torch.meshgrid([torch.tensor([0.0, -0.0, 1.5, -2.5, torch.inf])] * 2, indexing="ij"))
)
WIDE = torch.tensor([3e25 + 4e25j, 3e-25 - 4e-25j, -3e30j, 2e-30 + 0j], dtype=torch.complex64)

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "sums": (lambda z, y: (z + y, z - y, z + 2, 3j - z, torch.sub(z, y, alpha=2), torch.add(z, y, alpha=1j)), (Z, Y)),
    "products": (lambda z, y: (z * y, z / y, 1 / z, z * 2j, z / 3, -z, z.reciprocal()), (Z, Y)),
    "with real numbers": (lambda z, x: (z * x, x - z, z / x, x / z, x * 1j, z + x.int()), (Z, X)),
    "broadcasts": (lambda z, y, x: (z * y[0], y[:, :1] + x, z[0] * x), (Z, Y, X)),
    "quotients of wide range": (lambda z: (z / z, 1 / z, z.abs()), (WIDE,)),
    "parts": (lambda z: (z.real, z.imag, torch.view_as_real(z), z.abs(), z.angle(), z.sgn()), (Z,)),
    "made of parts": (lambda x: (torch.complex(x, x * 2), torch.polar(x, x * 3), x.to(torch.complex64)), (X,)),
    "made of one": (lambda x: torch.view_as_complex(x.reshape(3, 7, 1).expand(3, 7, 2).contiguous()) * 2, (X,)),
    "conjugates": (lambda z: (z.conj(), z.T.conj(), (z * 2).conj().resolve_conj(), z.conj_physical(), z.mH), (Z,)),
    "exponentials": (lambda z: (z.exp(), z.log(), z.log2(), z.log10(), torch.sigmoid(z)), (Z,)),
    "roots": (lambda z: (z.sqrt(), z.rsqrt()), (Z,)),
    "powers": (lambda z, y: (z**2, z**5, z**-3, z**0.5, z**1.5, z**0, 2**z, z**y, z.square()), (Z, Y)),
    "waves": (lambda z: (z.sin(), z.cos(), z.sinh(), z.cosh(), z.tan(), z.tanh(), (z * 50).tanh()), (Z,)),
    "edges": (lambda z: (z.abs(), z.isnan(), z.isinf(), z.isfinite(), z == z.conj(), z.isreal()), (SPECIAL,)),
    # Of infinite numbers, torch's own kernel makes one part NaN or both, by whether it computes several at once.
    "signs": (lambda z, y: (z.sgn().isnan(), y.sgn()), (SPECIAL, SPECIAL[SPECIAL.isfinite()])),
    "angles": (lambda x: (torch.angle(x), torch.angle(x * torch.nan), torch.angle(x.int())), (X,)),
    "comparisons": (lambda z, y: (z == y, z != y, z == z, z == z.real, torch.isclose(z, y)), (Z, Y)),
    "choices": (
        lambda z, y, x: (
            torch.where(x > 0, z, y),
            torch.where(x > 0, z, x),
            torch.where(x > 0, z, 2.0),
            z.masked_fill(x > 0, 1j),
            z.masked_fill(x > 0, 2),
        ),
        (Z, Y, X),
    ),
    "sums of many": (
        lambda z: (z.sum(), z.sum(0), z.mean(1, keepdim=True), z.cumsum(1), z.prod(), z.prod(1), z.var(), z.norm()),
        (Z,),
    ),
    "matrices": (
        lambda z, v: (z @ v, z[0] @ v, z @ v[:, 0], z[0] @ v[:, 1], z.real.to(torch.complex64) @ v, z.mH @ z),
        (Z, V),
    ),
    "batches": (lambda a, b: (a @ b, torch.einsum("bij,bjk->kbi", a, b)), (_numbers(2, 3, 5), _numbers(2, 5, 7))),
    "layers": (
        lambda z, w: (functional.linear(z, w), torch.addmm(z[:, :1], z, w.T, beta=2, alpha=1j)),
        (Z, _numbers(5, 7)),
    ),
    "inner products": (lambda z, y: (torch.dot(z[0], y[0]), torch.vdot(z[0], y[0]), torch.outer(z[0], y[1])), (Z, Y)),
    "convolutions": (lambda z, w: functional.conv1d(z, w, padding=1), (_numbers(2, 3, 11), _numbers(5, 3, 3))),
    "views": (
        lambda z: (z.reshape(7, 3), z.T, z[:, 2:5:2], z.unsqueeze(0), *z.chunk(2, 1), z.diagonal(), z.unfold(1, 3, 2)),
        (Z,),
    ),
    "moves": (
        lambda z, x: (
            torch.cat([z, z.conj()], 1),
            torch.cat([x, z]),
            torch.stack([z, z * 2]),
            z[PLACES],
            z.flip(0),
            z.roll(2, 1),
            functional.pad(z, (1, 2)),
            z.movedim(0, 1),
            functional.pad(z, (1, 2), value=3.0),
            z.triu(),
            z.index_add(0, PLACES, z[:2]),
        ),
        (Z, X),
    ),
    "writes to parts": (_write_to_parts, (Z,)),
    "writes to floats": (_write_to_floats, (Z,)),
    "conversions": (lambda z, x: (torch.zeros_like(x, dtype=torch.complex64) + z, torch.ones_like(z) * x), (Z, X)),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_compute_the_same(computer: Any, name: str) -> None:
    function, args = CASES[name]
    check(computer, function, *args)


def _attention(x: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary embeddings as published with Llama: pairs of features are complex numbers that turn with the place."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * frequencies.reshape(1, x.shape[1], 1, -1)
    y = torch.view_as_real(turned).flatten(3).transpose(1, 2)
    return functional.scaled_dot_product_attention(y, y, x.transpose(1, 2), is_causal=True)


def _frequencies(count: int, half: int) -> Tensor:
    angles = torch.outer(torch.arange(count).float(), 1e4 ** -(torch.arange(half) / half))
    return torch.polar(torch.ones_like(angles), angles)


@pytest.mark.parametrize("is_constant", [True, False])
def test_rotary_attention(device: Device, is_constant: bool) -> None:
    x, frequencies = torch.randn(2, 11, 3, 8), _frequencies(11, 4)
    if is_constant:
        check(device, lambda x: _attention(x, frequencies), x)
    else:
        check(device, _attention, x, frequencies)


def test_complex_inputs_and_results_on_the_device(device: Device) -> None:
    check(device, lambda z, y: (z * y, z.T.conj(), torch.view_as_real(z + y), y), Z, Y)
    check(device, lambda z: z[1:, ::2].conj() * 2, _numbers(5, 9).T)


def test_arrays_hold_complex_numbers(device: Device) -> None:
    traced = torch.jit.trace(lambda z: z * z.conj() + 1j, (Z,))  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device, fallback="error")
    first = program.run_on_device("forward", [Z])
    assert (first.dtype, first.shape) == (torch.complex64, Z.shape)
    second = program.run_on_device("forward", [first])
    once = Z * Z.conj() + 1j
    torch.testing.assert_close(second.tensor(), once * once.conj() + 1j)
    program.close()


def test_what_has_no_parts_runs_on_the_host(device: Device) -> None:
    traced = torch.jit.trace(lambda z: (z * 2).acos() * 1j, (Z,))  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(Z), (Z * 2).acos() * 1j)
    (fallback,) = program.plan_report([Z]).fallbacks
    assert fallback.op == "aten::acos"
    assert "no decomposition of complex numbers" in fallback.reason
    program.close()


def test_double_numbers_stay_on_the_host(device: Device) -> None:
    z = Z.to(torch.complex128)
    traced = torch.jit.trace(lambda z: (z * z).abs(), (z,))  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    assert torch.equal(program(z), (z * z).abs())
    assert all("torch.complex128" in fallback.reason for fallback in program.plan_report([z]).fallbacks)
    program.close()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_halves_of_complex_numbers_stay_on_the_host(device: Device) -> None:
    x, z = X.half(), torch.tensor(1 + 2j)
    program = VulkanProgram(program_from_script_module(torch.jit.trace(torch.sub, (x, z))), device)  # type: ignore[no-untyped-call]
    found = program(x, z)
    assert found.dtype == torch.complex32 and torch.equal(torch.view_as_real(found), torch.view_as_real(x - z))
    program.close()


def test_writes_through_other_bits_are_refused() -> None:
    recorder = Recorder()
    x = whole(Value.of_tensor(torch.float32, (3,)), torch.empty(3, device="meta"))
    view = recorder.apply("aten::view.dtype", [x, torch.int32], NOWHERE)
    with pytest.raises(UnsupportedError, match=r"float32 memory through a view of it as torch\.int32"):
        recorder.apply("aten::fill_.Scalar", [view, 3], NOWHERE)


def test_constants_that_are_marked_as_conjugates(tmp_path: Path) -> None:
    """Files store a lazy conjugate, or a negative, as what it is of, and a mark."""
    constants = Z.conj(), torch._neg_view(X)
    assert constants[0].is_conj() and constants[1].is_neg()
    traced = torch.jit.trace(lambda x: (x * constants[0], x * constants[1]), (X,))  # type: ignore[no-untyped-call]
    traced.save(str(tmp_path / "model.pt"))
    found = Interpreter(program_from_script_module(torch.jit.load(tmp_path / "model.pt"))).run("forward", [X])  # type: ignore[no-untyped-call]
    for result, constant in zip(found, constants, strict=True):
        assert_near(result, X * constant)


def test_text_after() -> None:
    graph, refs = Graph(), {}
    call = make_call("aten::mul.Tensor", (Z, X), {}, refs, Z)
    for number, value in enumerate(call.inputs):
        value.name = f"x{number}"
        graph.block.add_parameter(value)
    graph.block.append(call)
    graph.block.returns.set_inputs(call.outputs)
    decompose(graph)
    assert print_graph(graph) == textwrap.dedent(
        """\
        graph(%x0 : ComplexFloat(3, 7),
              %x1 : Float(3, 7)):
          %0 : Float(3, 7, 2) = aten::view_as_real(%x0)
          %1 : Float(3, 7) = aten::select.int(%0, -1, 0)
          %2 : Float(3, 7) = aten::select.int(%0, -1, 1)
          %3 : Float(3, 7) = aten::mul.Tensor(%1, %x1)
          %4 : Float(3, 7) = aten::mul.Tensor(%2, %x1)
          %5 : Float(3, 7) = aten::mul.Scalar(%1, 0.0)
          %6 : Float(3, 7) = aten::add.Tensor(%4, %5, 1)
          %7 : ComplexFloat(3, 7) = aten::complex(%3, %6)
          return (%7)
        """
    )


@pytest.mark.parametrize("factor", [-3, 1.5, torch.tensor([-2.0, 3.0])[:, None]], ids=str)
def test_zeros_have_the_signs_of_a_whole_product(device: Device, factor: Any) -> None:
    """They decide on which side of a cut an angle is."""
    z = torch.complex(torch.tensor([2.0, -2.0, 2.0, -2.0, 0.0, -0.0]), torch.tensor([0.0, 0.0, -0.0, -0.0, 0.0, 0.0]))
    traced = torch.jit.trace(lambda z: (z * factor).imag, (z,))  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device, fallback="error")
    assert torch.equal(program(z).signbit(), (z * factor).imag.signbit())
    program.close()
