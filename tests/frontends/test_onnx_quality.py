"""A phone's file made from a net's ONNX is as good as that made from its script: operators on the CPU, numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from nets import NETS

from mobopt.options import Settings
from mobopt.tools.audit import audit
from mobopt.tools.conversion import convert_file

FEW = ("Gates", "SKNet")
MORE = (
    "GhostNet",
    "LeNet",
    "MobileViT",
    "YOLOv8",
    "BERT",
    "Llama",
    "U2Net",
    "Swin",
    "SSDLite",
    "CRNN",
    "Conformer",
    "TCN",
    "Siamese",
)
_NOT_ON_THE_GPU = ("cpu", "unknown", "missing", "wrong")


def assert_as_good(name: str, folder: Path) -> None:
    net = NETS[name]
    module, inputs = net.module(), net.inputs()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        script = torch.jit.trace(module, inputs, check_trace=False)
        torch.jit.save(script, folder / "net.pt")  # type: ignore[no-untyped-call]
        torch.onnx.export(module, tuple(inputs), str(folder / "net.onnx"), dynamo=True, verbose=False)
    counts = {}
    for kind in ("pt", "onnx"):
        found = audit(folder / f"net.{kind}", "vulkan", example_inputs=inputs).counts
        counts[kind] = sum(found.get(verdict, 0) for verdict in _NOT_ON_THE_GPU)
        done = convert_file(folder / f"net.{kind}", folder / f"{kind}.ptl", Settings("vulkan"), example_inputs=inputs)
        assert done.relative_difference is not None
        assert done.relative_difference < 1e-5
    assert counts["onnx"] <= counts["pt"]


@pytest.mark.parametrize("name", FEW)
def test_a_net(name: str, tmp_path: Path) -> None:
    assert_as_good(name, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MORE)
def test_more_nets(name: str, tmp_path: Path) -> None:
    assert_as_good(name, tmp_path)
