"""What drivers are known to compute wrongly: rows of ``quirks.toml``, and what is chosen otherwise because of them.

Kernels are chosen by switches, which a device has in :attr:`DeviceInfo.switches`: those of the rows that hold for its
driver, and those that the variable ``MOBOPT_QUIRKS`` adds and removes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mobopt.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "MOBOPT_QUIRKS"
EMULATED_CHAINS = "emulated-chains"
EMULATED_DOORBELLS = "emulated-doorbells"
WHOLE_SHADERS = "whole-shaders"
SWITCHES = {
    "workgroups-32": "workgroups of 32 invocations, where kernels are free to choose",
    "workgroups-64": "workgroups of 64 invocations, where kernels are free to choose",
    "workgroups-256": "workgroups of 256 invocations, where kernels are free to choose",
    "no-64": "no workgroups of 64 invocations, where kernels are free to choose",
    "second-product": "the second best blocks of matrix products and convolutions, rather than the best",
    "shared-products": "products by blocks in shared memory, as on GPUs, on drivers that compute on the CPU",
    "no-joins": "sums of divided products by a second dispatch, rather than by the last workgroup to arrive",
    "no-matrix-units": "products of halves by ordinary arithmetic, also where there are matrix units",
    "split-products": "products of floats by units that multiply halves, also where that isn't known to be faster",
    "no-split-products": "products of floats by ordinary arithmetic, also where units that multiply halves are faster",
    "no-cached-attention": "the newest keys and values come into their caches before attention, not as part of it",
    "halves-by-operator": "models in half precision are rounded after each operator, as torch rounds them",
    "no-writes-in-place": "caches that a model changes by a row are copied, not written to where they lie",
    "no-normalized-products": "layer norms by dispatches of their own, not by the products that read them",
    "no-gated-products": "gates let pass by dispatches of their own, not by the products that make both",
    "no-row-layers": "two small layers of a few rows by a dispatch each, not by one for both",
    "no-expanded-depthwise": "depthwise convolutions and those that they read by a dispatch each, not by one for both",
    "no-summed-convolutions": "two convolutions whose results are added by a dispatch each, not by one for both",
    "no-winograd": "convolutions of 3 x 3 taps as one product of matrices, also where fewer multiplications are faster",
    "no-fragments": "products of halves by matrix units from shared memory, not straight from registers",
    "no-planar-inputs": "images copied to channels_last before the convolutions that could read planes or rows of them",
    "emulated-matrix-units": "products of halves by the kernels for matrix units, which are emulated, to try them",
    "no-chains": "barriers between all dispatches that depend on each other, rather than counters between some",
    "no-code-ahead": "instructions of kernels come from memory when they are needed, not some steps before",
    EMULATED_CHAINS: "counters between dispatches, with barriers all the same, to try them on any device",
    "no-doorbells": "calls are submitted when the host has written their inputs, not before",
    EMULATED_DOORBELLS: "calls are submitted before the host has written their inputs, to try it on any device",
    WHOLE_SHADERS: "shaders come to the driver with the branches that their constants rule out, not without",
    "no-texels": "no loads through texel buffers",
}
"""What can be chosen otherwise, by name."""
_PREFIX = "workgroups-"
_TABLE = Path(__file__).with_name("quirks.toml")


@dataclass(frozen=True)
class Quirk:
    """A row of the table; its comment explains the fields."""

    name: str
    drivers: tuple[int, ...]
    vendors: tuple[int, ...]
    since: int
    until: int
    switches: tuple[str, ...]
    evidence: str
    reason: str
    source: str

    def holds_for(self, driver_id: int, vendor_id: int, version: int) -> bool:
        """Whether it is known of a driver."""
        return (
            (not self.drivers or driver_id in self.drivers)
            and (not self.vendors or vendor_id in self.vendors)
            and self.since <= version
            and (not self.until or version <= self.until)
        )


@cache
def quirks() -> tuple[Quirk, ...]:
    """All rows."""
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["quirk"]
    return tuple(map(_quirk, rows))


def _quirk(row: dict[str, Any]) -> Quirk:
    tuples = {name: tuple(row[name]) for name in ("drivers", "vendors", "switches")}
    return Quirk(**{**row, **tuples})


def quirks_of(driver_id: int, vendor_id: int, version: int) -> tuple[Quirk, ...]:
    """What is known of a driver."""
    return tuple(quirk for quirk in quirks() if quirk.holds_for(driver_id, vendor_id, version))


def switches_for(known: Collection[Quirk], text: str | None = None) -> frozenset[str]:
    """The switches of a device.

    Args:
        known: what is known of its driver.
        text: names with commas: of switches or quirks, to add; with a ``-`` before them, to remove; ``none`` removes
            those of the table. Without it, the variable ``MOBOPT_QUIRKS``.

    Raises:
        InputError: there is no such name.
    """
    found = {name for quirk in known for name in quirk.switches}
    for word in filter(None, map(str.strip, (os.environ.get(VARIABLE, "") if text is None else text).split(","))):
        if word == "none":
            found.clear()
            continue
        named = _named(word.removeprefix("-"))
        found = found - named if word.startswith("-") else found | named
    return frozenset(found)


def _named(name: str) -> set[str]:
    """A switch, or those of a quirk."""
    if name in SWITCHES:
        return {name}
    rows = [quirk for quirk in quirks() if quirk.name == name]
    if not rows:
        known = ", ".join((*SWITCHES, *(quirk.name for quirk in quirks())))
        raise InputError(
            f"there is no quirk {name!r} ({VARIABLE}); choose of none, {known}, with - before it to leave it out"
        )
    return {switch for quirk in rows for switch in quirk.switches}


def workgroup(switches: Collection[str], usual: int, most: int) -> int:
    """How many invocations a workgroup has, where any number is right.

    Args:
        switches: of the device.
        usual: the number that is best elsewhere.
        most: that the device takes.
    """
    asked = [int(name.removeprefix(_PREFIX)) for name in switches if name.startswith(_PREFIX)]
    size = min(asked[0] if asked else usual, most)
    return size // 2 if size == 64 and "no-64" in switches else size
