"""``mobopt migrate`` and ``mobopt.migrate``: new files of old ones, compared, whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from command_harness import Invoke, assert_empty, assert_refused

import mobopt
from mobopt.errors import ArgumentTypeError, BundleError, InputError
from mobopt.exporters.formats import TARGETS
from mobopt.exporters.targets import Order, TorchScriptFile, Written
from mobopt.options import FORMATS
from mobopt.tools.migration import MigrationRefusedError

GOLDEN = Path(__file__).parent.parent / "golden"


def test_a_bundle_becomes_a_file_that_stock_torch_opens(files: Path, tmp_path: Path, invoke: Invoke) -> None:
    before = (files / "bundle.ptl").read_bytes()
    done = invoke("migrate", files / "bundle.ptl", "-o", "new.pt", "--input", files / "input.npy", "--explain")
    assert done.exit_code == 0, done.output
    assert "new.pt: TorchScript of forward" in done.stdout
    assert "packed layers made plain: 1 aten::conv2d, 1 aten::linear" in done.stdout
    assert "transfers between devices removed: 2" in done.stdout
    assert "is aten::conv2d on plain weights" in done.stdout
    assert "run by torch.jit.load: " in done.stdout and "float32[1, 3, 5, 5] (given)" in done.stdout
    x = torch.from_numpy(numpy.load(files / "input.npy"))
    loaded = torch.jit.load(tmp_path / "new.pt")  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loaded(x), torch.from_numpy(numpy.load(files / "expected.npy")))
    assert (files / "bundle.ptl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["new.pt"]


def test_an_exported_program(files: Path, tmp_path: Path, invoke: Invoke) -> None:
    options = ["--input", files / "input.npy", "--free", "input:0=1..16", "--json"]
    done = invoke("migrate", files / "bundle.ptl", "-o", "new.pt2", *options)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["format"] == "ExportedProgram" and data["methods"] == ["forward"]
    assert data["unpacked"] == {"aten::conv2d": 1, "aten::linear": 1} and data["transfers_removed"] == 2
    assert data["relative_difference"] <= 1e-6 and data["runner"] == "torch.export.load"
    (sizes,) = data["sizes"].values()
    assert sizes.endswith(", 3, 5, 5]") and not sizes.startswith("[1")
    module = torch.export.load(tmp_path / "new.pt2").module()
    x = torch.from_numpy(numpy.load(files / "input.npy"))
    expected = torch.from_numpy(numpy.load(files / "expected.npy"))
    torch.testing.assert_close(module(x.repeat(5, 1, 1, 1)), expected.repeat(5, 1))


def test_an_onnx_file(files: Path, tmp_path: Path, invoke: Invoke) -> None:
    options = ["--input", files / "input.npy", "--opset", "19"]
    done = invoke("migrate", files / "bundle.ptl", "-o", "new.onnx", *options)
    assert done.exit_code == 0, done.output
    assert "new.onnx: ONNX of forward" in done.stdout and "run by onnx" in done.stdout
    assert [item.version for item in onnx.load(tmp_path / "new.onnx").opset_import] == [19]


class Draws(torch.nn.Module):
    """Random numbers, of which ONNX draws others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize("ending", [".pt", ".pt2", ".onnx"])
def test_random_numbers(ending: str, tmp_path: Path, invoke: Invoke) -> None:
    torch.jit.save(torch.jit.script(Draws().eval()), tmp_path / "old.pt")  # type: ignore[no-untyped-call]
    done = invoke("migrate", "old.pt", "-o", f"new{ending}", "--random", "3,5")
    assert done.exit_code == 0 and (tmp_path / f"new{ending}").exists(), done.output
    assert "ill-conditioned" not in done.stdout
    if ending == ".onnx":
        assert "draws random numbers (aten::rand_like)" in done.stdout and "numbers were not compared" in done.stdout
    else:
        assert "largest difference from old.pt" in done.stdout and ": 0.0e+00" in done.stdout


def test_inputs_of_the_method_alone_are_told(tmp_path: Path, invoke: Invoke) -> None:
    torch.jit.save(torch.jit.script(Coder().eval()), tmp_path / "old.pt")  # type: ignore[no-untyped-call]
    done = invoke("migrate", "old.pt", "-o", "new.pt2", "--method", "encode", "--random", "encode:3,5")
    assert done.exit_code == 0 and "on encode: float32[3, 5]" in done.stdout and "224" not in done.stdout


