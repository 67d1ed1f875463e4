"""Rewrites of layers for PyTorch's Vulkan runtimes: numbers against eager at odd sizes, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from layer_cases import legalized, operators_of, program_of_call
from pass_harness import assert_close, body_of, randomize_norms
from sampling import sampled
from torch import nn
from torch.nn import functional

from mobopt.ops.targets import Target
from mobopt.ops.targets.table import all_rows
from mobopt.passes.facts import Examples
from mobopt.passes.legalizations.site import rewrites
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import WOULD_FIX_SIZES
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter

MODULES = (
    "convolutions",
    "groups",
    "dilation",
    "normalization",
    "padding",
    "pooling",
    "products",
    "recurrent",
    "resampling",
    "shuffling",
)
"""Modules of the package of legalisations whose rewrites are tried here."""
RELEASES = ("1.13", "2.1", "2.6")
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def rand(*sizes: int) -> torch.Tensor:
    """The same numbers for the same sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def negative(*sizes: int) -> torch.Tensor:
    """Elements below zero, which a padding of zeros would beat."""
    return -rand(*sizes).abs() - 0.1


def with_constants(call: Callable[..., Any], *constants: torch.Tensor) -> Callable[..., Any]:
    """A call whose last arguments are constants."""
    return lambda *inputs: call(*inputs, *constants)


def _normed(module: nn.Module) -> nn.Module:
    return randomize_norms(module)


X = (1, 6, 7, 5)
BATCH = (3, 6, 7, 5)
LINE = (3, 6, 11)

CONVOLUTIONS: dict[str, Case] = {
    "groups": (nn.Conv2d(16, 8, 3, stride=2, padding=1, groups=8), (rand(1, 16, 7, 11),)),
    "groups without bias": (nn.Conv2d(20, 15, (3, 5), groups=5, bias=False), (rand(1, 20, 7, 11),)),
    "depth multiplier": (nn.Conv2d(6, 18, 3, padding=1, groups=6), (rand(*X),)),
    "dilation and padding": (nn.Conv2d(6, 5, 3, dilation=2, padding=2), (rand(*X),)),
    "depthwise dilation and padding": (nn.Conv2d(6, 6, 3, dilation=(1, 2), padding=(2, 1), groups=6), (rand(*X),)),
    "dilation beyond the image": (nn.Conv2d(64, 5, 3, dilation=12, padding=12), (rand(1, 64, 7, 11),)),
    "padded 1x1": (nn.Conv2d(6, 5, 1, padding=1, stride=2), (rand(*X),)),
    "batch": (nn.Conv2d(6, 5, 3, padding=1), (rand(*BATCH),)),
    "no batch": (torch.jit.script(nn.Conv2d(6, 5, 3)), (rand(6, 7, 5),)),
    "same, even kernel": (nn.Conv2d(6, 5, 4, padding="same"), (rand(*X),)),
    "all at once": (nn.Conv2d(12, 9, 3, groups=3, dilation=2, padding=(1, 2)), (rand(2, 12, 7, 11),)),
    "1-d": (nn.Conv1d(6, 5, 3, padding=1), (rand(1, 6, 11),)),
    "1-d batch": (nn.Conv1d(6, 4, 3, padding=1, groups=2, stride=2, dilation=2), (rand(*LINE),)),
    "1-d without bias": (nn.Conv1d(6, 5, 3, bias=False), (rand(*LINE),)),
    "transposed groups": (nn.ConvTranspose2d(10, 15, 3, stride=2, padding=1, groups=5), (rand(1, 10, 7, 5),)),
    "transposed dilation": (nn.ConvTranspose2d(6, 5, (3, 2), stride=2, dilation=(1, 3), bias=False), (rand(*X),)),
    "transposed batch": (nn.ConvTranspose2d(6, 5, 3, stride=2, output_padding=1), (rand(*BATCH),)),
    "transposed, dilated, more output": (
        nn.ConvTranspose2d(6, 5, 3, stride=(1, 3), dilation=(2, 1), output_padding=(1, 2), padding=1),
        (rand(*X),),
    ),
    "transposed 1-d": (nn.ConvTranspose1d(6, 5, 3, stride=2, padding=1, output_padding=1), (rand(*LINE),)),
    "transposed, all at once": (nn.ConvTranspose2d(6, 6, 3, 2, groups=6, dilation=(2, 1)), (rand(*BATCH),)),
}

