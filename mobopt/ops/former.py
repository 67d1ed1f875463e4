"""Operators that PyTorch has dropped, in files that were written before, as those that every release has.

Source: schemas, and ``aten/src/ATen/native/BatchLinearAlgebra.cpp``, of PyTorch 2.13; 2.14 has neither operator.
"""

from __future__ import annotations

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.schemas import register_schema

LAST_RELEASE = "2.13"
"""The last release of PyTorch that had them."""

_CHOLESKY = register_schema("aten::cholesky(Tensor self, bool upper=False) -> Tensor").qualified_name
_QR = register_schema("aten::qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)").qualified_name


def replace_former(program: Program) -> None:
    """Put present operators in the place of former ones that compute the same.

    ``former_operators`` of the program's metadata names those that it had.
    """
    found = set()
    for graph in program.methods.values():
        for node in list(graph.walk()):
            if _is_replaced(graph, node):
                found.add(node.qualified_op)
    program.metadata["former_operators"] = sorted(found)


def _is_replaced(graph: Graph, node: Node) -> bool:
    if node.qualified_op == _CHOLESKY:
        _replace(graph, node, "aten::linalg_cholesky", node.inputs[1])
        return True
    if node.qualified_op == _QR and node.inputs[1].is_constant:
        mode = "reduced" if node.inputs[1].constant else "complete"
        _replace(graph, node, "aten::linalg_qr", graph.constant(mode))
        return True
    return False


def _replace(graph: Graph, node: Node, op: str, option: Value) -> None:
    types, names = [value.type for value in node.outputs], [value.name for value in node.outputs]
    new = graph.create(op, [node.inputs[0], option], types, names=names, origin=node.origin).insert_before(node)
    for old, value, name in zip(node.outputs, new.outputs, names, strict=True):
        old.replace_all_uses_with(value)
        old.name, value.name = "", name
    node.destroy()
