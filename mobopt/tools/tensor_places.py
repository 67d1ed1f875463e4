"""Where the tensors of an optimised file lie when a phone runs it: on the GPU or on the CPU.

PyTorch runs an operator on the GPU if one of its tensors lies there. So places follow from the transfers in the graph,
and from where the app puts the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ops.effects import holds_tensors
from mobopt.ops.records import Trait, has_trait
from mobopt.passes.transfer import FLAG

_PACKED = ("vulkan_prepack::", "metal_prepack::")
"""Namespaces whose operators take tensors from anywhere, and give tensors on the GPU."""


def gpu_values(program: Program, graph: Graph) -> set[Value]:
    """Values of a method that lie on the GPU, or are containers of tensors that do.

    An app moves the inputs to the GPU itself, unless the file says that its methods do.
    """
    found: set[Value] = set()
    if FLAG not in program.attributes:
        found.update(value for value in graph.inputs[1:] if holds_tensors(value.type))
    _follow(graph.block, found)
    return found


def runs_on_gpu(node: Node, on_gpu: set[Value]) -> bool:
    """Whether a node's kernel is the GPU's."""
    return node.op.startswith(_PACKED) or any(value in on_gpu for value in node.inputs)


def transfer_device(node: Node) -> str:
    """The device that a node moves a tensor to: ``cpu``, ``vulkan``, ``metal``; empty for other nodes."""
    if node.op != "aten::to":
        return ""
    for value in node.inputs[1:]:
        if value.is_constant and isinstance(value.constant, torch.device):
            return value.constant.type
    return ""


def _follow(block: Block, found: set[Value]) -> None:
    for node in block.nodes:
        if node.op == "prim::If":
            for branch in node.blocks:
                _follow(branch, found)
                _pass_on(branch.outputs, node.outputs, found)
        elif node.op == "prim::Loop":
            _follow_loop(node, found)
        elif has_trait(node.qualified_op, Trait.FILLS):
            if any(value in found for value in node.inputs[1:]):
                found.add(node.inputs[0])
        elif transfer_device(node) not in ("", "cpu") or (not transfer_device(node) and runs_on_gpu(node, found)):
            found.update(value for value in node.outputs if holds_tensors(value.type))


def _follow_loop(node: Node, found: set[Value]) -> None:
    """What a loop carries lies on the GPU if it does at the start or after a round."""
    body = node.blocks[0]
    carried = body.parameters[1:]
    _pass_on(node.inputs[2:], carried, found)
    before = -1
    while before != len(found):
        before = len(found)
        _follow(body, found)
        _pass_on(body.outputs[1:], carried, found)
    _pass_on(carried, node.outputs, found)


def _pass_on(sources: Iterable[Value], targets: Iterable[Value], found: set[Value]) -> None:
    found.update(target for source, target in zip(sources, targets, strict=True) if source in found)
