"""What is over the limit of images is computed in parts that fit, where that is cheaper than the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from layer_cases import Layer, findings, operators_of, program_of_call
from pass_harness import apply, assert_close, program_of, randomize_norms
from sampling import sampled
from torch import Tensor, nn

from mobopt import optimize_for_mobile
from mobopt.errors import InputError
from mobopt.ir import Program
from mobopt.ops.costs import Processor
from mobopt.ops.targets import Target
from mobopt.ops.targets.device_profiles import weight_extent
from mobopt.ops.targets.verdicts import image_excess
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.legalizations import parts
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter
from mobopt.tools.audit import audit

RELEASES = ("1.13", "2.1", "2.6")
LIMIT = 61


def rand(*sizes: int) -> Tensor:
    """The same numbers for the same sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


@pytest.fixture
def slow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is never worth it."""
    monkeypatch.setattr(parts, "CPU", Processor(start=1e12, multiply_adds=1, bytes=1))


def within(
    limit: int, call: Callable[..., Any], inputs: Sequence[Tensor], runtime: str, level: str = "full"
) -> tuple[Program, list[Note]]:
    """A call legalised for a device with a limit; it must still give what eager gives."""
    program = program_of_call(call, inputs)
    with torch.no_grad():
        expected = (call if isinstance(call, nn.Module) else Layer(call))(*inputs)
    item = Legalize(Target("vulkan", runtime, limit), level, Examples({"forward": inputs}))
    run, _ = run_passes(program, [item, DeadCodeElimination()], check=True)
    (again,) = run_passes(program, [item], check=True)
    assert not again.result.changed, "the pass finds more to do when it is run again"
    assert_close(Interpreter(program).run("forward", list(inputs)), expected)
    return program, list(run.result.notes)


def on_cpu(program: Program, inputs: Sequence[Tensor], runtime: str, limit: int) -> set[str]:
    """Operators that a tensor over the limit keeps on the CPU; nothing else may be amiss."""
    record_facts(program, Examples({"forward": inputs}))
    found = set()
    for node, _ in findings(program, inputs, runtime):
        values = [*node.outputs, *node.inputs]
        if any(image_excess(value.facts, limit) for value in values):
            found.add(node.op)
    return found - {"aten::size"}


class _Residual(nn.Module):
    """Two convolutions, joined and added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.cat([y, F.leaky_relu(self.second(F.relu(y)) + y, 0.1)], 1)


