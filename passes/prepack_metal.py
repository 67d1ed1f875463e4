"""Metal's packed operators. The form of their arguments is that of ``torch/csrc/jit/passes/metal_rewrite.cpp``."""

from __future__ import annotations

from mobopt.ops.contexts import MetalConv2dOpContext, MetalLinearOpContext
from mobopt.passes.prepack_rules import (
    Operators,
    Rule,
    convolution_refusal,
    linear_refusal,
    pack_conv2d,
    pack_linear,
)

_CONV2D = Operators("metal_prepack::conv2d_prepack", "metal_prepack::conv2d_run", MetalConv2dOpContext)
_LINEAR = Operators("metal_prepack::linear_prepack", "metal_prepack::linear_run", MetalLinearOpContext)

METAL_RULES: dict[str, Rule] = {
    "aten::conv2d": Rule(convolution_refusal, pack_conv2d(_CONV2D)),
    "aten::linear": Rule(linear_refusal, pack_linear(_LINEAR)),
}
"""Rules by qualified operator."""
