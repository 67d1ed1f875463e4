"""Operators of quantised models in float arithmetic: PT2E's ``quantized_decomposed`` and torchao's.

Weights that are stored as integers stay so: :data:`mobopt.ops.quantized.DEQUANTIZE` makes floats of them where they are
read. Integers that a call rounds are kept as floats too, and what dequantises them reads those.

Source: ``torch/ao/quantization/fx/_decomposed.py`` of PyTorch 2.13, ``torchao/quantization/quant_primitives.py`` of
torchao 0.18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir import Value
from mobopt.ir.dtypes import SCALAR_NUMBERS, SCALAR_TYPES
from mobopt.ops.quantized import DEQUANTIZE, block_counts, is_weight, weight_of

_HALVES = (torch.float16, torch.bfloat16)
_FOUR_BITS = {torch.int8: (-8, 7), torch.uint8: (0, 15)}
"""The bounds of integers that fit in 4 bits, by the dtype that holds them."""
_XNNPACK_BOUNDS = (-128, 127)
_LEAST_SCALE_OF_TOKENS = 1e-5

Block = int | None
"""Elements of a dimension that share a scale; None: all of them."""


class Reading(Protocol):
    """What reads the nodes.

    Attributes:
        stored: tensors that the program holds and no call changes, by the values that read them.
        unrounded: integers that a call rounded, as the floats that they were.
        filled: tensors that a call made, all of whose elements are one number.
        kept: scales and zero points of blocks, as they broadcast beside what they were found of, and its sizes then.
    """

    stored: dict[Value, torch.Tensor]
    unrounded: dict[Value, Value]
    filled: dict[Value, int]
    kept: dict[Value, tuple[Value, list[int | Value]]]

    def emit(self, name: str, *operands: Any) -> Value:
        """Append a call of an operator, of values and plain Python values."""

    def weight(self, tensor: torch.Tensor, like: Value) -> Value:
        """A constant that is called what a stored tensor is called."""

    def argument(self, arg: Mapping[str, Any]) -> Value:
        """The value of an argument."""

    def part(self, value: Value, name: str) -> Value:
        """A tensor that a stored tensor of a subclass is made of."""

    def described(self, arg: Mapping[str, Any]) -> tuple[torch.dtype, list[int | None]]:
        """Dtype and sizes of a tensor, None where they are open."""


class ExportedCall:
    """A node: its arguments by name."""

    def __init__(self, reading: Reading, given: Mapping[str, Any]) -> None:
        self.reading = reading
        self.emit = reading.emit
        self._given = given

    def value(self, name: str) -> Value | None:
        """An argument; None if it is None or not given."""
        if name not in self._given:
            return None
        value = self.reading.argument(self._given[name])
        return None if value.is_constant and value.constant is None else value

    def tensor(self, name: str = "input") -> Value:
        """An argument that is there."""
        value = self.value(name)
        if value is None:
            raise UnsupportedError(f"a quantised operator is called without {name!r}")
        return value

    def plain(self, name: str, default: Any = None) -> Any:
        """A constant argument, the element of a stored tensor where it is one."""
        value = self.value(name)
        if value is None:
            return default
        stored = self.reading.stored.get(value)
        if stored is not None and stored.numel() == 1:
            return stored.item()
        if not value.is_constant:
            raise UnsupportedError(f"{name!r} of a quantised operator is computed; only constants are read")
        return value.constant

    def dtype(self, name: str, default: torch.dtype) -> torch.dtype:
        """An argument that is a dtype."""
        return SCALAR_TYPES[self.plain(name, SCALAR_NUMBERS[default])]

    def described(self, name: str = "input") -> tuple[torch.dtype, list[int | None]]:
        """Dtype and sizes of an argument, None where they are open."""
        return self.reading.described(self._given[name])

    def sizes(self, name: str = "input") -> list[int | None]:
        """Sizes of an argument, None where they are open."""
        return self.described(name)[1]

    def parameter(self, name: str) -> Value | float | None:
        """A scale or a zero point: a number, or a tensor of floats."""
        value = self.value(name)
        if value is None or (value.is_constant and isinstance(value.constant, (int, float))):
            return None if value is None else value.constant
        if value in self.reading.filled:
            return self.reading.filled[value]
        if 0 in self.sizes(name):  # some exports have an empty tensor for no zero points
            return None
        return self.floats(name)

    def floats(self, name: str = "input") -> Value:
        """A tensor as float32."""
        value = self.tensor(name)
        if value in self.reading.unrounded:
            return self.reading.unrounded[value]
        has_floats = self.described(name)[0] == torch.float32
        return value if has_floats else self.emit("aten::to.dtype", value, SCALAR_NUMBERS[torch.float32])


Translation = Callable[[ExportedCall], list[Value]]
TRANSLATIONS: dict[str, Translation] = {}
"""What becomes of an operator, by its name and overload."""


def _translates(*names: str) -> Callable[[Translation], Translation]:
    def register(translation: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, translation))
        return translation

    return register


@dataclass(frozen=True)
class _Blocks:
    """A tensor with the dimensions of its blocks apart.

    Attributes:
        sizes: of the tensor.
        view: sizes with blocks apart; None where each dimension is one block or none.
        kept: sizes of the scales beside the view.
        counts: of blocks, of each dimension.
        reduced: dimensions of the view that share a scale.
    """

    sizes: list[int | Value]
    view: list[int | Value] | None
    kept: list[int | Value]
    counts: list[int | Value]
    reduced: list[int]

    @staticmethod
    def of(call: ExportedCall, blocks: Sequence[Block]) -> _Blocks:
        """Blocks of the input.

        Raises:
            UnsupportedError: blocks along an open dimension, or of another number of dimensions.
        """
        known = call.sizes()
        if len(known) != len(blocks):
            raise UnsupportedError(f"blocks of {len(blocks)} dimensions for a tensor of {len(known)}")
        view: list[int | Value] = []
        kept: list[int | Value] = []
        counts: list[int | Value] = []
        reduced: list[int] = []
        sizes = [call.emit("aten::size.int", call.tensor(), i) if n is None else n for i, n in enumerate(known)]
        for size, block in zip(sizes, blocks, strict=True):
            if block == 1:  # also of a dimension of one element
                view.append(size)
                kept.append(size)
                counts.append(size)
            elif block is None or block == size:
                reduced.append(len(view))
                view.append(size)
                kept.append(1)
                counts.append(1)
            elif isinstance(size, int) and size % block == 0:
                reduced.append(len(view) + 1)
                view += [size // block, block]
                kept += [size // block, 1]
                counts.append(size // block)
            else:
                raise UnsupportedError(f"blocks of {block} elements along a dimension that they do not divide")
        return _Blocks(sizes, view if len(view) > len(sizes) else None, kept, counts, reduced)

    def apart(self, call: ExportedCall, x: Value) -> Value:
        """A tensor with its blocks apart."""
        return x if self.view is None else call.emit("aten::reshape", x, self.view)

    def together(self, call: ExportedCall, x: Value) -> Value:
        """The same as it was."""
        return x if self.view is None else call.emit("aten::reshape", x, self.sizes)

    def fitted(self, call: ExportedCall, name: str, parameter: Value | float | None) -> Value | float | None:
        """A scale or zero point that broadcasts beside the view."""
        if not isinstance(parameter, Value) or call.sizes(name) == self.kept:
            return parameter
        kept, sizes = call.reading.kept.get(call.tensor(name), (None, []))
        if kept is not None and list(map(_known, sizes)) == list(map(_known, self.kept)):
            return kept
        return call.emit("aten::reshape", parameter, self.kept)


def _known(size: int | Value) -> int | None:
    """A size; of open ones it is enough that both are: others would not broadcast."""
    return size if isinstance(size, int) else None


def _quantized(
    call: ExportedCall, blocks: Sequence[Block], scale: str, zero: str, dtype: torch.dtype, *, rounds_last: bool = False
) -> Value:
    """Rounded to the nearest, half to even, and clamped."""
    emit, apart = call.emit, _Blocks.of(call, blocks)
    x = apart.apart(call, call.floats())
    step = apart.fitted(call, scale, call.parameter(scale))
    point = apart.fitted(call, zero, call.parameter(zero))
    if isinstance(step, Value):
        x = emit("aten::mul.Tensor", x, emit("aten::reciprocal", step))
    else:
        x = emit("aten::mul.Scalar", x, 1.0 / float(step or 1.0))
    x = x if rounds_last else emit("aten::round", x)
    if point is not None and point != 0:
        x = emit("aten::add.Tensor" if isinstance(point, Value) else "aten::add.Scalar", x, point)
    x = emit("aten::round", x) if rounds_last else x
    x = apart.together(call, emit("aten::clamp", x, call.plain("quant_min"), call.plain("quant_max")))
    return _integers(call, x, dtype)


def _integers(call: ExportedCall, x: Value, dtype: torch.dtype) -> Value:
    """Whole floats as integers, which are remembered as floats."""
    result = call.emit("aten::to.dtype", x, SCALAR_NUMBERS[dtype])
    call.reading.unrounded[result] = x
    return result


def _dequantized(call: ExportedCall, blocks: Sequence[Block], scale: str, zero: str, dtype: torch.dtype) -> Value:
    weight = _stored_weight(call, blocks, scale, zero) if dtype == torch.float32 else None
    if weight is not None:
        return weight
    emit, apart = call.emit, _Blocks.of(call, blocks)
    x = apart.apart(call, call.floats())
    point = apart.fitted(call, zero, call.parameter(zero))
    if point is not None and point != 0:
        x = emit("aten::sub.Tensor" if isinstance(point, Value) else "aten::sub.Scalar", x, point)
    step = apart.fitted(call, scale, call.parameter(scale))
    x = emit("aten::mul.Tensor" if isinstance(step, Value) else "aten::mul.Scalar", x, step)
    x = apart.together(call, x)
    return x if dtype == torch.float32 else emit("aten::to.dtype", x, SCALAR_NUMBERS[dtype])


def _stored_weight(call: ExportedCall, blocks: Sequence[Block], scale: str, zero: str) -> Value | None:
    """The floats of a weight that stays integers; None for other inputs."""
    source = call.tensor()
    integers = call.reading.stored.get(source)
    scales, zeros = _stored_parameter(call, scale), _stored_parameter(call, zero)
    if not is_weight(integers) or scales is None or (zeros is None and call.value(zero) is not None):
        return None
    assert integers is not None
    sizes = [size if block is None else block for size, block in zip(integers.shape, blocks, strict=True)]
    low, high = _FOUR_BITS[integers.dtype]
    has_four = int(integers.min()) >= low and int(integers.max()) <= high and call.plain("quant_max", 127) <= high
    return stored_weight(call.reading, source, integers, scales, zeros, sizes, has_four)


def stored_weight(
    reading: Reading,
    source: Value,
    integers: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    block_size: list[int],
    has_four_bits: bool = False,
) -> Value | None:
    """The floats of integers that a program holds; None if these are too few to stay as they are.

    Args:
        reading: what reads the program.
        source: reads the integers.
        integers: int8 or uint8.
        scales: one for each block, in their order.
        zero_points: likewise; None for 0.
        block_size: elements that share a scale, for each dimension.
        has_four_bits: whether the integers have 4 bits at most.
    """
    if not is_weight(integers):
        return None
    counts = block_counts(integers.shape, block_size)
    points = None if zero_points is None else zero_points.float().reshape(counts)
    weight = weight_of(integers, scales.float().reshape(counts), points, block_size, has_four_bits)
    _, *rest = weight.arguments
    return reading.emit(DEQUANTIZE, reading.weight(weight.values, source), *rest)


def _stored_parameter(call: ExportedCall, name: str) -> torch.Tensor | None:
    value = call.value(name)
    if value is None:
        return None
    if value.is_constant and isinstance(value.constant, (int, float)):
        return torch.tensor(value.constant)
    return call.reading.stored.get(value)


def _whole(call: ExportedCall) -> list[Block]:
    return [None] * len(call.sizes())


def _of_axis(call: ExportedCall) -> list[Block]:
    blocks = _whole(call)
    blocks[call.plain("axis")] = 1
    return blocks


def _of_tokens(call: ExportedCall) -> list[Block]:
    return [*[1] * (len(call.sizes()) - 1), None]


def _of_groups(call: ExportedCall) -> list[Block]:
    group, columns = call.plain("group_size", 128), call.sizes()[-1]
    return [1, None if columns is not None and group > columns else group]


_PER_TENSOR = ("", ".tensor", ".tensor2")


@_translates(*(f"quantized_decomposed::quantize_per_tensor{overload}" for overload in _PER_TENSOR))
def _quantize_per_tensor(call: ExportedCall) -> list[Value]:
    return [_quantized(call, _whole(call), "scale", "zero_point", call.dtype("dtype", torch.int8))]


@_translates(*(f"quantized_decomposed::dequantize_per_tensor{overload}" for overload in _PER_TENSOR))
def _dequantize_per_tensor(call: ExportedCall) -> list[Value]:
    return [_dequantized(call, _whole(call), "scale", "zero_point", call.dtype("out_dtype", torch.float32))]


@_translates("quantized_decomposed::quantize_per_channel")
def _quantize_per_channel(call: ExportedCall) -> list[Value]:
    return [_quantized(call, _of_axis(call), "scales", "zero_points", call.dtype("dtype", torch.int8))]


@_translates("quantized_decomposed::dequantize_per_channel")
def _dequantize_per_channel(call: ExportedCall) -> list[Value]:
    return [_dequantized(call, _of_axis(call), "scales", "zero_points", call.dtype("out_dtype", torch.float32))]


@_translates("quantized_decomposed::quantize_per_token")
def _quantize_per_token(call: ExportedCall) -> list[Value]:
    dtype = call.dtype("dtype", torch.int8)
    return [_quantized(call, _of_tokens(call), "scales", "zero_points", dtype, rounds_last=True)]


@_translates("quantized_decomposed::dequantize_per_token")
def _dequantize_per_token(call: ExportedCall) -> list[Value]:
    return [_dequantized(call, _of_tokens(call), "scales", "zero_points", call.dtype("output_dtype", torch.float32))]


@_translates("quantized_decomposed::quantize_per_channel_group")
def _quantize_per_channel_group(call: ExportedCall) -> list[Value]:
    dtype = call.dtype("dtype", torch.int8)
    return [_quantized(call, _of_groups(call), "scales", "zero_points", dtype, rounds_last=True)]


@_translates("quantized_decomposed::dequantize_per_channel_group")
def _dequantize_per_channel_group(call: ExportedCall) -> list[Value]:
    return [_dequantized(call, _of_groups(call), "scales", "zero_points", call.dtype("output_dtype", torch.float32))]


@_translates("torchao::quantize_affine", "torchao::_quantize_affine_no_zero_point")
def _quantize_affine(call: ExportedCall) -> list[Value]:
    dtype = call.dtype("output_dtype", torch.int8)
    return [_quantized(call, call.plain("block_size"), "scale", "zero_point", dtype)]


@_translates("torchao::dequantize_affine", "torchao::_dequantize_affine_no_zero_point")
def _dequantize_affine(call: ExportedCall) -> list[Value]:
    dtype = call.dtype("output_dtype", torch.float32)
    return [_dequantized(call, call.plain("block_size"), "scale", "zero_point", dtype)]


def _extent(call: ExportedCall, x: Value, dims: list[int]) -> tuple[Value, Value]:
    """The least element or zero, the greatest or zero."""
    emit = call.emit
    low, high = emit("aten::amin", x, dims, True), emit("aten::amax", x, dims, True)
    return emit("aten::clamp", low, None, 0), emit("aten::clamp", high, 0, None)


def _symmetric(call: ExportedCall, x: Value, dims: list[int], bounds: tuple[int, int], least: float) -> Value:
    """Steps that reach as far below zero as above."""
    largest = call.emit("aten::amax", call.emit("aten::abs", x), dims, True)
    step = call.emit("aten::div.Scalar", largest, (bounds[1] - bounds[0]) / 2)
    return call.emit("aten::clamp", step, least, None)


def _unclipped(call: ExportedCall, low: Value, high: Value, bounds: tuple[int, int], least: float) -> Value:
    """Steps that reach both ends."""
    below, above = (call.emit("aten::div.Scalar", end, float(n)) for end, n in zip((low, high), bounds, strict=True))
    return call.emit("aten::clamp", call.emit("aten::maximum", below, above), least, None)


def _asymmetric(call: ExportedCall, low: Value, high: Value, bounds: tuple[int, int], least: float) -> Value:
    """Steps from the least to the greatest."""
    step = call.emit("aten::div.Scalar", call.emit("aten::sub.Tensor", high, low), float(bounds[1] - bounds[0]))
    return call.emit("aten::clamp", step, least, None)


def _point(call: ExportedCall, low: Value, step: Value, bounds: tuple[int, int]) -> Value:
    """What stands for zero where steps begin at the least element."""
    point = call.emit(
        "aten::rsub.Scalar", call.emit("aten::round", call.emit("aten::div.Tensor", low, step)), bounds[0]
    )
    return call.emit("aten::clamp", point, *bounds)


_KINDS = ("SYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "ASYMMETRIC")
"""torchao's mapping types."""


