"""What each command prints and writes."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from command_harness import DEVICE, Invoke, assert_empty, assert_refused
from torch import nn

from mobopt.bundle import read_bundle
from mobopt.commands.group import COMMANDS
from mobopt.tools.demo_model import demo_model


def test_help_names_every_command_and_imports_no_torch() -> None:
    script = "import sys; from click.testing import CliRunner; from mobopt.commands import main; "
    script += "r = CliRunner().invoke(main, ['--help']); print(r.output); assert not r.exit_code; "
    script += "assert not {'torch', 'numpy', 'rich', 'vulkan'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {command} ")


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").output == "mobopt, version 0.1.0\n"


@pytest.mark.parametrize("name", ["out.ptl", "out.pt"])
def test_convert_writes_what_run_gives_back(invoke: Invoke, files: Path, tmp_path: Path, name: str) -> None:
    result = invoke("convert", files / "scripted.pt", "-o", name, "--input", files / "input.npy", "--explain")
    assert result.exit_code == 0, result.output
    assert "fold_batch_norm" in result.stdout
    assert "largest difference from the model" in result.stdout
    result = invoke("run", name, "--input", files / "input.npy", "--output", "y.npy", "--device", DEVICE)
    assert result.exit_code == 0, result.output
    numpy.testing.assert_allclose(numpy.load("y.npy"), numpy.load(files / "expected.npy"), rtol=1e-4, atol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {name, "y.npy"}


def test_a_file_of_integers_for_a_cpu_runs_on_both(invoke: Invoke, files: Path) -> None:
    inputs = ("--input", files / "input.npy")
    result = invoke(
        "convert", files / "scripted.pt", "-o", "q.ptl", "--backend", "cpu", "--quantize", "int8_static", *inputs
    )
    assert result.exit_code == 0, result.output
    assert "with rounded weights it differs from the model by" in result.stdout
    expected = numpy.load(files / "expected.npy")
    for device in ("cpu", DEVICE):
        result = invoke("run", "q.ptl", *inputs, "--output", "y.npy", "--device", device)
        assert result.exit_code == 0, result.output
        assert 0 < abs(numpy.load("y.npy") - expected).max() < 0.05 * abs(expected).max()


def test_convert_as_json(invoke: Invoke, files: Path) -> None:
    result = invoke("convert", files / "scripted.pt", "-o", "out.ptl", "--random", "1,3,5,5", "--json")
    data = json.loads(result.stdout)
    assert data["operators_before"]["aten::batch_norm"] == 1
    assert data["operators_after"]["vulkan_prepack::run_conv2d_context"] == 1
    assert data["relative_difference"] < 1e-4
    assert data["bytes"] == Path("out.ptl").stat().st_size
    assert any(note["pass_name"] == "fold_batch_norm" and note["done"] for note in data["notes"])


@pytest.mark.parametrize("name", ["out.ptl", "out.pt"])
def test_convert_keeps_extra_files(invoke: Invoke, tmp_path: Path, name: str) -> None:
    extra = {"labels.txt": "cat\ndog", "model/settings.json": b"{\xff}"}
    torch.jit.save(torch.jit.script(nn.Linear(3, 2).eval()), "in.pt", _extra_files=dict(extra))
    result = invoke("convert", "in.pt", "-o", name, "--random", "1,3", "--backend", "cpu")
    assert result.exit_code == 0 and "extra files kept: " in result.stdout
    contents = {"labels.txt": b"cat\ndog", "model/settings.json": b"{\xff}"}
    assert read_bundle(Path(name)).metadata["extra_files"] == contents
    if name.endswith(".pt"):
        found: dict[str, str | bytes] = dict.fromkeys(extra, "")
        torch.jit.load(name, _extra_files=found)  # type: ignore[no-untyped-call]
        assert found == contents


def test_convert_says_what_an_image_of_three_channels_risks(invoke: Invoke, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)).eval()), str(tmp_path / "image.pt"))
    text = "may give NaN after other models ran: vulkan_prepack::run_conv2d_context"
    result = invoke("convert", "image.pt", "-o", "image.ptl", "--random", "1,3,7,5", "--no-clear-inputs")
    assert result.exit_code == 0 and text in result.stdout and "--no-clear-inputs" in result.stdout
    result = invoke("convert", "image.pt", "-o", "image.ptl", "--random", "1,3,7,5")
    assert result.exit_code == 0 and text not in result.stdout
    assert "aten::clamp" in invoke("opnames", "image.ptl").stdout


def test_convert_says_what_may_lie_otherwise_on_the_phone(invoke: Invoke) -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).transpose(1, 2).as_strided((2, 5, 4), (30, 2, 5))

    torch.jit.save(torch.jit.script(Turned()), "turned.pt")
    text = "may be wrong on the phone: aten::as_strided"
    given = ("convert", "turned.pt", "-o", "turned.ptl")
    assert text in invoke(*given).stdout and text not in invoke(*given, "--random", "2,5,6").stdout
    assert len(json.loads(invoke(*given, "--json").stdout)["misplaced"]) == 1


def test_convert_leaves_out_and_preserves(invoke: Invoke, tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dropout(self.conv(x), 0.5, False)

        @torch.jit.export
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x) * 2

    torch.jit.save(torch.jit.script(Two().eval()), "two.pt")
    options = ("--blocklist", "REMOVE_DROPOUT", "--blocklist", "insert_fold_prepack_ops", "--preserve", "twice")
    result = invoke("convert", "two.pt", "-o", "two.ptl", *options, "--json")
    after = json.loads(result.stdout)["operators_after"]
    assert after["aten::dropout"] == after["aten::conv2d"] == 2
    run = invoke("run", "two.ptl", "--random", "1,1,2,2", "--method", "twice", "--device", "cpu")
    assert run.exit_code == 0, run.output


def test_convert_bytecode_version(invoke: Invoke, files: Path) -> None:
    from torch.jit.mobile import _get_model_bytecode_version

    for version in range(4, 9):
        result = invoke("convert", files / "scripted.pt", "-o", "out.ptl", "--bytecode-version", version)
        assert result.exit_code == 0, result.output
        assert _get_model_bytecode_version("out.ptl") == version


def test_a_result_that_differs_is_exit_code_1(
    invoke: Invoke, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mobopt.samples.agreement.RELATIVE_TOLERANCE", -1.0)
    monkeypatch.setattr("mobopt.samples.agreement.TIMES_ROUNDING", 1e-9)  # and rounding explains nothing
    result = invoke("convert", files / "scripted.pt", "-o", "out.ptl", "--random", "1,3,5,5")
    assert_refused(result, "differs from the model", "nothing was written", code=1)
    assert_empty(tmp_path)


def test_run_as_json(invoke: Invoke, files: Path) -> None:
    options = ("--random", "1,3,5,5", "--repeat", 3, "--fallback", "error", "--device", DEVICE)
    data = json.loads(invoke("run", files / "bundle.ptl", *options, "--json").stdout)
    assert DEVICE in data["device"]
    assert len(data["call_ms"]) == 3 and data["dispatches"] > 0 and data["fallbacks"] == []
    assert data["outputs"] == [{"dtype": "float32", "shape": [1, 2]}]
    assert data["peak_bytes"] >= data["lower_bound_bytes"] > 0


def test_who_times_a_file_is_told_that_it_is_not_optimised(invoke: Invoke, files: Path) -> None:
    def note(name: str, *options: object) -> str:
        result = invoke("run", files / name, "--random", "1,3,5,5", *options)
        assert result.exit_code == 0, result.output
        return "".join(line for line in result.stdout.splitlines() if line.startswith("note:"))

    there = ("--device", DEVICE)
    assert "convert" in note("scripted.pt", *there, "--repeat", 2)
    assert not note("scripted.pt", *there)
    assert not note("bundle.ptl", *there, "--repeat", 2)
    assert not note("scripted.pt", "--device", "cpu", "--repeat", 2)


def test_run_on_the_cpu_agrees(invoke: Invoke, files: Path) -> None:
    result = invoke("run", files / "bundle.ptl", "--input", files / "input.npy", "--output", "y.npy", "--device", "cpu")
    assert result.exit_code == 0, result.output
    numpy.testing.assert_allclose(numpy.load("y.npy"), numpy.load(files / "expected.npy"), rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs(invoke: Invoke, tmp_path: Path) -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return x + 1, {"index": index * 2}

    torch.jit.save(torch.jit.script(Several()), "s.pt")
    assert invoke("convert", "s.pt", "-o", "s.ptl").exit_code == 0
    result = invoke("run", "s.ptl", "--random", "2,3", "--random", "4:int64", "--output", "y.npy", "--json")
    assert [item["dtype"] for item in json.loads(result.stdout)["outputs"]] == ["float32", "int64"]
    assert numpy.load("y_0.npy").shape == (2, 3) and numpy.load("y_1.npy").dtype == numpy.int64


def test_opnames(invoke: Invoke, files: Path) -> None:
    plain = invoke("opnames", files / "bundle.ptl").stdout.splitlines()
    assert plain == sorted(set(plain)) and "vulkan_prepack::run_linear_context" in plain
    assert json.loads(invoke("opnames", files / "bundle.ptl", "--json").stdout) == plain
    assert invoke("opnames", files / "bundle.ptl", "--yaml").stdout == "".join(f"- {name}\n" for name in plain)


def test_opnames_of_a_stock_model_are_those_that_its_loader_looks_up(invoke: Invoke, files: Path) -> None:
    """Torch's own list leaves out some of the branches that are never taken."""
    listed = set(torch.jit.export_opnames(torch.jit.load(str(files / "scripted.pt"))))
    found = set(invoke("opnames", files / "scripted.pt").stdout.splitlines())
    assert listed < found and "aten::relu_" in found - listed


