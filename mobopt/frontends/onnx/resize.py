"""Resizing and sampling of images: coordinate modes that ATen has are its kernels, all others products of matrices."""

from __future__ import annotations

import math
from typing import Any

import torch

from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Value

_NEAREST, _LINEAR, _CUBIC = "nearest", "linear", "cubic"


@translates("Upsample")
def _upsample(call: Call) -> Any:
    """Up to opset 9, with the coordinates of ``asymmetric``."""
    scales = call.get("scales") or call.numbers(1)
    mode = call.get("mode", _NEAREST)
    mode = _LINEAR if mode == "bilinear" else mode
    return _resized(call, scales, None, mode, "asymmetric", "floor", list(range(call.rank())))


@translates("Resize")
def _resize_of_10(call: Call) -> Any:
    scales = call.numbers(1)
    return _resized(call, scales, None, call.get("mode", _NEAREST), "asymmetric", "floor", list(range(call.rank())))


@translates("Resize", since=11)
def _resize(call: Call) -> Any:
    rank = call.rank()
    axes = [axis % rank for axis in call.get("axes") or range(rank)]
    scales = call.numbers(2) if call.has(2) and call.operand(2).sizes != (0,) else None
    sizes = call.numbers(3) if call.has(3) and call.operand(3).sizes != (0,) else None
    if call.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return _cropped(call, scales, sizes, axes)
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        scales, sizes = _kept_ratio(call, sizes, axes, policy)
    mode = call.get("mode", _NEAREST)
    coordinates = call.get("coordinate_transformation_mode", "half_pixel")
    rounding = call.get("nearest_mode", "round_prefer_floor")
    return _resized(call, scales, sizes, mode, coordinates, rounding, axes)


def _kept_ratio(call: Call, sizes: list[Any], axes: list[int], policy: str) -> tuple[list[Any], list[Any]]:
    """One scale for all axes: the least, or the greatest, of those that the sizes ask for."""
    own = [call.size(0, axis) for axis in axes]
    emit, choose = call.emit, "prim::min.float" if policy == "not_larger" else "prim::max.float"
    scale: Any = None
    for size, given in zip(sizes, own, strict=True):
        ratio = emit("div.float", emit("Float.int", size), emit("Float.int", given))
        scale = ratio if scale is None else emit(choose, scale, ratio)
    rounded = [
        emit("floor.float", emit("add.float", emit("mul.float", emit("Float.int", given), scale), 0.5)) for given in own
    ]
    return [scale] * len(axes), rounded


def _resized(
    call: Call,
    scales: list[Any] | None,
    sizes: list[Any] | None,
    mode: str,
    coordinates: str,
    rounding: str,
    axes: list[int],
) -> Any:
    emit, rank = call.emit, call.rank()
    wanted: dict[int, tuple[Any, Any]] = {}
    for position, axis in enumerate(axes):
        scale = None if scales is None else scales[position]
        if sizes is None:
            if not isinstance(scale, Value) and scale == 1:
                continue
            width = emit("mul.float", emit("Float.int", call.size(0, axis)), scale)
            wanted[axis] = emit("floor.float", width), scale
        elif isinstance(sizes[position], Value) or sizes[position] != (call.operand().sizes or ())[axis]:
            wanted[axis] = sizes[position], scale
    if not wanted:
        return call.inputs[0]
    outer = {axis: size for axis, (size, _) in wanted.items() if axis < 2 and _is_own(call, size, axis)}
    inner = {axis: pair for axis, pair in wanted.items() if axis not in outer}
    kernel = _kernel_of(call, mode, coordinates, rounding, rank, inner)
    if kernel is not None:
        # Those sizes are the input's own; where they are not, this fails, or repeats a single element.
        kept = [outer.get(axis, -1) for axis in range(rank)]
        return emit("expand", kernel, kept) if outer else kernel
    result = call.tensor()
    is_floating = call.dtype().is_floating_point
    if mode == _NEAREST:
        for axis, (size, scale) in wanted.items():
            places = _places(call, axis, size, scale, coordinates)
            result = emit("index_select", result, axis, _nearest(call, places, axis, rounding))
        return result
    result = result if is_floating else emit("to.dtype", result, torch.float32)
    for axis, (size, scale) in wanted.items():
        result = _weighted(call, result, axis, _weights(call, axis, size, scale, mode, coordinates))
    return result if is_floating else emit("to.dtype", emit("round", result), call.dtype())


