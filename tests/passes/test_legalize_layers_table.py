"""Verdicts on layers: the cases that were tried on PyTorch's genuine Vulkan kernels, and each row's condition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_cases import findings, legalized, program_of_call, verdict_of
from pass_harness import randomize_norms
from torch import nn
from torch.nn import functional

from mobopt.ops.targets import Target, judge


def rand(*sizes: int) -> torch.Tensor:
    """The same numbers for the same sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


X = (1, 4, 5, 6)

TRIED: list[tuple[str, Any, tuple[int, ...], str, str, str]] = [
    # case, module, sizes, operator, verdict on 1.13, verdict on 2.6
    ("conv groups=2", nn.Conv2d(4, 8, 3, groups=2), X, "conv2d", "wrong", "wrong"),
    ("conv groups=2 to 4ch", nn.Conv2d(4, 4, 3, groups=2), X, "conv2d", "wrong", "wrong"),
    ("conv depthwise", nn.Conv2d(4, 4, 3, groups=4, padding=1), X, "conv2d", "native", "native"),
    ("conv depthwise mult2", nn.Conv2d(4, 8, 3, groups=4), X, "conv2d", "wrong", "wrong"),
    ("conv dilation2", nn.Conv2d(4, 8, 3, dilation=2, padding=2), X, "conv2d", "wrong", "wrong"),
    ("conv nobias", nn.Conv2d(4, 8, 3, bias=False), X, "conv2d", "native", "native"),
    ("conv batch2", nn.Conv2d(4, 8, 3), (2, 4, 5, 6), "conv2d", "wrong", "wrong"),
    ("conv padding_mode reflect", nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), X, "pad", "native", "native"),
    ("conv 3x5 stride(2,1)", nn.Conv2d(4, 8, (3, 5), stride=(2, 1)), X, "conv2d", "native", "native"),
    ("conv1d", nn.Conv1d(4, 8, 3), (1, 4, 6), "conv1d", "missing", "native"),
    ("conv1d batch2 pad1", nn.Conv1d(4, 8, 3, padding=1), (2, 4, 6), "conv1d", "missing", "native"),
    ("tconv s2 k2", nn.ConvTranspose2d(4, 8, 2, stride=2), X, "conv_transpose2d", "native", "native"),
    (
        "tconv s2 k3 outpad1",
        nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1),
        X,
        "conv_transpose2d",
        "native",
        "native",
    ),
    ("tconv groups2", nn.ConvTranspose2d(4, 8, 3, groups=2), X, "conv_transpose2d", "missing", "missing"),
    ("tconv dilation2", nn.ConvTranspose2d(4, 8, 3, dilation=2), X, "conv_transpose2d", "missing", "missing"),
    ("linear 2d", nn.Linear(6, 3), (5, 6), "linear", "wrong", "native"),
    ("linear nobias", nn.Linear(6, 3, bias=False), (5, 6), "linear", "native", "native"),
    ("linear 3d", nn.Linear(6, 3), (4, 5, 6), "linear", "wrong", "native"),
    ("linear 1d", nn.Linear(6, 3), (6,), "linear", "missing", "native"),
    ("bn 4d", nn.BatchNorm2d(4), X, "batch_norm", "native", "native"),
    ("bn 6ch", nn.BatchNorm2d(6), (1, 6, 5, 6), "batch_norm", "missing", "native"),
    ("groupnorm", nn.GroupNorm(2, 4), X, "group_norm", "missing", "missing"),
    ("layernorm last", nn.LayerNorm(6), (4, 5, 6), "layer_norm", "missing", "native"),
    ("layernorm last 4d", nn.LayerNorm(6), X, "layer_norm", "missing", "native"),
    ("avgpool pad", nn.AvgPool2d(3, 2, 1), X, "avg_pool2d", "native", "native"),
    ("avgpool ceil", nn.AvgPool2d(2, 2, ceil_mode=True), X, "avg_pool2d", "wrong", "wrong"),
    ("avgpool nocountpad", nn.AvgPool2d(3, 2, 1, count_include_pad=False), X, "avg_pool2d", "wrong", "wrong"),
    ("maxpool pad", nn.MaxPool2d(3, 2, 1), X, "max_pool2d", "wrong", "wrong"),
    ("maxpool ceil", nn.MaxPool2d(2, 2, ceil_mode=True), X, "max_pool2d", "wrong", "wrong"),
    ("maxpool dil", nn.MaxPool2d(2, 1, dilation=2), X, "max_pool2d", "native", "native"),
    ("adaptive 1", nn.AdaptiveAvgPool2d(1), X, "adaptive_avg_pool2d", "native", "native"),
    ("adaptive 3", nn.AdaptiveAvgPool2d(3), X, "adaptive_avg_pool2d", "native", "native"),
    ("dropout", nn.Dropout(), X, "dropout", "native", "native"),
    ("pixelshuffle", nn.PixelShuffle(2), X, "pixel_shuffle", "missing", "missing"),
    ("up nearest", nn.Upsample(scale_factor=2), X, "upsample_nearest2d", "native", "native"),
    ("up bilinear", nn.Upsample(scale_factor=2, mode="bilinear"), X, "upsample_bilinear2d", "missing", "native"),
    ("zeropad", nn.ZeroPad2d(1), X, "pad", "missing", "missing"),
    ("reflpad", nn.ReflectionPad2d(1), X, "pad", "native", "native"),
    ("reppad", nn.ReplicationPad2d(1), X, "pad", "native", "native"),
]


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case[0])
def test_verdicts_are_those_of_the_genuine_kernels(case: tuple[Any, ...], runtime: str) -> None:
    _, module, sizes, op, old, new = case
    finding = verdict_of(randomize_norms(module), [rand(*sizes)], runtime, f"aten::{op}")
    assert finding.verdict == (old if runtime == "1.13" else new)
    assert finding.verdict == "native" or finding.why


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case[0])
def test_what_was_tried_right_is_left_alone_and_the_rest_is_rewritten(case: tuple[Any, ...], runtime: str) -> None:
    name, module, sizes, op, old, new = case
    program, notes = legalized(module, [rand(*sizes)], runtime)
    is_native = (old if runtime == "1.13" else new) == "native"
    done = [note for note in notes if note.done]
    assert bool(done) != (is_native or (name.startswith("layernorm") and runtime == "1.13"))
    before = [
        finding.verdict for node, finding in findings(program, [rand(*sizes)], runtime) if node.op == f"aten::{op}"
    ]
    assert "wrong" not in before


