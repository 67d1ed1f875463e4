"""Helpers of the bundle tests: golden files, and archives taken apart and put together again."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch

GOLDEN = Path(__file__).parent.parent / "golden"
BUNDLES = sorted(path for path in GOLDEN.glob("*/*/*.pt*") if path.stem.startswith(("vulkan", "model")))


def bundle_id(path: Path) -> str:
    """``pt2.13.0/mlp/vulkan.ptl``"""
    return path.relative_to(GOLDEN).as_posix()


def arrays(path: Path, kind: str) -> list[torch.Tensor]:
    """Inputs or expected results beside a golden bundle."""
    return [torch.from_numpy(numpy.load(file)) for file in sorted(path.parent.glob(f"{kind}_*.npy"))]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """A result as a tuple of results."""
    return result if isinstance(result, tuple) else (result,)


def records(data: bytes) -> dict[str, bytes]:
    """Records of an archive by name below its root."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def archive(contents: Mapping[str, bytes], root: str = "model", method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these records, as any zip tool makes it; the same bytes at any time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for name, content in contents.items():
            target.writestr(zipfile.ZipInfo(f"{root}/{name}"), content, method)
    return out.getvalue()
