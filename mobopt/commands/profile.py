"""``mobopt profile``: where the time of a model goes on a Vulkan device."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import fallback_option, input_options, json_option, method_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import rate_text, size_text

if TYPE_CHECKING:
    from mobopt.options import FallbackChoice
    from mobopt.tools.profiling import Layer, Profile, ShaderUse, Work

_MOST_ROWS = 30


@click.command(short_help="Show where a model's time goes on a device.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@input_options
@method_option
@click.option("--device", help="Number or part of the name of a device (see `mobopt devices`).")
@click.option(
    "--repeat", default=10, show_default=True, type=click.IntRange(min=1), help="Runs of which medians are taken."
)
@fallback_option
@click.option("--all", "shows_all", is_flag=True, help="Print all layers, however many there are.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write each dispatch as a Chrome trace, for Perfetto.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page with a roofline plot.")
@json_option
def profile(
    model: Path,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    method: str,
    device: str | None,
    repeat: int,
    fallback: FallbackChoice,
    shows_all: bool,
    trace: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Show where the time of MODEL goes on a Vulkan device, by its own clock: layer by layer and shader by shader.

    Each layer is shown beside the device's roofs, which are measured once: the rate of copies, of a product of matrices
    in float32, and the time of a dispatch. A model is optimised for mobopt's own runtime first; an optimised file runs
    as it is.
    """
    with progress(f"reading {model.name}") as show:
        from mobopt.files import check_writable
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools import profiling

        examples = InputOptions.parse(inputs, shapes)
        for path in (trace, page):
            if path is not None:
                check_writable(path, [model, *examples.files])
        found = profiling.profile(
            model, examples.tensors(), device=device, method=method, repeat=repeat, fallback=fallback, show=show
        )
        if trace is not None:
            _write_trace(found, trace)
        if page is not None:
            from mobopt.tools.profile_page import write_page

            write_page(found, page)
    if as_json:
        print_json(_data(found))
    else:
        _print(found, shows_all)


def _write_trace(found: Profile, path: Path) -> None:
    from mobopt.files import whole_file
    from mobopt.tools.chrome_trace import chrome_trace

    with whole_file(path) as file:
        file.write(json.dumps(chrome_trace(found.operations, found.device, found.model)).encode())


def _print(found: Profile, shows_all: bool) -> None:
    say(f"{found.model} on {found.device}, {found.driver}")
    say(f"inputs: {found.inputs}")
    roofs, total = found.roofs, found.total
    copies, products = rate_text(roofs.bytes_per_second, "B/s"), rate_text(roofs.flops_per_second, "FLOP/s")
    say(f"roofs: copies {copies}, products {products}, a dispatch {roofs.dispatch_seconds * 1e6:.1f} us")
    say()
    layers = found.by_time()
    rows = layers if shows_all else layers[:_MOST_ROWS]
    title = "layers by time" if len(rows) == len(layers) else f"layers by time, {len(rows)} of {len(layers)}"
    columns = ("us>", "time>", "layer", "FLOP/s>", "B/s>", "of roof>", "bound", "shaders", "source")
    print_table(title, columns, (_layer_row(found, layer) for layer in rows))
    if len(rows) < len(layers):
        say("the others take less time; --all prints them")
    say()
    shader_columns = ("us>", "time>", "shader", "dispatches>", "FLOP/s>", "B/s>", "of roof>", "bound")
    print_table("shaders by time", shader_columns, (_shader_row(found, use) for use in found.shaders))
    say()
    for fallback in dict.fromkeys(found.fallbacks):
        say(f"on the CPU: {fallback}")
    say(
        f"on the device {total.seconds * 1e3:.3f} ms (median of {found.runs}), {total.dispatches} dispatches, "
        f"{total.flops / 1e9:.3g} GFLOP, {size_text(total.bytes)} moved, peak memory {size_text(found.peak_bytes)}"
    )
    say(f"a whole call, host to host: {found.median_call * 1e3:.3f} ms (median of {len(found.call_seconds)})")


def _layer_row(found: Profile, layer: Layer) -> tuple[str, ...]:
    source = ", ".join(layer.source) or ", ".join(layer.nodes)
    rates = _rates(layer.work)
    return (
        *_times(found, layer.work),
        layer.title,
        *rates,
        _share(layer.bound, layer.share),
        layer.bound,
        ", ".join(layer.shaders),
        source,
    )


def _shader_row(found: Profile, use: ShaderUse) -> tuple[str, ...]:
    rates = _rates(use.work)
    times = _times(found, use.work)
    return (*times, use.shader, str(use.work.dispatches), *rates, _share(use.bound, use.share), use.bound)


def _times(found: Profile, work: Work) -> tuple[str, str]:
    return f"{work.seconds * 1e6:.1f}", f"{found.share_of_time(work):.1%}"


def _rates(work: Work) -> tuple[str, str]:
    return rate_text(work.flops_per_second), rate_text(work.bytes_per_second)


def _share(bound: str, share: float) -> str:
    return "" if bound == "host" else f"{share:.0%}"


def _data(found: Profile) -> dict[str, Any]:
    def measured(work: Work) -> dict[str, Any]:
        return {**dataclasses.asdict(work), "share_of_time": found.share_of_time(work)}

    return {
        "model": found.model,
        "device": found.device,
        "driver": found.driver,
        "inputs": found.inputs,
        "method": found.method,
        "call_seconds": found.call_seconds,
        "runs": found.runs,
        "peak_bytes": found.peak_bytes,
        "roofs": dataclasses.asdict(found.roofs),
        "total": measured(found.total),
        "layers": [
            {**dataclasses.asdict(layer), "title": layer.title, "work": measured(layer.work)} for layer in found.layers
        ],
        "shaders": [{**dataclasses.asdict(use), "work": measured(use.work)} for use in found.shaders],
        "fallbacks": found.fallbacks,
    }
