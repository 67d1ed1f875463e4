"""The state of a model: the values of the attributes that its methods change, which outlive a call.

One object owns them, whichever runtime computes. A runtime takes the values as inputs of a call and commits what has
become of them when the whole call is done, so a call that fails leaves them as they were. Tensors of the state are
torch's on the CPU and share memory as they do in eager mode.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from mobopt.ir import Program
from mobopt.ir.types import TENSOR
from mobopt.ops.state import changed_attributes
from mobopt.runtimes.nests import copy_nests


class ModelState:
    """Values of the attributes that methods of a Program change; the Program's own stay as they are.

    Attributes:
        names: of these attributes, dotted.
        lock: held by a call from the first read of a value to the commit, so that calls of several threads take turns.
    """

    def __init__(self, program: Program) -> None:
        """Start with copies of the Program's values."""
        self.names = changed_attributes(program)
        self.lock = threading.Lock()
        self._values: dict[str, Any] = copy.deepcopy({name: program.attributes[name].value for name in self.names})

    @property
    def values(self) -> Mapping[str, Any]:
        """The values by attribute; containers among them are not to be changed."""
        return self._values

    def commit(self, values: Mapping[str, Any]) -> None:
        """Replace values by those that a call assigned; what it wrote in place is in the tensors already."""
        self._values.update(values)

    def working_copy(self, function: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
        """The values as a call may change them: in containers of its own, with ``function`` applied to tensors."""
        return copy_nests(self._values, torch.Tensor, function)

    def written_into(self, program: Program) -> Program:
        """A Program with the same graphs whose attributes have the values of now."""
        if not self.names:
            return program
        attributes = {
            name: replace(item, value=self._values[name], is_buffer=item.type == TENSOR) if name in self.names else item
            for name, item in program.attributes.items()
        }
        return replace(program, attributes=attributes)

    def shallow_copy(self) -> ModelState:
        """Another state with the same tensors, as ``copy.copy`` of a module gives: what is written in place both see,
        what is assigned only one."""
        twin = copy.copy(self)
        twin._values = dict(self._values)
        return twin

    def moved_to(self, program: Program) -> ModelState:
        """This state for a Program that has been given further methods."""
        grown = ModelState(program)
        grown.commit(self._values)
        return grown
