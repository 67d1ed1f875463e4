"""Joins the last convolution of a residual block with the one of its shortcut."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.convolution_parameters import Convolution, convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, folded_epilogue, parts_of
from mobopt.runtimes.vulkan.kernels.fragment_kernels import takes_fragments
from mobopt.runtimes.vulkan.kernels.matrix_kernels import splits
from mobopt.runtimes.vulkan.lowerings.convolution import is_expansion
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.summed_convolutions import SUMMED_CONVOLUTIONS, can_be_shortcut

NO_SUMMED_CONVOLUTIONS = "no-summed-convolutions"
"""The switch by which convolutions whose results are added have a dispatch each."""


def fold_shortcuts(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    has_units: bool = False,
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Make one node of a convolution that adds the result of another, which nothing else reads, if one of the two is
    of single pixels, and the device has kernels that compute both in one.

    Given:
        %s : Float(1, 16, 5, 5) = aten::conv2d(%x, %v, None, [2, 2], [0, 0], [1, 1], 1)
        %y : Float(1, 16, 5, 5) = mobopt::product()
          block0():
            %c : Float(1, 16, 5, 5) = aten::conv2d(%h, %w, None, [1, 1], [1, 1], [1, 1], 1)
            %z : Float(1, 16, 5, 5) = aten::add.Tensor(%c, %s, 1)
            -> (%z)
    Result:
        %y : Float(1, 16, 5, 5) = mobopt::summed_convolutions()
          block0():
            ...

    It runs after epilogues are folded. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are;
    ``has_units`` says that halves are multiplied by matrix units.
    """
    if NO_SUMMED_CONVOLUTIONS in device.switches or not takes_fragments(device) or not (has_units or splits(device)):
        return
    for node in list(graph.block.nodes):
        other = None if node in on_host or node.op != PRODUCT else _added_to(node)
        if other is None or other in on_host or any(map(is_apart, (other, *parts_of(node)))):
            continue
        enclose([other, *dissolve(node)], SUMMED_CONVOLUTIONS)


def _added_to(node: Node) -> Node | None:
    """The convolution whose result a convolution adds to its own, if both could be one product."""
    parts = parts_of(node)
    if len(parts) != len(list(node.blocks[0].nodes)) or not _is_plain(parts[0]):
        return None
    epilogue = folded_epilogue(parts)
    if epilogue is None or epilogue.residual is None or epilogue.rounding is not None:
        return None
    if not epilogue.before.is_identity:
        return None
    reader = next(part for part in parts if epilogue.residual in part.inputs)
    other = made_only_for(epilogue.residual, reader)
    if other is None or other.block is not node.block or not _is_plain(other):
        return None
    own = folded_epilogue([other])
    if own is None or not own.is_identity or other.output.sizes != parts[0].output.sizes:
        return None
    both = convolution_of(other), convolution_of(parts[0])
    return other if can_be_shortcut(*both) and all(map(_has_whole_runs, both)) else None


def _is_plain(node: Node) -> bool:
    return is_expansion(node) and why_unsupported(node) is None and not convolution_of(node).transposed


def _has_whole_runs(convolution: Convolution) -> bool:
    """Whether its channels are read by eight."""
    return convolution.group_inputs % 8 == 0 and isinstance(convolution.filters, torch.Tensor)
