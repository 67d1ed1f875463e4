"""The writer: a Program becomes a TorchScript or lite interpreter archive in PyTorch's own format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mobopt.bundle.bytecode import bytecode_type
from mobopt.bundle.container import ArchiveWriter, BundleFile
from mobopt.bundle.lite_writer import VERSIONS, MethodTables, tables_from_graph
from mobopt.bundle.pickle_writer import PickleWriter
from mobopt.bundle.prepare import prepared
from mobopt.bundle.source_writer import ConstantTable, source_files
from mobopt.bundle.tensors import StorageTable
from mobopt.bundle.versions import needed_version
from mobopt.errors import BundleError
from mobopt.files import whole_file
from mobopt.ir import Graph, Program
from mobopt.ir.arguments import argument_name
from mobopt.ir.types import Type

ExtraFiles = Mapping[str, str | bytes]

_HIDDEN_VERSION_SINCE = 6


def write_torchscript(program: Program, file: BundleFile, extra_files: ExtraFiles | None = None) -> None:
    """Write a ``.pt`` file, which ``torch.jit.load`` and the full interpreters of mobile builds open.

    Args:
        program: what to write.
        file: a path, which is replaced when the new file is complete, or an open binary file.
        extra_files: contents of extra files by name; those of the file that the program was read from are kept beside.

    Raises:
        InputError: the path can't be written.
        BundleError: the program holds what the format has no form for.
    """
    _write(_Prepared(program, ""), file, _all_extra_files(program, extra_files), lambda archive, form: None)


def write_lite(
    program: Program, file: BundleFile, bytecode_version: int = 8, extra_files: ExtraFiles | None = None
) -> None:
    """Write a ``.ptl`` file, which the lite interpreter opens, and ``torch.jit.load`` too.

    Args:
        program: what to write.
        file: a path, which is replaced when the new file is complete, or an open binary file.
        bytecode_version: 4 to 8; 8 is read since PyTorch 1.11, 7 since 1.10, 5 and 4 since 1.9.
        extra_files: contents of extra files by name; those of the file that the program was read from are kept beside.

    Raises:
        BundleError: an unknown version, or as :func:`write_torchscript`.
    """
    if bytecode_version not in VERSIONS:
        raise BundleError(
            f"bytecode version {bytecode_version!r} can't be written; versions {VERSIONS[0]} to {VERSIONS[-1]} can"
        )
    form = _Prepared(program, ".storage")
    _write(
        form,
        file,
        _all_extra_files(program, extra_files),
        lambda archive, form: _write_bytecode(archive, form, bytecode_version),
    )


def _all_extra_files(program: Program, given: ExtraFiles | None) -> ExtraFiles:
    kept: ExtraFiles = program.metadata.get("extra_files", {})
    return {**kept, **(given or {})}


class _Prepared:
    """A program in a form that files can hold, and the storages that its pickles share."""

    def __init__(self, program: Program, suffix: str) -> None:
        self.program = prepared(program)
        self.constants = ConstantTable()
        self.source = source_files(self.program, self.constants)
        self.shared_storages = StorageTable("constants", suffix)


def _write(
    form: _Prepared, file: BundleFile, extra_files: ExtraFiles, write_code: Callable[[ArchiveWriter, _Prepared], None]
) -> None:
    with _opened(file) as (handle, root):
        archive = ArchiveWriter(handle, root)
        for name, content in extra_files.items():
            archive.write(f"extra/{name}", content.encode() if isinstance(content, str) else content)
        _write_module(archive, form.program)
        for record, text in form.source.items():
            archive.write(record, text.encode(), compress=True)
        _write_constants(archive, form)
        write_code(archive, form)
        version = needed_version(form.program)
        archive.write(".data/version" if version >= _HIDDEN_VERSION_SINCE else "version", f"{version}\n".encode())
        archive.write("byteorder", b"little")
        archive.close()


def _write_module(archive: ArchiveWriter, program: Program) -> None:
    storages = StorageTable("data")
    pickle = PickleWriter(storages)
    pickle.module(program.class_name, {name: (item.value, item.type) for name, item in program.attributes.items()})
    storages.write(archive)
    archive.write("data.pkl", pickle.finish())


def _write_constants(archive: ArchiveWriter, form: _Prepared) -> None:
    pickle = PickleWriter(form.shared_storages)
    pickle.tuple_of([lambda v=value, k=kind: pickle.value(v, k) for value, kind in form.constants.values])
    form.shared_storages.write(archive)
    archive.write("constants.pkl", pickle.finish())


def _write_bytecode(archive: ArchiveWriter, form: _Prepared, version: int) -> None:
    program = form.program
    slots = {name: index for index, name in enumerate(program.attributes)}
    pickle = PickleWriter(form.shared_storages)
    methods = [
        lambda name=name, graph=graph: _pickle_method(
            pickle, program, name, graph, tables_from_graph(graph, slots, version)
        )
        for name, graph in program.methods.items()
    ]
    pickle.tuple_of([lambda: pickle.plain(version), *methods])
    form.shared_storages.write(archive)
    archive.write("bytecode.pkl", pickle.finish())


def _pickle_method(pickle: PickleWriter, program: Program, name: str, graph: Graph, tables: MethodTables) -> None:
    constants = [lambda v=value, k=kind: pickle.value(v, k) for value, kind in tables.constants]
    code = [
        lambda: pickle.plain(("instructions", tuple(tables.instructions))),
        lambda: pickle.plain(("operators", tuple(tables.operators))),
        lambda: pickle.tuple_of([lambda: pickle.string("constants"), lambda: pickle.tuple_of(constants)]),
        lambda: pickle.plain(("types", tuple(tables.types))),
        lambda: pickle.plain(("register_size", tables.register_count)),
    ]
    defaults = program.metadata.get("defaults", {}).get(name, {})
    arguments: list[tuple[str, Type, Any]] = [(argument_name(graph.inputs[0].name), program.self_type, None)]
    arguments += [
        (argument_name(value.name), value.type, defaults.get(argument_name(value.name))) for value in graph.inputs[1:]
    ]
    results = [("", value.type, None) for value in graph.outputs]
    schema = [
        lambda: _pickle_schema(pickle, "arguments", arguments),
        lambda: _pickle_schema(pickle, "returns", results),
    ]
    pickle.tuple_of(
        [
            lambda: pickle.string(f"{program.class_name}.{name}"),
            lambda: pickle.tuple_of(code),
            lambda: pickle.tuple_of(schema),
        ]
    )


def _pickle_schema(pickle: PickleWriter, field: str, items: list[tuple[str, Type, Any]]) -> None:
    def item(name: str, kind: Type, default: Any) -> None:
        pickle.tuple_of(
            [
                lambda: pickle.plain(("name", name)),
                lambda: pickle.plain(("type", bytecode_type(kind))),
                lambda: pickle.tuple_of([lambda: pickle.string("default_value"), lambda: pickle.value(default, kind)]),
            ]
        )

    writers = [lambda entry=entry: item(*entry) for entry in items]
    pickle.tuple_of([lambda: pickle.string(field), lambda: pickle.tuple_of(writers)])


@contextmanager
def _opened(file: BundleFile) -> Iterator[tuple[IO[bytes], str]]:
    """An open file to write to, and the archive's root name; a path is replaced only when all went well."""
    if not isinstance(file, (str, os.PathLike)):
        yield file, "archive"
        return
    path = Path(file)
    with whole_file(path) as handle:
        yield handle, path.stem or "archive"
