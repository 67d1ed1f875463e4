"""Kernels over batch, channels and up to three dimensions of space: what pooling and resampling share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.stream import Binding
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels, contiguous_strides
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    is_vector_run,
    load_mode,
    local_size,
    owns_storage,
    read_access,
    reading,
    spread,
    uses_texels,
    write_access,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import SpacePush

SPACE = 3


def as_volume(tensor: DeviceTensor, spatial: int) -> DeviceTensor:
    """The tensor as (N, C, D, H, W): missing dimensions of space, and the batch if there is none, have size 1."""
    sizes, strides = list(tensor.sizes), list(tensor.strides)
    if tensor.rank == spatial + 1:
        sizes, strides = [1, *sizes], [0, *strides]
    missing = SPACE - spatial
    return tensor.view([*sizes[:2], *[1] * missing, *sizes[2:]], [*strides[:2], *[0] * missing, *strides[2:]])


def channels_innermost(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of an (N, C, D, H, W) tensor whose pixels are runs of channels, each of whole vec4s."""
    n, c, *space = sizes
    batch, *steps = contiguous_strides((n, *space, aligned_channels(c)))
    return (batch, 1, *steps[:-1])


@dataclass(frozen=True)
class ChannelLanes:
    """How four channels are read and written at a time."""

    channels: int
    mode: LoadMode
    stores_vectors: bool


def channel_lanes(source: DeviceTensor, target: DeviceTensor) -> ChannelLanes:
    """The lanes of 5-D tensors."""
    channels = source.sizes[1]
    steps_in, steps_out = (_channels_innermost(tensor) for tensor in (source, target))
    mode = load_mode(source.offset, steps_in)
    rounded = -(-channels // VECTOR) * VECTOR
    extra = rounded - channels
    readable = steps_in[-1] == 1 and _has_room(source, extra)
    if mode == LoadMode.VECTOR and not readable:
        mode = LoadMode.SINGLES
    writable = is_vector_run(target.offset, steps_out) and _has_room(target, extra)
    writable = writable and all(step >= rounded for step in steps_out[:-1])
    if extra and writable and readable and owns_storage(target):
        channels = rounded
    return ChannelLanes(channels, mode, writable and channels % VECTOR == 0)


def _channels_innermost(tensor: DeviceTensor) -> tuple[int, ...]:
    """Strides of dimensions that matter, the channels' last."""
    others = [tensor.strides[d] for d in (0, 2, 3, 4) if tensor.sizes[d] > 1]
    return (*others, tensor.strides[1] if tensor.sizes[1] > 1 else 1)


def _has_room(tensor: DeviceTensor, extra: int) -> bool:
    return tensor.span[1] + extra <= tensor.storage.capacity


@replayable
def run_space_kernel(
    plan: Plan,
    shader: str,
    source: DeviceTensor,
    targets: Sequence[DeviceTensor],
    constants: Sequence[int],
    push: Callable[..., SpacePush],
    tables: Sequence[tuple[DeviceTensor, LoadMode]] = (),
    *,
    iterations: int,
    continues: bool = False,
) -> None:
    """Dispatch ``pool.comp`` or ``resample.comp`` on 5-D tensors.

    Args:
        plan: where the dispatch goes.
        shader: variant name without the suffix of texel buffers, or of integers of 64 bits.
        source: what is read.
        targets: what is written, all with the strides and offset of the first.
        constants: the kernel's own specialization constants.
        push: makes the push constants of what all such kernels have.
        tables: further inputs, and how they are read.
        iterations: how often an invocation goes round loops.
        continues: whether the kernel reads back what is in the targets.
    """
    lanes = channel_lanes(source, targets[0])
    operands = [(source, lanes.mode), *tables]
    long = any(tensor.is_long for tensor in (source, *targets))
    texels = not long and uses_texels(plan.device, operands)
    items = math.prod((targets[0].sizes[0], *targets[0].sizes[2:])) * -(-lanes.channels // VECTOR)
    if items == 0:
        return
    size = local_size(plan.device, items)
    sizes = (targets[0].sizes[0], lanes.channels, targets[0].sizes[2:])
    bindings: list[Binding] = [writing(target, reads=continues) for target in targets]
    bindings += [reading(tensor, mode, texels) for tensor, mode in operands]
    plan.dispatch(
        f"{shader}{'_long' if long else '_texels' if texels else ''}",
        bindings,
        spread(-(-items // size)),
        [size, read_access(source, lanes.mode), write_access(targets[0], lanes.stores_vectors), *constants],
        push(*sizes, offset_and_strides(source), offset_and_strides(targets[0])),
        iterations=iterations,
    )


def offset_and_strides(tensor: DeviceTensor) -> list[int]:
    """As the kernels take them."""
    return [tensor.offset, *tensor.strides]
