"""``mobopt bisect``: which pass, rewrite, node, fusion or half makes a model's outputs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.compare import pipeline_named
from mobopt.commands.shared_options import input_options, json_option, method_option, precision_options
from mobopt.commands.terminal import let_threads_sleep, print_json, progress, say

if TYPE_CHECKING:
    from mobopt.options import Precision
    from mobopt.tools.bisection_results import Bisection


@click.command(short_help="Find the pass, rewrite, node or fusion that makes them differ.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    help="Folder for the smallest program that shows it.",
)
@click.option("--device", default="vulkan", show_default=True, help="cpu (passes only), vulkan, a number or a name.")
@click.option("--passes", metavar="BACKEND[:RUNTIME]", help="Passes that the model goes through: vulkan:2.6, cpu.")
@input_options
@method_option
@click.option(
    "--tolerance",
    type=float,
    help="Error that is let pass, over the output's scale [default: 1e-4, of fp16 1e-2, of bf16 8e-2].",
)
@precision_options("Of the device.")
@json_option
def bisect(
    model: Path,
    output: Path | None,
    device: str,
    passes: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    method: str,
    tolerance: float | None,
    precision: Precision,
    fp32_nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find what makes the outputs of MODEL differ from those of the plain model on the CPU.

    With --passes, first the pass, and which of its rewrites; then the node that goes wrong on the device, and whether
    by itself, by its fusion, or only in the halves of --precision. The number of runs is logarithmic in theirs. Exit
    code 1 if something was found.
    """
    let_threads_sleep()
    with progress(f"reading {model.name}") as show:
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools.bisection import bisect as search

        examples = InputOptions.parse(inputs, shapes)
        found = search(
            model,
            device=device,
            passes=pipeline_named(passes),
            method=method,
            example_inputs=examples.tensors(),
            tolerance=tolerance,
            precision=precision,
            fp32_nodes=fp32_nodes,
            show=show,
        )
        written = _written(found, output, model)
    if as_json:
        print_json(_data(found, written))
    else:
        _print(found, written, output)
    if found.culprit:
        raise click.exceptions.Exit(1)


def _written(found: Bisection, folder: Path | None, model: Path) -> list[Path]:
    if folder is None or found.sample is None:
        return []
    from mobopt.tools.small_program import write_sample

    title = f"{found.kind} {found.culprit} of {model.name} differs."
    return write_sample(
        found.sample,
        folder,
        title=title,
        device=found.device,
        tolerance=found.tolerance,
        precision=found.precision,
    )


def _data(found: Bisection, written: list[Path]) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "culprit": found.culprit,
        "source": list(found.source),
        "error": found.error,
        "error_before": found.error_before,
        "candidates": found.candidates,
        "runs": found.runs,
        "sample_error": found.sample_error,
        "inputs": found.inputs,
        "tolerance": found.tolerance,
        "remarks": list(found.remarks),
        "written": [str(path) for path in written],
        "seconds": found.seconds,
    }


def _print(found: Bisection, written: list[Path], folder: Path | None) -> None:
    say(f"inputs: {found.inputs}")
    if not found.culprit:
        say(f"the outputs agree: the largest error is {found.error:.1e} of the scale; {found.tolerance:g} is let pass")
        return
    say(f"{found.kind}: {found.culprit}")
    if found.source:
        say(f"source: {', '.join(found.source)}")
    say(f"error of the outputs: {found.error:.1e} with it, {found.error_before:.1e} without")
    say(f"found among {found.candidates} in {found.runs} runs, {found.seconds:.1f} s")
    if found.sample is not None and found.sample_error is not None:
        count = len(found.sample.part.block.nodes)
        operators = "1 operator" if count == 1 else f"{count} operators"
        say(f"the smallest program that shows it has {operators}, and an error of {found.sample_error:.1e}")
        for node in found.sample.part.block.nodes:
            say(f"  {node.op}" + (f" at {node.source}" if node.source else ""))
        if not written:
            say("write it with -o FOLDER")
    elif folder is not None:
        say(f"no smaller program shows it: nothing is written to {folder}")
    for remark in found.remarks:
        say(f"note: {remark}")
    for path in written:
        say(f"written: {path}")
