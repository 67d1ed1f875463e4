"""What the plans of a call are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from mobopt.runtimes.vulkan.compile.build import Fallback
from mobopt.runtimes.vulkan.compile.precision import HalfReport
from mobopt.runtimes.vulkan.engine.memory import MemoryReport


@dataclass(frozen=True)
class PlanReport:
    """What one plan is made of, or all those of a call that looks at elements."""

    method: str
    signature: str
    dispatches: int
    """Of a whole call: those of a plan that it comes by several times count as often."""
    fallbacks: tuple[Fallback, ...]
    """Calls that run on the CPU, with the reason for each."""
    looks: int
    """Tensors whose elements the CPU read on the way: they decide a size, a branch or a number."""
    memory: MemoryReport | None
    """None if nothing is left to compute; what several plans share is counted for each."""
    build_seconds: float
    segments: int = 1
    """How many plans ran, one after the other."""
    plans: int = 1
    """How many different ones."""
    halves: HalfReport | None = None
    """What lies as halves, of ``precision="fp16"``."""

    def __str__(self) -> str:
        """What ran where: one line, and one for each reason why operators run on the CPU; then what lies as halves."""
        return self._places if self.halves is None else f"{self._places}\n{self.halves}"

    @property
    def _places(self) -> str:
        reads = f", {self.looks} tensors read on the way to decide what follows" if self.looks else ""
        if not self.fallbacks:
            return f"{self.dispatches} dispatches, no operator on the CPU{reads}"
        causes = Counter((fallback.op, fallback.reason) for fallback in self.fallbacks)
        lines = [f"  {count} {op}: {reason}" for (op, reason), count in causes.items()]
        return "\n".join([f"{self.dispatches} dispatches, {len(self.fallbacks)} operators on the CPU{reads}", *lines])


def joined(reports: Sequence[PlanReport]) -> PlanReport:
    """The report of a call, from those of the plans that it came by, in order."""
    distinct = list({id(report): report for report in reports}.values())
    memories = [report.memory for report in distinct if report.memory is not None]
    return replace(
        reports[0],
        dispatches=sum(report.dispatches for report in reports),
        fallbacks=tuple(fallback for report in distinct for fallback in report.fallbacks),
        looks=sum(report.looks for report in reports),
        memory=_memory_of_all(memories) if memories else None,
        build_seconds=sum(report.build_seconds for report in distinct),
        segments=len(reports),
        plans=len(distinct),
        halves=_halves_of_all([report.halves for report in distinct if report.halves is not None]),
    )


def _halves_of_all(halves: Sequence[HalfReport]) -> HalfReport | None:
    return reduce(add, halves) if halves else None


def _memory_of_all(memories: Sequence[MemoryReport]) -> MemoryReport:
    return MemoryReport(
        sum(memory.constant_bytes for memory in memories),
        sum(memory.arena_bytes for memory in memories),
        sum(memory.io_bytes for memory in memories),
        sum(memory.peak_bytes for memory in memories),
        max(memory.lower_bound_bytes for memory in memories),
    )
