"""What is in a model before conversion that is no TorchScript: ONNX, or a program of torch.export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mobopt.errors import MoboptError
from mobopt.frontends.exported.archive import is_exported_file
from mobopt.frontends.open_source import is_onnx, source_of
from mobopt.ops.state import changed_attributes
from mobopt.tools.model_description import ModelDescription


@dataclass(frozen=True)
class ModelInfo:
    """A model's description, and what becomes of it.

    Attributes:
        size: of the file, in bytes; an ONNX model's external data lies in others.
        description: what the model says of itself.
        state: buffers that it changes, by name.
        nodes: of its translation; zero if there is none.
        refusal: why it is not translated; empty if it is.
    """

    size: int
    description: ModelDescription
    state: tuple[str, ...]
    nodes: int
    refusal: str


def describe_model(file: Path) -> ModelInfo | None:
    """What is in a file; None if it is neither an ONNX model nor a program of torch.export.

    Raises:
        BundleError: it is damaged, or of a release that is not read.
    """
    if is_onnx(file):
        from mobopt.tools.describe_onnx import describe_onnx

        description = describe_onnx(file)
    elif is_exported_file(file):
        from mobopt.tools.describe_exported import describe_exported

        description = describe_exported(file)
    else:
        return None
    size = file.stat().st_size
    try:
        program = source_of(file).program
    except MoboptError as error:
        return ModelInfo(size, description, (), 0, str(error))
    nodes = sum(1 for graph in program.methods.values() for _ in graph.walk())
    return ModelInfo(size, description, tuple(sorted(changed_attributes(program))), nodes, "")