PRODUCTS: dict[str, Case] = {
    "linear of a vector": (nn.Linear(5, 3), (rand(5),)),
    "linear of a row": (nn.Linear(5, 3), (rand(1, 5),)),
    "linear of rows": (nn.Linear(5, 3), (rand(7, 5),)),
    "linear of 3 dimensions": (nn.Linear(5, 3), (rand(2, 7, 5),)),
    "linear of 4 dimensions": (nn.Linear(5, 3, bias=False), (rand(2, 3, 7, 5),)),
    "linear of many rows": (nn.Linear(5, 3), (rand(2, 53, 23, 5),)),
    "linear of many rows of a batch": (nn.Linear(5, 3), (rand(3, 701, 5),)),
    "linear with a computed weight": (functional.linear, (rand(7, 5), rand(3, 5), rand(3))),
    "addmm with factors": (
        with_constants(lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=3), rand(3), rand(5, 3)),
        (rand(7, 5),),
    ),
    "mm with a constant": (with_constants(torch.mm, rand(5, 3)), (rand(7, 5),)),
    "mm": (torch.mm, (rand(7, 5), rand(5, 3))),
    "bmm": (torch.bmm, (rand(2, 7, 5), rand(2, 5, 3))),
    "baddbmm": (
        lambda b, x, y: torch.baddbmm(b, x, y, beta=2, alpha=0.5),
        (rand(2, 1, 3), rand(2, 7, 5), rand(2, 5, 3)),
    ),
    "matmul of 3 dimensions": (torch.matmul, (rand(2, 7, 5), rand(2, 5, 3))),
    "matmul of 4 dimensions": (torch.matmul, (rand(2, 3, 7, 5), rand(2, 3, 5, 11))),
    "matmul of 4 and 2 dimensions": (torch.matmul, (rand(2, 3, 7, 5), rand(5, 11))),
    "matmul with a vector": (torch.matmul, (rand(7, 5), rand(5))),
    "attention": (functional.scaled_dot_product_attention, (rand(2, 3, 7, 5), rand(2, 3, 11, 5), rand(2, 3, 11, 5))),
    "attention with a mask": (
        with_constants(functional.scaled_dot_product_attention, rand(7, 11) > -1),
        (rand(1, 3, 7, 5), rand(1, 3, 11, 5), rand(1, 3, 11, 5)),
    ),
    "causal attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (rand(2, 7, 5), rand(2, 7, 5), rand(2, 7, 5)),
    ),
}

NORMS: dict[str, Case] = {
    "batch, 6 channels": (_normed(nn.BatchNorm2d(6)), (rand(*BATCH),)),
    "batch without weights": (_normed(nn.BatchNorm2d(8, affine=False)), (rand(2, 8, 3, 5),)),
    "batch of 3 dimensions": (_normed(nn.BatchNorm1d(6)), (rand(*LINE),)),
    "batch of 2 dimensions": (_normed(nn.BatchNorm1d(6)), (rand(3, 6),)),
    "layer": (nn.LayerNorm(5), (rand(*X),)),
    "layer without weights": (nn.LayerNorm(5, elementwise_affine=False), (rand(*X),)),
    "layer of 2 dimensions": (nn.LayerNorm([7, 5]), (rand(*X),)),
    "layer of an image": (nn.LayerNorm([6, 7, 5]), (rand(*X),)),
    "layer of images": (nn.LayerNorm([6, 7, 5]), (rand(*BATCH),)),
    "layer of an image without weights": (nn.LayerNorm([6, 7, 5], elementwise_affine=False), (rand(*X),)),
    "layer with three results": (
        with_constants(lambda x, w, b: torch.native_layer_norm(x, [5], w, b, 1e-5)[0], rand(5), rand(5)),
        (rand(*X),),
    ),
    "root mean square": (with_constants(lambda x, w: functional.rms_norm(x, [5], w), rand(5)), (rand(*X),)),
    "group": (nn.GroupNorm(3, 6), (rand(*BATCH),)),
    "group of lines": (nn.GroupNorm(3, 6, affine=False), (rand(*LINE),)),
    "instance": (nn.InstanceNorm2d(6, affine=True), (rand(*BATCH),)),
    "instance of lines": (nn.InstanceNorm1d(6), (rand(*LINE),)),
    "instance with statistics": (nn.InstanceNorm2d(6, track_running_stats=True), (rand(*X),)),
}

