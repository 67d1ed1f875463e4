"""Linear layers whose scales torchao multiplies by at last: the layer is one operator again, of a weight that stays
integers.

Weights alone are rounded (``Int8WeightOnlyConfig``)::

    %w = aten::to(aten::t(%int8), float32)
    %y = aten::mul(aten::mm(%x, %w), %scale)

or inputs are, too (``Int8DynamicActivationInt8WeightConfig``), where CPUs multiply bytes without a sign::

    %rounded = aten::to(aten::clamp(aten::round(...), -128, 127), int8)
    %bytes = aten::to(aten::add(aten::to(%rounded, int32), 128), uint8)
    %sums = aten::sub(aten::_int_mm(%bytes, aten::t(%int8)), aten::mul(aten::sum(aten::t(%int8), [0]), 128))
    %y = aten::mul(aten::mul(aten::to(%sums, float32), %step), %scale)

Products of integers become products of floats of their values, so sums are rounded once more, to 24 bits. Views lie
between these steps; a bias follows, often in place.

Source: ``torchao/quantization/quantize_/workflows/int8/int8_tensor.py`` and ``torchao/kernel/intmm.py`` of torchao
0.18.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from mobopt.frontends.exported.quantization import Reading, stored_weight
from mobopt.ir import Node, Value
from mobopt.ir.dtypes import SCALAR_NUMBERS
from mobopt.ops.effects import listed_items, written_inputs
from mobopt.ops.quantized import DEQUANTIZE

_SHAPINGS = frozenset({"aten::reshape", "aten::view", "aten::_unsafe_view"})
"""Views that say all sizes."""
_VIEWS = _SHAPINGS | {"aten::flatten.using_ints"}
_CONVERSIONS = frozenset({"aten::to.dtype", "aten::_to_copy"})
_SUBTRACTIONS = frozenset({"aten::sub.Tensor", "aten::sub_.Tensor"})
_ADDITIONS = frozenset({"aten::add.Tensor", "aten::add.Scalar"})
_PRODUCTS = frozenset({"aten::mm", "aten::matmul", "aten::linear"})


class _Matrix(NamedTuple):
    """A stored matrix of integers, a row for each output, and the value that reads it."""

    source: Value
    integers: torch.Tensor


class _Product(NamedTuple):
    """Rows of floats, and the matrix that they are multiplied with."""

    rows: Value
    matrix: _Matrix


class _Rounded(NamedTuple):
    """Whole floats, and what they were rounded by."""

    floats: Value
    views: list[Node]
    """Of them, that make rows, the last first."""
    step: Value
    began: list[Node]
    """Operators, none of the others about the rounding before them."""


def restored(reading: Reading, made: Value) -> Value:
    """A layer that computes what an operator has just made, if that was the last step of one; else the same value."""
    node = made.producer
    rule = None if node is None else _LAST_STEPS.get(node.qualified_op)
    layer = None if node is None or rule is None else rule(reading, node)
    return made if layer is None else layer


def _scaled(reading: Reading, node: Node) -> Value | None:
    """A product whose columns are multiplied by scales."""
    for sums, factor in _both_ways(node):
        scale, rank = _stored_floats(reading, factor), sums.facts.known_rank
        if scale is None or rank is None or scale.dim() > rank:
            continue
        views = list(_views_before(sums))
        sums = views[-1].inputs[0] if views else sums
        product = _product_of_floats(reading, sums) or _product_of_steps(reading, sums)
        if product is None or any(_last_size(view) != product.matrix.integers.shape[0] for view in views):
            continue
        weight = _weight(reading, product.matrix, scale)
        if weight is not None:
            layer = reading.emit("aten::linear", product.rows, weight, None)
            return _viewed(reading, layer, views)
    return None


def _weight(reading: Reading, matrix: _Matrix, scale: torch.Tensor) -> Value | None:
    columns, inner = matrix.integers.shape
    if scale.numel() != 1 and (scale.dim() == 0 or scale.shape[-1] != columns or scale.numel() != columns):
        return None
    blocks = [columns // scale.numel(), inner]
    return stored_weight(reading, matrix.source, matrix.integers, scale.reshape(-1, 1), None, blocks)


def _biased(reading: Reading, node: Node) -> Value | None:
    """The sum of such a layer and of a bias, perhaps after views that leave columns alone."""
    sums, bias, alpha = node.inputs
    views = list(_views_before(sums))
    layer, held = _made_by(views[-1].inputs[0] if views else sums, "aten::linear"), reading.stored.get(bias)
    if layer is None or held is None or _number(alpha) != 1 or not _is_none(layer.inputs[2]):
        return None
    weight = _made_by(layer.inputs[1], DEQUANTIZE)
    if weight is None or held.dtype != torch.float32 or _is_written_since([layer], node):
        return None
    columns = weight.inputs[0].constant.shape[0]
    if tuple(held.shape) != (columns,) or any(_last_size(view) != columns for view in views):
        return None
    return _viewed(reading, reading.emit("aten::linear", *layer.inputs[:2], bias), views)


def _is_written_since(began: list[Node], but: Node | None = None) -> bool:
    """Whether anything was written to, but by one node, since the first of some: what they read is read again now."""
    left = set(began)
    assert began[0].block is not None, "it is a part of the graph"
    for node in reversed(began[0].block.nodes):
        left.discard(node)
        if not left:
            return False
        if node is not but and written_inputs(node):
            return True
    return True


def _viewed(reading: Reading, value: Value, views: list[Node]) -> Value:
    """The same views of a value, the last first in the list."""
    for view in reversed(views):
        value = reading.emit(view.qualified_op, value, view.inputs[1])
    return value


def _views_before(value: Value) -> Iterator[Node]:
    """The views that made a value, the last first."""
    node = _made_by(value, *_SHAPINGS)
    while node is not None:
        yield node
        node = _made_by(node.inputs[0], *_SHAPINGS)


def _product_of_floats(reading: Reading, sums: Value) -> _Product | None:
    """Rows of floats times integers that became floats."""
    node = _made_by(sums, *_PRODUCTS)
    if node is None or (node.qualified_op == "aten::linear" and not _is_none(node.inputs[2])):
        return None
    matrix = _matrix(reading, node.inputs[1], is_turned=node.qualified_op != "aten::linear", are_floats=True)
    return None if matrix is None or _is_written_since([node]) else _Product(node.inputs[0], matrix)


def _product_of_steps(reading: Reading, scaled: Value) -> _Product | None:
    """Rows that a call rounded times integers, and their steps: rows of floats again, and the matrix."""
    node = _made_by(scaled, "aten::mul.Tensor")
    for sums, step in () if node is None else _both_ways(node):
        integers = _converted(sums, torch.float32)
        product = None if integers is None else _product_of_integers(reading, integers, step)
        if product is not None:
            return product
    return None


def _product_of_integers(reading: Reading, sums: Value, step: Value) -> _Product | None:
    """Sums of products of integers: rows of the floats that were rounded by these steps, and the matrix."""
    less, shift, shifted = _made_by(sums, *_SUBTRACTIONS), 0, None
    if less is not None:
        taken = _made_by(less.inputs[1], "aten::mul.Tensor", "aten::mul.Scalar")
        added = None if taken is None else _made_by(taken.inputs[0], "aten::sum.dim_IntList")
        if taken is None or added is None or _numbers(added.inputs[1]) != [0] or _number(less.inputs[2]) != 1:
            return None
        sums, shift, shifted = less.inputs[0], _number(taken.inputs[1]), added.inputs[0]
    node = _made_by(sums, "aten::_int_mm")
    if node is None or (shifted is not None and shifted is not node.inputs[1]):
        return None
    matrix = _matrix(reading, node.inputs[1], is_turned=True, are_floats=False)
    rows = _rounded_rows(node.inputs[0], shift)
    if matrix is None or rows is None or _unshaped(rows.step) is not _unshaped(step):
        return None
    if _is_written_since(rows.began, less):
        return None
    floats = reading.emit("aten::mul.Tensor", rows.floats, rows.step)
    return _Product(_viewed(reading, floats, rows.views), matrix)


def _unshaped(value: Value) -> Value:
    """What a value is a view of, or is itself, as float32."""
    while (source := _source_of(value, _SHAPINGS)) is not None:
        value = source
    return value


def _source_of(value: Value, views: frozenset[str]) -> Value | None:
    """What a value is one of these views of, or was made float32 of."""
    node = _made_by(value, *views)
    return _converted(value, torch.float32) if node is None else node.inputs[0]


def _rounded_rows(value: Value, shift: Any) -> _Rounded | None:
    """The whole floats that integers were, which were made larger by a shift since."""
    if shift != 0:
        wide = _converted(value, torch.uint8)
        node = None if wide is None else _made_by(wide, *_ADDITIONS)
        if node is None or shift != 128 or _number(node.inputs[1]) != shift or _number(node.inputs[2]) != 1:
            return None
        narrow = _converted(node.inputs[0], torch.int32)
        if narrow is None:
            return None
        value = narrow
    views = list(_views_before(value))
    floats = _converted(views[-1].inputs[0] if views else value, torch.int8)
    if floats is None:
        return None
    views += _views_before(floats)
    whole = views[-1].inputs[0] if _made_by(floats, *_SHAPINGS) is not None else floats
    return _rounding(whole, views)


def _rounding(floats: Value, views: list[Node]) -> _Rounded | None:
    """Floats that were multiplied by the reciprocals of steps, rounded, and clamped to what int8 holds; perhaps zeros
    were added between."""
    clamp = _made_by(floats, "aten::clamp")
    low, high = (None, None) if clamp is None else (_number(bound) for bound in clamp.inputs[1:])
    if clamp is None or low is None or high is None or low < -128 or high > 127:
        return None
    added = _made_by(clamp.inputs[0], *_ADDITIONS)
    zeros = None if added is None else _zeros(added.inputs[1])
    rounding = _made_by(clamp.inputs[0] if added is None else added.inputs[0], "aten::round")
    product = None if rounding is None else _made_by(rounding.inputs[0], "aten::mul.Tensor")
    reciprocal = None if product is None else _reciprocal(product.inputs[1])
    if reciprocal is None or (added is not None and zeros is None):
        return None
    began = [reciprocal] if zeros is None else [reciprocal, zeros]
    return _Rounded(floats, views, reciprocal.inputs[0], began)


def _reciprocal(factor: Value) -> Node | None:
    """What makes reciprocals, which may be multiplied by one."""
    one = _made_by(factor, "aten::mul.Tensor", "aten::mul.Scalar")
    is_same = one is not None and _number(one.inputs[1]) == 1
    return _made_by(one.inputs[0] if one is not None and is_same else factor, "aten::reciprocal")


def _zeros(value: Value) -> Node | None:
    """What fills a tensor with zeros, of which a value is a view or a conversion."""
    while (node := _made_by(value, *_SHAPINGS, *_CONVERSIONS)) is not None:
        value = node.inputs[0]
    filled = _made_by(value, "aten::full_like")
    return filled if filled is not None and _number(filled.inputs[1]) == 0 else None


def _matrix(reading: Reading, value: Value, *, is_turned: bool, are_floats: bool) -> _Matrix | None:
    """The stored matrix of int8 that a value is, turned or not, as floats or not."""
    turns, converts = False, False
    while value not in reading.stored:
        floats, turned = _converted(value, torch.float32), _turned(value)
        if floats is not None:
            value, converts = floats, True
        elif turned is not None:
            value, turns = turned, not turns
        else:
            return None
    integers = reading.stored[value]
    fits = (turns, converts) == (is_turned, are_floats) and integers.dtype == torch.int8 and integers.dim() == 2
    return _Matrix(value, integers) if fits else None


def _turned(value: Value) -> Value | None:
    """The matrix that a value is the transpose of."""
    node = _made_by(value, "aten::t", "aten::transpose.int", "aten::permute")
    if node is None or node.op == "aten::t":
        return None if node is None else node.inputs[0]
    if node.op == "aten::permute":
        swaps = _numbers(node.inputs[1]) in ([1, 0], [-1, -2])
    else:
        swaps = {_number(dim) for dim in node.inputs[1:]} in ({0, 1}, {-2, -1}, {-2, 1}, {-1, 0})
    return node.inputs[0] if swaps else None


def _stored_floats(reading: Reading, value: Value) -> torch.Tensor | None:
    """The elements of a value that is a view, in order, of a stored tensor of float32; with the value's own sizes."""
    source, sizes = value, value.facts.known_sizes
    while source not in reading.stored:
        seen = _source_of(source, _VIEWS)
        if seen is None:
            return None
        source = seen
    stored = reading.stored[source]
    if stored.dtype != torch.float32 or (source is not value and sizes is None):
        return None
    return stored if source is value or sizes is None else stored.reshape(sizes)


