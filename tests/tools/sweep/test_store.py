"""The file of results: what was added stays, whatever happens next."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mobopt.errors import InputError
from mobopt.tools.sweep.jobs import Outcome, Task
from mobopt.tools.sweep.store import Store, read_results

MakeTask = Callable[..., Task]
FILE = Path("s.sqlite")
ALL_GOOD = Outcome("good", "fine", {"error": 1e-7, "none": None}, "", 1.5, 2, "here")


def test_results_come_back(make_task: MakeTask) -> None:
    task = make_task("good", "bench:vulkan:2.6:llvmpipe")
    with Store(FILE, writes=True) as store:
        store.add(task, Outcome("refused", "\x1b[31m no"))
        store.add(task, ALL_GOOD)
        assert len(read_results(FILE)) == 1  # while it is being written
    (found,) = read_results(FILE)
    assert found.outcome == ALL_GOOD and found.key == ("good.pt", task.job) and found.is_of(task)
    assert [path.name for path in Path().iterdir() if path.suffix != ".pt"] == ["s.sqlite"]


def test_a_result_is_of_one_content_and_of_its_options(make_task: MakeTask) -> None:
    task = make_task("good")
    with Store(FILE, writes=True) as store:
        store.add(task, ALL_GOOD)
    (found,) = read_results(FILE)
    assert not found.is_of(make_task("another", name="good.pt"))
    assert not found.is_of(make_task("good", "audit:vulkan:2.6"))


def test_a_disk_that_gets_full_loses_nothing(make_task: MakeTask) -> None:
    names = [f"{number}.pt" for number in range(200)]
    added = 0
    with Store(FILE, writes=True) as store:
        store._connection.execute("PRAGMA max_page_count=12")  # SQLite's own way to be out of room
        with pytest.raises(InputError, match=r"can't write s\.sqlite: the disk is full .* the same command goes on"):
            for name in names:
                store.add(make_task("good", name=name), Outcome("bad", "x" * 3000))
                added += 1
    assert 0 < added < len(names)
    assert len(read_results(FILE)) == added


@pytest.mark.parametrize("start", [0, 20, 4000])
def test_damaged_files(make_task: MakeTask, start: int) -> None:
    with Store(FILE, writes=True) as store:
        for number in range(20):
            store.add(make_task("good", name=f"{number}.pt"), Outcome("bad", "x" * 500))
    content = bytearray(FILE.read_bytes())
    content[start : start + 3000] = b"\xa5" * 3000
    FILE.write_bytes(content)
    for writes in (False, True):
        with (
            pytest.raises(InputError, match=r"s\.sqlite is (damaged|no database|a database of another program)"),
            Store(FILE, writes),
        ):
            pass
    assert FILE.read_bytes() == content


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    other, text, missing = tmp_path / "other.db", tmp_path / "text.db", tmp_path / "missing.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE result (x)")
    connection.close()
    text.write_text("no database")
    with pytest.raises(InputError, match="another program"), Store(other, writes=True):
        pass
    with pytest.raises(InputError, match="is no database, or its beginning"), Store(text, writes=True):
        pass
    with pytest.raises(InputError, match=r"^there is no sweep"):
        read_results(missing)
    assert not missing.exists() and text.read_text() == "no database"


def test_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with (
        Store(path, writes=True),
        pytest.raises(InputError, match="another sweep is writing"),
        Store(path, writes=True),
    ):
        pass
    with Store(path, writes=True):
        pass


def test_a_row_that_somebody_changed(make_task: MakeTask) -> None:
    with Store(FILE, writes=True) as store:
        store.add(make_task("good"), ALL_GOOD)
    connection = sqlite3.connect(FILE)
    with connection:
        connection.execute("UPDATE result SET data = '[1'")
    connection.close()
    with pytest.raises(InputError, match="damaged"):
        read_results(FILE)
