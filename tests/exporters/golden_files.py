"""The files of genuine builds, and what they should compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from mobopt.ir.nests import leaves_of

GOLDEN = Path(__file__).parent.parent / "golden"
_QUICK = ("pt1.13.1/mixed/", "pt2.13.0/lstm/vulkan", "pt2.13.0/layernorm/vulkan", "pt1.13.1/convbnrelu6/metal")
PATHS = sorted(GOLDEN.glob("*/*/*.pt*"))
FILES = [
    pytest.param(path, marks=() if path.relative_to(GOLDEN).as_posix().startswith(_QUICK) else pytest.mark.sweep)
    for path in PATHS
]
"""All of them; a few by default, of each backend and kind of layer."""


def golden_id(path: Path) -> str:
    """``pt2.13.0/mlp/vulkan.ptl``"""
    return path.relative_to(GOLDEN).as_posix()


def arrays(path: Path, kind: str) -> list[torch.Tensor]:
    """Inputs or expected results beside a golden file."""
    return [torch.from_numpy(numpy.load(file)) for file in sorted(path.parent.glob(f"{kind}_*.npy"))]


def assert_expected(result: Any, path: Path) -> None:
    """A result is what the file's own build computed on the CPU."""
    results, expected = list(leaves_of(result, torch.Tensor)), arrays(path, "expected")
    assert len(results) == len(expected)
    for actual, right in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))