POOLS: dict[str, Case] = {
    "max, padded": (nn.MaxPool2d(3, 2, 1), (negative(*X),)),
    "max, padded in one direction": (nn.MaxPool2d((3, 2), (2, 1), (1, 0)), (negative(*BATCH),)),
    "max, ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), (negative(3, 6, 8, 11),)),
    "max, ceil and padded": (nn.MaxPool2d(5, 2, 2, ceil_mode=True), (negative(1, 3, 8, 11),)),
    "max, ceil of a large stride": (nn.MaxPool2d(2, 3, 1, ceil_mode=True), (negative(1, 3, 8, 13),)),
    "max, dilated and padded": (nn.MaxPool2d(2, 1, 1, dilation=2), (negative(*X),)),
    "average of more than the image": (nn.AvgPool2d(101, ceil_mode=True), (rand(2, 6, 3, 5),)),
    "max, dilated and ceil": (nn.MaxPool2d(3, 2, 1, dilation=2, ceil_mode=True), (negative(1, 3, 11, 8),)),
    "max, dilated and ceil of a large stride": (nn.MaxPool2d(2, 3, 1, 2, ceil_mode=True), (negative(1, 3, 11, 13),)),
    "max of an image": (nn.MaxPool2d(2), (rand(6, 7, 5),)),
    "max, 1-d": (nn.MaxPool1d(3, 2, 1), (negative(*LINE),)),
    "max, 1-d without batch": (nn.MaxPool1d(2), (negative(6, 11),)),
    "average of nearly the image": (nn.AvgPool2d(67, ceil_mode=True), (rand(1, 3, 71, 133),)),
    "average, ceil": (nn.AvgPool2d(3, 2, ceil_mode=True), (rand(1, 6, 8, 11),)),
    "average, ceil and padded": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (rand(3, 6, 8, 11),)),
    "average, ceil, without padding": (nn.AvgPool2d(3, 2, 1, True, count_include_pad=False), (rand(3, 6, 8, 11),)),
    "average, ceil of a large stride": (nn.AvgPool2d(2, 3, 1, ceil_mode=True), (rand(2, 3, 8, 7),)),
    "average without padding": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (rand(*X),)),
    "average with divisor": (nn.AvgPool2d(3, 2, 1, divisor_override=5), (rand(*X),)),
    "average with divisor, ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5), (rand(1, 6, 8, 11),)),
    "average, 1-d": (nn.AvgPool1d(3, 2, 1), (rand(*LINE),)),
    "average, 1-d without padding": (nn.AvgPool1d(3, padding=1, count_include_pad=False), (rand(*LINE),)),
    "adaptive, rounded": (nn.AdaptiveAvgPool2d((6, 4)), (rand(1, 3, 14, 7),)),
    "adaptive of an image": (nn.AdaptiveAvgPool2d((2, 3)), (rand(3, 11, 7),)),
    "adaptive, 1-d": (nn.AdaptiveAvgPool1d(4), (rand(*LINE),)),
    "adaptive max": (nn.AdaptiveMaxPool2d((3, 2)), (negative(*BATCH),)),
    "adaptive max that divides": (nn.AdaptiveMaxPool2d((7, 1)), (negative(*BATCH),)),
    "max with places": (lambda x: torch._C._nn.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[0], (negative(*X),)),
}

