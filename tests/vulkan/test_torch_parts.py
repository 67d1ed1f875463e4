"""Operators as those that torch itself computes them of, beside torch; what it can't tell stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from sampling import sampled
from torch import Tensor
from torch.nn import functional

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Node, Value, print_graph
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.decompositions.registry import load_decompositions
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()
load_decompositions()


_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


A, B, X, LINE = _randn(3, 5), _randn(3, 5), _randn(2, 3, 7, 11), _randn(13)
CLASSES = torch.tensor([0, 4, -100])
PLACES = functional.max_pool2d(_randn(2, 3, 6, 8), 2, return_indices=True)[1].contiguous(
    memory_format=torch.channels_last
)
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "kron": (torch.kron, (A, _randn(2, 3))),
    "cross": (torch.linalg.cross, (_randn(5, 3), _randn(5, 3))),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="xy"), (LINE, LINE[:4])),
    "several results, one of them an input": (lambda x: torch.atleast_3d(x, x[0], x[0, 0]), (X[0],)),
    "block_diag": (torch.block_diag, (A, LINE, B)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1, 0], [1, 0])), (A, B)),
    "halves": (lambda x: functional.mse_loss(x, x.flip(0)), (A.half(),)),
    "integers": (lambda x: torch.diff(x, dim=0), (torch.arange(12).reshape(4, 3) ** 2,)),
    "cross_entropy": (lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1), (A, CLASSES)),
    "constant classes": (lambda x: functional.nll_loss(x, CLASSES), (A.log_softmax(1),)),
    "binary_cross_entropy": (functional.binary_cross_entropy_with_logits, (A, B.sigmoid())),
    "huber_loss": (lambda x, y: functional.huber_loss(x, y, delta=0.5), (A, B)),
    "unfold": (lambda x: functional.unfold(x, (3, 2), padding=1, stride=2), (X,)),
    "fold": (lambda x: functional.fold(x, (7, 11), (2, 3)), (_randn(2, 18, 54),)),
    "max_unpool": (
        lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2, output_size=[7, 11]),
        (X,),
    ),
    "constant places, channels last": (
        lambda x: functional.max_unpool2d(x, PLACES, 2, output_size=[6, 8]),
        (_randn(2, 3, 3, 4),),
    ),
    "affine_grid": (lambda t: functional.affine_grid(t, [2, 3, 5, 7], align_corners=False), (_randn(2, 2, 3),)),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), (A,)),
    "trapezoid": (torch.trapezoid, (A, B.abs().cumsum(1))),
    "rot90": (lambda x: torch.rot90(x, 3, (2, 1)), (X,)),
    "roll of several": (lambda x: torch.fft.fftshift(x), (X,)),
    "nansum": (torch.nansum, (torch.where(A > 0, A, torch.nan),)),
    "addr": (lambda x, y, z: torch.addr(x, y, z, beta=0.5), (A, LINE[:3], LINE[:5])),
}


@pytest.mark.parametrize("name", sampled(CASES, one_in=2))
def test_parts_run_on_the_device(device: Device, name: str) -> None:
    function, given = CASES[name]
    expected = function(*given)
    traced = torch.jit.trace(Applied(function), given, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program.run("forward", list(given)), expected)
    assert not program.plan_report(list(given)).fallbacks


def _decomposed(op: str, args: tuple[Any, ...], result: Tensor) -> str:
    graph = Graph()
    for number, value in enumerate(each for each in args if isinstance(each, Value)):
        value.name = f"x{number}"
        graph.block.add_parameter(value)
    output = Value.of_tensor(result.dtype, tuple(result.shape))
    graph.block.append(Node.call(op, args, [output]))
    graph.block.returns.set_inputs([output])
    decompose(graph)
    return print_graph(graph)


def test_what_torch_writes_without_operators_is_read(device: Device) -> None:
    """``_shape_as_tensor`` calls ``empty`` and writes into it; each call with other sizes has others there."""
    sizes_and_product = Applied(lambda x: (torch._shape_as_tensor(x) * 2, x * torch._shape_as_tensor(x * 2)[1]))
    traced = torch.jit.trace(sizes_and_product, (A,), check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    for x in (A, _randn(2, 7), A, _randn(11, 1)):
        torch.testing.assert_close(program.run("forward", [x]), sizes_and_product(x))


def test_text_after() -> None:
    x, y = (Value.of_tensor(torch.float32, (3, 5)) for _ in range(2))
    assert _decomposed("aten::mse_loss", (x, y, 1), torch.zeros(())).splitlines()[2:] == [
        "  %0 : Float(3, 5) = aten::sub.Tensor(%x0, %x1, 1)",
        "  %1 : Float(3, 5) = aten::pow.Tensor_Scalar(%0, 2)",
        "  %2 : Float() = aten::mean(%1, None)",
        "  return (%2)",
    ]


@pytest.mark.parametrize("op", ["aten::linalg_eigvals", "aten::bernoulli", "aten::unique_dim"])
def test_what_torch_does_not_tell_is_left_whole(op: str) -> None:
    x = Value.of_tensor(torch.float32, (3, 3))
    arguments = {"aten::linalg_eigvals": (x,), "aten::bernoulli": (x, None), "aten::unique_dim": (x, 0, True)}
    text = _decomposed(op, arguments[op], torch.zeros(3))
    assert f"= {op}(" in text
    assert len(text.splitlines()) == 3
