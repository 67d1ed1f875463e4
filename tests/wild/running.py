"""Many cases side by side, each a line of JSON in a file that a later run goes on with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from torchvision_operators import torchvision_with_operators

from wild import NETS

Case = TypeVar("Case")


def chosen(patterns: Iterable[str]) -> list[str]:
    """Names of networks that fit patterns; all of them without any."""
    return list(dict.fromkeys(name for pattern in list(patterns) or ["*"] for name in NETS if fnmatch(name, pattern)))


def found_before(results: Path) -> list[dict[str, Any]]:
    """What the lines of a file say; nothing if there is none."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def import_packages(names: Iterable[str]) -> None:
    """Import what networks are defined in, those that are installed, before processes are forked."""
    torchvision_with_operators()  # before timm and transformers import it
    for package in {NETS[name].package for name in names if NETS[name].is_here}:
        import_module(package)


def run_all(
    cases: Iterable[Case],
    attempt: Callable[[Case], dict[str, Any]],
    shown: Callable[[dict[str, Any]], str],
    results: Path,
    workers: int,
) -> None:
    """Attempt all cases; write and show what is found, in the order in which they end."""
    lock = Lock()

    def run(case: Case) -> None:
        found = attempt(case)
        with lock, results.open("a") as file:
            file.write(json.dumps(found) + "\n")
            print(shown(found), flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, cases))
