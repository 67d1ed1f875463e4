"""What PyTorch's Metal kernels lack, in terms of those that they have.

Convolutions with weights of the file are computed for every batch, stride and padding, dense or plainly depthwise, so
they are what most is written with: arithmetic with numbers, averages, and parts of the channels
(``aten/src/ATen/native/metal`` of PyTorch).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch

from mobopt.ir import Value
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.schemas import schema_of
from mobopt.passes.legalizations.building import (
    joined,
    plus,
    pointwise,
    reshaped,
    size_of,
    spread,
    times,
    weight_of,
)
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_LARGEST_WEIGHT = 1 << 20
"""Elements of a constant weight beyond which moving channels by a convolution wastes too much."""
_LARGEST_KERNEL = 1 << 26
"""Elements of a weight beyond which a file with zeros for its dilation is of no use: 256 MiB."""
_TEXEL = 4
"""Channels of a layer; groups of a convolution have to be multiples of it."""


@legalizes("spread_kernel", level="safe")
def spread_kernel(site: Site) -> Value:
    """Zeros put between the kernel's elements in place of dilation."""
    weight, dilation = weight_of(site), spread(site.const("dilation"), 2)
    sizes = [step * (size - 1) + 1 for step, size in zip(dilation, weight.shape[2:], strict=True)]
    count = math.prod((*weight.shape[:2], *sizes))
    if count > _LARGEST_KERNEL:
        raise Refused(f"with zeros between its elements, its weight would have {count:,} of them")
    wide = weight.new_zeros(*weight.shape[:2], *sizes)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    rest = [site.arg(name) for name in ("bias", "stride", "padding")]
    result: Value = site.op("aten::conv2d", site.arg("input"), wide, *rest, [1, 1], site.arg("groups"))
    return result


