"""Rows and rewrites for PyTorch's Metal runtime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from target_cases import finding_on, findings, is_native, legalized_for

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir.facts import TensorFacts
from mobopt.ops.schemas import schema_of
from mobopt.ops.targets import Target
from mobopt.ops.targets.row import RELEASES
from mobopt.ops.targets.table import all_rows, release_key
from mobopt.ops.targets.verdicts import metal_misfit
from mobopt.options import Settings
from mobopt.passes.facts import Examples
from mobopt.passes.legalizations.site import rewrites
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import NOT_REWRITTEN, REWRITTEN
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

METAL = Target("metal", "2.1")


def r(*sizes: int) -> torch.Tensor:
    """Random numbers that are the same in every run."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes) + len(sizes)))


def conv(rows: int, columns: int, kernel: int = 3, **settings: Any) -> Any:
    """A convolution with constant weights."""
    weight, bias = r(rows, columns, kernel, kernel) * 0.3, r(rows)
    return lambda x: F.conv2d(x, weight, bias, **settings)


@pytest.mark.parametrize("backend", ["metal", "cpu"])
def test_rows_can_be_used(backend: str) -> None:
    """Conditions compile, operators and rewrites exist, and every row says how it is known."""
    for row in all_rows(backend):
        assert row.evidence == "source" or (backend == "cpu" and row.evidence == "tried")
        assert row.condition is not None or not row.when
        assert not row.rewrite or (row.rewrite in rewrites() and row.verdict != "native")
        assert bool(row.came) == (backend == "cpu" and row.until == RELEASES[-1])
        if not row.came or release_key(row.came) <= release_key(torch.__version__.rpartition(".")[0]):
            for operator in row.operators:
                schema_of(operator)


