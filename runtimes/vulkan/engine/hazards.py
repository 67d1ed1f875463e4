"""Which operations must wait for earlier ones: hazards between ranges of bytes, and the barriers that they need.

Ranges are of physical memory, so storages that share bytes of the arena are told apart by where they lie, not by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage

Location = tuple[int, int]
"""A number that stands for a buffer, and the byte in it where a storage starts."""
GpuOperation = Dispatch | Copy


@dataclass(frozen=True)
class Barrier:
    """What must have finished before the next operation starts."""

    after_writes: bool
    """Whether earlier writes must be made visible (RAW, WAW); else it only orders execution (WAR)."""


_LINE_BYTES = 128
"""What a cache may read at once."""
_Range = tuple[int, int, int]
"""Bytes of a buffer: what stands for it, the first, and one past the last."""


def plan_barriers(operations: Sequence[GpuOperation], locate: Callable[[Storage], Location]) -> list[Barrier | None]:
    """The barrier that each operation needs before it, or None.

    A barrier waits for everything before it, so after one only later operations can be in conflict.
    """
    barriers: list[Barrier | None] = []
    reads: list[_Range] = []
    writes: list[_Range] = []
    for operation in operations:
        new_reads: list[_Range] = []
        new_writes: list[_Range] = []
        for binding in _bindings(operation):
            touched = _range(binding, locate)
            if binding.reads:
                new_reads.append(touched)
            if binding.writes:
                new_writes.append(touched)
        after_writes = _conflict(new_reads, writes) or _conflict(new_writes, writes)
        if after_writes or _conflict(new_writes, reads):
            # Earlier writes that nothing needs yet are flushed with it: there is no later barrier to do so.
            barriers.append(_FLUSHING if after_writes or writes else _ORDERING)
            reads, writes = [], []
        else:
            barriers.append(None)
        reads += new_reads
        writes += new_writes
    return barriers


def reads_rewritten(
    later: Sequence[GpuOperation], earlier: Sequence[GpuOperation], locate: Callable[[Storage], Location]
) -> bool:
    """Whether some operations read lines of memory of which earlier ones both read and write parts.

    Of such lines a core's cache may have what was there before they were written, although it was empty when the
    earlier operations began.
    """
    read = [_lines(binding, locate) for operation in earlier for binding in _bindings(operation) if binding.reads]
    written = [_lines(binding, locate) for operation in earlier for binding in _bindings(operation) if binding.writes]
    rewritten = [
        (buffer, max(start, begin), min(end, stop))
        for buffer, start, end in read
        for other, begin, stop in written
        if buffer == other and start < stop and begin < end
    ]
    wanted = [_lines(binding, locate) for operation in later for binding in _bindings(operation) if binding.reads]
    return _conflict(wanted, rewritten)


_FLUSHING, _ORDERING = Barrier(after_writes=True), Barrier(after_writes=False)


def _bindings(operation: GpuOperation) -> Sequence[Binding]:
    return operation.bindings if isinstance(operation, Dispatch) else (operation.source, operation.target)


def _range(binding: Binding, locate: Callable[[Storage], Location]) -> _Range:
    buffer, start = locate(binding.storage)
    start += binding.offset
    return buffer, start, start + binding.nbytes


def _lines(binding: Binding, locate: Callable[[Storage], Location]) -> _Range:
    buffer, start, end = _range(binding, locate)
    return buffer, start // _LINE_BYTES * _LINE_BYTES, -(-end // _LINE_BYTES) * _LINE_BYTES


def _conflict(first: Sequence[_Range], second: Sequence[_Range]) -> bool:
    """Whether some ranges overlap."""
    for buffer, start, end in first:
        for other, begin, stop in second:
            if buffer == other and start < stop and begin < end:
                return True
    return False
