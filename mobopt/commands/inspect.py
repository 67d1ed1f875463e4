"""``mobopt inspect``: what is in a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from mobopt.commands.terminal import progress


@click.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(bundle: Path, as_json: bool) -> None:
    """Show BUNDLE's methods, operators, packed weights, sizes and versions, and which loader opens it."""
    with progress(f"reading {bundle.name}"):
        from mobopt.bundle import describe_bundle

        info = describe_bundle(bundle)
