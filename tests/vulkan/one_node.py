"""Graphs of one node, some of whose tensors are constants: decomposed, run, and compared with torch."""

from __future__ import annotations

from typing import Any

import torch
from harness import assert_close, run_calls, torch_operator, with_defaults

from mobopt.ir import Graph, Node, Value, verify_graph
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.segment import Returned, Segment
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.placement import integer_class
from mobopt.runtimes.vulkan.decompositions.registry import load_decompositions
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()
load_decompositions()


class Constant:
    """A tensor of a call whose elements are known when it is lowered."""

    def __init__(self, elements: torch.Tensor) -> None:
        self.elements = elements


def graph_of(
    op: str, *args: Any, returned: int = 1, **kwargs: Any
) -> tuple[Graph, list[torch.Tensor], list[torch.Tensor]]:
    """A graph of one node, its inputs, and what torch makes of them."""
    graph, inputs = Graph(), []

    def value_of(item: torch.Tensor | Constant) -> Value:
        if isinstance(item, Constant):
            return Value.of_elements(item.elements)
        value = Value.of_tensor(item.dtype, tuple(item.shape), f"x{len(inputs)}")
        graph.block.add_parameter(value)
        inputs.append(item)
        return value

    plain = map_leaves(tuple(args), Constant, lambda item: item.elements)
    function = torch_operator(op) if op.startswith("aten::") else kernel(op)
    expected = list(leaves_of(function(*plain, **kwargs), torch.Tensor))
    given = map_leaves(with_defaults(op, args, kwargs), (torch.Tensor, Constant), value_of)
    outputs = [Value.of_tensor(tensor.dtype, tuple(tensor.shape)) for tensor in expected]
    graph.block.append(Node.call(op, given, outputs))
    graph.block.returns.set_inputs(outputs[:returned])
    return graph, inputs, expected[:returned]


def check(device: Any, op: str, *args: Any, returned: int = 1, relative: float = 1e-5, **kwargs: Any) -> Graph:
    """Decompose a call, and compare what the device computes with torch."""
    graph, inputs, expected = graph_of(op, *args, returned=returned, **kwargs)
    decompose(graph)
    verify_graph(graph)
    assert [why_unsupported(node) for node in graph.block.nodes] == [None] * len(graph.block.nodes)
    computed, nodes = [value for value in graph.outputs if value.elements is None], list(graph.block.nodes)
    if device is None:
        found = iter(HostFunction(nodes, graph.inputs, computed)(*inputs))
    elif any(tensor.dtype == torch.int64 for tensor in inputs):  # how wide each is, all of them together tell
        found = iter(run_built(device, graph, inputs, computed))
    else:
        found = iter(run_calls(device, nodes, list(zip(graph.inputs, inputs, strict=True)), computed))
    for value, tensor in zip(graph.outputs, expected, strict=True):
        result = next(found) if value.elements is None else value.elements
        assert_close(result, tensor, relative, f"{op}{[getattr(arg, 'shape', arg) for arg in args]}")
    return graph


def run_built(device: Device, graph: Graph, inputs: list[torch.Tensor], wanted: list[Value]) -> list[torch.Tensor]:
    """What a graph computes on a device, and nothing of it on the host, as calls of a model do."""
    given = list(zip(graph.inputs, inputs, strict=True))
    integers = {value: integer_class(tensor) for value, tensor in given if tensor.dtype == torch.int64}
    segment = Segment(graph, [Returned(number) for number in range(len(graph.outputs))])
    built = build_stream(segment, device.info, ConstantStore(), False, integers)
    executable = Executable(device, built.stream)
    try:
        found = dict(zip(built.outputs, executable.run([inputs[number] for number in built.inputs]), strict=True))
    finally:
        executable.close()
    return [found[value] for value in wanted]
