"""Reports of models: facts, audits, accuracy, times, advice, and the page of it all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mobopt.errors import BundleError, DeviceError
from mobopt.optimizer import optimize_for_mobile
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.tools.report import Report, ReportTarget, report
from mobopt.tools.report_page import advice_on, page

X = torch.randn(1, 3, 11, 9, generator=torch.Generator().manual_seed(5))
VULKAN, METAL = ReportTarget(), ReportTarget("metal", "2.6")


class Net(nn.Module):
    """Something native, something rewritten, something on the phone's CPU, and what Metal lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, groups=2)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(self.first(x)))
        return torch.cumsum(self.norm(y.permute(0, 2, 3, 1)), 1)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "<img src=x>.pt"
    torch.jit.save(torch.jit.script(Net().eval()), str(path))
    return path


@pytest.fixture
def whole(model_file: Path, device: Device) -> Report:
    return report(model_file, targets=(VULKAN, METAL), device=device.info.name, example_inputs=[X], repeat=2)


def test_everything_about_a_model(whole: Report) -> None:
    assert whole.name == "<img src=x>.pt" and not whole.refusals and not whole.is_good
    facts = dict(whole.facts)
    assert facts["kind"] == "TorchScript" and facts["operators"].startswith("6 of 5 kinds: 2 aten::conv2d")
    assert set(whole.audits) == {VULKAN, METAL}
    assert whole.audits[VULKAN].is_good and whole.audits[METAL].problems
    comparison, found = whole.runs["forward"].comparison, whole.runs["forward"].measurement
    assert list(whole.runs) == ["forward"] and comparison is not None and comparison.agrees
    assert found is not None and len(found.milliseconds) == len(found.eager_milliseconds) == 2
    assert found.peak_bytes and found.lower_bound_bytes and found.peak_bytes >= found.lower_bound_bytes
    assert found.dispatches >= len(found.layers) >= 3 and not found.fallbacks
    times = [layer.work.seconds for layer in found.layers]
    assert times == sorted(times, reverse=True) and any("conv2d" in layer.title for layer in found.layers)
    assert all(layer.bound and layer.work.dispatches for layer in found.layers)

    advice = advice_on(whole)
    texts = [item.text for item in advice]
    names = [", ".join(item.targets) for item in advice]
    metal = [number for number, name in enumerate(names) if name == str(METAL)]
    vulkan = [number for number, name in enumerate(names) if name == str(VULKAN)]
    assert metal and vulkan and max(vulkan) < min(metal)  # as they were asked for
    assert any("1 aten::layer_norm on the phone's CPU" in texts[n] and "save" in texts[n] for n in vulkan)
    missing = next(texts[number] for number in metal if " missing: " in texts[number])
    assert "aten::cumsum" in missing and "aten::layer_norm" in missing

    change = whole.audits[VULKAN].change
    assert change is not None
    dear = replace(change, multiply_adds_after=7 * change.multiply_adds_before)
    costly = replace(whole, audits={VULKAN: replace(whole.audits[VULKAN], change=dear)})
    assert any("multiply-adds 7.0 times as many" in item.text for item in advice_on(costly))
    assert not any("times as many" in text for text in texts)

    check_page(page(whole))
    output = comparison.outputs[0]
    wrong = replace(comparison, outputs=(replace(output, difference=replace(output.difference, error=0.5)),))
    other = replace(whole, runs={"forward": replace(whole.runs["forward"], comparison=wrong)})
    assert "mobopt bisect &lt;img src=x&gt;.pt</code>" in page(other)
    assert any("result of encode" in item.text and item.command.endswith("--method encode") for item in advice_on(
        replace(other, runs={**whole.runs, "encode": other.runs["forward"]})))  # fmt: skip
    costs = [item.text for item in advice_on(whole) if "A kernel would save" in item.text]
    assert costs and not any("nothing by itself" in text for text in costs)


def check_page(text: str) -> None:
    """It has every part, is escaped and needs nothing else."""
    assert "<img" not in text and "&lt;img src=x&gt;.pt" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "What would help",
        "What each target does with it",
        "What is rewritten, and why",
        "Accuracy",
        "Speed and memory",
    ]
    assert "groups are ignored" in text and "aten::conv2d" in text
    assert re.search(r"<b>vulkan 2.1 computes it right.</b>\s+metal 2.6: 2 missing.", text)
    assert re.search(r"<p>On vulkan 2.1, \d+% of the multiply-adds run on the GPU; \d+ operators", text)
    assert "The outputs agree." in text


