"""A model in mobopt beside its rivals, in one run: agreement first, then times by turns, starts and memory."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mobopt.errors import InputError, MoboptError
from mobopt.ir.nests import leaves_of
from mobopt.samples.agreement import Agreement, compare
from mobopt.samples.example_inputs import ExampleInputs
from mobopt.tools.bench_folder import Prepared, open_saved, prepare
from mobopt.tools.bench_peers import PEERS, SLOW_TO_COMPILE, Mobopt
from mobopt.tools.bench_rival import Bench, Call

UNTIMED, TIMED = 2, 3
"""Calls of a contestant in each round, untimed ones at least."""
_WARM_SECONDS = 0.1
"""In untimed calls: processors, devices and pools of threads that were idle are slow to wake."""
_WAIT, _MOST_WAITS = 0.02, 25
"""Seconds at a time, and how often, for threads to end."""
_START_SECONDS = 600
_CACHES = (
    *("MOBOPT_CACHE_DIR", "XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "CUDA_CACHE_PATH"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
)
"""Variables that name the folders in which mobopt, drivers and compilers keep what they have made."""


@dataclass(frozen=True)
class Start:
    """A process's way to its first result: without anything kept by an earlier one (cold), and after that (warm)."""

    cold_seconds: float
    warm_seconds: float
    torch_seconds: float
    """Of importing torch, in the warm one."""
    host_bytes: int | None
    """Peak of the warm process."""
    device_bytes: int | None
    """Peak memory of the device, where the contestant tells."""


@dataclass(frozen=True)
class Entry:
    """A contestant's line of the table.

    Attributes:
        name: of the contestant.
        where: the device in words.
        agreement: of its result with the model's own; None if it gave none.
        seconds: of each call, back to back.
        paused_seconds: of each call after a pause.
        start: None if starts were not measured.
        problem: why there is nothing more: not installed, or what went wrong.
    """

    name: str
    where: str = ""
    agreement: Agreement | None = None
    seconds: tuple[float, ...] = ()
    paused_seconds: tuple[float, ...] = ()
    start: Start | None = None
    problem: str = ""


@dataclass(frozen=True)
class Table:
    """What was measured."""

    model: str
    inputs: str
    entries: tuple[Entry, ...]
    pause: float
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether mobopt ran, and its result agrees with the model's."""
        own = next(entry for entry in self.entries if entry.name == Mobopt.name)
        return own.agreement is not None and own.agreement.agrees


def bench(
    path: Path,
    example_inputs: ExampleInputs | None = None,
    *,
    peers: Sequence[str] | None = None,
    device: str | None = None,
    method: str = "forward",
    rounds: int = 5,
    seconds: float = 3.0,
    pause: float = 0.0,
    threads: int = 0,
    starts: bool = True,
    keep_clock: bool = False,
    show: Callable[[str], None] = lambda step: None,
) -> Table:
    """Measure a model in mobopt and in rivals that are installed.

    Args:
        path: a model, a file that is optimised for any backend, or a folder that
            :func:`~mobopt.tools.bench_folder.save_bench` wrote, which has its own inputs and method.
        example_inputs: arguments by method; without them, those bundled, of shapes traced or declared, or guessed.
        peers: names of :data:`~mobopt.tools.bench_peers.PEERS`; None for all but those that compile for minutes.
        device: what mobopt runs on; None for the best.
        method: which method.
        rounds: of all contestants in turn, at least.
        seconds: for rounds, at least.
        pause: seconds before each call of a second measurement; 0 leaves it out.
        threads: of torch and onnxruntime on the CPU; 0 for torch's choice.
        starts: whether cold and warm starts, and peak memory, are measured in processes of their own.
        keep_clock: whether mobopt keeps the clock of an NVIDIA GPU up between calls.
        show: is told each step.

    Raises:
        MoboptError: the model, an input or a name can't be used.
    """
    names = _chosen(peers)
    with tempfile.TemporaryDirectory(prefix="mobopt-bench-") as folder:
        if path.is_dir():
            if example_inputs is not None or method != "forward":
                raise InputError(f"{path.name} is a folder with inputs and a method of its own; leave out others")
            model = open_saved(path)
            shutil.copytree(path, folder, dirs_exist_ok=True)  # rivals write beside their files
        else:
            model = prepare(path, Path(folder), example_inputs, method, show)
        place = Bench(Path(folder), model.method, threads, device, keep_clock)
        entries: dict[str, Entry] = {}
        calls: dict[str, Call] = {}
        for name in names:
            show(f"opening {name}")
            entries[name], call = _opened(name, place, model)
            if call is not None:
                calls[name] = call
        show("measuring calls")
        for name, times in by_turns(calls, rounds, seconds).items():
            entries[name] = replace(entries[name], seconds=times)
        if pause:
            show(f"measuring calls with pauses of {pause:g} s")
            for name, times in with_pauses(calls, rounds * TIMED, pause).items():
                entries[name] = replace(entries[name], paused_seconds=times)
        for name in calls if starts else ():
            show(f"measuring starts of {name}")
            entries[name] = _with_start(entries[name], place)
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    return Table(model.name, model.inputs, tuple(entries.values()), pause, versions)


