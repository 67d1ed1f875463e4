"""A roofline plot: how much a layer computes in a second over how much it computes for a byte, both by logarithm.

Below the slanted roof a layer waits for bytes, below the flat one for arithmetic; what lies far below both waits for
something else. Coordinates are those of an SVG; the template draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mobopt.display import rate_text
from mobopt.tools.profiling import Layer, Profile

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 16, 16, 44
_RADII = (3.5, 15.0)


@dataclass(frozen=True)
class Point:
    """A layer; its area is its time."""

    x: float
    y: float
    radius: float
    number: int
    """Of the layer, from 1 on, in the order in which they run."""
    layer: Layer


@dataclass(frozen=True)
class Tick:
    """A line of the grid."""

    at: float
    text: str


@dataclass(frozen=True)
class Roofline:
    """The plot.

    Attributes:
        roof: corners of the device's roofs, as an SVG's ``points``.
        ridge: where the two roofs meet.
        points: layers that compute something, the longest first.
        without: how many layers compute nothing, and have no place in the plot.
    """

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    roof: str
    ridge: tuple[float, float]
    points: tuple[Point, ...]
    without: int


def roofline(found: Profile) -> Roofline:
    """The plot of a profile."""
    roofs = found.roofs
    ridge = roofs.flops_per_second / roofs.bytes_per_second
    drawn = [(number, layer) for number, layer in enumerate(found.layers, 1) if _is_drawn(layer)]
    intensities = [ridge / 4, ridge * 4, *(layer.work.intensity for _, layer in drawn)]
    rates = [roofs.flops_per_second, *(layer.work.flops_per_second for _, layer in drawn)]
    left, right = _decades(min(intensities), max(intensities))
    low, high = _decades(min(rates) / 1.5, max(rates) * 1.5)
    across = _scale(left, right, _LEFT, WIDTH - _RIGHT)
    up = _scale(low, high, HEIGHT - _BOTTOM, _TOP)
    start = max(10.0**left, 10.0**low / roofs.bytes_per_second)
    corners = [(start, start * roofs.bytes_per_second), (ridge, roofs.flops_per_second)]
    corners.append((10.0**right, roofs.flops_per_second))
    longest = max((layer.work.seconds for _, layer in drawn), default=1.0)
    points = [
        Point(
            across(layer.work.intensity),
            up(layer.work.flops_per_second),
            max(_RADII[0], _RADII[1] * math.sqrt(layer.work.seconds / longest)),
            number,
            layer,
        )
        for number, layer in drawn
    ]
    return Roofline(
        WIDTH,
        HEIGHT,
        _LEFT,
        WIDTH - _RIGHT,
        _TOP,
        HEIGHT - _BOTTOM,
        tuple(Tick(across(10.0**power), _number_text(power)) for power in range(left, right + 1)),
        tuple(Tick(up(10.0**power), rate_text(10.0**power)) for power in range(low, high + 1)),
        " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in corners),
        (across(ridge), up(roofs.flops_per_second)),
        tuple(sorted(points, key=lambda point: -point.radius)),
        len(found.layers) - len(drawn),
    )


def _is_drawn(layer: Layer) -> bool:
    work = layer.work
    return bool(work.flops and work.bytes and work.seconds) and layer.bound != "host"


def _decades(low: float, high: float) -> tuple[int, int]:
    """Powers of ten around a range."""
    return math.floor(math.log10(low)), math.ceil(math.log10(high))


def _scale(low: int, high: int, begin: float, end: float) -> Callable[[float], float]:
    return lambda value: begin + (math.log10(value) - low) / (high - low) * (end - begin)


def _number_text(power: int) -> str:
    return f"{10.0**power:g}"
