"""Models in half precision for phones whose CPU has no kernels for it: single precision, rounded as they round."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_cases import Layer, operators_of, program_of_call
from target_cases import findings
from torch import Tensor, nn

import mobopt
from mobopt.ops.targets import Target
from mobopt.passes.facts import Examples
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.runtimes.cpu import Interpreter

CPU = Target("cpu", "1.13")
ULP = 2.0**-10
"""Of a half near 1: sums in another order may round to the neighbour."""


def halves(*sizes: int) -> Tensor:
    """The same for the same sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).half()


def seeded(module: nn.Module) -> nn.Module:
    """In half precision, with the same weights in every run."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return module.half().eval()


CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "conv": (seeded(nn.Conv2d(3, 5, 3, groups=1)), (halves(1, 3, 7, 11),)),
    "conv of groups": (seeded(nn.Conv2d(4, 6, 3, groups=2)), (halves(2, 4, 7, 5),)),
    "linear": (seeded(nn.Linear(13, 7)), (halves(3, 13),)),
    "norm": (seeded(nn.BatchNorm2d(5)), (halves(2, 5, 3, 7),)),
    "lstm": (seeded(nn.LSTM(5, 7, 2, bidirectional=True)), (halves(3, 1, 5),)),
    "softmax": (lambda x: x.softmax(-1), (halves(3, 11),)),
    "softmax to float": (lambda x: x.softmax(-1, dtype=torch.float32), (halves(3, 11),)),
    "indices": (lambda x: x.topk(3, -1), (halves(3, 11),)),
    "products": (lambda x, y: torch.baddbmm(x @ y, x, y), (halves(2, 5, 5), halves(2, 5, 5))),
    "functions": (lambda x: (x.exp() + 1).log().rsqrt().cumsum(0), (halves(7, 3),)),
    "a cast": (lambda x: x.half().tanh(), (torch.linspace(-3, 3, 13),)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), (halves(2, 5, 7), halves(2, 7, 3))),
    "clamp by tensors": (lambda x, y: torch.clamp(x, min=-y.abs(), max=None), (halves(5), halves(5))),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("runtime", ["1.13", "2.2"])
def test_the_cpu_computes_it_and_results_stay_halves(name: str, runtime: str) -> None:
    call, inputs = CALLS[name]
    program, target = program_of_call(call, inputs), Target("cpu", runtime)
    assert any(finding.verdict == "missing" for _, finding in findings(program, inputs, target))
    run_passes(program, [Legalize(target, "safe", Examples({"forward": inputs}))], check=True)
    assert not [node.op for node, finding in findings(program, inputs, target) if finding.verdict != "native"]
    with torch.no_grad():
        expected = (call if isinstance(call, nn.Module) else Layer(call))(*inputs)
    found = Interpreter(program).run("forward", list(inputs))
    torch.testing.assert_close(found, expected, rtol=2 * ULP, atol=2 * ULP)


@pytest.mark.parametrize("name", CALLS)
def test_what_has_kernels_for_halves_stays(name: str) -> None:
    call, inputs = CALLS[name]
    program = program_of_call(call, inputs)
    before = operators_of(program)
    run_passes(program, [Legalize(Target("cpu", "2.6"), "full", Examples({"forward": inputs}))], check=True)
    assert operators_of(program) == before


def test_floats_are_left_alone() -> None:
    inputs = (torch.randn(3, 5, generator=torch.Generator().manual_seed(1)),)
    program = program_of_call(lambda x: x.exp().softmax(-1), inputs)
    (run,) = run_passes(program, [Legalize(CPU, "full", Examples({"forward": inputs}))], check=True)
    assert not run.result.changed


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "relu": lambda x: (x.relu_(), x + 1),
    "a part": lambda x: (x[:, 1:4].clamp_(-0.5, 0.5), x),
    "a view": lambda x: (x, x.reshape(-1).tanh_()),
    "of a result": lambda x: torch.nn.functional.leaky_relu_((x + 1) * 0.5, 0.1),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_changed_in_place_is_seen_by_all(name: str) -> None:
    program = program_of_call(IN_PLACE[name], (halves(3, 5),))
    run_passes(program, [Legalize(CPU, "full", Examples({"forward": (halves(3, 5),)}))], check=True)
    assert all(finding.verdict == "native" for _, finding in findings(program, (halves(3, 5),), CPU))
    own, given = halves(3, 5), halves(3, 5)
    expected, found = IN_PLACE[name](own), Interpreter(program).run("forward", [given])
    torch.testing.assert_close((found, given), (expected, own), rtol=2 * ULP, atol=2 * ULP)


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_a_net_in_half_precision(backend: str, runtime: str) -> None:
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8 * 5 * 7, 5),
        nn.Softmax(-1),
    ]
    net, x = seeded(nn.Sequential(*layers)), halves(1, 3, 7, 9)
    made = mobopt.optimize_for_mobile(
        torch.jit.script(net), backend=backend, runtime=runtime, example_inputs=[x], legalize="safe"
    )
    with torch.no_grad():
        torch.testing.assert_close(made(x), net(x), rtol=2 * ULP, atol=ULP)


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
@pytest.mark.parametrize("form", ["scripted", "traced"])
def test_a_net_without_examples(backend: str, form: str) -> None:
    """What a trace remembers, or the dtype of the weights, tells what has no kernel on 1.13's CPU."""
    net, x = seeded(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Softmax(-1))), halves(1, 3, 7, 9)
    script = torch.jit.script(net) if form == "scripted" else torch.jit.trace(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that nothing tells the GPU
        made = mobopt.optimize_for_mobile(script, backend=backend, runtime="1.13")
    assert all(finding.verdict == "native" for _, finding in findings(made.program, (x,), CPU))
    with torch.no_grad():
        torch.testing.assert_close(made(x), net(x), rtol=2 * ULP, atol=ULP)
