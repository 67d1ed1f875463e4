"""Sweeps: into a file, as the command runs them, and as futures, for programs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mobopt.errors import InputError
from mobopt.tools.sweep.cluster import default_workers, open_cluster
from mobopt.tools.sweep.coordinator import Coordinator
from mobopt.tools.sweep.jobs import BAD, CPU, GOOD, Job, Limits, Options, Outcome, Task, tasks_of
from mobopt.tools.sweep.models import find_models
from mobopt.tools.sweep.store import Store


class Progress:
    """How far a sweep is.

    Attributes:
        total: number of tasks.
        done: how many of them have a result.
        not_good: how many results are not good.
    """

    def __init__(self, tasks: Sequence[Task], done: Iterable[tuple[Task, Outcome]]) -> None:
        """Of all tasks; ``done`` were done by an earlier run."""
        self.total = len(tasks)
        self.done = self.not_good = 0
        self._left: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._started = time.monotonic()
        self._work = 0.0
        for task in tasks:
            self._left[task.job.do] += 1
        for task, outcome in done:
            self._count(task, outcome)

    def add(self, task: Task, outcome: Outcome) -> None:
        """A task is done now."""
        self._count(task, outcome)
        self._work += outcome.seconds

    @property
    def remaining_seconds(self) -> float | None:
        """How long the rest will take, if each job goes on as before; None before the first result of this run."""
        elapsed = time.monotonic() - self._started
        if not self._work or not elapsed:
            return None
        everything = [seconds for found in self._seconds.values() for seconds in found]
        overall = sum(everything) / len(everything)
        left = sum(count * self._mean(do, overall) for do, count in self._left.items())
        return left * elapsed / self._work  # less than the work, where several run at the same time

    def _count(self, task: Task, outcome: Outcome) -> None:
        self.done += 1
        self.not_good += not outcome.is_good
        self._left[task.job.do] -= 1
        self._seconds[task.job.do].append(outcome.seconds)

    def _mean(self, do: str, otherwise: float) -> float:
        found = self._seconds[do]
        return sum(found) / len(found) if found else otherwise


@dataclass(frozen=True)
class Swept:
    """What a run of a sweep did: how many tasks there are, were done before, and are not good."""

    total: int
    before: int
    not_good: int


def sweep(
    tasks: Sequence[Task],
    path: Path,
    *,
    scheduler: str | None = None,
    workers: int = 0,
    again: bool = False,
    show: Callable[[Progress, Task, Outcome], None] = lambda progress, task, outcome: None,
) -> Swept:
    """Run tasks into a file; those that it has results of are done already.

    Args:
        tasks: what to do.
        path: the file; it is made if there is none.
        scheduler: address of a Dask scheduler; None: a local cluster.
        workers: of a local cluster; 0: one for every two cores.
        again: whether to repeat tasks of earlier runs that ended in no answer.
        show: is told of each result.

    Raises:
        InputError: the file or the cluster can't be used, or is gone; results so far are kept.
    """
    with Store(path, writes=True) as store:
        known = {result.key: result for result in store.results()}
        done: dict[Task, Outcome] = {}
        for task in tasks:
            result = known.get((task.model.name, task.job))
            if result is not None and result.is_of(task) and not (again and result.outcome.state not in (GOOD, BAD)):
                done[task] = result.outcome
        left = [task for task in tasks if task not in done]
        progress = Progress(tasks, done.items())

        def report(task: Task, outcome: Outcome) -> None:
            store.add(task, outcome)
            progress.add(task, outcome)
            show(progress, task, outcome)

        if left:
            with open_cluster(scheduler, workers, _devices(left)) as cluster:
                Coordinator(cluster, report).run(left)
        return Swept(len(tasks), len(done), progress.not_good)


def submit(
    models: Sequence[str | Path | Callable[[], object]],
    jobs: Sequence[str | Job],
    scheduler: str | None = None,
    *,
    workers: int = 0,
    options: Options = Options(),  # noqa: B008 - it is frozen
    limits: Limits | None = None,
) -> list[Future[Outcome]]:
    """Do jobs on models, on a cluster of Dask, each in a process of its own; returns at once.

    Args:
        models: paths of files, folders or patterns, names ``module:callable``, or functions of modules that workers can
            import, each of which gives a model and the list of its example inputs.
        jobs: such as ``"audit"``, ``"convert:vulkan:2.6"``, ``"bench:vulkan:mobopt:llvmpipe"``: job, backend, runtime,
            device; or :class:`Job`.
        scheduler: the address of a scheduler; None: a local cluster.
        workers: of a local cluster; 0: one for every two cores.
        options: example inputs of files, repetitions and so on.
        limits: of each task.

    Returns:
        A future for each model and job, model by model. Its result is an :class:`Outcome`: a state, a few words,
        data by name, and a log. A future that is cancelled before its task begins is left out.

    Raises:
        InputError: a model or a job is not known. What happens to the cluster is an exception of every future.
    """
    wanted = [Job.parse(job) if isinstance(job, str) else job for job in jobs]
    limits = limits or Limits(threads=local_threads(workers) if scheduler is None else 0)
    tasks = tasks_of(find_models(models), list(dict.fromkeys(wanted)), options, limits)
    futures: dict[Task, Future[Outcome]] = {task: Future() for task in tasks}

    def work() -> None:
        try:
            with open_cluster(scheduler, workers, _devices(tasks)) as cluster:
                report = _Settling(futures)
                Coordinator(cluster, report, report.begins).run(tasks)
        except BaseException as error:
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, InputError):
                raise

    executor = ThreadPoolExecutor(1, thread_name_prefix="mobopt-sweep")
    executor.submit(work)
    executor.shutdown(wait=False)
    return list(futures.values())


class _Settling:
    """Gives outcomes to the futures of their tasks."""

    def __init__(self, futures: dict[Task, Future[Outcome]]) -> None:
        self._futures = futures

    def begins(self, task: Task) -> bool:
        """Whether a task is still wanted, which can't be taken back then."""
        return self._futures[task].set_running_or_notify_cancel()

    def __call__(self, task: Task, outcome: Outcome) -> None:
        self._futures[task].set_result(outcome)


def local_threads(workers: int) -> int:
    """Threads of the CPU for each task of a local cluster."""
    import os

    return max(1, (os.cpu_count() or 1) // (workers or default_workers()))


def _devices(tasks: Iterable[Task]) -> set[str]:
    return {task.job.device for task in tasks} - {"", CPU}
