"""XNNPACK's packed operators. The form of their arguments is that of ``torch/csrc/jit/passes/xnnpack_rewrite.cpp``."""

from __future__ import annotations

from mobopt.ops.contexts import XnnpackConv2dOpContext, XnnpackLinearOpContext, XnnpackTransposeConv2dOpContext
from mobopt.passes.prepack_rules import (
    Operators,
    Rule,
    convolution_refusal,
    linear_refusal,
    pack_conv2d,
    pack_conv_transpose2d,
    pack_linear,
)

_CONV2D = Operators("prepacked::conv2d_clamp_prepack", "prepacked::conv2d_clamp_run", XnnpackConv2dOpContext)
_TCONV2D = Operators(
    "prepacked::conv2d_transpose_clamp_prepack",
    "prepacked::conv2d_transpose_clamp_run",
    XnnpackTransposeConv2dOpContext,
)
_LINEAR = Operators("prepacked::linear_clamp_prepack", "prepacked::linear_clamp_run", XnnpackLinearOpContext)

XNNPACK_RULES: dict[str, Rule] = {
    "aten::conv2d": Rule(convolution_refusal, pack_conv2d(_CONV2D)),
    "aten::conv_transpose2d.input": Rule(convolution_refusal, pack_conv_transpose2d(_TCONV2D)),
    "aten::linear": Rule(linear_refusal, pack_linear(_LINEAR)),
}
"""Rules by qualified operator."""
