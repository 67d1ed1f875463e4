"""The engine's own test shader, and streams made of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mobopt import shaders
from mobopt.ir import Origin
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, contiguous_strides, element_type
from mobopt.shaders.build import build
from mobopt.shaders.table import parse_table

_FOLDER = Path(__file__).parent / "shaders"
GROUP_SIZE = 64


@pytest.fixture(scope="session")
def engine_spirv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled test shaders."""
    folder = tmp_path_factory.mktemp("spirv")
    build(_FOLDER, folder, _FOLDER / "variants.toml")
    return folder


@pytest.fixture(autouse=True)
def engine_shaders(engine_spirv: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the engine see the test shaders instead of the package's."""
    table = parse_table((_FOLDER / "variants.toml").read_text())
    monkeypatch.setattr(shaders, "variants", lambda: table)
    monkeypatch.setattr(shaders, "load", lambda name: (engine_spirv / f"{name}.spv").read_bytes())
    yield


def tensor(kind: StorageKind, *sizes: int, dtype: torch.dtype = torch.float32, name: str = "") -> DeviceTensor:
    """A contiguous tensor on a storage of its own."""
    strides = contiguous_strides(sizes)
    count = 1
    for size in sizes:
        count *= size
    elements = element_type(dtype)
    storage = Storage(count * elements.itemsize, kind, name=name, elements=elements)
    return DeviceTensor(storage, dtype, sizes, strides)


def scale(
    source: DeviceTensor, target: DeviceTensor, factor: float, shift: float = 0.0, texel: bool = False
) -> Dispatch:
    """``target = source * factor + shift``."""
    count = source.numel
    return Dispatch(
        "scale_texel" if texel else "scale",
        (bind(source, texel_words=4 if texel else 0), bind(target, writes=True)),
        (-(-count // GROUP_SIZE), 1, 1),
        0,
        (GROUP_SIZE, shift),
        struct.pack("<If", count, factor),
        label=f"scale {count}",
        source=Origin.of_line("test.py:1"),
    )


def chain(length: int, *sizes: int, texel: bool = False) -> Stream:
    """``y = x + length``: one dispatch adds one, through temporaries that take turns."""
    stream = Stream()
    current = tensor(StorageKind.INPUT, *sizes, name="x")
    stream.inputs.append(current)
    for step in range(length):
        kind = StorageKind.OUTPUT if step == length - 1 else StorageKind.TEMPORARY
        following = tensor(kind, *sizes, name=f"t{step}")
        stream.append(scale(current, following, 1.0, 1.0, texel))
        current = following
    stream.outputs.append(current)
    return stream