def test_padding_given_as_a_word_becomes_numbers() -> None:
    program = program_of_call(nn.Conv2d(4, 8, 3, padding="same"), [rand(*X)])
    assert [(node.op, finding.verdict) for node, finding in findings(program, [rand(*X)], "1.13")] == [
        ("aten::conv2d", "native")
    ]


def test_embedding_is_missing_for_what_it_reads() -> None:
    finding = verdict_of(nn.Embedding(7, 5), [torch.arange(3)], "2.6", "aten::embedding")
    assert finding.verdict == "missing" and "integers" in finding.why


CONDITIONS: list[tuple[str, Any, tuple[torch.Tensor, ...], str, str, str]] = [
    # what, call, inputs, operator, runtime, verdict and, behind a colon, rewrite
    ("computed weight", torch.conv2d, (rand(*X), rand(3, 4, 3, 3)), "conv2d", "2.6", "missing"),
    ("dilation without padding", nn.Conv2d(4, 8, 2, dilation=2), (rand(*X),), "conv2d", "1.13", "native"),
    ("1x1", nn.Conv2d(4, 8, 1, stride=2), (rand(*X),), "conv2d", "1.13", "native"),
    ("padded 1x1", nn.Conv2d(4, 8, 1, padding=1), (rand(*X),), "conv2d", "1.13", "wrong:pad_before_convolution"),
    ("padded depthwise 1x1", nn.Conv2d(4, 4, 1, padding=1, groups=4), (rand(*X),), "conv2d", "2.6", "native"),
    ("one channel", nn.Conv2d(1, 4, 3), (rand(1, 1, 5, 6),), "conv2d", "1.13", "native"),
    ("1-d without bias", nn.Conv1d(4, 8, 3, bias=False), (rand(1, 4, 6),), "conv1d", "2.6", "missing:give_zero_bias"),
    ("1-d groups", nn.Conv1d(4, 8, 3, groups=2), (rand(3, 4, 6),), "conv1d", "2.6", "native"),
    ("1-d in 2.2", nn.Conv1d(4, 8, 3), (rand(3, 4, 6),), "conv1d", "2.2", "missing:convolve_1d_as_2d"),
    (
        "transposed batch",
        nn.ConvTranspose2d(4, 8, 3),
        (rand(2, *X[1:]),),
        "conv_transpose2d",
        "2.6",
        "wrong:convolve_samples",
    ),
    ("linear of one row", nn.Linear(6, 3), (rand(1, 6),), "linear", "1.13", "native"),
    ("linear of many rows", nn.Linear(6, 3), (rand(3, 701, 6),), "linear", "2.6", "missing:linear_as_convolution"),
    ("computed linear", functional.linear, (rand(5, 6), rand(3, 6)), "linear", "2.2", "missing"),
    ("mm", torch.mm, (rand(5, 6), rand(6, 3)), "mm", "2.6", "native"),
    ("mm in 2.2", torch.mm, (rand(5, 6), rand(6, 3)), "mm", "2.2", "wrong"),
    ("addmm", torch.addmm, (rand(3), rand(5, 6), rand(6, 3)), "addmm", "2.6", "native"),
    ("addmm of a column", torch.addmm, (rand(5, 1), rand(5, 6), rand(6, 3)), "addmm", "2.6", "wrong"),
    ("bmm", torch.bmm, (rand(2, 5, 6), rand(2, 6, 3)), "bmm", "2.6", "native"),
    ("bmm in 2.2", torch.bmm, (rand(2, 5, 6), rand(2, 6, 3)), "bmm", "2.2", "missing"),
    ("baddbmm", torch.baddbmm, (rand(2, 5, 3), rand(2, 5, 6), rand(2, 6, 3)), "baddbmm", "2.6", "native"),
    ("baddbmm in 2.2", torch.baddbmm, (rand(2, 5, 3), rand(2, 5, 6), rand(2, 6, 3)), "baddbmm", "2.2", "missing"),
    ("matmul in 2.2", torch.matmul, (rand(2, 5, 6), rand(2, 6, 3)), "matmul", "2.2", "missing"),
    (
        "batch norm in training",
        lambda x: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
        (rand(*X),),
        "batch_norm",
        "2.6",
        "missing",
    ),
    ("batch norm of a batch", nn.BatchNorm2d(8), (rand(3, 8, 5, 6),), "batch_norm", "1.13", "native"),
    (
        "batch norm without weights",
        nn.BatchNorm2d(8, affine=False),
        (rand(3, 8, 5, 6),),
        "batch_norm",
        "2.6",
        "missing:scale_and_shift",
    ),
    ("batch norm of lines", nn.BatchNorm1d(8), (rand(3, 8, 5),), "batch_norm", "2.6", "missing:scale_and_shift"),
    ("layer norm of an image", nn.LayerNorm([4, 5, 6]), (rand(*X),), "layer_norm", "1.13", "native"),
    ("layer norm of images", nn.LayerNorm([4, 5, 6]), (rand(2, *X[1:]),), "layer_norm", "1.13", "missing"),
    ("layer norm of 2", nn.LayerNorm([5, 6]), (rand(*X),), "layer_norm", "2.6", "native"),
    (
        "ceil of a small kernel",
        nn.MaxPool2d(2, 3, ceil_mode=True),
        (rand(*X),),
        "max_pool2d",
        "2.6",
        "wrong:pool_after_filling_to_size",
    ),
    ("max of an image", nn.MaxPool2d(2), (rand(*X[1:]),), "max_pool2d", "2.6", "missing:one_image"),
    ("max of a batch", nn.MaxPool2d(2), (rand(3, *X[1:]),), "max_pool2d", "2.6", "native"),
    ("divisor", nn.AvgPool2d(2, divisor_override=3), (rand(*X),), "avg_pool2d", "2.6", "wrong:average_with_divisor"),
    (
        "divisor, hard ceil",
        nn.AvgPool2d(2, 3, ceil_mode=True, divisor_override=3),
        (rand(*X),),
        "avg_pool2d",
        "2.6",
        "wrong",
    ),
    ("uncounted without padding", nn.AvgPool2d(2, count_include_pad=False), (rand(*X),), "avg_pool2d", "2.6", "native"),
    ("adaptive 6 of 12", nn.AdaptiveAvgPool2d(6), (rand(1, 4, 12, 18),), "adaptive_avg_pool2d", "2.6", "native"),
    (
        "a window over all",
        nn.AvgPool2d(101, ceil_mode=True),
        (rand(1, 4, 3, 5),),
        "avg_pool2d",
        "2.6",
        "wrong:average_within_image",
    ),
    (
        "adaptive 6 of 14",
        nn.AdaptiveAvgPool2d(6),
        (rand(1, 4, 14, 14),),
        "adaptive_avg_pool2d",
        "2.6",
        "wrong:resize_by_matrices",
    ),
    (
        "bilinear in 2.2",
        nn.UpsamplingBilinear2d(scale_factor=2),
        (rand(*X),),
        "upsample_bilinear2d",
        "2.2",
        "missing:resize_by_matrices",
    ),
    ("bilinear corners", nn.UpsamplingBilinear2d(scale_factor=2), (rand(*X),), "upsample_bilinear2d", "2.6", "native"),
    ("pad lines", nn.ReflectionPad2d(1), (rand(*X[1:]),), "pad", "2.6", "missing:pad_by_mode"),
    ("gate", nn.GLU(1), (rand(1, 16, 5, 6),), "glu", "2.6", "native"),
    ("gate of 4", nn.GLU(1), (rand(*X),), "glu", "2.6", "missing:gate_by_sigmoid"),
    ("gate in 2.2", nn.GLU(1), (rand(1, 16, 5, 6),), "glu", "2.2", "missing:gate_by_sigmoid"),
    ("one step", nn.LSTM(5, 7), (rand(1, 1, 5),), "lstm", "2.6", "native"),
    ("one step, no bias", nn.LSTM(5, 7, bias=False), (rand(1, 1, 5),), "lstm", "2.6", "wrong:unroll_lstm"),
    ("steps", nn.GRU(5, 7, batch_first=True), (rand(1, 3, 5),), "gru", "2.6", "wrong:unroll_gru"),
    ("one step in 2.2", nn.GRU(5, 7), (rand(1, 1, 5),), "gru", "2.2", "wrong:unroll_gru"),
]


