"""The reader: a bundle becomes a Program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mobopt.bundle.attributes import ModuleTree
from mobopt.bundle.builder import Allowance
from mobopt.bundle.bytecode import Function, OperatorEntry, parse_bytecode, parse_operators
from mobopt.bundle.container import ArchiveReader, BundleFile, iterate_records
from mobopt.bundle.lite_reader import graph_from_function, unknown_operators
from mobopt.bundle.other_files import kind_of_records
from mobopt.bundle.source_library import SourceLibrary
from mobopt.bundle.source_reader import fill_from_source, parameters_with_default, refine_attributes
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import Unpickled, unpickle
from mobopt.bundle.versions import READABLE, check_meaning
from mobopt.errors import BundleError, GraphError
from mobopt.ir import Program, verify
from mobopt.ops.state import settle_state

_PREFERENCES = ("bytecode", "code")
_MAX_MESSAGE = 2000


def read_bundle(
    file: BundleFile,
    prefer: str = "bytecode",
    methods: Collection[str] | None = None,
    libraries: Collection[str] | None = (),
) -> Program:
    """Read a ``.pt`` or ``.ptl`` file, plain or optimised; nothing in it is executed.

    Args:
        file: a path, which stays mapped while the Program's weights live, or an open binary file.
        prefer: which form to read where the file has both: ``bytecode`` or ``code``.
        methods: names of the methods to read; None for all.
        libraries: namespaces of operators beyond torch's own that the file may name; None for every library that this
            process has loaded.

    Returns:
        A Program whose ``metadata`` says ``kind`` (``lite`` or ``torchscript``), ``archive_version``,
        ``bytecode_version`` (None without bytecode), ``extra_files``, ``defaults`` of the methods' arguments, and
        ``method_names``, of all methods of the model.

    Raises:
        BundleError: the file is damaged, hostile, or of a form that is not read; the message names record and value.
    """
    if prefer not in _PREFERENCES:
        raise BundleError(f"prefer={prefer!r} is not known; it is one of {', '.join(_PREFERENCES)}")
    archive = ArchiveReader(file)
    try:
        program = _read(archive, prefer, methods, libraries)
        verify(program)
        settle_state(program)
        program.number_nodes()
    except (BundleError, GraphError) as error:
        text = _shortened(str(error))
        raise BundleError(text if text.startswith(archive.name) else f"{archive.name}: {text}") from None
    except RecursionError:
        raise BundleError(f"{archive.name}: the model is nested too deeply to be read; the file is hostile") from None
    return program


def _shortened(text: str) -> str:
    """A message without the middle, where a name of the file that it quotes is monstrous."""
    return text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE // 2]} ... {text[-_MAX_MESSAGE // 2 :]}"


def _read(
    archive: ArchiveReader, prefer: str, methods: Collection[str] | None, libraries: Collection[str] | None
) -> Program:
    has_code = any(True for _ in iterate_records(archive, "code/"))
    if not has_code and "bytecode.pkl" not in archive:
        checkpoint = archive.read("data.pkl") if "data.pkl" in archive else None
        raise archive.error(f"is {kind_of_records(list(archive.records), checkpoint)}")
    version = archive_version(archive)
    allowance = Allowance(sum(record.size for record in archive.records.values()), libraries)
    library = SourceLibrary(archive)
    modules = ModuleTree(load_pickle(archive, "data.pkl", "data"), library)
    program = Program(class_name=modules.root.class_name, attributes=modules.attributes)
    if has_code:
        refine_attributes(modules, library)
    if "bytecode.pkl" in archive and (prefer == "bytecode" or not has_code):
        bytecode_version, functions = load_bytecode(archive)
        with_default = parameters_with_default(library, program.class_name) if has_code else {}
        _fill_from_bytecode(program, modules, functions, with_default, allowance, methods)
        program.metadata |= {"kind": "lite", "bytecode_version": bytecode_version}
    else:
        constants = load_pickle(archive, "constants.pkl", "constants")
        fill_from_source(program, modules, library, constants, allowance, methods)
        program.metadata |= {"kind": "torchscript", "bytecode_version": None}
    check_meaning(program, version)
    program.metadata |= {"archive_version": version, "extra_files": extra_files(archive)}
    return program


def _fill_from_bytecode(
    program: Program,
    modules: ModuleTree,
    functions: list[Function],
    with_default: Mapping[str, Collection[int]],
    allowance: Allowance,
    methods: Collection[str] | None,
) -> None:
    """Decompile every method into the program.

    Bytecode writes None both for "no default" and for the default None; ``with_default`` tells them apart, by method
    and place of the parameter.
    """
    unknown = unknown_operators(functions)
    if unknown:
        raise BundleError(
            f"bytecode.pkl calls operators that neither the installed torch nor mobopt knows: {', '.join(unknown)}"
        )
    defaults: dict[str, dict[str, Any]] = {}
    names: list[str] = []
    for function in functions:
        owner, _, name = function.name.rpartition(".")
        if owner != modules.root.class_name:
            raise BundleError(
                f"bytecode.pkl: {function.name!r} is not a method of the model, {modules.root.class_name}"
            )
        if name in names:
            raise BundleError(f"bytecode.pkl holds two methods named {name!r}; the file is damaged")
        names.append(name)
        if methods is not None and name not in methods:
            continue
        program.methods[name] = graph_from_function(function, modules, allowance)
        known = with_default.get(name, ())
        defaults[name] = {
            item.name: item.default
            for index, item in enumerate(function.arguments)
            if item.default is not None or index in known
        }
    program.metadata["defaults"] = {name: values for name, values in defaults.items() if values}
    program.metadata["method_names"] = names


def archive_version(archive: ArchiveReader) -> int:
    """The number in the version record.

    Raises:
        BundleError: it is missing, not a number, or of a release that is not read.
    """
    record = ".data/version" if ".data/version" in archive else "version"
    text = archive.read(record)[:16]
    if not text.strip().isdigit() or int(text) not in READABLE:
        raise archive.error(f"is of archive version {text!r}; versions {READABLE[0]} to {READABLE[-1]} are read")
    return int(text)


def load_pickle(archive: ArchiveReader, record: str, folder: str) -> Unpickled:
    """A pickle of the archive, with its tensors from a folder."""
    return unpickle(archive.read(record), StorageLoader(archive, folder), record)


def load_bytecode(archive: ArchiveReader) -> tuple[int, list[Function]]:
    """Version and methods of the lite interpreter's tables."""
    return parse_bytecode(_bytecode_pickle(archive))


def load_operators(archive: ArchiveReader) -> set[OperatorEntry]:
    """What the lite interpreter's operator tables list."""
    return parse_operators(_bytecode_pickle(archive))


def _bytecode_pickle(archive: ArchiveReader) -> Unpickled:
    has_own = any(True for _ in iterate_records(archive, "bytecode/"))
    return load_pickle(archive, "bytecode.pkl", "bytecode" if has_own else "constants")


def extra_files(archive: ArchiveReader) -> dict[str, bytes]:
    """Extra files by name."""
    return {item.name.removeprefix("extra/"): archive.read(item.name) for item in iterate_records(archive, "extra/")}
