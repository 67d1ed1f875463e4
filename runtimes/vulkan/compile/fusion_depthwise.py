"""Folds the convolution that a depthwise one reads into it: the first half of an inverted residual in one dispatch."""

from __future__ import annotations

from collections.abc import Callable, Container

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, folded_epilogue, parts_of
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import most_expanded_pixels, most_pixels_of_means
from mobopt.runtimes.vulkan.lowerings.convolution import is_depthwise, is_expansion
from mobopt.runtimes.vulkan.lowerings.expanded_depthwise import EXPANDED_DEPTHWISE
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported


def fold_expansions(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Let each depthwise convolution compute what it reads, where that is a convolution that nothing else reads, and
    the mean of what it makes.

    Given:
        %e : Float(1, 8, 5, 5) = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 1)
        %y : Float(1, 8, 5, 5) = aten::conv2d(%e, %k, None, [1, 1], [1, 1], [1, 1], 8)
        %m : Float(1, 8, 1, 1) = aten::adaptive_avg_pool2d(%y, [1, 1])
    Result:
        %y : Float(1, 8, 5, 5), %m : Float(1, 8, 1, 1) = mobopt::expanded_depthwise()
          block0():
            ...

    It runs after epilogues are folded. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are.
    """
    for node in list(graph.block.nodes):
        if node.block is None or node in on_host:
            continue
        stage = _stage_of(node, is_depthwise)
        maker = None if stage is None else made_only_for(stage[0].args[0], stage[0])
        before = None if maker is None or maker in on_host else _stage_of(maker, is_expansion)
        if stage is None or maker is None or before is None or any(map(is_apart, (*before, *stage))):
            continue
        if _pays(device, before, stage):
            most = most_pixels_of_means(device, convolution_of(stage[0]))
            mean = [found for found in _mean_of(node, before[-1].output, on_host, most) if not is_apart(found)]
            parts = [*_opened(maker), *_opened(node), *mean]
            enclose(parts, EXPANDED_DEPTHWISE, ends=[stage[-1], *mean])


def _opened(node: Node) -> list[Node]:
    return dissolve(node) if node.op == PRODUCT else [node]


def _stage_of(node: Node, is_wanted: Callable[[Node], bool]) -> list[Node] | None:
    """A convolution and what follows it in its epilogue; None if it is another node, or has more: a residual, what is
    done to its input or to its weight."""
    parts = parts_of(node)
    is_alone = node.op != PRODUCT or len(parts) == len(list(node.blocks[0].nodes))
    if not is_alone or not is_wanted(parts[0]) or why_unsupported(parts[0]) is not None:
        return None
    epilogue = folded_epilogue(parts)
    return parts if epilogue is not None and epilogue.residual is None else None


def _pays(device: DeviceInfo, before: list[Node], stage: list[Node]) -> bool:
    """Whether one dispatch takes less time than two. Of sizes it asks no more than a bound."""
    batch, _, height, width = before[-1].output.sizes
    most = most_expanded_pixels(device, convolution_of(before[0]), convolution_of(stage[0]))
    return most > 0 and batch * height * width <= most


def _mean_of(node: Node, expanded: Value, on_host: Container[Node], most_pixels: int) -> list[Node]:
    """What takes the mean of each image that a node makes, before anything else reads it; none if there is none, or a
    workgroup can't have all of an expanded image."""
    block = node.block
    readers = [reader_in(block, user) for user, _ in node.output.uses]
    mean = next((user for user in readers if user not in on_host and is_mean_of_pixels(user, node.output)), None)
    if mean is None or any(user is not mean and not mean.is_before(user) for user in readers):
        return []
    height, width = expanded.sizes[-2:]
    return [mean] if height * width <= most_pixels else []


def reader_in(block: Block | None, node: Node) -> Node:
    """A node of a block, or the one of the block whose body it is in."""
    if node.block is block or node.block is None or node.block.node is None:
        return node
    return node.block.node


def is_mean_of_pixels(node: Node, image: Value) -> bool:
    """Whether a node takes the mean of each channel of an image, and keeps its dimensions."""
    if node.op == "aten::adaptive_avg_pool2d":
        return node.args[0] is image and list(node.args[1]) == [1, 1]
    if node.qualified_op != "aten::mean.dim" or node.args[0] is not image or node["dim"] is None:
        return False
    return sorted(dim % 4 for dim in node["dim"]) == [2, 3] and node["keepdim"] and node["dtype"] is None
