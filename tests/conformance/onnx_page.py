"""Judges every node case of onnx.backend.test on Vulkan, and writes ``docs/onnx.md`` and ``onnx_native.json``.

Run with ``python tests/conformance/onnx_page.py``; it takes minutes. ``--verdicts FILE`` keeps every outcome as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx_children import all_cases, judged_in_children
from onnx_judging import Outcome, Verdict, operator_of

PAGE = Path(__file__).parents[2] / "docs/onnx.md"
NATIVE_FILE = Path(__file__).with_name("onnx_native.json")

_WORDS = {
    Verdict.NATIVE: "native",
    Verdict.READ: "native, elements read",
    Verdict.HOST: "CPU",
    Verdict.REFUSED: "refused",
    Verdict.WRONG: "wrong",
    Verdict.CRASHED: "crashed",
}


def main() -> None:
    """Judge, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes (default %(default)s)")
    parser.add_argument("--device", default="VULKAN", help="of the backend (default %(default)s)")
    parser.add_argument("--verdicts", type=Path, help="a file for every outcome, as JSON")
    options = parser.parse_args()
    outcomes = dict(sorted(judged_in_children(options.device, options.jobs)))
    for name, outcome in outcomes.items():
        if outcome.verdict >= Verdict.WRONG:
            print(f"{name}: {_WORDS[outcome.verdict]}: {outcome.reason}")
    if options.verdicts:
        data = {name: [outcome.verdict.name, outcome.reason] for name, outcome in outcomes.items()}
        options.verdicts.write_text(json.dumps(data, indent=1))
    native = [name for name, outcome in outcomes.items() if outcome.verdict == Verdict.NATIVE]
    NATIVE_FILE.write_text(json.dumps(native, indent=0) + "\n")
    PAGE.write_text(page(outcomes))


def native_cases() -> list[str]:
    """Names of the cases that the device computed wholly."""
    names: list[str] = json.loads(NATIVE_FILE.read_text())
    return names


def page(outcomes: Mapping[str, Outcome]) -> str:
    """The page as Markdown."""
    models = {case.name: case.model for case in all_cases()}
    by_operator: dict[str, list[str]] = {}
    for name in outcomes:
        by_operator.setdefault(operator_of(name, models), []).append(name)
    counts = Counter(outcome.verdict for outcome in outcomes.values())
    rows = [
        [f"`{operator}`", _versions(models[name] for name in names), *_row(outcomes[name] for name in names)]
        for operator, names in sorted(by_operator.items())
    ]
    return _HEAD.format(
        cases=len(outcomes),
        onnx=onnx.__version__,
        idle=sum(outcome.verdict == Verdict.NATIVE and not outcome.dispatches for outcome in outcomes.values()),
        counts=_table(["cases", "number"], [[_WORDS[verdict], str(counts[verdict])] for verdict in Verdict]),
        table=_table(["operator", "opsets", "cases", *_WORDS.values(), "why not native"], rows),
        reasons="\n".join(_reasons(outcomes)),
    )


_HEAD = """\
# ONNX's own cases on the Vulkan runtime

What becomes of the {cases} node cases of `onnx.backend.test` (ONNX {onnx}), each run by `mobopt.onnx_backend` on a
Vulkan device and compared with the case's own outputs in dtype, shape and elements, within the case's own tolerance or
two roundings of the dtype at the output's scale. Cases named `_expanded` are an operator's definition in other
operators. `python tests/conformance/onnx_page.py` writes this page.

- **native**: right, and the device computed every operator of the graph. {idle} of them need no dispatch: the
  result is an input in another shape, or follows from sizes and constants.
- **native, elements read**: the same, but the host read elements that decide a size, a branch or a number.
- **CPU**: right, but something of it ran on the CPU; the runtime reports it, and `fallback="error"` refuses it.
- **refused**: an error that says why.

Random operators are judged by dtype and shape.

{counts}

## By operator

{table}

## Cases that are not native, by reason

{reasons}
"""


def _versions(models: Iterable[onnx.ModelProto]) -> str:
    """Opsets of the cases' models."""
    found = {item.version for model in models for item in model.opset_import}
    return ", ".join(str(version) for version in sorted(found))


def _row(outcomes: Iterable[Outcome]) -> list[str]:
    """How many cases an operator has, how many of each verdict, and the most frequent reasons."""
    found = list(outcomes)
    counts = Counter(outcome.verdict for outcome in found)
    reasons = Counter(outcome.reason for outcome in found if outcome.verdict != Verdict.NATIVE)
    why = "; ".join(_escaped(reason) for reason, _ in reasons.most_common(2))
    return [str(len(found)), *(str(counts[verdict] or "") for verdict in Verdict), why]


def _reasons(outcomes: Mapping[str, Outcome]) -> list[str]:
    """A line for each reason, with all its cases."""
    names: dict[tuple[Verdict, str], list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.verdict != Verdict.NATIVE:
            names.setdefault((outcome.verdict, outcome.reason), []).append(name.removeprefix("test_"))
    ordered = sorted(names.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    return [
        f"- {_WORDS[verdict]}: {_escaped(reason, 400)} ({len(cases)}): {', '.join(f'`{case}`' for case in cases)}"
        for (verdict, reason), cases in ordered
    ]


def _escaped(text: str, most: int = 160) -> str:
    short = text if len(text) <= most else text[: most - 3] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
