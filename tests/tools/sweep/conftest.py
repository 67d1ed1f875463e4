"""What tests of sweeps share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mobopt.tools.sweep import processes
from mobopt.tools.sweep.jobs import Job, Limits, Options, Task
from mobopt.tools.sweep.models import find_models

MakeTask = Callable[..., Task]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of this process are those of ``stub_work``."""
    monkeypatch.setattr(processes, "PROGRAM", (str(Path(__file__).with_name("stub_work.py")),))


@pytest.fixture
def make_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    """Make a task whose model is a file that says what to do."""
    monkeypatch.chdir(tmp_path)

    def make(what: str, job: str = "audit", name: str = "", seconds: float = 30.0) -> Task:
        path = Path(name or f"{what.partition(' ')[0]}.pt")
        path.write_text(what)
        return Task(find_models([path])[0], Job.parse(job), Options(), Limits(seconds))

    return make
