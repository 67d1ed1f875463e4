"""Recurrent layers on packed contexts of PyTorch Mobile, as the layers themselves."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Node, Value
from mobopt.ops.contexts import GruPackedContext
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes


def _arguments(context: GruPackedContext) -> tuple[object, ...]:
    """The arguments of a layer from its parameters on; all plans share their tensors."""
    return [Value.of_elements(tensor) for tensor in context.layer_parameters], *context.flags


@decomposes("vulkan_prepack::run_lstm_context")
def lstm_context(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """An LSTM."""
    x, states, cells, context = node.args
    return build.all("aten::lstm.input", x, [states, cells], *_arguments(context))


@decomposes("vulkan_prepack::run_gru_context")
def gru_context(build: NodeBuilder, node: Node) -> Sequence[Value]:
    """A GRU."""
    x, states, context = node.args
    return build.all("aten::gru.input", x, states, *_arguments(context))