def test_inspect(invoke: Invoke, files: Path) -> None:
    result = invoke("inspect", files / "bundle.ptl")
    assert result.exit_code == 0, result.output
    for text in ("forward", "vulkan_prepack::run_conv2d_context", "Conv2dPackedContext", "_load_for_lite_interpreter"):
        assert text in result.stdout
    data = json.loads(invoke("inspect", files / "bundle.ptl", "--json").stdout)
    assert data["bytecode_version"] == 8


def test_devices(invoke: Invoke) -> None:
    assert DEVICE in invoke("devices").stdout
    data = json.loads(invoke("devices", "--json").stdout)
    assert [info["index"] for info in data] == list(range(len(data)))
    assert all(info["limits"]["max_storage_buffer_range"] > 0 for info in data)


def test_demo(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("demo", "--device", DEVICE, "--repeat", 1)
    assert result.exit_code == 0, result.output
    for text in (
        "fold_batch_norm",
        "largest difference",
        "PyTorch on the CPU",
        "peak memory",
        "mobilenetv2-vulkan.ptl",
    ):
        assert text in result.stdout
    files = {path.name for path in (tmp_path / "demo-output").iterdir()}
    assert files == {"mobilenetv2.pt", "mobilenetv2-vulkan.ptl", "input.npy"}


def test_demo_model_is_mobilenetv2() -> None:
    model = demo_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872  # the paper's 3.4 M, as torchvision
    assert torch.equal(model.classifier[1].weight, demo_model().classifier[1].weight)


def test_archives_keep_no_local_names(files: Path) -> None:
    with zipfile.ZipFile(files / "bundle.ptl") as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"bundle"}


