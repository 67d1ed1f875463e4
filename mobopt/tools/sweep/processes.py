"""What a worker does: each task in a process of its own, with limits of time and memory.

The process reads its task from standard input, which stays open: when the worker is gone it sees the end of it, and
ends too. Its result is a file of a folder that the worker removes; whatever it prints is the log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mobopt.tools.sweep.jobs import CRASHED, FAULT, KILLED, MEMORY, TIMEOUT, Model, Outcome, Task

ABSENT = "absent"
"""The state of a task whose file is not on this machine: it is to be sent."""
RESULT = "result.json"
PROGRAM = ("-m", "mobopt.tools.sweep.work")
"""What Python runs for a task, with the folder and the model after it."""
WHERE = getattr(signal, "SIGUSR1", None)
"""The signal that has a task's process write where its threads are; None where systems have no such."""
_ASKED_SECONDS = 0.5
_LOG = "log.txt"
_LOG_BYTES = 64_000
_KILLS = tuple(number for number in (getattr(signal, "SIGKILL", None), signal.SIGTERM) if number is not None)
_OUT_OF_MEMORY = ("std::bad_alloc", "can't allocate memory", "MemoryError", "Cannot allocate memory")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def run_task(data: dict[str, Any], content: bytes | None = None) -> dict[str, Any]:
    """Run a task in a process of its own; Dask calls this on a worker.

    Args:
        data: the task, as :meth:`Task.data` gives it.
        content: of its file, where the worker does not have it.

    Returns:
        An :class:`Outcome` as plain data; of the state :data:`ABSENT` if the file is not here.
    """
    task = Task.of(data)
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="mobopt-sweep-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            path = _located(task.model, content, folder)
            outcome = Outcome(ABSENT) if path is None else _run(task, path, folder)
    except OSError as error:  # the worker's own disk, or no more processes
        outcome = Outcome(FAULT, f"the worker can't run tasks: {error}")
    seconds = time.perf_counter() - started
    return dataclasses.asdict(dataclasses.replace(outcome, seconds=seconds, worker=platform.node()))


def stop_processes() -> None:
    """Kill what this worker runs."""
    with _lock:
        for process in _running:
            _kill(process)


def _located(model: Model, content: bytes | None, folder: Path) -> str | None:
    """Where the model is here: the name of a callable, or a path with the same content; None if there is none."""
    if not model.is_file:
        return model.name
    if content is not None:
        place = folder / Path(model.name).name
        place.write_bytes(content)
        return str(place)
    path = Path(model.name)
    if path.is_file() and path.stat().st_size == model.size:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() == model.digest:
            return str(path)
    return None


def _run(task: Task, path: str, folder: Path) -> Outcome:
    command = [sys.executable, *PROGRAM, str(folder), path]
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(task.limits.threads),
            start_new_session=True,
        )
        with _lock:
            _running.add(process)
        try:
            is_late = _waited(process, json.dumps(task.data()), task.limits.seconds)
        finally:
            _kill(process)
            process.wait()
            with _lock:
                _running.discard(process)
    return _outcome(task, process.returncode, is_late, folder)


def _waited(process: subprocess.Popen[bytes], text: str, seconds: float) -> bool:
    """Give a process its task and wait for it; whether its time is over."""
    assert process.stdin is not None
    try:
        process.stdin.write(f"{text}\n".encode())
        process.stdin.flush()
    except BrokenPipeError:  # it is gone already; its exit code says why
        pass
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _ask_where(process)
        return True
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
    return False


def _ask_where(process: subprocess.Popen[bytes]) -> None:
    """Have a process that is late write into its log where it is; one that can't ends."""
    if WHERE is None:
        return
    with suppress(subprocess.TimeoutExpired):
        process.send_signal(WHERE)
        process.wait(_ASKED_SECONDS)


def _environment(threads: int) -> dict[str, str]:
    """Of a process, which logs where it crashes: a worker's own may hold torch to one thread."""
    found = {name: value for name, value in os.environ.items() if name not in _THREADS}
    return found | {"PYTHONFAULTHANDLER": "1"} | (dict.fromkeys(_THREADS, str(threads)) if threads else {})


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it has started, at once; nothing if it is gone."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _outcome(task: Task, code: int, is_late: bool, folder: Path) -> Outcome:
    log = _end_of(folder / _LOG)
    result = folder / RESULT
    if not is_late and result.exists():
        found = Outcome(**json.loads(result.read_text(encoding="utf-8")))
        return found if found.is_good else dataclasses.replace(found, log=log)
    if is_late:
        return Outcome(TIMEOUT, f"it took longer than {task.limits.seconds:g} s", log=log)
    if any(sign in log for sign in _OUT_OF_MEMORY):
        return Outcome(MEMORY, _memory_text(task), log=log)
    if -code in _KILLS:
        return Outcome(
            KILLED,
            f"its process was killed by {signal.Signals(-code).name}; where nobody did it, the system did, for want of "
            "memory: give fewer --workers, or less --memory",
            log=log,
        )
    reason = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}, and no result"
    return Outcome(CRASHED, f"its process ended {reason}", log=log)


def _memory_text(task: Task) -> str:
    return f"it took more than {task.limits.memory / 1e9:g} GB" if task.limits.memory else "there is not enough memory"


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= _LOG_BYTES else f"... {size - _LOG_BYTES} bytes before ...\n{text}"