class _Slices(nn.Module):
    """What is done with an image besides convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[..., 5:-7].softmax(1).permute(0, 3, 2, 1)[:, :, 1:]


def _block() -> nn.Module:
    layers = [nn.Linear(7, 12), nn.LayerNorm(12), nn.GELU(approximate="tanh"), nn.Linear(12, 7)]
    return nn.Sequential(*layers)


SIGNAL = nn.Sequential(
    nn.Conv1d(3, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(3, 2, 1), nn.Conv1d(8, 5, 3, groups=1)
)
IMAGE = nn.Sequential(
    nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1)
)
torch.manual_seed(0)
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Sequence[Tensor]]]] = {
    "inner": (nn.Linear(131, 23), lambda n: [rand(3, n)]),
    "inner, a vector in a batch": (nn.Linear(131, 23, bias=False), lambda n: [rand(1, 2, n)]),
    "columns": (nn.Linear(13, 131), lambda n: [rand(5, 13)]),
    "rows": (nn.Sequential(nn.Linear(13, 11), nn.ReLU(), nn.Linear(11, 3)), lambda n: [rand(n, 13)]),
    "rows of a sequence": (_block(), lambda n: [rand(1, n, 7)]),
    "signal": (SIGNAL, lambda n: [rand(1, 3, n)]),
    "transposed signal": (nn.ConvTranspose1d(4, 5, 3, 2, 1, 1), lambda n: [rand(1, 4, n)]),
    "wide image": (IMAGE, lambda n: [rand(1, 3, 6, n)]),
    "high image": (IMAGE, lambda n: [rand(1, 3, n, 7)]),
    "wide and high": (
        nn.Sequential(nn.Conv2d(2, 4, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)),
        lambda n: [rand(1, 2, n, 139)],
    ),
    "ceil mode": (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(2, 1, 1, True, False)),
        lambda n: [rand(1, 3, 6, n)],
    ),
    "ceil mode of three": (
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d((2, 3), 3, (1, 1), ceil_mode=True)),
        lambda n: [rand(1, 3, 6, n)],
    ),
    "strides and dilation": (nn.Conv2d(3, 4, (1, 5), (1, 3), (0, 4), (1, 2)), lambda n: [rand(1, 3, 5, n)]),
    "transposed image": (nn.ConvTranspose2d(4, 5, 2, 3, output_padding=2), lambda n: [rand(1, 4, 5, n)]),
    "transposed overlap": (nn.ConvTranspose2d(4, 5, 5, 2, 3), lambda n: [rand(1, 4, n, 5)]),
    "residual": (_Residual(), lambda n: [rand(1, 3, 5, n)]),
    "means": (
        nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)),
        lambda n: [rand(1, 3, n)],
    ),
    "slices and softmax": (_Slices(), lambda n: [rand(1, 3, 5, n)]),
}
FIXED = ("inner", "inner, a vector in a batch", "columns")
"""Cases whose weights say how much is over the limit."""
GROWING = (
    "ceil mode",
    "transposed signal",
    "transposed image",
    "transposed overlap",
    "wide image",
    "high image",
    "strides and dilation",
)
"""Cases where something is larger than the input: results, and what is padded."""
ON_CPU = {"aten::slice", "aten::cat"}
"""Operators that take parts out of an input, and put those of a result together."""


@pytest.mark.parametrize(
    ("name", "runtime"),
    # Before 2.6 there is no normalisation of rows.
    sampled(
        ((name, runtime) for name in CASES for runtime in RELEASES if runtime == "2.6" or name != "rows of a sequence"),
        one_in=3,
    ),
)
@pytest.mark.usefixtures("slow_cpu")
def test_only_slices_of_inputs_and_joined_results_are_left_to_the_cpu(name: str, runtime: str) -> None:
    call, inputs = CASES[name]
    if isinstance(call, nn.Module):
        randomize_norms(call.eval())
    given = inputs(131)
    program, notes = within(LIMIT, call, given, runtime)
    assert any("in_parts" in note.rewrite for note in notes)
    reached = on_cpu(program, given, runtime, LIMIT)
    assert reached <= ON_CPU, reached


@pytest.mark.parametrize("size", [59, 61, 67])
@pytest.mark.parametrize("name", [name for name in CASES if name not in (*FIXED, "wide and high")])
@pytest.mark.usefixtures("slow_cpu")
def test_below_at_and_above_the_limit(name: str, size: int) -> None:
    call, inputs = CASES[name]
    if isinstance(call, nn.Module):
        randomize_norms(call.eval())
    _, notes = within(LIMIT, call, inputs(size), "2.6")
    is_divided = any("in_parts" in note.rewrite for note in notes)
    assert is_divided == (size > LIMIT) or name in GROWING


@pytest.mark.usefixtures("slow_cpu")
def test_the_text_of_a_divided_layer() -> None:
    weight, bias = rand(3, 10), rand(3)
    program = program_of(
        """
        graph(%self : Self, %x : Tensor):
          %w : Tensor = prim::Constant[value=<w>]()
          %b : Tensor = prim::Constant[value=<b>]()
          %y : Tensor = aten::linear(%x, %w, %b)
          return (%y)
        """,
        {"w": weight, "b": bias},
    )
    item = Legalize(Target("vulkan", "2.6", 8), "safe", Examples({"forward": [rand(2, 10)]}))
    text, notes = apply(item, program)
    assert text.count("aten::linear") == 2 and text.count("aten::slice") == 2 and "aten::add" in text
    assert "2 parts, about" in notes[0] and "the CPU would take" in notes[0]
    x = rand(2, 10)
    assert_close(Interpreter(program).run("forward", [x]), F.linear(x, weight, bias))


@pytest.mark.parametrize("size", [2039, 2048, 2053])
def test_heads_around_the_limit_of_most_phones(size: int) -> None:
    head = nn.Linear(768, size)
    program, notes = within(2048, head, [rand(1, 64, 768)], "2.6")
    count = -(-size // 2048)
    assert operators_of(program) == ["aten::linear"] * count + ["aten::cat"] * (count > 1)
    assert [note.rewrite for note in notes if note.done] == ["linear_in_parts"] * (count > 1)


def test_the_cpu_keeps_what_it_computes_faster() -> None:
    program, notes = within(2048, nn.Linear(25_088, 24), [rand(1, 25_088)], "2.6")
    assert operators_of(program) == ["aten::linear"]
    assert any("13 parts on the GPU would take about" in note.message for note in notes)
    program, notes = within(2048, torch.relu, [rand(1, 3, 2, 3000)], "2.6")
    assert operators_of(program) == ["aten::relu"]
    assert any("it is one operator" in note.message for note in notes)


@pytest.mark.parametrize("runtime", RELEASES)
def test_a_layer_of_a_flattened_image_is_a_convolution(runtime: str) -> None:
    net = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(512 * 7 * 7, 24))
    program, notes = within(2048, net, [rand(1, 512, 7, 7)], runtime)
    assert operators_of(program) == [
        *("aten::relu", "aten::slice", "aten::conv2d", "aten::slice", "aten::conv2d", "aten::add", "aten::reshape"),
    ]
    assert [note.rewrite for note in notes if note.done] == ["linear_of_image"]
    assert on_cpu(program, [rand(1, 512, 7, 7)], runtime, 2048) == set()


WEIGHTS: dict[str, tuple[nn.Module, Tensor, int]] = {
    "inputs": (nn.Conv2d(47, 5, 3, 2, 1), rand(1, 47, 9, 7), 3),
    "inputs of one row": (nn.Conv2d(67, 5, 1, bias=False), rand(1, 67, 3, 5), 2),
    "outputs": (nn.Conv2d(3, 131, (5, 3), 1, (2, 1)), rand(1, 3, 7, 11), 3),
    "both": (nn.Conv2d(53, 173, (3, 2)), rand(1, 53, 6, 5), 6),
    "a signal": (nn.Conv1d(19, 7, 9), rand(1, 19, 31), 5),
    "samples": (nn.Conv2d(43, 5, 2), rand(2, 43, 4, 3), 4),
    "dilated": (nn.Conv2d(31, 5, 3, dilation=2), rand(1, 31, 7, 8), 2),
    "transposed": (nn.ConvTranspose2d(37, 5, 3, 2, 1, 1), rand(1, 37, 3, 4), 2),
    "transposed both": (nn.ConvTranspose2d(37, 131, (4, 2)), rand(1, 37, 3, 4), 6),
    "groups": (nn.Conv2d(48, 96, 3, groups=2), rand(1, 48, 5, 4), 4),
}
"""Convolutions, and how many there are where an image may be 61 texels wide."""


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.usefixtures("slow_cpu")
def test_weights_that_are_larger_than_an_image_when_packed(name: str) -> None:
    module, x, count = WEIGHTS[name]
    program, _ = within(LIMIT, module.eval(), [x], "1.13")
    convolutions = [node for node in program.methods["forward"].walk() if "aten::conv" in node.op]
    assert len(convolutions) == count
    for node in convolutions:
        sizes, is_transposed = node.inputs[1].constant.shape, "transpose" in node.op
        extent = weight_extent(node.qualified_op, sizes, 1, is_transposed, "1.13")
        assert extent is not None
        assert max(extent) <= LIMIT
    assert on_cpu(program, [x], "1.13", LIMIT) == set()


@pytest.mark.parametrize(("runtime", "count"), [("1.13", 2), ("2.2", 2), ("2.6", 1)])
def test_weights_are_flat_images_since_2_6(runtime: str, count: int) -> None:
    program, notes = within(2048, nn.Conv2d(1021, 64, 3, padding=1), [rand(1, 1021, 13, 11)], runtime)
    assert operators_of(program).count("aten::conv2d") == count
    assert [note.rewrite for note in notes if note.done] == ["weight_in_parts"] * (count > 1)


def test_weights_that_nothing_divides() -> None:
    depthwise = nn.Conv2d(5, 5, (49, 43), groups=5, bias=False)
    program, notes = within(2048, depthwise, [rand(1, 5, 53, 47)], "1.13")
    assert operators_of(program) == ["aten::conv2d"]
    assert any("a kernel of its own" in note.message for note in notes)
    assert [node.op for node, _ in findings(program, [rand(1, 5, 53, 47)], "1.13")] == ["aten::conv2d"]
    program, notes = within(61, nn.Conv2d(3, 2, (2, 17)), [rand(1, 3, 9, 23)], "1.13")
    assert operators_of(program) == ["aten::conv2d"]
    assert any("its kernel alone is wider" in note.message for note in notes)


def test_groups_are_not_joined_to_a_weight_over_the_limit() -> None:
    program, _ = within(2048, nn.Conv2d(1024, 1024, 3, padding=1, groups=2), [rand(1, 1024, 7, 7)], "1.13")
    weights = [node.inputs[1].constant for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert [tuple(weight.shape) for weight in weights] == [(512, 512, 3, 3)] * 2


MATRIX = rand(9, 131)


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (torch.matmul, [rand(7, 301), rand(301, 131)]),
        (torch.matmul, [rand(131, 7), rand(7, 5)]),
        (torch.bmm, [rand(3, 131, 7), rand(3, 7, 5)]),
        (torch.matmul, [rand(2, 3, 7), rand(7, 131)]),
        (lambda x, y: torch.addmm(x, y, MATRIX, beta=0.5, alpha=2.0), [rand(5, 131), rand(5, 9)]),
        (lambda x, y, z: torch.baddbmm(x, y, z), [rand(2, 3, 131), rand(2, 3, 4), rand(2, 4, 131)]),
        (lambda x, w: F.linear(x, w), [rand(3, 131), rand(5, 131)]),
    ],
)
@pytest.mark.usefixtures("slow_cpu")
def test_products_of_computed_matrices(call: Callable[..., Any], inputs: list[Tensor]) -> None:
    program, notes = within(LIMIT, call, inputs, "2.6")
    assert any("in_parts" in note.rewrite for note in notes)
    assert "aten::matmul" not in on_cpu(program, inputs, "2.6", LIMIT)
    assert not {"aten::mm", "aten::bmm", "aten::linear"} & on_cpu(program, inputs, "2.6", LIMIT)


def test_parts_of_the_example_are_not_made_where_sizes_are_guessed() -> None:
    inputs = [rand(3000, 768)]
    program = program_of_call(nn.Linear(768, 768), inputs)
    item = Legalize(Target("vulkan", "2.6"), "full", Examples({"forward": inputs}, are_guessed=True))
    assert "aten::slice" not in apply(item, program)[0]


def test_a_larger_device_takes_the_whole() -> None:
    script = torch.jit.script(nn.Linear(2000, 3000).eval())
    inputs = [rand(8, 2000)]

    def count(profile: str | None) -> int:
        made = optimize_for_mobile(
            script, backend="Vulkan", example_inputs=inputs, device_profile=profile, runtime="2.6"
        )
        return sum(node.op.endswith("run_linear_context") for node in made.program.methods["forward"].walk())

    assert (count(None), count("mali-g78"), count("android-2021")) == (2, 1, 24)
    with pytest.raises(InputError, match="the backend is metal; leave --device-profile out"):
        optimize_for_mobile(script, backend="Metal", example_inputs=inputs, device_profile="mali-g78")
    with pytest.raises(InputError, match="did you mean mali-g78"):
        optimize_for_mobile(script, backend="Vulkan", example_inputs=inputs, device_profile="mali-g77")


def test_the_audit_says_what_a_conversion_costs() -> None:
    script = torch.jit.script(nn.Conv2d(208, 208, 3, padding=1, groups=26).eval())
    change = audit(script, runtime="2.6", example_inputs=[rand(1, 208, 14, 14)]).change
    assert change is not None
    assert (change.operators_before, change.multiply_adds_before) == (1, 208 * 8 * 9 * 14 * 14)
    assert 10 < change.operators < 40
    assert change.arithmetic is not None
    assert 1 < change.arithmetic < 6
    unsized = torch.jit.script(nn.ReLU())
    assert str(audit(unsized, runtime="2.6").change).startswith("1 operators become ")


@pytest.mark.parametrize("runtime", RELEASES)
@pytest.mark.parametrize(
    ("sizes", "stays"), [((17, 7, 7, 1), set()), ((29, 29, 3), {"aten::cat"}), ((5, 7, 3, 3), set())]
)
def test_what_is_joined_as_images_that_are_too_large(sizes: tuple[int, ...], stays: set[str], runtime: str) -> None:
    """Images that are joined may be larger than the tensors: width and height change places, or the CPU joins."""
    inputs = [rand(*sizes), rand(*sizes) + 1]
    program, _ = within(LIMIT, lambda x, y: torch.cat([F.relu(x), y], -1), inputs, runtime)
    assert {node.op for node, found in findings(program, inputs, runtime) if found.verdict != "native"} <= stays
    assert not on_cpu(program, inputs, runtime, LIMIT)
