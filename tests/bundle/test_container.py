"""The container: layout to the byte, and no copy of the weights in memory."""

from __future__ import annotations

import io
import mmap
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.bundle.container import ArchiveReader, ArchiveWriter
from mobopt.ir import Attribute, Program, parse_graph
from mobopt.ir.types import TENSOR


def weights(megabytes: int) -> Program:
    """A Program with this much in its attributes, and a view of it."""
    program = Program()
    program.methods["forward"] = parse_graph("graph(%self : __torch__.Module, %x : Tensor):\n  return (%x)\n")
    weight = torch.arange(megabytes << 18, dtype=torch.float32).reshape(-1, 256)
    program.attributes["weight"] = Attribute(TENSOR, weight, is_parameter=True)
    program.attributes["transposed"] = Attribute(TENSOR, weight.t())
    return program


def test_payloads_are_aligned_and_stored() -> None:
    file = io.BytesIO()
    write_lite(weights(1), file, extra_files={"notes.txt": "hello", "empty": b""})
    data = file.getvalue()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            name_length, extra_length = struct.unpack_from("<2H", data, entry.header_offset + 26)
            extra = entry.header_offset + 30 + name_length
            assert (extra + extra_length) % 64 == 0, entry.filename
            assert data[extra : extra + 2] == b"FB"
            assert struct.unpack_from("<H", data, extra + 2)[0] == extra_length - 4
            assert entry.compress_type == zipfile.ZIP_STORED or entry.filename.endswith(".py")
    assert read_bundle(io.BytesIO(data)).metadata["extra_files"] == {"notes.txt": b"hello", "empty": b""}


def test_root_folder_is_the_file_name(tmp_path: Path) -> None:
    write_torchscript(weights(1), tmp_path / "net.v2.pt")
    assert ArchiveReader(tmp_path / "net.v2.pt").root == "net.v2"
    assert oct(os.stat(tmp_path / "net.v2.pt").st_mode & 0o600) == "0o600"


def test_views_share_their_storage() -> None:
    file = io.BytesIO()
    write_torchscript(weights(1), file)
    file.seek(0)
    program = read_bundle(file)
    weight, transposed = (program.attributes[name].value for name in ("weight", "transposed"))
    assert weight.data_ptr() == transposed.data_ptr()
    assert transposed.stride() == (1, 256)
    assert torch.equal(weight, transposed.t())
    assert len(file.getvalue()) < 1.01 * weight.nbytes


class Sparse(io.FileIO):
    """A file that skips what is all zeros instead of writing it."""

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if len(view) > 4096 and not any(view[:4096]):
            self.seek(len(view), os.SEEK_CUR)
            return len(view)
        return super().write(data)


@pytest.mark.sweep
def test_records_over_4_gigabytes(tmp_path: Path) -> None:
    size = (1 << 32) + 4096
    with Sparse(tmp_path / "big.pt", "w") as file:
        archive = ArchiveWriter(file, "big")
        archive.write("data/0", memoryview(mmap.mmap(-1, size)))
        archive.write("version", b"3\n")
        archive.close()
    with zipfile.ZipFile(tmp_path / "big.pt") as stock:
        assert [entry.file_size for entry in stock.infolist()][:2] == [size, 2]
        assert stock.read("big/version") == b"3\n"
    reader = torch._C.PyTorchFileReader(str(tmp_path / "big.pt"))
    assert reader.get_record("version") == b"3\n"
    assert ArchiveReader(tmp_path / "big.pt").find("data/0").size == size
    assert len(ArchiveReader(tmp_path / "big.pt").view("data/0")) == size


_PEAK = """
import resource, sys
from mobopt.bundle import read_bundle, write_lite
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
program = read_bundle(sys.argv[1])
write_lite(program, sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in other units elsewhere")
def test_weights_are_not_copied_in_memory(tmp_path: Path) -> None:
    write_lite(weights(100), tmp_path / "in.ptl")
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "in.ptl"), str(tmp_path / "out.ptl")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 130 * 1024  # KiB: the mapped file, once
    left, right = (ArchiveReader(tmp_path / name) for name in ("in.ptl", "out.ptl"))
    assert left.read("data/0") == right.read("data/0")
