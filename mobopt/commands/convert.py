"""``mobopt convert``: a file of a model becomes a bundle for mobile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import bound_option, input_options, json_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import shown, size_text
from mobopt.options import (
    DEFAULT_LEGALIZE,
    DEFAULT_RUNTIME,
    GROUPS,
    OWN_RUNTIME,
    QUANTIZATIONS,
    RUNTIMES,
    MobileOptimizerType,
    Settings,
    parse_backend,
    parse_legalize,
    parse_optimizations,
    parse_quantization,
    parse_runtime,
)

if TYPE_CHECKING:
    from mobopt.passes.manager import PassRun
    from mobopt.passes.notes import Note
    from mobopt.tools.conversion import Conversion

_NAMES = ", ".join(MobileOptimizerType.__members__)


@click.command(short_help="Write a model as a file for PyTorch Mobile.")
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The bundle: .ptl or .pt.")
@click.option("--backend", default="vulkan", show_default=True, help="vulkan, metal or cpu.")
@click.option("--blocklist", multiple=True, metavar="NAME", help=f"Leave out an optimisation; any of {_NAMES}.")
@click.option("--preserve", multiple=True, metavar="METHOD", help="Keep a method or attribute beside forward.")
@click.option(
    "--runtime",
    default=DEFAULT_RUNTIME,
    show_default=True,
    help=f"Oldest release to serve: {', '.join(RUNTIMES)}; or {OWN_RUNTIME}: its own runtime, on desktops.",
)
@click.option(
    "--legalize",
    default=DEFAULT_LEGALIZE,
    show_default=True,
    help="off, safe or full: rewrite what the runtime lacks or computes wrongly; full may fix the file to the sizes "
    "of the inputs.",
)
@click.option("--xnnpack", is_flag=True, help="With cpu: use XNNPACK's operators, which PyTorch has up to 2.12.")
@click.option("--copy-to-host", is_flag=True, help="With metal: end in metal::copy_to_host, as before PyTorch 1.13.")
@click.option(
    "--clear-inputs/--no-clear-inputs",
    default=True,
    help="With vulkan: clamp inputs that are read beyond their last channel (the default), or not.",
)
@click.option("--device-profile", metavar="NAME", help="With vulkan: for the image limit of a device, as audit knows.")
@click.option(
    "--quantize",
    metavar="SCHEME",
    help=f"With --runtime {OWN_RUNTIME}: round weights; {', '.join(QUANTIZATIONS)}. The last two also with cpu, the "
    "last also with vulkan and --runtime 2.6.",
)
@click.option(
    "--quantize-group",
    type=int,
    metavar="N",
    help=f"With int4_weights, weights that share a scale: {', '.join(map(str, GROUPS))}.",
)
@click.option("--keep-float", multiple=True, metavar="PATTERN", help="Layers that keep their weights: 'layers.0.*'.")
@click.option(
    "--calibration",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With int8_static: a folder with a .npy or .npz file of inputs for each call to learn from, besides --input.",
)
@click.option("--bytecode-version", default=8, show_default=True, type=click.IntRange(4, 8), help="Of a .ptl.")
@input_options
@bound_option
@click.option("--force", is_flag=True, help="Write even if something is missing, or the result differs.")
@click.option("--explain", is_flag=True, help="Print what each pass did, and what it left alone and why.")
@click.option(
    "--dump-ir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the text of the model, and of what each pass that changes something leaves, to numbered files.",
)
@click.option("--passes", "lists_passes", is_flag=True, help="Print the passes and why each stands there, and stop.")
@json_option
def convert(
    model: Path | None,
    output: Path | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    bounds: tuple[str, ...],
    preserve: tuple[str, ...],
    bytecode_version: int,
    calibration: Path | None,
    force: bool,
    explain: bool,
    dump_ir: Path | None,
    lists_passes: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Optimise MODEL, a file of torch.jit.save, torch.export.save or ONNX, and write a bundle.

    The result is compared with the model before anything is written: on the inputs given, on those that came with it,
    of the shapes that it was traced with, or guessed. Exit code 1, and no file, if it differs or if the runtime lacks
    something.
    """
    settings = _settings(**choices)
    if lists_passes:
        _print_passes(settings, as_json)
        return
    model, output = _given("'MODEL'", model), _given("'-o' / '--output'", output)
    with progress(f"reading {model.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions, read_bounds, read_calls
        from mobopt.tools.conversion import ConversionRefusedError, convert_file

        examples = InputOptions.parse(inputs, shapes)
        check_writable(output, [model, *examples.files])
        try:
            conversion = convert_file(
                model,
                output,
                settings,
                preserved_methods=preserve,
                bytecode_version=bytecode_version,
                example_inputs=examples.tensors(),
                bounds=read_bounds(bounds),
                calibration_inputs=() if calibration is None else read_calls(calibration),
                dump_ir=dump_ir,
                force=force,
                show=show,
            )
        except ConversionRefusedError as error:
            raise click.ClickException(shown(str(error))) from None
    if as_json:
        print_json(_data(conversion))
    else:
        _print(conversion, explain)


def _given(hint: str, value: Path | None) -> Path:
    """An argument that only the list of passes goes without."""
    if value is None:
        kind = "option" if hint.startswith("'-") else "argument"
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint=hint, param_type=kind)
    return value


def _print_passes(settings: Settings, as_json: bool) -> None:
    from mobopt.passes.pipelines import pipeline_for

    steps = [(step.item.name, step.reason) for step in pipeline_for(settings).steps]
    if as_json:
        print_json([{"pass": name, "reason": reason} for name, reason in steps])
    else:
        rows = [(number, *step) for number, step in enumerate(steps, 1)]
        print_table(f"Passes for {settings.backend}, {settings.runtime}", ("number>", "pass", "why there"), rows)


