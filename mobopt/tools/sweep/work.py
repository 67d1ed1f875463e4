"""The process of one task: ``python -m mobopt.tools.sweep.work FOLDER MODEL``, with the task on standard input.

It writes the outcome into the folder, and ends when standard input does, since then nobody waits for it any more.
"""

from __future__ import annotations

import copy
import dataclasses
import faulthandler
import importlib
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.display import finite
from mobopt.errors import InputError, MoboptError
from mobopt.files import whole_file
from mobopt.frontends.open_source import source_of, whole_source_of
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.options import DEFAULT_LEGALIZE, Settings
from mobopt.samples.example_inputs import ChosenInputs
from mobopt.tools.sweep.jobs import (
    AUDIT,
    BAD,
    BENCH,
    COMPARE,
    CONVERT,
    CPU,
    FAULT,
    GOOD,
    MEMORY,
    REFUSED,
    VULKAN,
    Outcome,
    Task,
)
from mobopt.tools.sweep.processes import RESULT, WHERE

_MEASURING_SECONDS = 10.0
_FEWEST_CALLS = 3
_CAUSES = 5
_NO_MEMORY = "can't allocate memory"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with its example inputs, if any are given."""

    model: object
    inputs: Sequence[Any] | None


def main() -> None:
    """Do the task, and write how it ended."""
    if WHERE is not None:
        faulthandler.register(WHERE)
    task = Task.of(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_worker, daemon=True).start()
    _limit_memory(task.limits.memory)
    outcome = _guarded(task, sys.argv[2])
    outcome.data["torch"] = torch.__version__
    with whole_file(Path(sys.argv[1]) / RESULT) as file:
        file.write(json.dumps(finite(dataclasses.asdict(outcome))).encode())
    sys.stdout.flush()
    os._exit(0)  # what drivers do at the end of a process is no part of the task


def _end_with_worker() -> None:
    sys.stdin.read()
    os._exit(1)


def _limit_memory(budget: int) -> None:
    """Bound the memory that can be written, beyond what is taken already; drivers reserve addresses without end."""
    status = Path("/proc/self/status")
    if not budget or not status.exists():
        return
    import resource

    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    limit = int(lines["VmData"].split()[0]) * 1024 + budget
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _guarded(task: Task, path: str) -> Outcome:
    try:
        return do(task, path)
    except MoboptError as error:
        return Outcome(REFUSED, str(error))
    except Exception as error:
        if isinstance(error, MemoryError) or _NO_MEMORY in str(error):
            return Outcome(MEMORY, f"it took more than {task.limits.memory / 1e9:g} GB")
        traceback.print_exc()
        return Outcome(FAULT, f"{type(error).__name__}: {error}")


def do(task: Task, path: str) -> Outcome:
    """What becomes of a task.

    Args:
        task: what to do.
        path: where the model's file is here, or the name of a callable.

    Raises:
        MoboptError: the model or the target can't be used.
    """
    works: dict[str, Callable[[Task, Subject], Outcome]] = {
        AUDIT: _audit,
        CONVERT: _convert,
        COMPARE: _compare,
        BENCH: _bench,
    }
    return works[task.job.do](task, _subject(task, path))


def _subject(task: Task, path: str) -> Subject:
    if task.model.is_file:
        from mobopt.samples.inputs import random_inputs

        return Subject(Path(path), random_inputs(task.options.random) if task.options.random else None)
    made = _called(path)
    if not isinstance(made, tuple) or len(made) != 2:
        raise InputError(f"{path} gives {type(made).__name__}; it must give a model and the list of its example inputs")
    model, inputs = made
    return Subject(model, [inputs] if isinstance(inputs, torch.Tensor) else inputs)


def _called(name: str) -> Any:
    """What a callable of a module gives.

    Raises:
        InputError: there is none of this name here.
    """
    module_name, _, attributes = name.partition(":")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"there is no {name} here: {error}; start workers where the module can be imported (PYTHONPATH)"
        ) from None
    return found()


def _settings(task: Task) -> Settings:
    return Settings(task.job.backend, task.job.runtime, legalize=task.options.legalize)


def _audit(task: Task, subject: Subject) -> Outcome:
    from mobopt.tools.audit import audit

    found = audit(
        subject.model,  # type: ignore[arg-type]
        task.job.backend,
        task.job.runtime,
        subject.inputs,
        legalize=None if task.options.legalize == DEFAULT_LEGALIZE else task.options.legalize,
    )
    share = f"{found.gpu_share:.0%} of arithmetic on the GPU" if found.gpu_share is not None else ""
    on_cpu = found.counts.get("cpu", 0)
    words = [*found.problems, *([share] if share else []), *([f"{on_cpu} on the CPU"] if on_cpu else [])]
    data = {
        "counts": found.counts,
        "problems": found.problems,
        "gpu_share": found.gpu_share,
        "on_cpu": on_cpu,
        "causes": [dataclasses.asdict(cause) for cause in found.causes[:_CAUSES]],
        "inputs": found.inputs,
    }
    return Outcome(GOOD if found.is_good else BAD, ", ".join(words) or "all native", data)


def _convert(task: Task, subject: Subject) -> Outcome:
    from mobopt.tools.conversion import ConversionRefusedError, convert_file

    source = subject.model if isinstance(subject.model, Path) else source_of(subject.model, (), subject.inputs)
    output = Path(sys.argv[1]) / "model.ptl"
    try:
        found = convert_file(source, output, _settings(task), example_inputs=subject.inputs)
    except ConversionRefusedError as error:
        lacks = {f"{lack.operator} is {lack.verdict}: {lack.why}" for lack in error.lacks}
        return Outcome(BAD, str(error), {"lacks": sorted(lacks)})
    data = {
        "bytes": found.size,
        "error": found.relative_difference,
        "on_cpu": len(found.on_cpu) + found.beside,
        "fixed_to_sizes": len(found.fixed),
        "operators": sum(found.operators_after.values()),
        "inputs": found.inputs,
        "seconds": found.seconds,
    }
    difference = found.relative_difference
    agreement = "not compared" if difference is None else f"error {difference:.1e}"
    return Outcome(GOOD, f"{agreement}, {found.size / 1e6:.1f} MB", data)


def _compare(task: Task, subject: Subject) -> Outcome:
    from mobopt.passes.pipelines import PassPipeline
    from mobopt.tools.comparison import compare

    passes = PassPipeline.default(task.job.backend, runtime=task.job.runtime, legalize=task.options.legalize)
    found = compare(
        subject.model,
        device_b=task.job.device,
        passes_b=passes,
        example_inputs=subject.inputs,
        tolerance=task.options.tolerance,
    )
    worst = max((output.difference.error for output in found.outputs), default=0.0)
    first = found.first
    data = {
        "error": worst,
        "layers": len(found.layers),
        "wrong": len(found.culprits),
        "first": None if first is None else f"{first.title} ({first.verdict})",
        "source": "" if first is None or not first.source else first.source[-1],
        "inputs": found.inputs,
        "device": found.other,
    }
    place = f"; first {data['first']}" if first is not None and not found.agrees else ""
    return Outcome(GOOD if found.agrees else BAD, f"error {worst:.1e}{place}", data)


def _bench(task: Task, subject: Subject) -> Outcome:
    source = whole_source_of(subject.model, subject.inputs)
    program, inputs = _program(task, subject, source)
    arguments = inputs.by_method.get("forward")
    if arguments is None:
        raise InputError(f"no inputs are known that {source.name} takes; give them with --random 1,3,224,224")
    load = _load()
    call, data = _prepared(program, task.job.device, arguments)
    eager = source.caller()
    with torch.no_grad():
        own, theirs = measured(
            (lambda: call(copy.deepcopy(list(arguments))), lambda: eager(copy.deepcopy(list(arguments)))),
            task.options.repeat,
        )
    data |= {"ms": own, "eager_ms": theirs, "inputs": str(inputs), "threads": torch.get_num_threads(), "load": load}
    median, eager_median = statistics.median(own), statistics.median(theirs)
    return Outcome(GOOD, f"{median:.3g} ms, eager {eager_median:.3g} ms", data)


def _program(task: Task, subject: Subject, source: Source) -> tuple[Program, ChosenInputs]:
    """What is measured, an optimised file as it is or a model after the passes of the job, and its inputs."""
    from mobopt.optimizer import optimize
    from mobopt.samples.example_inputs import choose_inputs
    from mobopt.tools.optimized_files import is_optimized

    if isinstance(subject.model, Path) and is_optimized(subject.model):
        return source.program, choose_inputs(source, subject.inputs)
    optimized = optimize(source, _settings(task), subject.inputs)
    return optimized.program, optimized.inputs if optimized.inputs.by_method else choose_inputs(source)


def _load() -> float | None:
    """How many processes want each core at the moment; None where the system does not tell."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def _prepared(
    program: Program, device: str, arguments: Sequence[Any]
) -> tuple[Callable[[list[Any]], Any], dict[str, Any]]:
    """What runs ``forward`` on a device, and what is known of it."""
    if device == CPU:
        from mobopt.runtimes.cpu import Interpreter

        interpreter = Interpreter(program)
        return lambda args: interpreter.run("forward", args), {"device": "CPU (reference interpreter)"}
    from mobopt.runtimes.vulkan.program import VulkanProgram

    started = time.perf_counter()
    runtime = VulkanProgram(program, None if device == VULKAN else device)
    report = runtime.plan_report(copy.deepcopy(list(arguments)))
    data: dict[str, Any] = {
        "device": str(runtime.device.info),
        "preparation_ms": (time.perf_counter() - started) * 1000,
        "dispatches": report.dispatches,
        "on_cpu": [str(fallback) for fallback in report.fallbacks],
    }
    if report.memory is not None:
        data |= {"peak_bytes": report.memory.peak_bytes, "lower_bound_bytes": report.memory.lower_bound_bytes}
    return lambda args: runtime.run("forward", args), data


def measured(calls: Sequence[Callable[[], Any]], repeat: int) -> list[list[float]]:
    """Milliseconds of each call, measured in turn; the first of each is not counted."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + _MEASURING_SECONDS
    for number in range(repeat + 1):
        for call, found in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            if number:
                found.append((time.perf_counter() - started) * 1000)
        if number >= _FEWEST_CALLS and time.perf_counter() > end:
            break
    return times


if __name__ == "__main__":
    main()
