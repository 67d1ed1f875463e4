"""Constants without dimensions that are operands become numbers, where that decides the result's dtype."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.facts import TensorFacts
from mobopt.ir.literals import bytes_of
from mobopt.ir.schemas import schema_of, schemas_of
from mobopt.ir.types import SCALAR, TENSOR
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.facts import Examples, forget_facts, record_facts
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import OPERAND_IS_NUMBER
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node, is_constant_tensor

NumberKey = tuple[torch.dtype, bytes]
"""Dtype and element of a tensor without dimensions."""
_BOOL_CODE = 11
_OPERATORS = frozenset({"aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor"})


@dataclass(frozen=True)
class NumberOperands(Pass):
    """Operands that a trace holds as constant tensors without dimensions become the numbers that they were.

    Given (%x of integers):
        %half : Tensor = prim::Constant[value={0.5}]()
        %y : Tensor = aten::add(%x, %half, %one)
    Result:
        %half : float = prim::Constant[value=0.5]()
        %y : Tensor = aten::add(%x, %half, %one)

    A number leaves the result float32; a tensor of float64, which is how a trace holds it, makes it float64. PyTorch's
    full interpreter rewrites all such constants before it runs a graph (``CanonicalizeOps`` in
    ``torch/csrc/jit/passes/canonicalize_graph_fuser_ops.cpp``), its lite interpreter none: without this pass the two
    give different dtypes. Attributes are tensors, and stay; so do constants where the example inputs show that it does
    not matter.

    Constants that are known to have been numbers are numbers for every operator of single elements; where only tensors
    are taken (``2.5 // x``), a tensor of the dtype that the number leaves the result is filled with it.

    Attributes:
        examples: show where it matters.
        numbers: dtype and element of the constants that were numbers, if the module remembers it.
    """

    name = "number_operands"
    examples: Examples = field(default_factory=Examples)
    numbers: frozenset[NumberKey] = frozenset()

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace in every method."""
        nodes = [(graph, node) for graph in program.methods.values() for node in graph.walk()]
        changed = False
        for graph, node in nodes:
            for index in self._numbers_among(node):
                changed |= _become_number(graph, node, index, notes)
        nodes = [(graph, node) for graph, node in nodes if _has_such(node)]
        if not nodes:
            return changed
        record_facts(program, self.examples)
        for graph, node in nodes:
            if not _keeps_its_dtype(node.inputs[0].facts, node.inputs[1].constant):
                _replace(graph, node, 1, "Scalar")
                notes.add(OPERAND_IS_NUMBER, node)
                changed = True
        if changed:
            forget_facts(program)  # dtypes of results have changed, as far as they are read
        return changed

    def _numbers_among(self, node: Node) -> list[int]:
        """Which of the two operands of a node is known to have been a number."""
        if not self.numbers or len(node.inputs) < 2 or not has_trait(node.qualified_op, Trait.ELEMENTWISE):
            return []
        return [index for index in range(2) if _was_number(node.inputs[index], self.numbers)]


def number_key(tensor: torch.Tensor) -> NumberKey:
    """What tells a tensor without dimensions from another one."""
    return tensor.dtype, bytes_of(tensor)


def _was_number(value: Value, numbers: frozenset[NumberKey]) -> bool:
    if not is_constant_tensor(value) or value.attribute or value.constant.dim():
        return False
    return number_key(value.constant.detach()) in numbers


def _become_number(graph: Graph, node: Node, index: int, notes: NoteBook) -> bool:
    mine = schema_of(node.qualified_op)
    wanted = [SCALAR if at == index else item.type for at, item in enumerate(mine.arguments)]
    for other in schemas_of(node.op):
        if [item.type for item in other.arguments] == wanted:
            _replace(graph, node, index, other.overload)
            notes.add(OPERAND_IS_NUMBER, node)
            return True
    other_operand = node.inputs[1 - index]
    if index or other_operand.type != TENSOR:
        return False
    nothing = graph.constant(None)
    options = [graph.constant(_BOOL_CODE), nothing, nothing, nothing, nothing]
    everywhere = insert_node(graph, node, "aten::ones_like", [other_operand, *options])
    choice = [everywhere, graph.constant(node.inputs[0].constant.item()), other_operand]
    node.replace_input(0, insert_node(graph, node, "aten::where", choice, overload="ScalarSelf"))
    notes.add(OPERAND_IS_NUMBER, node)
    return True


def _has_such(node: Node) -> bool:
    if node.qualified_op not in _OPERATORS or not is_constant_tensor(node.inputs[1]):
        return False
    if node.inputs[1].attribute:
        return False
    constant: torch.Tensor = node.inputs[1].constant
    return constant.dim() == 0 and constant.dtype != torch.bool and not constant.is_complex()


def _keeps_its_dtype(facts: TensorFacts, constant: torch.Tensor) -> bool:
    """Whether the result's dtype is that of the other operand, be the constant a tensor or a number."""
    if facts.known_dtype is None or not facts.known_rank:
        return False
    is_floating = facts.known_dtype.startswith(("float", "bfloat", "complex"))
    return is_floating or (facts.known_dtype != "bool" and not constant.is_floating_point())


def _replace(graph: Graph, node: Node, index: int, overload: str) -> None:
    node.replace_input(index, graph.constant(node.inputs[index].constant.item()))
    node.overload = overload
