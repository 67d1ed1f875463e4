"""Sweeps on clusters of Dask: in this process, and with workers of their own processes, one of which is killed."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import mobopt
from mobopt.errors import InputError
from mobopt.tools.sweep import coordinator, processes
from mobopt.tools.sweep.jobs import Job, Limits, Options, Outcome, Task, tasks_of
from mobopt.tools.sweep.models import find_models
from mobopt.tools.sweep.store import Store, read_results
from mobopt.tools.sweep.sweeping import Progress, Swept, sweep

MakeTask = Callable[..., Task]
FILE = Path("s.sqlite")
STUB = Path(__file__).with_name("stub_work.py")
PRELUDE = f"from mobopt.tools.sweep import processes; processes.PROGRAM = ({str(STUB)!r},); "
if not os.environ.get("CI"):  # there, what is not installed must not pass for success
    pytest.importorskip("distributed")


def outcomes() -> dict[str, Outcome]:
    return {result.model: result.outcome for result in read_results(FILE)}


def test_local_cluster(make_task: MakeTask, stub: None, tmp_path: Path) -> None:
    tasks = [make_task(what) for what in ("good", "bad", "killed", f"killed-once {tmp_path / 'flag'}")]
    tasks += [make_task("good", "bench:vulkan:2.1:cpu"), make_task("good", "bench:vulkan:2.1:vulkan")]
    seen: list[tuple[int, str]] = []
    swept = sweep(
        tasks, FILE, workers=2, show=lambda progress, task, outcome: seen.append((progress.done, task.job.do))
    )
    assert swept == Swept(6, 0, 2)
    assert [number for number, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [do for _, do in seen[4:]] == ["bench", "bench"]  # alone, when all else is done
    found = outcomes()
    assert (found["killed-once.pt"].state, found["killed-once.pt"].attempts) == ("good", 2)
    assert (found["killed.pt"].state, found["killed.pt"].attempts) == ("killed", 2)
    assert found["bad.pt"].state == "bad" and found["bad.pt"].log == "doing bad\n"


def test_a_sweep_that_was_stopped_goes_on(make_task: MakeTask, stub: None) -> None:
    tasks = [make_task("good", name=f"{number}.pt") for number in range(4)]

    def interrupt(progress: Progress, task: Task, outcome: Outcome) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(tasks, FILE, workers=1, show=interrupt)
    assert len(outcomes()) == 2
    ran: list[Task] = []
    changed = make_task("good ", name="0.pt")  # another content: its result is of another model
    assert sweep(
        [changed, *tasks[1:]], FILE, workers=1, show=lambda progress, task, outcome: ran.append(task)
    ) == Swept(4, 1, 0)
    assert len(ran) == 3 and ran[0] == changed
    assert sweep([changed, *tasks[1:]], FILE) == Swept(4, 4, 0)


def test_what_ended_in_no_answer_can_be_done_again(make_task: MakeTask, stub: None) -> None:
    tasks = [make_task("refused"), make_task("bad")]
    assert sweep(tasks, FILE, workers=1) == Swept(2, 0, 2)
    assert sweep(tasks, FILE, workers=1) == Swept(2, 2, 2)
    assert sweep(tasks, FILE, workers=1, again=True) == Swept(2, 1, 2)


def test_a_full_disk_in_the_middle(make_task: MakeTask, stub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make_task("bad", name=f"{number}.pt") for number in range(12)]
    add, before = Store.add, len(tasks)

    def filling(store: Store, task: Task, outcome: Outcome) -> None:
        store._connection.execute("PRAGMA max_page_count=10")
        add(store, task, Outcome(outcome.state, outcome.text, log="x" * 9000))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", filling)
        with pytest.raises(InputError, match="the disk is full"):
            sweep(tasks, FILE, workers=2)
    kept = len(outcomes())
    assert 0 < kept < before
    assert sweep(tasks, FILE, workers=2) == Swept(12, kept, 12)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler in a process of its own, without workers; a lost worker costs an attempt at once."""
    code = "from distributed.cli.dask_scheduler import main; main()"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(tmp_path / "scheduler")]
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    command = [sys.executable, "-c", code, *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: address_in(tmp_path / "scheduler") is not None)
            yield str(address_in(tmp_path / "scheduler"))
        finally:
            process.kill()


