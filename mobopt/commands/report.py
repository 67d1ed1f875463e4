"""``mobopt report``: one page about a model, for a colleague."""

from __future__ import annotations

from pathlib import Path

import click

from mobopt.commands.shared_options import input_options
from mobopt.commands.terminal import progress, say


@click.command(short_help="Write one page about a model for a colleague.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page [default: MODEL's name with .html].")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="BACKEND[:RUNTIME]",
    help="Repeat it for several; accuracy is told of the first [default: vulkan:2.1, vulkan:2.6, metal, cpu].",
)
@click.option(
    "--device", default="vulkan", show_default=True, help="Where it is run: vulkan (the best), a name, or none."
)
@input_options
@click.option("--repeat", default=10, show_default=True, type=click.IntRange(min=1), help="Timed calls.")
def report(
    model: Path,
    output: Path | None,
    targets: tuple[str, ...],
    device: str,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    repeat: int,
) -> None:
    """Write one page of HTML about MODEL: what it is, what each target does with it, what is rewritten and why,
    accuracy and speed by layer on a device of this machine, and what would help.

    MODEL is a model or an optimised file. The page needs no network. What could not be found out is told there.
    """
    output = output or Path(f"{model.stem}.html")
    with progress(f"reading {model.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools.report import TARGETS, ReportTarget
        from mobopt.tools.report import report as report_on
        from mobopt.tools.report_page import advice_on, write_page

        examples = InputOptions.parse(inputs, shapes)
        check_writable(output, [model, *examples.files])
        found = report_on(
            model,
            targets=[ReportTarget.parse(text) for text in targets] or TARGETS,
            device=None if device == "none" else device,
            example_inputs=examples.tensors(),
            repeat=repeat,
            show=show,
        )
        write_page(found, output)
    for target, audited in found.audits.items():
        say(f"{target}: {', '.join(audited.problems) or 'nothing is missing or wrong'}")
    for name, reason in found.refusals.items():
        say(f"{name}: {reason}")
    advice = advice_on(found)
    say(f"{output} is written" + (f"; {len(advice)} thing{'s' * (len(advice) != 1)} would help" if advice else ""))
