"""What a bisection finds."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.options import Precision
from mobopt.tools.comparison_work import Sample

NOTHING, PASS, REWRITE, NODE, FUSION, HALF = "nothing", "pass", "rewrite", "node", "fusion", "half"
"""Kinds of culprits."""


@dataclass(frozen=True)
class Bisection:
    """What makes outputs differ."""

    kind: str
    """``nothing``; ``pass``, or ``rewrite`` of a pass; ``node`` on the device, ``fusion``, or ``half``: a node in half
    precision."""
    culprit: str
    """In words; empty if nothing was found."""
    source: tuple[str, ...]
    """Lines of the model's source that it concerns."""
    error: float
    """The largest error of an output with it, over the scale of the output."""
    error_before: float
    """The same without it."""
    candidates: int
    """Passes, rewrites or nodes among which it was looked for."""
    runs: int
    """Runs of the whole model that this took."""
    sample: Sample | None
    """The smallest program that still shows it, with its inputs; None if no part of the model does by itself."""
    sample_error: float | None
    """The error of that program's result, over its scale."""
    device: str
    """Where the sample is to be run."""
    inputs: str
    """The example inputs, in words."""
    tolerance: float
    """The error of outputs that was let pass, over their scale."""
    remarks: tuple[str, ...]
    """What a user should know."""
    seconds: float
    """That it took."""
    precision: Precision = "fp32"
    """Of the device."""
