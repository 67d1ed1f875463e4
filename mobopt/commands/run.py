"""``mobopt run``: run a bundle on a Vulkan device."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import fallback_option, json_option, method_option, precision_options
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import size_text
from mobopt.errors import InputError, MissingInputError

if TYPE_CHECKING:
    import torch

    from mobopt.options import FallbackChoice, Precision
    from mobopt.tools.execution import Execution, PrecisionReport


@click.command(short_help="Run a model or file on a Vulkan device, or the CPU.")
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--input", "inputs", multiple=True, help="A .npy file, or a list [a.npy;b.npy]; once per input.")
@click.option(
    "--random",
    "shapes",
    multiple=True,
    metavar="SHAPE",
    help="1,3,224,224 or 1,16:int64, or a list [3,64,80;3,48,48]; once per input.",
)
@method_option
@click.option("--device", help="Number or part of the name of a device (see `mobopt devices`), or cpu.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(min=1), help="Number of timed calls.")
@fallback_option
@precision_options(
    "fp16, bf16: half the memory for weights and tensors in between; with --device cpu, round every result as a "
    "phone's GPU may. Compared with fp32."
)
@click.option("--keep-clock", is_flag=True, help="Hold an NVIDIA GPU's clock up between calls, by a CUDA context.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the result as .npy (several: NAME_0.npy, ...).")
@json_option
def run(
    bundle: Path,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    method: str,
    device: str | None,
    repeat: int,
    fallback: FallbackChoice,
    precision: Precision,
    fp32_nodes: tuple[str, ...],
    keep_clock: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run BUNDLE (.ptl, .pt or .pt2), by default on the best Vulkan device."""
    if inputs and shapes:
        raise InputError("give --input or --random, not both")
    with progress(f"reading {bundle.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import files_of, random_inputs, read_inputs
        from mobopt.tools.execution import run_bundle
        from mobopt.tools.optimized_files import is_optimized

        files = [bundle, *files_of(inputs)]
        if output is not None:
            check_writable(output, files)
        tensors = read_inputs(inputs) if inputs else random_inputs(shapes)
        show(f"running {bundle.name}")
        try:
            execution = run_bundle(
                bundle,
                tensors,
                device=device,
                method=method,
                repeat=repeat,
                fallback=fallback,
                precision=precision,
                fp32_nodes=fp32_nodes,
                keep_clock=keep_clock,
            )
        except MissingInputError as error:
            raise InputError(f"{error}; give each with --input x.npy or --random 1,3,224,224") from None
    written = _write_outputs(execution.outputs, output, files) if output else []
    if as_json:
        print_json(_data(execution, written))
        return
    _print(execution, written)
    if repeat > 1 and execution.report is not None and not is_optimized(bundle):
        say(
            f"note: {bundle} ran as it is; `mobopt convert {bundle} -o NEW.pt --runtime mobopt` folds and fuses "
            "operators first"
        )


def _write_outputs(outputs: list[torch.Tensor], path: Path, sources: list[Path]) -> list[Path]:
    import numpy

    from mobopt.files import check_writable, whole_file
    from mobopt.samples.inputs import array_of

    if not outputs:
        raise InputError(f"the result has no tensor, so there is nothing to write to {path}; leave out --output")
    several = len(outputs) > 1
    paths = [path.with_stem(f"{path.stem}_{number}") if several else path for number in range(len(outputs))]
    for target in paths:
        check_writable(target, sources)
    for target, tensor in zip(paths, outputs, strict=True):
        with whole_file(target) as file:
            numpy.save(file, array_of(tensor))
    return paths


def _data(execution: Execution, written: list[Path]) -> dict[str, Any]:
    report = execution.report
    data: dict[str, Any] = {
        "device": execution.device,
        "preparation_ms": execution.preparation_seconds * 1000,
        "call_ms": [seconds * 1000 for seconds in execution.seconds],
        "outputs": [{"dtype": _dtype(tensor), "shape": list(tensor.shape)} for tensor in execution.outputs],
        "written": [str(path) for path in written],
    }
    if execution.precision is not None:
        found = dataclasses.asdict(execution.precision)
        # JSON has no infinity.
        data["precision"] = {name: None if value == math.inf else value for name, value in found.items()}
    if report is not None:
        data["dispatches"] = report.dispatches
        data["fallbacks"] = [str(fallback) for fallback in report.fallbacks]
        if report.halves is not None:
            data["halves"] = report.halves.data()
        if report.memory is not None:
            data["peak_bytes"] = report.memory.peak_bytes
            data["lower_bound_bytes"] = report.memory.lower_bound_bytes
    return data


def _print(execution: Execution, written: list[Path]) -> None:
    report, calls = execution.report, execution.seconds
    rows: list[tuple[str, str]] = [("device", execution.device)]
    if report is not None:
        rows.append(("prepared in", f"{execution.preparation_seconds * 1000:.0f} ms"))
        rows.append(("plan", f"{report.dispatches} dispatches, {len(report.fallbacks)} operators on the CPU"))
        if report.halves is not None:
            first, *pinned = str(report.halves).splitlines()
            rows += [(report.halves.precision, first), *(("", line.strip()) for line in pinned)]
        if report.memory is not None:
            memory = report.memory
            bound = f"lower bound {size_text(memory.lower_bound_bytes)}"
            rows.append(("peak memory", f"{size_text(memory.peak_bytes)} ({bound})"))
    spread = f" (best {min(calls) * 1000:.2f}, of {len(calls)})" if len(calls) > 1 else ""
    rows.append(("call", f"{execution.median_seconds * 1000:.2f} ms{spread}"))
    for number, tensor in enumerate(execution.outputs):
        rows.append((f"output {number}", f"{_dtype(tensor)} {list(tensor.shape)}{_range(tensor)}"))
    if execution.precision is not None:
        rows += _precision_rows(execution.precision, is_emulated=report is None)
    rows += [("written", str(path)) for path in written]
    print_table("", ("", ""), rows)


def _precision_rows(precision: PrecisionReport, is_emulated: bool) -> list[tuple[str, str]]:
    title = f"{precision.precision} - fp32"
    of_scale = f"{precision.absolute:.3g} at most, {precision.relative:.2%} of the output's scale"
    loss = precision.first_loss
    if not is_emulated:
        return [(title, of_scale)]
    return [(title, of_scale), ("first loss", str(loss) if loss else "no node loses over 1%")]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _range(tensor: torch.Tensor) -> str:
    return f" in {tensor.min().item():.5g} .. {tensor.max().item():.5g}" if tensor.numel() else ""
