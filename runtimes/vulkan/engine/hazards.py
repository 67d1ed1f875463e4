"""Which operations must wait for earlier ones: hazards between ranges of bytes, and the barriers that they need.

Ranges are of physical memory, so storages that share bytes of the arena are told apart by where they lie, not by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True)
class _Range:
    buffer: int
    start: int
    end: int

    def overlaps(self, other: _Range) -> bool:
        return self.buffer == other.buffer and self.start < other.end and other.start < self.end


def plan_barriers(operations: Sequence[GpuOperation], locate: Callable[[Storage], Location]) -> list[Barrier | None]:
    """The barrier that each operation needs before it, or None.

    A barrier waits for everything before it, so after one only later operations can be in conflict.
    """
    barriers: list[Barrier | None] = []
    reads: list[_Range] = []
    writes: list[_Range] = []
    for operation in operations:
        new_reads = [_range(binding, locate) for binding in _bindings(operation) if binding.reads]
        new_writes = [_range(binding, locate) for binding in _bindings(operation) if binding.writes]
        after_writes = _conflict(new_reads, writes) or _conflict(new_writes, writes)
        if after_writes or _conflict(new_writes, reads):
            # Earlier writes that nothing needs yet are flushed with it: there is no later barrier to do so.
            barriers.append(Barrier(after_writes=after_writes or bool(writes)))
            reads, writes = [], []
        else:
            barriers.append(None)
        reads += new_reads
        writes += new_writes
    return barriers


def _bindings(operation: GpuOperation) -> Iterator[Binding]:
    if isinstance(operation, Dispatch):
        yield from operation.bindings
    else:
        yield operation.source
        yield operation.target


def _range(binding: Binding, locate: Callable[[Storage], Location]) -> _Range:
    buffer, start = locate(binding.storage)
    return _Range(buffer, start + binding.offset, start + binding.offset + binding.nbytes)


def _conflict(first: Sequence[_Range], second: Sequence[_Range]) -> bool:
    return any(one.overlaps(other) for one in first for other in second)
