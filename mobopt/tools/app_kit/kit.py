"""The folder of an app kit: made whole in a temporary place, and moved."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mobopt.bundle import BundleInfo
from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.exported.archive import is_exported_file
from mobopt.frontends.open_source import is_onnx
from mobopt.samples.example_inputs import ExampleInputs
from mobopt.tools.app_kit.cpp import cpp_header, cpp_source, header_name
from mobopt.tools.app_kit.cpp_test import cpp_test
from mobopt.tools.app_kit.description import Description, describe_methods
from mobopt.tools.app_kit.kotlin import kotlin_source
from mobopt.tools.app_kit.kotlin_test import kotlin_test
from mobopt.tools.app_kit.names import class_name, file_name, package_name
from mobopt.tools.app_kit.objective_c import objc_header, objc_source
from mobopt.tools.app_kit.readme import readme
from mobopt.tools.app_kit.swift import swift_source, swift_test
from mobopt.tools.app_kit.test_data import write_test_data
from mobopt.tools.operator_names import export_opnames, selective_build_yaml
from mobopt.tools.requirements import Needs, inspect_bundle

DEFAULT_PACKAGE = "com.example.model"
_MARK = "operators.yaml"
"""A file that every kit has: only a folder that looks like a kit, or is empty, is replaced."""


@dataclass(frozen=True)
class AppKit:
    """The folder that :func:`app_kit` wrote."""

    folder: Path
    """Where it is."""
    files: tuple[str, ...]
    """Relative to the folder, sorted."""
    class_name: str
    """Of the class that calls the model, in every language."""
    tested: tuple[str, ...]
    """Methods with a test."""
    remarks: tuple[str, ...]
    """What a user must know: methods that can't be called from a language, or have no test."""


def app_kit(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    example_inputs: ExampleInputs | None = None,
    name: str = "",
    package: str = DEFAULT_PACKAGE,
    force: bool = False,
    show: Callable[[str], None] = lambda step: None,
) -> AppKit:
    """Write what is shipped beside a phone file: code that calls it, a test with data, the operator list, a README.

    Args:
        model: a ``.ptl`` or ``.pt`` file for PyTorch Mobile, of any backend, made by mobopt or by PyTorch.
        output: the new folder; it appears when it is complete.
        example_inputs: arguments of ``forward``, or of several methods by name; without them those bundled with the
            file, or guessed.
        name: of the class in the code; made of the file's name if it is empty.
        package: of the Kotlin code.
        force: replace a kit that is there.
        show: is told each step.

    Returns:
        What was written, and what a user must know of it.

    Raises:
        InputError: the folder is there, or can't be written, or an argument can't be used.
        UnsupportedError: the file is a model before conversion.
        BundleError: the file can't be read.
    """
    path, folder = Path(model), Path(output)
    _check_folder(folder, path, force)
    package = package_name(package)
    show(f"reading {path.name}")
    _refuse_sources(path)
    info, needs = inspect_bundle(path)
    _refuse_plain(path, info, needs)
    show("running its methods")
    suffix = ".ptl" if "lite" in info.kinds else ".pt"
    kit = Description(
        file=file_name(path.stem) + suffix,
        source=path,
        class_name=class_name(name or path.stem),
        package=package,
        info=info,
        needs=needs,
        operators=tuple(export_opnames(path)),
        methods=describe_methods(path, needs.backend, example_inputs),
    )
    show(f"writing {folder}")
    _write_whole(kit, folder)
    files = sorted(item.relative_to(folder).as_posix() for item in folder.rglob("*") if item.is_file())
    tested = tuple(method.name for method, _ in kit.tests)
    return AppKit(folder, tuple(files), kit.class_name, tested, tuple(_remarks(kit)))


def _refuse_sources(path: Path) -> None:
    if is_onnx(path) or is_exported_file(path):
        raise UnsupportedError(_before_conversion(path))


