"""ExecuTorch files: what to install where the package is missing, and real ones where it is there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from golden_files import GOLDEN, arrays, assert_expected

from mobopt.errors import InputError, UnsupportedError
from mobopt.exporters.executorch_file import ExecutorchFile
from mobopt.exporters.plain import plain_model
from mobopt.exporters.targets import Order
from mobopt.frontends.file_source import FileSource

_FILE = GOLDEN / "pt1.13.1/mixed/vulkan.ptl"


def order(delegate: str) -> Order:
    plain = plain_model(FileSource(_FILE, None, takes_optimized=True).program)
    return Order(plain, "forward", tuple(arrays(_FILE, "input")), delegate=delegate)


def test_the_package_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install mobopt\[executorch\]"):
        ExecutorchFile().write(order("xnnpack"), tmp_path / "new.pte")
    with pytest.raises(InputError, match="'metal' can't be made; use xnnpack, vulkan, portable"):
        ExecutorchFile().write(order("metal"), tmp_path / "new.pte")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("delegate", ["xnnpack", "vulkan", "portable"])
def test_a_bundle_is_lowered(delegate: str, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    written = ExecutorchFile().write(order(delegate), tmp_path / "new.pte")
    assert (tmp_path / "new.pte").read_bytes()[4:8] == b"ET12"
    with torch.no_grad():
        assert_expected(written.call("forward")(arrays(_FILE, "input")), _FILE)
