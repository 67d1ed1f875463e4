"""Node cases of onnx.backend.test: none is wrong, and what is native stays native. A sweep takes all."""

from __future__ import annotations

import random
from typing import Any

import onnx_judging
import pytest
from onnx_children import judged_in_children
from onnx_judging import Outcome, Verdict, case_modules, cases_of, judge
from onnx_page import native_cases

from mobopt.runtimes.vulkan.engine.device import Device

_MODULES, _CASES, _ON_DEVICE = 14, 40, 8
NATIVE = native_cases()
LEAST_NATIVE, LEAST_RIGHT = 1_100, 1_700
"""Of all cases."""


def sample() -> list[Any]:
    """Cases of some modules, the same in each run."""
    chooser = random.Random(7)
    cases = cases_of(chooser.sample(case_modules(), _MODULES))
    cases.sort(key=lambda case: str(case.name))
    return chooser.sample(cases, min(_CASES, len(cases)))


def named(name: str) -> Any:
    """One case."""
    return next(case for case in cases_of(["add"]) if case.name == name)


def test_the_bar_is_kept() -> None:
    assert len(NATIVE) == len(set(NATIVE)) >= LEAST_NATIVE


def test_a_sample_is_right_on_the_cpu() -> None:
    outcomes = {case.name: judge(case, "CPU") for case in sample()}
    assert {name: each for name, each in outcomes.items() if each.verdict >= Verdict.WRONG} == {}
    assert sum(each.verdict == Verdict.HOST for each in outcomes.values()) >= 0.8 * len(outcomes)


def test_a_sample_stays_native(device: Device) -> None:
    chosen = [case for case in sample() if case.name in set(NATIVE)][:_ON_DEVICE]
    assert len(chosen) == _ON_DEVICE
    outcomes = {case.name: judge(case, "VULKAN") for case in chosen}
    assert {name: each for name, each in outcomes.items() if each.verdict != Verdict.NATIVE} == {}


@pytest.mark.sweep
def test_every_case(device: Device) -> None:
    outcomes = dict(judged_in_children("VULKAN", 2))
    assert {name: each for name, each in outcomes.items() if each.verdict >= Verdict.WRONG} == {}
    assert {name: outcomes[name] for name in NATIVE if outcomes[name].verdict != Verdict.NATIVE} == {}
    assert sum(each.verdict <= Verdict.HOST for each in outcomes.values()) >= LEAST_RIGHT
    assert all(each.reason for each in outcomes.values() if each.verdict != Verdict.NATIVE)


@pytest.mark.parametrize(
    "spoil", [lambda items: [items[0] * 1.01], lambda items: [items[0][None]], lambda items: [items[0].astype("f8")]]
)
def test_a_wrong_result_is_seen(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge judges: other numbers, sizes or dtypes are found out."""
    case = named("test_add")
    assert judge(case, "CPU").verdict == Verdict.HOST
    real = onnx_judging.onnx_backend.PreparedModel.run
    monkeypatch.setattr(onnx_judging.onnx_backend.PreparedModel, "run", lambda *args: spoil(real(*args)))
    assert judge(case, "CPU").verdict == Verdict.WRONG


def test_errors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of mobopt's own is a refusal, any other a crash."""

    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("by none")

    case = named("test_add")
    monkeypatch.setattr(onnx_judging.onnx_backend.PreparedModel, "run", fail)
    assert judge(case, "CPU") == Outcome(Verdict.CRASHED, "ZeroDivisionError: by none")
    case = next(case for case in cases_of(["adagrad"]) if case.name == "test_adagrad")
    assert judge(case, "CPU").verdict == Verdict.REFUSED
