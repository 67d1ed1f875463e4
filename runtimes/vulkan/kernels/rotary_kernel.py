"""Dispatching ``shaders/glsl/rotary.comp``: rotary positions, and rows that go into copies of caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.kernel_access import (
    VECTOR,
    element_form,
    local_size,
    reading,
    spread,
    uses_texels,
    writing,
)
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import RotaryPush

MOST_JOBS = 3
_BUFFERS = 15
"""Storage buffers of the kernel, at most: the last two where it waits for others by a counter."""
_INVOCATIONS = 512
"""Of a workgroup on a GPU: few workgroups may wait by a counter."""


@dataclass(frozen=True, eq=False)
class RotaryJob:
    """What becomes of rows; all tensors are (batches, heads, rows, elements), with dense rows of whole vec4s."""

    source: DeviceTensor
    result: DeviceTensor
    """Dense."""
    is_turned: bool
    """Whether rotary positions are added."""
    cache: DeviceTensor | None = None
    """Of the sizes of the result, dense. The result is a copy of it, but for the one row of the source."""


def may_rotate(device: DeviceInfo) -> bool:
    """Whether the kernel is within a device's limits."""
    return device.limits.max_storage_buffers >= _BUFFERS


@replayable
def rotate(
    plan: Plan, jobs: Sequence[RotaryJob], tables: Sequence[DeviceTensor], place: DeviceTensor | None = None
) -> None:
    """Append the dispatch of up to three jobs of as many batches and elements of a row.

    Args:
        plan: where it goes.
        jobs: what is computed.
        tables: cosines and sines (batches, 1, rows, elements), whose strides may be 0; none if nothing is turned.
        place: the row of caches that is replaced, of int32; the run's flag is raised where caches have no such row.
    """
    first = jobs[0]
    cosines, sines = tables or (first.source, first.source)
    places = first.source if place is None else place
    sources, results = [job.source for job in jobs], [job.result for job in jobs]
    caches = [job.cache or job.source for job in jobs]
    missing = MOST_JOBS - len(jobs)
    read = [*sources, *[sources[0]] * missing, *caches, *[caches[0]] * missing, cosines, sines]
    texels = uses_texels(plan.device, [(tensor, LoadMode.VECTOR) for tensor in read])
    quads = sum(math.prod(result.sizes) // VECTOR for result in results)
    size = local_size(plan.device, quads) if plan.device.is_cpu else plan.device.workgroup(_INVOCATIONS)
    kinds = [int(job.is_turned) | 2 * int(job.cache is not None) for job in jobs]
    forms = [
        sum(int(element_form(tensor)) << 3 * number for number, tensor in enumerate(three))
        for three in zip(sources, caches, results, strict=True)
    ]
    plan.dispatch(
        f"rotary{'_texels' if texels else ''}",
        [
            *(writing(result) for result in results),
            *(bind(results[0], reads=False) for _ in range(missing)),
            *(reading(tensor, LoadMode.VECTOR, texels) for tensor in read),
            reading(places, LoadMode.SINGLES, texels),
            bind(results[0], reads=False) if place is None else plan.stream.raised_by(),
        ],
        spread(-(-quads // size)),
        [
            *(size, first.result.sizes[-1] // VECTOR),
            *(*kinds, *[0] * missing),
            *(*forms, *[0] * missing),
            *(int(element_form(cosines)), int(element_form(sines))),
        ],
        _push_constants(jobs, cosines, sines, places),
        iterations=1,
    )


def _push_constants(
    jobs: Sequence[RotaryJob], cosines: DeviceTensor, sines: DeviceTensor, places: DeviceTensor
) -> RotaryPush:
    def each(numbers: Sequence[int]) -> list[int]:
        return [*numbers, *[0] * (MOST_JOBS - len(numbers))]

    def of_sources(dimension: int) -> list[int]:
        return each([job.source.strides[dimension] // VECTOR for job in jobs])

    def rows(table: DeviceTensor) -> list[int]:
        return [number // VECTOR for number in (table.offset, table.strides[0], table.strides[2])]

    return RotaryPush(
        batches=jobs[0].result.sizes[0],
        heads=each([job.result.sizes[1] for job in jobs]),
        rows=each([job.result.sizes[2] for job in jobs]),
        source_offset=each([job.source.offset // VECTOR for job in jobs]),
        source_batch=of_sources(0),
        source_head=of_sources(1),
        source_row=of_sources(2),
        cache_offset=each([0 if job.cache is None else job.cache.offset // VECTOR for job in jobs]),
        result_offset=each([job.result.offset // VECTOR for job in jobs]),
        cosines_place=rows(cosines),
        sines_place=rows(sines),
        places_offset=places.offset,
    )
