"""``mobopt tap``: a phone file that also returns values in between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, json_option
from mobopt.commands.terminal import print_json, print_table, progress, say

if TYPE_CHECKING:
    from mobopt.tools.taps.table import Tap
    from mobopt.tools.taps.tap import Tapped

_MOST_ROWS = 30


@click.command(short_help="Write a phone file that also returns values in between.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The new file: .ptl or .pt.")
@click.option(
    "--nodes",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="GLOB",
    help="What to return: operators (conv2d), nodes, modules (features.0*), source lines.",
)
@click.option("--method", default="forward", show_default=True, help="Method to tap.")
@input_options
@click.option("--backend", help="Of a model before conversion: vulkan [default], metal or cpu.")
@click.option("--runtime", help="Of a model before conversion: the oldest release to serve.")
@click.option("--legalize", help="Of a model before conversion: off, safe or full.")
@click.option("--most", default=65_536, show_default=True, help="Elements up to which all of a value is returned.")
@click.option("--whole", is_flag=True, help="Return all of every value, however large.")
@click.option("--samples", default=1024, show_default=True, help="Elements beside the statistics of larger values.")
@click.option("--at-once", is_flag=True, help="Copy each value when it is made: less memory, more waits.")
@click.option("--package", default="com.example.model", show_default=True, help="The package of the Kotlin code.")
@json_option
def tap(
    file: Path,
    output: Path,
    nodes: tuple[str, ...],
    method: str,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    backend: str | None,
    runtime: str | None,
    legalize: str | None,
    most: int,
    whole: bool,
    samples: int,
    at_once: bool,
    package: str,
    as_json: bool,
) -> None:
    """Write a phone file that also returns values in between, what they should be, and code that saves them.

    FILE is a file for phones, which is tapped as it is, or a model, which is converted first. What the phone saved is
    read by mobopt compare --dump.
    """
    with progress(f"reading {file.name}") as show:
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools.taps.graph import TapOptions
        from mobopt.tools.taps.tap import tap as write_tapped

        examples = InputOptions.parse(inputs, shapes)
        done = write_tapped(
            file,
            output,
            nodes=nodes,
            method=method,
            example_inputs=examples.tensors(),
            backend=backend,
            runtime=runtime,
            legalize=legalize,
            options=TapOptions(None if whole else most, samples, at_once),
            package=package,
            show=show,
        )
    if as_json:
        print_json(_data(done))
    else:
        _print(done)


def _data(done: Tapped) -> dict[str, Any]:
    import dataclasses

    return {
        "file": str(done.file),
        "expected": str(done.expected),
        "snippets": list(map(str, done.snippets)),
        "inputs": done.inputs,
        **dataclasses.asdict(done.table),
        "vanished": dict(done.vanished),
        "removed": list(done.removed),
        "remarks": list(done.remarks),
    }


def _sizes(item: Tap) -> str:
    return "not known" if item.sizes is None else "x".join(map(str, item.sizes)) or "number"


def _print(done: Tapped) -> None:
    taps = done.table.taps
    rows = [(item.key, item.form, _sizes(item), item.node, "; ".join(item.source)) for item in taps]
    title = "taps" if len(rows) <= _MOST_ROWS else f"taps, {_MOST_ROWS} of {len(rows)}"
    print_table(title, ("name", "returned", "sizes", "node", "source"), rows[:_MOST_ROWS])
    say()
    if done.vanished:
        say("without a value of their own, for they are a part of another node:")
    for text, key in list(done.vanished.items())[:_MOST_ROWS]:
        say(f"  {text}" + (f", in {key}" if key else ""))
    if done.removed:
        say(f"of which nothing is left: {', '.join(done.removed[:_MOST_ROWS])}")
    for remark in done.remarks:
        say(f"note: {remark}")
    say(f"inputs: {done.inputs}")
    call = done.table.example or done.table.tapped
    for path in (done.file, done.expected, *done.snippets):
        say(f"written: {path}")
    say(f"call {call} on the phone, save what it returns, then: mobopt compare {done.file} --dump phone.npz")