def test_passes_are_listed_with_their_reasons(invoke: Invoke) -> None:
    result = invoke("convert", "--passes", "--backend", "metal", "--copy-to-host", "--json")
    assert result.exit_code == 0
    steps = json.loads(result.output)
    assert [step["pass"] for step in steps][-3:] == ["copy_to_host", "simplify", "set_flag"]
    assert all(step["reason"] for step in steps)
    assert "copy_to_host" not in invoke("convert", "--passes", "--backend", "metal").output


@pytest.mark.parametrize(
    ("arguments", "missing"), [((), "argument 'MODEL'"), (("model.pt",), "option '-o' / '--output'")]
)
def test_what_a_conversion_needs_is_named(
    invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], missing: str
) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    result = invoke("convert", *(tmp_path / name for name in arguments))
    assert result.exit_code == 2 and f"Missing {missing}" in result.output


def test_graphs_are_dumped_after_each_pass_that_changes_them(invoke: Invoke, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model, output, folder = tmp_path / "net.pt", tmp_path / "net.ptl", tmp_path / "dumps" / "new"
    torch.jit.save(torch.jit.script(network), str(model))
    result = invoke("convert", model, "-o", output, "--random", "1,3,8,8", "--dump-ir", folder)
    assert result.exit_code == 0, result.output
    texts = {path.name: path.read_text() for path in sorted(folder.iterdir())}
    assert next(iter(texts)) == "00-model.txt" and "aten::batch_norm" in texts["00-model.txt"]
    assert "conv.py:" in texts["00-model.txt"]
    (folded,) = [text for name, text in texts.items() if name.endswith("-fold_batch_norm.txt")]
    assert "aten::batch_norm" not in folded and "aten::conv2d" in folded
    assert not any("hoist" in name for name in texts), "it changes nothing here"
    last = list(texts.values())[-1]
    assert "# attributes\n" in last and "optimized_for_vulkan : bool" in last
    blocked = invoke("convert", model, "-o", output, "--random", "1,3,8,8", "--dump-ir", model / "x")
    assert blocked.exit_code == 2 and "net.pt" in blocked.output


def test_what_runs_on_the_cpu_for_some_sizes_is_said_once(invoke: Invoke, files: Path) -> None:
    arguments = (files / "scripted.pt", "--random", "1,3,5,5", "--bound", "0=1..4")
    result = invoke("convert", *arguments, "-o", "m.ptl")
    assert "operators run on the phone's CPU, because the GPU is right for only some" in result.output
    assert "s0, dimension 0 of the input input: 1 to 4" in result.output
    audited = invoke("audit", *arguments).output
    assert "s0 >= 2 is true of only some of the sizes" in audited
    assert "(given); s0, dimension 0 of the input input: 1 to 4" in audited
