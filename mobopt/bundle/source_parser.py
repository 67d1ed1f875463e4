"""Serialised TorchScript source in: the records under ``code/`` and the unpickled module become a Program.

Every method of the root's class becomes a graph; submodules' methods and functions are inlined. Nothing of the file is
run: its text is parsed as Python's syntax, and what it may do is bounded.
Source of the format: ``torch/csrc/jit/serialization/python_print.cpp`` and ``import_source.cpp`` of PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from mobopt.bundle.source_expressions import Model, declare_attribute, is_object, reference
from mobopt.bundle.source_files import SourceLibrary
from mobopt.bundle.source_graph import Budget, GraphWriter
from mobopt.bundle.source_scope import FunctionReference, ObjectReference, Scope
from mobopt.bundle.source_statements import FunctionTranslator
from mobopt.errors import BundleError
from mobopt.ir import Graph, Program


def parse_source(load: Callable[[str], str | None], constants: Sequence[Any], root: Any) -> Program:
    """Translate a model's source.

    Args:
        load: text of a record under ``code/`` by its path there (``__torch__/nets.py``); None if there is no such.
        constants: the entries of ``constants.pkl``, which the source reads as ``CONSTANTS.c0`` and so on.
        root: the unpickled module: ``root.qualified_name`` names its class and ``root.attributes`` holds its values
            by name; submodules are such objects too, packed contexts are PackedContext instances.

    Returns:
        A Program with all methods of the root's class, its attributes that are no modules, and the attributes of
        submodules that a method reads, under dotted names. Default values of arguments are in
        ``metadata["defaults"]`` by method and argument.

    Raises:
        BundleError: the source is damaged, too large, or uses what a Program can't hold; the message names the
            construct, the file and the line.
    """
    program = Program(class_name=root.qualified_name)
    model = Model(SourceLibrary(load), constants, program, {})
    try:
        module = reference(model, root, "")
        _check_hooks(module)
        _declare_attributes(model, module)
        budget = Budget()
        for name, node in module.definition.methods.items():
            program.methods[name] = _method(model, FunctionReference(module.definition.file, node, module), budget)
    except RecursionError:
        raise BundleError(f"the source of {root.qualified_name} is nested too deeply") from None
    return program


def _check_hooks(module: ObjectReference) -> None:
    for kind in ("__forward_pre_hooks__", "__forward_hooks__"):
        names = module.definition.lists.get(kind)
        if names:
            raise BundleError(
                f"{module.definition.name} has forward hooks ({', '.join(sorted(names))}), which run outside its "
                "methods; save the model without them, or call them in forward"
            )


def _declare_attributes(model: Model, module: ObjectReference) -> None:
    """Enter the root's own attributes."""
    for name in module.definition.annotations:
        if name in module.state.attributes and not is_object(module.state.attributes[name]):
            declare_attribute(model, module, name)


def _method(model: Model, function: FunctionReference, budget: Budget) -> Graph:
    """The graph of one method of the root."""
    writer = GraphWriter(budget)
    translator = FunctionTranslator(model, writer, function, Scope())
    parameters = translator.parameters()
    if not parameters:
        raise function.file.error(function.node, f"{function.name} has no parameter for the module")
    assert function.receiver is not None
    writer.graph.add_input(parameters[0][0].arg, model.program.self_type)
    translator.scope.assign(parameters[0][0].arg, function.receiver)
    for parameter, default in parameters[1:]:
        _input(translator, parameter)
        if default is not None:
            value = translator.literal_constant(default, function.file).constant
            model.program.metadata.setdefault("defaults", {}).setdefault(function.name, {})[parameter.arg] = value
    result = translator.body()
    writer.graph.return_values(translator.as_value(result, function.node))
    return writer.graph


def _input(translator: FunctionTranslator, parameter: ast.arg) -> None:
    """Give a method's graph one more input."""
    if parameter.annotation is None:
        raise translator.file.error(parameter, f"the parameter {parameter.arg!r} has no type")
    value = translator.writer.graph.add_input(parameter.arg, translator.type(parameter.annotation))
    translator.scope.assign(parameter.arg, value)
