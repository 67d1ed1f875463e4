"""IREE as a rival; it is not installed where CI runs, so what needs it runs by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mobopt import migrate
from mobopt.tools.bench_iree import Iree
from mobopt.tools.bench_peers import PEERS
from mobopt.tools.bench_rival import Bench


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"iree": object(), "iree.runtime": object()}
    monkeypatch.setattr(importlib.util, "find_spec", known.get)
    assert Iree().missing() == "not installed: pip install iree-base-compiler"
    del known["iree"]
    assert Iree().missing() == "not installed: pip install iree-base-compiler iree-base-runtime"
    assert isinstance(PEERS["iree"], Iree)


def test_it_computes_what_the_model_does(tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    pytest.importorskip("iree.runtime")
    net, x = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()).eval(), torch.randn(1, 3, 11, 13)
    migrate(torch.jit.script(net), tmp_path / "model.onnx", example_inputs=[x])
    torch.save([x], tmp_path / "args.pt")
    contestant = Iree().open(Bench(tmp_path))
    (result,) = contestant.call()
    torch.testing.assert_close(result, net(x).detach(), rtol=1e-4, atol=1e-5)
    assert {path.suffix for path in tmp_path.iterdir()} == {".onnx", ".pt", ".vmfb"}
