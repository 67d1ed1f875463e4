"""Hands tasks to workers, as many as can run, and takes their outcomes.

Tasks that wait are kept here and not with the scheduler: so a worker that is lost takes no other task with it, and a
sweep that is stopped leaves nothing behind.
"""

from __future__ import annotations

import queue
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mobopt.errors import InputError
from mobopt.tools.sweep.cluster import Cluster
from mobopt.tools.sweep.jobs import KILLED, LOST, Model, Outcome, Task
from mobopt.tools.sweep.processes import ABSENT, run_task

_MOST_ATTEMPTS = 2
_LOOK_SECONDS = 2.0
_GONE = "the scheduler is gone, or has given up its tasks; the same command goes on where this ended"
_ALONE_SECONDS = 120.0
"""How long a sweep waits for workers to come back."""

Report = Callable[[Task, Outcome], None]


@dataclass(frozen=True)
class _Flight:
    """A task that is with a worker."""

    task: Task
    resource: str
    attempt: int
    has_content: bool = False
    """Whether the content of its file goes with it."""


class Coordinator:
    """One run of tasks on a cluster."""

    def __init__(self, cluster: Cluster, report: Report, wanted: Callable[[Task], bool] = lambda task: True) -> None:
        """Prepare.

        Args:
            cluster: where tasks run.
            report: is told of each outcome, in the thread of :meth:`run`.
            wanted: is asked of each task, just before it is sent.
        """
        self._cluster = cluster
        self._report = report
        self._wanted = wanted
        self._waiting: dict[str, deque[tuple[Task, int]]] = defaultdict(deque)
        self._flights: dict[Any, _Flight] = {}
        self._done: queue.Queue[Any] = queue.Queue()
        self._contents: dict[str, Any] = {}
        """Files that were sent to workers, by digest."""
        self._lonely_since: float | None = None

    def run(self, tasks: Iterable[Task]) -> None:
        """Run all tasks; those that measure time on this machine come last, and one by one.

        Raises:
            InputError: no worker can run a task, or the scheduler or its workers are gone.
        """
        phases: dict[bool, list[Task]] = {False: [], True: []}
        for task in tasks:
            phases[self._cluster.runs_alone(task)].append(task)
        try:
            for alone, some in phases.items():
                for task in some:
                    self._waiting[self._cluster.resource_of(task)].append((task, 1))
                self._finish(most=1 if alone else None)
        finally:
            for future in self._flights:
                with suppress(Exception):  # the scheduler may be gone
                    future.cancel()

    def _finish(self, most: int | None) -> None:
        """Run what waits, at most so many at a time."""
        while True:
            self._fill(most)
            if not self._flights and not any(self._waiting.values()):
                return
            with suppress(queue.Empty):
                self._take(self._done.get(timeout=_LOOK_SECONDS))
            self._check_alive()

    def _fill(self, most: int | None) -> None:
        """Send tasks for as long as a worker is free for one."""
        running = Counter(flight.resource for flight in self._flights.values())
        for resource, tasks in self._waiting.items():
            slots = self._cluster.slots(resource) if tasks else 0
            while tasks and running[resource] < slots and (most is None or len(self._flights) < most):
                task, attempt = tasks.popleft()
                if attempt > 1 or self._wanted(task):
                    self._send(_Flight(task, resource, attempt, task.model.digest in self._contents))
                    running[resource] += 1

    def _send(self, flight: _Flight) -> None:
        task = flight.task
        future = self._cluster.client.submit(
            run_task,
            task.data(),
            self._contents[task.model.digest] if flight.has_content else None,
            key=f"{task.job.do}-{uuid.uuid4().hex}",
            pure=False,
            resources={flight.resource: 1} if flight.resource else None,
        )
        self._flights[future] = flight
        future.add_done_callback(self._done.put)

    def _take(self, future: Any) -> None:
        flight = self._flights.pop(future)
        outcome = self._outcome(future)
        if outcome.state == ABSENT:
            self._send_file(flight)
        elif outcome.state in (KILLED, LOST) and flight.attempt < _MOST_ATTEMPTS:
            self._contents.pop(flight.task.model.digest, None)  # it may be lost, too
            self._waiting[flight.resource].append((flight.task, flight.attempt + 1))
        else:
            self._forget_file(flight.task.model.digest)
            self._report(flight.task, replace(outcome, attempts=flight.attempt))

    def _outcome(self, future: Any) -> Outcome:
        from distributed.scheduler import KilledWorker

        if future.status == "finished":
            try:
                return Outcome(**future.result())
            except Exception as error:  # the worker that had it is gone
                return Outcome(LOST, f"its worker was lost with the result: {error}")
        if future.status == "error":
            reason = future.exception()
            if isinstance(reason, KilledWorker):
                return Outcome(LOST, "its worker was killed, or its connection lost")
            raise InputError(
                f"a worker can't run mobopt's tasks: {type(reason).__name__}: {reason}; install the same mobopt there"
            )
        if self._cluster.client.status != "running":
            raise InputError(_GONE)
        return Outcome(LOST, "the worker that had its file was lost")

    def _send_file(self, flight: _Flight) -> None:
        """Give a task to a worker again, with the content of its file."""
        model = flight.task.model
        if model.digest not in self._contents:
            self._contents[model.digest] = self._cluster.client.scatter(_content(model), hash=False)
        self._send(replace(flight, has_content=True))

    def _forget_file(self, digest: str) -> None:
        """Let workers drop a file that no task is left for."""
        tasks = [flight.task for flight in self._flights.values()]
        tasks += [task for waiting in self._waiting.values() for task, _ in waiting]
        if not any(task.model.digest == digest for task in tasks):
            self._contents.pop(digest, None)

    def _check_alive(self) -> None:
        """Raises InputError if there has been no scheduler or worker for long."""
        status = self._cluster.client.status
        if status == "running" and self._cluster.workers():
            self._lonely_since = None
            return
        if status in ("closed", "closing"):
            raise InputError(_GONE)
        self._lonely_since = self._lonely_since or time.monotonic()
        if time.monotonic() - self._lonely_since > _ALONE_SECONDS:
            raise InputError(
                f"the scheduler {self._cluster.address} has had no worker for {_ALONE_SECONDS:g} s; start workers, and "
                "the same command goes on where this ended"
            )


def _content(model: Model) -> bytes:
    try:
        return Path(model.name).read_bytes()
    except OSError as error:
        raise InputError(f"can't read the model {model.name}: {error.strerror or error}") from None
