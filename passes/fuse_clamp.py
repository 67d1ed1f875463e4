"""An activation that clamps becomes the output range of the convolution before it."""

from __future__ import annotations

import math
from typing import Any

from mobopt.ir import Graph, Node
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.passes.manager import After, GraphPass
from mobopt.passes.note_kinds import FUSED_AS_RANGE, NOT_FUSED_INTO
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import bypass_node, constants, only_user

Range = tuple[float | None, float | None]

_RUNS = frozenset(
    {
        "vulkan_prepack::run_conv2d_context",
        "vulkan_prepack::run_tconv2d_context",
        "metal_prepack::conv2d_run",
        "metal_prepack::linear_run",
        "prepacked::conv2d_clamp_run",
        "prepacked::conv2d_transpose_clamp_run",
    }
)
"""Operators that clamp their result to the last two arguments of what packed their context."""
_UNCLAMPED = {
    "vulkan_prepack::run_linear_context": "Vulkan's linear context holds no clamp",
    "vulkan_prepack::run_conv1d_context": "Vulkan's conv1d context holds no clamp",
    "prepacked::linear_clamp_run": "PyTorch's own files have XNNPACK's linear contexts without range",
}
"""Operators that could be followed by a clamp and take none, and why."""
_CLAMPS = frozenset(
    f"aten::{name}{suffix}"
    for name in ("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "threshold")
    for suffix in ("", "_")
)


class FuseClamp(GraphPass):
    """Fuse relu, relu6, hardtanh and clamp into the packed layer whose only reader they are.

    Given:
        %c = vulkan_prepack::create_conv2d_context(%w, %b, ..., %none, %none)
        %y = vulkan_prepack::run_conv2d_context(%x, %c)
        %z = aten::relu(%y)
    Result:
        %c = vulkan_prepack::create_conv2d_context(%w, %b, ..., %zero, %none)
        %y = vulkan_prepack::run_conv2d_context(%x, %c)

    Clamps in a row are combined. So for the convolutions of every backend, and for Metal's linear layers.
    """

    name = "fuse_clamp"
    after = (After("insert_prepack", "it fuses into packed layers"),)

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Fuse what follows each packed layer."""
        changed = False
        for node in graph.walk():
            if node.op in _RUNS:
                while _fuse_next(graph, node, notes):
                    changed = True
            elif node.op in _UNCLAMPED:
                for user, _ in node.output.uses:
                    if user.op in _CLAMPS:
                        notes.add(NOT_FUSED_INTO, user, layer=node, reason=_UNCLAMPED[node.op])
        return changed


def _fuse_next(graph: Graph, run: Node, notes: NoteBook) -> bool:
    """Fuse the clamp that reads the layer's output, if there is one and it can be."""
    clamps = [user for user, _ in run.output.uses if user.op in _CLAMPS]
    if not clamps:
        return False
    clamp = clamps[0]
    reason = _refusal(run, clamp)
    if reason:
        notes.add(NOT_FUSED_INTO, clamp, layer=run, reason=reason)
        return False
    create = run.inputs[1].producer
    bounds = range_of(clamp)
    assert create is not None and bounds is not None
    low, high = create.inputs[-2:]
    combined = combine((low.constant, high.constant), bounds)
    ends = [
        graph.constant(bound, name=name) for bound, name in zip(combined, ("output_min", "output_max"), strict=True)
    ]
    create.set_inputs([*create.inputs[:-2], *ends])
    notes.add(FUSED_AS_RANGE, clamp, layer=run, low=combined[0], high=combined[1])
    bypass_node(clamp, run.output)
    return True


def _refusal(run: Node, clamp: Node) -> str:
    if only_user(run.output) is not clamp:
        return f"the layer's output is read {len(run.output.uses)} times"
    bounds = range_of(clamp)
    if bounds is None:
        return "its bounds are not constant numbers"
    if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
        return "its lower bound is above its upper one"
    create = run.inputs[1].producer
    if create is None or create.op not in PACKING_OPERATORS:
        return "the layer is packed already"
    if len(create.output.uses) > 1:
        return "the layer's context is shared"
    if not all(value.is_constant for value in create.inputs[-2:]):
        return "the layer's own range is not constant"
    low, high = combine((create.inputs[-2].constant, create.inputs[-1].constant), bounds)
    if run.op.startswith("metal_prepack::") and (low is None) != (high is None) and (low, high) != (0.0, None):
        # aten/src/ATen/native/metal/MetalNeuronType.h: any other range counts as none
        return "Metal's kernels take the range of relu, or one with two ends"
    if low is not None and low == high and run.op.startswith("prepacked::"):
        return "the range would be a single number, which XNNPACK refuses"
    return ""


def range_of(clamp: Node) -> Range | None:
    """The range that an operator clamps to, None where it is open; None if it is not known."""
    kind = clamp.op.removeprefix("aten::").removesuffix("_")
    bounds = constants(clamp.inputs[1:])
    if bounds is None or not all(bound is None or _is_number(bound) for bound in bounds):
        return None
    if kind == "relu":
        return 0.0, None
    if kind == "relu6":
        return 0.0, 6.0
    if kind == "clamp_min":
        return _bound(bounds[0]), None
    if kind == "clamp_max":
        return None, _bound(bounds[0])
    if kind == "threshold":
        return (0.0, None) if bounds == [0, 0] else None
    return _bound(bounds[0]), _bound(bounds[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _bound(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else float(value)


def combine(first: Range, second: Range) -> Range:
    """The one range that clamping to ``first`` and then to ``second`` comes to."""
    low, high = second

    def clamped(bound: float | None) -> float | None:
        if bound is None:
            return None
        bound = bound if low is None else max(bound, low)
        return bound if high is None else min(bound, high)

    below, above = clamped(first[0]), clamped(first[1])
    return (low if below is None else below), (high if above is None else above)
