"""The Kotlin of kits and taps goes through the real compiler, and what the code of taps writes is what numpy reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy
import pytest
import torch
from kit_nets import every_kind_examples, write_every_kind
from kotlin_compiler import compile_java, compile_kotlin, declare_api, find_compiler, standard_library

import mobopt

COMPILER = find_compiler()
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(COMPILER is None, reason="no Kotlin compiler: pip install kotlin-jupyter-kernel, and Java"),
]
RUNNER = (Path(__file__).parent / "Runner.java").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of PyTorch Mobile and Android that code is compiled with."""
    return declare_api(tmp_path_factory.mktemp("api"))


def test_kits_compile(api: Path, tmp_path: Path) -> None:
    mobopt.app_kit(write_every_kind(tmp_path / "every.ptl"), tmp_path / "kit", example_inputs=every_kind_examples())
    files = sorted((tmp_path / "kit" / "android").glob("*.kt"))
    assert len(files) == 2 and compile_kotlin(COMPILER, files, api, tmp_path / "out") == ""
    files[0].write_text(files[0].read_text().replace("IValue.from(scale)", "IValue.from(image, scale)"))
    assert "error:" in compile_kotlin(COMPILER, files, api, tmp_path / "out")


def test_the_code_of_taps_writes_what_numpy_reads(api: Path, tmp_path: Path) -> None:
    model = torch.jit.script(torch.nn.ReLU())
    mobopt.tap(model, tmp_path / "net.ptl", example_inputs=[torch.randn(3)], backend="cpu")
    assert compile_kotlin(COMPILER, [tmp_path / "NetTaps.kt"], api, tmp_path / "out") == ""
    library = standard_library()
    runner = compile_java(tmp_path / "run", {"Runner": RUNNER}, [str(api), str(tmp_path / "out"), library])
    path = ":".join(map(str, (runner, api, tmp_path / "out", library)))
    command = ["java", "-cp", path, "Runner", str(tmp_path / "phone.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = numpy.arange(6).reshape(2, 3, 1) * 1.5 - 3
    with numpy.load(tmp_path / "phone.npz") as found:
        assert found["number"].shape == () and found["number"] == numpy.float32(-3)
        assert found["empty.0"].shape == (0, 5) and found["empty.0"].dtype == numpy.float64
        for name in ("FLOAT32", "FLOAT64", "INT32", "INT8"):
            assert found[name].dtype == name.lower() and numpy.array_equal(found[name], values.astype(name.lower()))
        assert numpy.array_equal(found["INT64"], values.astype(numpy.int64) * 2**33)
        assert numpy.array_equal(found["UINT8"], (200 + numpy.arange(6, dtype=numpy.uint8)).reshape(2, 3, 1))