def _refuse_plain(path: Path, info: BundleInfo, needs: Needs) -> None:
    """TorchScript that no optimiser has seen is a model, and not what is shipped."""
    marks = ("optimized_for_vulkan", "optimized_for_metal", "mobile_optimized")
    if "lite" not in info.kinds and needs.backend == "cpu" and not any(mark in info.attributes for mark in marks):
        raise UnsupportedError(_before_conversion(path))


def _before_conversion(path: Path) -> str:
    return (
        f"{path} is a model before conversion, not a file for phones; make one with mobopt convert {path} "
        f"-o {path.with_suffix('.ptl').name} --backend vulkan (or metal, or cpu), and make the kit of that"
    )


def _check_folder(folder: Path, model: Path, force: bool) -> None:
    reason = ""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        reason = "it is there, and is no folder; choose another name"
    elif not folder.absolute().parent.is_dir():
        reason = f"there is no folder {folder.absolute().parent}"
    elif not os.access(folder.absolute().parent, os.W_OK):
        reason = f"the folder {folder.absolute().parent} can't be written"
    elif folder.is_dir() and any(folder.iterdir()):
        if model.resolve().is_relative_to(folder.resolve()):
            reason = "the model lies in it, and would be lost; choose another folder"
        elif not force:
            reason = "the folder is there; choose another one, or replace it with --force"
        elif not (folder / _MARK).is_file():
            reason = "the folder is there, and is no app kit, so --force does not replace it; choose another one"
    if reason:
        raise InputError(f"can't write {folder}: {reason}")


def _write_whole(kit: Description, folder: Path) -> None:
    """Write the kit beside its place, and move it there; what was there goes only then."""
    folder = folder.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            new, old = Path(place) / "new", Path(place) / "old"
            _write(kit, new)
            if folder.exists():
                folder.rename(old)
            try:
                new.rename(folder)
            except OSError:
                if old.exists():
                    old.rename(folder)
                raise
    except OSError as error:
        raise InputError(f"can't write {folder}: {error.strerror or error}; choose another folder") from None


def _write(kit: Description, folder: Path) -> None:
    folder.mkdir()
    shutil.copyfile(kit.source, folder / kit.file)
    for name, text in texts(kit).items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
    if kit.tests:
        (folder / "test").mkdir()
        write_test_data(kit, folder / "test")


def texts(kit: Description) -> dict[str, str]:
    """The files of a kit that are text, but for the description of the test's data."""
    name, header = kit.class_name, header_name(kit)
    short = header.removesuffix("_model.h")
    found = {
        "README.md": readme(kit),
        _MARK: selective_build_yaml(kit.operators),
        f"cpp/{header}": cpp_header(kit),
        f"cpp/{short}_model.cpp": cpp_source(kit),
    }
    if kit.tests:
        found[f"cpp/{short}_test.cpp"] = cpp_test(kit)
    if kit.needs.backend != "metal":
        found[f"android/{name}.kt"] = kotlin_source(kit)
        if kit.kotlin_tests:
            found[f"android/{name}Test.kt"] = kotlin_test(kit)
    if kit.needs.backend != "vulkan":
        found |= {
            f"ios/{name}.h": objc_header(kit),
            f"ios/{name}.mm": objc_source(kit),
            f"ios/{name}.swift": swift_source(kit),
        }
        if kit.tests:
            found[f"ios/{name}Tests.swift"] = swift_test(kit)
    return found


def _remarks(kit: Description) -> list[str]:
    found: list[str] = []
    for method in kit.methods:
        if method.reason_not_carried:
            found.append(f"{method.name} can't be called from the kit's code: {method.reason_not_carried}")
        elif method.reason_not_in_java and kit.needs.backend != "metal":
            found.append(f"{method.name} can't be called from Kotlin: {method.reason_not_in_java}")
        if method.example is None:
            found.append(
                f"{method.name} has no test, for no inputs of it are known: give some with --random or --input"
            )
    if kit.needs.oldest is None:
        found.append("no release of PyTorch loads this file; mobopt inspect says why")
    return found
