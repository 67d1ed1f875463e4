"""The page ``docs/zoo.md``, from the results of sweeps: ``python -m mobopt.tools.sweep.zoo_page zoo.sqlite``.

It goes to standard output. The head of the page has the commands that make such sweeps of the tests' models.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mobopt.display import shown, size_text
from mobopt.errors import MoboptError
from mobopt.tools.sweep.jobs import AUDIT, BAD, BENCH, COMPARE, CONVERT, STATES, Job, Outcome
from mobopt.tools.sweep.matrix import Matrix, cell_text, crowd_text, loads_of, milliseconds_text, times_of
from mobopt.tools.sweep.store import Result, read_results

_HEAD = """# Models, and what became of them

Models of the tests, with random weights ([sweeps.md](sweeps.md)). The page is made by

```console
$ export PYTHONPATH=tests
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert --runtime 2.6 -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert --backend metal -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert --runtime 1.13 -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert --backend cpu -o zoo.sqlite
$ export LP_NUM_THREADS=1  # of lavapipe, as of eager PyTorch: other work on the machine does less harm
$ mobopt sweep $(python tests/swept_models.py) --do compare --runtime mobopt -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do bench --runtime mobopt --threads 1 --repeat 10 -o times.sqlite
$ python -m mobopt.tools.sweep.zoo_page zoo.sqlite times.sqlite > docs/zoo.md
$ python -m wild wild.jsonl  # goes on where it was stopped
$ python -m wild.page wild.jsonl >> docs/zoo.md
```

