"""What a sweep consists of: a task is a model, what is done with it, and for which target. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Any

from mobopt.errors import InputError
from mobopt.options import (
    DEFAULT_LEGALIZE,
    DEFAULT_RUNTIME,
    OWN_RUNTIME,
    parse_backend,
    parse_legalize,
    parse_runtime,
)

AUDIT, CONVERT, COMPARE, BENCH = "audit", "convert", "compare", "bench"
JOBS = {
    AUDIT: "what the phone's runtime does with each operator",
    CONVERT: "write the phone's file, compared with the model",
    COMPARE: "layer by layer: the model on the CPU, and converted on the device",
    BENCH: "time and memory on the device, beside eager PyTorch on the CPU",
}
"""What can be done with a model."""
ON_DEVICE = (COMPARE, BENCH)
"""Jobs that run on a device; the others are the same for all of them."""
CPU, VULKAN = "cpu", "vulkan"
"""Devices: the reference interpreter, and the best Vulkan device; any other is a part of a name or a number."""

GOOD, BAD, REFUSED, FAULT, TIMEOUT, MEMORY, CRASHED, KILLED, LOST = (
    "good", "bad", "refused", "fault", "timeout", "memory", "crashed", "killed", "lost",
)  # fmt: skip
STATES = {
    GOOD: "it ran, and the answer is yes",
    BAD: "it ran, and the answer is no: wrong, missing or different",
    REFUSED: "the model can't be used so; the message says why",
    FAULT: "an error that nobody foresaw; the log has the traceback",
    TIMEOUT: "it took longer than it may",
    MEMORY: "it took more memory than it may",
    CRASHED: "its process ended by itself, as after an invalid access of memory",
    KILLED: "somebody killed its process, twice",
    LOST: "the worker was lost, twice",
}
"""How a task can end, and what that says."""


@dataclass(frozen=True, order=True)
class Job:
    """Something to do with each model, for one target.

    Attributes:
        do: one of :data:`JOBS`.
        backend: ``vulkan``, ``metal`` or ``cpu``.
        runtime: a release of PyTorch Mobile, or mobopt's own runtime.
        device: where it runs; empty for jobs that run on none.
    """

    do: str
    backend: str = VULKAN
    runtime: str = DEFAULT_RUNTIME
    device: str = ""

    @classmethod
    def parse(cls, text: str) -> Job:
        """A job from its text: ``audit``, ``convert:vulkan:2.6``, ``bench:vulkan:mobopt:llvmpipe``.

        Raises:
            InputError: a part of it is not known.
        """
        parts = text.split(":", 3)
        return jobs_of(parts[:1], parts[1:2] or [VULKAN], parts[2:3] or [DEFAULT_RUNTIME], parts[3:4] or [VULKAN])[0]

    @property
    def target(self) -> str:
        """Backend, runtime and device in words."""
        return " ".join(part for part in (self.backend, self.runtime, self.device) if part)

    def __str__(self) -> str:
        return f"{self.do} {self.target}"


def jobs_of(do: Sequence[str], backends: Sequence[str], runtimes: Sequence[str], devices: Sequence[str]) -> list[Job]:
    """Every combination, each once.

    Raises:
        InputError: a job is not known, or nothing is left to do.
        MoboptError: there is no such backend or runtime.
    """
    for name in do:
        if name not in JOBS:
            close = get_close_matches(name, JOBS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(JOBS)}"
            raise InputError(f"there is no job {name!r}; {hint}")
    targets = list(product(map(parse_backend, backends), map(parse_runtime, runtimes)))
    found = dict.fromkeys(job for name in do for target in targets for job in _for_target(name, *target, devices))
    if not found:
        raise InputError(
            f"there is nothing to do: an audit is of a release of PyTorch Mobile, not of the runtime {OWN_RUNTIME}; "
            "choose another job or runtime"
        )
    return list(found)


def _for_target(do: str, backend: str, runtime: str, devices: Sequence[str]) -> Iterator[Job]:
    if do == AUDIT and runtime == OWN_RUNTIME:
        return
    if do not in ON_DEVICE:
        yield Job(do, backend, runtime)
        return
    if not devices:
        raise InputError(f"the job {do} runs on a device; give --device cpu, vulkan, a number or a part of a name")
    for device in devices:
        yield Job(do, backend, runtime, device)


@dataclass(frozen=True)
class Options:
    """What decides about results, beside the job.

    Attributes:
        random: inputs of model files, such as ``1,3,224,224``; without them, those that come with a file, or guesses.
        legalize: how far conversions rewrite.
        repeat: timed calls of a measurement, at most; fewer where ten seconds are not enough.
        tolerance: of comparisons, over the largest magnitude of a value.
    """

    random: tuple[str, ...] = ()
    legalize: str = DEFAULT_LEGALIZE
    repeat: int = 20
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        parse_legalize(self.legalize)

    def text(self, job: Job) -> str:
        """Those that matter to a job, to tell whether a result is of the same task."""
        left_out = {AUDIT: ("repeat", "tolerance"), CONVERT: ("repeat", "tolerance"), COMPARE: ("repeat",)}
        values = dataclasses.asdict(self)
        for name in left_out.get(job.do, ("tolerance",)):
            del values[name]
        return json.dumps(values, sort_keys=True)


@dataclass(frozen=True)
class Limits:
    """What one task may take.

    Attributes:
        seconds: of wall time.
        memory: bytes beyond what Python and torch take; 0: as much as there is. Kept on Linux.
        threads: of the CPU; 0: as many as torch takes.
    """

    seconds: float = 600.0
    memory: int = 8_000_000_000
    threads: int = 0


@dataclass(frozen=True)
class Model:
    """A model by name.

    Attributes:
        name: the path of a file, or ``module:callable``, which gives a model and its example inputs.
        digest: SHA-256 of a file; empty for a callable.
        size: of a file, in bytes.
    """

    name: str
    digest: str = ""
    size: int = 0

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and no callable."""
        return bool(self.digest)


@dataclass(frozen=True)
class Task:
    """One job on one model."""

    model: Model
    job: Job
    options: Options = Options()
    limits: Limits = Limits()

    def data(self) -> dict[str, Any]:
        """As plain data, which any worker can read."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Task:
        """The task from :meth:`data`, also after JSON."""
        options = {**data["options"], "random": tuple(data["options"]["random"])}
        return cls(Model(**data["model"]), Job(**data["job"]), Options(**options), Limits(**data["limits"]))

    def __str__(self) -> str:
        return f"{self.model.name}: {self.job}"


@dataclass(frozen=True)
class Outcome:
    """How a task ended.

    Attributes:
        state: one of :data:`STATES`.
        text: the result in a few words, or the message of an error.
        data: the result, by name.
        log: what the task's process wrote; empty if it ended well.
        seconds: that it took.
        attempts: how often it was begun.
        worker: the machine that it ran on.
    """

    state: str
    text: str = ""
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0
    attempts: int = 1
    worker: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it ran and the answer is yes."""
        return self.state == GOOD


def tasks_of(models: Iterable[Model], jobs: Sequence[Job], options: Options, limits: Limits) -> list[Task]:
    """All jobs on all models, model by model."""
    return [Task(model, job, options, limits) for model in models for job in jobs]
