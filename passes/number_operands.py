"""Constants without dimensions that are operands become numbers, where that decides the result's dtype."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from mobopt.ir import Graph, Node, Program
from mobopt.ops.targets import TensorFacts
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import OPERAND_IS_NUMBER
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import is_constant_tensor

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
    """

    name = "number_operands"
    examples: Examples = field(default_factory=Examples)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace in every method."""
        nodes = [(graph, node) for graph in program.methods.values() for node in graph.walk() if _has_such(node)]
        if not nodes:
            return False
        facts = record_facts(program, self.examples)
        changed = False
        for graph, node in nodes:
            if not _keeps_its_dtype(facts.get(node.inputs[0]), node.inputs[1].constant):
                _replace(graph, node)
                notes.add(OPERAND_IS_NUMBER, node)
                changed = True
        return changed


def _has_such(node: Node) -> bool:
    if node.qualified_op not in _OPERATORS or not is_constant_tensor(node.inputs[1]):
        return False
    if node.inputs[1].attribute:
        return False
    constant: torch.Tensor = node.inputs[1].constant
    return constant.dim() == 0 and constant.dtype != torch.bool and not constant.is_complex()


def _keeps_its_dtype(facts: TensorFacts | None, constant: torch.Tensor) -> bool:
    """Whether the result's dtype is that of the other operand, be the constant a tensor or a number."""
    if facts is None or facts.known_dtype is None or not facts.known_rank:
        return False
    is_floating = facts.known_dtype.startswith(("float", "bfloat", "complex"))
    return is_floating or (facts.known_dtype != "bool" and not constant.is_floating_point())


def _replace(graph: Graph, node: Node) -> None:
    node.replace_input(1, graph.constant(node.inputs[1].constant.item()))
    node.overload = "Scalar"
