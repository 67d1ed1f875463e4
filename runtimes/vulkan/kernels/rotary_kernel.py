"""Dispatching ``shaders/glsl/rotary.comp``: rotary positions, and rows that go into copies of caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
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
_BUFFERS = 16
"""Storage buffers of the kernel, at most: the last two where it waits for others by a counter."""
_INVOCATIONS = 512
"""Of a workgroup on a GPU: few workgroups may wait by a counter."""


@dataclass(frozen=True, eq=False)
class RotaryJob:
    """What becomes of rows; all tensors are (batches, heads, rows, elements), with dense rows of whole vec4s."""

    source: DeviceTensor
    result: DeviceTensor
    """Dense."""
    is_turned: bool = False
    """Whether rotary positions are added."""
    cache: DeviceTensor | None = None
    """Of the sizes of the result, dense. The result is a copy of it, but for the one row of the source. If it is the
    result itself, nothing is copied."""
    wraps: bool = False
    """Whether rows of the cache below zero count from its end."""

    @property
    def is_in_place(self) -> bool:
        """Whether a cache is written to."""
        return self.cache is not None and self.cache.storage is self.result.storage

    @property
    def quads(self) -> int:
        """vec4s that are computed."""
        written = self.source if self.is_in_place else self.result
        return math.prod(written.sizes) // VECTOR

    @property
    def kind(self) -> int:
        """As the shader calls it."""
        return int(self.is_turned) | 2 * int(self.cache is not None) | 4 * int(self.is_in_place) | 8 * int(self.wraps)


def may_rotate(device: DeviceInfo) -> bool:
    """Whether the kernel is within a device's limits."""
    return device.limits.max_storage_buffers >= _BUFFERS


def rotate(
    plan: Plan,
    jobs: Sequence[RotaryJob],
    tables: Sequence[DeviceTensor],
    place: DeviceTensor | None = None,
    of_neighbours: bool = False,
) -> None:
    """Append the dispatch of up to three jobs of as many batches and elements of a row. What undoes those that write to
    caches goes to the stream's ``undo``.

    Args:
        plan: where it goes.
        jobs: what is computed.
        tables: cosines and sines (batches, 1, rows, elements that are turned, the first ones of a row), whose strides
            may be 0; none if nothing is turned.
        place: the row of caches that is replaced, of int32; the run's flag is raised where caches have no such row.
        of_neighbours: whether neighbours are turned, in place of halves.
    """
    journal = journal_of(plan, jobs)
    _rotate(plan, jobs, tables, place, journal, of_neighbours)
    if journal is not None:
        undo_rows(plan, jobs, place, journal)


def journal_of(plan: Plan, jobs: Sequence[RotaryJob]) -> DeviceTensor | None:
    """Where the rows lie that jobs write over, those of one job after the other, dense; None if there are none."""
    is_needed = any(job.is_in_place for job in jobs)
    return plan.empty((sum(job.quads for job in jobs) * VECTOR,)) if is_needed else None


def undo_rows(plan: Plan, jobs: Sequence[RotaryJob], place: DeviceTensor | None, journal: DeviceTensor) -> None:
    """Let the stream's ``undo`` put back what jobs have written over, from their journal."""
    first, undoing = 0, []
    for job in jobs:
        if job.is_in_place:
            sizes = job.source.sizes
            old = DeviceTensor(journal.storage, journal.dtype, sizes, contiguous_strides(sizes), first)
            undoing.append(RotaryJob(old, job.result, cache=job.result, wraps=job.wraps))
        first += VECTOR * job.quads
    _rotate(plan, undoing, (), place, journal_of(plan, undoing), False)
    undo = plan.stream.operations.pop()
    assert isinstance(undo, Dispatch)
    plan.stream.undo.append(undo)


@replayable
def _rotate(
    plan: Plan,
    jobs: Sequence[RotaryJob],
    tables: Sequence[DeviceTensor],
    place: DeviceTensor | None,
    journal: DeviceTensor | None,
    of_neighbours: bool,
) -> None:
    first = jobs[0]
    cosines, sines = tables or (first.source, first.source)
    places = first.source if place is None else place
    sources, results = [job.source for job in jobs], [job.result for job in jobs]
    caches = [job.source if job.cache is None or job.is_in_place else job.cache for job in jobs]
    missing = MOST_JOBS - len(jobs)
    read = [*sources, *[sources[0]] * missing, *caches, *[caches[0]] * missing, cosines, sines]
    texels = uses_texels(plan.device, [(tensor, LoadMode.VECTOR) for tensor in read])
    quads = sum(job.quads for job in jobs)
    size = local_size(plan.device, quads) if plan.device.is_cpu else plan.device.workgroup(_INVOCATIONS)
    forms = [
        sum(int(element_form(tensor)) << 3 * number for number, tensor in enumerate(three))
        for three in zip(sources, caches, results, strict=True)
    ]
    spare = bind(results[0], reads=False)
    plan.dispatch(
        f"rotary{'_texels' if texels else ''}",
        [
            *(writing(job.result, reads=job.is_in_place) for job in jobs),
            *(spare for _ in range(missing)),
            *(reading(tensor, LoadMode.VECTOR, texels) for tensor in read),
            reading(places, LoadMode.SINGLES, texels),
            spare if place is None else plan.stream.raised_by(),
            spare if journal is None else writing(journal),
        ],
        spread(-(-quads // size)),
        [
            *(size, first.result.sizes[-1] // VECTOR),
            *(*(job.kind for job in jobs), *[0] * missing),
            *(*forms, *[forms[0]] * missing),  # of what stands in for them, as texels have a format
            *(int(element_form(cosines)), int(element_form(sines)), cosines.sizes[-1] // VECTOR, int(of_neighbours)),
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
