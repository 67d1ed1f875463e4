"""Rewrites of a Trace that leave less to do: copies that nobody can tell from their source, batch normalisation as one
multiply-add. They run before any fusion."""

from __future__ import annotations

from dataclasses import replace

import torch

from mobopt.ops.schemas import schema_of
from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.nests import map_leaves

_COPIES = (
    "aten::clone",
    "aten::contiguous",
    "aten::alias",
    "aten::detach",
    "aten::lift_fresh",
    "aten::lift_fresh_copy",
)
_CONCATS = ("aten::cat", "aten::concat", "aten::concatenate")
_PADS = ("aten::pad", "aten::constant_pad_nd")
_DROPOUTS = ("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout")


def writes_in_place(call: Call) -> bool:
    """Whether a call changes one of its arguments."""
    return call.op.startswith("aten::") and schema_of(call.op).is_mutating


def simplify(trace: Trace) -> Trace:
    """The trace without copies and with batch normalisation as arithmetic.

    A trace that writes in place keeps its copies: there a copy and its source may come to differ.
    """
    calls = [_batch_norm_as_arithmetic(call) for call in trace.calls]
    if any(writes_in_place(call) for call in calls):
        return replace(trace, calls=calls)
    return _without_copies(replace(trace, calls=calls))


def _without_copies(trace: Trace) -> Trace:
    results = set(trace.results())
    computed = {output for call in trace.calls for output in call.outputs}
    same: dict[TensorRef, TensorRef] = {}
    calls: list[Call] = []
    makers: dict[TensorRef, int] = {}
    for call in trace.calls:
        call = replace(call, args=map_leaves(call.args, TensorRef, lambda ref: same.get(ref, ref)))
        original = _copied(call)
        if original is None or (call.output in results and (original not in computed or original in results)):
            makers.update((output, len(calls)) for output in call.outputs)
            calls.append(call)
            continue
        same[call.output] = original
        if original in makers:
            maker = calls[makers[original]]
            calls[makers[original]] = replace(maker, source=maker.source | call.source)
        if call.output in results:
            results.add(original)  # a further copy of it is another tensor of the result
    return replace(trace, calls=calls).with_results(lambda ref: same.get(ref, ref))


def _copied(call: Call) -> TensorRef | None:
    """The tensor whose elements the only output has, or None if there is no such."""
    if call.op in _CONCATS:
        parts = call["tensors"]
        return parts[0] if len(parts) == 1 and parts[0].dtype == call.output.dtype else None
    if call.op in _PADS:
        return call.args[0] if not any(call["pad"]) else None
    converts = call.op.startswith(("aten::to.", "aten::_to_copy", "aten::type_as", "aten::cpu"))
    same = (
        call.op in _COPIES
        or (call.op in _DROPOUTS and not call["train"])
        or (converts and call.args[0].dtype == call.output.dtype)
    )
    return call.args[0] if same else None


def _batch_norm_as_arithmetic(call: Call) -> Call:
    """``shift + x * factor`` in place of a batch normalisation whose statistics are constants."""
    if call.op != "aten::batch_norm" or call["training"] or call.output.dtype != torch.float32:
        return call
    names = ("weight", "bias", "running_mean", "running_var")
    refs = [call[name] for name in names]
    if None in refs[2:] or any(ref is not None and ref.constant is None for ref in refs):
        return call
    weight, bias, mean, variance = (None if ref is None else ref.constant.detach().double() for ref in refs)
    assert mean is not None and variance is not None
    factor = (variance + call["eps"]).rsqrt()
    factor = factor if weight is None else factor * weight
    moved = -(mean * factor)
    shift = moved if bias is None else bias + moved
    x = call.args[0]
    vectors = [_constant(vector.float().reshape(-1, *[1] * (x.rank - 2))) for vector in (shift, factor)]
    return Call("aten::addcmul", (vectors[0], x, vectors[1], 1), call.outputs, call.source)


def _constant(values: torch.Tensor) -> TensorRef:
    return TensorRef(values.dtype, tuple(values.shape), values)
