"""``mobopt tune``: fit the costs by which kernels are chosen to this machine's device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mobopt.commands.shared_options import json_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import rate_text
from mobopt.errors import InputError

if TYPE_CHECKING:
    from mobopt.tools.tuning import Tuned, Tuning


@click.command(short_help="Measure a device, and choose kernels by that.")
@click.option("--device", help="Number or part of the name of a device (see `mobopt devices`).")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(min=0), help="For measuring.")
@click.option("--show", "shows", is_flag=True, help="Print what is kept, and measure nothing.")
@click.option("--forget", is_flag=True, help="Forget what is kept: kernels are chosen by mobopt's own table again.")
@json_option
def tune(device: str | None, seconds: float, shows: bool, forget: bool, as_json: bool) -> None:
    """Measure a Vulkan device, and choose kernels by what was measured from now on.

    Every kernel of products is timed on shapes of networks, and the costs by which mobopt chooses are fitted to that.
    They are kept in the cache's folder for this device, its driver and this release. Only choices between kernels that
    are all right depend on them. The device's roofs, which `mobopt profile` shows, are measured anew, too.
    """
    if shows and forget:
        raise InputError("give --show or --forget, not both")
    from mobopt.tools import tuning

    if forget:
        name, had = tuning.forget(device)
        say(f"{name}: " + ("what was kept is forgotten" if had else "nothing was kept"))
        return
    if shows:
        name, costs = tuning.kept(device)
        if as_json:
            print_json({"device": name, "costs": costs})
        elif not costs:
            say(f"{name} is not tuned; kernels are chosen by mobopt's own table")
        else:
            _print_costs(name, costs, costs)
        return
    with progress("opening the device") as show:
        found = tuning.tune(device, seconds, show)
    if as_json:
        data = dataclasses.asdict(found)
        excess = {"excess_before": found.tuning.excess_before, "excess_after": found.tuning.excess_after}
        print_json({**data, **excess})
        return
    _print_costs(found.device, found.tuning.before, found.tuning.after)
    _print_choices(found.tuning)
    _print_end(found)


def _print_costs(device: str, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    say(device)
    is_same = before is after
    rows = [(name, f"{before[name]:.4g}", "" if is_same else f"{value:.4g}") for name, value in after.items()]
    print_table("", ("cost", "kept>" if is_same else "before>", "" if is_same else "fitted>"), rows)


def _print_choices(found: Tuning) -> None:
    def text(choice_time: float, predicted: float) -> str:
        return f"{choice_time / 1e3:.1f} ({predicted / 1e3:.1f})"

    rows = [
        (
            "{} x {} by {}".format(*choice.shape),
            choice.before,
            text(choice.before_time, choice.predicted_before),
            "the same" if choice.after == choice.before else choice.after,
            text(choice.after_time, choice.predicted_after),
            f"{choice.least_time / 1e3:.1f}",
        )
        for choice in found.choices
    ]
    columns = ("product", "kernel before", "us (predicted)>", "kernel after", "us (predicted)>", "best us>")
    say()
    print_table("choices", columns, rows)


def _print_end(found: Tuned) -> None:
    tuning, roofs = found.tuning, found.roofs
    say()
    say(f"{tuning.kernels} kernels measured; chosen kernels take {tuning.excess_before:.1%} more than the best before,")
    say(f"and {tuning.excess_after:.1%} after")
    copies, products = rate_text(roofs.bytes_per_second, "B/s"), rate_text(roofs.flops_per_second, "FLOP/s")
    say(f"roofs: copies {copies}, products {products}, a dispatch {roofs.dispatch_seconds * 1e6:.1f} us")
    if not tuning.is_trustworthy:
        say(f"nothing is kept: times of the same kernel vary by {tuning.noise:.0%};")
        say("tune when the device has nothing else to do")
    elif not tuning.is_better:
        say("the costs stay as they were: others choose no faster kernels")
    elif found.is_kept:
        say("kept; `mobopt tune --forget` undoes it")
    else:
        say("not kept: the cache's folder can't be written")
