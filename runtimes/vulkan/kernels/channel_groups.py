"""Dispatching ``channel_moments.comp`` and ``normalize_channels.comp``: norms of groups of channels in the order of
memory, for GPUs. Kernels that walk one group after the other read a few channels of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import USUAL_ITERATIONS, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import Activation
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
from mobopt.runtimes.vulkan.kernels.result_finish import finish_constants
from mobopt.shaders.enumerations import LoadMode, Spread
from mobopt.shaders.reduction_push import ChannelMomentsPush, NormalizeChannelsPush

_INVOCATIONS, _MOST_INVOCATIONS = 512, 1024
"""Of a workgroup, about, and of one that has to be larger for the channels of a pixel."""
_SHARED_BYTES = 40
"""Of an invocation."""
_MOST_JOINING = 64
"""Invocations that join what was found of a group."""
_MOMENTS_AHEAD, _NORMS_AHEAD = 8, 4
"""As in the shaders: pixels that an invocation reads at a time."""
_LEAST_ELEMENTS = 1 << 16
_FEW_CHANNELS = 32
"""Of a group; a walk over that alone leaves most of each cache line to others."""


@dataclass(frozen=True)
class ChannelGroups:
    """Images, in memory, of pixels whose channels are neighbours."""

    images: int
    pixels: int
    groups: int
    channels: int
    """Of a group."""
    pitches: tuple[tuple[int, int], ...]
    """For each tensor, from image to image and from pixel to pixel, in vec4s."""

    @property
    def width(self) -> int:
        """vec4s of a pixel."""
        return self.groups * self.channels // VECTOR


@dataclass(frozen=True)
class _Walk:
    """How workgroups share images: each has whole pixels side by side, and an invocation four channels of some."""

    invocations: int
    rows: int
    """Pixels side by side."""
    parts: int
    """Of an image."""
    part_pixels: int

    @classmethod
    def of(cls, device: DeviceInfo, found: ChannelGroups, ahead: int, parts_of_a_core: int) -> _Walk:
        """Parts of as many pixels as invocations read at a time, or of more if so many would be too many."""
        rows = max(1, min(_INVOCATIONS, device.shared_memory_bytes // _SHARED_BYTES) // found.width)
        most = -(-found.pixels // (rows * ahead))
        parts = max(1, min(parts_of_a_core * core_count(device) // found.images, most))
        part_pixels = -(-found.pixels // (parts * rows)) * rows
        return cls(found.width * rows, rows, -(-found.pixels // part_pixels), part_pixels)


def channel_groups(tensors: Sequence[DeviceTensor], dims: Sequence[int]) -> ChannelGroups | None:
    """How tensors of equal sizes lie as groups of channels, over which and over pixels, ``dims``, something is found;
    None if they don't."""
    first = tensors[0]
    present = sorted((d for d in range(first.rank) if first.sizes[d] > 1), key=lambda d: first.strides[d])
    channels = 1
    if present and present[0] in dims and all(tensor.strides[present[0]] == 1 for tensor in tensors):
        channels = first.sizes[present.pop(0)]
    if not present or present[0] in dims or any(tensor.strides[present[0]] != channels for tensor in tensors):
        return None
    groups = first.sizes[present.pop(0)]
    nests = []
    for is_reduced in (False, True):
        left = [d for d in present if (d in dims) == is_reduced]
        nest = merged([first.sizes[d] for d in left], [[tensor.strides[d] for d in left] for tensor in tensors])
        if nest.rank != 1:
            return None
        nests.append((nest.sizes[0], [steps[0] if left else 0 for steps in nest.strides]))
    (images, image_steps), (pixels, pixel_steps) = nests
    steps = [*image_steps, *pixel_steps, *(tensor.offset for tensor in tensors), groups * channels]
    if pixels == 1 or any(step % VECTOR for step in steps) or min(pixel_steps) < groups * channels:
        return None
    pitches = tuple((a // VECTOR, b // VECTOR) for a, b in zip(image_steps, pixel_steps, strict=True))
    return ChannelGroups(images, pixels, groups, channels, pitches)


def is_scattered(device: DeviceInfo, source: DeviceTensor, dims: Sequence[int]) -> bool:
    """Whether a walk over what is reduced, of one group after the other, is slower than two over all of memory."""
    found = channel_groups([source], dims)
    return found is not None and 1 < found.channels < _FEW_CHANNELS and _suits(device, source, found)


def _suits(device: DeviceInfo, source: DeviceTensor, found: ChannelGroups) -> bool:
    walk = _Walk.of(device, found, _MOMENTS_AHEAD, 1)
    limits = device.limits
    most = min(limits.max_compute_work_group_invocations, limits.max_compute_work_group_size[0], _MOST_INVOCATIONS)
    return (
        not device.is_cpu
        and source.numel >= _LEAST_ELEMENTS
        and walk.invocations <= most
        and _SHARED_BYTES * walk.invocations <= device.shared_memory_bytes
        and _rounds(found, walk) <= USUAL_ITERATIONS
    )


def _joining(found: ChannelGroups, walk: _Walk) -> int:
    """The largest power of two of which all groups can have as many invocations at once, if there is one."""
    return 1 << (min(max(1, walk.invocations // found.groups), _MOST_JOINING).bit_length() - 1)


def _rounds(found: ChannelGroups, walk: _Walk) -> int:
    """How often an invocation goes round the loops for moments, at most."""
    joining = _joining(found, walk)
    pixels = -(-walk.part_pixels // (walk.rows * _MOMENTS_AHEAD)) + 1
    joined = -(-walk.rows * found.channels // joining) + -(-walk.parts // (_MOMENTS_AHEAD * joining))
    return pixels + (joined + 2 * joining.bit_length()) * -(-found.groups // (walk.invocations // joining))


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
    found = channel_groups([source], dims)
    if found is None or not _suits(plan.device, source, found) or not _is_dense(targets[0], source, dims):
        return False
    walk = _Walk.of(plan.device, found, _MOMENTS_AHEAD, 1)
    between = plan.empty((found.images * walk.parts * found.groups, 2) if walk.parts > 1 else (1, 2))
    plan.dispatch(
        "channel_moments",
        [
            *(writing(target, by_element=True) for target in targets),
            reading(source, LoadMode.VECTOR, texels=False),
            bind(between, writes=True, reads=True),
            plan.counters(found.images if walk.parts > 1 else 1),
        ],
        spread(found.images * walk.parts),
        (
            *(walk.invocations, found.width, found.channels, walk.parts, _joining(found, walk)),
            *(element_form(source), write_access(targets[0], whole=False), kind),
        ),
        ChannelMomentsPush(
            **_places(found, walk, source),
            narrower=narrower,
            added=eps,
        ),
        iterations=_rounds(found, walk),
    )
    return True


def _places(found: ChannelGroups, walk: _Walk, source: DeviceTensor) -> dict[str, int]:
    """What both kernels have of their push constants."""
    image_pitch, pixel_pitch = found.pitches[0]
    return {
        "images": found.images,
        "pixels": found.pixels,
        "part_pixels": walk.part_pixels,
        "data_start": source.offset // VECTOR,
        "data_image": image_pitch,
        "data_pitch": pixel_pitch,
    }


def _is_dense(target: DeviceTensor, source: DeviceTensor, dims: Sequence[int]) -> bool:
    """Whether what is kept of a tensor lies in the same order, without gaps."""
    kept = [d for d in range(source.rank) if d not in dims and source.sizes[d] > 1]
    step = 1
    for d in sorted(kept, key=lambda d: source.strides[d]):
        if target.strides[d] != step:
            return False
        step *= source.sizes[d]
    return target.offset == 0


def append_normalized_channels(
    plan: Plan,
    source: DeviceTensor,
    target: DeviceTensor,
    dims: Sequence[int],
    moments: tuple[DeviceTensor, DeviceTensor],
    factors: tuple[DeviceTensor | None, DeviceTensor | None],
    finish: Activation,
) -> bool:
    """Append the dispatch of ``(source - mean) * reciprocal deviation * weight + bias``.

    Args:
        plan: where the dispatch goes.
        source: what is normalised.
        target: of the same sizes.
        dims: over which the moments are.
        moments: mean and reciprocal deviation, float32, whose sizes along ``dims`` are 1.
        factors: weight and bias, broadcast to the source's sizes, of the same elements for all images and pixels.
        finish: what is done before it is stored.

    Returns:
        False, with nothing done, where tensors don't lie so, or the device is better off otherwise.
    """
    found = channel_groups([source, target], dims)
    if found is None or not _suits(plan.device, source, found):
        return False
    given = [tensor for tensor in factors if tensor is not None]
    if not all(_is_dense(tensor, source, dims) for tensor in moments) or not all(map(_is_vector, given)):
        return False
    walk = _Walk.of(plan.device, found, 2 * _NORMS_AHEAD, 4)
    operands = [source, *(source if tensor is None else tensor for tensor in factors)]
    forms = sum(element_form(tensor) << 3 * place for place, tensor in enumerate((*operands, target)))
    starts = [0 if tensor is None else tensor.offset // VECTOR for tensor in factors]
    _, (result_image, result_pitch) = found.pitches
    plan.dispatch(
        f"normalize_channels{'' if finish.only_rounds else '_activated'}",
        [
            writing(target),
            *(reading(tensor, LoadMode.VECTOR, texels=False) for tensor in operands),
            *(reading(tensor, LoadMode.SINGLES, texels=False) for tensor in moments),
        ],
        spread(found.images * walk.parts),
        (
            *(walk.invocations, found.width, found.channels, walk.parts),
            *(*(int(tensor is not None) for tensor in factors), forms, *finish_constants(finish)),
        ),
        NormalizeChannelsPush(
            **_places(found, walk, source),
            result_start=target.offset // VECTOR,
            result_image=result_image,
            result_pitch=result_pitch,
            weight_start=starts[0],
            bias_start=starts[1],
        ),
        iterations=-(-walk.part_pixels // (walk.rows * _NORMS_AHEAD)) + 1,
    )
    return True


def _is_vector(tensor: DeviceTensor) -> bool:
    """Whether the elements of what is broadcast are a vector of whole vec4s, in the order of its dimensions."""
    step = 1
    for size, stride in zip(reversed(tensor.sizes), reversed(tensor.strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return tensor.offset % VECTOR == 0