def narrow_stack(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two tensors of one channel, as channels."""
    return torch.cat([x, y], 1)


NEAREST = "aten::upsample_nearest2d.vec"
ROW = r(1, 5, 1, 1)
VERDICTS: list[tuple[str, Any, tuple[torch.Tensor, ...], str, str]] = [
    ("conv", conv(5, 3, padding=1, stride=2), (r(2, 3, 11, 13),), "aten::conv2d", "native"),
    ("depthwise", conv(7, 1, groups=7), (r(1, 7, 11, 13),), "aten::conv2d", "native"),
    ("groups of four", conv(8, 4, groups=2), (r(1, 8, 11, 13),), "aten::conv2d", "native"),
    ("groups of three", conv(6, 3, groups=2), (r(1, 6, 11, 13),), "aten::conv2d", "missing"),
    ("multiplier", conv(14, 1, groups=7), (r(1, 7, 11, 13),), "aten::conv2d", "missing"),
    ("dilation", conv(5, 3, dilation=2), (r(1, 3, 11, 13),), "aten::conv2d", "wrong"),
    ("linear", torch.nn.Linear(7, 5), (r(3, 7),), "aten::linear", "native"),
    ("linear of rows", torch.nn.Linear(7, 5), (r(3, 11, 7),), "aten::linear", "missing"),
    ("linear of many rows", torch.nn.Linear(7, 5), (r(2, 1031, 7),), "aten::linear", "missing"),
    ("wide linear", torch.nn.Linear(8193, 2), (r(1, 8193),), "aten::linear", "missing"),
    ("add", torch.add, (r(2, 5, 7, 3), r(2, 5, 7, 3)), "aten::add.Tensor", "native"),
    ("add of a row", torch.add, (r(3, 5), r(5)), "aten::add.Tensor", "native"),
    ("add to a row", torch.add, (r(5), r(3, 5)), "aten::add.Tensor", "native"),
    ("gate", torch.mul, (r(2, 5, 7, 3), r(2, 5, 1, 1)), "aten::mul.Tensor", "native"),
    ("stretched first", torch.mul, (r(2, 5, 1, 3), r(2, 5, 7, 3)), "aten::mul.Tensor", "native"),
    ("stretched width", torch.mul, (r(2, 5, 7, 1), r(2, 5, 7, 3)), "aten::mul.Tensor", "missing"),
    ("both stretched", torch.mul, (r(2, 5, 7, 1), r(2, 5, 1, 3)), "aten::mul.Tensor", "missing"),
    ("other channels", torch.mul, (r(2, 5, 7, 3), r(2, 1, 7, 3)), "aten::mul.Tensor", "missing"),
    ("other batch", torch.mul, (r(2, 4, 7, 3), r(1, 4, 7, 3)), "aten::mul.Tensor", "missing"),
    ("other rank", torch.mul, (r(3, 7, 5), r(1, 3, 7, 5)), "aten::mul.Tensor", "missing"),
    ("other rank behind", torch.mul, (r(1, 3, 7, 5), r(3, 7, 5)), "aten::mul.Tensor", "native"),
    ("factor", lambda x, y: torch.add(x, y, alpha=2), (r(1, 3), r(1, 3)), "aten::add.Tensor", "wrong"),
    ("relu", torch.relu, (r(3, 5, 7),), "aten::relu", "native"),
    ("relu of a scalar", torch.relu, (r(),), "aten::relu", "missing"),
    ("relu of integers", torch.relu, (torch.tensor([3, -5]),), "aten::relu", "missing"),
    ("relu of six", torch.relu, (r(1, 1, 2, 3, 2, 2),), "aten::relu", "missing"),
    ("relu of too many", torch.relu, (r(1, 8193, 1, 1),), "aten::relu", "missing"),
    ("clamp", lambda x: x.clamp(-1, 2), (r(3, 5),), "aten::clamp", "native"),
    ("pool", lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), (r(2, 3, 11, 13),), "aten::max_pool2d", "native"),
    ("pool of rows", lambda x: F.max_pool2d(x, (3, 1), 2), (r(2, 3, 11, 13),), "aten::max_pool2d", "wrong"),
    ("dilated pool", lambda x: F.max_pool2d(x, 3, 2, 0, 2), (r(2, 3, 11, 13),), "aten::max_pool2d", "wrong"),
    ("pool of one", lambda x: F.max_pool2d(x, 3, 2), (r(3, 11, 13),), "aten::max_pool2d", "missing"),
    ("mean", lambda x: x.mean([2, 3]), (r(1, 5, 7, 3),), "aten::mean.dim", "native"),
    ("mean from behind", lambda x: x.mean([-1, -2]), (r(1, 5, 7, 3),), "aten::mean.dim", "wrong"),
    ("mean of a batch", lambda x: x.mean([0]), (r(1, 5, 7, 3),), "aten::mean.dim", "missing"),
    ("mean of batches", lambda x: x.mean([1]), (r(2, 5, 7, 3),), "aten::mean.dim", "missing"),
    ("cat", narrow_stack, (r(1, 3, 5, 7), r(1, 2, 5, 7)), "aten::cat", "native"),
    ("softmax", lambda x: x.softmax(-1), (r(3, 7),), "aten::softmax.int", "native"),
    ("softmax of columns", lambda x: x.softmax(-2), (r(3, 7),), "aten::softmax.int", "wrong"),
    ("softmax of many", lambda x: x.softmax(1), (r(1, 3, 47, 53),), "aten::softmax.int", "missing"),
    ("transpose", lambda x: x.transpose(1, 3), (r(2, 3, 5, 7),), "aten::transpose.int", "native"),
    ("long transpose", lambda x: x.transpose(1, 2), (r(1, 2, 257, 257),), "aten::transpose.int", "wrong"),
    ("shuffle", lambda x: x.transpose(1, 2), (r(1, 2, 3, 5, 7),), "aten::transpose.int", "native"),
    ("last of five", lambda x: x.transpose(3, 4), (r(1, 2, 3, 5, 7),), "aten::transpose.int", "wrong"),
    ("upsample", lambda x: F.interpolate(x, scale_factor=2.0), (r(1, 3, 5, 7),), NEAREST, "native"),
    ("upsample by half", lambda x: F.interpolate(x, scale_factor=1.5), (r(1, 3, 6, 8),), NEAREST, "missing"),
    ("reflect", lambda x: F.pad(x, [1, 2, 3, 1], "reflect"), (r(1, 3, 6, 8),), "aten::pad", "missing"),
    ("matmul", torch.matmul, (r(3, 5), r(5, 7)), "aten::matmul", "missing"),
]  # fmt: skip


@pytest.mark.parametrize("case", VERDICTS, ids=lambda case: str(case[0]))
def test_verdicts(case: tuple[str, Any, tuple[torch.Tensor, ...], str, str]) -> None:
    """Conditions hit and miss."""
    _, call, inputs, op, verdict = case
    finding = finding_on(call, inputs, METAL, op)
    assert finding.verdict == verdict, finding


def test_four_channels_are_no_array() -> None:
    """A result of one layer is no texture array, which the kernel wants."""
    finding = finding_on(narrow_stack, (r(1, 1, 5, 7), r(1, 2, 5, 7)), METAL, "aten::cat")
    assert finding.verdict == "missing" and "four channels" in finding.why


def test_sizes_that_are_not_known_leave_it_open() -> None:
    """Without examples nothing that depends on them is called wrong."""
    program = program_from_script_module(torch.jit.script(torch.nn.AdaptiveAvgPool2d(1)))  # type: ignore[no-untyped-call]
    run_passes(program, pipeline_for(Settings("metal")), check=True)
    assert "aten::adaptive_avg_pool2d" in [node.op for node in program.methods["forward"].walk()]


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ((16384,), True),
        ((16385,), False),
        ((8192, 1, 1), True),
        ((8193, 1, 1), False),
        ((2, 4097, 1, 1), False),
        ((2, 1024, 3, 1, 1), True),
        ((3, 1024, 3, 1, 1), False),
        ((1, 0, 3), False),
        ((), False),
    ],
)
def test_what_an_image_holds(sizes: tuple[int, ...], fits: bool) -> None:
    """Sides up to 16384, and 2048 layers of four channels."""
    assert (metal_misfit(TensorFacts("float32", sizes)) is None) is fits


def halves_of_shader(channels: int) -> list[list[int | None]]:
    """What ``split_channels`` of MetalShaders.h puts into the lanes of both halves; None: something else.

    Texels are written in the order of their layers, or in the other: where both orders differ, threads race.
    """
    layers, first, second = -(-channels // 4), -(-channels // 2), channels // 2
    texels = [
        [layer * 4 + lane if layer * 4 + lane < channels else None for lane in range(4)] for layer in range(layers)
    ]
    texels.append([None] * 4)
    wrong: list[int | None] = [None] * channels
    ends, shift = -(-first // 4), first % 4
    results: list[list[int | None]] = []
    for order in (range(layers), range(layers - 1, -1, -1)):
        halves: list[list[list[int | None]]] = [[[None] * 4 for _ in range(-(-size // 4))] for size in (first, second)]
        for z in order:
            moved = texels[z][shift:] + texels[z + 1][:shift]
            if z < ends:
                halves[0][z] = texels[z] if z < ends - 1 or shift == 0 else texels[z][:shift] + [None] * (4 - shift)
            if z < ends - 1 or (z == ends - 1 and shift == 0):
                continue
            place = 0 if len(halves[1]) == 1 else z - ends + (1 if shift else 0)
            if place >= len(halves[1]):
                return [wrong]
            halves[1][place] = moved
        flat = [
            [lane for texel in half for lane in texel][:size]
            for half, size in zip(halves, (first, second), strict=True)
        ]
        results.append(flat[0] + flat[1])
    return results


@pytest.mark.parametrize("channels", range(2, 41))
def test_halves_are_native_where_the_shader_is_right(channels: int) -> None:
    """The row about ``chunk`` is what the shader, as it was read, does."""
    finding = finding_on(lambda x: x.chunk(2, 1)[1], (r(1, channels, 2, 3),), METAL, "aten::chunk")
    is_right = all(result == list(range(channels)) for result in halves_of_shader(channels))
    assert (finding.verdict == "native") is is_right


def norm(channels: int) -> torch.nn.Module:
    """A batch normalisation whose statistics are not those of a fresh one."""
    module = torch.nn.BatchNorm2d(channels).eval()
    module.running_mean, module.running_var = r(channels), r(channels).abs() + 0.3
    module.weight.data, module.bias.data = r(channels), r(channels)
    return module


def prelu(slopes: int) -> torch.nn.Module:
    """A PReLU with random slopes."""
    module = torch.nn.PReLU(slopes)
    module.weight.data = r(slopes)
    return module


IMAGE = r(2, 5, 7, 11)
CASES: list[tuple[str, Any, torch.Tensor]] = [
    ("dilation", conv(5, 3, dilation=(2, 3), padding=2, stride=2), r(2, 3, 17, 13)),
    ("multiplier", conv(10, 1, groups=5, padding=1), IMAGE),
    ("groups of three", conv(6, 3, groups=2), r(2, 6, 11, 13)),
    ("groups of one", conv(6, 2, groups=6, padding=1), r(2, 12, 11, 13)),
    ("groups of two", conv(8, 2, groups=4), r(1, 8, 11, 13)),
    ("no batch", conv(5, 3), r(3, 11, 13)),
    ("conv1d", torch.nn.Conv1d(3, 5, 3, 2, 1), r(1, 3, 17)),
    ("linear of rows", torch.nn.Linear(7, 5), r(3, 11, 7)),
    ("linear of many rows", torch.nn.Linear(7, 5), r(2, 1031, 7)),
    ("linear of a row", torch.nn.Linear(7, 5), r(7)),
    ("plus number", lambda x: x + 3, IMAGE),
    ("minus number", lambda x: x - 0.7, r(5, 7)),
    ("number minus", lambda x: 2 - x, IMAGE),
    ("times number", lambda x: x * 0.3, r(3, 5, 7)),
    ("over number", lambda x: x / 7, r(11)),
    ("negative", lambda x: -x, IMAGE),
    ("tensor number", lambda x: x * torch.tensor(3.0) + torch.tensor([[2.0]]), r(3, 7)),
    ("factor", lambda x: torch.sub(x, torch.relu(x), alpha=3), IMAGE),
    ("constant first", lambda x: ROW * x, r(1, 5, 7, 11)),
    ("hardsigmoid", F.hardsigmoid, IMAGE * 4),
    ("hardsigmoid of rows", F.hardsigmoid, r(3, 7) * 4),
    ("silu", F.silu, r(3, 7)),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), IMAGE),
    ("unflatten", lambda x: x.unflatten(1, (3, 2)).flatten(1), r(5, 6)),
    ("prelu", prelu(5), IMAGE),
    ("one slope", prelu(1), r(3, 5)),
    ("clamp below", lambda x: x.clamp(min=0.3), IMAGE),
    ("clamp above", lambda x: x.clamp_max(0.3), IMAGE),
    ("clamp at zero", lambda x: x.clamp(min=0), IMAGE),
    ("normalisation", norm(5), IMAGE),
    ("average", lambda x: F.avg_pool2d(x, (3, 2), 2, 1), IMAGE),
    ("average with divisor", lambda x: F.avg_pool2d(x, 3, 2, 1, False, False, 5), IMAGE),
    ("average of parts", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), r(2, 5, 9, 14)),
    ("average of all", lambda x: F.adaptive_avg_pool2d(x, 7).relu(), r(2, 5, 7, 7)),
    ("average of one", lambda x: F.adaptive_avg_pool2d(x, 1), r(5, 7, 7)),
    ("mean", lambda x: x.mean([-2, -1]), IMAGE),
    ("mean keeps", lambda x: x.mean([3, 2], keepdim=True), IMAGE),
    ("mean of channels", lambda x: x.mean(-3, keepdim=True), r(1, 5, 7, 11)),
    ("pool without stride", lambda x: torch.max_pool2d(x, 3), IMAGE),
    ("permute", lambda x: x.permute(0, 2, 3, 1), IMAGE),
    ("permute all", lambda x: x.permute(3, 0, -2, 1), IMAGE),
    ("softmax", lambda x: x.softmax(1), IMAGE),
    ("log softmax", lambda x: x.log_softmax(-1), IMAGE),
    ("softmax of columns", lambda x: x.softmax(-2), r(3, 7)),
    ("softmax of one", lambda x: x.softmax(0), r(7)),
    ("cat of rows", lambda x: torch.cat([x, torch.relu(x)], 2), IMAGE),
    ("cat from behind", lambda x: torch.cat([x, torch.relu(x), x], -1), IMAGE),
    ("cat of few channels", lambda x: torch.cat([x, -x, x + 1], 1), r(1, 1, 5, 7)),
    ("cat of features", lambda x: torch.cat([x, torch.relu(x)], -1), r(3, 7)),
    ("cat of sequences", lambda x: torch.cat([x, torch.relu(x)], 2), r(3, 5, 7)),
    ("one channel", lambda x: x[:, 2], IMAGE),
    ("bilinear", lambda x: F.interpolate(x, size=(9, 13), mode="bilinear"), r(1, 5, 7, 11)),
    ("thirds", lambda x: sum(x.chunk(3, 1)), r(2, 9, 5, 7)),
    ("halves of six", lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], r(1, 6, 5, 7)),
    ("split", lambda x: torch.cat(list(x.split([2, 3, 4], 1))[::-1], 1), r(2, 9, 5, 7)),
    ("split evenly", lambda x: torch.cat(list(x.split(4, 1))[::-1], 1), r(2, 9, 5, 7)),
    ("slice", lambda x: x[:, 1:7:2], r(2, 9, 5, 7)),
    ("narrow", lambda x: x.narrow(1, 3, 4), r(2, 9, 5, 7)),
    ("choice", lambda x: x.index_select(1, torch.tensor([3, 0, 3])), IMAGE),
    ("flip", lambda x: x.flip(1), IMAGE),
    ("channel shuffle", lambda x: F.channel_shuffle(x, 3), r(2, 6, 5, 7)),
    ("zero padding", lambda x: F.pad(x, [1, 2, 0, 3]), IMAGE),
    ("reflection", lambda x: F.pad(x, [1, 2, 0, 3], "reflect"), IMAGE),
    ("upsample to size", lambda x: F.interpolate(x, size=(14, 33)), IMAGE),
    ("copy", lambda x: torch.relu(x.clone()), IMAGE),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_rewritten_is_native_and_right(case: tuple[str, Any, torch.Tensor]) -> None:
    """What Metal lacks is written with what it has, and gives eager's numbers."""
    _, call, x = case
    program, notes = legalized_for(METAL, call, (x,))
    assert any(note.kind is REWRITTEN for note in notes)
    assert is_native(program, (x,), METAL), [
        (node.qualified_op, finding) for node, finding in findings(program, (x,), METAL) if finding.verdict != "native"
    ]


@pytest.mark.parametrize(
    ("call", "x", "reason"),
    [
        (lambda x: torch.tensor(3.0) / x, r(5, 7), "divides a number"),
        (lambda x: x * float("inf"), r(5, 7), "inf"),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE, "windows differ"),
        (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), IMAGE, "cut off"),
        (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE, "overlap"),
        (lambda x: x[:, :, 1:3], IMAGE, "channels"),
        (lambda x: x.flip(1, 2), IMAGE, "several"),
        (lambda x: F.interpolate(x, size=(9, 9)), IMAGE, "whole"),
        (lambda x: x.clone().mul_(x), IMAGE, "in place"),
        (lambda x: F.hardsigmoid(x), r(1, 2, 3, 2, 2), "batch of images"),
        (conv(1, 1, dilation=4096, padding=4096), r(1, 1, 5, 7), "67,125,249"),
        (lambda x: torch.cat([torch.zeros(0), x], 1), r(1, 2, 5, 7), "is empty"),
    ],
)  # fmt: skip
def test_refused_with_a_reason(call: Any, x: torch.Tensor, reason: str) -> None:
    """What can't be written otherwise stays, and a note says why."""
    _, notes = legalized_for(METAL, call, (x,))
    assert any(note.kind is NOT_REWRITTEN and reason in note.parameters["reason"] for note in notes), notes


