"""From a model, or a phone file, to a phone file that returns values in between."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.bundle.open_file import open_model_file
from mobopt.display import shown
from mobopt.errors import BundleError, InputError, UnsupportedError
from mobopt.files import check_writable, whole_file
from mobopt.frontends.open_source import source_of
from mobopt.frontends.quantized_source import source_for
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.nests import leaves_of
from mobopt.ir.program import describe
from mobopt.module import MobileModule
from mobopt.optimizer import optimize
from mobopt.options import (
    DEFAULT_LEGALIZE,
    DEFAULT_RUNTIME,
    Settings,
    parse_backend,
    parse_legalize,
    parse_runtime,
)
from mobopt.passes.expand_quantized import has_quantized
from mobopt.passes.facts import Examples, record_facts
from mobopt.samples.example_inputs import ChosenInputs, ExampleInputs, choose_inputs, choose_inputs_of_bundle
from mobopt.samples.inputs import array_of
from mobopt.tools.app_kit.names import class_name, package_name
from mobopt.tools.lacks import find_lacks
from mobopt.tools.taps.choice import choose, is_meant, is_transfer
from mobopt.tools.taps.graph import TapOptions, add_taps, node_text
from mobopt.tools.taps.observation import run_watched
from mobopt.tools.taps.snippets import kotlin_snippet, swift_snippet
from mobopt.tools.taps.table import OUTPUT, TABLE_FILE, TapTable

_OPTIMIZED = ("optimized_for_vulkan", "optimized_for_metal", "mobile_optimized")
_OLDEST_BYTECODE, _BYTECODE = 4, 8
DEFAULT_PACKAGE = "com.example.model"


@dataclass(frozen=True)
class Tapped:
    """What was written.

    Attributes:
        file: the phone file.
        expected: what its taps are on the CPU, for the example, as ``.npz``.
        snippets: code that saves what the phone makes of them.
        table: the taps.
        vanished: nodes of the model that were asked for and have no value of their own in the file, with the key of the
            tap that they are a part of; empty if none is.
        removed: those of which nothing is left, as they do nothing when the model is not trained.
        inputs: of the example, in words.
        remarks: what a user should know.
    """

    file: Path
    expected: Path
    snippets: tuple[Path, ...]
    table: TapTable
    vanished: Mapping[str, str]
    removed: tuple[str, ...]
    inputs: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Model:
    """What is tapped: a Program as a phone runs it."""

    name: str
    program: Program
    original: Program | None
    """Before the passes; None of a file that was optimised before."""
    inputs: ChosenInputs
    bytecode_version: int


def tap(
    model: object,
    output: str | os.PathLike[str],
    *,
    nodes: Sequence[str] = ("*",),
    method: str = "forward",
    example_inputs: ExampleInputs | None = None,
    backend: str | None = None,
    runtime: str | None = None,
    legalize: str | None = None,
    options: TapOptions = TapOptions(),  # noqa: B008 - frozen
    package: str = DEFAULT_PACKAGE,
    show: Callable[[str], None] = lambda step: None,
) -> Tapped:
    """Write a phone file that also returns values in between, what they should be, and code that saves them.

    The file has all methods that it had, unchanged. A new one, ``tapped``, takes what ``forward`` takes and returns a
    dictionary of tensors: inputs, the chosen values, outputs. ``tapped_example`` does so on inputs that the file holds.
    Values are those that are there after all fusions, so the phone computes what it computes without taps.

    Args:
        model: a file for phones, or a module that :func:`mobopt.optimize_for_mobile` returned, which is tapped as it
            is; or a model before conversion, in any form, which is converted first.
        output: the new file, ``.ptl`` or ``.pt``. Beside it come ``NAME.expected.npz`` and the code.
        nodes: globs over names of values, operators (``aten::conv2d``, ``conv2d``), nodes of the model, source lines
            and modules (``features.0*``).
        method: the method to tap.
        example_inputs: its arguments, or arguments of several methods by name; without them those that came with the
            model, or guessed ones.
        backend: of a model before conversion: ``'vulkan'`` (without it), ``'metal'`` or ``'cpu'``.
        runtime: of such a model: the oldest release to serve.
        legalize: of such a model: ``'off'``, ``'safe'`` or ``'full'``.
        options: how values are returned.
        package: of the Kotlin code.
        show: is told each step.

    Returns:
        The files that were written, and which values they hold.

    Raises:
        InputError: a glob names nothing, no inputs are known, an option can't be used, or a path can't be written.
        UnsupportedError: the file has taps already, or a phone's runtime lacks something that the model needs.
        BundleError: the file can't be read.
    """
    path = Path(output)
    files = _files(path, [Path(model)] if isinstance(model, (str, os.PathLike)) else [])
    package = package_name(package)
    _check(options)
    show("reading the model")
    read = _read(model, method, example_inputs, (backend, runtime, legalize))
    arguments = _arguments(read, method)
    show("running it")
    program, table, remarks = _with_taps(read, method, nodes, arguments, options)
    show("comparing with the file without taps")
    expected = run_watched(program, table.tapped, arguments, lambda value, result: result)
    _check_same(read.program, method, arguments, expected)
    content = _content(program, table, path, read.bytecode_version)
    _check_read_back(content, table, arguments, expected)
    show(f"writing {path.name}")
    _write(files, content, expected, table, package)
    vanished, removed = _vanished(read, method, nodes, table)
    snippets = files.kotlin, files.swift
    return Tapped(path, files.expected, snippets, table, vanished, removed, str(read.inputs), remarks)


def _with_taps(
    read: _Model, method: str, nodes: Sequence[str], arguments: Sequence[Any], options: TapOptions
) -> tuple[Program, TapTable, tuple[str, ...]]:
    """A copy of the Program that returns what globs name; the table of it, and remarks."""
    record_facts(read.program, Examples({method: arguments}))
    choice = choose(read.program.methods[method], nodes, read.name)
    program = read.program.clone()
    known = dict(zip(_values(read.program, method), _values(program, method), strict=True))
    chosen = [known[value] for value in choice.values]
    table, remarks = add_taps(program, method, chosen, arguments, options)
    if choice.unreached:
        names = ", ".join(describe(value.producer) for value in choice.unreached if value.producer is not None)
        remarks.append(
            f"in branches or loops that the example does not come to: {names}; where a phone does, it returns all of "
            "them, as float32"
        )
    return program, table, tuple(map(shown, remarks))


def _write(files: _Files, content: bytes, expected: Mapping[str, torch.Tensor], table: TapTable, package: str) -> None:
    """Write the phone file and what stands beside it."""
    file_name, name = files.phone.name, class_name(files.phone.stem)
    with whole_file(files.phone) as file:
        file.write(content)
    with whole_file(files.expected) as file:
        arrays: dict[str, Any] = {key: array_of(tensor) for key, tensor in expected.items()}
        numpy.savez(file, **arrays)
    with whole_file(files.kotlin) as file:
        file.write(kotlin_snippet(table, file_name, name, package).encode())
    with whole_file(files.swift) as file:
        file.write(swift_snippet(table, file_name, name).encode())


@dataclass(frozen=True)
class _Files:
    phone: Path
    expected: Path
    kotlin: Path
    swift: Path


def _files(path: Path, sources: Sequence[Path]) -> _Files:
    """What is written: the file, and what stands beside it.

    Raises:
        InputError: a path can't be written, or the file has an ending of another kind.
    """
    if path.suffix not in (".pt", ".ptl"):
        raise InputError(
            f"the output {path} ends in {path.suffix or 'nothing'!r}; name it .ptl, or .pt for TorchScript"
        )
    name = f"{class_name(path.stem)}Taps"
    kotlin, swift = (path.with_name(f"{name}.{ending}") for ending in ("kt", "swift"))
    files = _Files(path, path.with_suffix(".expected.npz"), kotlin, swift)
    for target in vars(files).values():
        check_writable(target, sources)
    return files


def _check(options: TapOptions) -> None:
    if options.most is not None and options.most < 0:
        raise InputError(f"the elements up to which a value is returned whole are {options.most}; give 0 or more")
    if options.samples < 1:
        raise InputError(f"a sample of {options.samples} elements is asked for; give 1 or more")


def _read(
    model: object, method: str, given: ExampleInputs | None, choices: tuple[str | None, str | None, str | None]
) -> _Model:
    found = _read_any(model, method, given, choices)
    if has_quantized(found.program):
        raise UnsupportedError(
            f"{found.name} computes with quantised tensors, which apps can't read; tap the model for --backend vulkan, "
            "whose floats are rounded alike"
        )
    return found


def _read_any(
    model: object, method: str, given: ExampleInputs | None, choices: tuple[str | None, str | None, str | None]
) -> _Model:
    if isinstance(model, (str, os.PathLike)):
        found = _optimized_file(Path(model), given)
    elif isinstance(model, MobileModule):
        program = model._current_program()
        found = _Model("the module", program, None, choose_inputs_of_bundle(program, given), _BYTECODE)
    else:
        found = None
    if found is None:
        return _converted(source_of(model, _methods(method), given), given, choices)
    if any(choice is not None for choice in choices):
        raise InputError(
            f"{found.name} is optimised already, and is tapped as it is; leave out backend, runtime and legalize"
        )
    return found


def _methods(method: str) -> list[str]:
    return [] if method == "forward" else [method]


def _optimized_file(path: Path, given: ExampleInputs | None) -> _Model | None:
    """A file for phones; None of a model before conversion."""
    try:
        file = open_model_file(path)
    except BundleError:  # maybe of another kind; who reads it then says what is wrong
        return None
    if not file.kinds:
        return None
    program = read_bundle(path, prefer="code")  # which has source lines and names
    if not file.has_bytecode and not any(name in program.attributes for name in _OPTIMIZED):
        return None
    version = min(max(file.bytecode()[0], _OLDEST_BYTECODE), _BYTECODE) if file.has_bytecode else _BYTECODE
    return _Model(path.name, program, None, choose_inputs_of_bundle(program, given), version)


def _converted(
    source: Source, given: ExampleInputs | None, choices: tuple[str | None, str | None, str | None]
) -> _Model:
    """A model after the passes of a backend.

    Raises:
        UnsupportedError: the release lacks or computes wrongly what it needs.
    """
    backend, runtime, legalize = choices
    settings = Settings(
        parse_backend(backend or "vulkan"),
        parse_runtime(runtime or DEFAULT_RUNTIME),
        legalize=parse_legalize(legalize or DEFAULT_LEGALIZE),
    )
    source = source_for(source, settings.backend, settings.is_for_phones)
    optimized = optimize(source, settings, given)
    lacks = find_lacks(optimized.program, settings, optimized.inputs.examples)
    if lacks:
        raise UnsupportedError(
            f"PyTorch {settings.runtime} lacks or computes wrongly, on {settings.backend}: {lacks[0]}"
            + (f" (and {len(lacks) - 1} more)" if len(lacks) > 1 else "")
            + "; see mobopt audit, choose another runtime, or write it with mobopt convert --force and tap that file"
        )
    inputs = optimized.inputs if optimized.inputs.by_method else choose_inputs(source, given)
    program = optimized.program
    program.metadata["extra_files"] = {**program.metadata.get("extra_files", {}), **source.extra_files()}
    return _Model(source.name, program, optimized.original, inputs, _BYTECODE)


def _arguments(read: _Model, method: str) -> list[Any]:
    if method not in read.program.methods:
        names = ", ".join(read.program.methods)
        raise InputError(f"{read.name} has no method {method!r}; its methods are {names}; choose with --method")
    arguments = read.inputs.by_method.get(method)
    if arguments is None:
        raise InputError(
            f"no inputs are known that {read.name} takes in {method}; give them with --input x.npy or "
            "--random 1,3,224,224"
        )
    return bind_arguments(read.program, method, arguments, {})


def _values(program: Program, method: str) -> list[Any]:
    """All that nodes make, in order: the same for a Program and its clone."""
    return [value for node in program.methods[method].walk() for value in node.outputs]


def _content(program: Program, table: TapTable, path: Path, bytecode_version: int) -> bytes:
    extra = {TABLE_FILE: table.to_json()}
    buffer = io.BytesIO()
    if path.suffix == ".ptl":
        write_lite(program, buffer, bytecode_version=bytecode_version, extra_files=extra)
    else:
        write_torchscript(program, buffer, extra_files=extra)
    return buffer.getvalue()


def _check_same(program: Program, method: str, arguments: Sequence[Any], expected: Mapping[str, torch.Tensor]) -> None:
    """See that taps change nothing: the outputs are those of the file without taps, bit by bit."""
    plain = list(leaves_of(run_watched(program, method, arguments, lambda value, result: result), torch.Tensor))
    ours = [tensor for key, tensor in expected.items() if key.split(".")[0] == OUTPUT]
    if len(ours) != len(plain):  # a list or dictionary that the graph does not put together; a remark says so
        return
    if any(_bits(tensor) != _bits(other.to(tensor.dtype)) for tensor, other in zip(ours, plain, strict=True)):
        raise UnsupportedError("the tapped method gives other results than the one without taps; please report this")


def _check_read_back(
    content: bytes, table: TapTable, arguments: Sequence[Any], expected: Mapping[str, torch.Tensor]
) -> None:
    """See that the file, read again, gives the same bits."""
    again = read_bundle(io.BytesIO(content))
    name, given = (table.example, []) if table.example else (table.tapped, arguments)
    found = run_watched(again, name, given, lambda value, result: result)
    apart = [key for key, tensor in expected.items() if key not in found or _bits(found[key]) != _bits(tensor)]
    if apart or len(found) != len(expected):
        raise UnsupportedError(
            f"the written file gives another {', '.join(apart) or 'set of taps'}; please report this"
        )


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()


def _vanished(
    read: _Model, method: str, patterns: Sequence[str], table: TapTable
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Nodes of the model that were asked for and have no value in the file: inside which tap, and those of which
    nothing is left."""
    nodes = [node for node in read.program.methods[method].walk() if node.origin.nodes]
    ends = {node.origin.nodes[-1] for node in nodes if node.computes and not is_transfer(node)}
    parts = sorted({item for node in nodes for item in node.origin.nodes})
    keys = {text: tap.key for tap in table.taps for text in tap.inside}
    hidden = {node_text(item): item for item in parts if item not in ends}
    vanished = {text: keys.get(text, "") for text, item in hidden.items() if text in keys or is_meant(item, patterns)}
    before = None if read.original is None else read.original.methods.get(method)
    origins = [] if before is None else [node.origin.nodes[0] for node in before.walk() if node.computes]
    return vanished, tuple(node_text(item) for item in origins if item not in parts and is_meant(item, patterns))
