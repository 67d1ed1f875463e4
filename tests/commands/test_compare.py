"""``mobopt compare`` and ``mobopt bisect``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_harness import DEVICE, Invoke, assert_refused

from mobopt.commands.terminal import print_json
from mobopt.runtimes.vulkan.engine.device import Device

RANDOM = ("--random", "1,3,5,5")


@pytest.fixture(autouse=True)
def chosen_device(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device that tests use."""
    monkeypatch.setenv("MOBOPT_DEVICE", DEVICE)


def test_the_gpu_beside_the_cpu(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    command = ("compare", files / "scripted.pt", *RANDOM)
    result = invoke(*command, "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert "the outputs agree" in result.stdout and "aten::linear" in result.stdout
    found = json.loads(invoke(*command, "--json").stdout)
    assert found["agrees"] and found["first"] is None and found["layers"][0]["own"]["error"] < 1e-5
    assert "<title>scripted.pt on " in (tmp_path / "page.html").read_text()


def test_a_model_beside_its_bundle(invoke: Invoke, files: Path) -> None:
    result = invoke("compare", files / "scripted.pt", files / "bundle.ptl", *RANDOM)
    assert result.exit_code == 0, result.output
    assert "bundle.ptl on CPU" in result.stdout


def test_over_the_tolerance(invoke: Invoke, files: Path) -> None:
    result = invoke("compare", files / "scripted.pt", "--passes-b", "vulkan:2.6", *RANDOM, "--tolerance", "0")
    assert result.exit_code == 1
    assert "the first layer over 0 is number " in result.stdout and "the two differ" in result.stdout


def test_what_can_not_be_compared(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    scripted = files / "scripted.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(5, 2)), "other.pt")
    assert_refused(invoke("compare", scripted, tmp_path / "other.pt", *RANDOM), "can't be compared: the first returns")
    assert_refused(invoke("compare", scripted, "--passes-b", "vulkan:9.9", *RANDOM), "9.9")
    assert_refused(invoke("compare", scripted, "--device-b", "nosuchdevice", *RANDOM), "nosuchdevice")
    assert_refused(invoke("compare", scripted, *RANDOM, "--html", "no/folder.html"), "no folder")
    assert_refused(invoke("compare", files / "input.npy"), "input.npy")
    assert_refused(invoke("bisect", scripted, "--device", "cpu", *RANDOM), "nothing to bisect")
    assert_refused(invoke("bisect", scripted, "-o", scripted, *RANDOM), "is a file")


def test_bisect(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    result = invoke("bisect", files / "scripted.pt", *RANDOM, "--passes", "vulkan:mobopt")
    assert result.exit_code == 0, result.output
    assert "the outputs agree" in result.stdout
    result = invoke("bisect", files / "scripted.pt", *RANDOM, "--tolerance", "0", "-o", "small")
    assert result.exit_code == 1, result.output
    assert "node: aten::" in result.stdout and "the smallest program that shows it has" in result.stdout
    assert "bisection" not in result.output  # what is left to the CPU on purpose is no warning
    assert {path.name for path in (tmp_path / "small").iterdir()} >= {"program.txt", "values.npz", "run.py"}


def test_bisect_in_halves(invoke: Invoke, files: Path) -> None:
    command = ("bisect", files / "scripted.pt", *RANDOM, "--precision", "fp16")
    found = json.loads(invoke(*command, "--json").stdout)
    assert found["kind"] == "nothing" and 1e-6 < found["error"] < 1e-2 and found["tolerance"] == 1e-2
    result = invoke(*command, "--tolerance", "1e-6", "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["kind"] == "half"
    kept = invoke(*command, "--tolerance", "1e-6", "--fp32-nodes", "aten::*", "--json")
    assert kept.exit_code == 0, kept.output
    assert_refused(invoke(*command, "--device", "cpu", "--passes", "cpu"), "fp16 is what a Vulkan device stores")
    assert_refused(invoke(*command, "--fp32-nodes", "aten::gelu"), "aten::gelu")


@pytest.mark.parametrize("command", ["compare", "bisect", "stress"])
def test_waiting_threads_sleep_before_torch_is_there(command: str, files: Path) -> None:
    """A thread that spins takes a core from a driver that computes on the CPU."""
    code = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch': print('torch', os.environ.get('OMP_WAIT_POLICY')); raise SystemExit(0)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from mobopt.commands.group import main\n"
        f"main([{command!r}, {str(files / 'scripted.pt')!r}])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["torch", "passive"], done.stdout + done.stderr


def test_inputs_are_of_the_method_that_runs(invoke: Invoke, tmp_path: Path) -> None:
    script = torch.jit.script(TwoMethods().eval())
    torch.jit.save(script, str(tmp_path / "two.pt"))
    inputs = ("--random", "1,5", "--random", "decode:2,3", "--device-b", "cpu", "--json")
    for method, words in (("decode", "decode: float32[2, 3]"), ("forward", "float32[1, 5] (given)")):
        result = invoke("compare", tmp_path / "two.pt", "--method", method, *inputs)
        assert json.loads(result.stdout)["inputs"] == words


class TwoMethods(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    @torch.jit.export
    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"error": float("inf"), "all": [1.5, float("nan"), {"low": -float("inf")}]})
    assert json.loads(capsys.readouterr().out) == {"error": None, "all": [1.5, None, {"low": None}]}
