"""``mobopt profile``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_harness import DEVICE, Invoke, assert_refused
from torch import nn
from torch.utils import bundled_inputs

from mobopt.runtimes.vulkan import device_roofs
from mobopt.runtimes.vulkan.device_roofs import DeviceRoofs
from mobopt.runtimes.vulkan.engine.device import Device

RANDOM = ("--random", "1,3,5,5")
ROOFS = DeviceRoofs(1e10, 4e10, 5e-5)


@pytest.fixture(autouse=True)
def fixed_roofs(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The device that tests use, with roofs that need no measuring."""
    monkeypatch.setenv("MOBOPT_DEVICE", DEVICE)
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(device_roofs, "measure_roofs", lambda device: ROOFS)


def test_layers_and_shaders(invoke: Invoke, files: Path) -> None:
    result = invoke("profile", files / "scripted.pt", *RANDOM, "--repeat", 3)
    assert result.exit_code == 0, result.output
    assert "layers by time" in result.stdout and "shaders by time" in result.stdout
    assert "aten::conv2d 1x4x3x3" in result.stdout or "run_conv2d_context 1x4x3x3" in result.stdout
    assert "copies 10 GB/s, products 40 GFLOP/s, a dispatch 50.0 us" in result.stdout
    assert "a whole call, host to host" in result.stdout


def test_as_json(invoke: Invoke, files: Path) -> None:
    result = invoke("profile", files / "bundle.ptl", *RANDOM, "--repeat", 2, "--json")
    found = json.loads(result.stdout)
    convolution = next(layer for layer in found["layers"] if "conv2d" in layer["title"])
    assert convolution["work"]["flops"] >= 2 * 4 * 3 * 3 * 27  # of one convolution; an activation may be fused
    assert convolution["work"]["bytes_written"] >= 4 * 4 * 9
    assert convolution["source"] and convolution["bound"] in ("memory", "arithmetic", "dispatch")
    assert found["roofs"]["bytes_per_second"] == 1e10 and found["runs"] == 2
    assert found["total"]["flops"] == sum(layer["work"]["flops"] for layer in found["layers"])
    parts = [found[kind] for kind in ("layers", "shaders")]
    by_layer, by_shader = (sum(item["work"]["seconds"] for item in part) for part in parts)
    assert by_layer == pytest.approx(by_shader) == pytest.approx(found["total"]["seconds"])
    assert sum(item["work"]["bytes_read"] for item in parts[0]) == sum(item["work"]["bytes_read"] for item in parts[1])


def test_a_chrome_trace(invoke: Invoke, files: Path) -> None:
    result = invoke("profile", files / "bundle.ptl", *RANDOM, "--trace", "t.json")
    assert result.exit_code == 0, result.output
    events = [event for event in json.loads(Path("t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert events and all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in events)
    assert all(event["dur"] >= 0 and event["args"]["bytes written"] > 0 for event in events)
    starts = [event["ts"] for event in events]
    assert starts == sorted(starts)


def test_a_page_escapes_names(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    file = tmp_path / "<b>x<script>.pt"
    file.write_bytes((files / "scripted.pt").read_bytes())
    result = invoke("profile", file, *RANDOM, "--html", "page.html")
    assert result.exit_code == 0, result.output
    page = Path("page.html").read_text()
    assert "&lt;b&gt;x&lt;script&gt;.pt" in page and "<b>x<" not in page
    assert page.count("<circle") >= 2 and "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_what_the_cpu_computes_and_what_is_nothing(invoke: Invoke, files: Path) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.double() + 1).float() * 2

    class Size(nn.Module):
        def forward(self, x: torch.Tensor) -> int:
            return x.size(0)

    torch.jit.save(torch.jit.script(Doubled()), "doubled.pt")
    result = invoke("profile", "doubled.pt", *RANDOM, "--html", "page.html", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert any(layer["bound"] == "host" and layer["reason"] for layer in found["layers"])
    assert_refused(invoke("profile", "doubled.pt", *RANDOM, "--fallback", "error"), "float64")
    torch.jit.save(torch.jit.script(Size()), "size.pt")
    result = invoke("profile", "size.pt", *RANDOM, "--html", "page.html")
    assert result.exit_code == 0, result.output


def test_inputs_are_those_of_the_method(invoke: Invoke) -> None:
    scripted = torch.jit.script(Two())
    calls = {scripted.forward: [(bundled_inputs.bundle_randn(2, 5),)], scripted.negate: [(torch.ones(3),)]}
    torch.jit.save(bundled_inputs.bundle_inputs(scripted, calls), "two.pt")
    for method, words in {"forward": "float32[2, 5] (bundled with the model)", "negate": "negate: float32[3]"}.items():
        result = invoke("profile", "two.pt", "--method", method, "--repeat", 1)
        assert f"inputs: {words}\n" in result.stdout, result.output


class Two(nn.Module):
    """Two methods, each with inputs of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    @torch.jit.export
    def negate(self, x: torch.Tensor) -> torch.Tensor:
        return -x


def test_bad_input(invoke: Invoke, files: Path) -> None:
    assert_refused(invoke("profile", files / "input.npy"), "input.npy")
    assert_refused(invoke("profile", files / "scripted.pt", *RANDOM, "--method", "encode"), "'encode'")
    assert_refused(invoke("profile", files / "scripted.pt", *RANDOM, "--device", "nosuchdevice"), "nosuchdevice")
    assert_refused(invoke("profile", files / "scripted.pt", "--random", "1,4,5,5"), "[1, 4, 5, 5]")
