"""What the integers of a straight line can be: an interval for each tensor, by interval arithmetic over its nodes.

An int64 element takes 32 bits on the device where all that a tensor may hold fits: indices, sizes, masks and
comparisons with small numbers do. Else it takes 64, which not every kernel computes with. An operator without a rule
makes int64 tensors of unknown contents. All rules are of exact integers; what leaves the range of its dtype wraps, so
it may be anything of the dtype. (R. E. Moore, "Interval Analysis", 1966.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.dimensions import Expression
from mobopt.ir.schemas import argument_names
from mobopt.ops.records import Trait, functional_name, has_trait
from mobopt.runtimes.vulkan.engine.tensor import WORD_INTEGERS

Interval = tuple[int, int]
"""The least and the largest value, both included."""

WORD: Interval = WORD_INTEGERS
"""What an integer of 32 bits can be."""

FROM_FLOATS: Interval = (-(2**24) + 1, 2**24 - 1)
"""What a float that becomes an int64 can be on the device, which checks it. So narrow that sums with sizes fit too;
beyond, float32 has gaps between integers anyway."""

_Rule = Callable[["IntegerRanges", Node], "Interval | list[Interval]"]
"""The interval of a call's outputs, or one for each."""

_RULES: dict[str, _Rule] = {}


def dtype_interval(dtype: torch.dtype) -> Interval:
    """Everything that an integer dtype, or bool, can hold."""
    if dtype == torch.bool:
        return 0, 1
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def is_within(inner: Interval, outer: Interval) -> bool:
    """Whether an interval lies in another."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def is_integral(dtype: torch.dtype) -> bool:
    """Whether elements are integers or bools."""
    return not dtype.is_floating_point and not dtype.is_complex


class IntegerRanges:
    """Intervals of tensors; calls are told in order."""

    def __init__(self, inputs: Mapping[Value, Interval]) -> None:
        """``inputs`` are the intervals of tensors that no call makes, where more is known than their dtype."""
        self._known: dict[Value, Interval] = dict(inputs)

    def of(self, ref: Value) -> Interval:
        """The interval of an integer tensor; of another tensor, that of int64."""
        if not is_integral(ref.dtype):
            return dtype_interval(torch.int64)
        if ref not in self._known:
            self._known[ref] = _measured(ref)
        return self._known[ref]

    def value(self, argument: Any) -> Interval:
        """The interval of an argument, tensor or number."""
        if isinstance(argument, Value):
            return self.of(argument)
        if isinstance(argument, Expression):
            number: Any = argument  # for each size what it is: comparisons become guards
            return number, number
        if isinstance(argument, (int, float)) and math.isfinite(argument):
            return int(argument), int(argument)
        return dtype_interval(torch.int64)

    def record(self, call: Node, floats_fit: bool) -> None:
        """Learn what a call makes.

        ``floats_fit`` says that floats that become int64 are in :data:`FROM_FLOATS`; the device checks them.
        """
        if not any(is_integral(output.dtype) and output.dtype != torch.bool for output in call.outputs):
            return
        moves = has_trait(call.qualified_op, Trait.MOVES_ELEMENTS)
        rule = _RULES.get(_name(call.qualified_op), _moved if moves else None)
        found = dtype_interval(torch.int64) if rule is None else rule(self, call)
        if rule is _converted and floats_fit and call.args[0].dtype.is_floating_point:
            found = FROM_FLOATS
        each = found if isinstance(found, list) else [found] * len(call.outputs)
        for output, interval in zip(call.outputs, each, strict=True):
            if is_integral(output.dtype) and output.numel > 0:
                whole = dtype_interval(output.dtype)
                self._known[output] = interval if is_within(interval, whole) else whole


def _measured(ref: Value) -> Interval:
    if ref.numel == 0:
        return 0, 0
    constant = ref.elements
    if constant is None or ref.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return dtype_interval(ref.dtype)
    low, high = torch.aminmax(constant.detach())
    return int(low), int(high)


def _name(operator: str) -> str:
    """``add`` of ``aten::add_.Tensor``."""
    return functional_name(operator).removeprefix("aten::").partition(".")[0]


def _rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for operators, by name without overload and mark of in-place form."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _join(intervals: Iterable[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def _size(interval: Interval) -> int:
    """The largest magnitude."""
    return max(-interval[0], interval[1])


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _multiply(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _times(interval: Interval, most: int) -> Interval:
    """The sum of none to ``most`` such values."""
    return min(0, most * interval[0]), max(0, most * interval[1])


def _operands(call: Node) -> list[Value]:
    """The integer tensors among the arguments."""
    return [ref for ref in call.inputs if is_integral(ref.dtype)]


def _most_elements(call: Node) -> int:
    return max(ref.numel for ref in call.inputs)


# Operators that move elements.


@_rule("floor", "ceil", "trunc", "fix", "round", "amax", "amin", "aminmax", "nan_to_num", "block_diag", "dropout")
def _moved(ranges: IntegerRanges, call: Node) -> Interval:
    return _join(ranges.of(ref) for ref in _operands(call)) if _operands(call) else dtype_interval(torch.int64)


@_rule("tril", "triu", "diag", "diag_embed", "diagflat")
def _moved_among_zeros(ranges: IntegerRanges, call: Node) -> Interval:
    return _join([(0, 0), ranges.of(call.args[0])])


@_rule("index_select", "gather", "embedding", "index", "take", "take_along_dim")
def _chosen(ranges: IntegerRanges, call: Node) -> Interval:
    return ranges.of(call.args[0])


@_rule("constant_pad_nd", "pad")
def _padded(ranges: IntegerRanges, call: Node) -> Interval:
    return _join([ranges.of(call.args[0]), ranges.value(call["value"] or 0)])


@_rule("where")
def _either(ranges: IntegerRanges, call: Node) -> Interval:
    return _join([ranges.value(call.args[1]), ranges.value(call.args[2])])


@_rule("masked_fill", "threshold")
def _replaced(ranges: IntegerRanges, call: Node) -> Interval:
    return _join([ranges.value(call.args[0]), ranges.value(call.args[2])])


@_rule("scatter", "index_fill", "index_put", "scatter_add", "index_add", "scatter_reduce", "index_reduce")
def _scattered(ranges: IntegerRanges, call: Node) -> Interval:
    names = argument_names(call.qualified_op)
    adds = _name(call.qualified_op).endswith("_add") or ("accumulate" in names and call["accumulate"])
    how = "add" if adds else call["reduce"] if "reduce" in names else ""
    given = call["values"] if "values" in names else call.args[3]
    put = ranges.value(given)
    if not how or how.startswith("am"):  # a largest or smallest element
        return _join([ranges.of(call.args[0]), put])
    if how.startswith(("prod", "mul")):
        return dtype_interval(torch.int64)
    if "alpha" in names:
        put = _multiply(put, ranges.value(call["alpha"]))
    return _add(ranges.of(call.args[0]), _times(put, _most_elements(call)))  # a mean is of a sum


@_rule("fill", "copy")
def _overwritten(ranges: IntegerRanges, call: Node) -> Interval:
    return ranges.value(call.args[1])


@_rule("to", "_to_copy", "type_as", "cpu")
def _converted(ranges: IntegerRanges, call: Node) -> Interval:
    return ranges.of(call.args[0])


# Values with their places.


@_rule("sort", "topk", "kthvalue", "mode", "cummax", "cummin")
@_rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
@_rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "median", "nanmedian")
def _with_places(ranges: IntegerRanges, call: Node) -> list[Interval]:
    return [ranges.of(call.args[0]), (0, call.args[0].numel)][: len(call.outputs)]


@_rule("argmax", "argmin", "argsort", "searchsorted", "bucketize", "count_nonzero", "nonzero", "multinomial")
def _place(ranges: IntegerRanges, call: Node) -> Interval:
    return 0, _most_elements(call)


# Tensors made of numbers.


@_rule("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_strided", "empty_like", "new_empty")
@_rule("new_empty_strided", "ones", "ones_like", "new_ones", "eye", "one_hot")
def _bit(ranges: IntegerRanges, call: Node) -> Interval:
    return 0, 1


@_rule("full", "full_like", "new_full", "scalar_tensor")
def _filled(ranges: IntegerRanges, call: Node) -> Interval:
    return ranges.value(call["fill_value" if "fill_value" in argument_names(call.qualified_op) else "s"])


@_rule("arange")
def _counted(ranges: IntegerRanges, call: Node) -> Interval:
    ends = [call["end"], call["start"] if "start" in argument_names(call.qualified_op) else 0]
    return _join(ranges.value(end) for end in ends)


@_rule("randint", "randint_like")
def _drawn(ranges: IntegerRanges, call: Node) -> Interval:
    return _join(
        [ranges.value(call["low"] if "low" in argument_names(call.qualified_op) else 0), ranges.value(call["high"])]
    )


@_rule("randperm")
def _permutation(ranges: IntegerRanges, call: Node) -> Interval:
    return 0, call.output.numel


# Arithmetic.


@_rule("add", "sub", "subtract", "rsub")
def _sum(ranges: IntegerRanges, call: Node) -> Interval:
    a, b = ranges.value(call.args[0]), ranges.value(call.args[1])
    if _name(call.qualified_op) == "rsub":
        a, b = b, a
    scaled = _multiply(b, ranges.value(call["alpha"]))
    return _add(a, scaled if _name(call.qualified_op) == "add" else (-scaled[1], -scaled[0]))


@_rule("mul", "multiply")
def _product(ranges: IntegerRanges, call: Node) -> Interval:
    return _multiply(ranges.value(call.args[0]), ranges.value(call.args[1]))


@_rule("square")
def _squared(ranges: IntegerRanges, call: Node) -> Interval:
    return 0, _size(ranges.value(call.args[0])) ** 2


@_rule("addcmul")
def _product_added(ranges: IntegerRanges, call: Node) -> Interval:
    a, b, c = (ranges.value(argument) for argument in call.args[:3])
    return _add(a, _multiply(_multiply(b, c), ranges.value(call["value"])))


@_rule("neg", "negative")
def _negated(ranges: IntegerRanges, call: Node) -> Interval:
    low, high = ranges.value(call.args[0])
    return -high, -low


@_rule("abs", "absolute")
def _magnitude(ranges: IntegerRanges, call: Node) -> Interval:
    return 0, _size(ranges.value(call.args[0]))


@_rule("sign", "sgn")
def _sign(ranges: IntegerRanges, call: Node) -> Interval:
    return -1, 1


@_rule("floor_divide", "div", "divide")
def _quotient(ranges: IntegerRanges, call: Node) -> Interval:
    a, b = ranges.value(call.args[0]), ranges.value(call.args[1])
    if a[0] >= 0 and b[0] >= 0:
        return 0, a[1] // max(b[0], 1)
    return -_size(a), _size(a)


@_rule("remainder")
def _remainder(ranges: IntegerRanges, call: Node) -> Interval:
    a, b = ranges.value(call.args[0]), ranges.value(call.args[1])
    if a[0] >= 0 and b[0] >= 0:
        return 0, min(a[1], max(b[1] - 1, 0))
    return min(0, b[0] + 1), max(0, b[1] - 1)


@_rule("fmod")
def _truncated_remainder(ranges: IntegerRanges, call: Node) -> Interval:
    low, high = ranges.value(call.args[0])
    most = max(_size(ranges.value(call.args[1])) - 1, 0)
    return max(min(0, low), -most), min(max(0, high), most)


@_rule("pow")
def _power(ranges: IntegerRanges, call: Node) -> Interval:
    base, exponent = ranges.value(call.args[0]), ranges.value(call.args[1])
    return _at_most_power(base, exponent[1])


def _at_most_power(base: Interval, exponent: int) -> Interval:
    """Products of none to ``exponent`` values."""
    size = max(_size(base), 1)
    if size > 1 and exponent > 64:
        return dtype_interval(torch.int64)
    most: int = size ** max(exponent, 0)
    return (0 if base[0] >= 0 else -most), most


@_rule("maximum", "max", "clamp_min", "relu")
def _largest(ranges: IntegerRanges, call: Node) -> Interval | list[Interval]:
    if call.qualified_op.startswith("aten::max.dim"):
        return _with_places(ranges, call)
    a = ranges.value(call.args[0])
    if call.qualified_op == "aten::max":
        return a
    b = (0, 0) if _name(call.qualified_op) == "relu" else ranges.value(call.args[1])
    return max(a[0], b[0]), max(a[1], b[1])


@_rule("minimum", "min", "clamp_max")
def _smallest(ranges: IntegerRanges, call: Node) -> Interval | list[Interval]:
    if call.qualified_op.startswith("aten::min.dim"):
        return _with_places(ranges, call)
    a = ranges.value(call.args[0])
    if call.qualified_op == "aten::min":
        return a
    b = ranges.value(call.args[1])
    return min(a[0], b[0]), min(a[1], b[1])


@_rule("clamp", "clip", "hardtanh")
def _clamped(ranges: IntegerRanges, call: Node) -> Interval:
    low, high = ranges.value(call.args[0])
    if call.args[1] is not None:
        bound = ranges.value(call.args[1])
        low, high = max(low, bound[0]), max(high, bound[1])
    if call.args[2] is not None:
        bound = ranges.value(call.args[2])
        low, high = min(low, bound[0]), min(high, bound[1])
    return low, high


@_rule("sum", "cumsum")
def _total(ranges: IntegerRanges, call: Node) -> Interval:
    source: Value = call.args[0]
    if _name(call.qualified_op) == "cumsum":
        count = source.sizes[call["dim"]] if source.rank else 1
    else:
        count = source.numel // max(call.output.numel, 1)
    return _times(ranges.of(source), count)


@_rule("prod", "cumprod")
def _total_product(ranges: IntegerRanges, call: Node) -> Interval:
    source: Value = call.args[0]
    if _name(call.qualified_op) == "cumprod":
        return _at_most_power(ranges.of(source), source.sizes[call["dim"]] if source.rank else 1)
    return _at_most_power(ranges.of(source), source.numel // max(call.output.numel, 1))


@_rule("mm", "bmm", "mv", "dot", "matmul")
def _matrix_product(ranges: IntegerRanges, call: Node) -> Interval:
    left, right = call.args[:2]
    return _times(_multiply(ranges.of(left), ranges.of(right)), left.sizes[-1] if left.rank else 1)


@_rule(*(f"bitwise_{name}" for name in ("and", "or", "xor")), "__and__", "__or__", "__xor__")
def _bits_combined(ranges: IntegerRanges, call: Node) -> Interval:
    a, b = ranges.value(call.args[0]), ranges.value(call.args[1])
    bits = max((bound if bound >= 0 else ~bound).bit_length() for bound in (*a, *b))
    if a[0] >= 0 and b[0] >= 0:
        return 0, min(a[1], b[1]) if "and" in call.qualified_op else 2**bits - 1
    return -(2**bits), 2**bits - 1


@_rule("bitwise_not")
def _bits_flipped(ranges: IntegerRanges, call: Node) -> Interval:
    low, high = ranges.value(call.args[0])
    return ~high, ~low


@_rule("bitwise_left_shift", "__lshift__")
def _shifted_left(ranges: IntegerRanges, call: Node) -> Interval:
    a, count = ranges.value(call.args[0]), ranges.value(call.args[1])
    if not is_within(count, (0, 63)):
        return dtype_interval(torch.int64)
    return _multiply(a, (1 << count[0], 1 << count[1]))


@_rule("bitwise_right_shift", "__rshift__")
def _shifted_right(ranges: IntegerRanges, call: Node) -> Interval:
    low, high = ranges.value(call.args[0])
    return min(low, 0), max(high, 0)