def test_safe_rewrites_hold_for_other_sizes() -> None:
    """Heights, widths and batches other than the example's."""

    def call(x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([F.hardsigmoid(x * 2 + 1), x.softmax(1)], -2).permute(0, 2, 3, 1)
        return torch.cat([joined.mean([2, 3]), x.mean([2, 3])], 1)

    program, _ = legalized_for(METAL, call, (r(2, 5, 7, 11),), "safe")
    other = r(2, 5, 7, 3)
    torch.testing.assert_close(Interpreter(program).run("forward", [other]), call(other))


class InvertedResidual(torch.nn.Module):
    """A block of MobileNetV2, and its head."""

    def __init__(self) -> None:
        super().__init__()
        wide = torch.nn.Conv2d(7, 14, 1, bias=False), torch.nn.BatchNorm2d(14), torch.nn.ReLU6(inplace=True)
        deep = torch.nn.Conv2d(14, 14, 3, 1, 1, groups=14, bias=False), torch.nn.BatchNorm2d(14), torch.nn.ReLU6()
        self.layers = torch.nn.Sequential(*wide, *deep, torch.nn.Conv2d(14, 7, 1, bias=False), torch.nn.BatchNorm2d(7))
        self.head = torch.nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        x = x + self.layers(x)
        return self.head(torch.nn.functional.adaptive_avg_pool2d(x, (1, 1)).reshape(x.shape[0], -1))


@pytest.mark.parametrize("runtime", ["1.13", "2.1", "2.6"])
def test_the_tutorials_model_is_native(runtime: str) -> None:
    """The operators of iOS' GPU tutorial need no rewrite."""
    x = r(1, 7, 13, 11)
    program = program_from_script_module(torch.jit.script(InvertedResidual().eval()))  # type: ignore[no-untyped-call]
    runs = run_passes(program, pipeline_for(Settings("metal", runtime), Examples({"forward": (x,)})), check=True)
    assert not any(note.kind is REWRITTEN for run in runs for note in run.result.notes)
    assert is_native(program, (x,), Target("metal", runtime))
    operators = {node.op for node, _ in findings(program, (x,), Target("metal", runtime))}
    packed = {"metal_prepack::conv2d_run", "metal_prepack::linear_run"}
    assert operators == packed | {"aten::add", "aten::adaptive_avg_pool2d", "aten::reshape"}