def address_in(file: Path) -> str | None:
    """What a scheduler has written into its file, which is there before all of it is."""
    try:
        return str(json.loads(file.read_text())["address"])
    except (FileNotFoundError, json.JSONDecodeError):
        return None


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a worker in a process of its own, in a folder of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(address: str, *options: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / f"worker{len(started)}"
        folder.mkdir()
        code = PRELUDE + "from distributed.cli.dask_worker import main; main()"
        command = [sys.executable, "-c", code, address, "--nthreads", "1", "--no-nanny", "--no-dashboard", *options]
        started.append(subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "missing port number in address 'nonsense'"),
        pytest.param("http://127.0.0.1:8787", "unknown address scheme 'http'", marks=pytest.mark.sweep),
        pytest.param("tcp://127.0.0.1:port", "invalid literal", marks=pytest.mark.sweep),
    ],
)
def test_what_is_no_address_is_told_at_once(make_task: MakeTask, address: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(InputError, match=rf"can't reach the scheduler {address}: {message}.*leave --scheduler out"):
        sweep([make_task("good")], FILE, scheduler=address)
    gc.collect()  # a client that was half made waits for 20 seconds when it goes
    assert time.monotonic() - started < 10


def test_two_worker_processes_one_of_which_is_killed(
    make_task: MakeTask,
    scheduler: str,
    start_worker: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The files are not where the workers are, so they are sent."""
    monkeypatch.setattr("mobopt.tools.sweep.cluster._WORKER_SECONDS", 1)
    with pytest.raises(InputError, match="has no workers; start some with: dask worker"):
        sweep([make_task("good")], FILE, scheduler=scheduler)
    monkeypatch.setattr("mobopt.tools.sweep.cluster._WORKER_SECONDS", 60)
    workers = [start_worker(scheduler, "--name", str(number)) for number in range(2)]
    flag, ended = tmp_path / "flag", tmp_path / "flag.ended"
    tasks = [make_task(f"wait-once {flag}"), *(make_task("good", name=f"{number}.pt") for number in range(5))]

    def kill(progress: Progress, task: Task, outcome: Outcome) -> None:
        """At the first result of one worker, the other is at the task that does not end."""
        if progress.done == 1:
            wait_until(lambda: flag.exists() and bool(flag.read_text()))
            owner_of(int(flag.read_text()), workers).kill()
            wait_until(ended.exists)

    assert sweep(tasks, FILE, scheduler=scheduler, show=kill) == Swept(6, 0, 0)
    assert ended.exists()
    found = outcomes()
    assert (found["wait-once.pt"].state, found["wait-once.pt"].attempts) == ("good", 2)
    assert {found[f"{number}.pt"].worker for number in range(5)} == {platform.node()}
    with pytest.raises(InputError, match=r"no worker of tcp://.* offers the resource 'adreno' or 'GPU'.*--resources"):
        sweep([make_task("good", "bench:vulkan:2.1:adreno")], FILE, scheduler=scheduler)


def owner_of(pid: int, workers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """The worker whose process this is."""
    status = Path(f"/proc/{pid}/status").read_text()
    parent = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
    return next(worker for worker in workers if worker.pid == parent)


@pytest.mark.sweep
def test_devices_are_resources_of_workers(
    make_task: MakeTask, scheduler: str, start_worker: Callable[..., subprocess.Popen[bytes]]
) -> None:
    start_worker(scheduler, "--resources", "gpu=1")
    start_worker(scheduler, "--resources", "mali=1")
    task = make_task("good", "bench:vulkan:2.1:mali")
    distributed = pytest.importorskip("distributed")
    with distributed.Client(scheduler) as client:
        client.wait_for_workers(2)
    assert sweep([task, make_task("good", "bench:vulkan:2.1:adreno")], FILE, scheduler=scheduler) == Swept(2, 0, 0)


@pytest.mark.sweep
def test_gpus_of_a_genuine_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two worker processes that do genuine work, one of which has a GPU: what needs a device lands on that one."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    model, inputs = model_and_inputs()
    for name in ("a", "b"):
        torch.jit.save(torch.jit.trace(model, inputs[0]), f"{name}.pt")
    jobs = [Job.parse(text) for text in ("audit", "bench:vulkan:mobopt:llvmpipe", "compare:vulkan:2.6:llvmpipe")]
    tasks = tasks_of(find_models(["a.pt", "b.pt"]), jobs, Options(), Limits())
    common = {"threads_per_worker": 1, "dashboard_address": None, "local_directory": str(tmp_path)}
    with (
        distributed.LocalCluster(n_workers=1, resources={"GPU": 1}, **common) as cluster,
        distributed.Client(cluster) as client,
    ):
        address = cluster.scheduler_address
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
        plain = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            client.wait_for_workers(2, timeout=60)
            assert sweep(tasks, FILE, scheduler=address) == Swept(6, 0, 0)
            found = client.run(lambda dask_worker: sorted({str(entry[0]) for entry in dask_worker.state.log}))
            workers = client.scheduler_info()["workers"]
        finally:
            plain.terminate()
            plain.wait()
    done = {
        bool(workers[place]["resources"]): {key.partition("-")[0] for key in keys if "-" in key}
        for place, keys in found.items()
    }
    assert {"bench", "compare"} <= done[True] and done[False] & {"audit", "bench", "compare"} == {"audit"}


def test_clusters_that_can_not_be_used(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, stub: None) -> None:
    monkeypatch.setattr("mobopt.tools.sweep.cluster._CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense", "tcp://"):
        with pytest.raises(InputError, match=f"can't reach the scheduler {address}"):
            sweep([make_task("good")], FILE, scheduler=address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install mobopt\[sweep\]"):
        sweep([make_task("good")], FILE)
    assert outcomes() == {}


def test_futures(make_task: MakeTask, stub: None) -> None:
    for what in ("good", "refused"):
        make_task(what)
    futures = mobopt.submit(["good.pt", "refused.pt"], ["audit", Job("convert")], workers=1)
    assert [future.result(60).state for future in futures] == ["good", "good", "refused", "refused"]
    assert futures[1].result().text == "convert of good"
    with pytest.raises(InputError, match="no job"):
        mobopt.submit(["good.pt"], ["x"])


def test_futures_of_a_cluster_that_is_not_there(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mobopt.tools.sweep.cluster._CONNECT_SECONDS", 1)
    make_task("good")
    (future,) = mobopt.submit(["good.pt"], ["audit"], scheduler="tcp://127.0.0.1:9")
    with pytest.raises(InputError, match="can't reach the scheduler"):
        future.result(60)


def test_the_remaining_time_goes_by_job(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    audits = [make_task("good", name=f"{number}.pt") for number in range(4)]
    benches = [make_task("good", "bench:vulkan:2.1:cpu", name=f"{number}.pt") for number in range(2)]
    progress = Progress([*audits, *benches], [(audits[0], Outcome("good", seconds=2.0))])
    assert progress.remaining_seconds is None
    now[0] += 5.0  # two at a time: ten seconds of work in five
    progress.add(audits[1], Outcome("bad", seconds=2.0))
    progress.add(benches[0], Outcome("good", seconds=8.0))
    assert progress.remaining_seconds == pytest.approx((2 * 2.0 + 8.0) / 2)
    assert (progress.done, progress.not_good) == (3, 1)


def model_and_inputs() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """A model for workers, by name."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.GELU()).eval(), [torch.randn(1, 3, 7, 9)]


def test_genuine_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, in a process that does import torch."""
    monkeypatch.chdir(Path(__file__).parent)
    (model,) = find_models([f"{Path(__file__).stem}:model_and_inputs"])
    found = [
        Outcome(**processes.run_task(task.data())) for task in tasks_of([model], [Job("convert")], Options(), Limits())
    ]
    assert found[0].state == "good" and found[0].data["error"] < 1e-5, found[0]


@pytest.mark.sweep
@pytest.mark.parametrize("job", ["audit", "convert", "compare:vulkan:2.6:llvmpipe", "bench:vulkan:mobopt:llvmpipe"])
def test_all_genuine_work(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, inputs = model_and_inputs()
    torch.jit.save(torch.jit.trace(model, inputs[0]), "a.pt")
    task = Task(find_models(["a.pt"])[0], Job.parse(job))
    found = Outcome(**processes.run_task(task.data()))
    assert found.state == "good", found
    task = Task(task.model, task.job, Options(("1,4,7,9",)))
    assert processes.run_task(task.data())["state"] == "refused"


@pytest.mark.sweep
def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    for name, state in (("large_model", "memory"), ("no_such_model", "refused"), ("broken_model", "fault")):
        (model,) = find_models([f"{Path(__file__).stem}:{name}"])
        found = Outcome(**processes.run_task(Task(model, Job("audit"), limits=Limits(memory=300_000_000)).data()))
        assert found.state == state, found
    assert "ZeroDivisionError" in found.text and "Traceback" in found.log


def large_model() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    return torch.nn.Linear(10_000, 10_000), [torch.zeros(1, 10_000)]


def broken_model() -> None:
    raise ZeroDivisionError


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.mark.sweep
def test_a_scheduler_that_goes_away(
    make_task: MakeTask,
    start_worker: Callable[..., subprocess.Popen[bytes]],
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "_ALONE_SECONDS", 1.0)
    worker = start_worker(scheduler)
    tasks = [make_task("good"), make_task("sleep")]

    def kill(progress: Progress, task: Task, outcome: Outcome) -> None:
        worker.kill()

    with pytest.raises(InputError, match="has had no worker"):
        sweep(tasks, FILE, scheduler=scheduler, show=kill)
    assert outcomes()["good.pt"].state == "good"
