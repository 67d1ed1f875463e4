"""Which tensors that a segment computes stay on the device in arrays, where they have the elements of their dtypes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from mobopt import ir
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.engine.tensor import HELD_DTYPES


class ArrayOutputs(NamedTuple):
    """Outputs in arrays."""

    alone: set[ir.Value]
    """That the host doesn't read."""
    too: set[ir.Value]
    """That are returned on the CPU as well."""

    @property
    def all(self) -> set[ir.Value]:
        """Both."""
        return self.alone | self.too


def array_outputs(
    segment: Segment, gives_arrays: bool, in_arrays: Collection[int], wanted: Collection[int]
) -> ArrayOutputs:
    """The outputs of a segment that stay on the device.

    Args:
        segment: fused, since what nodes are replaced by takes their places among its outputs.
        gives_arrays: whether results stay on the device.
        in_arrays: numbers of its inputs that lie there.
        wanted: numbers of its outputs that are to be in arrays too, if they are returned on the CPU.
    """
    if not segment.is_complete:
        looked = set(segment.values_in(segment.result))
        carried = {value for value in segment.values_in(segment.carried) if may_stay(value) and value not in looked}
        return ArrayOutputs(carried, set())
    outputs = segment.graph.outputs
    if gives_arrays:
        return ArrayOutputs(set(outputs), set())
    too = {value for number, value in enumerate(outputs) if number in wanted and may_stay(value)}
    return ArrayOutputs(_kept_in_state(segment, in_arrays), too)


def may_stay(value: ir.Value) -> bool:
    """Whether what is carried from segment to segment stays on the device. Of int64 the host must see the elements to
    tell whether they fit."""
    return value.dtype in HELD_DTYPES and value.dtype != torch.int64 and value.numel > 0


def _kept_in_state(segment: Segment, in_arrays: Collection[int]) -> set[ir.Value]:
    """What is written to memories of the state that lie in arrays, and new values that are not returned too."""
    given = {segment.inputs[number] for number in in_arrays}
    kept = {value for target, value in segment.written.items() if target in given}
    kept |= set(segment.values_in(segment.updates)) - set(segment.values_in(segment.result))
    return {value for value in kept if value.dtype != torch.int64 and value.numel}
