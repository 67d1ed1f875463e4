"""``mobopt app-kit``: what is shipped beside a phone file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mobopt.commands.shared_options import input_options, json_option
from mobopt.commands.terminal import print_json, progress, say

if TYPE_CHECKING:
    from mobopt.tools.app_kit.kit import AppKit


@click.command(name="app-kit", short_help="Write the code and data that an app needs beside a file.")
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The new folder.")
@input_options
@click.option("--name", default="", help="The class in the code; made of the file's name, if it isn't given.")
@click.option("--package", default="com.example.model", show_default=True, help="The package of the Kotlin code.")
@click.option("--force", is_flag=True, help="Replace a kit that is there.")
@json_option
def app_kit(
    bundle: Path,
    output: Path,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    name: str,
    package: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write a folder with what an app needs beside BUNDLE, a .ptl or .pt file for PyTorch Mobile.

    Kotlin, Swift and C++ that call its methods, a test with inputs and expected outputs, the operator list of a
    selective build, and a README that says which libraries load the file. Inputs of the test are those given, bundled
    with the file, or guessed.
    """
    with progress(f"reading {bundle.name}") as show:
        from mobopt.samples.inputs import InputOptions
        from mobopt.tools.app_kit.kit import app_kit as make_kit

        examples = InputOptions.parse(inputs, shapes).tensors()
        done = make_kit(bundle, output, example_inputs=examples, name=name, package=package, force=force, show=show)
    if as_json:
        print_json(_data(done))
    else:
        _print(done)


def _data(done: AppKit) -> dict[str, Any]:
    return {
        "folder": str(done.folder),
        "files": list(done.files),
        "class_name": done.class_name,
        "tested": list(done.tested),
        "remarks": list(done.remarks),
    }


def _print(done: AppKit) -> None:
    say(f"{done.folder}: {len(done.files)} files for {done.class_name}; begin with {done.folder / 'README.md'}")
    say(f"methods with a test: {', '.join(done.tested) or 'none'}")
    for remark in done.remarks:
        say(remark)