def _chosen(peers: Sequence[str] | None) -> list[str]:
    if peers is None:
        return [name for name in PEERS if name not in SLOW_TO_COMPILE]
    for name in peers:
        if name not in PEERS:
            raise InputError(f"there is no rival {name!r}; choose from {', '.join(list(PEERS)[1:])}")
    return list(dict.fromkeys([Mobopt.name, *peers]))


def _opened(name: str, place: Bench, model: Prepared) -> tuple[Entry, Call | None]:
    """A contestant after its first call; no call where it can't run, or gives something else."""
    peer = PEERS[name]
    problem = peer.missing()
    if problem:
        return Entry(name, problem=problem), None
    try:
        with _quiet():
            model.write(place.file(peer.form))
            contestant = peer.open(place)
            agreement = compare(_leaves(contestant.call()), model.expected)
    except Exception as error:  # whatever a rival raises is its line of the table
        if name == Mobopt.name and isinstance(error, MoboptError):
            raise
        return Entry(name, problem=f"{type(error).__name__}: {_first_line(error)}"), None
    entry = Entry(name, contestant.where, agreement)
    if agreement.relative > peer.tolerance:
        return replace(entry, problem="its result is another, so its times say nothing"), None
    return entry, contestant.call


@contextmanager
def _quiet() -> Iterator[None]:
    """What rivals print from C goes to standard error: standard output is for the table."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _leaves(result: Any) -> list[torch.Tensor]:
    return list(leaves_of(result, torch.Tensor))


def by_turns(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, tuple[float, ...]]:
    """Seconds of each call of each contestant, in rounds of all of them, so that a busy machine slows them alike.

    Threads of libraries for the CPU spin on after a call, and take the cores from who comes next: each waits for their
    end, and calls untimed until a device's clock is up again.

    Args:
        calls: by name.
        rounds: at least.
        seconds: of work, at least.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    deadline = time.perf_counter() + seconds
    done = 0
    while calls and (done < rounds or time.perf_counter() < deadline):
        for name, call in calls.items():
            _await_idle_threads()
            _warm_up(call)
            times[name].extend(_timed(call) for _ in range(TIMED))
        done += 1
    return {name: tuple(each) for name, each in times.items()}


def _await_idle_threads() -> None:
    """Wait until this process computes nothing, for half a second at most."""
    for _ in range(_MOST_WAITS):
        before = time.process_time()
        time.sleep(_WAIT)
        if time.process_time() - before < _WAIT / 4:
            return


def _warm_up(call: Call) -> None:
    """Untimed calls, for a while."""
    deadline = time.perf_counter() + _WARM_SECONDS
    for number in count():
        if number >= UNTIMED and time.perf_counter() >= deadline:
            return
        call()


def with_pauses(calls: Mapping[str, Call], times_each: int, pause: float) -> dict[str, tuple[float, ...]]:
    """The same, with a pause before every call, as between the frames of a camera: clocks fall in it."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times_each):
        for name, call in calls.items():
            _await_idle_threads()
            time.sleep(pause)
            times[name].append(_timed(call))
    return {name: tuple(each) for name, each in times.items()}


def _timed(call: Call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def spread(seconds: Iterable[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    values = sorted(seconds)
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _with_start(entry: Entry, place: Bench) -> Entry:
    """Two processes, the first with empty caches, the second with what the first left there."""
    with tempfile.TemporaryDirectory(prefix="mobopt-start-") as folder:
        try:
            cold, warm = (_start(entry.name, place, Path(folder)) for _ in range(2))
        except (subprocess.SubprocessError, ValueError) as error:
            return replace(entry, problem=f"a process of its own failed: {_first_line(error)}")
    start = Start(cold["seconds"], warm["seconds"], warm["torch"], warm["host"], warm["device"])
    return replace(entry, start=start)


def _start(name: str, place: Bench, caches: Path) -> dict[str, Any]:
    order = {
        "folder": str(place.folder),
        "method": place.method,
        "threads": place.threads,
        "device": place.device,
        "keep_clock": place.keep_clock,
        "peer": name,
    }
    environment = {**os.environ, **{variable: str(caches / variable.lower()) for variable in _CACHES}}
    for variable in _CACHES:
        (caches / variable.lower()).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mobopt.tools.bench_start", json.dumps({**order, "started": time.time()})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_START_SECONDS)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