def _is_own(call: Call, size: Any, axis: int) -> bool:
    """Whether a size must be the input's own: that of batch or channels of some tensor, as exporters put them beside
    the edges, or a number where the input's is not known."""
    if not isinstance(size, Value):
        return (call.operand().sizes or ())[axis] is None
    node = size.producer
    if node is None or node.op != "aten::size":
        return False
    return node.inputs[1].is_constant and bool(node.inputs[1].constant == axis)


def _kernel_of(
    call: Call, mode: str, coordinates: str, rounding: str, rank: int, wanted: dict[int, tuple[Any, Any]]
) -> Any:
    """ATen's own kernel, where it means the same.

    ``pytorch_half_pixel`` differs for a result of one element, which a size that is computed is not taken to be.
    """
    emit, spatial = call.emit, rank - 2
    is_plain = min(wanted, default=0) >= 2 and spatial in (1, 2, 3) and call.dtype().is_floating_point
    if not is_plain or call.get("antialias", 0) or call.get("exclude_outside", 0):
        return None
    sizes = [wanted[dim + 2][0] if dim + 2 in wanted else call.size(0, dim + 2) for dim in range(spatial)]
    scales = [wanted[dim + 2][1] if dim + 2 in wanted else 1.0 for dim in range(spatial)]
    known = [scale if isinstance(scale, float) else None for scale in scales]
    if any(isinstance(scale, Value) for scale in scales):
        return None
    if coordinates == "align_corners" and not all(
        scale is None or (not isinstance(own, Value) and size == own * scale)
        for own, size, scale in zip((call.size(0, dim + 2) for dim in range(spatial)), sizes, scales, strict=True)
    ):
        return None
    if mode == _NEAREST and coordinates == "asymmetric" and rounding == "floor":
        return emit(f"upsample_nearest{spatial}d", call.tensor(), sizes, *known)
    if mode == _LINEAR and coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners") and spatial < 3:
        if coordinates == "pytorch_half_pixel" and any(not isinstance(size, Value) and size <= 1 for size in sizes):
            return None
        op = "upsample_linear1d" if spatial == 1 else "upsample_bilinear2d"
        return emit(op, call.tensor(), sizes, coordinates == "align_corners", *known)
    is_cubic = mode == _CUBIC and spatial == 2 and call.get("cubic_coeff_a", -0.75) == -0.75
    if is_cubic and coordinates in ("half_pixel", "align_corners"):
        return emit("upsample_bicubic2d", call.tensor(), sizes, coordinates == "align_corners", *known)
    return None


def _places(call: Call, axis: int, size: Any, scale: Any, coordinates: str) -> Any:
    """Where in the input the elements of the result lie, as a row of float32."""
    emit = call.emit
    own = call.size(0, axis)
    steps = emit("arange", size, dtype=torch.float32)
    given, wide = emit("Float.int", own), emit("Float.int", size)
    ratio = emit("div.float", wide, given) if scale is None else scale
    match coordinates:
        case "asymmetric":
            return emit("div.Scalar", steps, ratio)
        case "align_corners":
            if not isinstance(size, Value) and size == 1:
                return emit("mul.Scalar", steps, 0.0)
            if scale is not None:  # by what the scale asks for, before that is rounded down
                wide = emit("mul.float", given, scale)
                if not isinstance(size, Value) and size > 1:
                    return emit(
                        "mul.Scalar",
                        steps,
                        emit("div.float", emit("sub.float", given, 1.0), emit("sub.float", wide, 1.0)),
                    )
            last = emit("prim::max.float", emit("sub.float", wide, 1.0), 1.0)
            return emit("div.Scalar", emit("mul.Scalar", steps, emit("sub.float", given, 1.0)), last)
        case "pytorch_half_pixel" if not isinstance(size, Value) and size == 1:
            return emit("mul.Scalar", steps, 0.0)
        case "half_pixel" | "pytorch_half_pixel":
            place = emit("sub.Scalar", emit("div.Scalar", emit("add.Scalar", steps, 0.5), ratio), 0.5)
            if coordinates == "half_pixel" or not isinstance(size, Value):
                return place
            return emit("mul.Scalar", place, emit("Float.bool", emit("gt.int", size, 1)))
        case "half_pixel_symmetric":
            exact = emit("mul.float", given, ratio)
            adjusted = emit("div.float", wide, exact)
            offset = emit("mul.float", emit("div.float", given, 2.0), emit("sub.float", 1.0, adjusted))
            place = emit("sub.Scalar", emit("div.Scalar", emit("add.Scalar", steps, 0.5), ratio), 0.5)
            return emit("add.Scalar", place, offset)
    raise call.unsupported(f"the coordinates {coordinates!r}")


