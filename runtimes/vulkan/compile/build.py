"""From a Trace to a Stream: every call is lowered to dispatches, or becomes a call of the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from mobopt.errors import UnsupportedError
from mobopt.ir import Origin
from mobopt.runtimes.call import Call, TensorRef, Trace
from mobopt.runtimes.vulkan.compile.concatenation import Concatenation, find_concatenations
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_pointwise import fuse_pointwise
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.placement import Placement, place_calls
from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.limits import LimitError, too_large
from mobopt.runtimes.vulkan.engine.stream import Exchanged, HostCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import (
    WORD_BYTES,
    DeviceTensor,
    Storage,
    StorageKind,
    contiguous_strides,
    element_type,
)
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower


@dataclass(frozen=True)
class Fallback:
    """A call that runs on the CPU, and why."""

    op: str
    dtype: str
    rank: int
    reason: str
    source: Origin

    def __str__(self) -> str:
        place = f" at {self.source}" if self.source else ""
        return f"{self.op} of {self.dtype}, rank {self.rank}{place}: {self.reason}"


@dataclass(frozen=True)
class Built:
    """A Stream, and which of the Trace's tensors it takes and gives."""

    trace: Trace
    """As it was lowered: copies that nobody can tell from their source are gone."""
    stream: Stream
    inputs: tuple[int, ...]
    """Numbers of the Trace's inputs that the Stream takes, in its order."""
    outputs: tuple[TensorRef, ...]
    """What the Stream gives, in its order."""
    fallbacks: tuple[Fallback, ...]
    assumed: Mapping[TensorRef, Interval]
    """What the integers of int64 inputs must be; for others another Stream must be built."""


def build_stream(
    trace: Trace,
    device: DeviceInfo,
    constants: ConstantStore,
    allow_fallback: bool = True,
    integers: Mapping[TensorRef, Interval] | None = None,
    floats_fit: bool = True,
) -> Built:
    """Lower a Trace for a device.

    Args:
        trace: from :func:`mobopt.runtimes.specialize.specialize`.
        device: what the kernels are chosen for.
        constants: where packed weights are kept; shared by all plans of a model.
        allow_fallback: whether calls without a lowering may run on the CPU.
        integers: the classes of the int64 inputs, see :func:`mobopt.runtimes.vulkan.compile.placement.integer_class`.
        floats_fit: whether floats that become int64 are taken to be small, which the device checks.

    Raises:
        UnsupportedError: there are such calls and they may not.
    """
    load_lowerings()
    trace = simplify(trace)
    large = too_large(device, trace.calls)
    refused: dict[TensorRef, str] = {}
    while True:
        placement = place_calls(trace.calls, integers or {}, floats_fit, large, refused)
        try:
            return _build(trace, device, constants, allow_fallback, placement)
        except _RefusedCallError as error:
            refused.update((ref, error.reason) for ref in error.outputs)


class _RefusedCallError(Exception):
    """The lowering of a call needs what exceeds a limit of the device."""

    def __init__(self, call: Call, reason: str) -> None:
        super().__init__(reason)
        self.outputs = call.outputs
        self.reason = reason


def _build(
    trace: Trace, device: DeviceInfo, constants: ConstantStore, allow_fallback: bool, placement: Placement
) -> Built:
    """One attempt with a placement.

    Raises:
        UnsupportedError: see :func:`build_stream`.
        _RefusedCallError: a call can't be where it is placed. A fused one stands for the last of its parts, which is
            alone in the next attempt.
    """
    trace = fuse_pointwise(fold_epilogues(trace, placement.reasons), placement.reasons)
    fallbacks = tuple(_fallback(call, reason) for call, reason in placement.reasons.items())
    if fallbacks and not allow_fallback:
        raise UnsupportedError(
            f"{len(fallbacks)} operators can't run on the GPU; allow the CPU with fallback='cpu', or change the model: "
            + "; ".join(dict.fromkeys(map(str, fallbacks)))
        )
    plan = Plan(device, constants)
    used = {ref for call in trace.calls for ref in call.tensors()}
    taken = tuple(number for number, ref in enumerate(trace.inputs) if ref in used)
    for number in taken:
        _place_input(plan, trace.inputs[number], placement)
    outputs = _computed_results(trace)
    readers = _readers(trace.calls, outputs)
    concatenations = find_concatenations([call for call in trace.calls if call not in placement.reasons])
    for concatenation in dict.fromkeys(concatenations.values()):
        concatenation.reserve(plan)
    for on_host, group in groupby(trace.calls, key=lambda call: call in placement.reasons):
        if on_host:
            _append_host_call(plan, list(group), readers, placement)
        else:
            for call in group:
                _append_lowered(plan, call, concatenations.get(call))
    sources = {ref: call.source for call in trace.calls for ref in call.outputs}
    for ref in outputs:
        plan.label, plan.source = "result", sources[ref]
        _append_output(plan, ref, placement)
    return Built(trace, plan.stream, taken, outputs, fallbacks, placement.assumed)


