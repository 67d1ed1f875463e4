"""Recurrent layers on packed contexts of PyTorch Mobile, as the layers themselves."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from weakref import WeakKeyDictionary

import torch

from mobopt.ir import Node, Value
from mobopt.ops.contexts import GruPackedContext
from mobopt.runtimes.cpu.packed_vulkan import recurrent_parameters
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_PARAMETERS: MutableMapping[GruPackedContext, list[torch.Tensor]] = WeakKeyDictionary()
"""The whole matrices of contexts that have them in parts, so that all plans share them."""


def _arguments(context: GruPackedContext, gates: int) -> tuple[object, ...]:
    """The arguments of a layer from its parameters on."""
    if context not in _PARAMETERS:
        _PARAMETERS[context] = recurrent_parameters(context, gates)
    parameters = [Value.of_elements(tensor) for tensor in _PARAMETERS[context]]
    return (
        parameters,
        *(context.has_biases, context.num_layers, context.dropout),
        *(context.train, context.bidirectional, context.batch_first),
    )


@decomposes("vulkan_prepack::run_lstm_context")
def lstm_context(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """An LSTM."""
    x, states, cells, context = node.args
    return build.all("aten::lstm.input", x, [states, cells], *_arguments(context, 4))


@decomposes("vulkan_prepack::run_gru_context")
def gru_context(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """A GRU."""
    x, states, context = node.args
    return build.all("aten::gru.input", x, states, *_arguments(context, 3))
