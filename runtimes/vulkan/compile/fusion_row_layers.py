"""Folds a small layer of a few rows into the layer that reads what it makes, so that both take one dispatch."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from mobopt.ir import Graph, Node
from mobopt.ir.rewriting import dissolve, enclose, made_only_for
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, Epilogue, folded_epilogue, parts_of
from mobopt.runtimes.vulkan.kernels.row_layers import most_joined_rows
from mobopt.runtimes.vulkan.lowerings.row_layers import ROW_LAYERS, RowLayer, rounding_of, row_layer_of


def fold_row_layers(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    are_halves: bool = False,
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Make one node of two layers of constants where the second one alone reads what the first one makes, and where one
    dispatch takes less time than two: of a squeeze-and-excitation, say.

    Given:
        %h : Float(1, 8) = mobopt::product()
          block0():
            %z : Float(1, 8) = aten::linear(%x, %w0, %b0)
            %r : Float(1, 8) = aten::relu(%z)
            -> (%r)
        %y : Float(1, 64) = aten::linear(%h, %w1, %b1)
    Result:
        %y : Float(1, 64) = mobopt::row_layers()
          block0():
            %z : Float(1, 8) = aten::linear(%x, %w0, %b0)
            %h : Float(1, 8) = aten::relu(%z)
            %0 : Float(1, 64) = aten::linear(%h, %w1, %b1)
            -> (%0)

    It runs after all that is folded into products. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay
    as they are. ``are_halves`` says whether floats may lie as halves.
    """
    for node in list(graph.block.nodes):
        second = _layer(node, on_host, is_apart)
        if second is None:
            continue
        maker = made_only_for(second.layer.source, second.parts[0])
        first = None if maker is None else _layer(maker, on_host, is_apart)
        if maker is not None and first is not None and _pays(first, second, device, are_halves):
            rounding = _rounding_before(first, on_host, is_apart)
            parts = [part for whole in (maker, node) for part in (dissolve(whole) if whole.op == PRODUCT else [whole])]
            enclose([*rounding, *parts], ROW_LAYERS)


class _Folded(NamedTuple):
    """A layer, and what was folded into its epilogue."""

    layer: RowLayer
    parts: list[Node]
    epilogue: Epilogue


def _layer(node: Node, on_host: Container[Node], is_apart: Callable[[Node], bool]) -> _Folded | None:
    """The layer that a node is with what was folded into it, if nothing else is: neither scales nor norms."""
    parts = parts_of(node)
    if node.blocks and (node.op != PRODUCT or parts != list(node.blocks[0].nodes)):
        return None
    if node in on_host or any(is_apart(part) for part in (node, *parts)):
        return None
    layer, epilogue = row_layer_of(parts[0]), None
    if layer is not None:
        epilogue = folded_epilogue(parts)
    return None if layer is None or epilogue is None or epilogue.is_gated else _Folded(layer, parts, epilogue)


def _rounding_before(layer: _Folded, on_host: Container[Node], is_apart: Callable[[Node], bool]) -> list[Node]:
    """What rounds a layer's input, if nothing else reads that."""
    maker = made_only_for(layer.layer.source, layer.parts[0])
    if maker is None or maker in on_host or is_apart(maker) or rounding_of(maker) is None:
        return []
    return [maker]


def _pays(first: _Folded, second: _Folded, device: DeviceInfo, are_halves: bool) -> bool:
    if first.epilogue.residual is not None:
        return False
    (inner, middle), columns = first.layer.matrix.shape, second.layer.matrix.shape[1]
    most = most_joined_rows(device, inner, middle, columns, are_halves)
    # Of sizes it is asked last, as all that is asked of open ones is a condition on a recorded plan.
    return most > 0 and 0 < first.layer.rows <= most