def _fallback(call: Call, reason: str) -> Fallback:
    first = next(iter([*call.tensors(), *call.outputs]))
    return Fallback(call.op, str(first.dtype).removeprefix("torch."), first.rank, reason, call.source)


def _computed_results(trace: Trace) -> tuple[TensorRef, ...]:
    """The tensors of the result that the device computes: neither constants nor inputs, each once."""
    inputs = set(trace.inputs)
    refs = dict.fromkeys(trace.results())
    return tuple(ref for ref in refs if ref.constant is None and ref not in inputs)


def _place_input(plan: Plan, ref: TensorRef, placement: Placement) -> None:
    if placement.on_host(ref):
        plan.stream.inputs.append(plan.host_tensor(ref))
        return
    elements = element_type(ref.dtype)
    nbytes = -(-max(ref.numel, 1) * elements.itemsize // WORD_BYTES) * WORD_BYTES
    storage = Storage(nbytes, StorageKind.INPUT, name=ref.name, elements=elements)
    tensor = DeviceTensor(storage, ref.dtype, ref.sizes, contiguous_strides(ref.sizes))
    plan.stream.inputs.append(tensor)
    plan.place(ref, tensor)


def _append_lowered(plan: Plan, call: Call, concatenation: Concatenation | None) -> None:
    sizes = "x".join(map(str, call.outputs[0].sizes))
    plan.label, plan.source = f"{call.op} {sizes}", call.source
    try:
        result = lower(plan, call) if concatenation is None else concatenation.lower(plan, call)
    except LimitError as error:
        raise _RefusedCallError(call, str(error)) from error
    tensors = result if isinstance(result, tuple) else (result,)
    for ref, tensor in zip(call.outputs, tensors, strict=True):
        assert (tensor.dtype, tensor.sizes) == (ref.dtype, ref.sizes), f"{call.op} made {tensor}, not {ref}"
        plan.place(ref, tensor)


def _append_output(plan: Plan, ref: TensorRef, placement: Placement) -> None:
    """Make a tensor an output: in place if it fills a temporary of its own, else the engine copies it."""
    if placement.on_host(ref):
        plan.stream.outputs.append(plan.host_tensor(ref))
        return
    dense = as_contiguous(plan, plan.tensor(ref))
    if dense.storage.kind is StorageKind.TEMPORARY and dense.offset == 0:
        dense.storage.kind = StorageKind.OUTPUT
    plan.stream.outputs.append(dense)


# Calls of the host.


def _readers(calls: Sequence[Call], outputs: Iterable[TensorRef]) -> dict[TensorRef, set[Call | None]]:
    """Who reads each tensor; None stands for the caller of the plan."""
    readers: dict[TensorRef, set[Call | None]] = {ref: {None} for ref in outputs}
    for call in calls:
        for ref in call.tensors():
            readers.setdefault(ref, set()).add(call)
    return readers


def _append_host_call(
    plan: Plan, calls: list[Call], readers: dict[TensorRef, set[Call | None]], placement: Placement
) -> None:
    """Run consecutive calls on the CPU in one go, so that what is between them stays there, at its full precision."""
    plan.label = "CPU: " + ", ".join(dict.fromkeys(call.op for call in calls))
    plan.source = Origin.union(call.source for call in calls)
    made = {ref for call in calls for ref in call.outputs}
    inputs = tuple(dict.fromkeys(ref for ref in _inputs(calls) if ref not in made))
    outputs = tuple(ref for call in calls for ref in call.outputs if readers.get(ref, set()) - set(calls))

    def given(ref: TensorRef) -> Exchanged:
        return plan.host_tensor(ref) if placement.on_host(ref) else as_contiguous(plan, plan.tensor(ref))

    for ref in outputs:
        if not placement.on_host(ref):
            plan.place(ref, plan.empty(ref.sizes, ref.dtype, contiguous_strides(ref.sizes)))
    plan.stream.append(
        HostCall(
            run=HostFunction(calls, inputs, outputs),
            inputs=tuple(map(given, inputs)),
            outputs=tuple(map(given, outputs)),
            label=plan.label,
            reason=placement.reasons[calls[0]],
            source=plan.source,
        )
    )


def _inputs(calls: Iterable[Call]) -> Iterator[TensorRef]:
    """Tensors that calls read and that aren't known already."""
    return (ref for call in calls for ref in call.tensors() if ref.constant is None)
