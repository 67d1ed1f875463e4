"""What CPU builds of older releases lack, and what is written in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everywhere
from layer_cases import Layer, program_of_call
from pass_harness import assert_close, program_of
from target_cases import finding_on, findings, is_native, legalized_for

from mobopt.ops.targets import Target
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import REWRITTEN
from mobopt.runtimes.cpu import Interpreter

ATTENTION = "aten::scaled_dot_product_attention"


def r(*sizes: int) -> torch.Tensor:
    """Random numbers that are the same in every run."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes) + len(sizes)))


def heads(*batch: int, rows: int = 5, columns: int = 7, width: int = 3) -> tuple[torch.Tensor, ...]:
    """Query, key and value."""
    return r(*batch, rows, width), r(*batch, columns, width), r(*batch, columns, width + 2)


def grouped() -> tuple[torch.Tensor, ...]:
    """Six heads of queries for two of keys and values."""
    return r(2, 6, 5, 3), r(2, 2, 7, 3), r(2, 2, 7, 4)


MASK = torch.ones(5, 7, dtype=torch.bool).tril(1)
DEAD = torch.ones(5, 7, dtype=torch.bool).triu(4)
"""Its last rows are False."""
FLOATS = torch.zeros(5, 7).masked_fill(~DEAD, -torch.inf) + r(5, 7)
CALLS: list[tuple[str, dict[str, Any], tuple[torch.Tensor, ...]]] = [
    ("plain", {}, heads(2, 3)),
    ("matrices", {}, heads()),
    ("one batch", {}, heads(11)),
    ("causal", {"is_causal": True}, heads(2)),
    ("causal upwards", {"is_causal": True}, heads(2, rows=7, columns=5)),
    ("scaled", {"scale": 0.3}, heads(2)),
    ("mask", {"attn_mask": MASK}, heads(2, 3)),
    ("mask of dead rows", {"attn_mask": DEAD}, heads(2, 3)),
    ("mask of floats", {"attn_mask": FLOATS}, heads(2, 3)),
    ("groups", {"enable_gqa": True}, grouped()),
    ("causal groups", {"enable_gqa": True, "is_causal": True, "scale": 2.0}, grouped()),
]


@pytest.mark.parametrize("case", CALLS, ids=lambda case: str(case[0]))
@pytest.mark.parametrize("level", ["safe", "full"])
def test_attention_before_it_came(case: tuple[str, dict[str, Any], tuple[torch.Tensor, ...]], level: str) -> None:
    """Every argument, with eager's numbers."""
    _, settings, inputs = case

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, **settings)

    target = Target("cpu", "1.13")
    assert finding_on(call, inputs, target, ATTENTION).verdict == "missing"
    program, _ = legalized_for(target, call, inputs, level)
    assert is_native(program, inputs, target)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_attention_with_a_computed_mask(dtype: torch.dtype) -> None:
    """A mask that comes with the inputs."""
    mask = DEAD if dtype == torch.bool else FLOATS
    inputs = (*heads(2, 3), mask)
    program, _ = legalized_for(Target("cpu", "1.13"), F.scaled_dot_product_attention, inputs)
    assert is_native(program, inputs, Target("cpu", "1.13"))


def test_attention_holds_for_other_sizes_and_without_examples() -> None:
    """Numbers of rows, columns and heads are asked for when the model runs."""

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    other = r(1, 4, 3, 3), r(1, 1, 11, 3), r(1, 1, 11, 2)
    program = program_of_call(call, grouped())
    run_passes(program, [Legalize(Target("cpu", "2.0"))], check=True)
    assert ATTENTION not in [node.op for node in program.methods["forward"].walk()]
    assert_close(Interpreter(program).run("forward", list(other)), Layer(call)(*other))


@pytest.mark.parametrize(
    ("settings", "reason"), [({"dropout_p": 0.3}, "at random"), ({"is_causal": True}, "causal and has a mask")]
)
def test_attention_that_stays(settings: dict[str, Any], reason: str) -> None:
    """What can't be written otherwise is named."""
    graph = """
graph(%self, %q : Tensor, %m : Tensor):
  %y : Tensor = aten::scaled_dot_product_attention(%q, %q, %q, %m, %dropout_p, %is_causal, %none, %no)
  return (%y)
"""
    values = {"dropout_p": 0.0, "is_causal": False, **settings}
    text = graph.lstrip().replace(
        "  %y",
        f"  %dropout_p : float = prim::Constant[value={values['dropout_p']}]()\n"
        f"  %is_causal : bool = prim::Constant[value={int(values['is_causal'])}]()\n"
        "  %none : NoneType = prim::Constant()\n  %no : bool = prim::Constant[value=0]()\n  %y",
        1,
    )
    program = program_of(text)
    (run,) = run_passes(program, [Legalize(Target("cpu", "1.13"))], check=True)
    assert any(reason in str(note) for note in run.result.notes), run.result.notes


