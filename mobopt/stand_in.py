"""A torch module that stands in for a Program wherever torch wants to look at one.

Stock torch has neither the operators nor the context classes of an optimised module. The stand-in is the same
TorchScript with the operators declared, without kernels, and each context an empty tuple of type ``Any``; so
``graph``, ``code`` and ``torch.jit.export_opnames`` are torch's own work. It never runs, and is never what is saved.
A Program with nothing but stock operators needs no such trick: its stand-in is the real thing.
"""

from __future__ import annotations

import importlib.util
import io
import threading
from contextlib import suppress
from functools import cache

import torch

from mobopt.bundle import write_torchscript
from mobopt.deprecations import of_torchscript_unsaid
from mobopt.ir import Attribute, Graph, InsertionPoint, Program, Value
from mobopt.ir.types import ANY, ClassType, Type
from mobopt.ops.contexts import PackedContext
from mobopt.ops.quantized_contexts import NAMESPACE, QuantizedLayer
from mobopt.ops.schemas import Schema, schema_of

_lock = threading.Lock()
_libraries: list[torch.library.Library] = []
"""Kept, for an operator is gone with the library that declared it."""
_declared: set[str] = set()


def stand_in(program: Program) -> torch.jit.ScriptModule:
    """Make the stand-in of a Program; the Program is not changed."""
    with _lock:
        for op in sorted({node.qualified_op for graph in program.methods.values() for node in graph.walk()}):
            _declare(op)
    buffer = io.BytesIO()
    write_torchscript(_without_contexts(program), buffer)
    buffer.seek(0)
    with of_torchscript_unsaid():
        module: torch.jit.ScriptModule = torch.jit.load(buffer, map_location="cpu")  # type: ignore[no-untyped-call]
    return module


def is_stock(program: Program) -> bool:
    """Whether the installed torch can run a Program: it has every operator, class and device that is named."""
    nodes = [node for graph in program.methods.values() for node in graph.walk()]
    values = [item.value for item in program.attributes.values()]
    values += [value.constant for node in nodes for value in node.inputs if value.is_constant]
    return all(is_in_torch(node.op) for node in nodes) and not any(_is_of_mobile_builds(value) for value in values)


def _is_of_mobile_builds(value: object) -> bool:
    return isinstance(value, PackedContext) or (isinstance(value, torch.device) and value.type in ("vulkan", "metal"))


@cache
def _declare(op: str) -> None:
    """Declare an operator that torch lacks; one that it has, or that a genuine build brings, is left alone."""
    name = op.partition(".")[0]
    if is_in_torch(name):
        return
    namespace = name.partition("::")[0]
    _import_package(namespace)
    if is_in_torch(name):
        return
    library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(_text(schema_of(op)))  # type: ignore[no-untyped-call]
    _libraries.append(library)
    _declared.add(name)


def _import_package(name: str) -> None:
    """Import the package that brings the operators of a namespace, if it is installed, and can be imported.

    What it declares in C++ (torchvision's operators) ends the process if it is declared already.
    """
    if importlib.util.find_spec(name) is not None:
        with suppress(Exception):  # without compiled operators it can't be imported
            importlib.import_module(name)


def is_in_torch(name: str) -> bool:
    """Whether the installed torch has an operator, given without overload; those declared here don't count."""
    if name in _declared:
        return False
    return name.startswith("prim::") or bool(torch._C._jit_get_schemas_for_operator(name))


def _text(schema: Schema) -> str:
    """A schema in torch's notation, without namespace, defaults and classes."""
    arguments = ", ".join(f"{_open(item.type)} {item.name}" for item in schema.arguments)
    returns = ", ".join(str(_open(item)) for item in schema.returns)
    return f"{schema.qualified_name.partition('::')[2]}({arguments}) -> ({returns})"


def _open(kind: Type) -> Type:
    return ANY if isinstance(kind, ClassType) and not kind.name.startswith(NAMESPACE) else kind


def _is_foreign(value: object) -> bool:
    """Whether a value is a context of a class that stock torch lacks; it has those of quantised layers."""
    return isinstance(value, PackedContext) and not isinstance(value, QuantizedLayer)


def _without_contexts(program: Program) -> Program:
    """A copy in which every context that stock torch lacks is an empty tuple of type Any, held by an attribute."""
    copy = program.clone()
    for name, attribute in copy.attributes.items():
        if _is_foreign(attribute.value):
            copy.attributes[name] = Attribute(ANY, ())
    for graph in copy.methods.values():
        _lift_constants(copy, graph)
        for node in graph.walk():
            for output in node.outputs:
                if output.type != copy.self_type:
                    output.type = _open(output.type)
    return copy


def _lift_constants(program: Program, graph: Graph) -> None:
    """Turn contexts that are constants of a graph into attributes."""
    constants: dict[Value, None] = {}
    for node in [*graph.walk(), graph.block.returns]:
        constants.update((value, None) for value in node.inputs if _is_context(value))
    for value in constants:
        name = f"_packed_constant_{len(program.attributes)}"
        program.attributes[name] = Attribute(ANY, ())
        node = graph.create("prim::GetAttr", [graph.inputs[0]], [ANY], attributes={"name": name})
        InsertionPoint.start(graph.block).insert(node)
        value.replace_all_uses_with(node.output)


def _is_context(value: Value) -> bool:
    return value.is_constant and _is_foreign(value.constant)
