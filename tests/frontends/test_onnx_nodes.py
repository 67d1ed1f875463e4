"""Node cases of onnx.backend.test: a sample on the interpreter and on a device; a sweep takes all."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from onnx_cases import Verdict, case_modules, cases_of, judged

from mobopt.runtimes.vulkan.engine.device import Device

_MODULES, _CASES, _ON_DEVICE = 14, 40, 6
LEAST_RIGHT = 1_790
"""Of all cases, so many are right at least."""
LEAST_NATIVE = 1_100
_RIGHT = (Verdict.NATIVE, Verdict.READ, Verdict.CPU, Verdict.RIGHT)


def sample() -> list[object]:
    """Cases of some modules, the same in each run."""
    chooser = random.Random(7)
    cases = cases_of(chooser.sample(case_modules(), _MODULES))
    cases.sort(key=lambda case: case.name)
    return chooser.sample(cases, min(_CASES, len(cases)))


def test_a_sample_is_right_on_the_interpreter() -> None:
    outcomes = dict(judged(sample()))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.verdict is Verdict.WRONG} == {}
    assert sum(outcome.verdict in _RIGHT for outcome in outcomes.values()) >= 0.8 * len(outcomes)


def test_a_sample_is_right_on_a_device(device: Device) -> None:
    outcomes = dict(judged(sample()[:_ON_DEVICE], device))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.verdict is Verdict.WRONG} == {}
    assert any(outcome.verdict is Verdict.NATIVE for outcome in outcomes.values())


@pytest.mark.sweep
def test_no_case_is_wrong(device: Device) -> None:
    outcomes = dict(judged(cases_of(case_modules()), device))
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    assert {name: outcome for name, outcome in outcomes.items() if outcome.verdict is Verdict.WRONG} == {}
    assert sum(counts[verdict] for verdict in _RIGHT) >= LEAST_RIGHT
    assert counts[Verdict.NATIVE] + counts[Verdict.READ] >= LEAST_NATIVE
    assert all(outcome.reason for outcome in outcomes.values() if outcome.verdict in (Verdict.REFUSED, Verdict.CPU))
