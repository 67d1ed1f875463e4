"""The part of ``docs/zoo.md`` about published networks: ``python -m wild.page RESULTS.jsonl``, to standard output."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wild import NETS
from wild.attempt import ABSENT, RIGHT, SOURCES, STATES

Results = Mapping[tuple[str, str], Mapping[str, Any]]
"""What :func:`wild.attempt.attempt` found, by net and source."""
_HEAD = """
## Published networks, from each source

On mobopt's own runtime; batch norms have the statistics of random images. *export* is `torch.export`, *core* is that
after `run_decompositions()`, *trace* is `torch.jit.trace`, *onnx* is a file of `torch.onnx`, by the older exporter
where the newer one can't make it, *script* is `torch.jit.script`, *open* is `torch.export` of three items with every
size open that it can leave open, and then right with other sizes, too. A cell is the error over the scale of eager's
result, then how many operators ran on the CPU, if any did. *onnx* ran on lavapipe, the others on an NVIDIA H200. Times
are of one call each, of the first source that ran, with 15 processes on the GPU at once, beside eager PyTorch on one
thread of the CPU: they tell orders of magnitude.
"""
_NATIVE, _HELPED = "right, nothing on the CPU", "right, with operators on the CPU"
_MESSAGE = 200
_NOISE = re.compile(r"<[^<>]*>|\x1b\[\d*m|[ :]*File \".*")
"""Objects with their addresses, colours, and where files lie."""
_COLUMNS = ("net", *SOURCES, "dispatches", "ms", "eager ms")


def read(lines: Iterable[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """The last result of each case."""
    found = map(json.loads, lines)
    return {(case["net"], case["source"]): case for case in found}


def page(results: Results) -> str:
    """The section in Markdown."""
    nets = [name for name in NETS if any((name, source) in results for source in SOURCES)]
    lines = [_HEAD, *_counts(results), "", *_table(_COLUMNS, (_row(name, results) for name in nets))]
    lines += ["", *_helped(results), *_problems(results), *_not_run(results)]
    return "\n".join(lines).rstrip() + "\n"


def _counts(results: Results) -> Iterator[str]:
    by_source = {
        source: Counter(_kind(case) for (_, own), case in results.items() if own == source) for source in SOURCES
    }
    states = [kind for kind in (_NATIVE, _HELPED, *STATES) if any(counts[kind] for counts in by_source.values())]
    rows = (
        (source, *(str(counts[state] or "") for state in states), str(len(NETS) - counts.total()))
        for source, counts in by_source.items()
    )
    yield from _table(("source", *states, "not tried"), rows)
    yield ""
    yield from (f"- **{state}**: {STATES[state]}" for state in states if state in STATES)


def _kind(case: Mapping[str, Any]) -> str:
    if case["state"] != RIGHT:
        return str(case["state"])
    return _HELPED if case["on_cpu"] else _NATIVE


def _row(name: str, results: Results) -> tuple[str, ...]:
    cases = [results.get((name, source)) for source in SOURCES]
    measured = next((case for case in cases if case and "ms" in case), {})
    numbers = (str(measured.get(key, "")) for key in ("dispatches", "ms", "eager_ms"))
    return (f"`{name}`", *map(_cell, cases), *numbers)


def _cell(case: Mapping[str, Any] | None) -> str:
    if case is None:
        return ""
    if "error" not in case:
        return f"**{case['state']}**"
    state = "" if case["state"] == RIGHT else f"**{case['state']}** "
    return f"{state}{case['error']:.0e}" + (f", {len(case['on_cpu'])} on the CPU" if case["on_cpu"] else "")


def _helped(results: Results) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for (name, source), case in results.items():
        for fallback in dict.fromkeys(re.sub(r" at .*?: ", ": ", text) for text in case.get("on_cpu", ())):
            reasons.setdefault(fallback, []).append(f"`{name}` ({source})")
    yield from _listed("### What ran on the CPU\n", reasons)


def _problems(results: Results) -> Iterator[str]:
    messages: dict[str, list[str]] = {}
    for (name, source), case in results.items():
        if "message" in case:
            text = _NOISE.sub("", case["message"])[:_MESSAGE]
            messages.setdefault(f"{case['state']}: {text}", []).append(f"`{name}` ({source})")
    yield from _listed("### What is not good\n", messages)


def _listed(title: str, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if names:
        yield title
        yield from (f"- {_plain(text)}: {', '.join(found)}" for text, found in names.items())
        yield ""


def _not_run(results: Results) -> Iterator[str]:
    absent = [name for name in NETS if all(_is_absent(results.get((name, source))) for source in SOURCES)]
    if absent:
        yield f"Not run: {', '.join(f'`{name}`' for name in absent)}."


def _is_absent(case: Mapping[str, Any] | None) -> bool:
    return case is None or case["state"] == ABSENT


def _table(columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    """With nothing that Markdown would obey."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]<>|" else letter for letter in text)
    return escaped.replace("](", "]\\(")


if __name__ == "__main__":
    sys.stdout.write(page(read(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines())))
