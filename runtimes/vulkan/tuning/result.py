"""What tuning found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mobopt.runtimes.vulkan.kernels.tuned_costs import ChainsUse, TunedCosts, UnitsUse

MOST_NOISE = 0.25
"""Beyond which nothing is kept."""
LEAST_GAIN = 0.03
"""By which something must be faster to be done in place of something else: less may be noise."""


@dataclass(frozen=True)
class Choice:
    """What is chosen for a layer: before, and as tuned. Times are nanoseconds."""

    layer: str
    before: str
    after: str
    before_time: float
    after_time: float
    least_time: float
    """Of the best of all kernels that were measured."""
    predicted_before: float
    predicted_after: float


@dataclass(frozen=True)
class FamilyTuning:
    """What the costs of a family of kernels were, what they are as fitted, and what that changes."""

    name: str
    before: Mapping[str, float]
    """None where nobody knew costs of matrix units."""
    after: Mapping[str, float]
    choices: tuple[Choice, ...]
    kernels: int
    """How many were measured, over all layers."""
    noise: float
    """How far apart the two least times of a kernel are, the median of all: 0.1 for 10 %."""
    units: UnitsUse | None = None
    """Of a family that needs matrix units."""
    used_units: bool = False
    """Whether they were used before."""

    @property
    def excess_before(self) -> float:
        """How much longer than the best kernels the chosen ones took: a mean, 0.1 for 10 %."""
        return _mean_excess([(choice.before_time, choice.least_time) for choice in self.choices])

    @property
    def excess_after(self) -> float:
        """The same as tuned."""
        return _mean_excess([(choice.after_time, choice.least_time) for choice in self.choices])

    @property
    def changes_units(self) -> bool:
        """Whether matrix units are used as they weren't before, or the other way round."""
        return self.units is not None and self.units.is_used != self.used_units


@dataclass(frozen=True)
class StretchTimes:
    """A stretch of a network, timed."""

    stretch: str
    nanoseconds: Mapping[int, float]
    """From the host to the host, by the workgroups a core up to which dispatches wait by counters; 0: barriers."""
    noise: float


@dataclass(frozen=True)
class ChainsTuning:
    """Up to how many workgroups a core dispatches wait for others by a counter, and what that changes."""

    before: int
    after: int
    """0: all have barriers."""
    shares: Mapping[int, float]
    """Of the time that stretches take with barriers, by such a limit: a mean of all."""
    stretches: tuple[StretchTimes, ...]
    noise: float
    is_right: bool = True
    """False where results were others than with barriers, or a dispatch waited in vain."""

    @property
    def changes(self) -> bool:
        """Whether the limit is another than before."""
        return self.before != self.after

    @property
    def use(self) -> ChainsUse:
        """What to keep."""
        return ChainsUse(self.after, self.shares[self.after], self.is_right)


@dataclass(frozen=True)
class Tuning:
    """What was found for a device."""

    families: tuple[FamilyTuning, ...]
    chains: ChainsTuning | None = None
    """None of a device whose dispatches all have barriers."""

    @property
    def kernels(self) -> int:
        """How many were measured, over all layers and families."""
        return sum(family.kernels for family in self.families)

    @property
    def noise(self) -> float:
        """Of the family that has most."""
        return max(family.noise for family in self.families)

    @property
    def is_trustworthy(self) -> bool:
        """Whether times say something of kernels, or of what else the device had to do."""
        return self.noise <= MOST_NOISE

    @property
    def excess_before(self) -> float:
        """How much longer than the best kernels the chosen ones took: a mean over all layers, 0.1 for 10 %."""
        return _mean_excess([(choice.before_time, choice.least_time) for choice in self._choices])

    @property
    def excess_after(self) -> float:
        """The same as tuned."""
        return _mean_excess([(choice.after_time, choice.least_time) for choice in self._choices])

    @property
    def is_better(self) -> bool:
        """Whether faster kernels are chosen as tuned, as far as can be told."""
        changes = any(family.changes_units for family in self.families)
        changes = changes or (self.chains is not None and self.chains.changes)
        return self.is_trustworthy and (changes or self.excess_after < self.excess_before)

    @property
    def costs(self) -> TunedCosts:
        """What to keep."""
        return TunedCosts(
            {family.name: family.after for family in self.families},
            {family.name: family.units for family in self.families if family.units is not None},
            None if self.chains is None else self.chains.use,
        )

    def data(self) -> dict[str, Any]:
        """What JSON has of it."""
        families = [
            {**asdict(family), "excess_before": family.excess_before, "excess_after": family.excess_after}
            for family in self.families
        ]
        return {
            "families": families,
            "chains": None if self.chains is None else asdict(self.chains),
            "kernels": self.kernels,
            "noise": self.noise,
            "excess_before": self.excess_before,
            "excess_after": self.excess_after,
        }

    @property
    def _choices(self) -> list[Choice]:
        return [choice for family in self.families for choice in family.choices]


def _mean_excess(times: Sequence[tuple[float, float]]) -> float:
    return math.exp(sum(math.log(taken / least) for taken, least in times) / len(times)) - 1
