"""What is to be done, on which models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mobopt.errors import InputError, MoboptError
from mobopt.tools.sweep.jobs import Job, Limits, Options, Task, jobs_of, tasks_of
from mobopt.tools.sweep.models import find_models


def test_every_combination_once_and_devices_only_where_they_matter() -> None:
    found = jobs_of(["audit", "bench", "audit"], ["vulkan"], ["2.1", "mobopt"], ["cpu", "vulkan"])
    assert [str(job) for job in found] == [
        "audit vulkan 2.1",  # mobopt's own runtime has nothing to audit
        "bench vulkan 2.1 cpu",
        "bench vulkan 2.1 vulkan",
        "bench vulkan mobopt cpu",
        "bench vulkan mobopt vulkan",
    ]


@pytest.mark.parametrize(
    ("do", "backend", "runtime", "devices", "words"),
    [
        ("convret", "vulkan", "2.1", (), "did you mean convert?"),
        ("xyz", "vulkan", "2.1", (), "choose from audit, convert, compare, bench"),
        ("audit", "opengl", "2.1", (), "Unknown backend"),
        ("audit", "vulkan", "3.0", (), "'3.0'"),
        ("audit", "vulkan", "mobopt", (), "nothing to do"),
        ("bench", "vulkan", "2.1", (), "give --device"),
    ],
)
def test_what_is_not_known(do: str, backend: str, runtime: str, devices: tuple[str, ...], words: str) -> None:
    with pytest.raises(MoboptError, match=words):
        jobs_of([do], [backend], [runtime], devices)


def test_jobs_from_text() -> None:
    assert Job.parse("audit") == Job("audit", "vulkan", "2.1")
    assert Job.parse("convert:metal:2.0") == Job("convert", "metal", "2.0")
    assert Job.parse("bench:vulkan:mobopt:Mali-G78: r1") == Job("bench", "vulkan", "mobopt", "Mali-G78: r1")
    with pytest.raises(InputError, match="no job 'x'"):
        Job.parse("x:vulkan")


def test_tasks_survive_json(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("a")
    models = [*find_models([tmp_path / "a.pt"]), *find_models(["package.module:make"])]
    tasks = tasks_of(models, [Job.parse("audit"), Job.parse("bench")], Options(("1,3,5,5",)), Limits(3.5, 10, 2))
    assert len(tasks) == 4
    assert [Task.of(json.loads(json.dumps(task.data()))) for task in tasks] == tasks


def test_options_count_for_the_jobs_that_they_are_about() -> None:
    few, many = Options(repeat=3), Options(repeat=9)
    assert few.text(Job("audit")) == many.text(Job("audit"))
    assert few.text(Job("bench")) != many.text(Job("bench"))
    assert Options(tolerance=1e-3).text(Job("compare")) != Options().text(Job("compare"))
    with pytest.raises(InputError, match="legalize is 'much'"):
        Options(legalize="much")


def test_models_by_file_folder_pattern_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("zoo/a.pt", "zoo/deep/b.onnx", "zoo/deep/notes.txt", "c.bin"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    names = [model.name for model in find_models(["c.bin", "zoo", "zoo/**/*.onnx", "torch.nn:Identity", find_models])]
    assert names == [
        "c.bin",
        "zoo/a.pt",
        "zoo/deep/b.onnx",
        "torch.nn:Identity",
        "mobopt.tools.sweep.models:find_models",
    ]
    before = find_models(["c.bin"])[0].digest
    Path("c.bin").write_text("other")
    assert find_models(["c.bin"])[0].digest != before


@pytest.mark.parametrize("name", ["nothing.pt", "*.pt", "empty", "a:b:c", ""])
def test_models_that_are_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(InputError, match=r"no model|no file" if name else "no model"):
        find_models([name or "empty"])


def test_functions_that_no_worker_can_import() -> None:
    for function in (lambda: None, 3):
        with pytest.raises(InputError, match="can't be sent to a worker"):
            find_models([function])  # type: ignore[list-item]
