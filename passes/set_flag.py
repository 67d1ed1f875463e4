"""The attribute that tells an optimised module from others."""

from __future__ import annotations

from dataclasses import dataclass

from mobopt.ir import Attribute, Program
from mobopt.ir.types import BOOL
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import FLAG_SET
from mobopt.passes.notes import NoteBook


@dataclass(frozen=True)
class SetFlag(Pass):
    """Set a boolean attribute of the module to True.

    Given:
        a program
    Result:
        the program with ``optimized_for_vulkan : bool = True``
    """

    name = "set_flag"
    flag: str = "mobile_optimized"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Set the flag if it is not set."""
        attribute = program.attributes.get(self.flag)
        if attribute is not None and attribute.value is True:
            return False
        program.attributes[self.flag] = Attribute(BOOL, True)
        notes.add(FLAG_SET, self.flag)
        return True
