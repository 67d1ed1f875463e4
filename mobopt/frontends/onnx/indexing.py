"""Operators that read or write elements by index, and those whose results' sizes only the elements tell."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.frontends.onnx.operands import Operand, carrier
from mobopt.frontends.onnx.patterns import is_number, made_by
from mobopt.frontends.onnx.pool_patterns import is_of_pool
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Value


def from_front(call: Call, indices: Any, operand: Operand, size: Any) -> Any:
    """Indices counted from the front, of those that may be counted from the end; as int64."""
    if operand.constant is not None and isinstance(indices, torch.Tensor) and not isinstance(size, Value):
        indices = indices.to(torch.int64)
        return torch.where(indices < 0, indices + size, indices)
    emit = call.emit
    indices = indices if operand.dtype == torch.int64 else emit("to.dtype", indices, torch.int64)
    if operand.constant is not None and not bool((operand.constant < 0).any()):
        return indices
    return emit("where.self", emit("lt.Scalar", indices, 0), emit("add.Scalar", indices, size), indices)


@translates("Gather")
def _gather(call: Call) -> Any:
    emit, x, axis = call.emit, call.tensor(), call.axis()
    indices = call.operand(1)
    known = call.known(1)
    if known is not None and indices.rank == 0:
        return emit("select.int", x, axis, known[0])
    numbers = indices.elements()
    if numbers is not None and indices.rank == 0:
        return emit("select.int", x, axis, numbers[()])
    if axis == 0 and call.operand().rank == 2 and call.dtype().is_floating_point:
        return emit("embedding", x, from_front(call, call.tensor(1), indices, call.size(0, 0)))
    wrapped = from_front(call, call.tensor(1), indices, call.size(0, axis))
    rank = indices.rank
    if rank is None:
        raise call.unsupported("the number of dimensions of its indices is known at run time only")
    if rank == 0:
        return emit("squeeze.dim", emit("index_select", x, axis, emit("reshape", wrapped, [1])), axis)
    if rank == 1:
        return emit("index_select", x, axis, wrapped)
    picked = emit("index_select", x, axis, emit("reshape", wrapped, [-1]))
    sizes = call.sizes(0)
    return emit("reshape", picked, [*sizes[:axis], *call.sizes(1), *sizes[axis + 1 :]])


@translates("GatherElements")
def _gather_elements(call: Call) -> Any:
    axis = call.axis()
    indices = from_front(call, call.tensor(1), call.operand(1), call.size(0, axis))
    return call.emit("gather", call.tensor(), axis, indices)


@translates("GatherND")
def _gather_nd(call: Call) -> Any:
    """Batches are more indices, which count."""
    emit, x = call.emit, call.tensor()
    batches = call.get("batch_dims", 0)
    rank, depth = call.rank(1), (call.operand(1).sizes or (None,))[-1]
    if depth is None:
        raise call.unsupported("how many indices each element has is known at run time only")
    columns: list[Any] = []
    for dim in range(batches):
        shape = [1] * (rank - 1)
        shape[dim] = -1
        columns.append(emit("reshape", emit("arange", call.size(0, dim), dtype=torch.int64), shape))
    for dim in range(depth):
        columns.append(_wrapped(call, _column(call, dim), call.size(0, batches + dim)))
    return emit("index.Tensor", x, columns)


def _column(call: Call, dim: int) -> Any:
    """The indices of one dimension, of those in the last one of the second input."""
    last = call.rank(1) - 1
    row = made_by(call.tensor(1), "aten::unsqueeze")
    if row is not None and (is_number(row.inputs[1], last) or is_number(row.inputs[1], -1)):
        return row.inputs[0]
    return call.emit("select.int", call.tensor(1), last, dim)


def _wrapped(call: Call, indices: Any, size: Any) -> Any:
    emit = call.emit
    if is_of_pool(indices):
        return indices
    indices = emit("to.dtype", indices, torch.int64) if call.dtype(1) != torch.int64 else indices
    return emit("where.self", emit("lt.Scalar", indices, 0), emit("add.Scalar", indices, size), indices)


def _reduction(name: str) -> str:
    """What ATen calls a reduction of ONNX."""
    match name:
        case "add":
            return "sum"
        case "mul":
            return "prod"
    return f"a{name}"


@translates("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> Any:
    axis, reduction = call.axis(), call.get("reduction", "none")
    indices = from_front(call, call.tensor(1), call.operand(1), call.size(0, axis))
    if reduction == "none":
        return call.emit("scatter.src", call.tensor(0), axis, indices, call.tensor(2))
    return call.emit("scatter_reduce.two", call.tensor(0), axis, indices, call.tensor(2), _reduction(reduction))


@translates("ScatterND")
def _scatter_nd(call: Call) -> Any:
    """Elements, or slices, at indices of the first dimensions."""
    emit, x, updates = call.emit, call.tensor(0), call.tensor(2)
    depth = (call.operand(1).sizes or (None,))[-1]
    if depth is None:
        raise call.unsupported("how many indices each element has is known at run time only")
    reduction = call.get("reduction", "none")
    columns = [_wrapped(call, _column(call, dim), call.size(0, dim)) for dim in range(depth)]
    if reduction in ("none", "add"):
        return emit("index_put", x, columns, updates, reduction == "add")
    # Rows of slices, by one index that counts them.
    row: Any = None
    for dim, column in enumerate(columns):
        row = column if row is None else emit("add.Tensor", emit("mul.Scalar", row, call.size(0, dim)), column)
    sizes = call.sizes(0)
    count: Any = 1
    for size in sizes[:depth]:
        count = emit("mul.int", count, size)
    flat = emit("reshape", x, [count, -1])
    rows = emit("reshape", row, [-1, 1])
    values = emit("reshape", updates, [emit.size(rows, 0), -1])
    rows = emit("expand", rows, [-1, emit.size(values, 1)])
    return emit("reshape", emit("scatter_reduce.two", flat, 0, rows, values, _reduction(reduction)), sizes)


@translates("TensorScatter")
def _tensor_scatter(call: Call) -> Any:
    """Writes the steps of an update into a cache, of each batch from an index on; circular, or not."""
    emit, rank = call.emit, call.rank(0)
    axis = call.axis(-2)
    cache, update = call.tensor(0), call.tensor(1)
    steps = emit("arange", call.size(1, axis), dtype=torch.int64)
    shape = [1] * rank
    shape[axis] = -1
    places = emit("reshape", steps, shape)
    if call.has(2):
        begins = emit("reshape", call.tensor(2), [-1, *[1] * (rank - 1)])
        places = emit("add.Tensor", places, begins)
    if call.get("mode", "linear") == "circular":
        places = emit("remainder.Scalar", places, call.size(0, axis))
    places = emit("expand", places, call.sizes(1))
    return emit("scatter.src", cache, axis, places, update)


@translates("OneHot")
def _one_hot(call: Call) -> Any:
    emit = call.emit
    depth = call.scalar(1)
    depth = emit("Int.float", depth) if call.dtype(1).is_floating_point else depth
    axis, rank = call.get("axis", -1), call.rank(0)
    axis = axis + rank + 1 if axis < 0 else axis
    indices = emit("unsqueeze", call.tensor(0), axis)
    indices = emit("to.dtype", indices, torch.int64) if call.dtype(0) != torch.int64 else indices
    wrapped = emit("where.self", emit("lt.Scalar", indices, 0), emit("add.Scalar", indices, depth), indices)
    shape = [1] * (rank + 1)
    shape[axis] = -1
    places = emit("reshape", emit("arange", depth, dtype=torch.int64), shape)
    off, on = (emit("select.int", call.tensor(2), 0, index) for index in (0, 1))
    return emit("where.self", emit("eq.Tensor", wrapped, places), on, off)


@translates("NonZero")
def _non_zero(call: Call) -> Any:
    found = call.emit("nonzero", call.tensor())
    return call.emit("t", found) if call.rank() else call.emit("reshape", found, [0, -1])


@translates("Compress")
def _compress(call: Call) -> Any:
    """What a condition picks along an axis, or of all elements; it may be shorter."""
    emit, x = call.emit, call.tensor()
    picked = emit("squeeze.dim", emit("nonzero", call.tensor(1)), 1)
    if "axis" not in call.attributes:
        return emit("index_select", emit("reshape", x, [-1]), 0, picked)
    return emit("index_select", x, call.axis(), picked)


@translates("Unique")
def _unique(call: Call) -> Any:
    emit = call.emit
    if not call.get("sorted", 1):
        raise call.unsupported("it keeps the order in which elements come first")
    if "axis" in call.attributes:
        axis = call.axis()
        values, inverse, counts = emit("unique_dim", call.tensor(), axis, True, True, True)
        size = call.size(0, axis)
    else:
        values, inverse, counts = emit("_unique2", emit("reshape", call.tensor(), [-1]), True, True, True)
        (total,) = [call.emit("numel", call.tensor())]
        size = total
    # The first place of each: the least position among those that have it.
    positions = emit("arange", size, dtype=torch.int64)
    empty = emit("full_like", counts, 1 << 30)
    first = emit("scatter_reduce.two", empty, 0, inverse, positions, "amin")
    types = [call.dtype(), torch.int64, torch.int64, torch.int64]
    results = [values, first, inverse, counts]
    ranks = [1 if "axis" not in call.attributes else call.rank(), 1, 1, 1]
    return [Operand(dtype, (None,) * rank, item) for dtype, rank, item in zip(types, ranks, results, strict=True)]


@translates("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Any:
    """Boxes of each batch and class whose score is high and that overlap none with a higher one by much.

    The greedy choice is a loop: a round takes the best box that is left and strikes out those that overlap it.
    """
    emit = call.emit
    boxes, scores = call.tensor(0), call.tensor(1)
    most = call.tensor(2) if call.has(2) else torch.zeros(1, dtype=torch.int64)
    limit = emit("Int.Tensor", emit("reshape", most, []))
    overlap = emit("reshape", call.tensor(3), []) if call.has(3) else torch.tensor(0.0)
    batches, classes, count = (call.size(1, dim) for dim in range(3))
    ordered = _corners(call, boxes)
    areas = _product_of_edges(call, ordered)
    threshold = emit("reshape", call.tensor(4), []) if call.has(4) else None
    rows = emit("mul.int", batches, classes)
    flat = emit("reshape", scores, [rows, count])
    alive = emit("gt.Tensor", flat, threshold) if threshold is not None else emit("ones_like", flat, dtype=torch.bool)
    left = emit("where.self", alive, flat, torch.tensor(float("-inf")))
    trips = emit("prim::min.int", limit, count)
    batch_of = emit("div.Scalar_mode", emit("arange", rows, dtype=torch.int64), classes, "floor")
    class_of = emit("remainder.Scalar", emit("arange", rows, dtype=torch.int64), classes)
    own_boxes = [emit("index_select", item, 0, batch_of) for item in ordered]
    own_areas = emit("index_select", areas, 0, batch_of)
    taken = emit("full", [rows, trips], -1, dtype=torch.int64, layout=None, device=None, pin_memory=None)

    def round_of(trip: Any, carried: list[Any]) -> list[Any]:
        left, taken = carried
        best = emit("argmax", left, 1, True)
        has_one = emit("gt.Scalar", emit("gather", left, 1, best), float("-inf"))
        mine = [emit("gather", item, 1, best) for item in own_boxes]
        area = emit("gather", own_areas, 1, best)
        common = _common(call, mine, own_boxes)
        union = emit("sub.Tensor", emit("add.Tensor", own_areas, area), common)
        struck = emit("gt.Tensor", common, emit("mul.Tensor", union, overlap))
        struck = emit("logical_or", struck, emit("eq.Tensor", emit("arange", count, dtype=torch.int64), best))
        left = emit("where.self", struck, torch.tensor(float("-inf")), left)
        chosen = emit("where.self", has_one, best, torch.tensor(-1))
        column = emit("eq.Scalar", emit("arange", trips, dtype=torch.int64), trip)
        taken = emit("where.self", column, chosen, taken)
        return [left, taken]

    left, taken = loop(call, trips, [left, taken], round_of)
    found = emit("nonzero", emit("ge.Scalar", taken, 0))
    row, place = emit("select.int", found, 1, 0), emit("select.int", found, 1, 1)
    box = emit("index.Tensor", taken, [row, place])
    result = emit("stack", [emit("index_select", batch_of, 0, row), emit("index_select", class_of, 0, row), box], 1)
    return Operand(torch.int64, (None, 3), result)


def loop(call: Call, trips: Any, carried: list[Any], body: Any) -> list[Any]:
    """A loop that carries tensors."""
    from mobopt.ir import Node
    from mobopt.ir.types import BOOL, INT

    emit, graph = call.emit, call.emit.builder.graph
    values = [emit.value(item) for item in carried]
    node = Node("prim::Loop", [emit.value(trips), emit.value(True), *values], origin=emit.builder.origin)
    block = node.add_block()
    trip = block.add_parameter(graph.value(INT))
    parameters = [block.add_parameter(graph.value(value.type)) for value in values]
    with emit.inside(block):
        results = [emit.value(item) for item in body(trip, list(parameters))]
    block.returns.set_inputs([graph.constant(True, BOOL), *results])
    outputs = [node.add_output(graph.value(value.type)) for value in values]
    emit.builder.append(node)
    return list(outputs)


def _corners(call: Call, boxes: Any) -> list[Any]:
    """Least and greatest coordinates of boxes, each ``batches x boxes``: top, left, bottom, right."""
    emit = call.emit
    first, second, third, fourth = (emit("select.int", boxes, 2, index) for index in range(4))
    if call.get("center_point_box", 0):
        half_width, half_height = emit("div.Scalar", third, 2), emit("div.Scalar", fourth, 2)
        return [
            emit("sub.Tensor", second, half_height),
            emit("sub.Tensor", first, half_width),
            emit("add.Tensor", second, half_height),
            emit("add.Tensor", first, half_width),
        ]
    return [
        emit("minimum", first, third),
        emit("minimum", second, fourth),
        emit("maximum", first, third),
        emit("maximum", second, fourth),
    ]


def _product_of_edges(call: Call, corners: list[Any]) -> Any:
    emit = call.emit
    return emit("mul.Tensor", emit("sub.Tensor", corners[2], corners[0]), emit("sub.Tensor", corners[3], corners[1]))


def _common(call: Call, one: list[Any], others: list[Any]) -> Any:
    emit = call.emit
    edges = []
    for dim in (0, 1):
        begin = emit("maximum", one[dim], others[dim])
        end = emit("minimum", one[dim + 2], others[dim + 2])
        edges.append(emit("clamp_min", emit("sub.Tensor", end, begin), 0))
    return emit("mul.Tensor", edges[0], edges[1])


@translates("RoiAlign")
def _roi_align(call: Call) -> Any:
    """Means (or greatest) of bilinear samples in the cells of regions.

    The number of samples of a cell must be given: where the regions' sizes tell it, sizes would depend on elements.
    """
    emit, dtype = call.emit, call.dtype()
    ratio = call.get("sampling_ratio", 0)
    if ratio <= 0:
        raise call.unsupported("the number of samples follows from the regions (sampling_ratio 0)")
    height, width = call.get("output_height", 1), call.get("output_width", 1)
    scale = call.get("spatial_scale", 1.0)
    is_half = call.version >= 16 and call.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    regions = emit("mul.Scalar", call.tensor(1), scale)
    if is_half:
        regions = emit("sub.Scalar", regions, 0.5)
    rows, columns = call.size(0, 2), call.size(0, 3)
    x = emit("index_select", call.tensor(0), 0, call.tensor(2))
    places = []
    for dim, (count, size) in enumerate(((height, rows), (width, columns))):
        begin = emit("select.int", regions, 1, 1 - dim)
        extent = emit("sub.Tensor", emit("select.int", regions, 1, 3 - dim), begin)
        extent = extent if is_half else emit("clamp_min", extent, 1)
        steps = (torch.arange(count * ratio, dtype=dtype) + 0.5) / (count * ratio)
        place = emit("mul.Tensor", emit("unsqueeze", extent, 1), steps)
        place = emit("add.Tensor", place, emit("unsqueeze", begin, 1))
        places.append((place, size))
    weights = [_row_weights(call, place, size) for place, size in places]
    # Both directions are products with sparse matrices: rows first, then columns.
    samples = emit("matmul", emit("unsqueeze", weights[0], 1), x)
    if call.get("mode", "avg") == "avg":
        samples = emit("matmul", samples, emit("unsqueeze", emit("transpose.int", weights[1], 1, 2), 1))
        return emit("avg_pool2d", samples, [ratio, ratio], [ratio, ratio], [0, 0], False, True, None)
    raise call.unsupported("it takes the greatest of products of samples and weights")


def _row_weights(call: Call, place: Any, size: Any) -> Any:
    """How much each row of a map has in samples: ``regions x samples x rows``."""
    emit, dtype = call.emit, call.dtype()
    inside = emit("logical_and", emit("ge.Scalar", place, -1.0), emit("le.Scalar", place, size))
    place = emit("clamp", place, 0, emit("sub.int", size, 1))
    rows = emit("arange", size, dtype=dtype)
    distance = emit("abs", emit("sub.Tensor", emit("unsqueeze", place, 2), rows))
    weight = emit("clamp_min", emit("add.Scalar", emit("neg", distance), 1), 0)
    return emit("mul.Tensor", weight, emit("unsqueeze", emit("to.dtype", inside, dtype), 2))


@translates("Bernoulli")
def _bernoulli(call: Call) -> Any:
    dtype = call.out_dtype()
    return call.emit("to.dtype", call.emit("bernoulli", call.tensor()), carrier(dtype))


@translates("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _random(call: Call) -> Any:
    """Other numbers than those of another runtime, as ONNX allows; the seed of the model is torch's own."""
    emit, dtype = call.emit, call.out_dtype()
    sizes = call.get("shape") if not call.inputs else call.sizes()
    op = "randn" if "Normal" in call.node.op_type else "rand"
    numbers = emit(op, sizes, dtype=dtype, layout=None, device=None, pin_memory=None)
    if op == "randn":
        low, scale = call.get("mean", 0.0), call.get("scale", 1.0)
    else:
        low, high = call.get("low", 0.0), call.get("high", 1.0)
        scale = high - low
    return emit("add.Scalar", emit("mul.Scalar", numbers, scale), low)


@translates("Multinomial")
def _multinomial(call: Call) -> Any:
    chances = call.emit("softmax.int", call.tensor(), 1)
    found = call.emit("multinomial", chances, call.get("sample_size", 1), True)
    return call.emit("to.dtype", found, carrier(call.out_dtype()))


@translates("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(call: Call) -> Any:
    rank = call.rank()
    picked = call.emit("index_select", call.tensor(), rank - 1, call.emit("reshape", call.tensor(1), [-1]))
    picked = call.emit("reshape", picked, [1, -1]) if rank == 1 else picked
    return Operand(call.dtype(), (None,) * max(rank, 2), picked)


@translates("Binarizer", domain="ai.onnx.ml")
def _binarizer(call: Call) -> Any:
    over = call.emit("gt.Scalar", call.tensor(), call.get("threshold", 0.0))
    return call.like(call.emit("to.dtype", over, call.dtype()))
