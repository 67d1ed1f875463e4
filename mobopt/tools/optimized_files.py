"""Whether a file is optimised for a mobile backend, and for which."""

from __future__ import annotations

from pathlib import Path

from mobopt.bundle.open_file import open_model_file
from mobopt.frontends.open_source import is_onnx
from mobopt.ir import Program

_FLAGS = {"optimized_for_vulkan": "vulkan", "optimized_for_metal": "metal", "mobile_optimized": "cpu"}
_NAMESPACES = {"vulkan_prepack": "vulkan", "metal_prepack": "metal", "prepacked": "cpu"}


def is_optimized(file: Path) -> bool:
    """Whether a file's attributes or code speak of a mobile backend, seen without reading its weights.

    Raises:
        BundleError: the file is damaged, hostile, or of a form that is not read.
    """
    words = [word.encode() for word in (*_FLAGS, *_NAMESPACES)]
    return not is_onnx(file) and open_model_file(file).mentions(words)


def backend_of_program(program: Program) -> str:
    """The backend that an optimised Program is for."""
    for flag, backend in _FLAGS.items():
        if flag in program.attributes:
            return backend
    namespaces = {node.op.partition("::")[0] for graph in program.methods.values() for node in graph.walk()}
    return next((backend for name, backend in _NAMESPACES.items() if name in namespaces), "cpu")
