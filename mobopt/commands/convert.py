"""``mobopt convert``: a TorchScript file becomes a bundle for mobile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.terminal import print_json, print_table, progress, size_text
from mobopt.options import DEFAULT_RUNTIME, RUNTIMES, MobileOptimizerType

if TYPE_CHECKING:
    from mobopt.passes.manager import PassRun
    from mobopt.tools.conversion import Conversion

_NAMES = ", ".join(MobileOptimizerType.__members__)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle: .ptl or .pt.")
@click.option("--backend", default="vulkan", show_default=True, help="vulkan or cpu.")
@click.option("--blocklist", multiple=True, metavar="NAME", help=f"Leave out an optimisation; any of {_NAMES}.")
@click.option("--preserve", multiple=True, metavar="METHOD", help="Keep a method or attribute beside forward.")
@click.option(
    "--runtime", default=DEFAULT_RUNTIME, show_default=True, help=f"Oldest release to serve; {', '.join(RUNTIMES)}."
)
@click.option("--bytecode-version", default=8, show_default=True, type=click.IntRange(4, 8), help="Of a .ptl.")
@click.option("--input", "inputs", multiple=True, type=click.Path(path_type=Path), help="A .npy example input.")
@click.option("--random", "shapes", multiple=True, metavar="SHAPE", help="A random example input: 1,3,224,224.")
@click.option("--explain", is_flag=True, help="Print what each pass did, and what it left alone and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def convert(
    model: Path,
    output: Path,
    backend: str,
    blocklist: tuple[str, ...],
    preserve: tuple[str, ...],
    runtime: str,
    bytecode_version: int,
    inputs: tuple[Path, ...],
    shapes: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Optimise MODEL, saved with torch.jit.save, and write a bundle.

    With example inputs the result is compared with the model before anything is written; exit code 1 if it differs.
    """
    if inputs and shapes:
        raise click.UsageError("give --input or --random, not both")
    with progress(f"reading {model.name}") as show:
        from mobopt.errors import PassError
        from mobopt.tools.conversion import convert_file
        from mobopt.tools.inputs import random_inputs, read_inputs

        try:
            conversion = convert_file(
                model,
                output,
                backend=backend,
                blocklist=blocklist,
                preserved_methods=preserve,
                runtime=runtime,
                bytecode_version=bytecode_version,
                example_inputs=(read_inputs(inputs) or random_inputs(shapes)) or None,
                show=show,
            )
        except PassError as error:
            raise click.ClickException(f"{error}; nothing was written") from None
    if as_json:
        print_json(_data(conversion))
    else:
        _print(conversion, explain)


def _data(conversion: Conversion) -> dict[str, Any]:
    import dataclasses

    return {
        "output": str(conversion.output),
        "bytes": conversion.size,
        "seconds": conversion.seconds,
        "relative_difference": conversion.relative_difference,
        "operators_before": dict(conversion.operators_before),
        "operators_after": dict(conversion.operators_after),
        "notes": [dataclasses.asdict(note) for note in conversion.notes],
    }


def _print(conversion: Conversion, explain: bool) -> None:
    if explain:
        print_notes(conversion.runs)
    before, after = conversion.operators_before.total(), conversion.operators_after.total()
    click.echo(
        f"{conversion.output}: {size_text(conversion.size)}, {before} operators became {after}, "
        f"{conversion.seconds:.1f} s"
    )
    if conversion.relative_difference is not None:
        click.echo(f"largest difference from the original: {conversion.relative_difference:.1e} of the output's scale")


def print_notes(runs: Sequence[PassRun]) -> None:
    """Print what each pass said, under its name."""
    for run in runs:
        if run.result.notes:
            rows = [
                ("yes" if note.done else "no", note.subject, note.message, note.source) for note in run.result.notes
            ]
            print_table(run.name, ("done", "node", "what, and why", "source"), rows)
            click.echo()
