"""Where the nodes of a straight line run, and where its tensors live: on the device, or else on the host."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.compile.integer_ranges import (
    WORD,
    IntegerRanges,
    Interval,
    dtype_interval,
    is_within,
)
from mobopt.runtimes.vulkan.engine.tensor import HELD_DTYPES, integer_bounds
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of, integers_of
from mobopt.runtimes.vulkan.lowerings.registry import takes_longs, why_unsupported

_CLASSES: tuple[Interval, ...] = (
    (-(2**8), 2**8 - 1),
    (-(2**20), 2**20 - 1),
    WORD,
    dtype_interval(torch.int64),
)
"""What the integers of an input are taken for: few classes, so that few plans are made. Masks and kinds of tokens;
tokens, places and pixels; what 32 bits can hold; anything."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Where calls run, if the inputs hold what is assumed of them."""

    reasons: Mapping[Node, str]
    """The calls that run on the CPU, and why."""
    ranges: IntegerRanges
    assumed: Mapping[Value, Interval]
    """What the integers of int64 inputs must be for it to be right."""
    long: frozenset[Value]
    """The int64 tensors that need 64 bits for an element and meet a call that runs on the device."""
    too_large: Container[Value] = ()
    """Tensors that no buffer of the device can hold."""

    def on_host(self, ref: Value) -> bool:
        """Whether a tensor lives on the host: the device has no elements of its dtype, it is too large, or it needs 64
        bits for an element and no call of the device reads or makes it."""
        if ref.dtype not in HELD_DTYPES or ref in self.too_large:
            return True
        return is_long(self.ranges, ref) and ref not in self.long


def integer_class(tensor: torch.Tensor) -> Interval:
    """The class of an int64 tensor's elements."""
    if tensor.numel() == 0:
        return _CLASSES[0]
    return class_of(integer_bounds(tensor))


def class_of(interval: Interval) -> Interval:
    """The class of integers that lie in an interval."""
    return next(limits for limits in _CLASSES if is_within(interval, limits))


def place_calls(
    calls: Sequence[Node],
    inputs: Mapping[Value, Interval],
    floats_fit: bool = True,
    too_large: Mapping[Value, str] = MappingProxyType({}),
    refused: Mapping[Value, str] = MappingProxyType({}),
) -> Placement:
    """Decide for each call.

    Args:
        calls: before any fusion.
        inputs: the classes of int64 inputs. More is allowed where it makes no difference, so that the plan lasts.
        floats_fit: whether floats that become int64 are taken to be small, which the device checks.
        too_large: tensors that no buffer of the device can hold, and why.
        refused: further tensors that the device can't compute, and why.
    """

    def why_not(call: Node) -> str | None:
        reasons = [too_large.get(ref) for ref in (*call.inputs, *call.outputs)]
        reasons += [refused.get(ref) for ref in call.outputs]
        return why_unsupported(call) or next(filter(None, reasons), None)

    unsupported = {call: reason for call in calls if (reason := why_not(call)) is not None}
    placement = _placed(calls, unsupported, inputs, floats_fit)
    for ref, given in inputs.items():
        for wider in (WORD, _CLASSES[1]):
            if not is_within(given, wider):
                continue
            other = _placed(calls, unsupported, {**placement.assumed, ref: wider}, floats_fit)
            if other.reasons.keys() == placement.reasons.keys() and other.long == placement.long:
                placement = other
                break
    return replace(placement, too_large=too_large)


def _placed(
    calls: Sequence[Node], unsupported: Mapping[Node, str], inputs: Mapping[Value, Interval], floats_fit: bool
) -> Placement:
    ranges = IntegerRanges(inputs)
    reasons: dict[Node, str] = {}
    for call in calls:
        reason = unsupported.get(call)
        ranges.record(call, floats_fit=floats_fit and reason is None)
        reason = reason or _why_too_wide(call, ranges)
        if reason is not None:
            reasons[call] = reason
    met = (ref for call in calls if call not in reasons for ref in (*call.inputs, *call.outputs))
    return Placement(reasons, ranges, inputs, frozenset(ref for ref in met if is_long(ranges, ref)))


def is_long(ranges: IntegerRanges, ref: Value) -> bool:
    """Whether a tensor is of int64 and may hold what 32 bits can't."""
    return ref.dtype == torch.int64 and not is_within(ranges.of(ref), WORD)


def _why_too_wide(call: Node, ranges: IntegerRanges) -> str | None:
    """None, or which integers of a call may not fit in what its kernel computes with."""
    for ref in (*call.inputs, *call.outputs):
        if is_long(ranges, ref) and not takes_longs(call):
            low, high = ranges.of(ref)
            values = "of any size" if (low, high) == dtype_interval(torch.int64) else f"from {low} to {high}"
            return f"int64 {values} may come, and the kernel's integers have 32 bits"
    dtype = None if expression_of(call.qualified_op) is None else integers_of(call)
    if dtype is None:
        return None
    for number in call.args:
        if isinstance(number, int) and not is_within((number, number), dtype_interval(dtype)):
            return f"{number} doesn't fit in {dtype}"
    return None