class Coder(torch.nn.Module):
    """Two methods."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.jit.export
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0) + 1


def test_several_methods_and_extra_files(tmp_path: Path) -> None:
    script, x = torch.jit.script(Coder()), torch.arange(3.0)
    old = tmp_path / "old.pt"
    torch.jit.save(script, old, _extra_files={"labels.txt": "cat"})
    inputs = {"forward": [x], "encode": [x]}
    whole = mobopt.migrate(old, tmp_path / "new.pt", example_inputs=inputs)
    assert whole.methods == ("forward", "encode") and whole.left_out == ()
    extra = {"labels.txt": ""}
    loaded = torch.jit.load(tmp_path / "new.pt", _extra_files=extra)  # type: ignore[no-untyped-call]
    assert extra == {"labels.txt": b"cat"}
    torch.testing.assert_close(loaded.encode(x), script.encode(x))
    part = mobopt.migrate(script, tmp_path / "new.pt2", method="encode", example_inputs=inputs)
    assert part.methods == ("encode",) and part.left_out == ("method forward",)
    torch.testing.assert_close(torch.export.load(tmp_path / "new.pt2").module()(x), script.encode(x))
    with pytest.raises(InputError, match="no method 'decode'; its methods are forward, encode"):
        mobopt.migrate(old, tmp_path / "no.pt2", method="decode")


class _Wrong(TorchScriptFile):
    """A format that loses something."""

    def write(self, order: Order, path: Path) -> Written:
        written = super().write(order, path)
        return Written(lambda method: lambda arguments: written.call(method)(arguments) * 1.01, "nobody", ("forward",))


def test_a_file_that_computes_something_else_is_not_written(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    monkeypatch.setitem(TARGETS, ".pt", _Wrong())
    (tmp_path / "new.pt").write_bytes(b"older")
    with pytest.raises(MigrationRefusedError, match="run by nobody, differs from the model by 1"):
        mobopt.migrate(files / "bundle.ptl", tmp_path / "new.pt")
    assert_refused(invoke("migrate", files / "bundle.ptl", "-o", "new.pt"), "nothing was written", code=1)
    assert (tmp_path / "new.pt").read_bytes() == b"older"
    assert mobopt.migrate(files / "bundle.ptl", tmp_path / "new.pt", force=True).size > 1000


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("FILE", "-o", "new.bin"), ("'.bin', which names no format", ".pt2 (ExportedProgram)")),
        (("FILE", "-o", "no/new.pt"), ("there is no folder no",)),
        (("PLAIN", "-o", "PLAIN"), ("it is read as well",)),
        (("FILE", "-o", "new.pt2", "--free", "x"), ("can't read --free 'x'",)),
        (("FILE", "-o", "new.pt2", "--free", "x:0=4..2"), ("2 is less than 4",)),
        (("FILE", "-o", "new.pt2", "--free", "x:0", "--fixed-sizes"), ("not both",)),
        (("FILE", "-o", "new.pt2", "--free", "x:0", "--random", "1,3,5,5"), ("no input 'x'",)),
        (("FILE", "-o", "new.pt2", "--method", "decode"), ("no method 'decode'",)),
        (("FILE", "-o", "new.pt2", "--random", "1,2"), ("can't be run on the example inputs",)),
        (("DAMAGED", "-o", "new.pt"), ("damaged.ptl",)),
    ],
)
def test_bad_input(words: tuple[str, ...], texts: tuple[str, ...], files: Path, tmp_path: Path, invoke: Invoke) -> None:
    bundle, damaged = files / "bundle.ptl", files / "damaged.ptl"
    damaged.write_bytes(bundle.read_bytes()[:700])
    places = {"FILE": bundle, "DAMAGED": damaged, "PLAIN": files / "scripted.pt"}
    given: list[Any] = [places.get(word, word) for word in words]
    assert_refused(invoke("migrate", *given), *texts)
    assert_empty(tmp_path)


def test_the_ending_is_refused_before_torch_is_imported(files: Path) -> None:
    script = "import sys\nfrom mobopt.commands import main\ntry:\n    main()\n"
    script += "finally:\n    assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", script, "migrate", str(files / "bundle.ptl"), "-o", "new.bin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("Error: the output new.bin ends in '.bin'")
    assert {ending: target.name for ending, target in TARGETS.items()} == FORMATS


class Unguessable(torch.nn.Module):
    """Nobody guesses what it takes."""

    def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
        return x[0] + x[1]


def test_without_inputs(tmp_path: Path) -> None:
    script = torch.jit.script(Unguessable())
    with pytest.raises(InputError, match="made by running it; give them"):
        mobopt.migrate(script, tmp_path / "new.pt2")
    with pytest.raises(MigrationRefusedError, match="could not be compared"):
        mobopt.migrate(script, tmp_path / "new.pt")
    assert_empty(tmp_path)
    assert mobopt.migrate(script, tmp_path / "new.pt", force=True).relative_difference is None


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError):
        mobopt.migrate(3, tmp_path / "new.pt")
    with pytest.raises(BundleError):
        mobopt.migrate(tmp_path / "absent.pt", tmp_path / "new.pt")
