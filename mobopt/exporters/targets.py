"""What a format is that a model can be migrated to: what writes a file of it, and what runs that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import write_torchscript
from mobopt.deprecations import of_torchscript_unsaid
from mobopt.errors import InputError, MoboptError
from mobopt.exporters.exported_program import Exported, Sizes, exported_program, save
from mobopt.exporters.plain import PlainModel
from mobopt.options import FORMATS

DEFAULT_OPSET = 18
DEFAULT_DELEGATE = "xnnpack"
Call = Callable[[list[Any]], Any]
"""Runs a method of the new file on its arguments."""


class NotRunError(MoboptError):
    """What runs a new file fails on it; that need not be the file's fault."""


@dataclass(frozen=True)
class Written:
    """A file that was written, and how to run it."""

    call: Callable[[str], Call]
    """What runs a method, by the method's name."""
    runner: str
    """What runs it, in words."""
    methods: tuple[str, ...]
    """Those that the file holds."""
    sizes: dict[str, str] = field(default_factory=dict)
    """Of the inputs, by name, where the format fixes some."""
    remarks: tuple[str, ...] = ()
    """What a user should know of the file."""


@dataclass(frozen=True)
class Order:
    """What is to be written."""

    plain: PlainModel
    method: str
    arguments: tuple[Any, ...] | None
    """Example arguments of the method; None if none are known."""
    sizes: Sizes = "auto"
    extra_files: dict[str, bytes] = field(default_factory=dict)
    opset: int = DEFAULT_OPSET
    """Of ONNX."""
    delegate: str = DEFAULT_DELEGATE
    """What an ExecuTorch file is lowered for."""

    def exported(self) -> Exported:
        """The method as an ExportedProgram.

        Raises:
            InputError: there are no example arguments.
            UnsupportedError: torch.export can't express the model.
        """
        if self.arguments is None:
            raise InputError(
                f"no inputs that {self.method} takes are known, and this format is made by running it; give them with "
                "--input x.npy or --random 1,3,224,224"
            )
        return exported_program(self.plain.program, self.method, self.arguments, self.sizes)


class Target(ABC):
    """A format."""

    name: str
    """In words."""
    needs_inputs = True
    """Whether the file can't be written without example inputs."""
    draws_as_torch = True
    """Whether random numbers are those of torch's generator, so that models that draw some can be compared."""

    @abstractmethod
    def write(self, order: Order, path: Path) -> Written:
        """Write a file, and give what runs it.

        Raises:
            UnsupportedError: the format can't hold the model, or a package is missing that writes it.
        """


class TorchScriptFile(Target):
    """Plain TorchScript, for ``torch.jit.load`` of any PyTorch."""

    name = FORMATS[".pt"]
    needs_inputs = False

    def write(self, order: Order, path: Path) -> Written:
        """All methods."""
        program = order.plain.program
        write_torchscript(program, path, extra_files=order.extra_files)
        with of_torchscript_unsaid():
            loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]

        def call(method: str) -> Call:
            return lambda arguments: _without_gradients(getattr(loaded, method), arguments)

        return Written(call, "torch.jit.load", tuple(program.methods))


class ExportedProgramFile(Target):
    """A ``.pt2`` file of torch.export."""

    name = FORMATS[".pt2"]

    def write(self, order: Order, path: Path) -> Written:
        """One method."""
        exported = order.exported()
        save(exported.program, path)
        module = torch.export.load(path).module()
        remarks = (exported.remark,) if exported.remark else ()
        return Written(
            lambda method: lambda arguments: _without_gradients(module, arguments),
            "torch.export.load",
            (order.method,),
            exported.sizes,
            remarks,
        )


def _without_gradients(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    with torch.no_grad():
        return function(*arguments)
