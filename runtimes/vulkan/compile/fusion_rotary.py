"""Folds the steps of rotary positions into one node."""

from __future__ import annotations

from collections.abc import Container

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import enclose
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.rotary import ROTARY, rotation_of


def fold_rotary(graph: Graph, on_host: Container[Node] = ()) -> None:
    """Let one node compute rotary positions, where nothing else reads the steps.

    Given:
        %a, %b = aten::chunk(%x, 2, -1)
        %p : Float(1, 4, 7, 8) = aten::mul.Tensor(%x, %cosines)
        %n : Float(1, 4, 7, 4) = aten::neg(%b)
        %t : Float(1, 4, 7, 8) = aten::cat([%n, %a], -1)
        %s : Float(1, 4, 7, 8) = aten::mul.Tensor(%t, %sines)
        %y : Float(1, 4, 7, 8) = aten::add.Tensor(%p, %s, 1)
    Result:
        %y : Float(1, 4, 7, 8) = mobopt::rotary()
          block0():
            ...

    Nodes of ``on_host`` stay as they are.
    """
    order = {node: number for number, node in enumerate(graph.block.nodes)}
    for node in graph.block.nodes:
        found = None if node in on_host else rotation_of(node)
        if found is not None and not any(part in on_host or why_unsupported(part) for part in found.nodes):
            enclose([*sorted(found.nodes[:-1], key=order.__getitem__), node], ROTARY)
