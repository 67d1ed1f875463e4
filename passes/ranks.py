"""How many dimensions a tensor has, where the graph says so."""

from __future__ import annotations

import re

from mobopt.ir import Node, Value
from mobopt.ir.types import TENSOR
from mobopt.passes.rewriting import constants, is_constant_tensor

_SAME_AS_FIRST = frozenset(
    re.split(
        r"\s+",
        """
        aten::_softmax aten::abs aten::adaptive_avg_pool1d aten::adaptive_avg_pool2d aten::adaptive_avg_pool3d
        aten::adaptive_max_pool2d aten::avg_pool1d aten::avg_pool2d aten::avg_pool3d aten::batch_norm
        aten::channel_shuffle aten::clamp aten::clamp_ aten::clamp_max aten::clamp_min aten::clone
        aten::constant_pad_nd aten::contiguous aten::conv1d aten::conv2d aten::conv3d aten::conv_transpose1d
        aten::conv_transpose2d aten::conv_transpose3d aten::cumsum aten::detach aten::dropout aten::dropout_ aten::elu
        aten::elu_ aten::exp aten::feature_dropout aten::flip aten::gelu aten::group_norm aten::hardsigmoid
        aten::hardsigmoid_ aten::hardswish aten::hardswish_ aten::hardtanh aten::hardtanh_ aten::instance_norm
        aten::layer_norm aten::leaky_relu aten::leaky_relu_ aten::linear aten::log_softmax aten::max_pool1d
        aten::max_pool2d aten::max_pool3d aten::mish aten::neg aten::pad aten::permute aten::relu aten::relu_
        aten::relu6 aten::roll aten::rsqrt aten::sigmoid aten::sigmoid_ aten::silu aten::silu_ aten::slice
        aten::softmax aten::softplus aten::sqrt aten::tanh aten::to aten::transpose
        metal::copy_to_host metal_prepack::conv2d_run metal_prepack::linear_run prepacked::conv2d_clamp_run
        prepacked::conv2d_transpose_clamp_run prepacked::linear_clamp_run vulkan_prepack::run_batchnorm_context
        vulkan_prepack::run_conv1d_context vulkan_prepack::run_conv2d_context vulkan_prepack::run_layernorm_context
        vulkan_prepack::run_linear_context vulkan_prepack::run_tconv2d_context
        """.strip(),
    )
)
"""Operators whose first result has as many dimensions as their first argument."""
_BINARY = frozenset({"aten::add", "aten::add_", "aten::sub", "aten::mul", "aten::mul_", "aten::div"})
_LIST_GIVES_SIZES = {"aten::view": 1, "aten::reshape": 1, "aten::expand": 1, "aten::repeat": 1, "aten::zeros": 0}
_FIXED = {
    **dict.fromkeys(("aten::upsample_nearest1d", "aten::upsample_linear1d"), 3),
    **dict.fromkeys(("aten::upsample_nearest2d", "aten::upsample_bilinear2d", "aten::upsample_bicubic2d"), 4),
    **dict.fromkeys(("aten::upsample_nearest3d", "aten::upsample_trilinear3d"), 5),
    **dict.fromkeys(("aten::mm", "aten::addmm"), 2),
    "aten::bmm": 3,
}
_CONVOLUTIONS = {"aten::conv1d": 3, "aten::conv2d": 4, "aten::conv3d": 5}


def known_rank(value: Value, seen: dict[Value, Value] | None = None) -> int | None:
    """Number of dimensions of a tensor, or None if only its input tells; ``seen`` as for :func:`rank_root`."""
    root = rank_root(value, seen)
    if is_constant_tensor(root):
        rank: int = root.constant.dim()
        return rank
    node = root.producer
    if node is None or root is not node.outputs[0]:
        return None
    if node.op in _LIST_GIVES_SIZES:
        return _list_length(node.inputs[_LIST_GIVES_SIZES[node.op]])
    if node.op == "aten::flatten" and constants(node.inputs[1:]) == [1, -1]:
        return 2  # a tensor of fewer dimensions has no dimension 1, so it is refused there
    return _FIXED.get(node.op)


def rank_root(value: Value, seen: dict[Value, Value] | None = None) -> Value:
    """The first value on the way back that surely has as many dimensions; the value itself if there is none.

    ``seen`` holds what is found on the way, since ways join again (branches that are concatenated).
    """
    seen = {} if seen is None else seen
    start = value
    while value not in seen:
        node = value.producer
        if node is None or value is not node.outputs[0]:
            break
        if node.op in _SAME_AS_FIRST:
            value = node.inputs[0]
            continue
        roots = {rank_root(operand, seen) for operand in _operands(node)}
        if len(roots) != 1:
            break
        value = roots.pop()
    seen[start] = seen.get(value, value)
    return seen[start]


def batched_rank(value: Value) -> int | None:
    """Number of dimensions of what a convolution gives for a batch; None if the value is not made so.

    torch takes it for certain (``torch/csrc/jit/passes/peephole.cpp``), although convolutions take a single sample too.
    """
    while value.producer is not None and value is value.producer.outputs[0]:
        node = value.producer
        if node.op in _CONVOLUTIONS:
            return _CONVOLUTIONS[node.op]
        if node.op not in _SAME_AS_FIRST:
            return None
        value = node.inputs[0]
    return None


def _operands(node: Node) -> tuple[Value, ...]:
    """What a node combines, where equal ranks give the same rank."""
    if node.op in _BINARY and node.inputs[1].type == TENSOR:
        return node.inputs[:2]
    if node.op in _BINARY:
        return node.inputs[:1]
    if node.op == "aten::cat":
        packed = node.inputs[0].producer
        return packed.inputs if packed is not None and packed.op == "prim::ListConstruct" else ()
    return ()


def _list_length(value: Value) -> int | None:
    if value.is_constant and isinstance(value.constant, list):
        return len(value.constant)
    producer = value.producer
    return len(producer.inputs) if producer is not None and producer.op == "prim::ListConstruct" else None
