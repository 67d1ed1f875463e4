"""``mobopt inspect``: what is in a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mobopt.commands.terminal import print_json, print_table, progress, size_text

if TYPE_CHECKING:
    from mobopt.bundle import BundleInfo


@click.command()
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every record of the archive.")
def inspect(bundle: Path, as_json: bool) -> None:
    """Show BUNDLE's methods, operators, packed weights, sizes and versions, and which loader opens it."""
    with progress(f"reading {bundle.name}"):
        from mobopt.bundle import describe_bundle

        info = describe_bundle(bundle)
    if as_json:
        import dataclasses

        print_json(dataclasses.asdict(info))
    else:
        _print(info)


def _print(info: BundleInfo) -> None:
    facts = [
        ("size", f"{size_text(info.size)} in {len(info.records)} records, {size_text(info.tensor_bytes)} of tensors")
    ]
    facts += [("opens with", loader) for loader in info.loaders]
    if namespaces := _special_namespaces(info):
        facts.append(("needs", f"a PyTorch with {', '.join(namespaces)} operators; on a desktop: mobopt run"))
    facts.append(("versions", f"archive {info.archive_version}, bytecode {info.bytecode_version or 'none'}"))
    facts += [("method", method.schema) for method in info.methods]
    facts += [("attribute", f"{name} = {value!r}") for name, value in info.attributes.items()]
    facts += [("extra file", f"{name} ({size_text(size)})") for name, size in info.extra_files.items()]
    print_table("", ("", ""), facts)
    click.echo()
    counts = sorted(info.operators.items(), key=lambda item: (-item[1], item[0]))
    print_table("Operators", ("name", "count>"), counts)
    if info.contexts:
        click.echo()
        rows = [
            (context.name, context.class_name, "x".join(map(str, context.weight_shape)), size_text(context.bytes))
            for context in info.contexts
        ]
        print_table("Packed weights", ("attribute", "class", "weight", "size>"), rows)


def _special_namespaces(info: BundleInfo) -> list[str]:
    """Namespaces of the operators that only mobile builds of PyTorch have."""
    from mobopt.stand_in import is_in_torch

    names = {name.partition(".")[0] for name in info.operators}
    return sorted({name.partition("::")[0] for name in names if not is_in_torch(name)})
