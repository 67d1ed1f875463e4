"""Vulkan's packed operators. The form of their arguments is that of ``torch/csrc/jit/passes/vulkan_rewrite.cpp``; what
the contexts refuse is in their constructors, ``aten/src/ATen/native/vulkan/ops/`` of PyTorch 1.13.1 and 2.6.0."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Node, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.contexts import (
    BatchNormPackedContext,
    Conv1dPackedContext,
    Conv2dPackedContext,
    GruPackedContext,
    LayernormPackedContext,
    LinearPackedContext,
    LstmPackedContext,
    PackedContext,
)
from mobopt.passes.prepack_rules import (
    Operators,
    Packer,
    Rule,
    convolution_refusal,
    dtype_refusal,
    linear_refusal,
    pack_conv2d,
    pack_conv_transpose2d,
)
from mobopt.passes.rewriting import argument, is_constant_tensor


def _operators(kind: str, context: type[PackedContext]) -> Operators:
    return Operators(f"vulkan_prepack::create_{kind}_context", f"vulkan_prepack::run_{kind}_context", context)


_CONV1D = _operators("conv1d", Conv1dPackedContext)
_CONV2D = _operators("conv2d", Conv2dPackedContext)
_TCONV2D = _operators("tconv2d", Conv2dPackedContext)
_LINEAR = _operators("linear", LinearPackedContext)
_BATCH_NORM = _operators("batchnorm", BatchNormPackedContext)
_LAYER_NORM = _operators("layernorm", LayernormPackedContext)
_GRU = _operators("gru", GruPackedContext)
_LSTM = _operators("lstm", LstmPackedContext)


def _conv1d(packer: Packer, node: Node) -> None:
    x, weight, bias, *settings = node.inputs
    if bias.constant is None:  # the context's constructor reads it unasked
        bias = packer.filled(weight.constant.shape[:1], 0.0, f"{node.output.name}.bias")
    packer.pack(node, _CONV1D, [packer.contiguous(weight), bias, *settings], [x])


def _linear(packer: Packer, node: Node) -> None:
    x, weight, bias = node.inputs
    transposed = packer.graph.constant(weight.constant.t(), name=f"{weight.name}.t")
    packer.pack(node, _LINEAR, [transposed, bias], [x])


def _batch_norm_refusal(node: Node, rank: int | None) -> str:
    tensors = node.inputs[1:5]
    if not all(value.is_constant for value in node.inputs[1:]):
        return "its weight, bias, statistics or settings are not constant"
    if argument(node, "training").constant is not False:
        return "it takes the statistics of the batch"
    if not all(is_constant_tensor(value) for value in tensors[2:]):
        return "it has no running statistics"
    if rank not in (None, 4):
        return f"its input has {rank} dimensions, and the context takes 4"
    return dtype_refusal(*tensors)


def _batch_norm(packer: Packer, node: Node) -> None:
    x, weight, bias, mean, *rest = node.inputs
    weight, bias = _affine(packer, node, weight, bias, mean.constant.shape)
    packer.pack(node, _BATCH_NORM, [weight, bias, mean, *rest], [x])


def _layer_norm_refusal(node: Node, rank: int | None) -> str:
    shape, weight, bias, eps = node.inputs[1:5]
    if not (weight.is_constant and bias.is_constant and eps.is_constant):
        return "its weight, bias or eps is not constant"
    if weight.constant is None and not shape.is_constant:
        return "it has no weight, and its shape is not constant"
    return dtype_refusal(weight, bias)


def _layer_norm(packer: Packer, node: Node) -> None:
    x, shape, weight, bias, eps = node.inputs[:5]
    sizes = shape.constant if weight.constant is None else weight.constant.shape
    weight, bias = _affine(packer, node, weight, bias, sizes)
    packer.pack(node, _LAYER_NORM, [weight, bias, eps], [x, shape])


def _affine(packer: Packer, node: Node, weight: Value, bias: Value, sizes: Any) -> tuple[Value, Value]:
    """Weight and bias, of ones and zeros where there is none: the kernels take no None."""
    name = node.output.name
    if weight.constant is None:
        weight = packer.filled(sizes, 1.0, f"{name}.weight")
    if bias.constant is None:
        bias = packer.filled(sizes, 0.0, f"{name}.bias")
    return packer.contiguous(weight), packer.contiguous(bias)


_WANTED_FLAGS = {
    "has_biases": (True, "it has no biases"),
    "train": (False, "it is in training"),
    "bidirectional": (False, "it is bidirectional"),
    "batch_first": (True, "its batch is not the first dimension"),
}
"""What the constructors of both recurrent contexts want, and why a node stays that has another value."""


def _recurrent_refusal(node: Node, rank: int | None) -> str:
    for name, (wanted, reason) in _WANTED_FLAGS.items():
        flag = argument(node, name)
        if not flag.is_constant or flag.constant is not wanted:
            return reason if flag.is_constant else f"its {name} is not constant"
    layers, dropout = argument(node, "num_layers"), argument(node, "dropout")
    tensors = _parameters(node)
    if not (layers.is_constant and dropout.is_constant) or tensors is None:
        return "its weights or settings are not constant"
    if len(tensors) != 4 * layers.constant:
        return f"it has {len(tensors)} weights where {layers.constant} layers have 4 each (a projection, perhaps)"
    wrong = [tensor.dtype for tensor in tensors if tensor.dtype != torch.float32]
    if wrong:
        return f"its weights are {str(wrong[0]).removeprefix('torch.')}, and contexts hold float32"
    return "its input has no batch dimension" if rank == 2 else ""


def _parameters(node: Node) -> list[torch.Tensor] | None:
    """The flat weights, or None if one of them is not known."""
    params = argument(node, "params")
    if params.is_constant:
        return list(params.constant)
    made = params.producer
    if made is None or made.op != "prim::ListConstruct" or not all(map(is_constant_tensor, made.inputs)):
        return None
    return [value.constant for value in made.inputs]


def _recurrent_constants(packer: Packer, node: Node) -> list[Value]:
    """Arguments of the packing operator; dropout, which does nothing outside training, is 0, as the context wants."""
    names = ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
    settings = {name: argument(node, name) for name in names}
    if settings["dropout"].constant != 0:
        settings["dropout"] = packer.graph.constant(0.0, name="dropout")
    return [argument(node, "params"), *settings.values()]


def _gru(packer: Packer, node: Node) -> None:
    packer.pack(node, _GRU, _recurrent_constants(packer, node), node.inputs[:2])


def _lstm(packer: Packer, node: Node) -> None:
    x, states = node.inputs[:2]
    made = states.producer
    if made is not None and made.op == "prim::ListConstruct":
        hidden, cell = made.inputs
    else:
        unpack = packer.graph.create("prim::ListUnpack", [states], [TENSOR, TENSOR], origin=node.origin)
        hidden, cell = unpack.insert_before(node).outputs
    packer.pack(node, _LSTM, _recurrent_constants(packer, node), [x, hidden, cell])


def _lstm_refusal(node: Node, rank: int | None) -> str:
    made = node.inputs[1].producer
    if made is not None and made.op == "prim::ListConstruct" and len(made.inputs) != 2:
        return f"it has {len(made.inputs)} initial states where 2 belong"
    return _recurrent_refusal(node, rank)


VULKAN_RULES: dict[str, Rule] = {
    "aten::conv2d": Rule(convolution_refusal, pack_conv2d(_CONV2D)),
    "aten::conv_transpose2d.input": Rule(convolution_refusal, pack_conv_transpose2d(_TCONV2D)),
    "aten::linear": Rule(linear_refusal, _linear),
    "aten::gru.input": Rule(_recurrent_refusal, _gru),
    "aten::lstm.input": Rule(_lstm_refusal, _lstm),
    "aten::batch_norm": Rule(_batch_norm_refusal, _batch_norm, since="2.0"),
    "aten::layer_norm": Rule(_layer_norm_refusal, _layer_norm, since="2.2"),
    "aten::conv1d": Rule(convolution_refusal, _conv1d, since="2.6"),
}
"""Rules by qualified operator."""
