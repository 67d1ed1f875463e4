"""``python -m wild RESULTS.jsonl``: all cases that the file does not have yet, in separate processes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from threading import Lock

from torchvision_operators import torchvision_with_operators

from wild import NETS
from wild.attempt import ABSENT, SOURCES, Case, attempt


def main() -> None:
    """Run what is asked for; the file has one line of JSON for each case, in the order in which they end."""
    options = _arguments()
    done = _done(options.results)
    names = dict.fromkeys(name for pattern in options.nets or ["*"] for name in NETS if fnmatch(name, pattern))
    precisions = tuple(options.precision)
    sources = options.source or SOURCES
    cases = [
        Case(name, source, precisions, options.batch)
        for source in sources
        for name in names
        if (name, source) not in done
    ]
    torchvision_with_operators()  # before timm and transformers import it
    for package in {NETS[case.net].package for case in cases if NETS[case.net].is_here}:
        import_module(package)
    lock = Lock()

    def run(case: Case) -> None:
        found = attempt(case, options.timeout)
        with lock, options.results.open("a") as file:
            file.write(json.dumps(found) + "\n")
            sys.stdout.write(f"{case.net} {case.source} {found['state']} {found.get('message', '')[:200]}\n")
            sys.stdout.flush()

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(run, cases))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wild", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("nets", nargs="*", help="patterns of names, such as 'timm.*'")
    parser.add_argument("--source", action="append", choices=SOURCES)
    parser.add_argument("--precision", action="append", choices=("fp16", "bf16"), default=[], help="besides fp32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


def _done(path: Path) -> set[tuple[str, str]]:
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    found = map(json.loads, lines)
    return {(case["net"], case["source"]) for case in found if case["state"] != ABSENT}


if __name__ == "__main__":
    main()