SIZES: dict[str, Case] = {
    name: (lambda x, arguments=arguments: functional.interpolate(x, **arguments), (rand(*sizes),))
    for name, sizes, arguments in [
        ("bilinear", X, {"scale_factor": 2, "mode": "bilinear"}),
        ("bilinear by factors", BATCH, {"scale_factor": (1.7, 0.6), "mode": "bilinear"}),
        ("bilinear corners", BATCH, {"size": [11, 4], "mode": "bilinear", "align_corners": True}),
        ("bilinear corners of one row", X, {"size": [1, 4], "mode": "bilinear", "align_corners": True}),
        ("bicubic", X, {"scale_factor": (1.7, 2.3), "mode": "bicubic"}),
        ("antialias", X, {"size": [3, 9], "mode": "bilinear", "antialias": True}),
        ("bicubic antialias", X, {"size": [3, 4], "mode": "bicubic", "antialias": True}),
        ("nearest exact", X, {"size": [9, 4], "mode": "nearest-exact"}),
        ("nearest, 1-d", LINE, {"scale_factor": 1.6}),
        ("nearest, 1-d to size", LINE, {"size": 17}),
        ("linear", LINE, {"scale_factor": 1.6, "mode": "linear"}),
        ("linear corners", LINE, {"size": 7, "mode": "linear", "align_corners": True}),
    ]
}
SIZES |= {
    "bilinear, other overload": (lambda x: torch._C._nn.upsample_bilinear2d(x, [9, 11], False, 1.3, 2.2), (rand(*X),)),
    "nearest, 1-d, other overload": (lambda x: torch._C._nn.upsample_nearest1d(x, [17], 1.55), (rand(*LINE),)),
}

PADDINGS: dict[str, Case] = {
    "zeros": (nn.ZeroPad2d((1, 2, 3, 0)), (rand(*X),)),
    "zeros of a batch": (nn.ZeroPad2d((2, 2, 0, 1)), (rand(*BATCH),)),
    "zeros around lines": (lambda x: functional.pad(x, (1, 2)), (rand(*LINE),)),
    "zeros around channels": (lambda x: functional.pad(x, (1, 2, 0, 0, 2, 1)), (rand(*BATCH),)),
    "a number": (nn.ConstantPad2d((1, 2, 3, 0), 0.5), (rand(*X),)),
    "cut off": (nn.ConstantPad2d((1, -2, -3, 2), 0.5), (rand(*BATCH),)),
    "reflection of an image": (nn.ReflectionPad2d((1, 2, 3, 0)), (rand(6, 7, 5),)),
    "reflection, 1-d": (nn.ReflectionPad1d((2, 1)), (rand(*LINE),)),
    "replication, 1-d without batch": (nn.ReplicationPad1d((2, 1)), (rand(6, 11),)),
    "circular": (lambda x: functional.pad(x, (1, 2, 3, 0), mode="circular"), (rand(*X),)),
    "reflect, 1-d": (lambda x: functional.pad(x, (1, 2), mode="reflect"), (rand(*LINE),)),
}

MOVES: dict[str, Case] = {
    "pixel shuffle": (nn.PixelShuffle(3), (rand(1, 18, 5, 7),)),
    "pixel unshuffle": (nn.PixelUnshuffle(2), (rand(1, 3, 10, 14),)),
    "channel shuffle": (nn.ChannelShuffle(3), (rand(*X),)),
    "channel shuffle of a batch": (nn.ChannelShuffle(3), (rand(*BATCH),)),
    "gate of channels": (nn.GLU(1), (rand(*X),)),
    "gate of the last dimension": (nn.GLU(), (rand(3, 7, 10),)),
}

RECURRENT: dict[str, Case] = {
    "lstm": (nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True), (rand(2, 3, 5),)),
    "lstm without bias": (nn.LSTM(5, 7, bias=False), (rand(4, 1, 5),)),
    "gru": (nn.GRU(5, 7, 2, bidirectional=True), (rand(3, 2, 5),)),
    "gru with a state": (nn.GRU(5, 7, batch_first=True), (rand(2, 3, 5), rand(1, 2, 7))),
}

ALL = {
    f"{kind}: {name}": case
    for kind, cases in [
        ("convolution", CONVOLUTIONS),
        ("product", PRODUCTS),
        ("norm", NORMS),
        ("pool", POOLS),
        ("size", SIZES),
        ("padding", PADDINGS),
        ("move", MOVES),
        ("recurrent", RECURRENT),
    ]
    for name, case in cases.items()
}


