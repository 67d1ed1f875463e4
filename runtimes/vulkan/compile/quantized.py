"""Weights of few bits in a straight line: products read them as they are, and of a table only the rows that are chosen
become floats."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.nests import map_leaves
from mobopt.ir.rewriting import destroy_unread, enclose, replace_call
from mobopt.ir.types import TensorType
from mobopt.ops.quantized import DEQUANTIZE, Quantized
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT
from mobopt.runtimes.vulkan.kernels.matrix_kernels import splits
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings import convolution, matmul
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported

_MOST_EXPANDED = 1 << 20
"""Elements of a weight of few bits that becomes floats ahead of time whatever room there is; larger ones do so in each
call."""
_MEMORY_SHARE = 64
"""The part of a device's memory that floats of a model's weights may take, where integers would do."""
_MANY_ROWS = 32
"""From which on a linear layer takes its time to multiply, not to read its weight."""
_TAKES = {
    convolution.convolution: convolution.takes_quantized,
    matmul.linear: matmul.takes_quantized,
}
"""Whether a call reads its weight, a constant of few bits, as it is; by the function that lowers it."""


def takes_quantized(node: Node) -> bool:
    """Whether a node is a product that reads its weight, a constant of few bits, as it is."""
    lowering = lowering_of(node.qualified_op)
    takes = None if lowering is None else _TAKES.get(lowering.function)
    return takes is not None and why_unsupported(node) is None and takes(node)


def is_never_made(value: Value) -> bool:
    """Whether a tensor is a weight of few bits that nothing reads as floats."""
    if Quantized.of(value) is None:
        return False
    return all(takes_quantized(user) and _weight_of(user) is value for user, _ in value.uses)


def fold_weights(graph: Graph, on_host: Container[Node] = ()) -> None:
    """Join each product with what makes floats of its weight, so that they are never made.

    Given:
        %w : Float(8, 32) = mobopt::dequantize(%integers, %scales, None, [1, 32], 8, 32)
        %y : Float(4, 8) = aten::linear(%x, %w, None)
    Result:
        %y : Float(4, 8) = mobopt::product()
          block0():
            %w : Float(8, 32) = mobopt::dequantize(%integers, %scales, None, [1, 32], 8, 32)
            %z : Float(4, 8) = aten::linear(%x, %w, None)
            -> (%z)

    Nodes of ``on_host`` stay as they are. A weight that is read several times is taken once for each.
    """
    for node in graph.block.nodes:
        if node in on_host or not takes_quantized(node):
            continue
        weight = _weight_of(node)
        maker = weight.producer
        assert maker is not None
        if len(weight.uses) > 1:
            maker = _twin(maker)
            maker.insert_before(node)
            for place in [place for user, place in weight.uses if user is node]:
                node.replace_input(place, maker.output)
        else:
            maker.remove().insert_before(node)
        enclose([maker, node], PRODUCT)


def _weight_of(node: Node) -> Value:
    weight: Value = node["weight"]
    return weight


def _twin(node: Node) -> Node:
    """The same call once more."""
    return Node.call(node.qualified_op, node.args, [Value("", value.type) for value in node.outputs], node.origin)


def expand_weights(graph: Graph, device: DeviceInfo, constants: ConstantStore) -> None:
    """Make floats of constants of few bits ahead of time: of small ones that no kernel reads as they are, as weights of
    convolutions and what is added to an activation may be, and, if the device has room for them, of all whose readers
    are faster by floats.

    Given:
        %w : Float(8, 1, 3, 3) = mobopt::dequantize(%integers, %scales, None, [1, 1, 3, 3], 8, 3)
        %y : Float(1, 8, 5, 5) = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 8)
    Result:
        %y : Float(1, 8, 5, 5) = aten::conv2d(%x, %floats, None, [1, 1], [0, 0], [1, 1], 8)

    Of floats there are more kernels for convolutions, and matrix units multiply many rows by them.
    """
    found = {node: weight for node in graph.block.nodes if (weight := _better_as_floats(node, device)) is not None}
    nbytes = sum(node.output.numel * node.output.dtype.itemsize for node in found)
    has_room = _MEMORY_SHARE * nbytes <= device.memory_bytes
    for node, weight in found.items():
        is_read = all(takes_quantized(user) for user, _ in node.output.uses)
        if has_room or (node.output.numel <= _MOST_EXPANDED and not is_read):
            floats = constants.derived(weight.sources, ("floats",), weight.floats)
            node.output.replace_all_uses_with(Value.of_elements(floats))
            destroy_unread(node)


def _better_as_floats(node: Node, device: DeviceInfo) -> Quantized | None:
    """What a node makes floats of, if nothing reads these but what is faster by floats."""
    weight = Quantized.of(node.output) if node.qualified_op == DEQUANTIZE else None
    if weight is None or not node.output.uses:
        return None
    readers = {user for user, _ in node.output.uses}
    return weight if all(_is_faster_by_floats(user, node.output, device) for user in readers) else None


def _is_faster_by_floats(node: Node, weight: Value, device: DeviceInfo) -> bool:
    if has_trait(node.qualified_op, Trait.CONVOLUTION):
        return True
    if node.qualified_op == "aten::embedding":
        return False
    is_layer = node.qualified_op == "aten::linear" and node["weight"] is weight and node["input"] is not weight
    if is_layer and splits(device) and math.prod(node["input"].sizes[:-1]) >= _MANY_ROWS:
        return True
    return not takes_quantized(node)


def choose_rows_first(graph: Graph) -> None:
    """Let embeddings choose rows of the integers, so that the table never becomes floats.

    Given:
        %w : Float(100, 64) = mobopt::dequantize(%integers, %scales, None, [1, 64], 8, 64)
        %y : Float(3, 64) = aten::embedding(%w, %indices, -1, False, False)
    Result:
        %i : Char(3, 64) = aten::embedding(%integers, %indices, -1, False, False)
        %s : Float(3, 1) = aten::embedding(%scales, %indices, -1, False, False)
        %y : Float(3, 64) = mobopt::dequantize(%i, %s, None, [1, 64], 8, 64)
    """
    for node in graph.block.nodes:
        if node.qualified_op == "aten::embedding":
            _choose_rows(node)


def _of_rank(alike: torch.Tensor | None, rank: int) -> Value | None:
    """What all rows have in common, beside some of another rank."""
    return None if alike is None else Value.of_elements(alike.reshape(*[1] * (rank - 1), -1))


def _choose_rows(node: Node) -> None:
    table = Quantized.of(node["weight"])
    if table is None or not (table.block_size[0] == 1 or table.scales.shape[0] == 1):
        return
    maker = node["weight"].producer
    places = node["indices"].sizes

    def rows_of(part: Any) -> Any:
        chosen = Value("", TensorType(part.dtype, (*places, part.sizes[-1])))
        chosen.facts = part.facts
        call = Node.call("aten::embedding", (part, *node.args[1:]), [chosen], node.origin)
        call.insert_before(node)
        return chosen

    if table.block_size[0] == 1:
        chosen, blocks = map_leaves(maker.args[:3], Value, rows_of), [1] * len(places)
    else:
        alike = [_of_rank(part, len(places) + 1) for part in (table.scales, table.zero_points)]
        chosen, blocks = (rows_of(maker.args[0]), *alike), [max(size, 1) for size in places]
    replace_call(node, DEQUANTIZE, (*chosen, [*blocks, table.block_size[1]], *maker.args[4:]))
    if not maker.output.is_used:
        maker.destroy()
