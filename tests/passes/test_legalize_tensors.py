"""Rewrites and rows of pointwise operators, reductions, shapes and indexing for PyTorch's Vulkan runtimes."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from layer_cases import Layer, findings, legalized, operators_of, program_of_call, verdict_of
from sampling import sampled
from tensor_cases import ALL, BATCH, EXTREME, LINE, NO_LOGARITHM, NO_ROOT, ROWS, TABLE, X, rand
from torch import nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.targets import Finding, Target
from mobopt.ops.targets.table import all_rows
from mobopt.passes.facts import Examples
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.legalizations.site import rewrites
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import WOULD_FIX_SIZES
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter

MODULES = ("operands", "pointwise", "reductions", "shapes", "softmax")
"""Modules of the package of legalisations whose rewrites are tried here."""
RELEASES = ("1.13", "2.1", "2.6")
TRIED_RELEASES = ("1.13", "2.6")
"""Those whose genuine kernels were run."""
TOLERANCE = 1e-6
"""Of the largest element; what a rewrite may differ from eager."""
SMALLEST = torch.finfo(torch.float32).tiny
"""What is smaller is zero on many GPUs."""
OF_HOST = ("aten::mul.int", "aten::sub.int", "aten::div.int", "aten::full")
"""Arithmetic of sizes, and what is filled by the CPU."""


def assert_equal_up_to_rounding(actual: Any, expected: Any) -> None:
    """Tensors, alone or in a tuple, agree within TOLERANCE of the largest element."""
    pairs = [(actual, expected)] if isinstance(expected, torch.Tensor) else zip(actual, expected, strict=True)
    for left, right in pairs:
        scale = float(right.abs().max())
        torch.testing.assert_close(left, right, rtol=0, atol=max(TOLERANCE * scale, 1e-12))


def eager(call: Any, inputs: Any) -> Any:
    """What eager gives."""
    with torch.no_grad():
        return (call if isinstance(call, nn.Module) else Layer(call))(*inputs)


@cache
def rewritten(name: str, runtime: str, level: str) -> tuple[Program, list[Note]]:
    """A case, legalised."""
    return legalized(*ALL[name], runtime, level)


def bad(program: Program, inputs: Any, runtime: str) -> list[str]:
    """Operators that have to run on the CPU, less those that read sizes only."""
    found = [node.qualified_op for node, finding in findings(program, inputs, runtime) if not finding.is_good]
    return [op for op in found if op not in OF_HOST]


@pytest.mark.parametrize(("name", "runtime", "level"), sampled(product(ALL, RELEASES, ["safe", "full"]), one_in=3))
def test_numbers_are_those_of_eager(name: str, runtime: str, level: str) -> None:
    call, inputs = ALL[name]
    program, _ = rewritten(name, runtime, level)
    assert_equal_up_to_rounding(Interpreter(program).run("forward", list(inputs)), eager(call, inputs))


@pytest.mark.parametrize(
    ("name", "runtime"), sampled(product(sorted(ALL.keys() - {"shuffle of channels", "windows"}), RELEASES), one_in=2)
)
def test_all_is_left_to_the_gpu(name: str, runtime: str) -> None:
    left = bad(rewritten(name, runtime, "full")[0], ALL[name][1], runtime)
    assert bool(left) == (runtime != "2.6" and name in NO_ROOT | NO_LOGARITHM), left


def test_every_rewrite_is_tried_here_and_named_by_a_row() -> None:
    named = {row.rewrite for row in all_rows("vulkan") if row.rewrite}
    ours = {name for name, item in rewrites().items() if item.apply.__module__.rpartition(".")[2] in MODULES}
    tried = {note.rewrite for name in ALL for release in RELEASES for note in rewritten(name, release, "full")[1]}
    assert ours <= named
    assert ours - tried == set()


@pytest.mark.parametrize("runtime", TRIED_RELEASES)
@pytest.mark.parametrize("name", TABLE)
def test_verdicts_are_those_that_were_seen(name: str, runtime: str) -> None:
    call, first, last = TABLE[name]
    program = program_of_call(call, [rand(1, 4, 5, 6)])
    run_passes(program, [Functionalize()], check=True)
    found = findings(program, [rand(1, 4, 5, 6)], runtime)
    verdicts = [finding.verdict for _, finding in found if not _is_traced_number(finding)]
    worst = next((verdict for verdict in verdicts if verdict != "native"), "native")
    assert worst == (last if runtime == "2.6" else first)


@pytest.mark.parametrize("runtime", TRIED_RELEASES)
@pytest.mark.parametrize("name", [name for name, (_, *verdicts) in TABLE.items() if verdicts == ["native"] * 2])
def test_what_is_right_is_left_alone(name: str, runtime: str) -> None:
    program = program_of_call(TABLE[name][0], [rand(1, 4, 5, 6)])
    (run,) = run_passes(program, [Legalize(Target("vulkan", runtime), "full", _examples([rand(1, 4, 5, 6)]))])
    assert [note for note in run.result.notes if note.parameters.get("rewrite") != "operate_with_number"] == []


def _is_traced_number(finding: Finding) -> bool:
    """Tracing makes tensors without dimensions of numbers, which scripted models have as numbers."""
    return finding.row is not None and finding.row.rewrite == "operate_with_number"


def _examples(inputs: Any) -> Examples:
    return Examples({"forward": inputs})


CONDITIONS: dict[str, tuple[Any, Any, str, str, str]] = {
    "clamp": (lambda x: x.clamp(None, 1.0), [X], "1.13", "aten::clamp", "native"),
    "clamp, crossed": (lambda x: x.clamp(1.0, -1.0), [X], "1.13", "aten::clamp", "wrong"),
    "hardshrink": (functional.hardshrink, [X], "1.13", "aten::hardshrink", "native"),
    "hardshrink, negative": (lambda x: functional.hardshrink(x, -1.0), [X], "1.13", "aten::hardshrink", "missing"),
    "threshold, zero": (lambda x: functional.threshold(x, 1.0, 0.0), [X], "2.6", "aten::threshold", "native"),
    "threshold": (lambda x: functional.threshold(x, 1.0, 2.0), [X], "2.6", "aten::threshold", "wrong"),
    "log": (torch.log, [X], "2.6", "aten::log", "native"),
    "log before": (torch.log, [ROWS], "2.2", "aten::log", "missing"),
    "pow of any": (lambda x: x**2, [X], "2.6", "aten::pow", "wrong"),
    "pow of sigmoid": (lambda x: x.sigmoid() ** 2, [X], "2.6", "aten::pow", "native"),
    "negative root": (lambda x: x**-0.5, [X], "2.6", "aten::pow", "wrong"),
    "negative root of a sum": (lambda x: (x + 1e-5) ** -0.5, [X], "2.6", "aten::pow", "native"),
    "power of a number": (lambda x: 2.0**x, [X], "2.6", "aten::pow", "native"),
    "power of two tensors": (lambda x: x**x, [X], "2.6", "aten::pow", "wrong"),
    "infinite power": (lambda x: x ** float("inf"), [X], "2.6", "aten::pow", "native"),
    "number": (lambda x: x * torch.tensor(2.0), [X], "1.13", "aten::mul", "missing"),
    "number, 2.1": (lambda x: x * torch.tensor(2.0), [X], "2.1", "aten::mul", "missing"),
    "number, 2.6": (lambda x: x * torch.tensor(2.0), [X], "2.6", "aten::mul", "native"),
    "number in place": (lambda x: x.relu().mul_(torch.tensor(2.0)), [X], "2.6", "aten::mul_", "missing"),
    "gate, 1.13": (lambda x, y: x * y, [X, X[:, :, :1, :1]], "1.13", "aten::mul", "native"),
    "gate first, 1.13": (lambda x, y: x - y, [X[:, :, :1, :1], X], "1.13", "aten::sub", "native"),
    "column first, 1.13": (lambda x, y: x - y, [X[..., :1], X], "1.13", "aten::sub", "missing"),
    "one channel, 1.13": (lambda x, y: x * y, [X, X[:, :1]], "2.2", "aten::mul", "missing"),
    "one channel, 2.6": (lambda x, y: x * y, [X, X[:, :1]], "2.6", "aten::mul", "native"),
    "one sample, 4 channels": (lambda x, y: x - y, [BATCH[:, :4], X[:, :4]], "1.13", "aten::sub", "native"),
    "one sample, 6 channels": (lambda x, y: x - y, [BATCH, X], "1.13", "aten::sub", "missing"),
    "other rank, 1.13": (lambda x, y: x - y, [X[0], X], "1.13", "aten::sub", "missing"),
    "quotient, 6 channels": (lambda x, y: x / y, [X, X], "1.13", "aten::div", "wrong"),
    "quotient, 4 channels": (lambda x, y: x / y, [X[:, :4], X[:, :4]], "1.13", "aten::div", "native"),
    "quotient, 6 channels, 2.6": (lambda x, y: x / y, [X, X], "2.6", "aten::div", "wrong"),
    "quotient, 4 channels, 2.6": (lambda x, y: x / y, [X[:, :4], X[:, :4]], "2.6", "aten::div", "native"),
    "quotient by one channel, 2.6": (lambda x, y: x / y, [X, X[:, :1]], "2.6", "aten::div", "native"),
    "quotient of rows, 2.6": (lambda x, y: x / y, [ROWS, ROWS], "2.6", "aten::div", "native"),
    "lerp, equal": (lambda x, y: torch.lerp(x, y, 0.5), [X, X], "1.13", "aten::lerp", "native"),
    "lerp, smaller": (lambda x, y: torch.lerp(x, y, 0.5), [X, X[:, :1]], "2.6", "aten::lerp", "missing"),
    "softmax of a batch, 1.13": (lambda x: x.softmax(1), [BATCH], "1.13", "aten::softmax", "missing"),
    "softmax from the end, 1.13": (lambda x: x.softmax(-3), [X], "1.13", "aten::softmax", "missing"),
    "softmax of 5 dimensions": (lambda x: x.softmax(1), [rand(1, 2, 3, 2, 5)], "2.6", "aten::softmax", "missing"),
    "softmax of doubles": (lambda x: x.softmax(1, torch.float64), [X], "2.6", "aten::softmax", "missing"),
    "mean of channels, 1.13": (lambda x: x.mean(1), [X], "1.13", "aten::mean", "missing"),
    "mean of channels, 2.6": (lambda x: x.mean(1), [X], "2.6", "aten::mean", "native"),
    "mean of the image from the end": (lambda x: x.mean([-1, -2]), [BATCH], "1.13", "aten::mean", "native"),
    "mean without dimensions": (lambda x: x.mean(), [X], "2.6", "aten::mean", "missing"),
    "sum from the end": (lambda x: x.sum([-1, -2]), [X], "2.6", "aten::sum", "wrong"),
    "sum": (lambda x: x.sum([2, 3]), [X], "2.6", "aten::sum", "native"),
    "var with correction": (lambda x: torch.var(x, [1], correction=0), [X], "2.6", "aten::var", "missing"),
    "cumsum of widths": (lambda x: x.cumsum(3), [X], "1.13", "aten::cumsum", "native"),
    "cumsum of rows": (lambda x: x.cumsum(1), [ROWS], "2.6", "aten::cumsum", "missing"),
    "channels of batches, 1.13": (lambda x: torch.cat([x, x], 1), [BATCH], "1.13", "aten::cat", "missing"),
    "4 channels of batches, 1.13": (lambda x: torch.cat([x, x], 1), [BATCH[:, :4]], "1.13", "aten::cat", "native"),
    "3 and 3 channels, 1.13": (lambda x: torch.cat([x, x], 1), [X[:, :3]], "1.13", "aten::cat", "native"),
    "6 and 6 channels, 1.13": (lambda x: torch.cat([x, x], 1), [X], "1.13", "aten::cat", "wrong"),
    "8 and 6 channels, 1.13": (lambda x, y: torch.cat([y, x], 1), [X, rand(1, 8, 7, 5)], "2.2", "aten::cat", "native"),
    "6 and 6 channels, 2.6": (lambda x: torch.cat([x, x], 1), [X], "2.6", "aten::cat", "native"),
    "heights from the end, 1.13": (lambda x: torch.cat([x, x], -2), [X], "1.13", "aten::cat", "missing"),
    "cat of rows, 1.13": (lambda x: torch.cat([x, x], 0), [ROWS], "1.13", "aten::cat", "missing"),
    "stack": (lambda x: torch.stack([x, x], 1), [LINE], "2.6", "aten::stack", "native"),
    "stack of 4 dimensions": (lambda x: torch.stack([x, x], 1), [X], "2.6", "aten::stack", "missing"),
    "select, 1.13": (lambda x: x[1], [LINE], "1.13", "aten::select", "native"),
    "select from the end": (lambda x: x.select(-1, 0), [LINE], "2.6", "aten::select", "missing"),
    "select of rows": (lambda x: x[0], [ROWS], "2.6", "aten::select", "missing"),
    "constant index": (lambda x: x[:, [1, 0]], [X], "2.6", "aten::index", "missing"),
    "more than 4 dimensions": (lambda x: x.view(1, 2, 3, 7, 5), [X], "2.6", "aten::view", "missing"),
    "channels last": (lambda x: x.clone(memory_format=torch.channels_last), [X], "2.6", "aten::clone", "missing"),
    "doubles": (lambda x: x.double(), [X], "2.6", "aten::to", "missing"),
    "size": (lambda x: x.reshape(x.size(0), -1), [X.double()], "1.13", "aten::size", "native"),
    "too large": (torch.relu, [torch.zeros(1, 1, 1, 2053)], "2.6", "aten::relu", "missing"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_hit_and_miss(name: str) -> None:
    call, inputs, runtime, op, verdict = CONDITIONS[name]
    assert verdict_of(call, inputs, runtime, op).verdict == verdict


class Halves(nn.Module):
    """Floors of quotients by numbers; only scripting keeps the form for numbers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """By a power of two, and by another number."""
        return x.floor_divide(4), x.floor_divide(49)


