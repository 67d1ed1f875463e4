"""One row of a table: what a release's runtime does with operators under a condition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mobopt.ops.targets.conditions import Condition, known_schema, parse_condition

RELEASES = ("1.13", "2.0", "2.1", "2.2", "2.6")
"""Releases of PyTorch whose mobile runtimes differ in operators; 2.3 to 2.5 are taken for 2.2."""
VERDICTS = ("native", "wrong", "missing")


@dataclass(frozen=True)
class Row:
    """What a runtime does with an operator under a condition."""

    operators: tuple[str, ...]
    verdict: str
    """native, wrong (it runs and gives other numbers) or missing (it raises)."""
    when: str = ""
    """Condition on the call, in the language of :mod:`mobopt.ops.targets.conditions`; empty: always."""
    since: str = RELEASES[0]
    until: str = RELEASES[-1]
    why: str = ""
    help: str = ""
    """What the author of the model can change."""
    rewrite: str = ""
    """Name of the rewrite that makes it right."""
    rewrite_for_sizes: str = ""
    """Name of one that is tried first where the file may be fixed to the example's sizes: it may be cheaper."""
    over_limit: bool = False
    """Whether the row is about calls with a tensor that is larger than an image may be, and about no others."""
    evidence: str = "tried"
    quantized: bool = False
    """Whether the row is about calls with a quantised tensor, and about no others; for Vulkan."""
    any_dtype: bool = False
    any_rank: bool = False
    cpu_operands: tuple[str, ...] = ()
    """Arguments that the kernel takes from the CPU as they are."""
    new_arguments: tuple[str, ...] = ()
    """Arguments in the condition that the oldest torch which mobopt runs on lacks; there, no call is the row's."""
    came: str = ""
    """The release after all of :data:`RELEASES` that brought what they lack."""
    place: str = "a row"
    """File and number, for errors."""

    @cached_property
    def condition(self) -> Condition | None:
        """The condition, checked; None without one.

        Raises:
            TableError: it is not of the language of conditions.
        """
        return parse_condition(self.when, self.operators, str(self)) if self.when else None

    @cached_property
    def releases(self) -> range:
        """The releases that the row is about, by their positions in :data:`RELEASES`."""
        return range(RELEASES.index(self.since), RELEASES.index(self.until) + 1)

    @property
    def sees_misfits(self) -> bool:
        """Whether it is also about calls with tensors that the GPU can't hold."""
        return self.any_dtype or self.any_rank

    @property
    def can_occur(self) -> bool:
        """Whether the installed torch has the arguments that the condition asks for."""
        if not self.new_arguments:
            return True
        schemas = [schema for name in self.operators if (schema := known_schema(name)) is not None]
        return all(set(self.new_arguments) <= {argument.name for argument in schema.arguments} for schema in schemas)

    def covers(self, release: int) -> bool:
        """Whether the row says something about a release, by its position in :data:`RELEASES`."""
        return release in self.releases

    def __str__(self) -> str:
        return f"{self.place}, of {', '.join(self.operators)}"
