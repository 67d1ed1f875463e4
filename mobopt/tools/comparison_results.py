"""What a comparison of two runs finds: layers with their errors, and what is said of each."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from mobopt.samples.agreement import TIMES_ROUNDING
from mobopt.tools.differences import Difference, RankChanges

AGREES, WRONG, INHERITS, AMPLIFIES, ROUNDING, DIFFERS = (
    "agrees",
    "wrong",
    "inherits",
    "amplifies",
    "rounding",
    "differs",
)
"""What is said of a layer; see :data:`VERDICTS`."""
VERDICTS = {
    WRONG: "gives another result even for the reference's own inputs",
    DIFFERS: "is over the tolerance, and could not be run alone",
    AMPLIFIES: "is right by itself, and magnifies small errors of its inputs: an ill-conditioned layer",
    INHERITS: "is right by itself, and was given wrong inputs",
    ROUNDING: "is as far from float64 as the CPU's float32: nothing is wrong, single precision is not enough",
    AGREES: "is within the tolerance",
}
"""What each verdict says, for readers; the gravest first."""
AMPLIFICATION = 10.0
"""How much larger than those of its inputs the error of a layer must be for the layer to be said to magnify them."""


@dataclass(frozen=True)
class Layer:
    """A value that both sides make."""

    nodes: tuple[str, ...]
    """The operators that make it from the values before it, in order; several if they are fused or rewritten."""
    name: str
    """The node of the model that it is the output of."""
    source: tuple[str, ...]
    """Lines of the model's source."""
    sizes: tuple[int, ...]
    dtype: str
    turn: int
    """Which time the node is computed, from 0: the trip of a loop."""
    matched_by: str
    """How the two values were found to be the same layer's: ``origin``, ``making``, ``line``, ``order`` or
    ``reader``."""
    total: Difference
    """From the reference."""
    own: Difference | None
    """Of the layer run alone on the reference's values; None if these are not all known, or it draws random numbers."""
    amplification: float | None
    """The error over the largest one of the layer's inputs."""
    float32: Difference | None
    """With a reference in float64: how far the CPU's float32 is from it."""
    verdict: str

    @property
    def title(self) -> str:
        """The operators in short."""
        return " + ".join(f"{count} {name}" if count > 1 else name for name, count in Counter(self.nodes).items())


@dataclass(frozen=True)
class Output:
    """A tensor that both sides return."""

    number: int
    sizes: tuple[int, ...]
    difference: Difference
    float32: Difference | None
    ranks: RankChanges | None


@dataclass(frozen=True)
class Comparison:
    """How two runs differ, layer by layer."""

    reference: str
    """The reference in words: model, device, passes."""
    other: str
    """The other side, likewise."""
    inputs: str
    """What both ran on, in words."""
    method: str
    """Which method ran."""
    tolerance: float
    """The error that was let pass, over the largest magnitude of the reference's value."""
    layers: tuple[Layer, ...]
    """In the order of the other side."""
    outputs: tuple[Output, ...]
    """In the order in which they are returned."""
    unmatched: tuple[str, ...]
    """What the other side makes and no value of the reference is known for."""
    unseen: int
    """Values of the reference that the other side does not make: they are fused, folded or rewritten."""
    remarks: tuple[str, ...]
    """What a user should know."""
    seconds: float
    """That it took."""

    @property
    def first(self) -> Layer | None:
        """The first layer over the tolerance."""
        return next((layer for layer in self.layers if layer.verdict != AGREES), None)

    @property
    def culprits(self) -> tuple[Layer, ...]:
        """Layers that are wrong by themselves."""
        return tuple(layer for layer in self.layers if layer.verdict in (WRONG, DIFFERS))

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within the tolerance, or as near to float64 as the CPU's float32 is, and no layer is
        wrong by itself."""
        return not self.culprits and all(
            is_within(item.difference, self.tolerance) or is_rounding(item.difference, item.float32)
            for item in self.outputs
        )


def is_within(found: Difference, tolerance: float) -> bool:
    """Whether an error is let pass."""
    return found.error <= tolerance


def is_rounding(found: Difference, float32: Difference | None) -> bool:
    """Whether an error is about as large as the one that the CPU's float32 makes."""
    return float32 is not None and found.error <= TIMES_ROUNDING * float32.error < math.inf


def verdict_of(
    total: Difference,
    own: Difference | None,
    float32: Difference | None,
    before: float,
    growth: float | None,
    tolerance: float,
) -> str:
    """What is said of a layer.

    Args:
        total: its difference from the reference.
        own: that of the layer by itself, on right inputs; None if it could not be run so.
        float32: how far the CPU's float32 is from a reference in float64.
        before: the largest error of its inputs.
        growth: its error over that.
        tolerance: the error that is let pass.
    """
    if own is not None and own.error > tolerance:
        return ROUNDING if is_rounding(own, float32) else WRONG
    if is_within(total, tolerance):
        return AGREES
    if is_rounding(total, float32):
        return ROUNDING
    if own is None:
        return INHERITS if before > tolerance else DIFFERS
    if before <= tolerance and growth is not None and growth >= AMPLIFICATION:
        return AMPLIFIES
    return INHERITS
