"""Judge one call by the rows: what will the target's runtime do with it?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mobopt.ir import Attribute, Node
from mobopt.ir.dimensions import Expression
from mobopt.ir.facts import TensorFacts
from mobopt.ir.guards import UndecidedError, UnknownFactError
from mobopt.ops.targets.call_view import CallView
from mobopt.ops.targets.row import Row
from mobopt.ops.targets.table import IMAGE_LIMIT, Target, rows_for
from mobopt.ops.unpacked_calls import unpacked_call

_PYTORCH = ("aten", "prim", "quantized", "prepacked", "vulkan_prepack", "vulkan_quantized", "metal_prepack", "metal")
"""Namespaces of PyTorch's own operators."""


QUANTIZED = "quint8"
"""The dtype of quantised tensors that Vulkan's kernels were seen to compute right; others they compute wrongly, too."""


@dataclass(frozen=True)
class Misfit:
    """Why a tensor can't be an image on the GPU."""

    why: str
    is_open: bool = False
    """Whether nothing is known against it, but too little is known at all."""


@dataclass(frozen=True)
class Finding:
    """What a target does with a call."""

    verdict: str
    """native, wrong, missing, or unknown: only the sizes of the inputs tell."""
    why: str = ""
    row: Row | None = None
    is_by_size: bool = False
    """Of unknown: whether the row holds for some of the sizes that inputs may have by what was declared."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is known against it."""
        return self.verdict in ("native", "unknown")


def judge(node: Node, target: Target, attributes: Mapping[str, Attribute] | None = None) -> Finding:
    """What a target's runtime does with a node; without a row it is missing (native on the CPU).

    Args:
        node: any node that is not of the ``prim`` namespace.
        target: the runtime.
        attributes: of the Program, for packed contexts.
    """
    view = CallView(node, target.image_limit)
    is_quantized = target.backend == "vulkan" and view.has_dtype(QUANTIZED)
    packed = _judge(node.qualified_op, view, target, is_quantized)
    call = unpacked_call(node, attributes or {})
    if call is None or not packed.is_good:
        return packed
    operator, arguments = call  # what floats are wrong for, integers are wrong for: kernels share all but the reading
    return _judge(operator, CallView(node, target.image_limit, arguments), target, is_quantized=False)


def _judge(operator: str, call: CallView, target: Target, is_quantized: bool) -> Finding:
    rows = [
        row
        for row in rows_for(target.backend).get(operator, ())
        if row.covers(target.release) and (row.any_dtype or row.quantized == is_quantized)
    ]
    checks = {"vulkan": no_image, "metal": metal_misfit}
    misfit = call.misfit(checks[target.backend]) if target.backend in checks else None
    excess = None
    if target.backend == "vulkan" and misfit is None:
        excess = call.misfit(lambda facts: image_excess(facts, target.image_limit))
    for row in rows:
        if row.over_limit and excess is None:
            continue
        if (misfit or excess) and not (row.over_limit or row.sees_misfits):
            continue
        try:
            holds = row.condition is None or row.condition.holds(call)
        except UnknownFactError as unknown:
            return _open_finding(row, unknown)
        if holds:
            return Finding(row.verdict, excess.why if row.over_limit and excess is not None else row.why, row)
    if target.backend == "cpu":
        return _on_cpu(operator)
    against = misfit or excess
    if against is None:
        what = "this on quantised tensors" if is_quantized else "this"
        return Finding("missing", f"{target} has no kernel that was seen to compute {what}")
    return Finding("unknown" if against.is_open else "missing", against.why)


def _open_finding(row: Row, unknown: UnknownFactError) -> Finding:
    """What is told of a call on which a row's condition is open."""
    if isinstance(unknown, UndecidedError):
        return Finding("unknown", f"{row.why}, and {unknown}" if row.why else str(unknown), row, is_by_size=True)
    return Finding("unknown", str(unknown), row)


def _on_cpu(operator: str) -> Finding:
    """What a CPU build does with an operator that no row names."""
    namespace = operator.partition("::")[0]
    if namespace in _PYTORCH:
        return Finding("native")
    return Finding("missing", f"{namespace} is not PyTorch's: the app must bring the library that registers it")