@cache
def notes_of(name: str, runtime: str) -> tuple[Note, ...]:
    """What legalisation says of a case, whose numbers are checked."""
    call, inputs = ALL[name]
    return tuple(legalized(call, inputs, runtime)[1])


@pytest.mark.parametrize(("name", "runtime"), sampled(product(ALL, RELEASES), one_in=2))
def test_numbers_are_those_of_eager(name: str, runtime: str) -> None:
    notes_of(name, runtime)


def test_every_rewrite_is_tried_here_and_named_by_a_row() -> None:
    named = {name for row in all_rows("vulkan") for name in (row.rewrite, row.rewrite_for_sizes)}
    ours = {name for name, item in rewrites().items() if item.apply.__module__.rpartition(".")[2] in MODULES}
    tried = {note.rewrite for name in ALL for runtime in RELEASES for note in notes_of(name, runtime)}
    assert ours <= named
    assert ours - tried == set()


@pytest.mark.parametrize(
    "name",
    [
        "convolution: groups",
        "convolution: depth multiplier",
        "convolution: 1-d batch",
        "convolution: transposed groups",
        "product: linear of rows",
        "product: linear of 3 dimensions",
        "norm: instance",
        "pool: max, padded",
        "pool: max, ceil",
        "pool: average, ceil and padded",
        "padding: zeros",
        "padding: cut off",
        "move: pixel shuffle",
    ],
)
def test_safe_rewrites_do_for_other_sizes(name: str) -> None:
    call, (x,) = ALL[name]
    program, _ = legalized(call, (x,), "2.6", "safe")
    other = torch.cat([x, x], -1)[..., :-1] if name[:7] != "product" else torch.cat([x, x], -2)[..., :-1, :]
    with torch.no_grad():
        assert_close(Interpreter(program).run("forward", [other]), call(other))


@pytest.mark.parametrize("name", ["convolution: batch", "pool: adaptive max", "recurrent: lstm", "size: bicubic"])
def test_rewrites_that_fix_sizes_wait_for_the_full_level(name: str) -> None:
    call, inputs = ALL[name]
    _, notes = legalized(call, inputs, "2.6", "safe")
    assert any(note.kind is WOULD_FIX_SIZES and "--legalize full does it" in note.message for note in notes)


@pytest.mark.parametrize(
    ("call", "inputs", "reason"),
    [
        (torch.matmul, (rand(2, 7, 5), rand(3, 2, 5, 7)), "its operands have different batches"),
        (torch.matmul, (rand(2, 3, 7, 5), rand(5)), "a vector with a batch"),
        (nn.AdaptiveMaxPool2d(2, return_indices=True), (rand(*X),), "the places of the maxima are used"),
        (nn.LSTM(5, 7, proj_size=3), (rand(2, 3, 5),), "it projects its hidden state"),
        (nn.GRU(5, 7), (rand(17, 1, 5),), "at most 16 are unrolled"),
        (nn.PixelShuffle(8), (rand(1, 1280, 2, 3),), "too large a weight"),
        (lambda x: functional.pad(x, (1, 1) * 3, mode="replicate"), (rand(1, 2, 3, 5),), "no other form"),
        (
            functional.scaled_dot_product_attention,
            (rand(1, 3, 7, 5), rand(1, 3, 11, 5), rand(1, 3, 11, 5), rand(7, 11)),
            "may hide every key",
        ),
        (
            with_constants(functional.scaled_dot_product_attention, torch.ones(7, 11).tril(-1) > 0),
            (rand(1, 3, 7, 5), rand(1, 3, 11, 5), rand(1, 3, 11, 5)),
            "hides every key",
        ),
        (
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
            (rand(2, 7, 5), rand(2, 7, 5), rand(2, 7, 5)),
            "it drops weights at random",
        ),
    ],
)
def test_what_cannot_be_rewritten_stays_and_says_why(call: Any, inputs: Any, reason: str) -> None:
    program = program_of_call(call, inputs)
    before = body_of(program)
    item = Legalize(Target("vulkan", "2.6"), "full", Examples({"forward": inputs}))
    (run,) = run_passes(program, [item], check=True)
    assert any(reason in note.message for note in run.result.notes if not note.done)
    assert body_of(program) == before


