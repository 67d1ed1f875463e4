"""Rewrites of a Trace that leave less to do: copies that nobody can tell from their source, batch normalisation as one
multiply-add. They run before any fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mobopt.ops.schemas import schema_of
from mobopt.runtimes.call import Call, TensorRef, Trace, tensors_in
from mobopt.runtimes.nests import map_leaves

_COPIES = ("aten::clone", "aten::contiguous", "aten::alias", "aten::detach", "aten::lift_fresh", "aten::lift_fresh_copy")
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
    results = set(tensors_in([trace.result, trace.updates]))
    computed = {output for call in trace.calls for output in call.outputs}
    same: dict[TensorRef, TensorRef] = {}
    calls = []
    for call in trace.calls:
        call = replace(call, args=map_leaves(call.args, TensorRef, lambda ref: same.get(ref, ref)))
        if _is_copy(call) and (call.args[0] in computed or call.output not in results):
            same[call.output] = call.args[0]
        else:
            calls.append(call)

    def mapped(nest: Any) -> Any:
        return map_leaves(nest, TensorRef, lambda ref: same.get(ref, ref))

    return replace(trace, calls=calls, result=mapped(trace.result), updates=mapped(trace.updates))


def _is_copy(call: Call) -> bool:
    """Whether the only output has the elements of the first argument."""
    if call.op in _COPIES:
        return True
    if call.op in _DROPOUTS:
        return not call["train"]
    converts = call.op.startswith(("aten::to.", "aten::_to_copy", "aten::type_as", "aten::cpu"))
    return converts and call.args[0].dtype == call.output.dtype


def _batch_norm_as_arithmetic(call: Call) -> Call:
    """``shift + x * factor`` in place of a batch normalisation whose statistics are constants."""
    if call.op != "aten::batch_norm" or call["training"] or call.output.dtype != torch.float32:
        return call
    names = ("weight", "bias", "running_mean", "running_var")
    refs = [call[name] for name in names]
    if any(ref is None for ref in refs[2:]) or any(ref is not None and ref.constant is None for ref in refs):
        return call
    weight, bias, mean, variance = (None if ref is None else ref.constant.detach().double() for ref in refs)
    factor = (variance + call["eps"]).rsqrt()
    factor = factor if weight is None else factor * weight
    shift = -mean * factor if bias is None else bias - mean * factor
    x = call.args[0]
    vectors = [_constant(vector.float().reshape(-1, *[1] * (x.rank - 2))) for vector in (shift, factor)]
    return Call("aten::addcmul", (vectors[0], x, vectors[1], 1), call.outputs, call.source)


def _constant(values: torch.Tensor) -> TensorRef:
    return TensorRef(values.dtype, tuple(values.shape), values)
