"""Whatever a caller has of a model becomes a source: the one place that knows the kinds of sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import read_bundle
from mobopt.bundle.open_file import open_model_file
from mobopt.errors import ArgumentTypeError, BundleError, InputError
from mobopt.frontends.exported.archive import is_exported_file
from mobopt.frontends.exported.exported_program import ExportedFileSource, ExportedProgramSource
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.module_source import ModuleSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.source import Source
from mobopt.ir import Program

_Examples = Sequence[Any] | Mapping[str, Sequence[Any]] | None
_TAKEN = "ScriptModule, an ExportedProgram, an nn.Module with example inputs, an onnx.ModelProto or the path of a file"
_ONNX_VERSIONS, _ONNX_FIELDS = range(1, 64), (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)
"""How the message of an ONNX model begins: the version of its IR, and the tag of any other field."""


def source_of(
    model: object,
    preserved: Sequence[str] = (),
    example_inputs: _Examples = None,
    dynamic_shapes: Any = None,
) -> Source:
    """A model before conversion, whatever form it has.

    Args:
        model: a ScriptModule, an ExportedProgram, an nn.Module, an ``onnx.ModelProto``, or the path of a file, whose
            content tells what it is.
        preserved: names of methods and attributes to keep beside ``forward``.
        example_inputs: arguments of ``forward``, or of several methods by name; an nn.Module needs them.
        dynamic_shapes: sizes of an nn.Module's inputs that may change, as ``torch.export.export`` takes them.

    Raises:
        ArgumentTypeError: the model is of no form that is taken, or an nn.Module comes without example inputs.
        BundleError: the file is damaged, hostile, optimised already, or of a form that is not read.
        InputError: a preserved name does not exist, or an nn.Module can't be run on the example inputs.
        UnsupportedError: the model uses what a Program can't hold.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        return ModuleSource(model, preserved, example_inputs, dynamic_shapes)
    if dynamic_shapes is not None:
        raise InputError(f"dynamic_shapes are for an nn.Module, which is exported with them, not for a {type(model)}")
    if isinstance(model, Source):
        return model
    if isinstance(model, torch.jit.ScriptModule):
        return ScriptModuleSource(model, preserved)
    if isinstance(model, torch.export.ExportedProgram):
        return ExportedProgramSource(model, preserved)
    if isinstance(model, (str, os.PathLike)):
        return _source_of_file(Path(model), preserved, example_inputs)
    if is_onnx_model(model):
        return _onnx_source(model, preserved, example_inputs)
    raise ArgumentTypeError(f"Got {type(model)}, but a {_TAKEN} is expected.")


def whole_source_of(model: object, example_inputs: _Examples = None) -> Source:
    """A model with all of its methods; a TorchScript file may be one that was optimised for a backend.

    Args:
        model: as for :func:`source_of`.
        example_inputs: as for :func:`source_of`.

    Raises:
        MoboptError: as :func:`source_of`, but for files that are optimised already.
    """
    if isinstance(model, torch.jit.ScriptModule):
        methods = [name for name in model._c._method_names() if name != "forward" and not name.startswith("__")]
        return ScriptModuleSource(model, methods)
    if isinstance(model, (str, os.PathLike)) and _is_torchscript(Path(model)):
        return FileSource(Path(model), None, takes_optimized=True)
    return source_of(model, example_inputs=example_inputs)


def _is_torchscript(file: Path) -> bool:
    try:
        return bool(open_model_file(file).kinds)
    except BundleError:
        return False


def read_program(file: Path, prefer: str = "bytecode") -> Program:
    """What a file holds, to be run as it is: a bundle, plain or optimised, or a model before conversion.

    Args:
        file: its content tells what it is.
        prefer: as for :func:`mobopt.bundle.read_bundle`.

    Raises:
        BundleError: the file is damaged, hostile, or of a form that is not read.
        InputError: the model was exported in training mode.
        UnsupportedError: the model uses what a Program can't hold.
    """
    if is_onnx(file) or is_exported_file(file):
        return _source_of_file(file, (), None).program
    return read_bundle(file, prefer=prefer)


def _source_of_file(file: Path, preserved: Sequence[str], example_inputs: _Examples) -> Source:
    """By the file's content; its name may be any."""
    if is_onnx(file):
        return _onnx_source(file, preserved, example_inputs)
    if is_exported_file(file):
        return ExportedFileSource(file, preserved)
    return FileSource(file, preserved)


def is_onnx_model(model: object) -> bool:
    """Whether it is an ``onnx.ModelProto``; known by its name, so that nothing loads onnx that doesn't use it."""
    return type(model).__name__ == "ModelProto"


def is_onnx(file: Path) -> bool:
    """Whether a file is an ONNX model, by how it begins; by its name if it begins as no kind of file does."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        head = stream.read(3)
    if file.suffix == ".onnx" and head and head[:2] != b"PK":
        return True
    return len(head) == 3 and head[0] == 0x08 and head[1] in _ONNX_VERSIONS and head[2] in _ONNX_FIELDS


def _onnx_source(model: object, preserved: Sequence[str], example_inputs: _Examples) -> Source:
    from mobopt.frontends.onnx_source import OnnxSource

    return OnnxSource(model, preserved, example_inputs)
