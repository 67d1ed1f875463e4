from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
import torch
from engine_shaders import chain, engine_shaders, engine_spirv, scale, tensor  # noqa: F401

from mobopt.runtimes.vulkan.engine import pipeline_cache
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.pipeline_cache import cache_path, read_cache, write_cache
from mobopt.runtimes.vulkan.engine.pipelines import PipelineStore, pack_specialization
from mobopt.runtimes.vulkan.engine.stream import Stream
from mobopt.runtimes.vulkan.engine.tensor import StorageKind


def test_specialization_constants_are_four_bytes_each():
    packed = pack_specialization((7, -1, True, 0.5, 2**32 - 1))
    assert packed == struct.pack("<IiIfI", 7, -1, 1, 0.5, 2**32 - 1)


def test_pipelines_are_shared_between_executables(device, monkeypatch):
    monkeypatch.setattr("mobopt.runtimes.vulkan.engine.pipelines._MAX_IDLE", 1 << 20)  # those of other tests stay
    first = Executable(device, chain(4, 8))
    pipelines = device.live_objects["Pipeline"]
    second = Executable(device, chain(2, 100))
    assert device.live_objects["Pipeline"] == pipelines
    first.close()
    assert device.live_objects["Pipeline"] == pipelines
    second.close()
    assert device.live_objects["Pipeline"] == pipelines


def test_only_the_last_idle_pipelines_are_kept(device, monkeypatch):
    monkeypatch.setattr("mobopt.runtimes.vulkan.engine.pipelines._MAX_IDLE", 0)
    executable = Executable(device, chain(4, 8))
    pipelines = device.live_objects["Pipeline"]
    executable.close()
    assert device.live_objects["Pipeline"] < pipelines


def test_other_constants_are_another_pipeline(device):
    x, y, z = (tensor(kind, 8) for kind in (StorageKind.INPUT, StorageKind.TEMPORARY, StorageKind.OUTPUT))
    before = device.live_objects["Pipeline"]
    executable = Executable(device, Stream([scale(x, y, 1.0, 2.0), scale(y, z, 1.0, 3.0)], [x], [z]))
    assert device.live_objects["Pipeline"] == before + 2
    torch.testing.assert_close(executable.run([torch.zeros(8)])[0], torch.full((8,), 5.0))
    executable.close()


def test_many_pipelines_are_compiled_at_once_and_each_does_its_own(device):
    steps = 9
    chained = [tensor(StorageKind.INPUT, 8), *(tensor(StorageKind.TEMPORARY, 8) for _ in range(steps))]
    stream = Stream([], [chained[0]], [chained[-1]])
    for step in range(steps):
        stream.append(scale(chained[step], chained[step + 1], 2.0, float(step)))
    executable = Executable(device, stream)
    expected = torch.arange(8.0)
    for step in range(steps):
        expected = expected * 2 + step
    torch.testing.assert_close(executable.run([torch.arange(8.0)])[0], expected)
    executable.close()


def _payload(device) -> bytes:
    """The smallest data that the device's driver accepts."""
    info = device.info
    return struct.pack("<IIII16s", 32, 1, info.vendor_id, info.device_id, info.pipeline_cache_uuid)


def test_the_cache_comes_back(device, tmp_path: Path):
    path = tmp_path / "folder" / "cache.bin"
    assert read_cache(path, device.info) == b""
    write_cache(path, _payload(device))
    assert read_cache(path, device.info) == _payload(device)
    assert [file.name for file in path.parent.iterdir()] == ["cache.bin"]


def _foreign(payload: bytes) -> bytes:
    return payload[:16] + bytes(16) + payload[32:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: b"x" + content,
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    ],
    ids=["empty", "truncated", "other magic", "flipped bit"],
)
def test_a_damaged_cache_is_ignored_and_written_anew(device, tmp_path: Path, monkeypatch, caplog, damage):
    monkeypatch.setenv("MOBOPT_CACHE_DIR", str(tmp_path))
    path = cache_path(device.info)
    write_cache(path, _payload(device))
    path.write_bytes(damage(path.read_bytes()))
    store = PipelineStore(device)
    assert "is not used" in caplog.text
    store._changed = True
    store.close()
    assert read_cache(path, device.info)[:4] == struct.pack("<I", 32)


def test_a_cache_of_another_device_is_ignored(device, tmp_path: Path, caplog):
    path = tmp_path / "cache.bin"
    write_cache(path, _foreign(_payload(device)))
    assert read_cache(path, device.info) == b""
    assert "another device" in caplog.text


def test_an_oversized_cache_is_not_kept(device, tmp_path: Path, monkeypatch, caplog):
    path = tmp_path / "cache.bin"
    write_cache(path, _payload(device))
    monkeypatch.setattr(pipeline_cache, "_MAX_BYTES", 8)
    assert read_cache(path, device.info) == b""
    write_cache(path, _payload(device))
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_only_logged(device, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    write_cache(tmp_path / "file" / "cache.bin", _payload(device))
    assert "can't be saved" in caplog.text


def test_the_name_depends_on_the_shaders(device, monkeypatch):
    one = cache_path(device.info)
    monkeypatch.setattr("mobopt.shaders.fingerprint", lambda: hashlib.sha256(b"other").digest())
    assert cache_path(device.info) != one
