"""Convolutions, in one to three dimensions, of a batch or of one sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mobopt.ir.dimensions import Dimension
from mobopt.ir.types import TensorType
from mobopt.ops.shapes.layouts import as_any_image
from mobopt.ops.shapes.rules import FLOATS, numbers, require, shape_rule
from mobopt.ops.shapes.views import with_sizes


def _check(x: TensorType, weight: TensorType, bias: TensorType | None) -> int:
    """The number of spatial dimensions."""
    require(x.dtype in FLOATS and x.dtype == weight.dtype and weight.rank >= 3)
    require(bias is None or (bias.dtype == x.dtype and bias.rank == 1))
    spatial = weight.rank - 2
    require(x.rank in (spatial + 1, spatial + 2))
    require(all(size > 0 for size in (*weight.sizes, *x.sizes[-spatial - 1 :])))
    return spatial


def _strided(size: Dimension, kernel: Dimension, stride: int, padding: int, dilation: int) -> Dimension:
    covered = dilation * (kernel - 1) + 1
    padded = size + 2 * padding
    require(padded >= covered)
    return (padded - covered) // stride + 1


@shape_rule("aten::conv1d", "aten::conv2d", "aten::conv3d", layout=as_any_image)
def convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> TensorType:
    """``[N, C, ...]`` and ``[O, C / groups, kernel...]`` to ``[N, O, ...]``."""
    spatial = _check(x, weight, bias)
    settings = (numbers(item, spatial) for item in (stride, padding, dilation))
    lead, inner = x.sizes[: -spatial - 1], x.sizes[-spatial:]
    require(x.sizes[-spatial - 1] == weight.sizes[1] * groups and weight.sizes[0] % groups == 0)
    require(bias is None or bias.sizes[0] == weight.sizes[0])
    sizes = [_strided(*item) for item in zip(inner, weight.sizes[2:], *settings, strict=True)]
    return with_sizes(x, (*lead, weight.sizes[0], *sizes))


@shape_rule("aten::conv1d.padding", "aten::conv2d.padding", "aten::conv3d.padding", layout=as_any_image)
def convolution_padded_by_name(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
    groups: int,
) -> TensorType:
    """Padded by name: ``same`` or ``valid``."""
    spatial = _check(x, weight, bias)
    made: TensorType
    if padding == "valid":
        made = convolution(x, weight, bias, stride, [0], dilation, groups)
        return made
    require(padding == "same" and all(item == 1 for item in numbers(stride, spatial)))
    require(x.sizes[-spatial - 1] == weight.sizes[1] * groups and weight.sizes[0] % groups == 0)
    require(bias is None or bias.sizes[0] == weight.sizes[0])
    return with_sizes(x, (*x.sizes[: -spatial - 1], weight.sizes[0], *x.sizes[-spatial:]))


@shape_rule(
    "aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input", layout=as_any_image
)
def transposed_convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> TensorType:
    """``[N, C, ...]`` and ``[C, O / groups, kernel...]`` to ``[N, O, ...]``."""
    spatial = _check(x, weight, bias)
    settings = (numbers(item, spatial) for item in (stride, padding, output_padding, dilation))
    require(x.sizes[-spatial - 1] == weight.sizes[0] and weight.sizes[0] % groups == 0)
    require(bias is None or bias.sizes[0] == weight.sizes[1] * groups)
    sizes = []
    for size, kernel, step, border, extra, spread in zip(x.sizes[-spatial:], weight.sizes[2:], *settings, strict=True):
        sizes.append((size - 1) * step - 2 * border + spread * (kernel - 1) + extra + 1)
        require(sizes[-1] > 0 and extra < max(step, spread))
    return with_sizes(x, (*x.sizes[: -spatial - 1], weight.sizes[1] * groups, *sizes))


@shape_rule("aten::convolution", "aten::_convolution", layout=as_any_image)
def any_convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: Any,
) -> TensorType:
    """Either kind, of a batch."""
    require(x.rank == weight.rank)
    made: TensorType
    if transposed:
        made = transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        made = convolution(x, weight, bias, stride, padding, dilation, groups)
    return made
