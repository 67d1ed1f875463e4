"""``mobopt sweep``, ``show`` and ``diff``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_harness import Invoke, assert_refused

from mobopt.tools.sweep import processes

STUB = Path(__file__).parents[1] / "tools" / "sweep" / "stub_work.py"
if not os.environ.get("CI"):  # there, what is not installed must not pass for success
    pytest.importorskip("distributed")


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are text that says what becomes of them."""
    monkeypatch.setattr(processes, "PROGRAM", (str(STUB),))


def test_a_sweep_and_what_changes_after_it(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for name, what in {"a": "takes 10", "b": "refused", "c": "good"}.items():
        (tmp_path / "zoo" / f"{name}.pt").write_text(what)
    jobs = ("--do", "audit,bench", "--device", "cpu", "--runtime", "2.1,mobopt")
    result = invoke("sweep", "zoo", *jobs, "-o", "old.sqlite")
    assert result.exit_code == 1, result.output
    assert "9 tasks are done; 3 are not good" in result.stdout
    assert "[9/9] zoo/" in result.stderr and "left" in result.stderr
    result = invoke("sweep", "run", "zoo/a.pt", *jobs, "-o", "old.sqlite")
    assert result.exit_code == 0 and "3 tasks are done, 3 of them by earlier runs" in result.stdout
    assert_shown(invoke, tmp_path)

    (tmp_path / "zoo" / "a.pt").write_text("takes 20")
    (tmp_path / "zoo" / "b.pt").write_text("good")
    assert invoke("sweep", "zoo", *jobs, "-o", "new.sqlite").exit_code == 0
    result = invoke("sweep", "diff", "old.sqlite", "new.sqlite")
    assert result.exit_code == 1, result.output
    assert (
        "slower: 3" in result.stdout
        and "newly works: 3" in result.stdout
        and "3 results are as before" in result.stdout
    )
    assert "10 ms (10 to 10)" in result.stdout and "20 ms (20 to 20)" in result.stdout
    assert invoke("sweep", "diff", "old.sqlite", "new.sqlite", "--slower", "150").exit_code == 0
    back = invoke("sweep", "diff", "new.sqlite", "old.sqlite", "--json")
    assert back.exit_code == 1 and json.loads(back.stdout)["is_worse"]


def assert_shown(invoke: Invoke, folder: Path) -> None:
    result = invoke("sweep", "show", "old.sqlite", "--log", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert "zoo/b.pt" in result.stdout and "doing refused" in result.stdout and "10 ms" in result.stdout
    assert "zoo/b.pt" in (folder / "page.html").read_text()
    data = json.loads(invoke("sweep", "show", "old.sqlite", "--json", "--model", "*b.pt").stdout)
    assert {item["outcome"]["state"] for item in data} == {"refused"} and len(data) == 3


def test_what_can_not_be_swept(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("good")
    (tmp_path / "text.sqlite").write_text("no database")
    assert_refused(invoke("sweep", "run"), "no models are named")
    assert_refused(invoke("sweep", "b.pt"), "there is no model b.pt")
    assert_refused(invoke("sweep", "a.pt", "--do", "audti"), "did you mean audit?")
    assert_refused(invoke("sweep", "a.pt", "--backend", "opengl"), "Unknown backend")
    assert_refused(invoke("sweep", "a.pt", "-o", "no/s.sqlite"), "no folder")
    assert_refused(invoke("sweep", "a.pt", "-o", "a.pt"), "it is read as well")
    assert_refused(invoke("sweep", "a.pt", "-o", "text.sqlite"), "is no database, or its beginning")
    assert_refused(invoke("sweep", "show", "text.sqlite"), "is no database, or its beginning")
    assert_refused(invoke("sweep", "show", "missing.sqlite"), "there is no sweep missing.sqlite")
    assert_refused(invoke("sweep", "diff", "text.sqlite", "text.sqlite"), "is no database, or its beginning")
    assert (tmp_path / "text.sqlite").read_text() == "no database"
    assert not (tmp_path / "sweep.sqlite").exists()


def test_a_sweep_that_is_stopped_says_how_to_go_on(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.pt").write_text("good")
    monkeypatch.setattr("mobopt.commands.sweep._say_progress", interrupt)
    result = invoke("sweep", "a.pt", "--do", "audit")
    assert result.exit_code == 130
    assert "the results so far are in sweep.sqlite; the same command goes on" in result.stderr
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "1 task is done, 1 of them by earlier runs" in invoke("sweep", "a.pt", "--do", "audit").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a signal that they see")
def test_a_sweep_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    flag, temporary = tmp_path / "flag", tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "a.pt").write_text(f"wait-once {flag}")
    code = "import sys; from mobopt.tools.sweep import processes; processes.PROGRAM = (sys.argv.pop(1),); "
    code += "from mobopt.commands import main; main()"
    command = [sys.executable, "-c", code, str(STUB), "sweep", "a.pt", "--do", "audit"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    sweep = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (flag.exists() and flag.read_text()):
        assert time.monotonic() < end and sweep.poll() is None, "its task did not begin"
        time.sleep(0.02)
    assert list(temporary.glob("mobopt-sweep-*"))
    sweep.terminate()
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 128 + signal.SIGTERM
    assert "the results so far are in sweep.sqlite; the same command goes on" in errors
    assert not list(temporary.glob("mobopt-sweep-*")) and not (tmp_path / "sweep.sqlite.lock").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(flag.read_text()), 0)


def test_help(invoke: Invoke) -> None:
    assert {"diff", "run", "show"} <= set(invoke("sweep", "--help").stdout.split())
    assert "--scheduler ADDRESS" in invoke("sweep", "run", "--help").stdout
    assert invoke("sweep", "run", "--help").stdout.count("--verbose") == 1
