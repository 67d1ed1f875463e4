"""Test data: the tensors of examples as raw files of little-endian numbers, and a JSON file that describes them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from mobopt.tools.app_kit.description import Description, children, dtype_name, named_tensors
from mobopt.tools.app_kit.forms import Form
from mobopt.tools.app_kit.names import file_name

MANIFEST = "test.json"


def write_test_data(kit: Description, folder: Path) -> None:
    """Write ``test.json`` and one ``.bin`` file for each tensor of the examples.

    A ``.bin`` file has the elements in row-major order, each in its dtype's size, least byte first; bool is one byte.
    """
    tensors: dict[str, dict[str, Any]] = {}
    methods: dict[str, dict[str, Any]] = {}
    for method, example in kit.tests:
        for name, tensor in named_tensors(method):
            data = raw_bytes(tensor)
            entry = tensors[name] = _described(name, tensor, data)
            (folder / entry["file"]).write_bytes(data)
        methods[method.name] = {
            "inputs_are": example.origin,
            "tolerance": example.tolerance,
            "inputs": {
                argument.identifier: _tree(f"{method.identifier}.input.{argument.identifier}", argument.form, value)
                for argument, value in zip(method.arguments, example.arguments, strict=True)
            },
            "output": _tree(f"{method.identifier}.output", method.form, example.result),
        }
    model = kit.source.read_bytes()
    manifest = {
        "format": 1,
        "model": {"file": kit.file, "bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()},
        "byte_order": "little",
        "element_order": "row-major",
        "tolerance_is_relative_to": "the largest finite magnitude of each expected tensor; integers are equal",
        "methods": methods,
        "tensors": tensors,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, least byte first."""
    array = tensor.detach().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes() if sys.byteorder == "big" else array.tobytes()


def bin_name(name: str) -> str:
    """The file of a named tensor: ``forward.output_0.bin``."""
    return f"{file_name(name.replace('[', '_').replace(']', ''))}.bin"


def _described(name: str, tensor: torch.Tensor, data: bytes) -> dict[str, Any]:
    return {
        "file": bin_name(name),
        "dtype": dtype_name(tensor),
        "sizes": list(tensor.shape),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _tree(name: str, form: Form, value: Any) -> Any:
    """A value as JSON: tensors are named, other single values stand there."""
    if isinstance(value, torch.Tensor):
        return {"tensor": name}
    inner = [_tree(part, element, item) for part, element, item in children(name, form, value)]
    if isinstance(value, dict):
        return {"dict": [[key, item] for key, item in zip(value, inner, strict=True)]}
    if isinstance(value, tuple):
        return {"tuple": inner}
    if isinstance(value, list):
        return {"list": inner}
    return str(value) if isinstance(value, (float, complex)) and value - value != 0 else value
