"""Dispatching ``shaders/glsl/channel_moments.comp``: mean and variance of groups of channels, for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.device_costs import core_count
from mobopt.runtimes.vulkan.kernels.geometry import merged
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    element_form,
    reading,
    spread,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.shaders.enumerations import LoadMode, Spread
from mobopt.shaders.push_constants import ChannelMomentsPush

_INVOCATIONS, _MOST_INVOCATIONS = 256, 1024
"""Of a workgroup, about, and of one that has to be larger for the channels of a pixel."""
_SHARED_BYTES = 40
"""Of an invocation."""
_MOST_JOINING = 64
"""Invocations that join what was found of a group."""
_AHEAD = 8
"""As in the shader: pixels that an invocation reads at a time."""
_PARTS_OF_A_CORE = 2
_LEAST_ELEMENTS = 1 << 16
_FEW_CHANNELS = 32
"""Of a group; a walk over that alone leaves most of each cache line to others."""


@dataclass(frozen=True)
class ChannelGroups:
    """Images, in memory, of pixels whose channels are neighbours; pitches count elements."""

    images: int
    image_pitch: int
    pixels: int
    pixel_pitch: int
    groups: int
    channels: int
    """Of a group."""

    @property
    def width(self) -> int:
        """vec4s of a pixel."""
        return self.groups * self.channels // VECTOR


def channel_groups(source: DeviceTensor, dims: Sequence[int]) -> ChannelGroups | None:
    """How a tensor, of which ``dims`` are reduced, lies as groups of channels; None if it doesn't."""
    present = sorted((d for d in range(source.rank) if source.sizes[d] > 1), key=lambda d: source.strides[d])
    channels = source.sizes[present.pop(0)] if present and present[0] in dims and source.strides[present[0]] == 1 else 1
    if not present or present[0] in dims or source.strides[present[0]] != channels:
        return None
    groups = source.sizes[present.pop(0)]
    found = []
    for is_reduced in (False, True):
        left = [d for d in present if (d in dims) == is_reduced]
        nest = merged([source.sizes[d] for d in left], [[source.strides[d] for d in left]], order_by=0)
        if nest.rank != 1:
            return None
        found.append((nest.sizes[0], nest.strides[0][0]))
    (images, image_pitch), (pixels, pixel_pitch) = found
    image_pitch = image_pitch if images > 1 else 0
    whole = all(number % VECTOR == 0 for number in (groups * channels, source.offset, image_pitch, pixel_pitch))
    if not whole or pixels == 1 or pixel_pitch < groups * channels:
        return None
    return ChannelGroups(images, image_pitch, pixels, pixel_pitch, groups, channels)


def is_scattered(device: DeviceInfo, source: DeviceTensor, dims: Sequence[int]) -> bool:
    """Whether a walk over what is reduced, of one group after the other, is slower than two over all of memory."""
    found = channel_groups(source, dims)
    return found is not None and 1 < found.channels < _FEW_CHANNELS and _suits(device, source, found)


def _suits(device: DeviceInfo, source: DeviceTensor, found: ChannelGroups) -> bool:
    invocations = _invocations(found.width)
    limits = device.limits
    most = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0], _MOST_INVOCATIONS)
    return (
        not device.is_cpu
        and source.numel >= _LEAST_ELEMENTS
        and invocations <= most
        and _SHARED_BYTES * invocations <= device.shared_memory_bytes
        and _rounds(found, invocations, _parts(device, found, invocations)) <= USUAL_ITERATIONS
    )


def _invocations(width: int) -> int:
    return width * max(1, _INVOCATIONS // width)


def _parts(device: DeviceInfo, found: ChannelGroups, invocations: int) -> int:
    """Workgroups that share an image."""
    rows = invocations // found.width
    most = -(-found.pixels // (rows * _AHEAD))
    return max(1, min(_PARTS_OF_A_CORE * core_count(device) // found.images, most))


def _is_dense(target: DeviceTensor, source: DeviceTensor, dims: Sequence[int]) -> bool:
    """Whether what is kept of a tensor lies in the same order, without gaps."""
    kept = [d for d in range(source.rank) if d not in dims and source.sizes[d] > 1]
    step = 1
    for d in sorted(kept, key=lambda d: source.strides[d]):
        if target.strides[d] != step:
            return False
        step *= source.sizes[d]
    return True


def _rounds(found: ChannelGroups, invocations: int, parts: int) -> int:
    """How often an invocation goes round the loops, at most."""
    rows, joining = invocations // found.width, _joining(found.groups, invocations)
    pixels = -(-found.pixels // (parts * rows * _AHEAD)) + 1
    joined = -(-rows * found.channels // joining) + -(-parts // (_AHEAD * joining)) + 2 * joining.bit_length()
    return pixels + joined * -(-found.groups // (invocations // joining))


def _joining(groups: int, invocations: int) -> int:
    """The largest power of two of which all groups can have as many at once, if there is one."""
    return 1 << (min(max(1, invocations // groups), _MOST_JOINING).bit_length() - 1)


def append_channel_moments(
    plan: Plan,
    source: DeviceTensor,
    dims: Sequence[int],
    targets: tuple[DeviceTensor, DeviceTensor],
    kind: Spread,
    narrower: float,
    eps: float,
) -> bool:
    """Append the dispatch of the mean over ``dims``, and of what ``kind`` names, where a GPU has use for it.

    Args:
        plan: where the dispatch goes.
        source: what is reduced.
        dims: the reduced dimensions.
        targets: float32; all with the strides of the first.
        kind: what the second target is: the variance, or what is made of it.
        narrower: what sums of squares are multiplied by.
        eps: what is added to the variance.

    Returns:
        False, with nothing done, where the tensor doesn't lie so, or the device is better off otherwise.
    """
    found = channel_groups(source, dims)
    if found is None or not _suits(plan.device, source, found) or not _is_dense(targets[0], source, dims):
        return False
    invocations = _invocations(found.width)
    parts = _parts(plan.device, found, invocations)
    rows = invocations // found.width
    part_pixels = -(-found.pixels // (parts * rows)) * rows
    parts = -(-found.pixels // part_pixels)
    between = plan.empty((found.images * parts * found.groups, 2) if parts > 1 else (1, 2))
    plan.dispatch(
        "channel_moments",
        [
            *(writing(target, by_element=True) for target in targets),
            reading(source, LoadMode.VECTOR, texels=False),
            bind(between, writes=True, reads=True),
            plan.counters(found.images if parts > 1 else 1),
        ],
        spread(found.images * parts),
        (
            *(invocations, found.width, found.channels, parts, _joining(found.groups, invocations)),
            *(element_form(source), write_access(targets[0], whole=False), kind),
        ),
        ChannelMomentsPush(
            images=found.images,
            pixels=found.pixels,
            part_pixels=part_pixels,
            data_start=source.offset // VECTOR,
            data_image=found.image_pitch // VECTOR,
            data_pitch=found.pixel_pitch // VECTOR,
            narrower=narrower,
            added=eps,
        ),
        iterations=_rounds(found, invocations, parts),
    )
    return True
