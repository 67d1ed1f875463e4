"""Stock torch in a process of its own, to which nothing has been declared; imports nothing but torch."""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.jit.mobile import _get_model_bytecode_version, _get_model_ops_and_info, _load_for_lite_interpreter

InStockTorch = Callable[..., Any]
"""Calls a function of this module in that process."""


def full_error(data: bytes) -> str:
    """What ``torch.jit.load`` says against a file; empty if it loads."""
    try:
        torch.jit.load(io.BytesIO(data))
    except RuntimeError as error:
        return str(error).strip()
    return ""


def lite_error(data: bytes) -> str:
    """What the lite interpreter's loader says against a file; empty if it loads."""
    try:
        _load_for_lite_interpreter(io.BytesIO(data))
    except RuntimeError as error:
        return str(error).strip()
    return ""


def lite_table(data: bytes) -> tuple[int, dict[str, Any]]:
    """A lite file's bytecode version, and its operators with the number of arguments that they are given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.ptl")
        path.write_bytes(data)
        table = _get_model_ops_and_info(path)
        return _get_model_bytecode_version(path), {name: info.num_schema_args for name, info in table.items()}


def lite_result(data: bytes, inputs: list[torch.Tensor]) -> Any:
    """What the lite interpreter makes of a file of either form."""
    with torch.no_grad():
        return _load_for_lite_interpreter(io.BytesIO(data))(*inputs)
