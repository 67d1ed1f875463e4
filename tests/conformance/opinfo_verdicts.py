"""Verdicts of operators, each from the outcomes of its samples; those that are natively right are kept in a file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from opinfo_judging import Outcome, Verdict, judge
from opinfo_samples import dtypes_of, samples_of

from mobopt.runtimes.vulkan.engine.device import Device

NATIVE_FILE = Path(__file__).with_name("opinfo_native.json")


@dataclass
class Judged:
    """What became of an operator's samples of one dtype."""

    operator: str
    dtype: str
    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    """With the call's arguments in short."""

    @property
    def counts(self) -> Counter[Verdict]:
        """How many samples have each verdict."""
        return Counter(outcome.verdict for _, outcome in self.outcomes)

    @property
    def is_native(self) -> bool:
        """Whether the device computes everything that torch can trace, if anything."""
        seen = set(self.counts) - {Verdict.UNTRACEABLE}
        return seen == {Verdict.NATIVE}

    def failures(self) -> list[str]:
        """What is wrong, in words."""
        return [
            f"{self.operator}({text}): {outcome.verdict.name.lower()}: {outcome.reason}"
            for text, outcome in self.outcomes
            if outcome.verdict >= Verdict.WRONG
        ]


def judge_operator(name: str, dtype: torch.dtype, count: int, device: Device) -> Judged:
    """Run at most ``count`` samples of an operator."""
    judged = Judged(name, dtype_name(dtype))
    for sample in samples_of(name, dtype, count):
        judged.outcomes.append((sample.text, judge(sample, device)))
    return judged


def judge_all_dtypes(name: str, count: int, device: Device) -> list[Judged]:
    """Run samples of every dtype that torch's CPU has for an operator."""
    return [judge_operator(name, dtype, count, device) for dtype in dtypes_of(name)]


def dtype_name(dtype: torch.dtype) -> str:
    """Such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def native_operators() -> dict[str, list[str]]:
    """Every operator of the database, with the dtypes for which the device computed all its samples."""
    found: dict[str, list[str]] = json.loads(NATIVE_FILE.read_text())
    return found