def image_misfit(facts: TensorFacts, image_limit: int = IMAGE_LIMIT) -> Misfit | None:
    """Why PyTorch's Vulkan backend can't hold a tensor; None if it can, as far as is known.

    A tensor (N, C, H, W) is a 3-D image of W x H x N*ceil(C/4) texels (``aten/src/ATen/native/vulkan/api/Tensor.cpp``).
    """
    return no_image(facts) or image_excess(facts, image_limit)


def no_image(facts: TensorFacts) -> Misfit | None:
    """Why a tensor is no image, of whatever size; None if it is one, as far as is known."""
    misfit = _kind_misfit(facts, "Vulkan", 4, ("float32", QUANTIZED))
    if misfit is None and not facts.is_seen:
        return Misfit(
            "no example input came here, and a tensor's sizes, dtype and number of dimensions decide what the GPU "
            "computes right",
            is_open=True,
        )
    if misfit is None and facts.varies:
        return Misfit(
            "the sizes of a tensor depend on more than those of the inputs, so it may be too large for an image, or "
            "empty",
            is_open=True,
        )
    return misfit


def image_excess(facts: TensorFacts, image_limit: int = IMAGE_LIMIT) -> Misfit | None:
    """Why the image of a tensor that is of the right kind is too large; None if it is not, as far as is known."""
    if not _has_image(facts):
        return None
    assert facts.largest_sizes is not None
    batch, channels, height, width = (1, 1, 1, 1, *facts.largest_sizes)[-4:]
    extent = max(width, height, batch * -(-channels // 4))
    if extent > image_limit:
        return Misfit(f"a tensor {facts} needs an image of extent {extent}, over the limit of {image_limit}")
    return None


def _kind_misfit(
    facts: TensorFacts, backend: str, most_dimensions: int, dtypes: tuple[str, ...] = ("float32",)
) -> Misfit | None:
    """Why a GPU can't hold a tensor of this dtype and number of dimensions; None if it can, as far as is known."""
    if facts.known_dtype not in (None, *dtypes):
        return Misfit(f"a tensor is {facts.known_dtype}, and {backend} tensors are float32")
    if facts.known_rank is None:
        return None
    if not 1 <= facts.known_rank <= most_dimensions:
        return Misfit(f"a tensor has {facts.known_rank} dimensions, and {backend} tensors have 1 to {most_dimensions}")
    if facts.dimensions is None or facts.is_constant:
        return None
    if any(isinstance(size, int) and size == 0 for size in facts.dimensions):
        return Misfit("a tensor has no element")
    # Operators refuse the inputs that would make a size negative.
    if any(isinstance(size, Expression) and size.lower == 0 for size in facts.dimensions):
        return Misfit("a tensor has no element for some of the sizes that inputs may have", is_open=True)
    return None


def _has_image(facts: TensorFacts) -> bool:
    """Whether the size of a tensor's image is known; weights are packed in forms of their own."""
    return facts.dimensions is not None and not facts.is_constant


_METAL_SIDE, _METAL_LAYERS = 16384, 2048
"""Largest sides and array length of a texture on Apple's GPUs since A9 (Metal Feature Set Tables)."""


def metal_misfit(facts: TensorFacts) -> Misfit | None:
    """Why PyTorch's Metal backend can't hold a tensor; None if it can, as far as is known.

    A tensor (N, C, H, W) is N images of C channels, a texture array of N*ceil(C/4) layers of H x W; dimensions before
    the last four are multiplied into N (``aten/src/ATen/native/metal/mpscnn/MPSImageUtils.h``, ``computeImageSize``).
    PyTorch's own tests go up to five dimensions.
    """
    misfit = _kind_misfit(facts, "Metal", 5)
    if misfit is not None or not _has_image(facts):
        return misfit
    assert facts.largest_sizes is not None
    channels, height, width = (1, 1, *facts.largest_sizes)[-3:]
    layers = math.prod(facts.largest_sizes[:-3]) * -(-channels // 4)
    if max(height, width) > _METAL_SIDE or layers > _METAL_LAYERS:
        return Misfit(
            f"a tensor {facts} needs a texture of {height} x {width} x {layers}, over {_METAL_SIDE} or {_METAL_LAYERS}"
        )
    return None
