"""The formats that a model can be migrated to, by the ending of the new file."""

from __future__ import annotations

from pathlib import Path

from mobopt.exporters.executorch_file import ExecutorchFile
from mobopt.exporters.onnx_file import OnnxFile
from mobopt.exporters.targets import ExportedProgramFile, Target, TorchScriptFile
from mobopt.options import parse_format

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
    return TARGETS[parse_format(path)]
