"""``python -m wild RESULTS.jsonl``: all cases that the file does not have yet, in separate processes."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from wild.attempt import ABSENT, SOURCES, Case, attempt
from wild.running import chosen, found_before, import_packages, run_all


def main() -> None:
    """Run what is asked for; the file has one line of JSON for each case, in the order in which they end."""
    options = _arguments()
    names = chosen(options.nets)
    done = {
        (case["net"], case["source"], case.get("dtype", "float32"))
        for case in found_before(options.results)
        if case["state"] != ABSENT
    }
    cases = [
        Case(name, source, tuple(options.precision), options.batch, options.dtype)
        for source in options.source or SOURCES
        for name in names
        if (name, source, options.dtype) not in done
    ]
    import_packages(case.net for case in cases)
    run_all(cases, partial(attempt, seconds=options.timeout), _shown, options.results, options.workers)


def _shown(found: dict[str, Any]) -> str:
    return f"{found['net']} {found['source']} {found['state']} {found.get('message', '')[:200]}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wild", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("nets", nargs="*", help="patterns of names, such as 'timm.*'")
    parser.add_argument("--source", action="append", choices=SOURCES)
    parser.add_argument("--precision", action="append", choices=("fp16", "bf16"), default=[], help="besides fp32")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="of the nets")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
