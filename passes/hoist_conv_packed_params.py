"""Packed weights of quantised convolutions become attributes of the root module."""

from __future__ import annotations

import re

from mobopt.ir import Attribute, Graph, Node, Program
from mobopt.ir.types import ClassType
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import READS_ATTRIBUTE
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node

_CONVOLUTIONS = re.compile(r"quantized::conv(_transpose)?[123]d")


class HoistConvPackedParams(Pass):
    """Make the packed weights of quantised convolutions root attributes.

    Given:
        %p : quantized.Conv2dPackedParamsBase = prim::Constant[value=<ScriptObject>]()
        %y = quantized::conv2d(%x, %p, %scale, %zero_point)
    Result:
        %p = prim::GetAttr[name="_jit_pass_hoist_conv_packed_params.<module>._packed_params.1"](%self)
        %y = quantized::conv2d(%x, %p, %scale, %zero_point)

    A Program is inlined and its attributes belong to the root already, so what is left to do is to move the packed
    weights that freezing made constants. Names are those of ``torch/csrc/jit/passes/hoist_conv_packed_params.cpp``.
    """

    name = "hoist_conv_packed_params"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Move each packed weight once."""
        names: dict[int, str] = {}
        changed = False
        for graph in program.methods.values():
            for node in graph.walk():
                if _has_constant_weights(node):
                    _hoist(program, graph, node, names, notes)
                    changed = True
        return changed


def _has_constant_weights(node: Node) -> bool:
    return _CONVOLUTIONS.match(node.op) is not None and len(node.inputs) > 1 and node.inputs[1].is_constant


def _hoist(program: Program, graph: Graph, node: Node, names: dict[int, str], notes: NoteBook) -> None:
    packed = node.inputs[1]
    known = packed.constant
    if id(known) not in names:
        path = packed.attribute.removesuffix("._packed_params")
        names[id(known)] = f"_jit_pass_hoist_conv_packed_params.{path}._packed_params.{len(names) + 1}"
        kind = packed.type if isinstance(packed.type, ClassType) else ClassType(known._type().qualified_name())
        program.attributes[names[id(known)]] = Attribute(kind, known)
    name = names[id(known)]
    value = insert_node(graph, node, "prim::GetAttr", [graph.inputs[0]], type=program.attributes[name].type, name=name)
    assert value.producer is not None
    value.producer.attributes["name"] = name
    node.replace_input(1, value)
    notes.add(READS_ATTRIBUTE, node, attribute=name)
