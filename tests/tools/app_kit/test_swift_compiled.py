"""The Swift of taps and kits goes through the real compiler, and what it writes is what numpy reads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
import torch

import mobopt

COMPILER = shutil.which("swiftc")


@pytest.mark.sweep
@pytest.mark.skipif(COMPILER is None, reason="no swiftc")
def test_the_code_of_taps_writes_what_numpy_reads(tmp_path: Path) -> None:
    model = torch.jit.script(torch.nn.ReLU())
    mobopt.tap(model, tmp_path / "net.ptl", example_inputs=[torch.randn(3)], backend="cpu")
    mobopt.app_kit(tmp_path / "net.ptl", tmp_path / "kit")
    main = Path(__file__).parent / "main.swift"
    sources = [main, tmp_path / "NetTaps.swift", tmp_path / "kit" / "ios" / "Net.swift"]
    command = [str(COMPILER), "-warnings-as-errors", *map(str, sources), "-o", str(tmp_path / "save")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    done = subprocess.run(
        [str(tmp_path / "save"), str(tmp_path / "phone")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {file.stem: numpy.load(file) for file in (tmp_path / "phone").glob("*.npy")}
    assert set(found) == {"float", "001.tanh.0", "bytes", "number", "empty"}
    expected = (numpy.arange(6, dtype=numpy.float32) * 1.5 - 3).reshape(2, 3, 1)
    assert numpy.array_equal(found["float"], expected) and found["float"].dtype == numpy.float32
    assert found["001.tanh.0"].tolist() == [-3, 2**33]
    assert found["bytes"].dtype == numpy.uint8 and found["bytes"].tolist() == [[200 + row] for row in range(6)]
    assert found["number"].shape == () and found["number"] == 7
    assert found["empty"].shape == (0, 5) and found["empty"].dtype == numpy.float64