def _nearest(call: Call, places: Any, axis: int, rounding: str) -> Any:
    emit = call.emit
    match rounding:
        case "floor":
            places = emit("floor", places)
        case "ceil":
            places = emit("ceil", places)
        case "round_prefer_ceil":
            places = emit("floor", emit("add.Scalar", places, 0.5))
        case _:
            places = emit("ceil", emit("sub.Scalar", places, 0.5))
    last = emit("sub.int", call.size(0, axis), 1)
    return emit("clamp", emit("to.dtype", places, torch.int64), 0, last)


def _weights(call: Call, axis: int, size: Any, scale: Any, mode: str, coordinates: str) -> Any:
    """How much each element of the input has in each of the result: a matrix of result by input."""
    emit = call.emit
    own = call.size(0, axis)
    places = _places(call, axis, size, scale, coordinates)
    ratio = scale if scale is not None else emit("div.float", emit("Float.int", size), emit("Float.int", own))
    shrink: Any = 1.0
    if call.get("antialias", 0):
        if isinstance(ratio, Value):
            raise call.unsupported("it smooths by a scale that is computed at run time")
        shrink = min(1.0, ratio)
    reach = (2 if mode == _CUBIC else 1) / shrink if not isinstance(shrink, Value) else 2
    taps = math.ceil(reach) * 2 + (1 if shrink != 1.0 else 0)
    first = emit("sub.Scalar", emit("floor", places), math.ceil(reach) - 1)
    offsets = torch.arange(taps, dtype=torch.float32)
    taken = emit("add.Tensor", emit("unsqueeze", first, 1), offsets)  # result x taps
    distance = emit("abs", emit("sub.Tensor", taken, emit("unsqueeze", places, 1)))
    distance = distance if shrink == 1.0 else emit("mul.Scalar", distance, shrink)
    weight = (
        _cubic(call, distance) if mode == _CUBIC else emit("clamp_min", emit("add.Scalar", emit("neg", distance), 1), 0)
    )
    last = emit("sub.int", own, 1)
    if call.get("exclude_outside", 0) or shrink != 1.0:
        inside = emit("logical_and", emit("ge.Scalar", taken, 0), emit("le.Scalar", taken, last))
        if call.get("exclude_outside", 0):
            weight = emit("mul.Tensor", weight, emit("to.dtype", inside, torch.float32))
        weight = emit("div.Tensor", weight, emit("sum.dim_IntList", weight, [1], True))
    taken = emit("clamp", taken, 0, last)
    columns = emit("arange", own, dtype=torch.float32)
    hits = emit("eq.Tensor", emit("unsqueeze", taken, 2), columns)  # result x taps x input
    spread = emit("mul.Tensor", emit("unsqueeze", weight, 2), emit("to.dtype", hits, torch.float32))
    return emit("sum.dim_IntList", spread, [1])


