"""Operator tables are those that stock torch writes, or converts its own files to, for every bytecode version."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import CASES
from torch.jit.mobile import _backport_for_mobile_to_buffer, _get_model_bytecode_version

from mobopt.bundle import read_bundle, write_lite
from mobopt.bundle.open_file import open_model_file

Tables = dict[str, set[tuple[str, int | None]]]


def operator_tables(data: bytes) -> tuple[int, Tables]:
    """Version of the bytecode, and each method's operators with the number of arguments that they are given."""
    version, functions = open_model_file(io.BytesIO(data)).bytecode()
    return version, {
        function.name: {(entry.qualified_name, entry.argument_count) for entry in function.operators}
        for function in functions
    }


@pytest.fixture(scope="module", params=CASES)
def stock(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lite file that stock torch has written."""
    path = tmp_path_factory.mktemp("stock") / "stock.ptl"
    torch.manual_seed(0)
    torch.jit.script(CASES[request.param][0]()).eval()._save_for_lite_interpreter(str(path))
    return path


def converted(stock: Path, version: int) -> bytes:
    """The file in another bytecode version, by torch's own converter."""
    if version == _get_model_bytecode_version(stock):
        return stock.read_bytes()
    data: Any = _backport_for_mobile_to_buffer(str(stock), to_version=version)
    return bytes(data)


@pytest.mark.parametrize("prefer", ["bytecode", "code"])
@pytest.mark.parametrize("version", [4, 5, 6, 7, 8])
def test_tables_are_those_of_torch(stock: Path, version: int, prefer: str) -> None:
    ours = io.BytesIO()
    write_lite(read_bundle(stock, prefer=prefer), ours, version)
    expected_version, expected = operator_tables(converted(stock, version))
    if version in (6, 7):
        # torch's converter leaves the exception's class out, which its lite interpreter then misses when it raises.
        raising = {("prim::RaiseException", 1)}
        expected = {name: table - raising | {(op, 2) for op, _ in table & raising} for name, table in expected.items()}
    assert operator_tables(ours.getvalue()) == (expected_version, expected)
