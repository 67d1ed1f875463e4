"""Each task has a process of its own, and whatever becomes of that is an outcome."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mobopt.tools.sweep.jobs import Outcome, Task
from mobopt.tools.sweep.processes import ABSENT, run_task

MakeTask = Callable[..., Task]
pytestmark = pytest.mark.usefixtures("stub")


def outcome_of(task: Task, content: bytes | None = None) -> Outcome:
    return Outcome(**run_task(task.data(), content))


def test_a_result_and_no_log_where_it_is_good(make_task: MakeTask) -> None:
    found = outcome_of(make_task("good"))
    assert (found.state, found.text, found.log) == ("good", "audit of good", "")
    assert found.seconds > 0 and found.worker
    found = outcome_of(make_task("refused"))
    assert (found.state, found.log) == ("refused", "doing refused\n")


def test_threads_of_the_task(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Dask's nannies set it
    task = make_task("good")
    assert outcome_of(task).data == {"threads": None}
    task = dataclasses.replace(task, limits=dataclasses.replace(task.limits, threads=3))
    assert outcome_of(task).data == {"threads": "3"}


@pytest.mark.parametrize(
    ("what", "state", "words"),
    [
        ("crash", "crashed", "SIGSEGV"),
        ("silent", "crashed", "exit code 0, and no result"),
        ("killed", "killed", "SIGKILL"),
        ("bad_alloc", "memory", "more than 8 GB"),
    ],
)
def test_processes_that_end_badly(make_task: MakeTask, what: str, state: str, words: str) -> None:
    found = outcome_of(make_task(what))
    assert found.state == state and words in found.text
    assert found.log.startswith(f"doing {what}\n")


def test_time_is_limited(make_task: MakeTask) -> None:
    started = time.perf_counter()
    found = outcome_of(make_task("sleep", seconds=0.5))
    assert (found.state, found.text) == ("timeout", "it took longer than 0.5 s")
    assert time.perf_counter() - started < 30


def test_logs_say_where_processes_were(make_task: MakeTask) -> None:
    for seconds in (1.0, 4.0, 16.0):  # a busy machine takes long to start it
        late = outcome_of(make_task("sleep", seconds=seconds)).log
        if late:
            break
    assert late.startswith("doing sleep\n") and f'stub_work.py", line {_line_of("time.sleep(60)")} in main' in late
    crashed = outcome_of(make_task("crash")).log
    assert "Segmentation fault" in crashed and f'stub_work.py", line {_line_of("signal.SIGSEGV")} in main' in crashed


def _line_of(text: str) -> int:
    lines = Path(__file__).with_name("stub_work.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_file_that_is_not_here_is_asked_for(make_task: MakeTask) -> None:
    task = make_task("good")
    Path("good.pt").write_text("evil")  # of the same size, and another content
    assert outcome_of(task).state == ABSENT
    Path("good.pt").unlink()
    assert outcome_of(task).state == ABSENT
    assert outcome_of(task, b"good").state == "good"


def test_a_worker_that_is_killed_takes_its_process_with_it(make_task: MakeTask, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    task = make_task(f"wait-once {flag}")
    stub = Path(__file__).with_name("stub_work.py")
    code = "import json, sys; from mobopt.tools.sweep import processes; processes.PROGRAM = (sys.argv[1],); "
    code += "processes.run_task(json.loads(sys.argv[2]))"
    worker = subprocess.Popen([sys.executable, "-c", code, str(stub), json.dumps(task.data())])
    wait_until(lambda: flag.exists() and bool(flag.read_text()))
    pid = int(flag.read_text())
    os.kill(pid, 0)
    worker.kill()
    worker.wait()
    wait_until(Path(f"{flag}.ended").exists)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
