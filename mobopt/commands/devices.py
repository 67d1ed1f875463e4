"""``mobopt devices``: the Vulkan devices of this machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.terminal import print_json, print_table
from mobopt.display import size_text
from mobopt.errors import DeviceError

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo

_SHOWN = ("float16", "int8", "matrix_units", "bfloat16_units", "timestamps")


@click.command(short_help="List Vulkan devices, the best first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with limits and features.")
def devices(as_json: bool) -> None:
    """List Vulkan devices, the best first."""
    from mobopt.runtimes.vulkan.engine.devices import list_devices

    found = list_devices()
    if not found:
        raise DeviceError("no Vulkan device; install a driver (Debian: `apt install mesa-vulkan-drivers`)")
    if as_json:
        print_json([_data(info) for info in found])
        return
    rows = [
        (
            info.index,
            info.name,
            info.kind,
            info.driver,
            ".".join(map(str, info.api_version)),
            size_text(info.memory_bytes),
            " ".join(feature for feature in _SHOWN if feature in info.features),
        )
        for info in found
    ]
    print_table("", ("#", "name", "kind", "driver", "Vulkan", "memory>", "has"), rows)


def _data(info: DeviceInfo) -> dict[str, Any]:
    from mobopt.runtimes.vulkan.engine.quirks import quirks_of

    known = quirks_of(info.driver_id, info.vendor_id, info.driver_version)
    lists = {"features": sorted(info.features), "switches": sorted(info.switches)}
    return dataclasses.asdict(info) | lists | {"quirks": [dataclasses.asdict(quirk) for quirk in known]}
