"""The state of a model: the values of the attributes that its methods change, which outlive a call.

One object owns them, whichever runtime computes. A runtime takes the values as inputs of a call and commits what has
become of them when the whole call is done, so a call that fails leaves them as they were. Tensors of the state are
torch's on the CPU and share memory as they do in eager mode. A runtime may keep what they hold elsewhere, as long as
nobody else has them: whoever reads them has it brought home first.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from mobopt.ir import Program
from mobopt.ir.nests import copy_nests, leaves_of
from mobopt.ir.types import TENSOR
from mobopt.ops.state import changed_attributes
from mobopt.runtimes.memories import StateMemories, memory_of


class Elsewhere(Protocol):
    """Where a runtime keeps what tensors of a state hold; the tensors themselves are out of date then."""

    def bring_home(self) -> None:
        """Write it to the tensors."""

    def forget(self) -> None:
        """The tensors are what counts from now on."""


class ModelState:
    """Values of the attributes that methods of a Program change; the Program's own stay as they are.

    Attributes:
        names: of these attributes, dotted.
        lock: held by a call from the first read of a value to the commit, so that calls of several threads take turns.
    """

    def __init__(self, program: Program) -> None:
        """Start with copies of the Program's values."""
        self.names = changed_attributes(program)
        self.lock = threading.RLock()
        self._values: dict[str, Any] = copy.deepcopy({name: program.attributes[name].value for name in self.names})
        self._elsewhere: Elsewhere | None = None
        self._is_shared = False
        self._exposed: dict[int, torch.Tensor] = {}
        """Tensors that others have too, by memory."""
        self._memories: StateMemories | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """The values by attribute, as they are now; neither they nor containers among them are to be changed.

        Raises:
            DeviceError: they were on a device that failed.
        """
        with self.lock:
            if self._elsewhere is not None:
                self._elsewhere.bring_home()
            return self._values

    @property
    def forms(self) -> Mapping[str, Any]:
        """The values, of whose tensors only the forms are right: the elements may be elsewhere."""
        return self._values

    @property
    def memories(self) -> StateMemories:
        """Those of the values' tensors: found anew where a value was replaced, or where others have tensors, which may
        lie elsewhere by now.

        Raises:
            UnsupportedError: tensors of different dtypes share memory.
        """
        if self._memories is None or not self.is_private:
            self._memories = StateMemories(self._values)
        return self._memories

    def keep_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Have a runtime keep what tensors hold."""
        if self._elsewhere is not elsewhere:
            self._come_home()
            self._elsewhere = elsewhere

    def share(self) -> Mapping[str, Any]:
        """The values, for somebody who keeps the tensors and may write to them: they are never elsewhere again."""
        with self.lock:
            self._come_home()
            self._is_shared = True
            return self._values

    def expose(self, tensor: torch.Tensor) -> None:
        """Say that somebody else has a tensor, which is up to date, and may write to it."""
        self._exposed[memory_of(tensor)] = tensor

    @property
    def is_private(self) -> bool:
        """Whether nobody else has any of its tensors."""
        return not (self._is_shared or self._exposed)

    def is_exposed(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else may have the memory of a tensor, so that it must always be up to date."""
        return self._is_shared or (bool(self._exposed) and memory_of(tensor) in self._exposed)

    def commit(self, values: Mapping[str, Any]) -> None:
        """Replace values by those that a call assigned; what it wrote in place is in the tensors already."""
        self._values.update(values)
        self._memories = None

    def assign(self, name: str, value: Any) -> None:
        """Replace a value by one that the caller keeps too."""
        with self.lock:
            self.commit({name: value})
            for tensor in leaves_of(value, torch.Tensor):
                self.expose(tensor)

    def forget_exposed(self, kept: Iterable[torch.Tensor]) -> None:
        """Drop what is known of memories that are no longer those of these tensors."""
        if self._exposed:
            numbers = {memory_of(tensor) for tensor in kept}
            self._exposed = {number: tensor for number, tensor in self._exposed.items() if number in numbers}

    def _come_home(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.bring_home()
            self._elsewhere.forget()
            self._elsewhere = None

    def working_copy(self, function: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
        """The values as a call may change them: in containers of its own, with ``function`` applied to tensors."""
        return copy_nests(self.share(), torch.Tensor, function)

    def written_into(self, program: Program) -> Program:
        """A Program with the same graphs whose attributes have the values of now."""
        if not self.names:
            return program
        values = self.values
        attributes = {
            name: replace(item, value=values[name], is_buffer=item.type == TENSOR) if name in self.names else item
            for name, item in program.attributes.items()
        }
        return replace(program, attributes=attributes)

    def shallow_copy(self) -> ModelState:
        """Another state with the same tensors, as ``copy.copy`` of a module gives: what is written in place both see,
        what is assigned only one."""
        values = self.share()
        twin = copy.copy(self)
        twin._values = dict(values)
        return twin

    def moved_to(self, program: Program) -> ModelState:
        """This state for a Program that has been given further methods."""
        grown = ModelState(program)
        grown.commit(self.values)
        self._come_home()
        grown._is_shared, grown._exposed = self._is_shared, dict(self._exposed)
        return grown