def _cubic(call: Call, distance: Any) -> Any:
    """Keys' kernel; source: R. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    emit, a = call.emit, call.get("cubic_coeff_a", -0.75)
    square = emit("mul.Tensor", distance, distance)
    cube = emit("mul.Tensor", square, distance)
    near = emit("sub.Tensor", emit("mul.Scalar", cube, a + 2), emit("mul.Scalar", square, a + 3))
    near = emit("add.Scalar", near, 1)
    far = emit("sub.Tensor", emit("mul.Scalar", cube, a), emit("mul.Scalar", square, 5 * a))
    far = emit("sub.Scalar", emit("add.Tensor", far, emit("mul.Scalar", distance, 8 * a)), 4 * a)
    zero = torch.zeros(())
    outer = emit("where.self", emit("lt.Scalar", distance, 2), far, zero)
    return emit("where.self", emit("le.Scalar", distance, 1), near, outer)


def _weighted(call: Call, x: Any, axis: int, weights: Any) -> Any:
    """A product along an axis."""
    emit, rank = call.emit, call.rank()
    weights = (
        weights if call.dtype() in (torch.float32, torch.uint8, torch.int8) else emit("to.dtype", weights, call.dtype())
    )
    if axis == rank - 1:
        return emit("matmul", x, emit("t", weights))
    moved = emit("transpose.int", x, axis, rank - 1)
    return emit("transpose.int", emit("matmul", moved, emit("t", weights)), axis, rank - 1)


def _cropped(call: Call, scales: list[Any] | None, sizes: list[Any] | None, axes: list[int]) -> Any:
    """A region of the input, resized; what lies outside is a number (``tf_crop_and_resize``)."""
    emit, rank = call.emit, call.rank()
    region = call.constants(1, "its region")
    fill = call.get("extrapolation_value", 0.0)
    mode = call.get("mode", _NEAREST)
    result = call.tensor()
    outside: Any = None
    for position, axis in enumerate(axes):
        own = call.size(0, axis)
        begin, end = region[position], region[position + len(axes)]
        size = (
            sizes[position]
            if sizes is not None
            else emit("floor.float", emit("mul.float", emit("Float.int", own), (scales or [])[position]))
        )
        if isinstance(own, Value) or isinstance(size, Value):
            raise call.unsupported("it crops by sizes that are computed at run time")
        if (size, begin, end) == (own, 0.0, 1.0):
            continue
        steps = torch.arange(size, dtype=torch.float32)
        if size > 1:
            places = begin * (own - 1) + steps * (end - begin) * (own - 1) / (size - 1)
        else:
            places = 0.5 * (begin + end) * (own - 1) + steps
        shape = [1] * rank
        shape[axis] = -1
        is_out = ((places < 0) | (places > own - 1)).reshape(shape)
        outside = is_out if outside is None else outside | is_out
        if mode == _NEAREST:
            picked = _nearest(call, places, axis, call.get("nearest_mode", "round_prefer_floor"))
            result = emit("index_select", result, axis, picked)
            continue
        if mode != _LINEAR:
            raise call.unsupported(f"it crops and resizes with the mode {mode!r}")
        columns = torch.arange(own, dtype=torch.float32)
        weights = (1 - (places.clamp(0, own - 1)[:, None] - columns).abs()).clamp(min=0)
        result = _weighted(call, result, axis, weights)
    if outside is None:
        return result
    return emit("where.self", outside, torch.tensor(fill, dtype=call.dtype()), result)


_SAMPLING = {"bilinear": 0, "linear": 0, "nearest": 1, "bicubic": 2, "cubic": 2}
_PADDING = {"zeros": 0, "border": 1, "reflection": 2}


@translates("GridSample")
def _grid_sample(call: Call) -> Any:
    mode, padding = call.get("mode", "linear"), call.get("padding_mode", "zeros")
    aligned, emit = bool(call.get("align_corners", 0)), call.emit
    x, grid = call.tensor(0), call.tensor(1)
    if call.dtype(0) == call.dtype(1):
        return emit("grid_sampler", x, grid, _SAMPLING[mode], _PADDING[padding], aligned)
    wide = torch.promote_types(call.dtype(0), call.dtype(1))  # torch takes one dtype only
    x, grid = emit("to.dtype", x, wide), emit("to.dtype", grid, wide)
    sampled = emit("grid_sampler", x, grid, _SAMPLING[mode], _PADDING[padding], aligned)
    return emit("to.dtype", sampled, call.dtype(0))


@translates("AffineGrid")
def _affine_grid(call: Call) -> Any:
    """Coordinates from -1 to 1, moved by matrices."""
    emit, aligned = call.emit, bool(call.get("align_corners", 0))
    spatial = 3 if call.operand(1).known_sizes == (5,) else 2
    sizes = call.numbers(1, spatial + 2)
    rows = []
    for dim in range(spatial):
        size = sizes[2 + dim]
        steps = emit("arange", size, dtype=call.dtype())
        if aligned:
            last = emit("prim::max.int", emit("sub.int", size, 1), 1)
            place = emit("sub.Scalar", emit("div.Scalar", emit("mul.Scalar", steps, 2.0), last), 1.0)
        else:
            place = emit("div.Scalar", emit("add.Scalar", emit("mul.Scalar", steps, 2.0), 1.0), size)
            place = emit("sub.Scalar", place, 1.0)
        shape = [1] * (spatial + 1)
        shape[dim] = -1
        rows.append(emit("expand", emit("reshape", place, shape), [*sizes[2:], 1]))
    base = emit("cat", [*reversed(rows), emit("ones_like", rows[0])], -1)
    count: Any = 1
    for size in sizes[2:]:
        count = emit("mul.int", count, size)
    points = emit("matmul", emit("reshape", base, [1, count, spatial + 1]), emit("transpose.int", call.tensor(0), 1, 2))
    return emit("reshape", points, [sizes[0], *sizes[2:], spatial])
