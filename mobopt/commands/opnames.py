"""``mobopt opnames``: the operators that a bundle asks of a runtime."""

from __future__ import annotations

from pathlib import Path

import click

from mobopt.commands.shared_options import json_option
from mobopt.commands.terminal import print_json, progress, say
from mobopt.display import shown


@click.command(short_help="List a file's operators, for a selective build.")
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the YAML that PyTorch's selective build takes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["list", "dict"]),
    help="Form of the YAML: a list for SELECTED_OP_LIST (the default), or the dictionary of selected_operators.yaml.",
)
@json_option
def opnames(bundle: Path, as_yaml: bool, form: str | None, as_json: bool) -> None:
    """List the operators of BUNDLE (.ptl or .pt), sorted, each once."""
    if as_json and (as_yaml or form):
        raise click.UsageError("give --yaml or --json, not both")
    with progress(f"reading {bundle.name}"):
        from mobopt.tools.operator_names import export_opnames, selective_build_yaml

        names = [shown(name, keep="") for name in export_opnames(bundle)]
    if as_json:
        print_json(names)
    elif as_yaml or form:
        say(selective_build_yaml(names, form or "list").removesuffix("\n"))
    else:
        say("\n".join(names))
