"""PyTorch's own samples of its operators on the Vulkan runtime: none is wrong, and what is native stays native."""

import zlib
from typing import Any

import opinfo_judging
import pytest
import torch
from opinfo_judging import Outcome, Verdict, judge
from opinfo_page import SAMPLES
from opinfo_samples import dtypes_of, in_place_samples_of, operators, samples_of
from opinfo_verdicts import Judged, dtype_name, judge_all_dtypes, native_operators
from sampling import sampled

from mobopt.runtimes.vulkan.engine.device import Device

NATIVE = native_operators()
NAMES = sorted(NATIVE)
PARTS = 8
"""Tests that operators are divided among: reading the database takes a worker longer than a test does."""
FEW = [name for name in NAMES if zlib.crc32(name.encode()) % 24 == 0]
"""One in 24 of the operators, for the small run."""


def check(judged: Judged) -> list[str]:
    """What is wrong, crashed, or no longer native."""
    slower = [
        f"{judged.operator}({text}) of {judged.dtype} was native, now {outcome.verdict.name.lower()}: {outcome.reason}"
        for text, outcome in judged.outcomes
        if judged.dtype in NATIVE[judged.operator] and outcome.verdict in (Verdict.HOST, Verdict.REFUSED)
    ]
    return judged.failures() + slower


def test_every_operator_has_a_verdict() -> None:
    """Else run ``python tests/conformance/opinfo_page.py``: this PyTorch has other operators."""
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the verdicts are of PyTorch 2.13's operators")
    assert sorted(operators()) == NAMES


@pytest.mark.parametrize("part", sampled(range(PARTS), one_in=2))
def test_one_sample_of_some_operators(part: int, device: Device) -> None:
    """One of those that the whole run takes, of one dtype."""
    problems = []
    for name in FEW[part::PARTS]:
        number = zlib.crc32(name.encode())
        dtypes = dtypes_of(name) if name in operators() else []
        if not dtypes:
            continue
        dtype = dtypes[number // 3 % len(dtypes)]
        samples = samples_of(name, dtype, SAMPLES)
        if samples:
            sample = samples[number // 3 % len(samples)]
            problems += check(Judged(name, dtype_name(dtype), [(sample.text, judge(sample, device))]))
    assert not problems, "\n".join(problems)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_of_an_operator(name: str, device: Device) -> None:
    if name not in operators():
        pytest.skip("this PyTorch has no such operator")
    problems = [problem for judged in judge_all_dtypes(name, SAMPLES, device) for problem in check(judged)]
    assert not problems, "\n".join(problems)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_in_place(part: int, device: Device) -> None:
    problems = []
    for name in NAMES[part::PARTS]:
        for dtype in dtypes_of(name) if name in operators() else []:
            for sample in in_place_samples_of(name, dtype, 2):
                judged = Judged(f"{name}, in place", dtype_name(dtype), [(sample.text, judge(sample, device))])
                problems += judged.failures()
    assert not problems, "\n".join(problems)


def test_a_wrong_result_is_seen(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge judges: a runtime that gives other numbers, sizes or dtypes, or raises, is found out."""
    sample = samples_of("add", torch.float32, 4)[1]
    assert judge(sample, device) == Outcome(Verdict.NATIVE)
    real = opinfo_judging._run
    for spoil, verdict in (
        (lambda result: (result[0] * 1.001,), Verdict.WRONG),
        (lambda result: (result[0].double(),), Verdict.WRONG),
        (lambda result: (result[0][None],), Verdict.WRONG),
        (lambda result: result * 2, Verdict.WRONG),
        (lambda result: result[3], Verdict.CRASHED),
    ):

        def spoilt(*args: Any, spoil: Any = spoil) -> Any:
            result, report = real(*args)
            return spoil(result), report

        monkeypatch.setattr(opinfo_judging, "_run", spoilt)
        assert judge(sample, device).verdict == verdict