def test_floors_of_quotients_are_right_for_powers_of_two_only() -> None:
    program = program_from_script_module(torch.jit.script(Halves()))
    assert [finding.verdict for _, finding in findings(program, [X], "2.6")] == ["native", "wrong"]
    assert [finding.verdict for _, finding in findings(program, [X], "2.2")] == ["missing", "missing"]


def test_each_row_says_what_it_rests_on() -> None:
    assert {row.evidence for row in all_rows("vulkan")} == {"tried", "source"}


@pytest.mark.parametrize(
    "name",
    [
        "silu", "gelu", "prelu", "abs", "maximum", "quotient", "softmax of widths", "mean of channels",
        "sum of negative dimensions", "var", "cat of batches", "cat of widths", "stack", "repeat", "transpose",
        "unsqueeze", "cumsum of channels", "zeros_like", "channel weights",
    ],
)  # fmt: skip
def test_safe_rewrites_do_for_other_sizes(name: str) -> None:
    call, inputs = ALL[name]
    for runtime in ("1.13", "2.6"):
        program, _ = rewritten(name, runtime, "safe")
        others = [torch.cat([x, x], -1)[..., :-1] if x.shape[-1] > 1 else x.repeat_interleave(2, -1) for x in inputs]
        others = [torch.cat([x, x], -2) for x in others]
        assert_equal_up_to_rounding(Interpreter(program).run("forward", others), eager(call, others))