def _both_ways(node: Node) -> Iterator[tuple[Value, Value]]:
    """The operands of a product, each once the first; conversions of the first from float32 to itself are left out."""
    for one, other in (node.inputs, node.inputs[::-1]):
        floats = _converted(one, torch.float32)
        is_same = floats is not None and _made_by(floats, "aten::mul.Tensor", *_PRODUCTS) is not None
        yield (floats if is_same and floats is not None else one), other


def _made_by(value: Value, *qualified_ops: str) -> Node | None:
    """What makes a value, if it is one of these operators."""
    node = value.producer
    return node if node is not None and node.qualified_op in qualified_ops else None


def _converted(value: Value, dtype: torch.dtype) -> Value | None:
    """What was converted to a dtype; None for what wasn't."""
    node = _made_by(value, *_CONVERSIONS)
    return node.inputs[0] if node is not None and _number(node.inputs[1]) == SCALAR_NUMBERS[dtype] else None


def _number(value: Value) -> Any:
    """A constant number; None for everything else."""
    is_number = value.is_constant and isinstance(value.constant, (int, float)) and not isinstance(value.constant, bool)
    return value.constant if is_number else None


def _numbers(value: Value) -> list[Any] | None:
    """A list of constants; None for everything else."""
    if value.is_constant:
        return list(value.constant) if isinstance(value.constant, (list, tuple)) else None
    items = listed_items(value)
    return None if items is None else [_number(item) for item in items]


def _last_size(view: Node) -> Any:
    sizes = _numbers(view.inputs[1])
    return sizes[-1] if sizes else None


def _is_none(value: Value) -> bool:
    return value.is_constant and value.constant is None


_LAST_STEPS: dict[str, Callable[[Reading, Node], Value | None]] = {
    "aten::mul.Tensor": _scaled,
    "aten::add.Tensor": _biased,
    "aten::add_.Tensor": _biased,
}
"""By the operator of a layer's last step."""
