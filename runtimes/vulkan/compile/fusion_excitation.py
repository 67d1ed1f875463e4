"""Joins a depthwise convolution with the squeeze-and-excitation of what it makes, so that nobody reads the image to
take its mean."""

from __future__ import annotations

from collections.abc import Callable, Container

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.fusion_depthwise import is_mean_of_pixels, reader_in
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.convolution_parameters import convolution_of
from mobopt.runtimes.vulkan.kernels.expanded_depthwise import most_pixels_of_tiles
from mobopt.runtimes.vulkan.kernels.row_layers import adds_lines
from mobopt.runtimes.vulkan.lowerings.expanded_depthwise import EXCITED_DEPTHWISE, EXPANDED_DEPTHWISE
from mobopt.runtimes.vulkan.lowerings.row_layers import ROW_LAYERS, row_layer_of


def fold_excitations(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Make one node of a depthwise convolution with its expansion, the mean of each of its images, and the two layers
    that read it, where nothing else reads the mean, nor the image before the layers' end.

    Given:
        %y : Float(1, 8, 5, 5) = mobopt::expanded_depthwise()
          block0():
            ...
        %m : Float(1, 8, 1, 1) = aten::adaptive_avg_pool2d(%y, [1, 1])
        %g : Float(1, 8, 1, 1) = mobopt::row_layers()
          block0():
            ...
    Result:
        %y : Float(1, 8, 5, 5), %g : Float(1, 8, 1, 1) = mobopt::excited_depthwise()
          block0():
            ...

    It runs after :func:`fold_expansions`, which may have made the mean a part of the first, and after
    :func:`fold_row_layers`. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as they are.
    """
    for layers in list(graph.block.nodes):
        found = _squeezed_by(layers) if layers.op == ROW_LAYERS else None
        if found is None:
            continue
        depthwise, mean = found
        if any(node in on_host for node in (depthwise, mean, layers)) or is_apart(mean):
            continue
        if not _can(device, depthwise, layers):
            continue
        nodes = [part for whole in (depthwise, mean, layers) for part in (dissolve(whole) if whole.blocks else [whole])]
        image = mean.args[0].producer
        enclose(list(dict.fromkeys(nodes)), EXCITED_DEPTHWISE, ends=[image, nodes[-1]])


def _squeezed_by(layers: Node) -> tuple[Node, Node] | None:
    """The depthwise convolution whose mean layers read, and what takes the mean, inside of it or by itself."""
    first = next(iter(layers.blocks[0].nodes))
    layer = row_layer_of(first)
    source = first.args[0] if layer is None else layer.source  # a rounding comes before a layer
    maker = made_only_for(source, first)
    if maker is None:
        return None
    depthwise, mean = _both(maker)
    if depthwise is None or depthwise.op != EXPANDED_DEPTHWISE or mean is None:
        return None
    readers = [reader_in(depthwise.block, user) for user, _ in depthwise.outputs[0].uses]
    is_first = all(reader is mean or layers.is_before(reader) for reader in readers)
    return (depthwise, mean) if is_first and is_mean_of_pixels(mean, mean.args[0]) else None


def _both(maker: Node) -> tuple[Node | None, Node | None]:
    """What makes an image without a mean yet, and what may take one; or the node that does both, and its last part."""
    if maker.op == EXPANDED_DEPTHWISE:
        return maker, maker.blocks[0].outputs[-1].producer
    image = next(iter(maker.inputs), None)
    depthwise = None if image is None else image.producer
    return depthwise if depthwise is not None and len(depthwise.outputs) == 1 else None, maker


def _can(device: DeviceInfo, depthwise: Node, layers: Node) -> bool:
    """Whether there are kernels; of sizes it asks no more than bounds."""
    found = [layer for part in layers.blocks[0].nodes if (layer := row_layer_of(part)) is not None]
    (inner, middle), columns = found[0].matrix.shape, found[1].matrix.shape[1]
    convolutions = [part for part in depthwise.blocks[0].nodes if has_trait(part.qualified_op, Trait.CONVOLUTION)]
    most = most_pixels_of_tiles(device, convolution_of(convolutions[1]))
    height, width = depthwise.outputs[0].sizes[-2:]
    return adds_lines(device, inner, middle, columns) and height * width <= most
