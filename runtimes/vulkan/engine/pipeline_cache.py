"""The driver's pipeline cache, kept on disk between processes.

A file is a magic word, the SHA-256 of the rest, then what ``vkGetPipelineCacheData`` gave. Its name is a hash of the
device, the driver and the shaders, so what another driver or release wrote is never read. A file that fails a check is
as good as none: it is written anew.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path

from mobopt.errors import InputError
from mobopt.files import whole_file
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

_LOGGER = logging.getLogger("mobopt.vulkan")
_MAGIC = b"mobopt pipelines 1\n"
_MAX_BYTES = 256 << 20
_VULKAN_HEADER = struct.Struct("<IIII16s")
_VULKAN_HEADER_VERSION = 1


def cache_path(info: DeviceInfo) -> Path:
    """Where the cache of a device lies; MOBOPT_CACHE_DIR overrides the folder."""
    return device_file("pipelines", info, ".bin")


def read_cache(path: Path, info: DeviceInfo) -> bytes:
    """What an earlier process saved, or nothing if there is none that can be trusted."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return _checked(path.read_bytes(), info)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        _LOGGER.warning("the pipeline cache %s is not used: %s; it will be written anew", path, error)
        return b""


def write_cache(path: Path, payload: bytes) -> None:
    """Save the driver's data, moved into place in one step. A folder that can't be written is only logged."""
    if len(payload) > _MAX_BYTES:
        _LOGGER.warning(
            "the pipeline cache takes %d bytes and is not kept; pipelines will be compiled anew", len(payload)
        )
        path.unlink(missing_ok=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
    except (OSError, InputError) as error:
        _LOGGER.warning("the pipeline cache can't be saved: %s", error)


def _checked(content: bytes, info: DeviceInfo) -> bytes:
    """The payload of a file.

    Raises:
        ValueError: it is damaged, or of another device.
    """
    if not content.startswith(_MAGIC):
        raise ValueError("it isn't a file of mobopt's")
    start = len(_MAGIC) + hashlib.sha256().digest_size
    digest, payload = content[len(_MAGIC) : start], content[start:]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError("its checksum is wrong")
    if len(payload) < _VULKAN_HEADER.size:
        raise ValueError("it is too short")
    _, version, vendor, device, uuid = _VULKAN_HEADER.unpack_from(payload)
    if (version, vendor, device, uuid) != (
        _VULKAN_HEADER_VERSION,
        info.vendor_id,
        info.device_id,
        info.pipeline_cache_uuid,
    ):
        raise ValueError("it is of another device or driver")
    return payload
