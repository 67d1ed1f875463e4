"""Concatenations of channels, and of tokens, without copies: what makes a part writes it where the whole will be.

In channels_last memory the concatenation of tensors along channels is one tensor whose pixels hold the parts side by
side, so a part is a slice of it, with the pitch of the whole. Where one concatenation begins with all the parts of
another (each layer of a DenseNet), both share one buffer, and the shorter is a slice of the longer.

Tokens (batch, tokens, channels) lie one after the other; patches among them are an image in channels_last memory, which
a convolution makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mobopt.ir import Node, Value
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.tokens import views_of
from mobopt.runtimes.vulkan.engine.tensor import CHANNEL_ALIGNMENT, DeviceTensor
from mobopt.runtimes.vulkan.kernels.copies import strided_copy
from mobopt.runtimes.vulkan.kernels.epilogue import parts_of
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim, view_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.views import permuted
from mobopt.runtimes.vulkan.lowerings.concat import slices_of
from mobopt.runtimes.vulkan.lowerings.views import inverted, permutation_of


@dataclass(eq=False)
class Concatenation:
    """A buffer that holds parts side by side; each of the calls that share it takes a first few of them."""

    parts: tuple[Value, ...]
    maker: Node
    """The call that takes all of them."""
    places: list[DeviceTensor] = field(default_factory=list)
    _filled: set[Value] = field(default_factory=set)

    @property
    def result(self) -> Value:
        """Of the call that takes all of them."""
        return self.maker.output

    @property
    def joins_tokens(self) -> bool:
        """Whether parts are tokens; they are images otherwise."""
        return self.result.rank == 3

    def reserve(self, plan: Plan) -> None:
        """Make the buffer, and let what makes a part know its place."""
        lengths = [part.sizes[1] for part in self.parts]
        whole = plan.own_result(self.result)
        self.places = slices_of(whole, 1, lengths)
        for part, place in zip(self.parts, self.places, strict=True):
            root, views = views_of(part, self.maker) if self.joins_tokens else (part, [])
            seen = _seen_before(views, place)
            if root.elements is None and seen is not None:
                plan.reserve(root, seen)

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
            longer = Concatenation(parts, call)
            taken.update(parts)
        if longer is not None:
            found[call] = longer
    return found


def _seen_before(views: Sequence[Node], place: DeviceTensor) -> DeviceTensor | None:
    """What becomes ``place`` by views; None if no strides say it."""
    for view in reversed(views):
        order = permutation_of(view)
        if order:
            place = permuted(place, inverted(order))
            continue
        sizes = view.args[0].sizes
        strides = view_strides(place.sizes, place.strides, sizes)
        if strides is None:
            return None
        place = place.view(sizes, strides)
    return place


def _can_share(call: Node) -> bool:
    """Whether a call joins channels of images, each part but the last in whole vec4s, or tokens of whole vec4s."""
    if not has_trait(call.qualified_op, Trait.CONCATENATION) or not call.output.dtype.is_floating_point:
        return False
    parts: list[Value] = list(call["tensors"])
    rank = call.output.rank
    alike = all(part.rank == rank and part.dtype == call.output.dtype and part.numel for part in parts)
    if not alike or len(set(parts)) < len(parts) or normalized_dim(call["dim"], rank) != 1:
        return False
    if rank == 3:
        return call.output.sizes[2] % CHANNEL_ALIGNMENT == 0 and any(_is_image(part, call) for part in parts)
    is_made = all(part.elements is None for part in parts)
    return rank == 4 and is_made and all(part.sizes[1] % CHANNEL_ALIGNMENT == 0 for part in parts[:-1])


def _is_image(part: Value, call: Node) -> bool:
    """Whether a part shows an image that a convolution makes, or what is computed of one."""
    root, _ = views_of(part, call)
    makers = [] if root.producer is None or root.rank != 4 else parts_of(root.producer)
    return any(has_trait(each.qualified_op, trait) for each in makers for trait in _MAKERS)


_MAKERS = (Trait.CONVOLUTION, Trait.ELEMENTWISE)