@pytest.mark.parametrize(
    ("call", "inputs", "reason"),
    [
        (nn.GroupNorm(67, 67), (rand(1, 67, 2, 3),), "more than 64 one by one are slow"),
        (nn.GroupNorm(1, 8), (rand(1, 8, 256, 257),), "its groups of 526336 elements are slow"),
    ],
)
def test_many_or_large_groups_stay_before_2_6(call: nn.Module, inputs: Any, reason: str) -> None:
    _, notes = legalized(call, inputs, "2.2")
    assert any(reason in note.message for note in notes if not note.done)


def becomes(call: Callable[..., Any], inputs: Sequence[torch.Tensor], runtime: str) -> list[str]:
    """The operators after legalisation, without namespace."""
    return [op.removeprefix("aten::") for op in operators_of(legalized(call, inputs, runtime)[0])]


def test_groups_become_slices_convolutions_and_a_join() -> None:
    wide = nn.Conv2d(128, 128, 3, groups=2)
    assert becomes(wide, [rand(1, 128, 29, 31)], "2.6") == ["slice", "conv2d"] * 2 + ["cat"]
    odd = nn.Conv2d(128, 130, 3, groups=2)  # the second part begins within four channels
    assert becomes(odd, [rand(1, 128, 29, 31)], "2.1") == ["slice", "conv2d"] * 2 + ["slice"] * 2 + ["cat"]


@pytest.mark.parametrize(
    ("runtime", "size", "convolutions"), [("2.6", 3, 3), ("2.6", 14, 9), ("2.6", 61, 26), ("1.13", 3, 4)]
)
def test_narrow_groups_go_together_where_operators_cost_more_than_zeros(
    runtime: str, size: int, convolutions: int
) -> None:
    layer, x = nn.Conv2d(208, 208, 3, padding=1, groups=26), rand(1, 208, size, size)
    program, notes = legalized(layer, [x], runtime)
    assert operators_of(program).count("aten::conv2d") == convolutions
    (note,) = [note for note in notes if note.rewrite == "split_groups"]
    assert f"26 groups in {convolutions} convolutions, about" in note.message


