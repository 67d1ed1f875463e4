from __future__ import annotations

from engine_shaders import scale, tensor

from mobopt.runtimes.vulkan.engine.hazards import Barrier, plan_barriers, reads_rewritten
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage, StorageKind

_TEMPORARY = StorageKind.TEMPORARY
_FLUSH, _ORDER = Barrier(after_writes=True), Barrier(after_writes=False)


def _apart(storage: Storage) -> tuple[int, int]:
    """Every storage in a buffer of its own."""
    return id(storage), 0


def test_independent_operations_need_no_barrier():
    a, b, c, d = (tensor(_TEMPORARY, 8) for _ in range(4))
    assert plan_barriers([scale(a, b, 1.0), scale(c, d, 1.0)], _apart) == [None, None]


def test_two_readers_need_no_barrier():
    a, b, c = (tensor(_TEMPORARY, 8) for _ in range(3))
    assert plan_barriers([scale(a, b, 1.0), scale(a, c, 1.0)], _apart) == [None, None]


def test_read_after_write():
    a, b, c = (tensor(_TEMPORARY, 8) for _ in range(3))
    assert plan_barriers([scale(a, b, 1.0), scale(b, c, 1.0)], _apart) == [None, _FLUSH]


def test_write_after_write():
    a, b, c = (tensor(_TEMPORARY, 8) for _ in range(3))
    assert plan_barriers([scale(a, c, 1.0), scale(b, c, 1.0)], _apart) == [None, _FLUSH]


def test_write_after_read_orders_only_execution():
    a = tensor(_TEMPORARY, 8)
    read = Dispatch("scale", (Binding(a.storage, 0, 32),), (1, 1, 1), 0)
    write = Dispatch("scale", (Binding(a.storage, 0, 32, reads=False, writes=True),), (1, 1, 1), 0)
    assert plan_barriers([read, write], _apart) == [None, _ORDER]


def test_a_barrier_covers_all_before_it():
    a, b, c, d, e = (tensor(_TEMPORARY, 8) for _ in range(5))
    stream = [scale(a, b, 1.0), scale(a, c, 1.0), scale(b, d, 1.0), scale(c, e, 1.0)]
    assert plan_barriers(stream, _apart) == [None, None, _FLUSH, None]


def test_storages_that_share_bytes_of_the_arena():
    a, b, c, d = (tensor(_TEMPORARY, 8) for _ in range(4))
    places = {a.storage: (0, 0), b.storage: (0, 64), c.storage: (0, 128), d.storage: (0, 16)}
    # d lies on bytes that the first operation still reads.
    assert plan_barriers([scale(a, b, 1.0), scale(c, d, 1.0)], places.__getitem__) == [None, _FLUSH]
    places[d.storage] = (0, 192)
    assert plan_barriers([scale(a, b, 1.0), scale(c, d, 1.0)], places.__getitem__) == [None, None]


def test_ranges_of_one_storage_that_do_not_meet():
    storage, source = Storage(64), Storage(64)
    first = Copy(Binding(source, 0, 32), Binding(storage, 0, 32, reads=False, writes=True))
    second = Copy(Binding(source, 32, 32), Binding(storage, 32, 32, reads=False, writes=True))
    touching = Copy(Binding(source, 0, 8), Binding(storage, 28, 8, reads=False, writes=True))
    assert plan_barriers([first, second, touching], _apart) == [None, None, _FLUSH]


def test_what_was_read_and_written_at_once_is_not_read_early():
    a, b, c, d = (tensor(_TEMPORARY, 64) for _ in range(4))
    in_place, elsewhere = scale(b, b, 1.0), scale(a, b, 1.0)
    assert reads_rewritten([scale(b, c, 1.0)], [in_place], _apart)
    assert not reads_rewritten([scale(b, c, 1.0)], [elsewhere], _apart)
    assert not reads_rewritten([scale(c, d, 1.0)], [in_place], _apart)
    assert not reads_rewritten([scale(c, b, 1.0)], [in_place], _apart)
    # Two operations of a group, of which one reads what the other one writes.
    assert reads_rewritten([scale(a, d, 1.0), scale(b, c, 1.0)], [scale(b, d, 1.0), elsewhere], _apart)


def test_caches_read_whole_lines():
    a, b, c = (tensor(_TEMPORARY, 8) for _ in range(3))
    places = {a.storage: (0, 0), b.storage: (0, 96), c.storage: (0, 4096)}
    # What a begins with and where b lies are one line, so who reads a reads what was in b before it was written.
    assert reads_rewritten([scale(b, c, 1.0)], [scale(a, b, 1.0)], places.__getitem__)
    places[b.storage] = (0, 128)
    assert not reads_rewritten([scale(b, c, 1.0)], [scale(a, b, 1.0)], places.__getitem__)
    places[b.storage] = (1, 96)
    assert not reads_rewritten([scale(b, c, 1.0)], [scale(a, b, 1.0)], places.__getitem__)
