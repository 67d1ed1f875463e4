"""Calls that were submitted. Whoever asks for the result of one that has begun ends it, since each change of threads
takes longer than a small model; what nobody asks for, a worker ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_PATIENCE_SECONDS = 0.001
"""How long a call that has begun waits for somebody who asks for its result."""

Finish = Callable[[bool], Any]
"""Ends a call, and returns its result; it is told whether to poll the device, which takes the interpreter's lock from
other threads again and again, or to sleep, which notices the end later."""


class SubmittedCall(Future[Any]):
    """The future of a call that has begun."""

    def __init__(self, calls: SubmittedCalls, finish: Finish) -> None:
        """``finish`` is called once, by some thread."""
        super().__init__()
        self._calls = calls
        self._finish = [finish]
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Any:
        """What the call returns; see :meth:`concurrent.futures.Future.result`."""
        self._end_within(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that the call raises; see :meth:`concurrent.futures.Future.exception`."""
        self._end_within(timeout)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call ``fn`` with the future, in the thread that ends the call."""
        super().add_done_callback(fn)
        self._calls.hand_over(self)

    def end(self, polls: bool) -> None:
        """End the call, if no thread does or did."""
        try:
            finish = self._finish.pop()
        except IndexError:
            return
        settle(self, lambda: self._ended(finish, polls))

    def _ended(self, finish: Finish, polls: bool) -> Any:
        try:
            return finish(polls)
        finally:
            self._calls.forget(self)

    def _end_within(self, timeout: float | None) -> None:
        """Have the call ended: by a worker, if this thread may not wait for it as long as it takes."""
        if timeout is None:
            self.end(polls=True)
        else:
            self._calls.hand_over(self)


class SubmittedCalls:
    """The calls of one program that were submitted."""

    def __init__(self, most: int, workers: int) -> None:
        """Start with none.

        Args:
            most: how many may have begun at once.
            workers: how many calls are run or ended by threads of their own at once.
        """
        self._most = most
        self._workers_wanted = workers
        self._workers: ThreadPoolExecutor | None = None
        self._begun: dict[SubmittedCall, None] = {}
        """Those that nobody has ended, in order."""
        self._is_watched = False
        self._lock = threading.Lock()

    def add(self, finish: Finish) -> Future[Any]:
        """The future of a call that has begun."""
        call = SubmittedCall(self, finish)
        with self._lock:
            self._begun[call] = None
            if not self._is_watched:
                self._is_watched = True
                self._pool().submit(self._watch)
        return call

    def run(self, future: Future[Any], compute: Callable[[], Any]) -> None:
        """Have a worker compute what a future promises, after those that were given before."""
        with self._lock:
            self._pool().submit(settle, future, compute)

    def make_room(self) -> None:
        """End the oldest calls until another may begin."""
        while len(self._begun) >= self._most:
            with self._lock:
                oldest = next(iter(self._begun), None)
            if oldest is not None:
                oldest.exception()

    def hand_over(self, call: SubmittedCall) -> None:
        """Have a worker end a call, if no thread does or did."""
        if call.done():
            return
        with self._lock:
            self._pool().submit(call.end, False)

    def forget(self, call: SubmittedCall) -> None:
        """A call has ended."""
        with self._lock:
            self._begun.pop(call, None)

    def _pool(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(self._workers_wanted, "mobopt")
        return self._workers

    def _watch(self) -> None:
        """End calls that nobody has asked for, until there are none."""
        while True:
            with self._lock:
                waiting = list(self._begun)
                if not waiting:
                    self._is_watched = False
                    return
            time.sleep(_PATIENCE_SECONDS)
            for call in waiting:
                call.end(polls=False)


def settle(future: Future[Any], compute: Callable[[], Any]) -> None:
    """Give a future what a function returns or raises."""
    try:
        result = compute()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
