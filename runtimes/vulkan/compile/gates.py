"""Linear layers that make gates and what passes them: vec4s of their columns take turns, so that whatever computes them
has both at one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Graph, InsertionPoint, Node, Value
from mobopt.ir.origin import Origin
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead
from mobopt.runtimes.vulkan.compile.layers import Layer, insert_layer, layer_of
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore

_VECTOR = 4


@dataclass(frozen=True)
class _Half:
    """All that a layer makes, or a half of its columns, which one node reads and nothing else."""

    value: Value
    layer: Layer
    place: int | None
    """Which half, 0 or 1; None: the layer makes nothing else."""


@dataclass(frozen=True)
class _Gating:
    """``act(gate) * passing``."""

    last: Node
    """What makes the product."""
    gate: _Half
    passing: _Half
    activation: tuple[str, Sequence[Any], Origin]
    """Operator, arguments after the first, and what they come from."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """One that is cut in halves, or two."""
        return (self.gate.layer,) if self.gate.layer is self.passing.layer else (self.gate.layer, self.passing.layer)

    @property
    def fits(self) -> bool:
        """Whether halves are what they have to be: of one layer both of them, or all of two that can be one."""
        gate, passing = self.gate, self.passing
        if gate.place is not None and passing.place is not None:
            users = [user for user, _ in gate.layer.node.output.uses]
            read = {value for user in users for value in user.outputs}
            is_all = all(user.outputs for user in users) and read == {gate.value, passing.value}
            return gate.layer is passing.layer and gate.place != passing.place and is_all
        is_whole = gate.place is None and passing.place is None
        return is_whole and gate.layer is not passing.layer and gate.layer.kind == passing.layer.kind


def interleave_gates(graph: Graph, constants: ConstantStore) -> None:
    """Make one linear layer of those whose results are gates and what passes them, vec4s of which take turns.

    Given:
        %g : Float(1, 5, 16) = aten::linear(%x, %w0, %b0)
        %u : Float(1, 5, 16) = aten::linear(%x, %w1, %b1)
        %s : Float(1, 5, 16) = aten::silu(%g)
        %y : Float(1, 5, 16) = aten::mul.Tensor(%s, %u)
    Result:
        %z : Float(1, 5, 32) = aten::linear(%x, %w, %b)
        %v : Float(20, 2, 4) = aten::reshape(%z, [-1, 2, 4])
        %g : Float(20, 4) = aten::select.int(%v, 1, 0)
        %u : Float(20, 4) = aten::select.int(%v, 1, 1)
        %s : Float(20, 4) = aten::silu(%g)
        %m : Float(20, 4) = aten::mul.Tensor(%s, %u)
        %y : Float(1, 5, 16) = aten::reshape(%m, [1, 5, 16])

    One layer that is cut in halves is taken as well. All stays as it is where more layers are of the same input, which
    become one (``projections.py``), and where something else reads what the layers make.
    """
    layers = {node: layer for node in graph.block.nodes if (layer := layer_of(node)) is not None}
    counts = Counter(layer.kind for layer in layers.values())
    for node in list(graph.block.nodes):
        found = _gating_of(node, layers)
        if found is not None and counts[found.gate.layer.kind] == len(found.layers):
            _interleave(graph, found, constants)


def _gating_of(node: Node, layers: Mapping[Node, Layer]) -> _Gating | None:
    """What a product, or a gated linear unit, does with gates that layers of constants make."""
    if node.qualified_op == "aten::glu":
        found = _glu_of(node, layers)
        return found if found is not None and _has_whole_vectors(found) else None
    if node.qualified_op != "aten::mul.Tensor" or not all(isinstance(value, Value) for value in node.args):
        return None
    for activated, passing in (node.args, node.args[::-1]):
        step = made_only_for(activated, node)
        if step is None or activation_of(step) is None:
            continue
        halves = _half_of(step.args[0], step, layers), _half_of(passing, node, layers)
        if halves[0] is None or halves[1] is None:
            continue
        found = _Gating(node, halves[0], halves[1], (step.qualified_op, step.args[1:], step.origin))
        if found.fits and _has_whole_vectors(found):
            return found
    return None


def _glu_of(node: Node, layers: Mapping[Node, Layer]) -> _Gating | None:
    """Halves are rounded once there, so it is taken in float32."""
    maker = made_only_for(node.args[0], node)
    layer = None if maker is None else layers.get(maker)
    if layer is None or node.output.dtype != torch.float32 or node["dim"] not in (-1, node.output.rank - 1):
        return None
    return _Gating(
        node, _Half(node.args[0], layer, 1), _Half(node.args[0], layer, 0), ("aten::sigmoid", (), node.origin)
    )


def _has_whole_vectors(found: _Gating) -> bool:
    """Whether gates are vec4s, as many as there are results, and of the same dtype."""
    output, made = found.last.output, found.gate.layer.node.output
    count = len(found.layers)
    sizes = (*made.sizes[:-1], made.sizes[-1] * count // 2)
    return output.sizes == sizes and sizes[-1] % _VECTOR == 0 and output.dtype == made.dtype


def _half_of(value: Value, reader: Node, layers: Mapping[Node, Layer]) -> _Half | None:
    """What a value that only ``reader`` reads is of a layer of constants."""
    maker = made_only_for(value, reader)
    if maker is None or not maker.inputs:
        return None
    if maker in layers:
        return _Half(value, layers[maker], None)
    whole = maker.inputs[0]
    place = _place_in(whole, value, maker)
    layer = None if place is None or whole.producer is None else layers.get(whole.producer)
    return None if layer is None else _Half(value, layer, place)


def _place_in(whole: Value, value: Value, maker: Node) -> int | None:
    """Which half of the last dimension a node makes of a tensor; None if it makes something else."""
    if whole.rank == 0 or (*whole.sizes[:-1], whole.sizes[-1]) != (*value.sizes[:-1], 2 * value.sizes[-1]):
        return None
    if len(maker.outputs) == 2:  # of chunk or split, whose sizes tell that they are halves
        is_cut = maker.qualified_op.startswith(("aten::chunk", "aten::split"))
        return maker.outputs.index(value) if is_cut else None
    if maker.qualified_op != "aten::slice.Tensor" or maker["step"] != 1 or maker["dim"] not in (-1, whole.rank - 1):
        return None
    start = slice(maker["start"], None).indices(whole.sizes[-1])[0]
    return {0: 0, value.sizes[-1]: 1}.get(start)


def _interleave(graph: Graph, found: _Gating, constants: ConstantStore) -> None:
    first = found.gate.place or 0
    layer = insert_layer(graph, found.layers, lambda parts: _interleaved(parts, first, constants))
    if layer is None:
        return
    old, (operator, others, origin) = found.last.output, found.activation
    count = old.numel // _VECTOR
    whole = Node.call(
        "aten::reshape",
        (layer.output, [-1, 2, _VECTOR]),
        [Value.of_tensor(old.dtype, (count, 2, _VECTOR))],
        layer.origin,
    )
    InsertionPoint.after(layer).insert(whole)

    def insert(operator: str, args: Sequence[Any], origin: Origin) -> Value:
        made = Node.call(operator, args, [Value.of_tensor(old.dtype, (count, _VECTOR))], origin)
        made.insert_before(found.last)
        return made.output

    halves = (found.gate, found.passing)
    gate, passing = (
        insert("aten::select.int", (whole.output, 1, place), half.layer.node.origin)
        for place, half in enumerate(halves)
    )
    product = insert("aten::mul.Tensor", (insert(operator, (gate, *others), origin), passing), found.last.origin)
    sizes = list(old.sizes)
    make_instead(Node.call("aten::reshape", (product, sizes), [Value("", old.type)], found.last.origin), found.last)
    destroy_unread(found.last)


def _interleaved(parts: Sequence[torch.Tensor], first: int, constants: ConstantStore) -> torch.Tensor:
    """Rows of gates and of what passes them, four of each in turn: of two tensors, or of the halves of one, of which
    ``first`` are the gates; the same tensor in every plan."""

    def interleave() -> torch.Tensor:
        halves = list(parts) if len(parts) == 2 else list(parts[0].chunk(2))
        gate, passing = (half.reshape(-1, _VECTOR, *half.shape[1:]) for half in (halves[first], halves[1 - first]))
        return torch.stack([gate, passing], 1).flatten(0, 2)

    return constants.derived(parts, ("interleaved rows", first), interleave)
