"""What tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from click.testing import Result
from torch import nn

Invoke = Callable[..., Result]
"""Runs a command, given as words, in an empty folder."""
DEVICE = os.environ.get("MOBOPT_DEVICE", "llvmpipe")
"""A part of the name of the device that tests use."""


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)).eval()


def assert_refused(result: Result, *texts: str, code: int = 2) -> None:
    """One message, no traceback, nothing on standard output."""
    assert result.exit_code == code, result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr


def assert_empty(folder: Path) -> None:
    assert not list(folder.iterdir())


def run_mobopt(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mobopt", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def rewrite(source: Path, target: Path, records: Mapping[str, bytes | None]) -> Path:
    """Copy an archive with some records replaced, or left out where the content is None."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        names = {name.partition("/")[2]: name for name in old.namelist()}
        assert records.keys() <= names.keys(), names
        for short, name in names.items():
            content = records.get(short, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target
