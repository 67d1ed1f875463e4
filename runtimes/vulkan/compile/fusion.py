"""Folds pointwise calls into the convolution or matrix product that feeds them.

``relu(conv(x))`` becomes one call, and so does ``relu(conv(x) + y)``: the memory of the tensors between is never
touched. Runs before other fusion, as what is folded here costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace

import torch

from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.vulkan.kernels.epilogue import Activation, CallWithEpilogue, Epilogue, activation_of, epilogue_of
from mobopt.runtimes.vulkan.lowerings.convolution import convolution
from mobopt.runtimes.vulkan.lowerings.matmul import added_product, linear, linear_context, product, takes_residual
from mobopt.runtimes.vulkan.lowerings.registry import lowering_of, why_unsupported

_TAKE_EPILOGUES = (convolution, linear, linear_context, product, added_product)


def fold_epilogues(trace: Trace, on_host: Container[Call] = ()) -> Trace:
    """The trace with every activation and every addition of a tensor folded that its producer's epilogue has room for.

    Calls of ``on_host`` stay as they are. A call is folded if nothing else uses what it is applied to. Where a residual
    is added, the folded call takes the place of the addition, as the residual may be made after the product.
    """
    uses = Counter(tensor for call in trace.calls for tensor in call.tensors())
    uses.update(trace.results())
    calls: list[Call | None] = []
    makers: dict[TensorRef, int] = {}
    for call in trace.calls:
        folded = None if call in on_host else _folded(call, calls, makers, uses, on_host)
        maker, joined = folded or (None, call)
        if maker is not None and activation_of(call) is not None:
            place = maker
            calls[maker] = joined
        else:
            place = len(calls)
            calls.append(joined)
            if maker is not None:
                calls[maker] = None
        makers.update((output, place) for output in call.outputs)
    return replace(trace, calls=[call for call in calls if call is not None])


def _folded(
    call: Call,
    calls: list[Call | None],
    makers: dict[TensorRef, int],
    uses: Counter[TensorRef],
    on_host: Container[Call],
) -> tuple[int, Call] | None:
    """The place of the producer that takes a call into its epilogue, and the two as one; None if there is no such."""
    activation = activation_of(call)
    for operand, residual in _operands(call, activation):
        place = makers.get(operand)
        producer = None if place is None else calls[place]
        if place is None or producer is None or uses[operand] != 1:
            continue
        if producer in on_host or not _takes_epilogue(producer):
            continue
        epilogue = _extended(producer, activation, residual)
        if epilogue is not None and operand.dtype == call.output.dtype:
            source = producer.source | call.source
            return place, CallWithEpilogue(producer.op, producer.args, call.outputs, source, epilogue=epilogue)
    return None


def _operands(call: Call, activation: Activation | None) -> list[tuple[TensorRef, TensorRef | None]]:
    """Tensors that a product may make, each with what is added to it; none if the call is of another kind."""
    if activation is not None:
        return [(call.args[0], None)]
    if call.op not in ("aten::add.Tensor", "aten::add_.Tensor") or call["alpha"] != 1:
        return []
    left, right = call.args[:2]
    if not isinstance(right, TensorRef) or left.sizes != right.sizes or left.dtype != right.dtype or left is right:
        return []
    return [(right, left), (left, right)]


def _takes_epilogue(call: Call) -> bool:
    lowering = lowering_of(call.op)
    return lowering is not None and lowering.function in _TAKE_EPILOGUES and why_unsupported(call) is None


def _extended(producer: Call, activation: Activation | None, residual: TensorRef | None) -> Epilogue | None:
    epilogue = epilogue_of(producer)
    if producer.output.dtype != torch.float32:
        # Halves are rounded between the product and what follows, so nothing may be part of the product itself.
        if not takes_residual(producer) or (epilogue.rounding is None and not epilogue.is_identity):
            return None
        epilogue = replace(epilogue, rounding=producer.output.dtype)
    if activation is not None:
        return epilogue.with_activation(activation)
    assert residual is not None
    return epilogue.with_residual(residual) if takes_residual(producer) else None