def _steps(
    call: ExportedCall, kind: str, x: Value, dims: list[int], bounds: tuple[int, int], least: float
) -> tuple[Value, Value | None]:
    """Steps by which the dimensions that share one are rounded, which stay as dimensions of one element, and what
    stands for zero; None where that is in the middle."""
    if kind == "SYMMETRIC":
        return _symmetric(call, x, dims, bounds, least), None
    low, high = _extent(call, x, dims)
    if kind == "SYMMETRIC_NO_CLIPPING_ERR":
        return _unclipped(call, low, high, bounds, least), None
    step = _asymmetric(call, low, high, bounds, least)
    return step, _point(call, low, step, bounds)


def _bounds(call: ExportedCall, dtype: torch.dtype) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return int(call.plain("quant_min", limits.min)), int(call.plain("quant_max", limits.max))


def _chosen_for_tensor(call: ExportedCall, kind: str) -> list[Value]:
    dtype = call.dtype("dtype", torch.int8)
    bounds, dims = _bounds(call, dtype), list(range(len(call.sizes())))
    step, point = _steps(call, kind, call.floats(), dims, bounds, call.plain("eps"))
    ones: list[int | Value] = [1] * len(dims)
    scale = _given_out(call, step, [1], ones)
    if point is None:
        return [scale, _filled(call, scale, 128 if dtype == torch.uint8 else 0, torch.int64)]
    return [scale, _given_out_integers(call, point, [1], ones, torch.int64)]


