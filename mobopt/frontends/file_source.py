"""A file as a source of models: a TorchScript archive, read by mobopt's own reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle.open_file import open_model_file
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import unpickle
from mobopt.errors import BundleError, InputError, MoboptError
from mobopt.frontends.source import Source, bundled_for, interpreted
from mobopt.frontends.torchscript import frozen, in_floats, read_model
from mobopt.passes.number_operands import NumberOperands
from mobopt.runtimes.cpu import Interpreter

_TRACED_INPUTS = "traced_inputs.pkl"
_OPTIMIZED = ("optimized_for_vulkan", "optimized_for_metal")
_MOST_ELEMENTS = 1 << 26
"""Of one remembered input; more is taken for damage."""


class FileSource(Source):
    """A file of a model; nothing in it is executed but by our interpreter, when the model is run."""

    def __init__(self, file: Path, preserved: Sequence[str] | None = (), takes_optimized: bool = False) -> None:
        """Read a file.

        Args:
            file: a ``.pt`` or ``.ptl`` file.
            preserved: methods and attributes to keep beside ``forward``; None for all methods.
            takes_optimized: whether the file may be one that was optimised for a backend, with packed weights.

        Raises:
            BundleError: the file is damaged, hostile, optimised already, or of a form that is not read.
            InputError: a preserved name does not exist.
        """
        self._file = file
        self.name = file.name
        self._original = read_model(file, preserved)
        preserved = list(self._original.methods) if preserved is None else preserved
        if not takes_optimized and any(name in _OPTIMIZED for name in self._original.attributes):
            raise BundleError(f"{file} is optimised already; convert the model that it was made from")
        NumberOperands().run(self._original)  # as torch's interpreter does with the code of any file before it runs
        try:
            held = frozen(self._original, preserved)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        self.program = in_floats(held)
        self.quantized = None if held is self.program else held
        self._reference = self._original if self.quantized is None else self.program.clone()

    def caller(self, method: str = "forward", is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The reference interpreter on the model as the file has it, before any pass but what makes floats of quantised
        tensors."""
        return interpreted(self._reference, method, is_bounded)

    def example_calls(self, method: str = "forward") -> list[Sequence[Any]]:
        """What the file's own method for them returns; none if it can't be read."""
        name = bundled_for(method)
        if name not in self._original.metadata["method_names"]:
            return []
        try:
            return list(Interpreter(read_model(self._file, [name])).bounded().run(name, []))
        except MoboptError:
            return []

    def example_shapes(self) -> list[Any] | None:
        """What the file remembers."""
        archive = open_model_file(self._file)
        if _TRACED_INPUTS not in archive:
            return None
        try:
            data = unpickle(archive.read(_TRACED_INPUTS), _Shapes(archive, "traced_inputs"), _TRACED_INPUTS).value
        except MoboptError:
            return None
        found = data.get("forward") if isinstance(data, dict) else None
        return found if isinstance(found, list) else None

    def extra_files(self) -> dict[str, bytes]:
        """Those that the file holds."""
        return open_model_file(self._file).extra_files()


class _Shapes(StorageLoader):
    """Storages without elements: torch remembers the shapes of traced inputs, and nothing else."""

    def load(self, dtype: torch.dtype, key: str, count: int) -> torch.Tensor:
        """Zeros."""
        if count > _MOST_ELEMENTS:
            raise MoboptError(f"a traced input of {count} elements")
        return torch.zeros(count, dtype=dtype)
