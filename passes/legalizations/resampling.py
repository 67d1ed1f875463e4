"""Changes of image size as 1x1 convolutions with constant weights."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Value
from mobopt.ops.schemas import schema_of
from mobopt.passes.legalizations.building import pointwise, reshaped, spread, with_dimension, without_dimension
from mobopt.passes.legalizations.site import Refused, Site, legalizes
from mobopt.runtimes.cpu.kernels import kernel


@legalizes("resize_by_matrices", level="full")
def resize_by_matrices(site: Site) -> Value:
    """A matrix for each axis, applied to it as channels by 1x1 convolutions.

    The operator is linear and works on each axis alone, so the matrices are what it makes of unit matrices.
    """
    sizes, results = site.sizes(site.node.inputs[0]), site.sizes(site.node.output)
    if len(sizes) != (3 if "1d" in site.node.op else 4):
        raise Refused("its input has no batch dimension")
    matrices = [_matrix_of(site, axis, sizes[axis], results[axis]) for axis in range(len(sizes) - 1, 1, -1)]
    is_plain = len(sizes) == 4 and sizes[0] == 1
    image = [1, sizes[0] * sizes[1], *((1, sizes[2]) if len(sizes) == 3 else sizes[2:])]
    x = site.node.inputs[0] if is_plain else reshaped(site, site.node.inputs[0], image)
    x = pointwise(site, site.op("aten::permute", x, [0, 3, 2, 1]), matrices[0])  # the width as channels
    if len(matrices) == 1:
        x = site.op("aten::permute", x, [0, 3, 2, 1])
    else:
        x = pointwise(site, site.op("aten::permute", x, [0, 2, 1, 3]), matrices[1])  # the height as channels
        x = site.op("aten::permute", x, [0, 3, 1, 2])
    return x if is_plain else reshaped(site, x, results)


def _matrix_of(site: Site, axis: int, size: int, result: int) -> torch.Tensor:
    """What the operator does to one axis: a matrix (result, size).

    It is run on an image of which each line along the axis is a unit vector, and whose other axis stays as it is.
    """
    rank = site.rank(site.node.inputs[0])
    units = torch.eye(int(size)).reshape([1] * (rank - 2) + [size, size])
    arguments = [_along(site, index, axis, size, result) for index in range(1, len(site.node.inputs))]
    image = kernel(site.node.qualified_op)(units, *arguments)
    assert isinstance(image, torch.Tensor)
    lines = image.reshape(image.shape[-2:])
    return lines if axis == rank - 2 else lines.t()


def _along(site: Site, index: int, axis: int, size: int, result: int) -> Any:
    """An argument of the operator for an image (size, size) of which one axis becomes ``result`` long."""
    name = schema_of(site.node.qualified_op).arguments[index].name
    value = site.known(site.node.inputs[index], name)
    spatial = site.rank(site.node.inputs[0]) - 2
    place = axis - 2
    if name in _NEUTRAL and value:
        numbers = spread(value, spatial)
        neutral = size if name == "output_size" else _NEUTRAL[name]
        return [numbers[item] if item == place else neutral for item in range(spatial)]
    if name in ("scales_h", "scales_w"):
        return value if name == ("scales_h", "scales_w")[place] else None
    return value


_NEUTRAL = {"output_size": 0, "kernel_size": 1, "stride": 1, "padding": 0, "scale_factors": 1.0}
"""Parameters with a number for each axis, and the number that leaves an axis as it is; a size is the input's."""


@legalizes("resize_1d_as_2d", level="safe")
def resize_1d_as_2d(site: Site) -> Value:
    """The same change of size of images of height 1."""
    x = with_dimension(site, site.node.inputs[0], 3, 2)
    is_linear = "linear" in site.node.op
    op = site.node.qualified_op.replace("linear1d", "bilinear2d").replace("nearest1d", "nearest2d")
    align = [False] if is_linear else []
    size = site.known(site.node.inputs[1], "output_size")
    wide = None if size is None else [1, *size]
    if site.node.overload == "vec":
        factors = site.const("scale_factors")
        resized = site.op(op, x, wide, *align, None if factors is None else [1.0, *factors])
    else:
        resized = site.op(op, x, wide, *align, None, site.const("scales"))
    return without_dimension(site, resized, 4, 2)