@pytest.mark.parametrize("case", CONDITIONS, ids=lambda case: case[0])
def test_conditions(case: tuple[Any, ...]) -> None:
    _, call, inputs, op, runtime, expected = case
    finding = verdict_of(call, inputs, runtime, f"aten::{op}")
    rewrite = finding.row.rewrite if finding.row is not None else ""
    assert ":".join(filter(None, (finding.verdict, rewrite))) == expected


@pytest.mark.parametrize(("groups", "verdict"), [(1, "unknown"), (2, "wrong")])
def test_sizes_that_are_not_known_leave_open_what_depends_on_them(groups: int, verdict: str) -> None:
    program = program_of_call(nn.Conv2d(4, 8, 3, groups=groups), [rand(*X)])
    (node,) = program.methods["forward"].walk()
    assert judge(node, Target("vulkan", "2.6")).verdict == verdict


def bounds_of_adaptive_windows(size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts and ends as the kernel computes them, in single precision (glsl/adaptive_avg_pool2d.glsl)."""
    stride = torch.tensor(float(size)) / torch.tensor(float(count))
    kernel = torch.tensor(float(size)) - torch.tensor(float(count - 1)) * stride
    places = torch.arange(count, dtype=torch.float32) * stride
    return places.floor().long(), (places + kernel).ceil().long()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 16])
def test_windows_of_these_counts_are_exact_for_every_size(count: int) -> None:
    for size in range(1, 2049):
        index = torch.arange(count)
        starts, ends = bounds_of_adaptive_windows(size, count)
        assert torch.equal(starts, index * size // count)
        assert torch.equal(ends, -(-(index + 1) * size // count))


def test_windows_of_six_are_not() -> None:
    assert bounds_of_adaptive_windows(14, 6)[1].tolist() != [-(-(index + 1) * 14 // 6) for index in range(6)]