@pytest.mark.parametrize("name", ["squeeze one", "amax", "rows and columns", "roll", "windows"])
def test_rewrites_that_fix_sizes_wait_for_the_full_level(name: str) -> None:
    _, notes = rewritten(name, "1.13", "safe")
    assert any(note.kind is WOULD_FIX_SIZES and "--legalize full does it" in note.message for note in notes)


def becomes(call: Any, inputs: Any, runtime: str) -> list[str]:
    """The operators after legalisation, without namespace."""
    return [op.removeprefix("aten::") for op in operators_of(legalized(call, inputs, runtime)[0])]


def test_what_some_become() -> None:
    assert becomes(functional.silu, [X], "2.6") == ["sigmoid", "mul"]
    assert becomes(torch.abs, [X], "1.13") == ["relu", "mul", "relu", "add"]
    assert becomes(nn.PReLU(), [X], "2.6") == ["leaky_relu"]
    assert becomes(lambda x: x**2, [X], "2.6") == ["mul"]
    assert becomes(lambda x: x.squeeze(0), [X], "2.6") == ["reshape"]
    assert becomes(lambda x: torch.cat([x, x], 0), [X], "1.13") == [
        *["reshape"] * 2,
        *["slice"] * 2,  # 6 channels are followed by the others in the middle of a group of four
        *["cat", "reshape"],
    ]
    assert becomes(lambda x: x.expand(1, 7, 6, 5), [rand(1, 1, 6, 5)], "1.13") == ["conv2d"]
    assert becomes(lambda x: x.amax([2, 3]), [X], "2.6") == ["reshape", "max_pool2d", "reshape"]


