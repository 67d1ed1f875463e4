"""torchvision's operators, which mobopt computes itself: beside their definitions, in models and in files."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision_operators import torchvision_with_operators

import mobopt
from mobopt.errors import InputError
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.samples.agreement import compare


def boxes(count: int) -> torch.Tensor:
    corner = torch.rand(count, 2) * 20
    return torch.cat([corner, corner + torch.rand(count, 2) * 9 + 0.5], 1)


def overlap(one: list[float], other: list[float]) -> float:
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


@pytest.mark.parametrize("count", [0, 1, 7, 53])
def test_nms_keeps_the_best_of_what_overlaps(count: int) -> None:
    found, scores = boxes(count), (torch.rand(count) * 8).round() / 8  # some are equal
    kept: list[int] = []
    for index in sorted(range(count), key=lambda index: -float(scores[index])):
        if all(overlap(found[index].tolist(), found[best].tolist()) <= 0.3 for best in kept):
            kept.append(index)
    assert kernel("torchvision::nms")(found, scores, 0.3).tolist() == kept
    assert count < 50 or 0 < len(kept) < count


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [2, 0])
def test_roi_align_is_torchvisions(ratio: int, aligned: bool) -> None:
    torchvision_with_operators()
    reference = importlib.import_module("torchvision.ops.roi_align")._roi_align.__wrapped__
    x = torch.randn(2, 3, 13, 11)
    edges = ((boxes(5) - 4) * 3).clamp(min=-2).minimum(torch.tensor([44.0, 52, 44, 52]))  # some reach beyond a little
    regions = torch.cat([torch.tensor([[0.0], [1], [1], [0], [1]]), edges], 1)
    found = kernel("torchvision::roi_align")(x, regions, 0.25, 5, 3, ratio, aligned)
    torch.testing.assert_close(found, reference(x, regions, 0.25, 5, 3, ratio, aligned), atol=1e-5, rtol=1e-5)
    assert found.abs().amax((1, 2, 3)).count_nonzero() >= 3


def test_samples_far_outside_are_zero() -> None:
    x, region = torch.ones(1, 1, 4, 4), torch.tensor([[0.0, 2.0, 0.0, 10.0, 4.0]])
    found = kernel("torchvision::roi_align")(x, region, 1.0, 1, 4, 1, False)
    assert found.flatten().tolist() == [1, 0, 0, 0]  # samples at columns 3, 5, 7 and 9; up to 4 counts as the border


class Detector(torch.nn.Module):
    """Boxes of a layer, what is left of them, and what lies there.

    Samples stay inside, for torchvision's definition in Python, which the tests have, takes others for the border.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        found = y[0].flatten(1).t()
        corner = found[:, :2] * 4 + 5
        candidates = torch.cat([corner, corner + found[:, 2:4].exp() * 3], 1).clamp(min=0.0, max=6.0)
        kept = torch.ops.torchvision.nms(candidates, found[:, 4].sigmoid(), 0.3)
        regions = torch.cat([torch.zeros(kept.shape[0], 1), candidates[kept]], 1)
        return candidates[kept], torch.ops.torchvision.roi_align(y, regions, 1.0, 3, 2, 2, False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torchvision_with_operators()
    torch.jit.save(torch.jit.script(Detector().eval()), tmp_path / "detector.pt")
    return tmp_path / "detector.pt"


def test_detectors_run_on_a_device(device: Device, saved: Path) -> None:
    script, x = torch.jit.load(saved), torch.randn(1, 3, 9, 7)
    module = mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x])
    for image in (x, -x):
        with torch.no_grad():
            expected = script(image)
        assert 1 < len(expected[0]) < 63
        assert compare(module(image), expected).relative < 1e-5
    report = module.plan_report(x)
    assert not report.fallbacks
    assert report.looks > 0  # nms is of what the host has read, as its result's size is
    assert re.search(r"dispatches, no operator on the CPU, \d+ tensors read", str(report))


@pytest.mark.parametrize("ending", [".pt", ".ptl"])
def test_files_open_and_come_home(saved: Path, tmp_path: Path, ending: str) -> None:
    x = torch.randn(1, 3, 9, 7)
    with torch.no_grad():
        expected = torch.jit.load(saved)(x)
    old = tmp_path / f"old{ending}"
    with pytest.warns(UserWarning, match="operators run on the phone's CPU"):  # how many boxes stay depends on values
        module = mobopt.optimize_for_mobile(torch.jit.load(saved), backend="vulkan", runtime="2.1", example_inputs=[x])
    module.save(old) if ending == ".pt" else module._save_for_lite_interpreter(old)
    assert compare(mobopt.load(old, device="cpu")(x), expected).relative < 1e-5
    mobopt.migrate(old, tmp_path / "new.pt", example_inputs=[x])
    assert compare(torch.jit.load(tmp_path / "new.pt")(x), expected).relative < 1e-5


def test_other_sizes_are_refused(saved: Path) -> None:
    module = mobopt.load(saved, device="cpu")
    with pytest.raises(InputError):
        module(torch.randn(1, 2, 9, 7))
    with pytest.raises(ValueError, match="boxes are"):
        kernel("torchvision::nms")(torch.rand(3, 4), torch.rand(2), 0.5)


PACKAGE = """
import torch
library = torch.library.Library("torchvision", "DEF")  # a second one would be an error
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
LOOKS_AT_CODE = """
import sys
import mobopt
print("nms" in mobopt.load(sys.argv[1], device="cpu").code, "torchvision" in sys.modules)
"""


def test_an_installed_torchvision_declares_its_operators_itself(saved: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.ptl"
    x = torch.randn(1, 3, 9, 7)
    with pytest.warns(UserWarning, match="operators run on the phone's CPU"):
        mobopt.optimize_for_mobile(
            torch.jit.load(saved), backend="vulkan", runtime="2.1", example_inputs=[x]
        )._save_for_lite_interpreter(old)
    (tmp_path / "torchvision.py").write_text(PACKAGE)
    found = subprocess.run(
        [sys.executable, "-c", LOOKS_AT_CODE, old],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout == "True True\n", found.stderr
