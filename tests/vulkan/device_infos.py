"""Devices that tests plan for and don't have."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo, DeviceLimits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LIMITS = DeviceLimits(
    max_storage_buffer_range=2**32 - 1,
    max_texel_buffer_elements=2**27,
    max_push_constants_size=128,
    max_compute_work_group_count=(65535, 65535, 65535),
    max_compute_work_group_size=(1024, 1024, 64),
    max_compute_work_group_invocations=1024,
    max_compute_shared_memory_size=32768,
    min_storage_buffer_offset_alignment=16,
    min_texel_buffer_offset_alignment=16,
    max_storage_buffers=32,
    max_texel_buffers=128,
    max_memory_allocation_size=2**32,
)


def device_info(kind: str, **limits: Any) -> DeviceInfo:
    """A device of a kind (``cpu``, ``discrete``, ...) with usual limits but for those given."""
    return DeviceInfo(
        index=0,
        name=f"a {kind} device",
        kind=kind,
        vendor_id=0,
        device_id=0,
        driver="",
        driver_version=0,
        api_version=(1, 3, 0),
        pipeline_cache_uuid=bytes(16),
        driver_uuid=bytes(16),
        limits=replace(_LIMITS, **limits),
        features=frozenset(),
        subgroup_size=8 if kind == "cpu" else 32,
        memory_bytes=2**34,
        timestamp_period_ns=1.0,
        cores=0,
    )


def lavapipe(release: str) -> DeviceInfo:
    """Mesa's driver that computes on the CPU, of a release such as ``25.0.7``."""
    features = frozenset({"subgroup_shuffle", "texel_formats"})
    return replace(device_info("cpu"), driver_id=13, driver=f"llvmpipe Mesa {release} (LLVM 15.0.6)", features=features)


DEVICES = tuple(sorted(path.stem for path in (Path(__file__).parent / "devices").glob("*.toml")))
"""Names of devices whose facts are on file."""


def known_device(name: str) -> DeviceInfo:
    """A device of ``tests/vulkan/devices``, with the facts that reports give."""
    facts = tomllib.loads((Path(__file__).parent / "devices" / f"{name}.toml").read_text(encoding="utf-8"))
    limits = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.pop("limits").items()}
    facts["features"] = frozenset(facts["features"])
    for name in ("matrix_shapes", "bfloat_shapes"):
        facts[name] = tuple(map(tuple, facts.get(name, ())))
    return replace(device_info(facts["kind"]), **facts, limits=DeviceLimits(**limits))
