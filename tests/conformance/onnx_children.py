"""Judges node cases of ONNX in child processes, with limits of time and memory; a line for each case.

Run as ``python onnx_children.py DEVICE FIRST STEP``: every STEPth case from number FIRST on.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import torch
from onnx_judging import Outcome, Verdict, case_modules, cases_of, judge

SECONDS = 120
"""Of one case, with the making of its pipelines."""
MEMORY = 6 << 30
"""Of addresses, beside what a process has before its first case."""


def all_cases() -> list[Any]:
    """All cases, in the order of their names."""
    return sorted(cases_of(case_modules()), key=lambda case: str(case.name))


def judged_in_children(device: str, jobs: int) -> Iterator[tuple[str, Outcome]]:
    """Names and outcomes of all cases, from so many processes at a time."""
    count = len(all_cases())
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda first: list(_judged(device, first, jobs, count)), range(jobs)):
            yield from found


def _judged(device: str, first: int, step: int, count: int) -> Iterator[tuple[str, Outcome]]:
    """The outcomes of every ``step``th case; a child that dies is started anew behind the case that it died of."""
    at = first
    while at < count:
        command = [sys.executable, __file__, device, str(at), str(step)]
        name = ""
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                word, _, rest = line.rstrip().partition(" ")
                if word == "case":
                    name, at = rest, at + step
                elif word == "done":
                    yield name, _outcome(json.loads(rest))
                    name = ""
            _, errors = child.communicate()
        if child.returncode and not name:
            raise RuntimeError(f"a child died outside of its cases: {errors[-2000:]}")
        if child.returncode:
            yield name, Outcome(Verdict.CRASHED, _death(child.returncode))


def _outcome(data: list[Any]) -> Outcome:
    return Outcome(Verdict[data[0]], data[1], data[2])


def _death(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"it takes more than {SECONDS} s"
    return f"its process died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


def main(device: str, first: int, step: int) -> None:
    """Judge cases, each within the limits."""
    logging.getLogger("mobopt").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    cases = all_cases()[first::step]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    for case in cases:
        print(f"case {case.name}", flush=True)
        for seeded in (torch.manual_seed, numpy.random.seed, random.seed):
            seeded(0)
        signal.alarm(SECONDS)
        outcome = judge(case, device)
        signal.alarm(0)
        print(f"done {json.dumps([outcome.verdict.name, outcome.reason, outcome.dispatches])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
