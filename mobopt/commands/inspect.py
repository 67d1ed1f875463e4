"""``mobopt inspect``: what is in a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mobopt.commands.terminal import print_json, print_table, progress, say
from mobopt.display import shown, size_text

if TYPE_CHECKING:
    from mobopt.bundle import BundleInfo
    from mobopt.tools.describe_model import ModelInfo
    from mobopt.tools.requirements import Needs

_BACKENDS = {"vulkan": "Vulkan (USE_VULKAN=1)", "metal": "Metal (USE_PYTORCH_METAL=1)", "xnnpack": "XNNPACK"}


@click.command(short_help="Show what is in a file, and what opens it.")
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every record of the archive.")
def inspect(bundle: Path, as_json: bool) -> None:
    """Show BUNDLE's methods, operators, packed weights, sizes and versions, which loaders open it, what it needs.

    Of an ONNX model or a program of torch.export (.pt2): its inputs, outputs, opsets and operators, and whether mobopt
    translates it.
    """
    with progress(f"reading {bundle.name}"):
        from mobopt.tools.describe_model import describe_model
        from mobopt.tools.requirements import inspect_bundle

        model = describe_model(bundle)
        if model is not None:
            _print_model(model, as_json)
            return
        info, needs = inspect_bundle(bundle)
    if as_json:
        import dataclasses

        print_json({**dataclasses.asdict(info), "needs": dataclasses.asdict(needs)})
    else:
        _print(info, needs)


def _print_model(model: ModelInfo, as_json: bool) -> None:
    import dataclasses

    told = model.description
    if as_json:
        facts = dataclasses.asdict(model)
        print_json({**facts.pop("description"), **facts})
        return
    versions = ", ".join(shown(text) for text in (told.format, *told.opsets))
    rows = [("size", size_text(model.size)), ("made by", shown(told.producer or "unknown")), ("versions", versions)]
    for kind, texts in (("input", told.inputs), ("output", told.outputs), ("state", model.state)):
        rows += [(kind, shown(text)) for text in texts]
    rows.append(("mobopt", shown(model.refusal) or f"translates it: {model.nodes} nodes"))
    print_table("", ("", ""), rows)
    say()
    counts = sorted(told.operators.items(), key=lambda item: (-item[1], item[0]))
    print_table("Operators", ("name", "count>"), [(shown(name), count) for name, count in counts])


def _print(info: BundleInfo, needs: Needs) -> None:
    facts = [
        ("size", f"{size_text(info.size)} in {len(info.records)} records, {size_text(info.tensor_bytes)} of tensors")
    ]
    for kind, loader in zip(info.kinds, info.loaders, strict=True):
        facts.append(("opens with", f"{loader}{_since(needs.loaders[kind], needs)}"))
    facts += _needs_rows(needs)
    facts.append(("versions", f"archive {info.archive_version}, bytecode {info.bytecode_version or 'none'}"))
    facts += [("method", method.schema) for method in info.methods]
    facts += [("attribute", f"{name} = {value!r}") for name, value in info.attributes.items()]
    facts += [("extra file", f"{name} ({size_text(size)})") for name, size in info.extra_files.items()]
    print_table("", ("", ""), facts)
    say()
    counts = sorted(info.operators.items(), key=lambda item: (-item[1], item[0]))
    print_table("Operators", ("name", "count>"), counts)
    if info.contexts:
        say()
        rows = [
            (context.name, context.class_name, "x".join(map(str, context.weight_shape)), size_text(context.bytes))
            for context in info.contexts
        ]
        print_table("Packed weights", ("attribute", "class", "weight", "size>"), rows)


def _since(release: str | None, needs: Needs) -> str:
    if release is None:
        return ": of no release of PyTorch"
    return f": PyTorch {release} {f'to {needs.newest}' if needs.newest else 'or newer'}"


def _needs_rows(needs: Needs) -> list[tuple[str, str]]:
    """What the bundle needs, and what decides that."""
    backend = "" if needs.backend == "cpu" else f", built with {_BACKENDS[needs.backend]}"
    rows = [("needs", f"{_since(needs.oldest, needs).removeprefix(': ')}{backend}")]
    rows += [("because of", str(need)) for need in needs.decisive]
    rows.append(("backend", needs.backend))
    rows.append(
        ("transfers", f"in the graph: {', '.join(needs.transfers)}" if needs.transfers else "none in the graph")
    )
    here = "opens it" if needs.opens_here else "lacks its operators; mobopt run and mobopt.load open it"
    rows.append(("PyTorch here", here))
    return rows + [("note", note) for note in needs.notes]
