"""Packing of constant weights is done at conversion."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from mobopt.ir import Attribute, Graph, Node, Program
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import FOLDED_INTO, NOT_FOLDED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import constants, insert_node, tensor_key
from mobopt.runtimes.cpu.kernels import kernel


class FoldPrepack(Pass):
    """Run the packing operators and keep each context as an attribute of the module.

    Given:
        %c : Conv2dPackedContext = vulkan_prepack::create_conv2d_context(%w, %b, ...)
    Result:
        %c : Conv2dPackedContext = prim::GetAttr[name="prepack_folding_forward._jit_pass_packed_weight_0"](%self)

    So for the packing operators of every backend. The same constants give one context, also across methods.
    Names are those of ``torch/csrc/jit/passes/prepack_folding.cpp``.
    """

    name = "fold_prepack"
    after = (
        After("insert_prepack", "it folds what that inserts"),
        After("fuse_clamp", "a folded context takes no range any more"),
    )

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Fold in every method."""
        folder = _Folder(program, notes)
        changed = [folder.fold_graph(name, graph) for name, graph in program.methods.items()]
        return any(changed)


class _Folder:
    """Folds, and remembers which attribute holds which constants."""

    def __init__(self, program: Program, notes: NoteBook) -> None:
        self.program = program
        self.notes = notes
        self.names: dict[Hashable, str] = {}
        self.counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def fold_graph(self, method: str, graph: Graph) -> bool:
        """Fold in one method."""
        changed = False
        for node in graph.walk():
            if node.op not in PACKING_OPERATORS:
                continue
            inputs = constants(node.inputs)
            if inputs is None:
                self.notes.add(NOT_FOLDED, node, reason="its inputs are not constant")
                continue
            name = self.attribute(method, node, inputs)
            self.notes.add(FOLDED_INTO, node, attribute=name)
            value = insert_node(graph, node, "prim::GetAttr", [graph.inputs[0]], type=node.output.type, name=name)
            assert value.producer is not None
            value.producer.attributes["name"] = name
            node.output.replace_all_uses_with(value)
            node.destroy()
            changed = True
        return changed

    def attribute(self, method: str, node: Node, inputs: list[Any]) -> str:
        """Name of the attribute that holds the context; made if there is none yet."""
        key = (node.op, *map(_key, inputs))
        if key not in self.names:
            self.names[key] = self.free_name(f"prepack_folding_{method}._jit_pass_packed_weight_")
            context = kernel(node.qualified_op)(*inputs)
            self.program.attributes[self.names[key]] = Attribute(node.output.type, context)
        return self.names[key]

    def free_name(self, stem: str) -> str:
        """The next attribute name of this stem that is not taken."""
        while (name := f"{stem}{next(self.counts[stem])}") in self.program.attributes:
            pass
        return name


def _key(value: Any) -> Hashable:
    return tensor_key(value) if isinstance(value, torch.Tensor) else repr(value)