def test_the_parts_of_groups_may_differ_in_size() -> None:
    layer = nn.Conv2d(56, 28, 3, padding=1, groups=7)
    program, _ = legalized(layer, [rand(1, 56, 29, 29)], "2.6")
    weights = [node.inputs[1].constant for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert [tuple(weight.shape[:2]) for weight in weights] == [(8, 16)] * 3 + [(4, 8)]
    assert not weights[0][:4, 8:].any(), "zeros beside the group's own weights"


@pytest.mark.parametrize("groups", [1, 64])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("dilation", "size"), [(36, 29), (24, 29), (12, 13), (13, 13), (14, 13)])
@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_taps_that_read_only_padding_are_dropped(
    runtime: str, dilation: int, size: int, stride: int, groups: int
) -> None:
    layer = nn.Conv2d(64, 64, 3, stride, dilation, dilation, groups)
    program, notes = legalized(layer, [rand(1, 64, size, size + 2)], runtime)
    nodes = [node for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    inside = [note for note in notes if note.rewrite == "convolve_inside"]
    if dilation > size + 2:
        (node,) = nodes
        assert node.inputs[1].constant.shape[2:] == (1, 1)
        assert "padding would take" in inside[0].message
    assert inside or any("padding takes about" in note.message for note in notes)
    taps = sum(node.inputs[1].constant.shape[2:].numel() for node in nodes if node.inputs[1].constant.shape[1] == 64)
    assert taps <= 2 * 9, "the file has at most twice the weights"


def test_a_dilated_layer_of_many_channels_becomes_a_sum_of_taps() -> None:
    layer = nn.Conv2d(512, 128, 3, padding=12, dilation=12)
    program, notes = legalized(layer, [rand(1, 512, 28, 31)], "2.6")
    weights = [node.inputs[1].constant for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert sum(weight.shape == (128, 512, 1, 1) for weight in weights) == 9, "as many weights as the layer has"
    assert notes[0].rewrite == "convolve_inside"
    assert "9 taps, about" in notes[0].message


@pytest.mark.parametrize("pad", [(0, 5, 0, 0), (7, 1, 2, 2), (0, 24, 24, 0), (3, 3, 9, 1)])
def test_uneven_padding_is_even_padding_cut_off(pad: tuple[int, ...]) -> None:
    program, _ = legalized(lambda x: functional.pad(x, pad), [rand(1, 5, 7, 9)], "1.13")
    (convolution, *_) = [node for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert convolution.inputs[1].constant.shape == (5, 1, 1, 1)
    assert "aten::slice" in operators_of(program)


def test_a_dilated_layer_for_sizes_that_are_guessed_stays_right_for_all() -> None:
    layer, x = nn.Conv2d(64, 64, 3, padding=36, dilation=36), rand(1, 64, 29, 29)
    for level, guessed in (("safe", False), ("full", True)):
        program = program_of_call(layer, [x])
        run_passes(program, [Legalize(Target("vulkan", "2.6"), level, Examples({"forward": [x]}, guessed))])
        larger = rand(1, 64, 41, 43)
        assert_close(Interpreter(program).run("forward", [larger]), layer(larger))


def test_a_depth_multiplier_becomes_two_convolutions() -> None:
    assert becomes(nn.Conv2d(5, 15, 3, groups=5), [rand(1, 5, 7, 7)], "1.13") == ["conv2d", "conv2d"]


def test_padding_and_dilation_become_two_convolutions_of_one_sample() -> None:
    program, _ = legalized(nn.Conv2d(6, 5, 3, dilation=2, padding=2), [rand(*X)], "1.13")
    convolutions = [node for node in program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert [node.inputs[4].constant for node in convolutions] == [[2, 2], [0, 0]]
    assert [node.inputs[6].constant for node in convolutions] == [6, 1]


def test_padded_max_pooling_becomes_replication_and_pooling() -> None:
    assert becomes(nn.MaxPool2d(3, 2, 1), [negative(*X)], "2.6") == ["replication_pad2d", "max_pool2d"]


def test_a_bias_is_added_after_a_linear_layer_of_several_rows() -> None:
    assert becomes(nn.Linear(5, 3), [rand(7, 5)], "2.2") == ["linear", "add"]
    assert becomes(nn.Linear(5, 3), [rand(7, 5)], "2.6") == ["linear"]
    assert becomes(nn.Linear(5, 3), [rand(1, 5)], "1.13") == ["linear"]


def test_a_batch_is_split_by_samples_or_by_channels() -> None:
    call, inputs = CONVOLUTIONS["batch"]
    assert becomes(call, inputs, "2.6") == ["slice"] * 3 + ["conv2d"] * 3 + ["cat"]
    parts = (
        ["slice"] * 3 + ["conv2d"] * 3 + ["slice"] * 4
    )  # two results of 5 channels are divided before they are joined
    assert becomes(call, inputs, "1.13") == ["reshape", *parts, "cat", "reshape"]


@pytest.mark.parametrize(
    "kernel, stride, sizes",
    [
        (2560, None, (1, 3, 5, 7)),
        (101, None, (2, 3, 103, 13)),
        (101, None, (1, 3, 101, 211)),
        ((67, 101), (31, 101), (1, 3, 103, 211)),
        ((67, 101), (31, 97), (1, 3, 41, 11)),
    ],
)
def test_windows_that_images_of_unknown_sizes_may_not_fill(kernel: Any, stride: Any, sizes: tuple[int, ...]) -> None:
    """Of 2560 x 2560, as transformers' EfficientNet has them, zeros behind the image took 67 GB."""
    module = nn.AvgPool2d(kernel, stride, ceil_mode=True)
    program = program_of_call(module, [rand(*sizes)])
    (run,) = run_passes(program, [Legalize(Target("vulkan", "2.6"), "full", Examples({}))], check=True)
    assert [note.rewrite for note in run.result.notes][:1] == ["average_within_image"]
    assert_close(Interpreter(program).run("forward", [rand(*sizes)]), module(rand(*sizes)))
