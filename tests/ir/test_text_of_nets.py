"""The text of every net, as a Program and as a straight line, is read as what it was printed from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nets import NETS

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, named_constants, parse_graph, print_graph, verify_graph
from mobopt.ir.graph import Block
from mobopt.runtimes.specialize import specialize

QUICK = ("Norms", "Outputs")
"""Nets for the default suite; the others take long to trace."""


def form(block: Block) -> list[Any]:
    """Everything of a block but the names of its values."""
    return [
        (
            node.qualified_op,
            node.attributes,
            [str(value.type) for value in (*node.inputs, *node.outputs)],
            [
                id(value.constant)
                for value in node.inputs
                if value.is_constant and isinstance(value.constant, torch.Tensor)
            ],
            [form(nested) for nested in node.blocks],
        )
        for node in block.nodes
    ]


def check(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text, named_constants(graph))
    verify_graph(again)
    assert print_graph(again) == text
    assert form(again.block) == form(graph.block)


def check_net(name: str) -> None:
    net = NETS[name]
    module, inputs = net.module(), net.inputs()
    for way in net.ways:
        with torch.no_grad():
            made = (
                torch.jit.script(module)
                if way == "scripted"
                else torch.jit.trace(module, tuple(inputs), check_trace=False, strict=False)
            )
        program = program_from_script_module(made)
        for graph in program.methods.values():
            check(graph)
        check(specialize(program, "forward", inputs).graph)


@pytest.mark.parametrize("name", QUICK)
def test_text_of_a_net(name: str) -> None:
    check_net(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(set(NETS) - set(QUICK)))
def test_text_of_every_net(name: str) -> None:
    check_net(name)
