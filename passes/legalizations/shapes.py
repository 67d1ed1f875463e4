"""Sizes, order and number of dimensions, and parts of tensors, by the operators that Vulkan kernels compute right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mobopt.ir import Node, Value
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.targets.device_profiles import tensor_extent
from mobopt.passes.legalizations.building import (
    joined,
    pointwise,
    reshaped,
    size_of,
    slice_of,
    times,
    with_dimension,
    without_dimension,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_MOST_PARTS = 64
"""Copies or slices that are put together; more would be slower than the CPU."""
_END = (1 << 63) - 1
_TURNED = (0, 1, 3, 2)
"""Width and height in each other's place."""
_RESHAPES = ("aten::reshape", "aten::view", "aten::flatten", "aten::_unsafe_view")
_ORDERS = ("aten::permute", "aten::transpose", "aten::contiguous", "aten::clone")


@legalizes("keep", level="safe")
def keep(site: Site) -> Value:
    """The tensor itself."""
    x = site.arg("self")
    if site.node.op in ("aten::detach", "aten::alias"):
        return x
    if site.facts(x).known_dtype != "float32" or site.facts(site.node.output).known_dtype != "float32":
        raise Refused("it changes the dtype")
    if site.node.overload == "dtype_layout" and site.const("device") is not None:
        raise Refused("it names a device")
    if site.node.op == "aten::to" and site.const("copy"):
        copy: Value = site.op("aten::clone", x)
        return copy
    return x


@legalizes("copy_plainly", level="safe")
def copy_plainly(site: Site) -> Value:
    """The same without a memory format."""
    result: Value = site.op(site.node.qualified_op, site.arg("self"))
    return result


@legalizes("fill_on_host", level="safe")
def fill_on_host(site: Site) -> Value:
    """Filled by the CPU, which does not need the tensor for it."""
    op, x = site.node.op, site.arg("self")
    if site.facts(site.node.output).known_dtype != "float32":
        raise Refused("its result is not float32")
    value = site.const("fill_value") if op.startswith(("aten::full", "aten::new_full")) else float("ones" in op)
    sizes = site.arg("size") if "new_" in op else [size_of(site, x, dim) for dim in range(site.rank(x))]
    result: Value = site.op("aten::full", sizes, float(value), 6, None, torch.device("cpu"), None)
    return result


# Order and number of dimensions


def permuted(site: Site, x: Value, order: Sequence[int]) -> Value:
    """Dimensions in another order; the tensor itself if it is the same."""
    if list(order) == list(range(len(order))):
        return x
    result: Value = site.op("aten::permute", x, list(order))
    return result


def inverse(order: Sequence[int]) -> list[int]:
    """The order that undoes another."""
    return sorted(range(len(order)), key=lambda index: order[index])


@legalizes("transpose_by_permute", level="safe")
def transpose_by_permute(site: Site) -> Value:
    """The same exchange as a permutation."""
    rank = site.rank("self")
    return permuted(site, site.arg("self"), _order_of(site, rank))


def _order_of(site: Site, rank: int) -> list[int]:
    op, overload = site.node.op, site.node.overload
    if op == "aten::movedim":
        source, target = site.const("source"), site.const("destination")
        pairs = [(source, target)] if overload == "int" else zip(source, target, strict=True)
        return _moved({target % rank: source % rank for source, target in pairs}, rank)
    if op in ("aten::t", "aten::numpy_T"):
        return list(range(rank))[::-1]
    names = {"aten::transpose": ("dim0", "dim1"), "aten::swapdims": ("dim0", "dim1")}.get(op, ("axis0", "axis1"))
    first, second = (site.const(name) % rank for name in names)
    order = list(range(rank))
    order[first], order[second] = second, first
    return order


def _moved(sources: dict[int, int], rank: int) -> list[int]:
    """The order where some places have a source, and the rest of the dimensions fill the others."""
    rest = iter(dim for dim in range(rank) if dim not in sources.values())
    return [sources[place] if place in sources else next(rest) for place in range(rank)]


@legalizes("unsqueeze_by_reshape", level="safe")
def unsqueeze_by_reshape(site: Site) -> Value:
    """The same as a reshape."""
    rank = site.rank("self")
    if rank > 3:
        raise Refused("its result has more than 4 dimensions")
    return with_dimension(site, site.arg("self"), rank, site.const("dim") % (rank + 1))


@legalizes("squeeze_by_reshape", level="full")
def squeeze_by_reshape(site: Site) -> Value:
    """A reshape without the dimensions of size 1."""
    x, sizes = site.arg("self"), site.sizes("self")
    given = {"": list(range(len(sizes))), "dim": [site.const("dim")] if site.node.overload == "dim" else []}
    dims = site.const("dim") if site.node.overload == "dims" else given[site.node.overload]
    gone = {dim % len(sizes) for dim in dims if sizes[dim] == 1}
    kept = [dim for dim in range(len(sizes)) if dim not in gone]
    if not kept:
        raise Refused("its result has no dimensions")
    return reshaped(site, x, [*(size_of(site, x, dim) for dim in kept[:-1]), -1]) if gone else x


