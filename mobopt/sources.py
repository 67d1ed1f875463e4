"""Models before conversion, wherever they come from: a module that a user holds, or a file.

What conversions and audits ask of a model is asked here: its Program, what it returns, and inputs that came with it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle.container import ArchiveReader
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import unpickle
from mobopt.errors import BundleError, InputError, MoboptError, UnsupportedError
from mobopt.frontends.torchscript import frozen, program_from_script_module, read_model, saved_module
from mobopt.ir import Program
from mobopt.module import bind_arguments
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.nests import map_leaves

_BUNDLED_INPUTS = "get_all_bundled_inputs"
_TRACED_INPUTS = "traced_inputs.pkl"
_OPTIMIZED = ("optimized_for_vulkan", "optimized_for_metal")
_MOST_ELEMENTS = 1 << 26
"""Of one remembered input; more is taken for damage."""


class Source(ABC):
    """A model before conversion.

    Attributes:
        program: the model with constants, in evaluation mode; passes start from it.
    """

    program: Program

    @abstractmethod
    def caller(self, method: str = "forward") -> Callable[[Sequence[Any]], Any]:
        """What runs a method of the model as it is, on the CPU, with a state of its own.

        It raises InputError if the model can't be run on the inputs, and may change them.
        """

    @abstractmethod
    def bundled_inputs(self, method: str = "forward") -> list[Sequence[Any]]:
        """Arguments of a method that ``torch.utils.bundled_inputs`` has put into the model."""

    @abstractmethod
    def traced_inputs(self) -> list[Any] | None:
        """What the model was traced with, of which only shapes and dtypes are known; None for a scripted one."""


class ModuleSource(Source):
    """A ScriptModule that a user holds; its own code is run, as the user runs it."""

    def __init__(self, module: torch.jit.ScriptModule, preserved: Sequence[str] = ()) -> None:
        """Read a module; see :func:`mobopt.frontends.torchscript.program_from_script_module`."""
        self._module = module
        self.program = program_from_script_module(module, preserved)

    def caller(self, method: str = "forward") -> Callable[[Sequence[Any]], Any]:
        """The module itself in evaluation mode, or a copy if it has state, whose views of each other stay views."""
        module = self._module
        if self.program.attributes:
            module = torch.jit.load(io.BytesIO(saved_module(module)))  # type: ignore[no-untyped-call]
        return lambda inputs: _run_in_evaluation(module, method, inputs)

    def bundled_inputs(self, method: str = "forward") -> list[Sequence[Any]]:
        """Those of the module."""
        return list(getattr(self._module, _bundled_for(method), list)())

    def traced_inputs(self) -> list[Any] | None:
        """Those that torch remembers."""
        return dict(self._module._c._retrieve_traced_inputs().items()).get("forward")


def _bundled_for(method: str) -> str:
    """The method that gives the inputs of another."""
    return _BUNDLED_INPUTS if method == "forward" else f"{_BUNDLED_INPUTS}_for_{method}"


def _run_in_evaluation(module: torch.jit.ScriptModule, method: str, inputs: Sequence[Any]) -> Any:
    """What a module's method returns in evaluation mode; its own mode comes back."""
    modes = [(part, part.training) for part in module.modules() if hasattr(part, "training")]
    module.eval()
    try:
        with torch.no_grad():
            # torch's interpreter may run code that an earlier call compiled, with gradients.
            return map_leaves(getattr(module, method)(*inputs), torch.Tensor, torch.Tensor.detach)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"the model can't be run on the example inputs: {reason}") from None
    finally:
        for part, training in modes:
            part.training = training


class FileSource(Source):
    """A file of a model; nothing in it is executed but by our interpreter, when the model is run."""

    def __init__(self, file: Path, preserved: Sequence[str] = ()) -> None:
        """Read a file.

        Raises:
            BundleError: the file is damaged, hostile, optimised already, or of a form that is not read.
            InputError: a preserved name does not exist.
        """
        self._file = file
        self._original = read_model(file, preserved)
        if any(name in _OPTIMIZED for name in self._original.attributes):
            raise BundleError(f"{file} is optimised already; convert the model that it was made from")
        try:
            self.program = frozen(self._original, preserved)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None

    def caller(self, method: str = "forward") -> Callable[[Sequence[Any]], Any]:
        """The reference interpreter on the model as the file has it, before any pass."""
        interpreter = Interpreter(self._original)

        def call(inputs: Sequence[Any]) -> Any:
            try:
                return interpreter.run(method, bind_arguments(self._original, method, inputs, {}))
            except (InputError, UnsupportedError) as error:
                raise InputError(f"the model can't be run on the example inputs: {error}") from None

        return call

    def bundled_inputs(self, method: str = "forward") -> list[Sequence[Any]]:
        """What the file's own method for them returns; none if it can't be read."""
        name = _bundled_for(method)
        if name not in self._original.metadata["method_names"]:
            return []
        try:
            return list(Interpreter(read_model(self._file, [name])).bounded().run(name, []))
        except MoboptError:
            return []

    def traced_inputs(self) -> list[Any] | None:
        """What the file remembers."""
        archive = ArchiveReader(self._file)
        if _TRACED_INPUTS not in archive:
            return None
        try:
            data = unpickle(archive.read(_TRACED_INPUTS), _Shapes(archive, "traced_inputs"), _TRACED_INPUTS).value
        except MoboptError:
            return None
        found = data.get("forward") if isinstance(data, dict) else None
        return found if isinstance(found, list) else None


class _Shapes(StorageLoader):
    """Storages without elements: torch remembers the shapes of traced inputs, and nothing else."""

    def load(self, dtype: torch.dtype, key: str, count: int) -> torch.Tensor:
        """Zeros."""
        if count > _MOST_ELEMENTS:
            raise MoboptError(f"a traced input of {count} elements")
        return torch.zeros(count, dtype=dtype)
