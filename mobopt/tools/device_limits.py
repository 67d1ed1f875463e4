"""Tensors and packed weights of an optimised file that a device's GPU can't hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Program, Value, describe
from mobopt.ir.facts import facts_of_constant
from mobopt.ops.targets.device_profiles import DeviceProfile, Extent, tensor_extent, weight_extent
from mobopt.ops.targets.table import has_flat_weights
from mobopt.ops.unpacked_calls import unpacked_call
from mobopt.tools.tensor_places import gpu_values

_ADVICE = {
    ("weight", True): "divide the layer into several along its input channels, and add what they give",
    ("weight", False): "divide the layer into several along its output channels, and concatenate what they give",
    ("tensor", True): "give it fewer channels, or a smaller batch",
    ("tensor", False): "make the input smaller, or cut it into tiles",
}
"""What helps, for weights by whether the input channels are too many, for tensors by whether the channels are."""


@dataclass(frozen=True)
class LimitFinding:
    """Something that is too large for a device."""

    node: str
    source: str
    subject: str
    """What it is: ``result float32[1, 3, 4000, 3000]``, ``weight float32[64, 2048, 3, 3]``."""
    extent: Extent
    """Of the image that it needs."""
    problem: str
    help: str

    def __str__(self) -> str:
        place = f" at {self.source}" if self.source else ""
        return f"{self.node}{place}: its {self.subject} {self.problem}; {self.help}"


def over_limits(
    program: Program, profile: DeviceProfile, runtime: str, only_weights: bool = False
) -> list[LimitFinding]:
    """What of an optimised Program a device can't hold.

    Args:
        program: the file.
        profile: the device.
        runtime: release of PyTorch, which packs weights in its own way.
        only_weights: whether tensors are left out.
    """
    found: list[LimitFinding] = []
    for graph in program.methods.values():
        on_gpu = set() if only_weights else gpu_values(program, graph)
        for value in graph.inputs[1:]:
            if value in on_gpu:
                found += _tensor(f"%{value.name}", "", "input", value, profile)
        for node in graph.walk():
            for value in node.outputs:
                if value in on_gpu:
                    found += _tensor(describe(node), node.source, "result", value, profile)
            if profile.backend == "vulkan":
                found += _weight(node, program, profile, runtime)
    return found


def _tensor(node: str, source: str, kind: str, value: Value, profile: DeviceProfile) -> Iterator[LimitFinding]:
    sizes = value.facts.largest_sizes
    extent = None if sizes is None else tensor_extent(sizes)
    if extent is not None and (problem := profile.misfit(extent)):
        has_many_channels = extent[2] > max(extent[:2])
        yield LimitFinding(node, source, f"{kind} {value.facts}", extent, problem, _ADVICE["tensor", has_many_channels])


def _weight(node: Node, program: Program, profile: DeviceProfile, runtime: str) -> Iterator[LimitFinding]:
    call = unpacked_call(node, program.attributes)
    weight = None if call is None else call[1].get("weight")
    if call is None or not isinstance(weight, torch.Tensor):
        return
    operator, arguments = call
    sizes, is_transposed = tuple(weight.shape), bool(arguments.get("transposed"))
    extent = weight_extent(operator, sizes, arguments.get("groups", 1), is_transposed, runtime)
    is_flat = operator != "aten::linear" and has_flat_weights(runtime)
    if extent is not None and (problem := profile.misfit(extent, is_flat)):
        width, height, _ = extent
        is_input = (height > width) if operator == "aten::linear" else (width > height)
        subject = f"weight {facts_of_constant(weight)}"
        yield LimitFinding(describe(node), node.source, subject, extent, problem, _ADVICE["weight", is_input])
