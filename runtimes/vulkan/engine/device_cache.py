"""What mobopt keeps between processes of a device with its driver: the folder, names in it, and plain data."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import platformdirs

from mobopt import shaders
from mobopt.errors import InputError
from mobopt.files import whole_file
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

_LOGGER = logging.getLogger("mobopt.vulkan")


def device_file(folder: str, info: DeviceInfo, suffix: str) -> Path:
    """Where something is kept that was made for one device, one release of its driver, and these shaders.

    Args:
        folder: below the cache's folder, which MOBOPT_CACHE_DIR overrides.
        info: of the device.
        suffix: of the file, with the dot.
    """
    identity = (
        info.vendor_id,
        info.device_id,
        info.driver,
        info.driver_version,
        info.pipeline_cache_uuid,
        info.driver_uuid,
    )
    name = hashlib.sha256(repr(identity).encode() + shaders.fingerprint()).hexdigest()[:24]
    root = os.environ.get("MOBOPT_CACHE_DIR") or platformdirs.user_cache_dir("mobopt")
    return Path(root) / folder / f"{name}{suffix}"


def read_kept(path: Path) -> dict[str, Any]:
    """The data that an earlier process kept; none if there is none that can be read, which is logged."""
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no names with values")
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _LOGGER.warning("%s is not used: %s", path, error)
        return {}


def keep(path: Path, data: dict[str, Any]) -> bool:
    """Keep data for later processes, moved into place in one step.

    Returns:
        Whether it is kept; a folder that can't be written is logged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(json.dumps(data, indent=1).encode())
        return True
    except (OSError, InputError) as error:
        _LOGGER.warning("%s can't be kept: %s", path, error)
        return False
