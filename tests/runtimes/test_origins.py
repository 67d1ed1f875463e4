"""Every dispatch, view and call of the host knows the nodes of the model that it computes, and together they are all of
them, whatever was rewritten and fused on the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "vulkan")]

from device_infos import device_info
from nets import NETS

from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.ir import Graph, ModelNode, Node, Program, Value
from mobopt.ops.effects import reads_metadata
from mobopt.optimizer import optimize
from mobopt.options import Settings
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostCall, Stream
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

_NO_WORK = frozenset({"aten::contiguous", "aten::zeros_like"})
"""Operators that look at no element, or give back the tensor itself, as those that read metadata do."""


def live_nodes(program: Program) -> set[ModelNode]:
    """The nodes of a model without branches that compute with elements of its inputs, on the way to its results."""
    graph = program.methods["forward"]
    nodes = list(graph.walk())
    assert not any(node.blocks for node in nodes), "a traced net without branches is asked for"
    of_elements: set[Value] = set(graph.inputs[1:])
    for node in nodes:
        if of_elements.intersection(node.inputs) and _works(node):
            of_elements.update(node.outputs)
    needed = set(graph.outputs)
    found: set[ModelNode] = set()
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            if of_elements.intersection(node.outputs) and _works(node) and not node.op.startswith("prim::"):
                found.update(node.origin.nodes)
    return found


def _works(node: Node) -> bool:
    return node.op not in _NO_WORK and not reads_metadata(node)


def built_of(name: str, settings: Settings) -> tuple[Program, Graph, Stream]:
    net = NETS[name]
    inputs = net.inputs()
    with torch.no_grad():
        traced = torch.jit.trace(net.module(), tuple(inputs), check_trace=False)
    optimized = optimize(ScriptModuleSource(traced), settings, inputs)
    segment = specialize(optimized.program, "forward", inputs)
    stream = build_stream(segment, device_info("discrete"), ConstantStore()).stream
    return optimized.original, segment.graph, stream


@pytest.mark.parametrize("settings", [Settings("vulkan"), Settings("vulkan", runtime="mobopt")], ids=["phone", "own"])
@pytest.mark.parametrize("name", ["GhostNet", "YOLOv5", "MobileViT", "BERT", "PointNet", "StyleGAN"])
def test_dispatches_know_all_nodes_of_the_model(name: str, settings: Settings) -> None:
    original, lowered, stream = built_of(name, settings)
    operations = [item for item in stream.operations if isinstance(item, (Dispatch, HostCall))]
    assert operations and all(item.source.nodes and item.source for item in operations)
    of_calls = {node.origin for node in lowered.block.nodes}
    assert of_calls.issuperset(item.source for item in operations if isinstance(item, Dispatch))
    covered = {known for node in lowered.block.nodes for known in node.origin.nodes}
    missing = live_nodes(original) - covered
    assert not missing


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(x))
        x = torch.relu(x)
        x = torch.tanh(x)
        return x * 2 - 1


@pytest.mark.parametrize(
    "settings", [Settings("vulkan", clear_inputs=False), Settings("vulkan", runtime="mobopt")], ids=["phone", "own"]
)
def test_a_fused_dispatch_names_all_lines(settings: Settings) -> None:
    x = torch.rand(1, 3, 9, 7)
    optimized = optimize(ScriptModuleSource(torch.jit.script(Block().eval())), settings, [x])
    segment = specialize(optimized.program, "forward", [x])
    operations = build_stream(segment, device_info("discrete"), ConstantStore()).stream.operations
    first, second = dict.fromkeys(item.source for item in operations if isinstance(item, Dispatch))
    names = ["aten::conv2d", "aten::batch_norm", "aten::relu", "aten::tanh"]
    assert [node.text.partition(" ")[0] for node in first.nodes] == names
    files = ["conv.py", "functional.py", "test_origins.py", "test_origins.py"]
    assert [line.partition(":")[0] for line in first.lines] == files
    assert [node.text.partition(" ")[0] for node in second.nodes] == ["aten::mul", "aten::sub"]
    assert str(first) == ", ".join(first.lines) and len(second.lines) == 1