@legalizes("reshape_plainly", level="safe")
def reshape_plainly(site: Site) -> Value:
    """The same as a reshape to listed sizes."""
    x = site.arg("self")
    if site.node.op != "aten::unflatten":
        other = site.arg("other")
        return reshaped(site, x, [size_of(site, other, dim) for dim in range(site.rank(other))])
    rank, dim = site.rank(x), site.const("dim") % site.rank(x)
    inner = site.arg("sizes")
    parts = inner.constant if inner.is_constant else site.items("sizes")
    before, after = range(dim), range(dim + 1, rank)
    return reshaped(
        site, x, [*(size_of(site, x, item) for item in before), *parts, *(size_of(site, x, item) for item in after)]
    )


@legalizes("permute_in_four_dimensions", level="full")
def permute_in_four_dimensions(site: Site) -> Value:
    """One permutation of at most 4 dimensions: those that stay together are merged, those of size 1 left out."""
    source, sizes, order = _road(site, site.arg("self"))
    sizes_before = site.sizes(source)
    if len(sizes_before) > 4:
        raise Refused("the tensor that it comes from has more than 4 dimensions")
    runs = _runs([dim for dim in order if sizes[dim] != 1], sizes)
    if len(runs) > 4:
        raise Refused(f"{len(runs)} dimensions change places")
    in_order = sorted(runs)
    merged = [_product(sizes, run) for run in in_order]
    result = permuted(site, reshaped(site, source, merged), [in_order.index(run) for run in runs]) if merged else source
    return reshaped(site, result, site.sizes(site.node.output))


def _road(site: Site, x: Value) -> tuple[Value, tuple[int, ...], list[int]]:
    """Where a tensor of many dimensions comes from: the source, the sizes it is seen in, and their order."""
    order = list(range(site.rank(x)))
    while True:
        node = x.producer
        if node is None or node.op not in (*_RESHAPES, *_ORDERS, "aten::unflatten"):
            raise Refused("its operand is not a permutation of a tensor of at most 4 dimensions")
        if node.op in (*_RESHAPES, "aten::unflatten"):
            return node.inputs[0], site.sizes(x), order
        inner = _order_of_node(node, len(order))
        order = [inner[dim] for dim in order]
        x = node.inputs[0]


def _order_of_node(node: Node, rank: int) -> list[int]:
    order = list(range(rank))
    if node.op in ("aten::contiguous", "aten::clone"):
        return order
    if not all(value.is_constant for value in node.inputs[1:]):
        raise Refused("the order of dimensions is computed when the model runs")
    if node.op == "aten::permute":
        return [dim % rank for dim in node.inputs[1].constant]
    first, second = (value.constant % rank for value in node.inputs[1:3])
    order[first], order[second] = second, first
    return order


