"""Convolutions on the GPU do not multiply with what nobody wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mobopt.ir import Attribute, Graph, Node, Program, Value
from mobopt.ops.effects import holds_tensors
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.targets import Target
from mobopt.ops.unpacked_calls import Call, unpacked_call
from mobopt.passes.manager import After, Pass
from mobopt.passes.note_kinds import LANES_CLEARED, READS_UNWRITTEN
from mobopt.passes.notes import NoteBook
from mobopt.passes.place import transferred
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor

_LARGEST = torch.finfo(torch.float32).max
_CONVOLUTIONS = frozenset({"aten::conv1d", "aten::conv2d", "aten::conv_transpose2d.input"})
_COPIES = frozenset({"aten::reshape", "aten::view", "aten::flatten", "aten::unsqueeze"})
"""Operators that go through a buffer, and fill unused lanes with what lies behind its end."""
_PERMUTATIONS = frozenset({"aten::permute", "aten::transpose", "aten::t"})
"""Operators that fill unused lanes with what lies behind the end of a dimension, since 2.6; zeros before."""
_UNBOUNDED = frozenset({"aten::div.Tensor", "aten::log", "aten::pow.Tensor_Scalar", "aten::pow.Scalar"})
"""Operators that make zeros in unused lanes infinite or NaN."""
_BOUNDED = frozenset({"aten::clamp", "aten::hardtanh", "aten::relu6", "aten::hardsigmoid", "aten::dequantize"})
"""Operators that give finite numbers in every lane."""


@dataclass(frozen=True)
class ClearLanes(Pass):
    """Clamp what convolutions read where lanes beyond the last channel may hold anything.

    A texel has four channels. PyTorch's kernels multiply the lanes beyond the last one with weights of zero, and do not
    clear them in tensors that come from the CPU, from a reshape or, up to 2.2, from a concatenation (``ops/Copy.h``,
    ``glsl/nchw_to_image.glsl`` and ``glsl/cat_feature.glsl`` of PyTorch 1.13.1 and 2.6.0): memory used before, with
    infinities and NaN in it, which times zero are NaN. A clamp to finite numbers changes no other finite element.

    Given:
        %y : Tensor = aten::reshape(%x, [1, 3, 1, -1])
        %z : Tensor = vulkan_prepack::run_conv2d_context(%y, %context)
    Result:
        %y : Tensor = aten::reshape(%x, [1, 3, 1, -1])
        %y.finite : Tensor = aten::clamp(%y, -3.4028234663852886e+38, 3.4028234663852886e+38)
        %z : Tensor = vulkan_prepack::run_conv2d_context(%y.finite, %context)

    Without ``inputs``, where one input is all that a call uploads, and only results come back, a convolution that reads
    it as it is has a note only: PyTorch's own optimised models do so too, and the input is put where that of the call
    before was. With more transfers, or several models, it comes where uniform buffers were, whose bounds of clamps are
    infinities: images of 3 and of 5 channels were wrong by 0.07 and 0.18 of the output's scale.
    """

    target: Target
    inputs: bool = True
    name = "clear_lanes"
    after = (After("transfer", "it asks what is moved to the GPU", is_needed=True),)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Put clamps before convolutions that need them."""
        changed = False
        for graph in program.methods.values():
            known: dict[Value, bool] = {}
            leaves_inputs = not self.inputs and _moves_once(graph)
            for node in list(graph.walk()):
                if not _mixes_unused_lanes(node, program.attributes) or not _runs_on_gpu(node):
                    continue
                x = node.inputs[0]
                if leaves_inputs and _is_input(x):
                    notes.add(READS_UNWRITTEN, node)
                elif self._may_hold_anything(x, program.attributes, known):
                    bounds = [graph.constant(-_LARGEST), graph.constant(_LARGEST)]
                    finite = insert_node(graph, node, "aten::clamp", [x, *bounds], name=f"{x.name}.finite")
                    node.replace_input(0, finite)
                    notes.add(LANES_CLEARED, node)
                    changed = True
        return changed

    def _may_hold_anything(self, value: Value, attributes: Mapping[str, Attribute], known: dict[Value, bool]) -> bool:
        """Whether unused lanes of a tensor on the GPU may hold what lay in memory before."""
        if value not in known:
            known[value] = False  # until more is known, for loops lead back here
            node = value.producer
            if node is None or node.blocks:
                sources = _sources(value)
                is_callers = node is None and not value.is_constant and not sources
                known[value] = (is_callers and self.inputs) or any(
                    self._may_hold_anything(item, attributes, known) for item in sources
                )
            elif node.op in _BOUNDED:
                known[value] = False
            elif self._leaves_lanes(node):
                known[value] = True
            elif _writes_lanes(node) or ("::run_" in node.op and not _is_depthwise(node, attributes)):
                known[value] = False
            else:
                tensors = [item for item in node.inputs if holds_tensors(item.type)]
                known[value] = any(self._may_hold_anything(item, attributes, known) for item in tensors)
        return known[value]

    def _leaves_lanes(self, node: Node) -> bool:
        """On the target, or on a later release, which has to compute the file right too."""
        if transferred(node) is not None or node.op in _COPIES | _PERMUTATIONS or node.qualified_op in _UNBOUNDED:
            return True
        return node.op == "aten::cat" and self.target.release < Target("vulkan", "2.6").release


