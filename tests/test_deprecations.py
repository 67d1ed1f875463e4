"""Tests that mobopt's own calls of ``torch.jit`` tell nobody that it is deprecated, as torch does since 2.15."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mobopt
from mobopt.deprecations import of_torchscript_unsaid
from mobopt.tools.migration import migrate


def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that says what torch 2.15 says of itself."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"`torch.jit.{name}` is deprecated. Please switch to `torch.export`.", FutureWarning, 2)
        return function(*args, **kwargs)

    return call


def test_what_mobopt_calls_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.ReLU().eval())
    x = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(0)) - 0.5
    for name in ("load", "save", "script", "trace", "freeze"):
        monkeypatch.setattr(torch.jit, name, telling(name, getattr(torch.jit, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        module = mobopt.optimize_for_mobile(scripted, backend="vulkan", example_inputs=[x])
        module.save(tmp_path / "model.pt")
        assert "relu" in str(module.graph)  # by the stand-in
        migrate(tmp_path / "model.pt", tmp_path / "plain.pt", example_inputs=[x])
        mobopt.optimize_for_mobile(nn.ReLU(), backend="cpu", example_inputs=[x])


def test_other_warnings_are_said() -> None:
    with pytest.warns(FutureWarning, match="torch.jit.frozen is gone"), of_torchscript_unsaid():
        warnings.warn("torch.jit.frozen is gone", FutureWarning, 1)