def test_an_optimised_file_without_a_device(tmp_path: Path) -> None:
    torch.manual_seed(0)
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
    optimize_for_mobile(script, backend="metal", example_inputs=[X])._save_for_lite_interpreter(str(tmp_path / "m.ptl"))
    found = report(tmp_path / "m.ptl", device=None, example_inputs=[X])
    assert list(found.audits) == [ReportTarget("metal")] and found.is_good
    assert not found.runs
    text = page(found)
    assert "<b>metal 2.1 computes it right.</b>" in text and "Accuracy" not in text


class Methods(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, 1)


def test_methods_with_inputs_are_audited() -> None:
    given = {"forward": [X], "encode": [X]}
    found = report(torch.jit.script(Methods().eval()), targets=(VULKAN,), device=None, example_inputs=given)
    assert not found.refusals
    assert {line.operator for line in found.audits[VULKAN].lines} == {"aten::relu", "aten::cumsum"}


def test_methods_with_inputs_are_run(device: Device) -> None:
    given = {"forward": [X], "encode": [X[:, :, :7]]}
    model = torch.jit.script(Methods().eval())
    found = report(model, targets=(VULKAN,), device=device.info.name, example_inputs=given, repeat=1)
    assert list(found.runs) == ["forward", "encode"] and not found.refusals
    for name, operator in {"forward": "relu", "encode": "cumsum"}.items():
        comparison, measurement = found.runs[name].comparison, found.runs[name].measurement
        assert comparison is not None and comparison.agrees
        assert len(comparison.layers) == 1 and operator in comparison.layers[0].title
        assert measurement is not None
        layers = [layer for layer in measurement.layers if "aten::" in layer.title]
        assert len(layers) == 1 and operator in layers[0].title and layers[0].work.bytes_read >= X[:, :, :7].nbytes
    text = page(found)
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[-4:] == [
        "Accuracy of forward",
        "Accuracy of encode",
        "Speed and memory of forward",
        "Speed and memory of encode",
    ]
    assert re.search(r"A call of encode takes [\d.]+ ms", text) and text.count(" read, ") >= 2
    assert len(re.findall(r"id=\"(\w+)\"", text)) == len(set(re.findall(r"id=\"(\w+)\"", text)))


class Inner(nn.Module):
    """As torchvision's classifiers are: forward calls another method."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        return x.flatten(1).relu()


@pytest.mark.parametrize("is_file", [True, False])
def test_methods_that_forward_calls_are_audited_within_it(is_file: bool, tmp_path: Path) -> None:
    scripted = torch.jit.script(Inner())
    torch.jit.save(scripted, str(tmp_path / "m.pt"))
    found = report(tmp_path / "m.pt" if is_file else scripted, targets=(VULKAN,), device=None, example_inputs=[X])
    assert "unknown" not in found.audits[VULKAN].counts
    assert sum(found.audits[VULKAN].counts.values()) == 2


def test_what_is_not_known_is_told(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Reshaping()), str(tmp_path / "a.pt"))
    found = report(tmp_path / "a.pt", targets=(VULKAN,))
    assert set(found.refusals) == {"accuracy", "speed"}
    assert "no inputs are known" in found.refusals["speed"]
    assert "Not known: speed." in page(found)
    assert any("none are known: give example inputs" in item.text for item in advice_on(found))


class Reshaping(nn.Module):
    """Takes what nobody can guess."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.reshape(7, 13, 29) * y.reshape(29, 1)[0]


def test_a_device_that_is_not_there(model_file: Path) -> None:
    with pytest.raises(DeviceError, match="no Vulkan device 'nosuch'"):
        report(model_file, device="nosuch")


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"nonsense")
    with pytest.raises(BundleError):
        report(tmp_path / "a.pt")


def test_operators_that_lack_the_same_are_one_advice() -> None:
    class Integers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            numbers = x.to(torch.int64)
            return ((numbers + 3) * numbers).to(torch.float32)

    found = report(torch.jit.script(Integers()), targets=(METAL,), device=None, example_inputs=[X])
    lacking = [item.text for item in advice_on(found) if "are missing" in item.text]
    assert len(lacking) == 1 and "aten::add.Scalar" in lacking[0] and "aten::mul.Tensor" in lacking[0]