def _runs_on_gpu(node: Node) -> bool:
    """Whether a convolution runs on the GPU: it is packed, or reads what was moved or made there."""
    while "::run_" not in node.op:
        value = next(iter(_sources(node.outputs[0]) if node.blocks else node.inputs), None)
        if transferred(node) is not None or value is None or value.producer is None:
            return transferred(node) is not None and bool(node.inputs[1].constant.type != "cpu")
        node = value.producer
    return True


def _sources(value: Value) -> list[Value]:
    """What a result of a branch or a loop, or what a loop carries, may be."""
    node = value.producer
    if node is None:
        node = value.owner.node if value.owner is not None else None
        index = value.owner.parameters.index(value) - 1 if value.owner is not None else -1
    else:
        index = node.outputs.index(value)
    if node is None or index < 0:
        return []
    if node.op == "prim::Loop":
        return [node.inputs[index + 2], node.blocks[0].outputs[index + 1]]
    return [block.outputs[index] for block in node.blocks]


def _moves_once(graph: Graph) -> bool:
    """Whether a call moves one tensor to the GPU, and back only what it returns."""
    moves = [node for node in graph.walk() if transferred(node) is not None]
    back = [node for node in moves if node.inputs[1].constant.type == "cpu"]
    returns = graph.block.returns
    return len(moves) - len(back) == 1 and all(_is_only_returned(node.output, returns) for node in back)


def _is_only_returned(value: Value, returns: Node) -> bool:
    """Whether nothing is computed with a value, nor with a container of it."""
    return all(
        user is returns or (has_trait(user.op, Trait.CONSTRUCTS) and _is_only_returned(user.output, returns))
        for user, _ in value.uses
    )


def _writes_lanes(node: Node) -> bool:
    """Whether a node joins channels, which writes every lane since 2.6."""
    if node.op != "aten::cat" or not node.inputs[1].is_constant:
        return False
    dim: int = node.inputs[1].constant
    return dim in (1, -3)


def _is_input(value: Value) -> bool:
    """Whether a tensor on the GPU is the caller's, as it is."""
    origin = transferred(value.producer) if value.producer is not None else None
    return origin is not None and origin.producer is None and not origin.is_constant


def _mixes_unused_lanes(node: Node, attributes: Mapping[str, Attribute]) -> bool:
    """Whether a node is a convolution over channels that are no multiple of four."""
    call = _convolution(node, attributes)
    if call is None or _is_depthwise(node, attributes):
        return False
    operator, arguments = call
    if not arguments["weight"].is_floating_point():  # it reads integers, all of which are finite
        return False
    is_transposed = operator.startswith("aten::conv_transpose")
    channels: int = arguments["weight"].shape[0 if is_transposed else 1]
    groups: int = 1 if is_transposed else arguments["groups"]
    return channels * groups % 4 != 0


def _is_depthwise(node: Node, attributes: Mapping[str, Attribute]) -> bool:
    """Whether a node is a convolution that keeps every lane by itself."""
    call = _convolution(node, attributes)
    return call is not None and bool(call[1]["groups"] > 1) and call[1]["weight"].shape[1] == 1


def _convolution(node: Node, attributes: Mapping[str, Attribute]) -> Call | None:
    """The plain convolution that a node is, packed or not, and its arguments."""
    call = unpacked_call(node, attributes)
    if call is None and node.qualified_op in _CONVOLUTIONS:
        weight, groups = argument(node, "weight"), argument(node, "groups")
        if is_constant_tensor(weight) and groups.is_constant:
            call = node.qualified_op, {"weight": weight.constant, "groups": groups.constant}
    return call if call is not None and call[0] in _CONVOLUTIONS else None
