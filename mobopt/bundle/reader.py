"""The reader: a bundle becomes a Program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mobopt.bundle.attributes import ModuleTree
from mobopt.bundle.builder import Allowance
from mobopt.bundle.bytecode import Function
from mobopt.bundle.container import BundleFile
from mobopt.bundle.lite_reader import graph_from_function, unknown_operators
from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.open_file import open_model_file
from mobopt.bundle.source_library import SourceLibrary
from mobopt.bundle.source_reader import fill_from_source, parameters_with_default, refine_attributes
from mobopt.bundle.versions import check_meaning
from mobopt.errors import BundleError, GraphError
from mobopt.ir import Program, verify
from mobopt.ir.types import OptionalType
from mobopt.ops.former import replace_former
from mobopt.ops.state import settle_state

_PREFERENCES = ("bytecode", "code")
_MAX_MESSAGE = 2000
_RESTORING = ("__getstate__", "__setstate__")


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
    archive = open_model_file(file)
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


def _read(file: ModelFile, prefer: str, methods: Collection[str] | None, libraries: Collection[str] | None) -> Program:
    file.check_form()
    version = file.version()
    allowance = Allowance(file.unpacked_size, libraries)
    library = SourceLibrary(file)
    modules = ModuleTree(file.module(), library)
    program = Program(class_name=modules.root.class_name, attributes=modules.attributes)
    if file.has_source:
        refine_attributes(modules, library)
    if file.has_bytecode and (prefer == "bytecode" or not file.has_source):
        bytecode_version, functions = file.bytecode()
        own = _methods_of(modules.root.class_name, functions)
        with_default = (
            parameters_with_default(library, program.class_name) if file.has_source else _optional_parameters(own)
        )
        _fill_from_bytecode(program, modules, own, with_default, allowance, methods)
        program.metadata |= {"kind": "lite", "bytecode_version": bytecode_version}
    else:
        fill_from_source(program, modules, library, file.constants(), allowance, methods)
        program.metadata |= {"kind": "torchscript", "bytecode_version": None}
    check_meaning(program, version)
    replace_former(program)
    program.metadata |= {"archive_version": version, "extra_files": file.extra_files()}
    return program


def _methods_of(class_name: str, functions: Sequence[Function]) -> dict[str, Function]:
    """The methods of the model by name; those by which its layers restore their state are left out.

    Raises:
        BundleError: there are others, or two of one name.
    """
    found: dict[str, Function] = {}
    for function in functions:
        owner, _, name = function.name.rpartition(".")
        if owner != class_name and name in _RESTORING:
            continue
        if owner != class_name:
            raise BundleError(f"bytecode: {function.name!r} is not a method of the model, {class_name}")
        if name in found:
            raise BundleError(f"bytecode: there are two methods named {name!r}; the file is damaged")
        found[name] = function
    return found


def _optional_parameters(functions: Mapping[str, Function]) -> dict[str, set[int]]:
    """Places of the parameters that may be None, for each method: without source, None is taken for their default."""
    return {
        name: {index for index, item in enumerate(function.arguments) if isinstance(item.type, OptionalType)}
        for name, function in functions.items()
    }


def _fill_from_bytecode(
    program: Program,
    modules: ModuleTree,
    functions: Mapping[str, Function],
    with_default: Mapping[str, Collection[int]],
    allowance: Allowance,
    methods: Collection[str] | None,
) -> None:
    """Decompile every method into the program.

    Bytecode writes None both for "no default" and for the default None; ``with_default`` tells them apart, by method
    and place of the parameter.
    """
    unknown = unknown_operators(list(functions.values()))
    if unknown:
        raise BundleError(
            f"bytecode calls operators that neither the installed torch nor mobopt knows: {', '.join(unknown)}"
        )
    defaults: dict[str, dict[str, Any]] = {}
    for name, function in functions.items():
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
    program.metadata["method_names"] = list(functions)
