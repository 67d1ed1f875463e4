"""Concatenations of channels without copies: what makes a part writes it where the whole will be.

In channels_last memory the concatenation of tensors along channels is one tensor whose pixels hold the parts side by
side, so a part is a slice of it, with the pitch of the whole. Where one concatenation begins with all the parts of
another (each layer of a DenseNet), both share one buffer, and the shorter is a slice of the longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mobopt.ir import Node, Value
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import CHANNEL_ALIGNMENT, DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.concat import slices_of


@dataclass(eq=False)
class Concatenation:
    """A buffer that holds parts side by side; each of the calls that share it takes a first few of them."""

    parts: tuple[Value, ...]
    result: Value
    """Of the call that takes all of them."""
    places: list[DeviceTensor] = field(default_factory=list)
    _filled: set[Value] = field(default_factory=set)

    def reserve(self, plan: Plan) -> None:
        """Make the buffer, and let what makes a part know its place."""
        channels = [part.sizes[1] for part in self.parts]
        whole = plan.own_result(self.result)
        self.places = slices_of(whole, 1, channels)
        for part, place in zip(self.parts, self.places, strict=True):
            plan.reserve(part, place)

    def lower(self, plan: Plan, call: Node) -> DeviceTensor:
        """The result of one of the calls; the parts that were not made in place are copied, each once."""
        for part, place in zip(call["tensors"], self.places, strict=False):
            made = plan.tensor(part)
            if made.storage is not place.storage and part not in self._filled:
                strided_copy(plan, made, place)
            self._filled.add(part)
        first = self.places[0]
        return first.view(call.output.sizes, first.strides)


def find_concatenations(calls: Sequence[Node]) -> dict[Node, Concatenation]:
    """The calls that can share a buffer with their parts, each with that buffer; a tensor is part of one at most."""
    found: dict[Node, Concatenation] = {}
    taken: set[Value] = set()
    candidates = [call for call in calls if _can_share(call)]
    for call in sorted(candidates, key=lambda call: -len(call["tensors"])):
        parts = tuple(call["tensors"])
        longer = next((other for other in found.values() if other.parts[: len(parts)] == parts), None)
        if longer is None and taken.isdisjoint(parts):
            longer = Concatenation(parts, call.output)
            taken.update(parts)
        if longer is not None:
            found[call] = longer
    return found


def _can_share(call: Node) -> bool:
    """Whether a call joins channels of images, each part but the last in whole vec4s."""
    if not has_trait(call.qualified_op, Trait.CONCATENATION) or call.output.rank != 4:
        return False
    parts: list[Value] = list(call["tensors"])
    images = all(part.rank == 4 and part.elements is None and part.dtype == call.output.dtype for part in parts)
    if not images or not call.output.dtype.is_floating_point or normalized_dim(call["dim"], 4) != 1:
        return False
    whole = all(part.sizes[1] % CHANNEL_ALIGNMENT == 0 for part in parts[:-1])
    return whole and len(set(parts)) == len(parts) and all(part.numel for part in parts)
