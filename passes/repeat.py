"""Passes that make work for each other are run in turn until none finds any."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mobopt.ir import Program
from mobopt.passes.facts import Examples
from mobopt.passes.manager import Pass
from mobopt.passes.notes import NoteBook


@dataclass(frozen=True)
class Repeat(Pass):
    """Run a list of passes again and again until none changes anything."""

    name = "simplify"
    passes: tuple[Pass, ...] = ()
    limit: int = 12
    """Rounds at most; nested branches need one round each."""

    def with_examples(self, examples: Examples) -> Repeat:
        """These passes, judging by example inputs."""
        return replace(self, passes=tuple(item.with_examples(examples) for item in self.passes))

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Run the passes in rounds; their notes are kept under their own names.

        The last round ends where each pass has seen the program as it is now, and left it alone.
        """
        changed = False
        idle = 0
        for item in self.passes * self.limit:
            result = item.run(program)
            notes.extend(result.notes)
            changed |= result.changed
            idle = 0 if result.changed else idle + 1
            if idle == len(self.passes):
                break
        return changed
