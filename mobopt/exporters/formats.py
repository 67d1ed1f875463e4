"""The formats that a model can be migrated to, by the ending of the new file."""

from __future__ import annotations

from pathlib import Path

from mobopt.errors import InputError
from mobopt.exporters.executorch_file import ExecutorchFile
from mobopt.exporters.onnx_file import OnnxFile
from mobopt.exporters.targets import ExportedProgramFile, Target, TorchScriptFile

TARGETS: dict[str, Target] = {
    ".pt": TorchScriptFile(),
    ".pt2": ExportedProgramFile(),
    ".onnx": OnnxFile(),
    ".pte": ExecutorchFile(),
}
"""By ending."""


def target_of(path: Path) -> Target:
    """The format that a path asks for.

    Raises:
        InputError: no format has this ending.
    """
    if path.suffix.lower() not in TARGETS:
        known = ", ".join(f"{ending} ({target.name})" for ending, target in TARGETS.items())
        raise InputError(f"the output {path} ends in {path.suffix or 'nothing'!r}, which names no format; use {known}")
    return TARGETS[path.suffix.lower()]
