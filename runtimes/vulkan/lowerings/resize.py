"""Upsampling (nearest, linear, cubic) to sizes or by factors, and padding that repeats or mirrors."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from mobopt.ir import Node
from mobopt.ir.schemas import argument_names
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import as_channels_last
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.resampling import (
    AxisTable,
    antialias_table,
    cubic_table,
    linear_table,
    nearest_table,
    padding_table,
    repeated,
    resample,
)
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes, check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lowers

_NEAREST = tuple(f"aten::upsample_nearest{n}d" for n in (1, 2, 3))
_NEAREST_EXACT = tuple(f"aten::_upsample_nearest_exact{n}d" for n in (1, 2, 3))
_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
_ANTIALIASED = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")


def _both_forms(*names: str) -> list[str]:
    return [form for name in names for form in (name, f"{name}.vec")]


def _spatial(call: Node) -> int:
    found = re.search(r"(\d)d", call.qualified_op)
    assert found is not None
    return int(found.group(1))


def _factors(call: Node, spatial: int) -> list[float | None]:
    """The scale factors that the call names, which decide the positions where they are given."""
    names = argument_names(call.qualified_op)
    if "scale_factors" in names:
        return list(call["scale_factors"] or [None] * spatial)
    return list(call.args[-spatial:])


def _interpolate(plan: Plan, call: Node, make: Callable[..., AxisTable], *options: bool) -> DeviceTensor:
    """By tables of input size, output size, factor, and ``options``."""
    tensor = plan.tensor(call.args[0])
    spatial = _spatial(call)
    if tensor.rank == 4:
        tensor = as_channels_last(plan, tensor)
    axes = zip(tensor.sizes[-spatial:], call.output.sizes[-spatial:], _factors(call, spatial), strict=True)
    tables = [partial(make, size, outputs, factor, *options) for size, outputs, factor in axes]
    return resample(plan, tensor, call.output.sizes, tables, call.output)


@lowers(*_both_forms(*_NEAREST, *_NEAREST_EXACT), check=check_dtypes, exact=True, long=True)
def upsample_nearest(plan: Plan, call: Node) -> DeviceTensor:
    """Nearest neighbour; by whole factors, each place is copied several times."""
    exact = "exact" in call.qualified_op
    tensor = plan.tensor(call.args[0])
    spatial = _spatial(call)
    sizes, outputs = tensor.sizes[-spatial:], call.output.sizes[-spatial:]
    factors = _factors(call, spatial)
    whole = [
        o // s if s and o % s == 0 and f in (None, o / s) else 0
        for s, o, f in zip(sizes, outputs, factors, strict=True)
    ]
    if all(whole):
        return repeated(plan, tensor, whole, call.output)
    return _interpolate(plan, call, nearest_table, exact)


@lowers(*_both_forms(*(f"aten::{name}" for name in _SMOOTH)), check=check_floating)
def upsample_smooth(plan: Plan, call: Node) -> DeviceTensor:
    """Linear or cubic interpolation."""
    make = cubic_table if "cubic" in call.qualified_op else linear_table
    return _interpolate(plan, call, make, call["align_corners"])


@lowers(*_both_forms(*(f"aten::{name}" for name in _ANTIALIASED)), check=check_floating)
def upsample_antialiased(plan: Plan, call: Node) -> DeviceTensor:
    """Linear or cubic interpolation that averages where it reduces."""
    return _interpolate(plan, call, antialias_table, call["align_corners"], "cubic" in call.qualified_op)


def pad_by_places(plan: Plan, tensor: DeviceTensor, call: Node, padding: list[int], mode: str) -> DeviceTensor:
    """Padding whose values are elements of the tensor; ``padding`` counts from the last dimension, as torch's."""
    spatial = len(padding) // 2
    pairs = [(padding[2 * d], padding[2 * d + 1]) for d in reversed(range(spatial))]
    tables = [
        partial(padding_table, size, *pair, mode) for size, pair in zip(tensor.sizes[-spatial:], pairs, strict=True)
    ]
    return resample(plan, tensor, call.output.sizes, tables, call.output)


@lowers(
    *(f"aten::{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    check=check_dtypes,
    exact=True,
    long=True,
)
def pad(plan: Plan, call: Node) -> DeviceTensor:
    """Mirrored or repeated edges."""
    mode = "reflect" if "reflection" in call.qualified_op else "replicate"
    return pad_by_places(plan, plan.tensor(call.args[0]), call, list(call["padding"]), mode)
