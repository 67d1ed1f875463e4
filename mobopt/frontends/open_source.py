"""Whatever a caller has of a model becomes a source: the one place that knows the kinds of sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from mobopt.errors import ArgumentTypeError
from mobopt.frontends.exported.archive import is_exported_file
from mobopt.frontends.exported.exported_program import ExportedFileSource, ExportedProgramSource
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.source import Source

_TAKEN = "ScriptModule, an ExportedProgram or the path of a file"


def source_of(model: object, preserved: Sequence[str] = ()) -> Source:
    """A model before conversion, whatever form it has.

    Args:
        model: a ScriptModule, an ExportedProgram, or the path of a file, whose content tells what it is.
        preserved: names of methods and attributes to keep beside ``forward``.

    Raises:
        ArgumentTypeError: the model is of no form that is taken.
        BundleError: the file is damaged, hostile, optimised already, or of a form that is not read.
        InputError: a preserved name does not exist.
        UnsupportedError: the model uses what a Program can't hold.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, torch.jit.ScriptModule):
        return ScriptModuleSource(model, preserved)
    if isinstance(model, torch.export.ExportedProgram):
        return ExportedProgramSource(model, preserved)
    if isinstance(model, (str, os.PathLike)):
        return _source_of_file(Path(model), preserved)
    raise ArgumentTypeError(f"Got {type(model)}, but a {_TAKEN} is expected.")


def _source_of_file(file: Path, preserved: Sequence[str]) -> Source:
    """By the file's content; its name may be any."""
    if is_exported_file(file):
        return ExportedFileSource(file, preserved)
    return FileSource(file, preserved)
