"""``mobopt stress``: whether a device computes the same, and the right, again and again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, json_option, method_option
from mobopt.commands.terminal import let_threads_sleep, print_json, print_table, progress, say

if TYPE_CHECKING:
    from mobopt.tools.stress import Condition, Stress


@click.command(short_help="See whether a device computes the same again and again.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", help="A number or a part of a name of mobopt devices [default: the best].")
@input_options
@method_option
@click.option("--replays", default=100, show_default=True, help="Runs of a condition.")
@click.option("--seconds", default=60.0, show_default=True, help="For all runs; 0: as long as they take.")
@click.option("--threads", default=2, show_default=True, help="Threads that call at once; 0 leaves that out.")
@click.option("--minutes", default=0.0, help="Go on for so long, beside the replays.")
@click.option("--pause", default=0.0, help="Seconds before each call of the long run, or of some calls.")
@click.option(
    "--size", "sizes", multiple=True, metavar="SHAPES", help="Other random inputs in between: 1,3,64,48; 1,8/1,8:int64."
)
@click.option("--variant", "variants", multiple=True, help="Other kernels to try [default: all]; none for none.")
@click.option(
    "--tolerance",
    type=float,
    help="Error that is let pass, over an output's scale [default: 1e-4; of models in float16 1e-2, in bfloat16 8e-2].",
)
@json_option
def stress(
    model: Path,
    device: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    method: str,
    replays: int,
    seconds: float,
    threads: int,
    minutes: float,
    pause: float,
    sizes: tuple[str, ...],
    variants: tuple[str, ...],
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Run MODEL again and again on a device: the bits must be the same each time, and right.

    Also with NaN in memory before each run, from several threads, with other kernels and shapes of workgroups, after
    other sizes, and for as long as is asked. Exit code 1 if anything differs.
    """
    let_threads_sleep()
    with progress(f"reading {model.name}") as show:
        from mobopt.samples.inputs import InputOptions, random_inputs
        from mobopt.tools import stress as tool

        examples = InputOptions.parse(inputs, shapes)
        chosen = () if variants == ("none",) else variants or tool.VARIANTS
        found = tool.stress(
            model,
            device=device,
            method=method,
            example_inputs=examples.tensors(),
            replays=replays,
            seconds=seconds,
            threads=threads,
            minutes=minutes,
            pause=pause,
            sizes=[random_inputs(text.split("/")) for text in sizes],
            variants=chosen,
            tolerance=tolerance,
            show=show,
        )
    if as_json:
        print_json(_data(found))
    else:
        _print(found)
    if not found.passes:
        raise click.exceptions.Exit(1)


def _data(found: Stress) -> dict[str, Any]:
    import dataclasses

    data = dataclasses.asdict(found)
    for item in data["conditions"]:
        if item["spot"] is not None:
            item["spot"]["values"] = [value if math.isfinite(value) else str(value) for value in item["spot"]["values"]]
    return {**data, "passes": found.passes, "cut": found.cut}


def _print(found: Stress) -> None:
    say(f"{found.model} on {found.device}, {found.driver}")
    say(f"inputs: {found.inputs}")
    if found.switches:
        say(f"chosen otherwise for this driver: {', '.join(found.switches)}")
    say()
    columns = ("condition", "runs>", "distinct>", "error>", "verdict", "seconds>")
    print_table("", columns, (_row(item) for item in found.conditions))
    say()
    for item in found.conditions:
        for line in _details(item):
            say(f"{item.name}: {line}")
    if found.cut:
        say(f"fewer runs than wanted, for the time was over: {', '.join(found.cut)}; give them more by --seconds")
    runs = sum(item.runs for item in found.conditions)
    say(
        f"{runs} runs in {found.seconds:.1f} s: "
        + ("nothing differs" if found.passes else "it is not steady and right")
    )


def _row(item: Condition) -> tuple[str, ...]:
    error = f"{item.error:.1e}" if item.runs else ""
    return item.name, str(item.runs), str(item.distinct), error, item.verdict, f"{item.seconds:.1f}"


def _details(item: Condition) -> list[str]:
    found = []
    if item.message:
        found.append(item.message)
    if item.spot is not None:
        spot = item.spot
        found.append(
            f"output {spot.output} differs in {spot.elements} of {spot.of} elements, first {list(spot.index)}: "
            f"{spot.values[0]:.9g} and {spot.values[1]:.9g}"
        )
    if item.layer:
        found.append(f"the first layer: {item.layer}")
    elif item.spot is not None:
        found.append("the layer was not found: with all values seen, the runs were the same")
    return found