def test_channels_are_joined_at_multiples_of_four() -> None:
    """The kernel up to 2.2 writes texels that two of its invocations share, in any order."""
    parts = [rand(1, channels, 7, 5) for channels in (3, 6, 2, 8)]
    program, _ = legalized(lambda *tensors: torch.cat(tensors, 1), parts, "1.13", "safe")
    (join,) = (node for node in program.methods["forward"].walk() if node.op == "aten::cat")
    pieces = [value.producer for value in join.inputs[0].producer.inputs]  # type: ignore[union-attr]
    # 3; then 6 from channel 3 on, of which 1 completes a group; 2; then 8 from channel 11 on
    assert [piece and [value.constant for value in piece.inputs[2:4]] for piece in pieces] == [
        None, [0, 1], [1, 6], None, [0, 1], [1, 8],
    ]  # fmt: skip


def test_a_quotient_of_samples_of_one_channel() -> None:
    x, small = rand(1, 6, 7, 5), rand(1, 6, 1, 1).abs() * 1e-5 + 1e-6
    for call in (torch.div, lambda x, y: torch.div(y, x + 5)):
        assert becomes(call, [x, small], "2.6")[-4:] == ["reshape", "reshape", "div", "reshape"]
    assert becomes(lambda x: x / small, [x], "2.6") == ["mul"]


