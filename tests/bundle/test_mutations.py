"""Damaged files: whatever a file holds, reading gives a Program or one error of ours, soon and in little memory."""

from __future__ import annotations

import io
import random
import time
import tracemalloc
from pathlib import Path

import pytest
from archives import GOLDEN, archive, bundle_id, records

from mobopt.bundle import read_bundle
from mobopt.errors import BundleError
from mobopt.ir import Program

_SEEDS = [
    GOLDEN / name
    for name in (
        "pt1.13.1/mixed/vulkan.ptl",
        "pt2.13.0/mixed/vulkan.pt",
        "pt2.13.0/lstm/vulkan_fixedstate.ptl",
        "pt2.13.0/mlp/model.pt",
        "pt1.13.1/convbnrelu6/model.ptl",
    )
]
_SECONDS = 5.0
_BYTES = 1 << 27


def mutated_bytes(data: bytes, source: random.Random) -> bytes:
    """A copy with a few bytes changed, a piece cut out, doubled, or the end lost."""
    result = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        start = source.randrange(len(result)) if result else 0
        end = min(len(result), start + source.choice((1, 1, 4, 64)))
        match source.randrange(6):
            case 0 | 1:
                result[start:end] = bytes(source.randrange(256) for _ in range(end - start))
            case 2:
                result[start : start + 1] = bytes([source.choice(b"\x00\x01\x7f\x80\xff.()}]eubRqhKMJXct")])
            case 3:
                del result[start:end]
            case 4:
                result[start:start] = result[start:end]
            case _:
                del result[start + source.randrange(64) :]
    return bytes(result)


def mutated_archive(data: bytes, source: random.Random) -> bytes:
    """An archive with a changed record, a missing one, or one under another's name, whose checksums are right."""
    contents = records(data)
    name = source.choice(list(contents))
    match source.randrange(10):
        case 0:
            del contents[name]
        case 1:
            contents[name] = contents[source.choice(list(contents))]
        case _:
            weighty = [item for item in contents if item.endswith((".pkl", ".py")) and contents[item]]
            name = source.choice(weighty)
            contents[name] = mutated_bytes(contents[name], source)
    return archive(contents)


def read_or_refuse(data: bytes) -> bool:
    """Whether the file was read; anything but a Program or a BundleError fails the test."""
    started = time.monotonic()
    try:
        program = read_bundle(io.BytesIO(data))
    except BundleError as error:
        assert 10 < len(str(error)) < 4000
        return False
    finally:
        assert time.monotonic() - started < _SECONDS
    assert isinstance(program, Program)
    return True


def mutate(path: Path, count: int, seed: int) -> int:
    """Read mutations of a file; returns how many could still be read."""
    data, source = path.read_bytes(), random.Random(f"{seed} {path.name}")
    return sum(
        read_or_refuse((mutated_bytes if source.random() < 0.2 else mutated_archive)(data, source))
        for _ in range(count)
    )


@pytest.mark.parametrize("path", _SEEDS, ids=bundle_id)
def test_mutations(path: Path) -> None:
    tracemalloc.start()
    try:
        still_read = mutate(path, 60, seed=0)
        assert tracemalloc.get_traced_memory()[1] < _BYTES
    finally:
        tracemalloc.stop()
    assert still_read < 60


@pytest.mark.sweep
@pytest.mark.parametrize("path", _SEEDS, ids=bundle_id)
def test_many_mutations(path: Path) -> None:
    assert mutate(path, 2000, seed=1) < 2000


@pytest.mark.parametrize("path", _SEEDS, ids=bundle_id)
def test_truncations(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), max(1, len(data) // 40)):
        assert not read_or_refuse(data[:length])
