"""The results of a sweep: one SQLite file, which one process writes and any may read meanwhile."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO

from mobopt.errors import InputError
from mobopt.tools.sweep.jobs import Job, Outcome, Task

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_APPLICATION = 0x6D6F6270
"""Marks the file as one of ours; see SQLite's ``application_id``."""
_FORM = 1
_TABLE = """
CREATE TABLE result (
  model TEXT NOT NULL, job TEXT NOT NULL, backend TEXT NOT NULL, runtime TEXT NOT NULL, device TEXT NOT NULL,
  digest TEXT NOT NULL, options TEXT NOT NULL, mobopt TEXT NOT NULL,
  state TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL, log TEXT NOT NULL,
  seconds REAL NOT NULL, attempts INTEGER NOT NULL, worker TEXT NOT NULL, finished TEXT NOT NULL,
  PRIMARY KEY (model, job, backend, runtime, device)
)
"""
_COLUMNS = (
    "model, job, backend, runtime, device, digest, options, mobopt, state, text, data, log, seconds, attempts, worker, "
    "finished"
)


@dataclass(frozen=True)
class Result:
    """A task that is done.

    Attributes:
        model: its name.
        job: what was done with it.
        digest: of the model's file.
        options: as :meth:`Options.text` gives them.
        mobopt: the version that did it.
        outcome: how it ended.
        finished: when, in UTC.
    """

    model: str
    job: Job
    digest: str
    options: str
    mobopt: str
    outcome: Outcome
    finished: str

    @property
    def key(self) -> tuple[str, Job]:
        """What it is the result of."""
        return self.model, self.job

    def is_of(self, task: Task) -> bool:
        """Whether it is the result of this very task: the same file, options and version."""
        return (
            self.key == (task.model.name, task.job)
            and self.digest == task.model.digest
            and self.options == task.options.text(task.job)
            and self.mobopt == version()
        )


class Store:
    """The file; use it in a ``with`` statement."""

    def __init__(self, path: Path, writes: bool = False) -> None:
        """Open a file.

        Args:
            path: the file; to be written, it is made if there is none.
            writes: whether results will be added; only one process can at a time.

        Raises:
            InputError: there is none, it is damaged or something else, or it can't be written.
        """
        self.path = path
        self._lock = _locked(path) if writes else None
        try:
            with _explained(path, "write" if writes else "read"):
                self._connection = self._opened(writes)
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(sqlite3.Error):  # what was added is safe already
            if self._lock is not None:  # what is written no more needs no files beside it
                self._connection.execute("PRAGMA journal_mode=DELETE")
        with suppress(sqlite3.Error):
            self._connection.close()
        self._unlock()

    def results(self) -> list[Result]:
        """All of them, by model and job.

        Raises:
            InputError: the file is damaged.
        """
        with _explained(self.path, "read"):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM result ORDER BY model, job, backend, runtime")
            return [_result(row) for row in rows]

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep a result, in the place of an older one of the same model and job; it is on the disk afterwards.

        Raises:
            InputError: it can't be written, because the disk is full for one; what was kept before stays.
        """
        job = task.job
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        row = (
            task.model.name,
            *(job.do, job.backend, job.runtime, job.device),
            *(task.model.digest, task.options.text(job), version()),
            *(outcome.state, outcome.text, json.dumps(outcome.data), outcome.log),
            *(outcome.seconds, outcome.attempts, outcome.worker, now),
        )
        marks = ", ".join("?" * len(row))
        with _explained(self.path, "write"), self._connection:
            self._connection.execute(f"INSERT OR REPLACE INTO result ({_COLUMNS}) VALUES ({marks})", row)

    def _opened(self, writes: bool) -> sqlite3.Connection:
        is_new = not self.path.exists() or self.path.stat().st_size == 0
        if is_new and not writes:
            raise InputError(f"there is no sweep {self.path}; make one with mobopt sweep MODELS -o {self.path}")
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if writes else 'ro'}"
        connection = sqlite3.connect(uri, uri=True, timeout=10, check_same_thread=False)
        try:
            if is_new:
                with connection:
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA application_id={_APPLICATION}")
                    connection.execute(f"PRAGMA user_version={_FORM}")
            _check(connection, self.path)
            if writes:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
            return connection
        except BaseException:
            connection.close()
            raise

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            with suppress(OSError):
                _lock_path(self.path).unlink()


def version() -> str:
    """Of mobopt."""
    return metadata.version("mobopt")


def read_results(path: Path) -> list[Result]:
    """All results of a file.

    Raises:
        InputError: there is no such file, or it is damaged or something else.
    """
    with Store(path) as store:
        return store.results()


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise InputError(f"{path} is a database of another program, not of a sweep; name another file")
    if form != _FORM:
        raise InputError(f"{path} is of another version of mobopt (form {form}, and this reads {_FORM})")
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(path: Path) -> IO[str] | None:
    """A file that is locked for as long as this process writes the results.

    Raises:
        InputError: another process writes them, or the folder can't be written.
    """
    if fcntl is None:
        return None
    try:
        file = _lock_path(path).open("w")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}; choose another output path") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InputError(f"another sweep is writing {path}; wait for it, or name another file") from None
    return file


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """SQLite's errors in words, with the way out."""
    try:
        yield
    except InputError:
        raise
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "full" in reason or "disk I/O" in reason:
            raise InputError(
                f"can't write {path}: the disk is full or failing ({reason}); the results so far are kept: make room, "
                "and the same command goes on"
            ) from None
        raise InputError(f"can't {what} {path}: {reason}; choose another path, or wait for who uses it") from None
    except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        if "not a database" in reason:
            raise InputError(f"{path} is no database, or its beginning is damaged; name another file") from None
        raise InputError(
            f"{path} is damaged, or no sweep: {reason}; `sqlite3 {path} .recover` may rescue results, and a new sweep "
            "needs another name"
        ) from None


def _result(row: Sequence[str]) -> Result:
    model, do, backend, runtime, device, digest, options, mobopt, state, text, data, log, *rest = row
    seconds, attempts, worker, finished = rest
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError(f"the data of {model} are {type(values).__name__}")
    outcome = Outcome(state, text, values, log, float(seconds), int(attempts), worker)
    return Result(model, Job(do, backend, runtime, device), digest, options, mobopt, outcome, finished)
