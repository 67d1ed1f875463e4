"""Work that is shared among threads, as far as the process may start any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def start(pool: ThreadPoolExecutor, work: Callable[[], None], threads: int) -> list[Future[None]]:
    """Have several threads do a piece of work: fewer, or none, where the process ends or has no room for them."""
    running: list[Future[None]] = []
    with suppress(RuntimeError):
        for _ in range(threads):
            running.append(pool.submit(work))
    return running


def shared(function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int) -> list[_Result]:
    """What a function gives for each item, in order; this thread and others take the next one whenever they are free.

    Raises:
        Exception: what the function raised, once all threads have ended.
    """
    results: dict[int, _Result] = {}
    numbers = count()

    def work() -> None:
        while (number := next(numbers)) < len(items):
            results[number] = function(items[number])

    with ThreadPoolExecutor(max(threads - 1, 1)) as pool:
        running = start(pool, work, threads - 1)
        work()
    for each in running:
        each.result()
    return [results[number] for number in range(len(items))]