@pytest.mark.parametrize(
    ("settings", "runtime", "verdict"),
    [
        ({}, "1.13", "missing"),
        ({}, "2.0", "native"),
        ({"scale": 1.0}, "2.0", "missing"),
        ({"scale": 1.0}, "2.1", "native"),
        ({"enable_gqa": True}, "2.2", "missing"),
        ({"enable_gqa": True}, "2.6", "native"),
    ],
)
def test_arguments_came_later(settings: dict[str, Any], runtime: str, verdict: str) -> None:
    """Attention came with 2.0, its scale with 2.1, its groups after 2.2."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*tensors, **settings)

    assert finding_on(call, heads(2, 3), Target("cpu", runtime), ATTENTION).verdict == verdict


OPERATORS: list[tuple[str, Any, tuple[torch.Tensor, ...], str, str]] = [
    ("squeeze", lambda x: torch.squeeze(x, (1, 3)), (r(3, 1, 5, 1),), "1.13", "2.0"),
    ("squeeze from behind", lambda x: torch.squeeze(x, (-3, -1)), (r(3, 1, 5, 1),), "1.13", "2.0"),
    ("squeeze some", lambda x: torch.squeeze(x, (-1, 0, 1)), (r(3, 1, 5, 1),), "1.13", "2.0"),
    ("any", lambda x: torch.any(x > 1, (0, 2)).float(), (r(3, 5, 7),), "2.1", "2.2"),
    ("all", lambda x: torch.all(x > -1, (-1, -2), keepdim=True).float(), (r(3, 5, 7),), "2.1", "2.2"),
    ("index", lambda x: torch.ops.aten._unsafe_index(x, [None, INDEX]), (r(3, 5),), "2.0", "2.1"),
    ("rms norm", lambda x: F.rms_norm(x, [7], SCALE, 1e-4), (r(3, 5, 7),), "2.2", "2.6"),
    ("rms norm alone", lambda x: F.rms_norm(x, [5, 7]), (r(3, 5, 7),), "2.2", "2.6"),
    ("softmax", lambda x: torch.ops.aten._safe_softmax(x, 1), (FLOATS,), "2.2", "2.6"),
    (
        "batch norm",
        lambda x: torch.ops.aten._native_batch_norm_legit_no_training(x, SCALE, SCALE, SCALE, SCALE.abs(), 0.1, 0.1)[0],
        (r(2, 7, 3, 5),),
        "2.0",
        "2.1",
    ),
]
INDEX = torch.tensor([4, 0, 1])
SCALE = r(7)


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: str(case[0]))
def test_operators_before_they_came(case: tuple[str, Any, Sequence[torch.Tensor], str, str]) -> None:
    """The last release without an operator has it written otherwise, the first with it has it as it is."""
    _, call, inputs, without, first = case
    program, notes = legalized_for(Target("cpu", without), call, inputs)
    assert any(note.kind is REWRITTEN for note in notes)
    assert is_native(program, inputs, Target("cpu", without))
    _, notes = legalized_for(Target("cpu", first), call, inputs)
    assert not notes


def test_what_came_after_every_release_is_named() -> None:
    """No release has it, and the reason is said."""
    inputs = r(2, 3, 9, 7)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._upsample_lanczos2d_aa(x, [5, 5], False)

    found = findings(program_of_call(call, (inputs,)), (inputs,), Target("cpu", "2.6"))
    assert [(finding.verdict, finding.why) for _, finding in found] == [
        ("missing", "the operator came with PyTorch 2.12")
    ]


@pytest.mark.parametrize(("correction", "verdict"), [(1, "native"), (0.5, "missing")])
def test_corrections_are_whole(correction: float, verdict: str) -> None:
    """1.13's overload takes an integer."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.var(x, 1, correction=correction)

    assert finding_on(call, (r(3, 5),), Target("cpu", "1.13"), "aten::var.correction").verdict == verdict
    assert finding_on(call, (r(3, 5),), Target("cpu", "2.0"), "aten::var.correction").verdict == "native"