@legalizes("merge_groups", level="safe")
def merge_groups(site: Site) -> Value:
    """Groups put together, with zeros between them, until their channels are a multiple of 4."""
    weight, groups = weight_of(site), site.const("groups")
    rows, columns = weight.shape[0] // groups, weight.shape[1]
    together = next(
        count
        for count in range(1, groups + 1)
        if groups % count == 0 and (count == groups or (count * rows % _TEXEL == 0 and count * columns % _TEXEL == 0))
    )
    if weight.numel() * together > _LARGEST_WEIGHT:
        raise Refused(f"its weight would be {together} times as large")
    merged = weight.new_zeros(weight.shape[0], columns * together, *weight.shape[2:])
    for group in range(groups):
        place = group % together
        merged[group * rows : (group + 1) * rows, place * columns : (place + 1) * columns] = weight[
            group * rows : (group + 1) * rows
        ]
    rest = [site.arg(name) for name in ("bias", "stride", "padding", "dilation")]
    result: Value = site.op("aten::conv2d", site.arg("input"), merged, *rest, groups // together)
    return result


# Arithmetic with numbers


@legalizes("number_by_convolution", level="safe")
def number_by_convolution(site: Site) -> Value:
    """A depthwise 1x1 convolution that multiplies and adds."""
    x, factor, shift = _linear_map(site)
    return _scaled_and_shifted(site, x, site.sizes(x), torch.tensor([factor]), torch.tensor([shift]))


@legalizes("scale_before_adding", level="safe")
def scale_before_adding(site: Site) -> Value:
    """The second operand multiplied by the factor, then the sum."""
    other, alpha = site.arg("other"), site.const("alpha")
    scaled = site.op("aten::mul.Scalar", other, alpha) if not other.is_constant else other.constant * alpha
    result: Value = site.op(site.node.qualified_op, site.arg("self"), scaled, 1)
    return result


@legalizes("exchange_operands", level="safe")
def exchange_operands(site: Site) -> Value:
    """The operands in the other order."""
    result: Value = site.op(site.node.qualified_op, site.arg("other"), site.arg("self"))
    return result


@legalizes("hardsigmoid_by_convolution", level="safe")
def hardsigmoid_by_convolution(site: Site) -> Value:
    """A depthwise 1x1 convolution that divides by 6 and adds a half, clamped to 0 to 1."""
    line = _scaled_and_shifted(site, site.arg("self"), site.sizes("self"), torch.tensor([1 / 6]), torch.tensor([0.5]))
    result: Value = site.op("aten::hardtanh", line, 0.0, 1.0)
    return result


@legalizes("normalise_by_convolution", level="safe")
def normalise_by_convolution(site: Site) -> Value:
    """A depthwise 1x1 convolution with a factor and a bias for each channel."""
    mean, variance = (weight_of(site, name).double() for name in ("running_mean", "running_var"))
    scale = (variance + site.const("eps")).rsqrt()
    weight, bias = site.const("weight"), site.const("bias")
    scale = scale if weight is None else scale * weight.double()
    shift = -mean * scale if bias is None else bias.double() - mean * scale
    return _scaled_and_shifted(site, site.arg("input"), site.sizes("input"), scale.float(), shift.float())


@legalizes("prelu_by_convolutions", level="safe")
def prelu_by_convolutions(site: Site) -> Value:
    """What is positive, less the negative rest times its slopes; with one slope, leaky_relu."""
    x, slopes = site.arg("self"), weight_of(site)
    result: Value
    if slopes.numel() == 1:
        result = site.op("aten::leaky_relu", x, slopes.item())
        return result
    sizes, nothing = site.sizes(x), torch.zeros(1)
    negative = site.op("aten::relu", _scaled_and_shifted(site, x, sizes, torch.tensor([-1.0]), nothing))
    return plus(site, site.op("aten::relu", x), _scaled_and_shifted(site, negative, sizes, -slopes.float(), nothing))


@legalizes("clamp_between_infinities", level="safe")
def clamp_between_infinities(site: Site) -> Value:
    """A hardtanh whose missing end is infinity; relu where the lower end is zero."""
    names = {item.name for item in schema_of(site.node.qualified_op).arguments}
    low, high = (site.const(name) if name in names else None for name in ("min", "max"))
    result: Value
    if low == 0 and high is None:
        result = site.op("aten::relu", site.arg("self"))
        return result
    ends = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    result = site.op("aten::hardtanh", site.arg("self"), *ends)
    return result


def _linear_map(site: Site) -> tuple[Value, float, float]:
    """The tensor, factor and addend that an arithmetic operator with a number stands for.

    Raises:
        Refused: it is none, or its number is not finite or makes the result of another dtype or rank.
    """
    kind = site.node.op.removeprefix("aten::")
    if kind == "neg":
        return site.arg("self"), -1.0, 0.0
    x, other = site.arg("self"), site.arg("other")
    is_exchanged = x.is_constant
    x, other = (other, x) if is_exchanged else (x, other)
    number = _number(site, x, site.known(other, "other"))
    alpha = float(site.const("alpha")) if kind in ("add", "sub", "rsub") else 1.0
    if kind == "rsub" or (kind == "sub" and is_exchanged):
        return x, -alpha, number
    if kind == "add":
        return (x, alpha, number) if is_exchanged else (x, 1.0, alpha * number)
    if kind == "sub":
        return x, 1.0, -alpha * number
    if kind == "mul":
        return x, number, 0.0
    if is_exchanged or number == 0.0:
        raise Refused("it divides a number by a tensor" if is_exchanged else "it divides by zero")
    return x, 1.0 / number, 0.0


def _number(site: Site, x: Value, number: int | float | torch.Tensor) -> float:
    """A number, or the only element of a constant, that is to be combined with a tensor."""
    if site.facts(x).known_dtype != "float32":
        raise Refused("its tensor is not known to be float32")
    if isinstance(number, torch.Tensor):
        widens = number.dim() > 0 and number.dtype not in (torch.float32, torch.float16, torch.bfloat16)
        if number.dim() > site.rank(x) or (widens and number.is_floating_point()) or number.is_complex():
            raise Refused("its number makes the result of another dtype or rank")
        number = number.item()
    if not math.isfinite(number):
        raise Refused(f"its number is {number}")
    return float(number)


def _scaled_and_shifted(site: Site, x: Value, sizes: Sequence[int], factor: torch.Tensor, shift: torch.Tensor) -> Value:
    """``factor * x + shift`` of a tensor of ``sizes``; both have one element or one for each channel (dimension 1)."""
    rank = len(sizes)
    if rank == 4:
        channels = sizes[1]
        weight = factor.expand(channels).reshape(channels, 1, 1, 1).contiguous()
        bias = shift.expand(channels).contiguous() if bool(shift.any()) else None
        result: Value = site.op("aten::conv2d", x, weight, bias, [1, 1], [0, 0], [1, 1], channels)
        return result
    if factor.numel() != 1 or rank not in (1, 2, 3):
        raise Refused("its input is not a batch of images")
    shape = [sizes[0], 1, 1] if rank == 3 else [1] * rank
    x = times(site, x, factor.expand(shape).contiguous()) if float(factor) != 1.0 else x
    return plus(site, x, shift.expand(shape).contiguous()) if bool(shift.any()) else x


# Averages and maxima


@legalizes("average_by_convolution", level="safe")
def average_by_convolution(site: Site) -> Value:
    """A depthwise convolution with a constant weight."""
    kernel = spread(site.const("kernel_size"), 2)
    stride = spread(site.const("stride") or kernel, 2)
    padding, divisor = spread(site.const("padding"), 2), site.const("divisor_override")
    if site.const("ceil_mode"):
        raise Refused("its last windows may be cut off")
    if any(padding) and divisor is None and not site.const("count_include_pad"):
        raise Refused("its padding does not count, so that windows differ")
    return _averaged(site, kernel, stride, padding, divisor or math.prod(kernel))


@legalizes("adaptive_average_by_convolution", level="full")
def adaptive_average_by_convolution(site: Site) -> Value:
    """A depthwise convolution whose windows are those of the example's sizes; nothing, where those are the result's."""
    sizes, counts = site.sizes("self")[2:], spread(site.const("output_size"), 2)
    if site.rank("self") != 4 or any(size % count for size, count in zip(sizes, counts, strict=True)):
        raise Refused("its windows overlap, or its input is not a batch of images")
    if list(sizes) == counts:
        return site.arg("self")
    kernel = [size // count for size, count in zip(sizes, counts, strict=True)]
    return _averaged(site, kernel, kernel, [0, 0], math.prod(kernel))


def _averaged(site: Site, kernel: list[int], stride: list[int], padding: list[int], divisor: int) -> Value:
    if site.rank("self") != 4:
        raise Refused("its input is not a batch of images")
    channels = site.sizes("self")[1]
    weight = torch.full([int(channels), 1, *map(int, kernel)], 1.0 / divisor)
    result: Value = site.op("aten::conv2d", site.arg("self"), weight, None, stride, padding, [1, 1], channels)
    return result


@legalizes("mean_by_pooling", level="safe")
def mean_by_pooling(site: Site) -> Value:
    """The average of each whole image."""
    pooled: Value = site.op("aten::adaptive_avg_pool2d", site.arg("self"), [1, 1])
    return pooled if site.const("keepdim") else site.op("aten::flatten.using_ints", pooled, 1, -1)


@legalizes("pool_with_all_parameters", level="safe")
def pool_with_all_parameters(site: Site) -> Value:
    """The same pooling with two numbers for each parameter; a stride that is not given is the kernel's size."""
    kernel = spread(site.const("kernel_size"), 2)
    stride = spread(site.const("stride") or kernel, 2)
    rest = [spread(site.const(name), 2) for name in ("padding", "dilation")]
    result: Value = site.op("aten::max_pool2d", site.arg("self"), kernel, stride, *rest, site.arg("ceil_mode"))
    return result


@legalizes("upsample_by_factors", level="full")
def upsample_by_factors(site: Site) -> Value:
    """Whole factors in place of sizes."""
    sizes, results = site.sizes(site.node.inputs[0])[2:], site.sizes(site.node.output)[2:]
    if len(sizes) != 2 or any(result % size for size, result in zip(sizes, results, strict=True)):
        raise Refused("its factors are not whole")
    factors = [float(result // size) for size, result in zip(sizes, results, strict=True)]
    value: Value = site.op("aten::upsample_nearest2d.vec", site.node.inputs[0], None, factors)
    return value


# Shapes


@legalizes("dims_from_front", level="safe")
def dims_from_front(site: Site) -> Value:
    """Dimensions counted from the first one."""
    rank = site.rank(site.items("tensors")[0] if site.node.op == "aten::cat" else "self")
    names = [item.name for item in schema_of(site.node.qualified_op).arguments]
    dim = site.const("dim")
    counted = dim % rank if isinstance(dim, int) else [item % rank for item in dim]
    inputs = [counted if name == "dim" else value for name, value in zip(names, site.node.inputs, strict=True)]
    result: Value = site.op(site.node.qualified_op, *inputs)
    return result


@legalizes("permute_by_transposes", level="safe")
def permute_by_transposes(site: Site) -> Value:
    """Two dimensions exchanged at a time."""
    x = site.arg("self")
    dims = [item % len(site.const("dims")) for item in site.const("dims")]
    order = list(range(len(dims)))
    for place, dim in enumerate(dims):
        if order[place] != dim:
            other = order.index(dim)
            x = site.op("aten::transpose.int", x, place, other)
            order[place], order[other] = order[other], order[place]
    return x


@legalizes("join_as_channels", level="safe")
def join_as_channels(site: Site) -> Value:
    """The dimension made the channels, which are put together, and back."""
    dim = site.const("dim")
    parts = [site.op("aten::transpose.int", item, 1, dim) for item in site.items("tensors")]
    result: Value = site.op("aten::transpose.int", joined(site, parts, 1), 1, dim)
    return result


@legalizes("join_by_convolutions", level="safe")
def join_by_convolutions(site: Site) -> Value:
    """Each part's channels put in their places among zeros by a 1x1 convolution, and the sum."""
    items = site.items("tensors")
    if any(len(site.sizes(item)) != 4 for item in items):  # torch.cat passes over empty tensors of one dimension
        raise Refused("one of its tensors is empty, and not four-dimensional")
    ends = list(itertools.accumulate(site.sizes(item)[1] for item in items))
    units = torch.eye(int(ends[-1]))
    placed = [
        pointwise(site, item, units[:, start:end]) for item, start, end in zip(items, [0, *ends], ends, strict=False)
    ]
    return functools.reduce(lambda left, right: plus(site, left, right), placed)


@legalizes("join_in_four_dimensions", level="safe")
def join_in_four_dimensions(site: Site) -> Value:
    """Dimensions of size 1 put behind the others, and taken away afterwards."""
    items = site.items("tensors")
    rank = site.rank(items[0])
    if rank > 4 or any(site.rank(item) != rank for item in items):
        raise Refused("its tensors have more than four dimensions, or different numbers of them")
    behind = [1] * (4 - rank)
    images = [
        reshaped(site, item, [*(size_of(site, item, dim) for dim in range(rank - 1)), -1, *behind]) for item in items
    ]
    joint = site.op("aten::cat", images, site.const("dim") % rank)
    result: Value = site.op("aten::flatten.using_ints", joint, rank - 1, 3)
    return result


@legalizes("channels_by_convolutions", level="safe")
def channels_by_convolutions(site: Site) -> Value:
    """A 1x1 convolution for each part of the channels, which copies them."""
    count = _channels(site, site.const("dim"))
    starts = range(0)
    if site.node.op == "aten::chunk":
        starts = range(0, count, -(-count // site.const("chunks")))
    elif site.node.qualified_op == "aten::split.Tensor":
        starts = range(0, count, site.const("split_size"))
    if site.node.qualified_op in ("aten::split_with_sizes", "aten::split.sizes"):
        name = "split_sizes" if site.node.op == "aten::split_with_sizes" else "split_size"
        ends = torch.tensor(site.const(name)).cumsum(0).tolist()
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    else:
        bounds = [(start, min(start + starts.step, count)) for start in starts]
    parts = [_chosen(site, count, range(start, end)) for start, end in bounds]
    made = site.graph.create("prim::ListConstruct", parts, [ListType(TENSOR)], origin=site.node.origin)
    return made.insert_before(site.node).output


@legalizes("channels_by_convolution", level="safe")
def channels_by_convolution(site: Site) -> Value:
    """A 1x1 convolution that copies channels to their places; nothing, where all stay in place."""
    kind = site.node.op.removeprefix("aten::")
    if kind == "channel_shuffle":
        count = _channels(site, 1)
        groups = site.const("groups")
        return _chosen(site, count, torch.arange(int(count)).reshape(groups, -1).t().flatten().tolist())
    if kind == "flip":
        dims = site.const("dims")
        if len(dims) != 1:
            raise Refused("it flips several dimensions")
        count = _channels(site, dims[0])
        return _chosen(site, count, range(count - 1, -1, -1))
    dim = site.const("dim")
    if kind == "slice" and _takes_all(site, dim):
        return site.arg("self")
    count = _channels(site, dim)
    if kind == "index_select":
        return _chosen(site, count, weight_of(site, "index").tolist())
    if kind == "narrow":
        start = site.const("start") % count
        return _chosen(site, count, range(start, start + site.const("length")))
    return _chosen(site, count, range(count)[slice(site.const("start"), site.const("end"), site.const("step"))])


def _takes_all(site: Site, dim: int) -> bool:
    size = site.sizes("self")[dim]
    start, end = site.const("start"), site.const("end")
    return start in (None, 0) and (end is None or end >= 2**31) and site.const("step") == 1 and size > 0


def _channels(site: Site, dim: int) -> int:
    """Number of channels, where the dimension is theirs.

    Raises:
        Refused: it is not.
    """
    sizes = site.sizes("self")
    if len(sizes) != 4 or dim % 4 != 1:
        raise Refused("it does not divide the channels of a batch of images")
    return sizes[1]


def _chosen(site: Site, count: int, channels: Sequence[int]) -> Value:
    if len(channels) == 0 or len(channels) * count > _LARGEST_WEIGHT:
        raise Refused(f"{len(channels)} of {count} channels need no weight, or too large a one")
    return pointwise(site, site.arg("self"), torch.eye(int(count))[list(channels)])


@legalizes("softmax_of_rows", level="safe")
def softmax_of_rows(site: Site) -> Value:
    """The dimension made the last one of a matrix, and back."""
    x, rank = site.arg("self"), site.rank("self")
    dim = site.const("dim") % rank
    moved = x if dim == rank - 1 else site.op("aten::transpose.int", x, dim, rank - 1)
    rows = reshaped(site, moved, [-1, size_of(site, moved, rank - 1)])
    weights = site.op(site.node.qualified_op, rows, 1, site.arg("dtype"))
    back: Value = site.op("aten::reshape", weights, site.op("aten::size", moved))
    return back if dim == rank - 1 else site.op("aten::transpose.int", back, dim, rank - 1)


@legalizes("leave_out_copy", level="safe")
def leave_out_copy(site: Site) -> Value:
    """The tensor itself: nothing in the model is written to in place."""
    if any(schema_of(node.qualified_op).is_mutating for node in site.graph.walk() if node.op.startswith("aten::")):
        raise Refused("something in the model is written to in place")
    return site.arg("self")