def _settings(
    backend: str,
    blocklist: tuple[str, ...],
    runtime: str,
    legalize: str,
    xnnpack: bool,
    copy_to_host: bool,
    clear_inputs: bool,
    device_profile: str | None,
    quantize: str | None,
    quantize_group: int | None,
    keep_float: tuple[str, ...],
) -> Settings:
    from mobopt.ops.targets.device_profiles import image_limit_of

    return Settings(
        parse_backend(backend),
        parse_runtime(runtime),
        parse_optimizations(blocklist),
        parse_legalize(legalize),
        xnnpack,
        copy_to_host,
        clear_inputs,
        image_limit_of(device_profile, parse_backend(backend)),
        parse_quantization(quantize, quantize_group, keep_float),
    )


def _data(conversion: Conversion) -> dict[str, Any]:
    import dataclasses

    return {
        "output": str(conversion.output),
        "bytes": conversion.size,
        "seconds": conversion.seconds,
        "inputs": conversion.inputs,
        "relative_difference": conversion.relative_difference,
        "rounding_difference": conversion.rounding_difference,
        "quantized": [note.data() for note in conversion.quantized],
        "fixed_to_sizes": [note.data() for note in conversion.fixed],
        "on_cpu": [note.data() for note in conversion.on_cpu],
        "light_on_cpu": conversion.beside,
        "is_ill_conditioned": conversion.is_ill_conditioned,
        "unknown": conversion.unknown,
        "by_size": conversion.by_size,
        "reads_unwritten": [note.data() for note in conversion.unwritten],
        "misplaced": [note.data() for note in conversion.misplaced],
        "extra_files": list(conversion.extra_files),
        "lacks": [dataclasses.asdict(lack) for lack in conversion.lacks],
        "operators_before": dict(conversion.operators_before),
        "operators_after": dict(conversion.operators_after),
        "notes": [note.data() for note in conversion.notes],
    }


def _print(conversion: Conversion, explain: bool) -> None:
    if explain:
        print_notes(conversion.runs)
    before, after = conversion.operators_before.total(), conversion.operators_after.total()
    say(
        f"{conversion.output}: {size_text(conversion.size)}, {before} operators became {after}, "
        f"{conversion.seconds:.1f} s"
    )
    if conversion.relative_difference is None:
        say("not compared with the model: no inputs that it takes are known")
    else:
        say(
            f"largest difference from the model: {conversion.relative_difference:.1e} of the output's scale, on "
            f"{conversion.inputs}"
        )
    if conversion.quantized:
        _print_quantized(conversion)
    if conversion.remark:
        say(conversion.remark)
    if conversion.is_ill_conditioned:
        say("the model is ill-conditioned: what single precision rounds takes it as far from the result of float64")
    for note in conversion.fixed:
        say(f"for inputs of these sizes only: {note.subject}{_place(note)}; {note.message}")
    for subject, message in _grouped(conversion.on_cpu):
        say(f"on the device's CPU: {subject}; {message}")
    if conversion.beside:
        say(f"with them, for the sake of fewer transfers: {conversion.beside} light operators")
    if conversion.extra_files:
        say(f"extra files kept: {', '.join(conversion.extra_files)}")
    for note in conversion.unwritten:
        say(f"may give NaN after other models ran: {note.subject}{_place(note)}; {note.message}")
    for note in conversion.misplaced:
        say(f"may be wrong on the phone: {note.subject}{_place(note)}; {note.message}")
    for lack in conversion.lacks:
        say(f"written by force: {lack}")
    if conversion.by_size:
        say(f"by size: {conversion.by_size}; declare fewer sizes, with --bound or in the export, where they suffice")
    if conversion.unknown:
        say(f"unknown: {conversion.unknown}")


_SHOWN_ALONE = 3
"""As many nodes that run on the CPU for the same reason have lines of their own."""


def _grouped(notes: Sequence[Note]) -> Iterator[tuple[str, str]]:
    """Nodes with what is said of them; many of one operator together."""
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        groups.setdefault((note.subject.partition(" ")[0], note.message), []).append(note)
    for (operator, message), group in groups.items():
        if len(group) <= _SHOWN_ALONE:
            yield from ((f"{note.subject}{_place(note)}", message) for note in group)
        else:
            yield f"{len(group)} {operator}, the first {group[0].subject}{_place(group[0])}", message


def _print_quantized(conversion: Conversion) -> None:
    from mobopt.passes.quantize_weights import poorly_quantized

    notes = conversion.quantized
    before, after = (sum(note.parameters[name] for note in notes) for name in ("before", "after"))
    worst = max(notes, key=lambda note: note.parameters["error"]).parameters
    say(
        f"weights of {len(notes)} layers rounded: {size_text(before)} became {size_text(after)}; "
        f"{worst['layer']} loses most, {worst['error']:.2%}"
    )
    if conversion.rounding_difference is not None:
        say(
            f"with rounded weights it differs from the model by {conversion.rounding_difference:.1e} of the output's "
            "scale"
        )
    if poor := poorly_quantized(conversion.notes):
        say(poor)


def _place(note: Note) -> str:
    return f" at {note.source}" if note.source else ""


def print_notes(runs: Sequence[PassRun]) -> None:
    """Print what each pass said, under its name."""
    for run in runs:
        if run.result.notes:
            rows = [
                ("yes" if note.done else "no", note.subject, note.message, note.source) for note in run.result.notes
            ]
            print_table(run.name, ("done", "node", "what, and why", "source"), rows)
            say()
