"""The page ``docs/zoo.md``, from the results of a sweep: ``python -m mobopt.tools.sweep.zoo_page zoo.sqlite``.

It goes to standard output. The head of the page has the commands that make such a sweep of the tests' models.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mobopt.display import shown
from mobopt.errors import MoboptError
from mobopt.tools.sweep.jobs import AUDIT, BENCH, COMPARE, CONVERT, STATES, Job, Outcome
from mobopt.tools.sweep.matrix import Matrix, cell_text, crowd_text, loads_of, milliseconds_text, times_of
from mobopt.tools.sweep.store import Result, read_results

_HEAD = """# Models, and what became of them

Models of the tests, with random weights ([sweeps.md](sweeps.md)). The page is made by

```console
$ export PYTHONPATH=tests
$ mobopt sweep $(python tests/swept_models.py) --do audit,convert -o zoo.sqlite
$ mobopt sweep $(python tests/swept_models.py) --do bench --runtime mobopt -o zoo.sqlite
$ python -m mobopt.tools.sweep.zoo_page zoo.sqlite > docs/zoo.md
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
        section = {AUDIT: _audits, CONVERT: _conversions, COMPARE: _comparisons, BENCH: _times}.get(job.do)
        found = [
            (model, matrix.results[model, job].outcome) for model in matrix.models if (model, job) in matrix.results
        ]
        if section is not None and found:
            lines += [*section(job, found), ""]
    return "\n".join([*lines, *_problems(results)]).rstrip() + "\n"


def _summary(matrix: Matrix) -> Iterator[str]:
    yield f"## {len(matrix.models)} models\n"
    yield from _table(("job", *matrix.states), matrix.counts())
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


def _conversions(job: Job, found: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    yield f"## Files for {job.target}\n"
    yield "Error of the converted model, computed on the CPU, over the output's scale.\n"
    rows = [
        (
            _name(model),
            _state(outcome),
            cell_text(job, outcome) if "error" in outcome.data else "",
            f"{outcome.data['bytes'] / 1e6:.1f} MB" if "bytes" in outcome.data else "",
            str(outcome.data.get("operators", "")),
            str(outcome.data.get("on_cpu", "")),
            str(outcome.data.get("fixed_to_sizes", "")),
        )
        for model, outcome in found
    ]
    yield from _table(("model", "", "error", "size", "operators", "of them on the CPU", "fixed to sizes"), rows)


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
    yield f"On {_plain(device)}; eager PyTorch on {count}"
    yield "threads of the same CPU. Medians of calls that take turns; peak memory beside the least that the plan needs."
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
        f"{statistics.median(own) / statistics.median(eager):.2g}",
        str(outcome.data.get("dispatches", "")),
        str(len(outcome.data.get("on_cpu", ()))),
        f"{peak / 1e6:.1f} MB, {peak / max(bound, 1):.2f}x" if peak and bound is not None else "",
    )


def _problems(results: Sequence[Result]) -> Iterator[str]:
    """Messages of what is not good; one that several have, once."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if not result.outcome.is_good:
            text = " ".join(result.outcome.text.split())
            text = text if len(text) <= _MESSAGE else f"{text[:_MESSAGE].rstrip(': ')} ..."
            groups.setdefault(f"{result.outcome.state}: {text}", []).append(f"{_name(result.model)} ({result.job})")
    if not groups:
        return
    yield "## What is not good\n"
    for text, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield f"- {_plain(text)}: {listed}"


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
    """Print the page of the file that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m mobopt.tools.sweep.zoo_page RESULTS")
    try:
        sys.stdout.write(zoo_page(read_results(Path(sys.argv[1]))))
    except MoboptError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
