"""Damaged files: whatever a file holds, reading gives a Program or one error of ours, soon and in little memory."""

from __future__ import annotations

import io
import random
import re
import struct
import subprocess
import sys
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
        "pt1.13.1/mixed/metal.ptl",
        "pt1.13.1/lstm/cpu.pt",
    )
]
_SECONDS = 2.0
"""Of the processor."""
_SPARE_BYTES = 64 << 20
_FILE_FACTOR = 1.5
_HUGE = (-1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 60, -(1 << 63))
_COUNT = re.compile(rb"K.|M..|J....", re.DOTALL)


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


def with_huge_counts(data: bytes, source: random.Random) -> bytes:
    """A pickle some of whose integers are huge or negative."""
    share = source.choice((0.005, 0.05, 1.0))

    def change(match: re.Match[bytes]) -> bytes:
        if source.random() > share:
            return match.group()
        return b"\x8a\x08" + struct.pack("<q", source.choice(_HUGE))

    return _COUNT.sub(change, data)


def nested(data: bytes, source: random.Random) -> bytes:
    """A pickle with a piece of it, or an opening or closing of a container, repeated very often."""
    at = source.randrange(2, len(data))
    piece = source.choice((b"(", b")", b"]", b"}", b"](", b"\x85", b"t", b"0", data[at : at + source.randrange(1, 9)]))
    return data[:at] + piece * source.choice((10, 1000, 20_000)) + data[at:]


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
            change = source.choice((mutated_bytes, mutated_bytes, with_huge_counts, nested))
            contents[name] = change(contents[name], source)
    return archive(contents)


def read_or_refuse(data: bytes) -> bool:
    """Whether the file was read; anything but a Program or a BundleError fails the test."""
    started = time.process_time()
    try:
        program = read_bundle(io.BytesIO(data))
    except BundleError as error:
        assert 10 < len(str(error)) < 4000
        return False
    finally:
        assert time.process_time() - started < _SECONDS
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
        still_read = mutate(path, 40, seed=0)
        assert tracemalloc.get_traced_memory()[1] < _SPARE_BYTES + _FILE_FACTOR * path.stat().st_size
    finally:
        tracemalloc.stop()
    assert still_read < 40


_SWEEP = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_mutations import mutate
mutate(Path(sys.argv[1]), 10, seed=0)
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (96 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
events = []
forbidden = ("exec", "import", "os.system", "os.exec", "os.spawn", "subprocess.", "socket.", "pickle.", "ctypes.")
sys.addaudithook(lambda event, args: events.append(event) if event.startswith(forbidden) else None)
still_read = mutate(Path(sys.argv[1]), 1500, seed=1)
assert not events, set(events)
print(still_read)
"""
"""Reads 1,500 mutations in a process of little memory that may start nothing and import nothing."""


@pytest.mark.sweep
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are set as Linux has them")
@pytest.mark.parametrize("path", _SEEDS, ids=bundle_id)
def test_many_mutations(path: Path) -> None:
    command = [sys.executable, "-c", _SWEEP, str(path), str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) < 1500


@pytest.mark.parametrize("path", _SEEDS, ids=bundle_id)
def test_truncations(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), max(1, len(data) // 40)):
        assert not read_or_refuse(data[:length])
