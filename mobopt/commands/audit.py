"""``mobopt audit``: what a phone's runtime does with each operator of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import bound_option, input_options, json_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.options import DEFAULT_RUNTIME, RUNTIMES

if TYPE_CHECKING:
    from mobopt.tools.audit import Audit, AuditLine
    from mobopt.tools.audit_calls import Cause

_SOURCES_SHOWN = 3
_MEANINGS = {
    "wrong": "runs, and gives other numbers",
    "missing": "the runtime can't run it",
    "unknown": "only sizes tell: give --input or --random",
    "unreached": "would not run, and no input comes here",
    "cpu": "CPU on the device: right, but slow",
    "rewritten": "the conversion writes it with other operators",
    "native": "runs as it is",
}


@click.command(short_help="Tell what a phone's runtime does with every operator.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--backend", help="vulkan (the default), metal or cpu; an optimised file knows its own.")
@click.option(
    "--runtime", default=DEFAULT_RUNTIME, show_default=True, help=f"The phone's release; {', '.join(RUNTIMES)}."
)
@click.option("--device-profile", metavar="NAME", help="Check the limits of a device, such as adreno-6xx.")
@click.option("--legalize", help="off, safe or full (the default): how far the conversion rewrites.")
@click.option("--preserve", multiple=True, metavar="METHOD", help="Another method that the conversion will keep.")
@input_options
@bound_option
@click.option(
    "--allow", type=click.Path(path_type=Path), help="The operator list of the app's PyTorch build, a YAML file."
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page, too.")
@json_option
def audit(
    model: Path,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    bounds: tuple[str, ...],
    preserve: tuple[str, ...],
    html: Path | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Tell what the phone's runtime does with every operator of MODEL.

    MODEL is a file of torch.jit.save, torch.export.save or ONNX before conversion, or an optimised file of any backend.
    Exit code 1 if something is missing, wrong or unknown, also on the device of --device-profile and in the build of
    --allow.
    """
    with progress(f"reading {model.name}"):
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions, read_bounds
        from mobopt.tools.audit import audit as audit_model

        examples = InputOptions.parse(inputs, shapes)
        if html is not None:
            check_writable(html, [model, *examples.files, *([] if choices["allow"] is None else [choices["allow"]])])
        found = audit_model(
            model,
            example_inputs=examples.tensors(),
            bounds=read_bounds(bounds),
            preserved_methods=preserve,
            **choices,
        )
        if html is not None:
            from mobopt.tools.audit_page import write_page

            write_page(found, html)
    if as_json:
        print_json(_data(found))
    else:
        _print(found)
    if not found.is_good:
        click.get_current_context().exit(1)


def _data(found: Audit) -> dict[str, Any]:
    import dataclasses

    data = {**dataclasses.asdict(found), "counts": found.counts, "is_good": found.is_good}
    if found.change is not None:
        data["change"] |= {"operators": found.change.operators, "arithmetic": found.change.arithmetic}
    return data


def _print(found: Audit) -> None:
    kind = "optimised for" if found.is_bundle else "before conversion to"
    sizes = f"sizes of {found.inputs}" if found.inputs else "no sizes are known"
    say(f"{found.model}, {kind} {found.backend}, on PyTorch {found.runtime}; {sizes}")
    if found.placement:
        say(f"{found.placement}.")
        say()
        print_table(
            "",
            ("on the CPU because of", "count>", "why", "others follow>", "a kernel saves"),
            map(_cause_row, found.causes),
        )
        say()
    print_table("", ("operator", "count>", "verdict", "why", "source", "tensors of the first"), map(_row, found.lines))
    say()
    for verdict, count in found.counts.items():
        say(f"{count:6} {verdict:10} {_MEANINGS[verdict]}")
    if found.change is not None:
        say(f"\nThe conversion: {found.change}.")
    _print_limits(found)
    _print_missing_from_build(found)


def _cause_row(cause: Cause) -> tuple[str, ...]:
    return cause.operator, str(cause.count), cause.reason, str(cause.followers), cause.saved


def _row(line: AuditLine) -> tuple[str, ...]:
    from mobopt.tools.audit import short_source

    shown = [short_source(source) for source in line.sources[:_SOURCES_SHOWN]]
    if len(line.sources) > len(shown):
        shown.append(f"and {len(line.sources) - len(shown)} more")
    return line.operator, str(line.count), line.verdict, _why(line), "\n".join(shown), line.operands


def _why(line: AuditLine) -> str:
    parts = [f"follows {line.follows}: {line.reason}" if line.follows else line.reason]
    if line.verdict == "rewritten":
        parts.append(f"{line.rewrite}: {line.rewrite_summary}")
        parts.append("fixes the file to the sizes of the inputs" if line.fixes_sizes else "")
    elif line.verdict != "native":
        parts.append(line.help)
    return "; ".join(part for part in parts if part)


def _print_limits(found: Audit) -> None:
    device = f"{found.profile.name} ({found.profile.device})" if found.profile is not None else "most phones"
    if found.limits:
        say(f"\nToo large for {device}:")
        for item in found.limits:
            say(f"  {item}")
    elif found.profile is not None:
        say(f"\nEverything fits {device}.")


def _print_missing_from_build(found: Audit) -> None:
    if found.missing_from_build is None:
        return
    if not found.missing_from_build:
        say(f"\nThe app's build has all {len(found.operators)} operators.")
        return
    say("\nMissing from the build; add to its operator list:")
    for name in found.missing_from_build:
        say(f"- {name}")
