"""``mobopt demo``: the whole road on one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mobopt.commands.shared_options import json_option
from mobopt.commands.terminal import print_json, print_table, progress
from mobopt.display import size_text

if TYPE_CHECKING:
    from mobopt.tools.demonstration import Demonstration


@click.command(short_help="Convert a MobileNetV2 and run it on Vulkan.")
@click.option("--folder", default="demo-output", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--device", help="Number or part of the name of a device (see `mobopt devices`).")
@click.option("--repeat", default=20, show_default=True, type=click.IntRange(min=1), help="Number of timed calls.")
@json_option
def demo(folder: Path, device: str | None, repeat: int, as_json: bool) -> None:
    """Script a MobileNetV2, convert it, run it on Vulkan, and compare it with PyTorch on the CPU."""
    with progress("importing PyTorch") as show:
        from mobopt.tools.demonstration import demonstrate

        result = demonstrate(folder, device, repeat, show)
    if as_json:
        print_json(_data(result))
    else:
        _print(result)
    if not result.agreement.agrees:
        raise click.ClickException("the bundle's result differs from PyTorch's; please report this device and driver")


def _data(result: Demonstration) -> dict[str, object]:
    memory = result.execution.report.memory if result.execution.report else None
    return {
        "device": result.execution.device,
        "relative_difference": result.agreement.relative,
        "vulkan_ms": result.execution.median_seconds * 1000,
        "eager_cpu_ms": result.eager_seconds * 1000,
        "peak_bytes": memory.peak_bytes if memory else None,
        "files": [str(path) for path in (result.model, result.bundle, result.input)],
    }


def _print(result: Demonstration) -> None:
    conversion, execution = result.conversion, result.execution
    rows = []
    for run in conversion.runs:
        done = [note for note in run.result.notes if note.done]
        example = f"{done[0].subject}: {done[0].message}" if done else ""
        changed = "yes" if run.result.changed else "no"
        rows.append((run.name, changed, len(done), f"{run.seconds * 1000:.0f} ms", example))
    print_table("What each pass did", ("pass", "changed", "rewrites>", "time>", "the first"), rows)
    click.echo()
    facts = [
        ("device", execution.device),
        ("agreement", f"largest difference {result.agreement.relative:.1e} of the output's scale"),
        ("one call", f"{execution.median_seconds * 1000:.2f} ms"),
        ("PyTorch on the CPU", f"{result.eager_seconds * 1000:.2f} ms"),
        ("operators", f"{conversion.operators_before.total()} became {conversion.operators_after.total()}"),
    ]
    if report := execution.report:
        facts.append(("plan", f"{report.dispatches} dispatches, {len(report.fallbacks)} operators on the CPU"))
        if report.memory is not None:
            facts.append(("peak memory", size_text(report.memory.peak_bytes)))
    for path in (result.model, result.bundle, result.input):
        facts.append(("file", f"{path} ({size_text(path.stat().st_size)})"))
    print_table("", ("", ""), facts)
    click.echo("\nNext, with `mobopt` or `python3 cli.py`:")
    click.echo(f"  inspect {result.bundle}")
    click.echo(f"  profile {result.bundle} --input {result.input} --html profile.html")
