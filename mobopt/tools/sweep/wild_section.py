"""The part of ``docs/zoo.md`` on published networks from each source: what ``tests/wild`` wrote, one line a case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mobopt.errors import InputError
from mobopt.tools.sweep.markdown import MESSAGE, name_text, plain, table

Case = Mapping[str, Any]
_RIGHT = "right"
_TIMES = ("ms", "eager_ms")


def read_cases(path: Path) -> list[Case]:
    """The cases of a file; of a net from one source, the last counts.

    Raises:
        InputError: it can't be read, or a line is no case.
    """
    found: dict[tuple[str, str], Case] = {}
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            case = json.loads(line)
            if not isinstance(case, dict) or not {"net", "source", "state"} <= case.keys():
                raise InputError(f"{path}: line {number} is no case of a net; each has net, source and state")
            found[str(case["net"]), str(case["source"])] = case
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path} can't be read: {error}; it has one line of JSON for each case") from None
    return list(found.values())


def wild_section(cases: Sequence[Case]) -> Iterator[str]:
    """The section in Markdown, line by line; nothing without cases."""
    if not cases:
        return
    nets = sorted({str(case["net"]) for case in cases})
    sources = list(dict.fromkeys(str(case["source"]) for case in cases))
    by_place = {(str(case["net"]), str(case["source"])): case for case in cases}
    yield f"## Published networks from each source: {len(nets)}\n"
    yield (
        "On mobopt's own runtime, on a Vulkan device: the error over the output's scale, how many operators run on the "
        "CPU, if any, and the time of one call beside one of eager PyTorch's.\n"
    )
    yield from table(("source", "tried", "right", "of them with operators on the CPU"), _counts(cases, sources))
    yield ""
    rows = [(name_text(net), *(_cell(by_place.get((net, source))) for source in sources)) for net in nets]
    yield from table(("network", *sources), rows)
    yield ""
    yield from _messages(cases)


def _counts(cases: Iterable[Case], sources: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for source in sources:
        own = [case for case in cases if case["source"] == source]
        right = [case for case in own if case["state"] == _RIGHT]
        mixed = sum(bool(case.get("on_cpu")) for case in right)
        yield source, str(len(own)), str(len(right)), str(mixed)


def _cell(case: Case | None) -> str:
    if case is None:
        return ""
    if case["state"] != _RIGHT:
        return f"**{plain(str(case['state']))}**"
    words = [f"{float(case['error']):.1e}"]
    if case.get("on_cpu"):
        words.append(f"{len(case['on_cpu'])} on the CPU")
    if all(isinstance(case.get(name), (int, float)) for name in _TIMES):
        words.append(f"{case['ms']:.3g} of {case['eager_ms']:.3g} ms")
    return ", ".join(words)


def _messages(cases: Iterable[Case]) -> Iterator[str]:
    """What is not right, and why operators run on the CPU; what several have, once."""
    groups: dict[str, list[str]] = {}
    for case in cases:
        where = f"{name_text(str(case['net']))} ({case['source']})"
        if case["state"] != _RIGHT:
            groups.setdefault(f"{case['state']}: {_short(case.get('message', ''))}", []).append(where)
        for reason in case.get("on_cpu") or ():
            groups.setdefault(f"on the CPU: {_short(reason)}", []).append(where)
    for text, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        different = list(dict.fromkeys(names))
        more = f" and {len(different) - 6} more" if len(different) > 6 else ""
        yield f"- {plain(text)}: {', '.join(different[:6])}{more}"


def _short(text: object) -> str:
    return " ".join(str(text).split())[:MESSAGE]
