"""The C++ of a kit compiles against torch's own headers, and its test program agrees with the expected outputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kit_nets import every_kind_examples, write_every_kind

import mobopt

TORCH = Path(torch.__file__).parent
COMPILER = shutil.which("g++")


@pytest.mark.sweep
@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_cpp_compiles_and_agrees(tmp_path: Path) -> None:
    examples = every_kind_examples()
    mobopt.app_kit(write_every_kind(tmp_path / "net.ptl"), tmp_path / "kit", example_inputs=examples)
    program = tmp_path / "program"
    includes = [f"-I{TORCH}/include", f"-I{TORCH}/include/torch/csrc/api/include"]
    libraries = [f"-L{TORCH}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH}/lib"]
    sources = ["net_model.cpp", "net_test.cpp"]
    warnings = ["-Wall", "-Werror", "-isystem", f"{TORCH}/include"]
    command = [str(COMPILER), "-std=c++20", "-O0", *warnings, *includes[1:], *sources, "-o", str(program), *libraries]
    built = subprocess.run(command, cwd=tmp_path / "kit" / "cpp", capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    run = [str(program), str(tmp_path / "kit" / "net.ptl"), str(tmp_path / "kit" / "test")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") > 30 and "WRONG" not in done.stdout
    data = tmp_path / "kit" / "test" / "pair.output.boxes.bin"
    data.write_bytes(bytes(reversed(data.read_bytes())))
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "WRONG pair.output.boxes" in done.stdout