def _given_out(call: ExportedCall, x: Value, sizes: list[int | Value], kept: list[int | Value]) -> Value:
    """What is found of blocks, with the sizes that its operator gives it."""
    given = call.emit("aten::reshape", x, sizes)
    call.reading.kept[given] = x, kept
    return given


def _given_out_integers(
    call: ExportedCall, x: Value, sizes: list[int | Value], kept: list[int | Value], dtype: torch.dtype
) -> Value:
    result = _integers(call, call.emit("aten::reshape", x, sizes), dtype)
    call.reading.kept[result] = x, kept
    return result


def _filled(call: ExportedCall, like: Value, number: int, dtype: torch.dtype) -> Value:
    result = call.emit("aten::full_like", like, number, SCALAR_NUMBERS[dtype])
    call.reading.filled[result] = number
    return result


@_translates("quantized_decomposed::choose_qparams.tensor")
def _choose_qparams(call: ExportedCall) -> list[Value]:
    return _chosen_for_tensor(call, "ASYMMETRIC")


@_translates("quantized_decomposed::choose_qparams_symmetric.tensor")
def _choose_qparams_symmetric(call: ExportedCall) -> list[Value]:
    return _chosen_for_tensor(call, "SYMMETRIC")


@_translates("quantized_decomposed::choose_qparams_per_token")
def _choose_qparams_per_token(call: ExportedCall) -> list[Value]:
    emit = call.emit
    largest = emit("aten::amax", emit("aten::abs", call.floats()), [-1], True)
    step = emit("aten::div.Scalar", emit("aten::clamp", largest, _LEAST_SCALE_OF_TOKENS, None), 127)
    return [step, emit("aten::zeros_like", step)]


