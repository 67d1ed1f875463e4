"""Work that is shared among threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mobopt.runtimes.vulkan.engine.threads import shared


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("items", [0, 1, 13])
def test_results_come_in_order(threads: int, items: int) -> None:
    assert shared(lambda x: x * x, range(items), threads) == [x * x for x in range(items)]


def test_several_threads_work_at_once() -> None:
    together = threading.Barrier(3)
    assert sorted(shared(lambda _: together.wait(timeout=30), range(3), 3)) == [0, 1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_what_the_function_raises_is_raised(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        shared(lambda x: 1 // x, [1, 2, 0, 4], threads)


def test_this_thread_does_everything_where_no_other_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert shared(lambda x: (x, threading.current_thread()), range(3), 4) == [
        (x, threading.main_thread()) for x in range(3)
    ]
