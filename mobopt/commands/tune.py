"""``mobopt tune``: fit the costs by which kernels are chosen to this machine's device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from mobopt.commands.shared_options import json_option
from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import rate_text
from mobopt.errors import InputError

if TYPE_CHECKING:
    from mobopt.tools.tuning import ChainsTuning, FamilyTuning, Tuned, TunedCosts, UnitsUse

_TITLES = {
    "cpu": "products",
    "shared": "products of floats",
    "halves": "products of halves by matrix units",
    "split": "products of floats by matrix units",
    "fragments": "products of halves by matrix units, from registers",
    "split_fragments": "products of floats by matrix units, from registers",
    "rows": "products of a few rows",
    "few_bits": "products of a few rows by integers",
}
"""Of families of kernels."""


@click.command(short_help="Measure a device, and choose kernels by that.")
@click.option("--device", help="Number or part of the name of a device (see `mobopt devices`).")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(min=0), help="For measuring.")
@click.option("--show", "shows", is_flag=True, help="Print what is kept, and measure nothing.")
@click.option("--forget", is_flag=True, help="Forget what is kept: kernels are chosen by mobopt's own table again.")
@json_option
def tune(device: str | None, seconds: float, shows: bool, forget: bool, as_json: bool) -> None:
    """Measure a Vulkan device, and choose kernels by what was measured from now on.

    Kernels of products are timed on layers of networks, in float32, in halves and with weights of few bits, and the
    costs by which mobopt chooses are fitted to that. Matrix units are used from now on where they took less time.
    Where dispatches may wait by counters in place of barriers, stretches of networks are timed with both. All of it is
    kept in the cache's folder for this device, its driver and this release. Only choices between ways that are all
    right depend on it. The device's roofs, which `mobopt profile` shows, are measured anew, too.
    """
    if shows and forget:
        raise InputError("give --show or --forget, not both")
    from mobopt.tools import tuning

    if forget:
        name, had = tuning.forget(device)
        say(f"{name}: " + ("what was kept is forgotten" if had else "nothing was kept"))
        return
    if shows:
        name, kept = tuning.kept(device)
        if as_json:
            print_json({"device": name, **dataclasses.asdict(kept)})
        elif not kept.costs:
            say(f"{name} is not tuned; kernels are chosen by mobopt's own table")
        else:
            _print_kept(name, kept)
        return
    with progress("opening the device") as show:
        found = tuning.tune(device, seconds, show)
    if as_json:
        print_json(found.data())
        return
    say(found.device)
    for family in found.tuning.families:
        _print_family(family)
    if found.tuning.chains is not None:
        _print_stretches(found.tuning.chains)
    _print_end(found)


def _print_kept(device: str, kept: TunedCosts) -> None:
    say(device)
    for family, costs in kept.costs.items():
        say()
        rows = [(name, f"{value:.4g}") for name, value in costs.items()]
        say(_TITLES[family])
        print_table("", ("cost", "kept>"), rows)
        if family in kept.units:
            use = kept.units[family]
            say(f"matrix units are {_used(use.is_used)} {_why(family, use)}")
    if kept.chains is not None:
        say()
        limit, share = kept.chains.workgroups_per_core, kept.chains.share
        say(f"dispatches wait {_waiting(limit)}{_why_waiting(share, limit, kept.chains.is_right)}")


def _print_family(found: FamilyTuning) -> None:
    say()
    rows = [
        (name, f"{found.before[name]:.4g}" if name in found.before else "unknown", f"{value:.4g}")
        for name, value in found.after.items()
    ]
    say(_TITLES[found.name])
    print_table("", ("cost", "before>", "fitted>"), rows)
    _print_choices(found)
    say(f"{found.kernels} kernels measured; chosen ones take {found.excess_before:.1%} more than the best before,")
    say(f"and {found.excess_after:.1%} after")


def _print_choices(found: FamilyTuning) -> None:
    def text(choice_time: float, predicted: float) -> str:
        return f"{choice_time / 1e3:.1f} ({predicted / 1e3:.1f})"

    rows = [
        (
            choice.layer,
            choice.before,
            text(choice.before_time, choice.predicted_before),
            "the same" if choice.after == choice.before else choice.after,
            text(choice.after_time, choice.predicted_after),
            f"{choice.least_time / 1e3:.1f}",
        )
        for choice in found.choices
    ]
    print_table("", ("layer", "kernel before", "us (predicted)>", "kernel after", "us (predicted)>", "best us>"), rows)


def _print_stretches(found: ChainsTuning) -> None:
    """Stretches of networks, with each limit of those that wait by counters."""
    say()
    say("stretches of networks, us: with barriers, and with dispatches of up to so many workgroups a core without")
    rows = [
        (one.stretch, *(f"{one.nanoseconds[limit] / 1e3:.0f}" for limit in found.shares)) for one in found.stretches
    ]
    rows.append(("of the time with barriers, a mean", *(f"{share:.1%}" for share in found.shares.values())))
    columns = ("barriers>" if limit == 0 else f"{limit}>" for limit in found.shares)
    print_table("", ("stretch", *columns), rows)


def _waiting(limit: int) -> str:
    return f"by counters up to {limit} workgroups a core" if limit else "by barriers"


def _why_waiting(share: float, limit: int, is_right: bool) -> str:
    if not is_right:
        return ": with counters results were wrong, or waited for in vain, on this device"
    return f": stretches of networks take {share:.0%} of their time with barriers" if limit else ""


def _print_chains(found: Tuned) -> None:
    """Whether dispatches wait by counters from now on, and why."""
    chains = found.tuning.chains
    if chains is None:
        if found.tuning.families[0].name != "cpu":
            say("dispatches wait by barriers: this driver wasn't seen to start workgroups in the order of dispatches")
        return
    limit = chains.after if found.is_kept else chains.before
    when = "from now on" if found.is_kept and chains.changes else "as before"
    say(f"dispatches wait {_waiting(limit)}, {when}{_why_waiting(chains.shares[limit], limit, chains.is_right)}")


def _used(is_used: bool) -> str:
    return "used" if is_used else "not used"


def _why(family: str, use: UnitsUse) -> str:
    whose = "for halves" if family == "halves" else "for floats"
    if not use.is_right:
        return f"{whose}: their results are wrong on this device"
    taken, without = use.nanoseconds / 1e3, use.nanoseconds_without / 1e3
    return f"{whose}: the layers take {taken:.0f} us where they may be, {without:.0f} us where they may not"


def _print_units(found: Tuned) -> None:
    """Whether matrix units are used from now on, and why."""
    families = found.tuning.families
    for family in families:
        if family.units is not None and found.is_kept:
            say(f"matrix units are {_used(family.units.is_used)} from now on {_why(family.name, family.units)}")
        elif family.units is not None:
            say(f"matrix units are {_used(family.used_units)}, as before, {_why(family.name, family.units)}")
    if families[0].name != "cpu" and all(family.units is None for family in families):
        say("matrix units are not used: the device has none that products can use, or they are switched off")


def _print_end(found: Tuned) -> None:
    tuning, roofs = found.tuning, found.roofs
    say()
    if len(tuning.families) > 1:
        say(f"{tuning.kernels} kernels in all: chosen ones take {tuning.excess_before:.1%} more than the best before,")
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
    _print_units(found)
    _print_chains(found)