@_translates(
    "quantized_decomposed::choose_qparams_per_token_asymmetric",
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl",
)
def _choose_qparams_per_token_asymmetric(call: ExportedCall) -> list[Value]:
    emit, (lowest, highest) = call.emit, _XNNPACK_BOUNDS
    low, high = _extent(call, call.floats(), [-1])
    step = _asymmetric(call, low, high, _XNNPACK_BOUNDS, torch.finfo(torch.float32).eps)
    below, above = emit("aten::div.Tensor", low, step), emit("aten::div.Tensor", high, step)
    errors = emit("aten::add.Tensor", emit("aten::add.Scalar", below, lowest), emit("aten::add.Scalar", above, highest))
    point = emit(
        "aten::where.self",
        emit("aten::gt.Scalar", errors, 0),
        emit("aten::rsub.Scalar", below, lowest),
        emit("aten::rsub.Scalar", above, highest),
    )
    return [step, _integers(call, emit("aten::round", emit("aten::clamp", point, lowest, highest)), torch.int64)]


@_translates("torchao::choose_qparams_affine")
def _choose_qparams_affine(call: ExportedCall) -> list[Value]:
    kind, keeps = call.plain("mapping_type"), call.plain("keepdim", False)
    if kind not in _KINDS:
        raise UnsupportedError(f"quantisation of the mapping type {kind!r}; {', '.join(_KINDS)} are read")
    bounds, blocks = _bounds(call, call.dtype("target_dtype", torch.int8)), call.plain("block_size")
    apart = _Blocks.of(call, blocks)
    dtype, _ = call.described()
    least = call.plain("eps", torch.finfo(dtype).smallest_normal)
    step, point = _steps(call, kind, apart.apart(call, call.floats()), apart.reduced, bounds, least)
    left = [size for number, size in enumerate(apart.kept) if number not in apart.reduced]
    sizes = apart.counts if keeps else left
    scale_type, point_type = call.dtype("scale_dtype", dtype), call.dtype("zero_point_dtype", torch.int32)
    if scale_type == torch.float32:
        scale = _given_out(call, step, sizes, apart.kept)
    else:
        scale = call.emit("aten::to.dtype", call.emit("aten::reshape", step, sizes), SCALAR_NUMBERS[scale_type])
    if point is None:
        return [scale, _filled(call, scale, (bounds[0] + bounds[1] + 1) // 2, point_type)]
    return [scale, _given_out_integers(call, point, sizes, apart.kept, point_type)]


@_translates("export::access_subclass_inner_tensor")
def _access_subclass_inner_tensor(call: ExportedCall) -> list[Value]:
    return [call.reading.part(call.tensor("src_subclass_tensor"), call.plain("attr"))]
