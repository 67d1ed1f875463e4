"""``mobopt compare``: two runs of a model, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, json_option, method_option, precision_options
from mobopt.commands.terminal import let_threads_sleep, print_json, print_table, progress, say
from mobopt.errors import InputError
from mobopt.options import PRECISIONS

if TYPE_CHECKING:
    from mobopt.options import Precision
    from mobopt.passes.pipelines import PassPipeline
    from mobopt.tools.comparison_results import Comparison, Layer, Output

_MOST_ROWS = 30


@click.command(short_help="Say layer by layer where two runs of a model differ.")
@click.argument("a", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device-a", default="cpu", show_default=True, help="Where A runs: cpu, vulkan, a number or a name.")
@click.option(
    "--device-b",
    help="Where B runs [default: cpu]; without B and passes, where A runs too [default: vulkan, the best device].",
)
@click.option("--passes-a", metavar="BACKEND[:RUNTIME]", help="Convert A first, in memory: vulkan:2.6, cpu, metal.")
@click.option("--passes-b", metavar="BACKEND[:RUNTIME]", help="Convert B, or A where there is no B, first.")
@input_options
@click.option("--dump", type=click.Path(exists=True, path_type=Path), help="B: what a phone saved of A's taps.")
@method_option
@click.option("--float64", is_flag=True, help="Compute A in float64: tells what is wrong from what float32 can't do.")
@click.option("--unfused", is_flag=True, help="Let the GPU fuse nothing, so that every layer has a value.")
@click.option(
    "--tolerance",
    type=float,
    help="Error that is let pass, over the largest magnitude of A's value [default: 1e-4, of fp16 1e-2, of bf16 8e-2].",
)
@precision_options("Of B: what a Vulkan device stores; on the CPU every result is rounded.")
@click.option("--precision-a", default="fp32", show_default=True, type=click.Choice(PRECISIONS), help="Of A, likewise.")
@click.option("--all", "shows_all", is_flag=True, help="Print all layers, however many there are.")
@json_option
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page, one bar a layer.")
def compare(
    a: Path,
    b: Path | None,
    device_a: str,
    device_b: str | None,
    passes_a: str | None,
    passes_b: str | None,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    dump: Path | None,
    method: str,
    float64: bool,
    unfused: bool,
    tolerance: float | None,
    precision: Precision,
    fp32_nodes: tuple[str, ...],
    precision_a: Precision,
    shows_all: bool,
    as_json: bool,
    page: Path | None,
) -> None:
    """Compare B with the reference A, layer by layer: models or optimised files of any kind. Without B: A on the GPU
    with A on the CPU. With --dump: the taps of A (mobopt tap) on the CPU with what a phone made of them.

    Says where the two begin to differ, and of each layer whether it is wrong by itself, run alone on A's values, or was
    given wrong ones. Exit code 1 if an output is over the tolerance, or a layer is wrong by itself.
    """
    let_threads_sleep()
    with progress(f"reading {a.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools import comparison
        from mobopt.tools.taps.comparison import compare_dump

        examples = InputOptions.parse(inputs, shapes)
        if page is not None:
            check_writable(page, [a, *([b] if b else []), *examples.files])
        if dump is not None:
            _refuse_beside_dump(click.get_current_context())
            found = compare_dump(a, dump, tolerance=tolerance, float64=float64, show=show)
        else:
            found = comparison.compare(
                a,
                b,
                device_a=device_a,
                device_b=device_b,
                passes_a=pipeline_named(passes_a),
                passes_b=pipeline_named(passes_b),
                method=method,
                example_inputs=examples.tensors(),
                float64=float64,
                fused=not unfused,
                tolerance=tolerance,
                precision=precision,
                fp32_nodes=fp32_nodes,
                precision_a=precision_a,
                show=show,
            )
        if page is not None:
            from mobopt.tools.comparison_page import write_page

            write_page(found, page)
    if as_json:
        print_json(_data(found))
    else:
        _print(found, shows_all)
    if not found.agrees:
        raise click.exceptions.Exit(1)


_WITH_DUMP = ("a", "dump", "tolerance", "float64", "shows_all", "as_json", "page")


def _refuse_beside_dump(ctx: click.Context) -> None:
    """What a phone saved says where it ran, and on what.

    Raises:
        UsageError: something else is asked for.
    """
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_given and parameter.expose_value and name not in _WITH_DUMP:
            raise click.UsageError(
                f"{parameter.opts[0]} and --dump exclude each other: the dump is B, on the inputs that the phone saved"
            )


def pipeline_named(text: str | None) -> PassPipeline | None:
    """The passes of a backend and a runtime: ``vulkan:2.6``.

    Raises:
        MoboptError: there is no such backend or runtime.
    """
    if text is None:
        return None
    from mobopt.passes.pipelines import PassPipeline

    backend, _, runtime = text.partition(":")
    options: dict[str, Any] = {"runtime": runtime} if runtime else {}
    try:
        return PassPipeline.default(backend, **options)
    except TypeError:
        raise InputError(f"can't read the passes {text!r}; write vulkan:2.6, vulkan:mobopt, metal or cpu") from None


def _print(found: Comparison, shows_all: bool) -> None:
    say(f"A: {found.reference}")
    say(f"B: {found.other}")
    say(f"inputs: {found.inputs}")
    say()
    rows = _chosen(found) if not shows_all and len(found.layers) > _MOST_ROWS else list(enumerate(found.layers, 1))
    title = "layers" if len(rows) == len(found.layers) else f"layers, {len(rows)} of {len(found.layers)}"
    columns = ("#>", "layer", "sizes", "error>", "alone>", "mean>", "cosine>", "NaN, inf", "verdict", "source")
    print_table(title, columns, (tuple(_row(number, layer)) for number, layer in rows))
    if len(rows) < len(found.layers):
        say("the others have smaller errors; --all prints them")
    say()
    for output in found.outputs:
        say(_output_text(output))
    for name in found.unmatched[:_MOST_ROWS]:
        say(f"not matched: {name}")
    if len(found.unmatched) > _MOST_ROWS:
        say(f"and {len(found.unmatched) - _MOST_ROWS} more that are not matched; --json has them")
    if found.unseen:
        say(f"values of A that B does not make by themselves (fused, folded or rewritten): {found.unseen}")
    for remark in found.remarks:
        say(f"note: {remark}")
    say()
    _say_verdict(found)


def _say_verdict(found: Comparison) -> None:
    from mobopt.tools.comparison_results import VERDICTS

    first = found.first
    if first is None:
        layers = "the one layer is" if len(found.layers) == 1 else f"all {len(found.layers)} layers are"
        say(f"{layers} within {found.tolerance:g}, in {found.seconds:.1f} s")
    else:
        number = found.layers.index(first) + 1
        say(f"the first layer over {found.tolerance:g} is number {number}, {_place(first)}:")
        say(f"it {VERDICTS[first.verdict]}")
    for layer in found.culprits[:3]:
        if layer is not first:
            say(f"number {found.layers.index(layer) + 1}, {_place(layer)}, {VERDICTS[layer.verdict]}")
    agreed = "the outputs agree" if found.outputs else "the layers agree; no output was compared"
    say(agreed if found.agrees else "the two differ")


def _place(layer: Layer) -> str:
    place = f" at {layer.source[-1]}" if layer.source else ""
    turn = f", turn {layer.turn + 1}" if layer.turn else ""
    return f"{layer.title} ({layer.name}){place}{turn}"


def _chosen(found: Comparison) -> list[tuple[int, Layer]]:
    """The first layer over the tolerance, those that are wrong, and those with the largest errors, in order."""
    numbered = list(enumerate(found.layers, 1))
    by_error = sorted(numbered, key=lambda item: -item[1].total.error)
    important = [item for item in numbered if item[1] is found.first or item[1] in found.culprits]
    return sorted(dict(([*important, *by_error])[:_MOST_ROWS]).items())


def _row(number: int, layer: Layer) -> Iterator[str]:
    nans, infinities = layer.total.nans, layer.total.infinities
    yield str(number)
    yield layer.title + (f", turn {layer.turn + 1}" if layer.turn else "")
    yield "x".join(map(str, layer.sizes)) or "number"
    yield _error(layer.total.error)
    yield "unknown" if layer.own is None else _error(layer.own.error)
    yield _error(layer.total.mean)
    yield f"{layer.total.cosine:.6f}"
    yield f"{nans[0]}|{nans[1]}, {infinities[0]}|{infinities[1]}" if any(nans + infinities) else ""
    yield layer.verdict
    yield layer.source[-1] if layer.source else ""


def _error(error: float) -> str:
    return "0" if error == 0 else f"{error:.1e}"


def _output_text(output: Output) -> str:
    sizes = "x".join(map(str, output.sizes)) or "a number"
    text = f"output {output.number}, {sizes}: error {_error(output.difference.error)} of the scale"
    if output.float32 is not None:
        text += f" (float32 on the CPU: {_error(output.float32.error)})"
    if output.ranks is not None:
        text += f"; {output.ranks}"
    return text


def _data(found: Comparison) -> dict[str, Any]:
    first = None if found.first is None else found.layers.index(found.first) + 1
    return {**dataclasses.asdict(found), "agrees": found.agrees, "first": first}
