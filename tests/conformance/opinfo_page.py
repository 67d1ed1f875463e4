"""Judges every operator of PyTorch's database, and writes ``docs/operators.md`` and ``opinfo_native.json``.

Run with ``python tests/conformance/opinfo_page.py``; it takes half an hour of one core. ``--verdicts FILE`` keeps every
outcome, a line of JSON for each operator; run again with such a file, it goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from opinfo_judging import Outcome, Verdict
from opinfo_samples import DTYPES, operators
from opinfo_verdicts import NATIVE_FILE, Judged, dtype_name, judge_all_dtypes

from mobopt.runtimes.vulkan.engine.devices import open_device

SAMPLES = 8
"""Samples of each operator and dtype, by default."""
PAGE = Path(__file__).parents[2] / "docs/operators.md"

_COLUMNS = [dtype_name(dtype) for dtype in DTYPES]
_WORDS = {
    Verdict.NATIVE: "native",
    Verdict.HOST: "CPU",
    Verdict.UNTRACEABLE: "no trace",
    Verdict.REFUSED: "refused",
    Verdict.WRONG: "wrong",
    Verdict.CRASHED: "crashed",
}


def main() -> None:
    """Judge, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each operator and dtype (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default %(default)s)")
    parser.add_argument("--device", default="llvmpipe", help="the Vulkan device (default %(default)s)")
    parser.add_argument(
        "--verdicts", type=Path, help="a file for every outcome, as JSON; what is in it isn't judged again"
    )
    options = parser.parse_args()
    done = _kept(options.verdicts)
    work = [(name, options.samples, options.device) for name in sorted(operators()) if name not in done]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for name, found in pool.imap_unordered(_judge, work, chunksize=8):
            done[name] = found
            _keep(options.verdicts, name, found)
            for failure in (failure for each in found for failure in each.failures()):
                print(failure, flush=True)
    judged = [each for name in sorted(operators()) for each in done[name]]
    NATIVE_FILE.write_text(_native_text(judged))
    PAGE.write_text(page(judged, options.samples))


def page(judged: Sequence[Judged], samples: int) -> str:
    """The page as Markdown."""
    names = sorted({each.operator for each in judged})
    by_place = {(each.operator, each.dtype): each for each in judged}
    rows = []
    for name in names:
        row = [by_place.get((name, dtype)) for dtype in _COLUMNS]
        cells = ["" if each is None else _cell(each) for each in row]
        rows.append([f"`{name}`", *cells, _reasons(each for each in row if each is not None)])
    return _HEAD.format(
        operators=len(operators()),
        calls=sum(len(each.outcomes) for each in judged),
        samples=samples,
        torch=torch.__version__.partition("+")[0],
        counts=_table(["operators", *_COLUMNS], _count_rows(judged)),
        table=_table(["operator", *_COLUMNS, "why not native"], rows),
    )


_HEAD = """\
# Operators on the Vulkan runtime

What mobopt's own runtime does with each operator of PyTorch's database of operators (OpInfo, {operators} operators and
variants, PyTorch {torch}), seen from {calls} of PyTorch's own samples: every call is traced, run on a Vulkan device
and compared with eager in dtype, shape and values. At most {samples} samples of each operator and dtype are taken; a
dtype is that which PyTorch makes samples of, others stand beside it. `python tests/conformance/opinfo_page.py` writes
this page.

- **native**: the device computed every operator of the call.
- **CPU**: right, but something of it ran on the CPU; the runtime reports it, and `fallback="error"` refuses it.
- **refused**: an error that says why.
- **no trace**: `torch.jit.trace` can't trace the call, or what it makes differs from the call in torch itself.
- empty: PyTorch's CPU has no kernel for that dtype.

With two verdicts in a field, numbers are samples. Random operators are judged by dtype and shape.

Random numbers (`rand`, `randn`, `randint`, `randperm`, `bernoulli`, `multinomial`, `normal_`, `uniform_`, dropout in
training mode and the like) are those of torch's own generator of the CPU: after `torch.manual_seed` a model draws what
it draws in eager mode, in the same order. So the host draws them and uploads them, which is reported as running on the
CPU; what is computed of them runs on the device.

{counts}

{table}
"""


def _judge(work: tuple[str, int, str]) -> tuple[str, list[Judged]]:
    logging.getLogger("mobopt").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    name, samples, device = work
    return name, judge_all_dtypes(name, samples, open_device(device))


def _kept(path: Path | None) -> dict[str, list[Judged]]:
    """What earlier runs judged, by operator."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {name: [_from_data(name, *each) for each in dtypes.items()] for name, dtypes in lines}


def _keep(path: Path | None, name: str, judged: Sequence[Judged]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps([name, {each.dtype: _as_data(each) for each in judged}]) + "\n")


def _cell(judged: Judged) -> str:
    counts = sorted(judged.counts.items())
    if len(counts) == 1:
        return _WORDS[counts[0][0]]
    return ", ".join(f"{_WORDS[verdict]} {count}" for verdict, count in counts)


def _reasons(judged: Iterable[Judged]) -> str:
    """The two most frequent reasons of an operator, without the numbers that a process gives to traces."""
    reasons = Counter(
        re.sub(r"([./]___torch_mangle_\d+)?\.py(:\d+)?", ".py", outcome.reason)
        for each in judged
        for _, outcome in each.outcomes
        if outcome.reason
    )
    return "; ".join(_escaped(reason) for reason, _ in reasons.most_common(2))


def _escaped(text: str) -> str:
    short = text if len(text) <= 160 else text[:157] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _count_rows(judged: Sequence[Judged]) -> list[list[str]]:
    """How many operators have each verdict as their worst, by dtype."""
    worst = Counter((each.dtype, max(each.counts)) for each in judged if each.outcomes)
    rows = [[_WORDS[verdict], *(str(worst[dtype, verdict]) for dtype in _COLUMNS)] for verdict in Verdict]
    return [*rows, ["all", *(str(sum(worst[dtype, verdict] for verdict in Verdict)) for dtype in _COLUMNS)]]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _native_text(judged: Sequence[Judged]) -> str:
    """The dtypes for which each operator is native, a line for each operator."""
    native: dict[str, list[str]] = {name: [] for name in sorted(operators())}
    for each in judged:
        if each.is_native:
            native[each.operator].append(each.dtype)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(dtypes)}" for name, dtypes in native.items())
    return f"{{\n{lines}\n}}\n"


def _as_data(judged: Judged) -> list[tuple[str, str, str]]:
    return [(text, outcome.verdict.name.lower(), outcome.reason) for text, outcome in judged.outcomes]


def _from_data(name: str, dtype: str, outcomes: Sequence[tuple[str, str, str]]) -> Judged:
    found = [(text, Outcome(Verdict[verdict.upper()], reason)) for text, verdict, reason in outcomes]
    return Judged(name, dtype, found)


if __name__ == "__main__":
    main()