def _runs(order: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Dimensions that follow one another before and after, with nothing but size 1 between."""
    runs: list[tuple[int, ...]] = []
    for dim in order:
        last = runs[-1] if runs else ()
        if last and last[-1] < dim and all(sizes[between] == 1 for between in range(last[-1] + 1, dim)):
            runs[-1] = (*last, dim)
        else:
            runs.append((dim,))
    return runs


def _product(sizes: Sequence[int], dims: Sequence[int]) -> int:
    result = 1
    for dim in dims:
        result *= sizes[dim]
    return result


# Parts


@legalizes("narrow_by_slice", level="safe")
def narrow_by_slice(site: Site) -> Value:
    """The same as a slice."""
    start, length = site.const("start"), site.const("length")
    end = start + length
    if start < 0:
        end = _END if end == 0 else end
    return slice_of(site, site.arg("self"), site.const("dim"), start, end)


@legalizes("select_by_slice", level="safe")
def select_by_slice(site: Site) -> Value:
    """A slice of one, reshaped."""
    rank, index = site.rank("self"), site.const("index")
    if rank == 1:
        raise Refused("its result has no dimensions")
    dim = site.const("dim") % rank
    part = slice_of(site, site.arg("self"), dim, index, _END if index == -1 else index + 1)
    return without_dimension(site, part, rank, dim)


@legalizes("split_by_slices", level="safe")
def split_by_slices(site: Site) -> Value:
    """A slice for each part."""
    name = "split_size" if site.node.overload == "sizes" else "split_sizes"
    lengths, dim, start = site.const(name), site.const("dim"), 0
    parts = []
    for length in lengths:
        parts.append(slice_of(site, site.arg("self"), dim, start, start + length))
        start += length
    return _listed(site, parts)


@legalizes("unbind_by_selects", level="full")
def unbind_by_selects(site: Site) -> Value:
    """A selection for each part."""
    x, dim = site.arg("self"), site.const("dim") % site.rank("self")
    count = site.sizes(x)[dim]
    if count > _MOST_PARTS:
        raise Refused(f"it has {count} parts")
    return _listed(site, [site.op("aten::select.int", x, dim, index) for index in range(count)])


def _listed(site: Site, parts: Sequence[Value]) -> Value:
    node = site.graph.create("prim::ListConstruct", list(parts), [ListType(TENSOR)], origin=site.node.origin)
    return node.insert_before(site.node).output


@legalizes("flip_by_slices", level="full")
def flip_by_slices(site: Site) -> Value:
    """Slices of one, put together in reverse."""
    x, sizes = site.arg("self"), site.sizes("self")
    for dim in site.const("dims"):
        count = sizes[dim]
        if count > _MOST_PARTS:
            raise Refused(f"it turns {count} elements")
        x = joined(
            site, [slice_of(site, x, dim, index, index + 1) for index in reversed(range(count))], dim % len(sizes)
        )
    return x


@legalizes("roll_by_slices", level="full")
def roll_by_slices(site: Site) -> Value:
    """The last part put before the first."""
    x, sizes, dims = site.arg("self"), site.sizes("self"), site.const("dims")
    if not dims:
        raise Refused("it rolls the elements of all dimensions in a row")
    for shift, dim in zip(site.const("shifts"), dims, strict=True):
        place = -shift % sizes[dim]
        if place:
            x = joined(site, [slice_of(site, x, dim, place, _END), slice_of(site, x, dim, 0, place)], dim % len(sizes))
    return x


@legalizes("index_by_slices", level="safe")
def index_by_slices(site: Site) -> Value:
    """A slice for each run of indices, put together."""
    dim, index = _dimension_and_index(site)
    if index.dtype == torch.bool or index.dim() != 1 or bool((index < 0).any()):
        raise Refused("its index is not a row of numbers from zero up")
    runs: list[list[int]] = []
    for number in index.tolist():
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    if not 0 < len(runs) <= _MOST_PARTS:
        raise Refused(f"its index has {len(runs)} runs")
    return joined(site, [slice_of(site, site.arg("self"), dim, *run) for run in runs], dim)


def _dimension_and_index(site: Site) -> tuple[int, torch.Tensor]:
    if site.node.op == "aten::index_select":
        if site.rank("self") == 0:
            raise Refused("a tensor without dimensions has no slices")
        return site.const("dim") % site.rank("self"), site.const("index")
    indices = site.const("indices")
    dim = next(place for place, item in enumerate(indices) if item is not None)
    return dim, indices[dim]


# Putting together


@legalizes("cat_aligned_channels", level="safe")
def cat_aligned_channels(site: Site) -> Value:
    """Operands divided where a group of four channels of the result begins, then joined."""
    parts: list[Value] = []
    before = 0
    for part in site.items("tensors"):
        channels, head = site.sizes(part)[1], -before % 4
        if head and channels > 4:
            parts += [slice_of(site, part, 1, 0, head), slice_of(site, part, 1, head, channels)]
        else:
            parts.append(part)
        before += channels
    return joined(site, parts, 1)


@legalizes("cat_samples", level="full")
def cat_samples(site: Site) -> Value:
    """Samples as channels of one image, which are joined, and made samples again."""
    return _joined_as_images(site)


@legalizes("cat_without_empty", level="safe")
def cat_without_empty(site: Site) -> Value:
    """Only the tensors that have elements joined."""
    parts = [part for part in site.items("tensors") if not (part.is_constant and part.constant.shape == (0,))]
    dtype = site.facts(site.node.output).known_dtype
    if not parts or dtype is None or any(site.facts(part).known_dtype != dtype for part in parts):
        raise Refused("the tensor without elements decides the result's dtype")
    return joined(site, parts, site.const("dim"))


@legalizes("cat_channels_or_heights", level="safe")
def cat_channels_or_heights(site: Site) -> Value:
    """Tensors reshaped to images, whose channels or heights are joined."""
    return _joined_as_images(site)


def _joined_as_images(site: Site) -> Value:
    parts = site.items("tensors")
    rank = site.rank(parts[0])
    dim = site.const("dim") % rank
    if rank == 4 and (dim == 2 or (dim == 1 and site.const("dim") < 0)):
        return joined(site, parts, dim)
    if not _fits_as_image(site, dim):
        if (rank, dim) != (4, 3):
            raise Refused("as images that can be joined its operands are larger than the device's")
        turned = joined(site, [permuted(site, part, _TURNED) for part in parts], 2)
        return permuted(site, turned, _TURNED)
    images = [
        reshaped(site, part, _image_sizes([size_of(site, part, item) for item in range(rank)], dim)) for part in parts
    ]
    whole = joined(site, images, 1 if (rank, dim) in ((3, 0), (4, 0)) else 2)
    first = parts[0]
    return reshaped(site, whole, [-1 if item == dim else size_of(site, first, item) for item in range(rank)])


def _fits_as_image(site: Site, dim: int) -> bool:
    """Whether the result can be an image as it is joined, as far as its sizes are known."""
    made = site.facts(site.node.output).known_sizes
    if made is None:
        return True
    sizes = [size for size in _image_sizes(made, dim) if isinstance(size, int)]
    rest = math.prod(made) // max(-math.prod(sizes), 1)  # of the one that is -1
    extent = tensor_extent([rest if size == -1 else size for size in sizes])
    return extent is None or max(extent) <= site.limit


def _image_sizes(sizes: Sequence[int | Value], dim: int) -> list[int | Value]:
    """A view of 4 dimensions where what is joined is the channels (of one image) or the height."""
    shapes: dict[tuple[int, int], list[int | Value]] = {
        (1, 0): [1, 1, -1, 1],
        (2, 0): [1, 1, -1, sizes[-1]],
        (2, 1): [1, sizes[0], -1, 1],
        (3, 0): [1, -1, *sizes[-2:]],
        (3, 1): [1, sizes[0], -1, sizes[-1]],
        (3, 2): [*sizes[:2], -1, 1],
        (4, 0): [1, -1, *sizes[-2:]],
        (4, 1): [sizes[0], 1, -1, sizes[-1]],
        (4, 3): [sizes[0], -1, sizes[-1], 1],
    }
    return shapes[len(sizes), dim]


@legalizes("stack_by_cat", level="safe")
def stack_by_cat(site: Site) -> Value:
    """Tensors with one dimension more, joined along it."""
    parts = site.items("tensors")
    rank = site.rank(parts[0])
    if rank > 3:
        raise Refused("its result has more than 4 dimensions")
    dim = site.const("dim") % (rank + 1)
    return joined(site, [with_dimension(site, part, rank, dim) for part in parts], dim)


@legalizes("repeat_by_cat", level="safe")
def repeat_by_cat(site: Site) -> Value:
    """Copies joined along each dimension."""
    x, rank = site.arg("self"), site.rank("self")
    counts = list(site.const("repeats" if site.node.op == "aten::repeat" else "dims"))
    counts = [1] * (rank - len(counts)) + counts
    if len(counts) > 4 or not 0 < max(counts) <= _MOST_PARTS or min(counts) < 1:
        raise Refused(f"it is repeated {counts} times")
    x = _with_leading(site, x, rank, len(counts))
    for dim, count in enumerate(counts):
        x = joined(site, [x] * count, dim)
    return x


def _with_leading(site: Site, x: Value, rank: int, more: int) -> Value:
    """A tensor with dimensions of size 1 before its own."""
    if more == rank:
        return x
    return reshaped(site, x, [*[1] * (more - rank), *(size_of(site, x, dim) for dim in range(rank))])


@legalizes("broadcast_by_expand", level="safe")
def broadcast_by_expand(site: Site) -> Value:
    """The same as an expand."""
    result: Value = site.op("aten::expand", site.arg("self"), site.arg("size"))
    return result


@legalizes("expand_to_sizes", level="full")
def expand_to_sizes(site: Site) -> Value:
    """An expand to the sizes of the example."""
    result: Value = site.op("aten::expand", site.arg("self"), site.sizes(site.node.output))
    return result


@legalizes("expand_by_cat", level="safe")
def expand_by_cat(site: Site) -> Value:
    """Products with ones, a convolution with ones, or copies joined along each dimension."""
    sizes, target = site.sizes("self"), site.const("size")
    rank = len(target)
    if rank > 4:
        raise Refused("its result has more than 4 dimensions")
    old = (1,) * (rank - len(sizes)) + sizes
    counts = [new if before == 1 and new > 1 else 1 for before, new in zip(old, target, strict=True)]
    x = _with_leading(site, site.arg("self"), len(sizes), rank)
    if rank == 4 and old[0] == counts[0] == 1:
        if counts[1] > 1:
            x, counts[1] = pointwise(site, x, torch.ones(int(counts[1]), 1)), 1
            old = (1, target[1], *old[2:])
        if old[2] == old[3] == 1 and max(counts[2:]) > 1:
            return times(site, x, torch.ones(1, int(old[1]), *counts[2:]))
    if max(counts) > _MOST_PARTS:
        raise Refused(f"it is repeated {max(counts)} times")
    for dim, count in enumerate(counts):
        x = joined(site, [x] * count, dim)
    return x