def test_a_shuffle_of_channels_is_one_permutation_of_four_dimensions() -> None:
    (call, inputs), (program, _) = ALL["shuffle of channels"], rewritten("shuffle of channels", "2.6", "full")
    result = program.methods["forward"].outputs[0]
    chain = []
    while result.producer is not None and result.producer.op.startswith("aten::"):
        chain.append(result.producer.op)
        result = result.producer.inputs[0]
    assert chain == ["aten::reshape", "aten::permute", "aten::reshape"]
    assert_equal_up_to_rounding(Interpreter(program).run("forward", list(inputs)), eager(call, inputs))


@pytest.mark.parametrize("call", [functional.gelu, functional.silu, torch.erf, functional.mish, functional.elu])
def test_functions_agree_everywhere(call: Any) -> None:
    x = torch.cat([torch.linspace(-12, 12, 24001), torch.tensor([-1e4, -100.0, 100.0, 1e4])]).reshape(1, 5, -1, 1)
    program, _ = legalized(call, [x[:, :, :101]], "1.13", "safe")
    expected = call(x.double()).float()
    difference = (Interpreter(program).run("forward", [x]) - expected).abs() / expected.abs().clamp_min(1)
    assert float(difference.max()) < TOLERANCE


def test_infinite_elements_stay_what_they_are() -> None:
    x = torch.tensor([float("inf"), -float("inf"), 0.0, 1.0]).reshape(1, 4, 1, 1)
    for call in (torch.abs, functional.elu, torch.exp, functional.softsign, lambda x: x.clamp_min(0.0), torch.sign):
        program, _ = legalized(call, [X], "1.13", "safe")
        torch.testing.assert_close(Interpreter(program).run("forward", [x]), call(x), equal_nan=True)


def test_extremes_of_exp() -> None:
    program, _ = legalized(torch.exp, [X], "1.13", "safe")
    torch.testing.assert_close(Interpreter(program).run("forward", [EXTREME]), EXTREME.exp(), rtol=2e-6, atol=SMALLEST)


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
@pytest.mark.parametrize(
    ("call", "inputs", "reason"),
    [
        (lambda x: x**17, [X], "its exponent is 17"),
        (lambda x: functional.softplus(x, 1.0, 3.0), [X], "its threshold is 3.0"),
        (lambda x: x.roll(2), [X], "elements of all dimensions in a row"),
        (lambda x: x.amax([0, 1, 2, 3]), [X], "its result has no dimensions"),
        (lambda x: x.max(1)[1] + 1, [X], "the places of the maxima are used"),
        (lambda x: x.norm(3, dim=1), [X], "its order is 3.0"),
        (lambda x: torch.var(x, [1], correction=6), [X], "the deviation of 6 elements"),
        (lambda x: x[:, [-1, 0]], [X], "not a row of numbers from zero up"),
        (lambda x: x[:, list(range(0, 140, 2))], [rand(1, 141, 2, 3)], "its index has 70 runs"),
        (
            lambda x: x.view(2, 3, 5, 7, 11).permute(4, 3, 2, 1, 0).flatten(),
            [rand(6, 35, 11)],
            "5 dimensions change places",
        ),
    ],
)
def test_what_cannot_be_rewritten_stays_and_says_why(call: Any, inputs: Any, reason: str) -> None:
    program = program_of_call(call, inputs)
    (run,) = run_passes(program, [Legalize(Target("vulkan", "2.6"), "full", _examples(inputs))], check=True)
    assert any(reason in note.message for note in run.result.notes if not note.done)
    assert_equal_up_to_rounding(Interpreter(program).run("forward", list(inputs)), eager(call, inputs))


class _WithoutDimensions(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x).amin(0), torch.relu(x).index_select(0, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_tensors_without_dimensions_have_a_dimension_zero(runtime: str) -> None:
    """torch takes dim=0 for them."""
    x = torch.tensor(0.5)
    made = optimize_for_mobile(
        torch.jit.script(_WithoutDimensions()), None, None, "vulkan", runtime=runtime, example_inputs=[x]
    )
    assert made(x)[0] == made(x)[1] == x
