"""Convolutions on the GPU do not multiply with what nobody wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mobopt.ir import Attribute, Node, Program, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.targets import Target
from mobopt.ops.targets.packed import unpacked_call
from mobopt.passes.manager import NoteBook, Pass
from mobopt.passes.place import transferred
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor

_LARGEST = torch.finfo(torch.float32).max
_CONVOLUTIONS = frozenset({"aten::conv1d", "aten::conv2d", "aten::conv_transpose2d.input"})
_COPIES = frozenset({"aten::reshape", "aten::view", "aten::flatten", "aten::unsqueeze"})
"""Operators that go through a buffer, and fill unused lanes with what lies behind its end."""
_BOUNDED = frozenset({"aten::clamp", "aten::hardtanh", "aten::relu6", "aten::hardsigmoid", "aten::permute"})
"""Operators that give finite numbers in every lane, or zero in those that are not used."""


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

    The method's own inputs are not clamped: PyTorch's own optimised models read them as they are, and the memory that
    they are put in at the start of a call is that of the call before.
    """

    target: Target
    name = "clear_lanes"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Put clamps before convolutions that need them."""
        changed = False
        for graph in program.methods.values():
            known: dict[Value, bool] = {}
            for node in list(graph.walk()):
                x = node.inputs[0] if node.inputs else None
                if x is None or not _mixes_unused_lanes(node, program.attributes):
                    continue
                if not self._may_hold_anything(x, known):
                    continue
                bounds = [graph.constant(-_LARGEST), graph.constant(_LARGEST)]
                node.replace_input(0, insert_node(graph, node, "aten::clamp", [x, *bounds], name=f"{x.name}.finite"))
                notes.done(node, "reads finite numbers in lanes beyond the last channel")
                changed = True
        return changed

    def _may_hold_anything(self, value: Value, known: dict[Value, bool]) -> bool:
        """Whether unused lanes of a tensor on the GPU may hold what lay in memory before."""
        if value not in known:
            known[value] = self._look_at(value, known)
        return known[value]

    def _look_at(self, value: Value, known: dict[Value, bool]) -> bool:
        node = value.producer
        if node is None or value.is_constant or node.op in _BOUNDED:
            return False
        inner = transferred(node)
        if inner is not None:
            return inner.producer is not None or inner.is_constant
        if node.op in _COPIES or (node.op == "aten::cat" and self.target.release < Target("vulkan", "2.6").release):
            return True
        if "::run_" in node.op or node.op.endswith("_run") or node.blocks:
            return False
        return any(self._may_hold_anything(item, known) for item in node.inputs if item.type == TENSOR)


def _mixes_unused_lanes(node: Node, attributes: Mapping[str, Attribute]) -> bool:
    """Whether a node is a convolution over channels that are no multiple of four."""
    call = unpacked_call(node, attributes)
    if call is None and node.qualified_op in _CONVOLUTIONS:
        weight, groups = argument(node, "weight"), argument(node, "groups")
        if not is_constant_tensor(weight) or not groups.is_constant:
            return False
        call = node.qualified_op, {"weight": weight.constant, "groups": groups.constant}
    if call is None or call[0] not in _CONVOLUTIONS:
        return False
    operator, arguments = call
    channels: int = arguments["weight"].shape[0 if operator.startswith("aten::conv_transpose") else 1]
    return arguments["groups"] == 1 and channels % 4 != 0
