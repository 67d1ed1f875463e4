"""``mobopt bench``: a model in mobopt and in its rivals, in one table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, method_option
from mobopt.commands.terminal import ShowStep, print_json, print_table, progress, say
from mobopt.display import size_text

if TYPE_CHECKING:
    from mobopt.samples.example_inputs import ExampleInputs
    from mobopt.tools.bench import Entry, Table


@click.command(short_help="Measure a model beside every rival that is installed.")
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@input_options
@method_option
@click.option("--device", help="What mobopt runs on: number or part of the name of a device (see `mobopt devices`).")
@click.option("--peers", metavar="NAMES", help="Rivals, with commas [default: all but those that compile for minutes].")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1), help="Of all in turn, at least.")
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(min=0), help="For rounds, at least.")
@click.option("--pause", default=0.0, type=click.FloatRange(0, 60), help="Also measure calls after pauses of seconds.")
@click.option("--threads", default=0, type=click.IntRange(min=0), help="Of rivals on the CPU [default: torch's].")
@click.option(
    "--save", "folder", type=click.Path(path_type=Path), help="Measure nothing: write a folder for elsewhere."
)
@click.option("--keep-clock", is_flag=True, help="Have mobopt hold an NVIDIA GPU's clock up between calls.")
@click.option("--no-starts", is_flag=True, help="Leave out cold and warm starts and peak memory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every time.")
def bench(
    model: Path,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    method: str,
    device: str | None,
    peers: str | None,
    rounds: int,
    seconds: float,
    pause: float,
    threads: int,
    folder: Path | None,
    keep_clock: bool,
    no_starts: bool,
    as_json: bool,
) -> None:
    """Measure MODEL in mobopt and in every rival that is installed, in one run.

    Results are compared first; who gives another one has no times. Calls are timed by turns, from tensors on the CPU to
    tensors on the CPU. Exit code 1 if mobopt's own result is not the model's.

    MODEL may be a folder that --save wrote: the model in the form of each rival, inputs and results, so that a machine
    without network or exporters measures it.
    """
    with progress(f"reading {model.name}") as show:
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools import bench as work

        if folder is not None:
            _save(model, folder, InputOptions.parse(inputs, shapes).tensors(), method, show)
            return
        found = work.bench(
            model,
            InputOptions.parse(inputs, shapes).tensors(),
            peers=None if peers is None else [name.strip() for name in peers.split(",") if name.strip()],
            device=device,
            method=method,
            rounds=rounds,
            seconds=seconds,
            pause=pause,
            threads=threads,
            starts=not no_starts,
            keep_clock=keep_clock,
            show=show,
        )
    if as_json:
        print_json(_data(found))
    else:
        _print(found)
    if not found.agrees:
        raise click.exceptions.Exit(1)


def _save(model: Path, folder: Path, examples: ExampleInputs | None, method: str, show: ShowStep) -> None:
    from mobopt.tools.bench_folder import save_bench

    for form, problem in save_bench(model, folder, examples, method=method, show=show).items():
        say(f"no model{form}: {problem}")
    say(f"written: {folder}; measure it with mobopt bench {folder}")


def _print(found: Table) -> None:
    say(f"{found.model}, inputs {found.inputs}; torch {found.versions['torch']}")
    say()
    columns = ["", "where", "error>", "ms>", "middle half>"]
    if found.pause:
        columns.append(f"ms after {found.pause:g} s>")
    if any(entry.start for entry in found.entries):
        columns += ["cold s>", "warm s>", "torch s>", "host peak>", "device peak>"]
    ran = [entry for entry in found.entries if entry.seconds]
    print_table("", columns, (tuple(_row(entry, found, len(columns))) for entry in ran))
    say()
    for entry in found.entries:
        if entry.problem:
            error = f" (error {entry.agreement.relative:.1e})" if entry.agreement is not None else ""
            say(f"{entry.name}: {entry.problem}{error}")
    if found.pause and any(entry.name.startswith("cuda") for entry in ran):
        say("rivals on CUDA hold the GPU's clock up in pauses for all of this process; --peers leaves them out")
    if any(entry.start for entry in found.entries):
        say("a start is the time from a new process to its first result, torch's import included;")
        say("cold: all caches are empty; warm: they hold what the cold one left")


def _row(entry: Entry, found: Table, columns: int) -> Iterator[str]:
    from mobopt.tools.bench import spread

    low, middle, high = (value * 1e3 for value in spread(entry.seconds))
    yield entry.name
    yield entry.where
    yield "" if entry.agreement is None else f"{entry.agreement.relative:.1e}"
    yield f"{middle:.3f}"
    yield f"{low:.3f} .. {high:.3f}"
    if found.pause:
        yield f"{spread(entry.paused_seconds)[1] * 1e3:.3f}"
    start = entry.start
    if start is not None:
        yield from (f"{value:.2f}" for value in (start.cold_seconds, start.warm_seconds, start.torch_seconds))
        yield from ("" if value is None else size_text(value) for value in (start.host_bytes, start.device_bytes))


def _data(found: Table) -> dict[str, Any]:
    from mobopt.tools.bench import spread

    data = dataclasses.asdict(found)
    for entry, made in zip(found.entries, data["entries"], strict=True):
        made["median_seconds"] = spread(entry.seconds)[1] if entry.seconds else None
        if made["agreement"] is not None:  # JSON has no infinity
            made["agreement"] = {
                name: None if value == math.inf else value for name, value in made["agreement"].items()
            }
    return {**data, "agrees": found.agrees}
