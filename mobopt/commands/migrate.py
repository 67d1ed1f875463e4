"""``mobopt migrate``: a model, or a file that only PyTorch Mobile opens, in another format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, json_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import shown, size_text
from mobopt.errors import InputError
from mobopt.options import parse_format

if TYPE_CHECKING:
    from mobopt.tools.migration import Migration

_FREE = re.compile(r"(?P<input>\w+):(?P<dim>\d+)(?:=(?P<low>\d+)\.\.(?P<high>\d*))?")


@click.command(short_help="Bring an old file to a format that lives on.")
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The new file: .pt (TorchScript for stock torch), .pt2 (ExportedProgram), .onnx or .pte (ExecuTorch).",
)
@click.option("--method", default="forward", show_default=True, help="The method of a format that holds one.")
@input_options
@click.option("--fixed-sizes", is_flag=True, help="Fix the sizes of the inputs; else all stay free that can.")
@click.option(
    "--free", "free", multiple=True, metavar="INPUT:DIM[=LOW..HIGH]", help="Keep only this size free: x:0, x:2=32..512."
)
@click.option("--opset", default=18, show_default=True, help="Of an .onnx, 18 to 23.")
@click.option("--delegate", default="xnnpack", show_default=True, help="Of a .pte: xnnpack, vulkan or portable.")
@click.option("--force", is_flag=True, help="Write even if the new file gives other results, or none are known.")
@click.option("--explain", is_flag=True, help="Print what was changed, node by node.")
@json_option
def migrate(
    old: Path,
    output: Path,
    method: str,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    fixed_sizes: bool,
    free: tuple[str, ...],
    opset: int,
    delegate: str,
    force: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Write OLD, a .pt or .ptl file of any release and backend, in a format that lives on.

    Packed weights become plain ones, and transfers between devices go. Both files are run on the same inputs: those
    given, bundled with the model, of the shapes that it was traced with, or guessed. Exit code 1, and no file, if they
    differ. OLD is never changed.
    """
    if fixed_sizes and free:
        raise InputError("give --fixed-sizes or --free, not both")
    ranges = _ranges(free)
    parse_format(output)
    with progress(f"reading {old.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools import migration

        examples = InputOptions.parse(inputs, shapes)
        check_writable(output, [old, *examples.files])
        try:
            done = migration.migrate(
                old,
                output,
                method=method,
                example_inputs=examples.tensors(),
                sizes="fixed" if fixed_sizes else ranges or "auto",
                opset=opset,
                delegate=delegate,
                force=force,
                show=show,
            )
        except migration.MigrationRefusedError as error:
            raise click.ClickException(shown(str(error))) from None
    if as_json:
        print_json(_data(done))
    else:
        _print(done, old, explain)


def _ranges(texts: tuple[str, ...]) -> dict[str, dict[int, tuple[int, int | None]]]:
    found: dict[str, dict[int, tuple[int, int | None]]] = {}
    for text in texts:
        match = _FREE.fullmatch(text)
        if match is None:
            raise InputError(f"can't read --free {text!r}; write an input and a dimension, such as x:0 or x:2=32..512")
        low, high = int(match["low"] or 1), int(match["high"]) if match["high"] else None
        if high is not None and high < low:
            raise InputError(f"--free {text!r}: {high} is less than {low}")
        found.setdefault(match["input"], {})[int(match["dim"])] = (low, high)
    return found


def _data(done: Migration) -> dict[str, Any]:
    return {
        "output": str(done.output),
        "format": done.format,
        "bytes": done.size,
        "seconds": done.seconds,
        "methods": list(done.methods),
        "left_out": list(done.left_out),
        "sizes": done.sizes,
        "remarks": list(done.remarks),
        "unpacked": dict(done.unpacked),
        "transfers_removed": done.transfers,
        "inputs": done.inputs,
        "runner": done.runner,
        "relative_difference": done.relative_difference,
        "is_ill_conditioned": done.is_ill_conditioned,
        "drawn": list(done.drawn),
        "operators_before": dict(done.operators_before),
        "operators_after": dict(done.operators_after),
        "notes": [note.data() for note in done.notes],
    }


def _print(done: Migration, old: Path, explain: bool) -> None:
    if explain and done.notes:
        rows = [(note.subject, note.message, note.source) for note in done.notes]
        print_table("changes", ("node", "what", "source"), rows)
        say()
    say(f"{done.output}: {done.format} of {', '.join(done.methods)}, {size_text(done.size)}, {done.seconds:.1f} s")
    if done.unpacked:
        layers = ", ".join(f"{count} {operator}" for operator, count in done.unpacked.most_common())
        say(f"packed layers made plain: {layers}")
    if done.transfers:
        say(f"transfers between devices removed: {done.transfers}")
    for name, sizes in done.sizes.items():
        say(f"sizes of {name}: {sizes}")
    for remark in done.remarks:
        say(remark)
    if done.left_out:
        say(f"not in the new file: {', '.join(done.left_out)}")
    if done.drawn:
        say(
            f"the model draws random numbers ({', '.join(done.drawn)}), and {done.runner} draws others: "
            f"sizes and dtypes agree with {old.name}, numbers were not compared, on {done.inputs}"
        )
    elif done.relative_difference is None:
        say(f"not compared with {old.name}: no inputs that it takes are known")
    else:
        say(
            f"largest difference from {old.name}, run by {done.runner}: {done.relative_difference:.1e} of the output's "
            f"scale, on {done.inputs}"
        )
    if done.is_ill_conditioned:
        say("the model is ill-conditioned: what single precision rounds takes it as far from the result of float64")
