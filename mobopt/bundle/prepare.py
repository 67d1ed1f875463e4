"""The last step before writing: a Program takes the form that both loaders of PyTorch accept."""

from __future__ import annotations

from collections.abc import Iterator

from mobopt.bundle.source_text import is_identifier
from mobopt.ir import Attribute, Graph, Node, Program, Value
from mobopt.ir.types import ClassType
from mobopt.ops.contexts import PackedContext


def prepared(program: Program) -> Program:
    """A copy in which packed contexts are attributes, and attributes that methods assign to have plain names.

    PyTorch's lite loader can't say what is wrong with a context among the constants of a method, and source has no way
    to assign to an attribute whose name is not an identifier.
    """
    result = program.clone()
    for name, graph in result.methods.items():
        _hoist_contexts(result, name, graph)
    _rename_assigned(result)
    return result


def _hoist_contexts(program: Program, method: str, graph: Graph) -> None:
    """Turn the contexts that are constants of a method into attributes, named as PyTorch's own passes name them."""
    names: dict[int, str] = {}
    for node in graph.walk():
        for index, value in enumerate(node.inputs):
            if value.is_constant and isinstance(value.constant, PackedContext):
                name = names.setdefault(id(value.constant), "") or _free_name(program, method)
                names[id(value.constant)] = name
                program.attributes[name] = Attribute(ClassType(value.constant.qualified_name), value.constant)
                node.replace_input(index, _read_before(node, graph, value, name))


def _free_name(program: Program, method: str) -> str:
    count = 0
    while f"prepack_folding_{method}._jit_pass_packed_weight_{count}" in program.attributes:
        count += 1
    return f"prepack_folding_{method}._jit_pass_packed_weight_{count}"


def _read_before(node: Node, graph: Graph, value: Value, name: str) -> Value:
    """The value of an attribute, read just before a node."""
    attributes = {"name": name}
    read = graph.create(
        "prim::GetAttr", [graph.inputs[0]], [value.type], attributes=attributes, names=[name], origin=node.origin
    )
    return read.insert_before(node).output


def names_in_files(program: Program) -> dict[str, str]:
    """What each attribute is called in a file: one that a method assigns to has a name that is an identifier."""
    assigned = {node.attributes["name"] for node in _attribute_nodes(program) if node.op == "prim::SetAttr"}
    renamed: dict[str, str] = {}
    for name in program.attributes:
        new = name
        if name in assigned and not is_identifier(name):
            new = name.replace(".", "_")
            while not is_identifier(new) or new in program.attributes or new in renamed.values():
                new = f"_{new}"
        renamed[name] = new
    return renamed


def _rename_assigned(program: Program) -> None:
    renamed = names_in_files(program)
    program.attributes = {renamed[name]: item for name, item in program.attributes.items()}
    for node in _attribute_nodes(program):
        node.attributes["name"] = renamed.get(node.attributes["name"], node.attributes["name"])


def _attribute_nodes(program: Program) -> Iterator[Node]:
    for graph in program.methods.values():
        yield from (node for node in graph.walk() if node.op in ("prim::SetAttr", "prim::GetAttr"))