`zoo` are published networks at their usual sizes; `nets` are small ones with the structure of published ones
(`tests/nets`), traced or scripted; `timm`, `torchvision` and `transformers` are those packages' networks
(`tests/wild`): published widths and depths at small images, and transformers' classes in small configurations.
"""
_AUDITED = ("native", "rewritten", "cpu", "unknown", "unreached", "missing", "wrong")
_MESSAGE = 240


def zoo_page(results: Sequence[Result]) -> str:
    """The whole page in Markdown."""
    matrix = Matrix.of(results)
    lines = [_HEAD, *_summary(matrix)]
    for job in matrix.jobs:
        section = {AUDIT: _audits, COMPARE: _comparisons, BENCH: _times}.get(job.do)
        if section is not None:
            lines += [*section(job, _found(matrix, job)), ""]
        elif job == next(job for job in matrix.jobs if job.do == CONVERT):
            lines += [*_conversions(matrix), ""]
    return "\n".join([*lines, *_problems(results)]).rstrip() + "\n"


def _found(matrix: Matrix, job: Job) -> list[tuple[str, Outcome]]:
    return [(model, matrix.results[model, job].outcome) for model in matrix.models if (model, job) in matrix.results]


def _summary(matrix: Matrix) -> Iterator[str]:
    yield f"## {len(matrix.models)} models\n"
    not_run = [len(matrix.models) - len(_found(matrix, job)) for job in matrix.jobs]
    rows = [(*row, str(count or "")) for row, count in zip(matrix.counts(), not_run, strict=True)]
    columns = ("job", *matrix.states, "not run")
    yield from _table(columns, rows) if any(not_run) else _table(columns[:-1], [row[:-1] for row in rows])
    yield ""
    for state in matrix.states:
        yield f"- **{state}**: {STATES[state]}"
    yield ""


def _audits(job: Job, found: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    yield f"## What {job.target} does with their operators\n"
    yield "Operators by verdict, as `mobopt audit` gives them, and the part of the multiply-adds that the GPU does.\n"
    verdicts = [name for name in _AUDITED if any(name in outcome.data.get("counts", {}) for _, outcome in found)]
    rows = []
    for model, outcome in found:
        counts, share = outcome.data.get("counts"), outcome.data.get("gpu_share")
        numbers = [str(counts.get(name, "")) for name in verdicts] if counts else [""] * len(verdicts)
        causes = [f"`{cause['operator']}`" for cause in outcome.data.get("causes", ())]
        share_text = f"{share:.0%}" if isinstance(share, float) else ""
        rows.append((_name(model), _state(outcome), *numbers, share_text, " ".join(causes)))
    yield from _table(("model", "", *verdicts, "on the GPU", "why others are on the CPU"), rows)


def _conversions(matrix: Matrix) -> Iterator[str]:
    jobs = [job for job in matrix.jobs if job.do == CONVERT]
    yield "## Files\n"
    yield "Error of the converted model, computed on the CPU, over the output's scale; the file's size; how many of its"
    yield "operators run on the phone's CPU; **sizes**: it takes inputs of the example's sizes only.\n"
    rows = []
    for model in matrix.models:
        found = [matrix.results.get((model, job)) for job in jobs]
        if any(found):
            rows.append((_name(model), *("" if item is None else _file(item.outcome) for item in found)))
    yield from _table(("model", *(job.target for job in jobs)), rows)


def _file(outcome: Outcome) -> str:
    if "bytes" not in outcome.data:
        return _state(outcome)
    error, on_cpu = outcome.data.get("error"), outcome.data["on_cpu"]
    parts = ["not compared" if error is None else f"{error:.1e}", size_text(outcome.data["bytes"])]
    if on_cpu:
        parts.append(f"{on_cpu} of {outcome.data['operators']}")
    if outcome.data["fixed_to_sizes"]:
        parts.append("**sizes**")
    return ", ".join(parts)


def _comparisons(job: Job, found: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    yield f"## On the device: {job.target}\n"
    rows = [
        (_name(model), _state(outcome), cell_text(job, outcome), str(outcome.data.get("layers", "")))
        for model, outcome in found
    ]
    yield from _table(("model", "", "error", "layers"), rows)


def _times(job: Job, found: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    devices = {outcome.data["device"] for _, outcome in found if "device" in outcome.data}
    threads = {outcome.data["threads"] for _, outcome in found if "threads" in outcome.data}
    yield f"## Times: {job.target}\n"
    device, count = ", ".join(sorted(devices)) or "no device", ", ".join(map(str, sorted(threads)))
    plural = "" if count == "1" else "s"
    yield f"On {_plain(device)}; eager PyTorch on {count} thread{plural} of the same CPU. Calls take turns: medians,"
    yield "and the middle half of the ratios of each two; peak memory beside the least that the plan needs."
    loads = loads_of(outcome for _, outcome in found)
    if loads:
        yield (
            f"Other work ran meanwhile: {crowd_text(loads)}. Ratios suffer less from it than times; measure on a "
            "machine of your own."
        )
    yield ""
    rows = [_time_row(model, outcome) for model, outcome in found]
    yield from _table(("model", "", "ms", "eager ms", "times eager", "dispatches", "on the CPU", "memory"), rows)


def _time_row(model: str, outcome: Outcome) -> tuple[str, ...]:
    own, eager = times_of(outcome), times_of(outcome, "eager_ms")
    if not own or not eager:
        return _name(model), _state(outcome), *[""] * 6
    peak, bound = outcome.data.get("peak_bytes"), outcome.data.get("lower_bound_bytes")
    return (
        _name(model),
        _state(outcome),
        milliseconds_text(statistics.median(own)),
        milliseconds_text(statistics.median(eager)),
        _ratio(own, eager),
        str(outcome.data.get("dispatches", "")),
        str(len(outcome.data.get("on_cpu", ()))),
        f"{size_text(peak)}, {peak / max(bound, 1):.2f}x" if peak and bound is not None else "",
    )


def _ratio(own: Sequence[float], eager: Sequence[float]) -> str:
    """Of times that were taken in turn: the median, and between which the middle half of them lies."""
    ratios = [mine / theirs for mine, theirs in zip(own, eager, strict=False)]
    median = f"{statistics.median(ratios):.2g}"
    if len(ratios) < 2:
        return median
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{median} ({low:.2g} to {high:.2g})"


def _problems(results: Sequence[Result]) -> Iterator[str]:
    """Messages of what is not good; one that several have, once. What audits count has tables of its own."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if not result.outcome.is_good and not (result.job.do == AUDIT and result.outcome.state == BAD):
            for text in _reasons(result.outcome):
                groups.setdefault(f"{result.outcome.state}, {result.job}: {text}", []).append(_name(result.model))
    if not groups:
        return
    yield "## What is not good\n"
    for text, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield f"- {_plain(text)}: {listed}"


def _reasons(outcome: Outcome) -> list[str]:
    """What a target lacks, each operator by itself; else the message."""
    text = " ".join(outcome.text.split())
    return outcome.data.get("lacks") or [text if len(text) <= _MESSAGE else f"{text[:_MESSAGE].rstrip(': ')} ..."]


def _table(columns: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _state(outcome: Outcome) -> str:
    return "" if outcome.is_good else f"**{outcome.state}**"


def _name(model: str) -> str:
    """Without the module that gives it, and with nothing that Markdown would obey."""
    return f"`{shown(model.partition(':')[2] or model).replace('`', '')}`"


def _plain(text: str) -> str:
    """Text of a model or a message, with nothing that Markdown would obey."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|" else letter for letter in shown(text))


def main() -> None:
    """Print the page of the files that are named; of what several have, the last counts."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m mobopt.tools.sweep.zoo_page RESULTS...")
    try:
        results = {result.key: result for name in sys.argv[1:] for result in read_results(Path(name))}
        sys.stdout.write(zoo_page(list(results.values())))
    except MoboptError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
