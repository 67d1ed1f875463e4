"""What the rewrites of layers have in common: dimensions put in and taken out, slices, and matrices of linear maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mobopt.ir import Value
from mobopt.ops.targets.table import release_key
from mobopt.passes.legalizations.site import Refused, Site


def spread(values: int | Sequence[int], count: int) -> list[int]:
    """A parameter with one number for each spatial dimension; a single number stands for all."""
    numbers = [values] if isinstance(values, int) else list(values)
    return numbers * count if len(numbers) == 1 else numbers


def weight_of(site: Site, name: str = "weight") -> torch.Tensor:
    """A constant tensor argument.

    Raises:
        Refused: it is computed when the model runs, or absent.
    """
    value = site.const(name)
    if not isinstance(value, torch.Tensor):
        raise Refused(f"it has no {name}")
    return value


def size_of(site: Site, x: Value, dim: int) -> Value:
    """A size that is asked for when the model runs."""
    size: Value = site.op("aten::size.int", x, dim)
    return size


def reshaped(site: Site, x: Value, sizes: Sequence[int | Value]) -> Value:
    """The same elements in other sizes."""
    result: Value = site.op("aten::reshape", x, list(sizes))
    return result


def with_dimension(site: Site, x: Value, rank: int, dim: int) -> Value:
    """A tensor of ``rank`` dimensions with one more, of size 1, at ``dim``."""
    sizes = _sizes_with_rest(site, x, range(rank))
    return reshaped(site, x, [*sizes[:dim], 1, *sizes[dim:]])


def without_dimension(site: Site, x: Value, rank: int, dim: int) -> Value:
    """A tensor of ``rank`` dimensions without the one at ``dim``, whose size is 1."""
    return reshaped(site, x, _sizes_with_rest(site, x, [item for item in range(rank) if item != dim]))


def _sizes_with_rest(site: Site, x: Value, dims: Sequence[int]) -> list[int | Value]:
    return [*(size_of(site, x, dim) for dim in dims[:-1]), -1]


def slice_of(site: Site, x: Value, dim: int, start: int, end: int) -> Value:
    """Elements ``start`` to ``end`` (exclusive) along a dimension."""
    result: Value = site.op("aten::slice.Tensor", x, dim, start, end, 1)
    return result


def joined(site: Site, parts: Sequence[Value], dim: int) -> Value:
    """Tensors one after the other along a dimension."""
    result: Value = parts[0] if len(parts) == 1 else site.op("aten::cat", list(parts), dim)
    return result


def plus(site: Site, left: Value, right: Value | torch.Tensor) -> Value:
    """A sum of tensors."""
    result: Value = site.op("aten::add.Tensor", left, right, 1)
    return result


def times(site: Site, left: Value, right: Value | torch.Tensor) -> Value:
    """A product of tensors, element by element."""
    result: Value = site.op("aten::mul.Tensor", left, right)
    return result


def pointwise(site: Site, x: Value, matrix: torch.Tensor) -> Value:
    """Mix the channels of a 4-d tensor with a matrix (out, in), by a 1x1 convolution without bias."""
    weight = matrix.to(torch.float32)[:, :, None, None].contiguous()
    result: Value = site.op("aten::conv2d", x, weight, None, [1, 1], [0, 0], [1, 1], 1)
    return result


def is_release(site: Site, name: str) -> bool:
    """Whether the runtime is this release of PyTorch or a newer one."""
    return release_key(site.runtime) >= release_key(name)
