"""From a Segment to a Stream: every node is lowered to dispatches, or becomes a call of the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir import NOWHERE, Graph, Node, Origin, Value
from mobopt.ir.rewriting import dissolve
from mobopt.ops.arithmetic import flops_of
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.compile.activations import find_activations
from mobopt.runtimes.vulkan.compile.attention import find_attention, share_heads
from mobopt.runtimes.vulkan.compile.batch_norms import fold_batch_norms
from mobopt.runtimes.vulkan.compile.concatenation import Concatenation, find_concatenations
from mobopt.runtimes.vulkan.compile.declared_halves import DeclaredHalves, HalfChoice
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.compile.euclidean_norms import find_euclidean_norms
from mobopt.runtimes.vulkan.compile.extremes import join_extremes
from mobopt.runtimes.vulkan.compile.fake_quantize import drop_repeated, find_fake_quantize, find_rounded_gates
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_cached_attention import fold_cached_attention
from mobopt.runtimes.vulkan.compile.fusion_depthwise import fold_expansions
from mobopt.runtimes.vulkan.compile.fusion_excitation import fold_excitations
from mobopt.runtimes.vulkan.compile.fusion_finishes import fold_finishes
from mobopt.runtimes.vulkan.compile.fusion_gates import fold_gates
from mobopt.runtimes.vulkan.compile.fusion_normalization import fold_normalizations
from mobopt.runtimes.vulkan.compile.fusion_pointwise import fuse_pointwise
from mobopt.runtimes.vulkan.compile.fusion_rotary import fold_rotary, join_rotary
from mobopt.runtimes.vulkan.compile.fusion_row_layers import fold_row_layers
from mobopt.runtimes.vulkan.compile.fusion_scaling import fold_scalings
from mobopt.runtimes.vulkan.compile.fusion_shortcuts import fold_shortcuts
from mobopt.runtimes.vulkan.compile.gates import interleave_gates
from mobopt.runtimes.vulkan.compile.group_norms import find_group_norms
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.compile.in_place import written_in_place
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.layer_scales import fold_layer_scales
from mobopt.runtimes.vulkan.compile.narrowing import narrow_early
from mobopt.runtimes.vulkan.compile.norm_views import view_before_norms
from mobopt.runtimes.vulkan.compile.normalizations import find_normalizations
from mobopt.runtimes.vulkan.compile.placement import Placement, place_calls
from mobopt.runtimes.vulkan.compile.precision import NOTHING_HALVED, HalfReport, Halving
from mobopt.runtimes.vulkan.compile.projections import join_projections
from mobopt.runtimes.vulkan.compile.quantized import choose_rows_first, expand_weights, fold_weights, is_never_made
from mobopt.runtimes.vulkan.compile.rolls import find_rolls
from mobopt.runtimes.vulkan.compile.row_orders import order_rows
from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.compile.tokens import add_before_joining
from mobopt.runtimes.vulkan.compile.upsampling import convolve_before_upsampling
from mobopt.runtimes.vulkan.compile.views_after_steps import move_views_after_steps
from mobopt.runtimes.vulkan.compile.widening import HALVES_BY_OPERATOR, return_halves, widen_halves
from mobopt.runtimes.vulkan.compile.wrapped_indices import read_from_end
from mobopt.runtimes.vulkan.decompositions.registry import load_decompositions
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.limits import LimitError, exceeded_limit
from mobopt.runtimes.vulkan.engine.stream import NO_CALL, Exchanged, HostCall, HostTensor, LoweredCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import (
    WORD_BYTES,
    DeviceTensor,
    Storage,
    StorageKind,
    contiguous_strides,
    storage_type,
)
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous, copied, strided_copy
from mobopt.runtimes.vulkan.kernels.device_costs import chained_workgroups, code_ahead_bytes, doorbell_bytes
from mobopt.runtimes.vulkan.kernels.epilogue import parts_of
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan
from mobopt.runtimes.vulkan.kernels.product_kernels import use_shared_memory
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower_supported


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
    """A Stream, and which of the Segment's tensors it takes and gives."""

    stream: Stream
    inputs: tuple[int, ...]
    """Numbers of the Segment's inputs that the Stream takes, in its order."""
    outputs: tuple[Value, ...]
    """What the Stream gives, in its order."""
    fallbacks: tuple[Fallback, ...]
    assumed: Mapping[Value, Interval]
    """What the integers of int64 inputs must be; for others another Stream must be built."""
    halves: HalfReport | None = None
    """What lies as halves, if that was asked for."""


def build_stream(
    segment: Segment,
    device: DeviceInfo,
    constants: ConstantStore,
    allow_fallback: bool = True,
    integers: Mapping[Value, Interval] | None = None,
    floats_fit: bool = True,
    refuse: Callable[[Node], str | None] = lambda node: None,
    halving: Halving | None = None,
    make_plan: Callable[..., Plan] = Plan,
    state: Collection[Value] = (),
    arrays: Callable[[], Collection[Value]] = tuple,
) -> Built:
    """Lower a Segment for a device.

    Args:
        segment: from :func:`mobopt.runtimes.specialize.specialize`; its graph becomes what is lowered: nodes are
            decomposed, copies that nobody can tell from their source go, and nodes are fused.
        device: what the kernels are chosen for.
        constants: where packed weights are kept; shared by all plans of a model.
        allow_fallback: whether calls without a lowering may run on the CPU.
        integers: the classes of the int64 inputs, see :func:`mobopt.runtimes.vulkan.compile.placement.integer_class`.
        floats_fit: whether floats that become int64 are taken to be small, which the device checks.
        refuse: why a node is to run on the CPU although the device could compute it, if it is.
        halving: what chooses the tensors that lie as halves; None: each lies as its dtype says.
        make_plan: makes what lowerings append to.
        state: inputs that may be written to, parts of the state in arrays that nobody else has.
        arrays: gives the outputs that stay on the device, in arrays; it is asked once nodes are fused.

    Raises:
        UnsupportedError: there are such calls and they may not.
    """
    load_lowerings()
    load_decompositions()
    graph = segment.graph
    _take_apart(graph)
    if HALVES_BY_OPERATOR not in device.switches:
        widen_halves(segment)
    choice: HalfChoice | None = halving
    if choice is None and segment.declared is not None:
        choice = DeclaredHalves(segment.declared.half)
    if choice is not None:
        choice.begin(graph)
    if segment.declared is not None:
        fold_batch_norms(graph, constants)
    expand_weights(graph, device, constants)
    decompose(graph)
    simplify(graph)
    join_extremes(graph)
    find_fake_quantize(graph)
    drop_repeated(graph)
    find_rolls(graph)
    read_from_end(graph)
    move_views_after_steps(graph)
    find_group_norms(graph)
    find_normalizations(graph)
    find_euclidean_norms(graph)
    find_activations(graph)
    find_rounded_gates(graph)
    fold_layer_scales(graph, constants, None if choice is None else choice.elements)
    add_before_joining(graph, constants)
    convolve_before_upsampling(graph)
    if use_shared_memory(device):
        find_attention(graph)
        share_heads(graph)
        interleave_gates(graph, constants)
        join_projections(graph, constants)
    order_rows(graph)
    narrow_early(graph)
    view_before_norms(graph)
    choose_rows_first(graph)
    if choice is not None:
        choice.watch(graph)
    large = _too_large(device, graph.block.nodes)
    refused = {value: why for node in graph.block.nodes if (why := refuse(node)) for value in node.outputs}
    while True:
        placement = place_calls(list(graph.block.nodes), integers or {}, floats_fit, large, refused)
        try:
            return _build(segment, device, constants, allow_fallback, placement, choice, make_plan, state, arrays)
        except _RefusedCallError as error:
            refused.update((value, error.reason) for value in error.outputs)
            _take_apart(graph)


def _too_large(device: DeviceInfo, calls: Iterable[Node]) -> dict[Value, str]:
    """The tensors of calls that no buffer of the device can hold, each with the limit that it exceeds."""
    tensors = {value for call in calls for value in (*call.inputs, *call.outputs) if not is_never_made(value)}
    exceeded = {value: exceeded_limit(device, value.sizes, value.dtype) for value in tensors}
    return {value: reason for value, reason in exceeded.items() if reason is not None}


def _take_apart(graph: Graph) -> None:
    """Undo all fusions: those of an attempt before, or for another device."""
    for node in graph.block.nodes:
        if node.blocks:
            dissolve(node)


class _RefusedCallError(Exception):
    """The lowering of a call needs what exceeds a limit of the device."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(reason)
        self.outputs = tuple(node.outputs)
        self.reason = reason


def _build(
    segment: Segment,
    device: DeviceInfo,
    constants: ConstantStore,
    allow_fallback: bool,
    placement: Placement,
    halving: HalfChoice | None,
    make_plan: Callable[..., Plan],
    state: Collection[Value],
    arrays: Callable[[], Collection[Value]],
) -> Built:
    """One attempt with a placement.

    Raises:
        UnsupportedError: see :func:`build_stream`.
        _RefusedCallError: a call can't be where it is placed. A fused one stands for the last of its parts, which is
            alone in the next attempt.
    """
    graph = segment.graph
    fold_weights(graph, placement.reasons)
    fold_epilogues(graph, placement.reasons)
    is_apart = halving.names if halving is not None else lambda node: False
    is_unfit = halving.is_unfit if halving is not None else lambda node: False
    has_units = halving is not None and multiplies(device, halving.elements)
    if use_shared_memory(device):
        fold_shortcuts(graph, device, placement.reasons, has_units, is_apart)
        fold_scalings(graph, placement.reasons, is_apart, is_unfit)
        fold_expansions(graph, device, placement.reasons, is_apart)
    fold_gates(graph, device, placement.reasons, has_units, is_apart)
    fold_normalizations(graph, device, placement.reasons, is_apart)
    fold_row_layers(graph, device, placement.reasons, halving is not None, is_apart)
    fold_excitations(graph, device, placement.reasons, is_apart)
    fold_rotary(graph, device, placement.reasons)
    fold_finishes(graph, placement.reasons, is_apart)
    fuse_pointwise(graph, placement.reasons, placement.long, repeats_numbers=not device.is_cpu)
    fallbacks = tuple(_fallback(node, reason) for node, reason in placement.reasons.items())
    if fallbacks and not allow_fallback:
        raise UnsupportedError(
            f"{len(fallbacks)} operators can't run on the GPU; allow the CPU with fallback='cpu', or change the model: "
            + "; ".join(dict.fromkeys(map(str, fallbacks)))
        )
    return_halves(segment)
    declared = segment.declared_halves
    # Only halves of the plan's own type are where they lie what the plan computes with.
    writable = [value for value in state if halving is None or declared.get(value) in (None, halving.elements)]
    in_place = written_in_place(segment, device, writable, placement.reasons, placement.long)
    halved = NOTHING_HALVED
    if halving is not None:
        halved = halving.choose(graph, placement.reasons, in_place, has_units, declared)
    join_rotary(graph, device, placement.reasons, placement.long, in_place)
    fold_cached_attention(graph, device, placement.reasons, in_place)
    plan = make_plan(
        device,
        constants,
        halved=halved.values,
        half=halved.elements,
        long=placement.long,
        roundable_inputs=halved.roundable_inputs,
        in_place=in_place,
    )
    taken = tuple(number for number, value in enumerate(graph.inputs) if _is_read(graph, value))
    for number in taken:
        _place_input(plan, graph.inputs[number], placement, declared)
    concatenations = find_concatenations([node for node in graph.block.nodes if node not in placement.reasons])
    for concatenation in dict.fromkeys(concatenations.values()):
        concatenation.reserve(plan)
    for on_host, group in groupby(graph.block.nodes, key=lambda node: node in placement.reasons):
        if on_host:
            _append_host_call(plan, list(group), placement)
        else:
            for node in group:
                plan.halves_weights = node in halved.nodes
                _append_lowered(plan, node, concatenations.get(node))
    outputs, in_arrays = segment.computed_outputs(), arrays()
    for value in outputs:
        plan.enter("result", (), NOWHERE if value.producer is None else value.producer.origin, NO_CALL)
        _append_output(plan, value, placement, value in in_arrays, declared.get(value))
    plan.stream.chained_workgroups = chained_workgroups(device)
    plan.stream.code_ahead_bytes = code_ahead_bytes(device)
    plan.stream.doorbell_bytes = doorbell_bytes(device)
    halves = None if halving is None else halved.report(plan)
    return Built(plan.stream, taken, outputs, fallbacks, placement.assumed, halves)


def _is_read(graph: Graph, value: Value) -> bool:
    """Whether a node reads a value; to be returned is not enough."""
    return any(user is not graph.block.returns for user, _ in value.uses)


def _fallback(call: Node, reason: str) -> Fallback:
    first = next(iter([*call.inputs, *call.outputs]))
    return Fallback(call.qualified_op, str(first.dtype).removeprefix("torch."), first.rank, reason, call.origin)


def _place_input(plan: Plan, ref: Value, placement: Placement, declared: Mapping[Value, torch.dtype]) -> None:
    """Make an input a tensor of the graph; halves of another type than those of the plan become float32."""
    if placement.on_host(ref):
        plan.stream.inputs.append(plan.host_tensor(ref))
        return
    elements = declared.get(ref) or plan.elements_of(ref)
    itemsize = ref.dtype.itemsize if ref.dtype.is_complex else elements.itemsize
    nbytes = -(-max(ref.numel, 1) * itemsize // WORD_BYTES) * WORD_BYTES
    storage = Storage(nbytes, StorageKind.INPUT, name=ref.name, elements=elements)
    tensor = DeviceTensor(storage, ref.dtype, ref.sizes, contiguous_strides(ref.sizes))
    plan.stream.inputs.append(tensor.of(declared.get(ref, ref.dtype)))
    if ref in declared and elements != plan.half:
        tensor = copied(plan, tensor, contiguous_strides(ref.sizes), ref.dtype)
    plan.place(ref, tensor)


def _append_lowered(plan: Plan, node: Node, concatenation: Concatenation | None) -> None:
    plan.enter(parts_of(node)[0].qualified_op, node.outputs[0].sizes, node.origin, _lowered_call([node]))
    try:
        result = lower_supported(plan, node) if concatenation is None else concatenation.lower(plan, node)
    except LimitError as error:
        raise _RefusedCallError(node, str(error)) from error
    tensors = result if isinstance(result, tuple) else (result,)
    for value, tensor in zip(node.outputs, tensors, strict=True):
        assert (tensor.dtype, tensor.sizes) == (value.dtype, value.sizes), f"{node!r} made {tensor}, not {value}"
        is_whole = tensor.storage.elements.itemsize >= storage_type(value.dtype).itemsize
        assert is_whole or value in plan.halved, f"{node!r} rounded {value}"
        plan.place(value, tensor if tensor.is_long == (value in plan.long) else _of_own_width(plan, tensor, value))


def _of_own_width(plan: Plan, tensor: DeviceTensor, value: Value) -> DeviceTensor:
    """A copy of an int64 tensor whose elements are as wide as is known of the value: a view has those of its source."""
    copy = plan.own_result(value)
    strided_copy(plan, tensor, copy, fresh=True)
    return copy


def _append_output(
    plan: Plan, ref: Value, placement: Placement, is_array: bool, declared: torch.dtype | None = None
) -> None:
    """Make a tensor an output: in place if it fills a temporary of its own, else the engine copies it.

    What lies as halves crosses to the host so, which widens them: half the bytes, and the same floats. Whoever has an
    array finds there what its dtype says. What is ``declared`` as halves is of that dtype.
    """
    if placement.on_host(ref):
        given = plan.host_tensor(ref)
        plan.stream.outputs.append(given if declared is None else _converted_on_host(plan, given, declared))
        return
    tensor, dtype = plan.tensor(ref), declared or ref.dtype
    is_halved = ref in plan.halved and not is_array and declared is None
    if is_halved or tensor.is_long or tensor.storage.elements == storage_type(dtype):
        dense = as_contiguous(plan, tensor)
    else:
        dense = copied(plan, tensor, contiguous_strides(tensor.sizes), dtype)
    if dense.storage.kind is StorageKind.TEMPORARY and dense.offset == 0:
        dense.storage.kind = StorageKind.OUTPUT
    plan.stream.outputs.append(dense.of(dtype))


# Calls of the host.

_CONVERTED = "the model gives it in half precision"


def _append_host_call(plan: Plan, nodes: list[Node], placement: Placement) -> None:
    """Run consecutive nodes on the CPU in one go, so that what is between them stays there, at its full precision."""
    names = ", ".join(dict.fromkeys(node.qualified_op for node in nodes))
    plan.enter(f"CPU: {names}", (), Origin.union(node.origin for node in nodes), _lowered_call(nodes))
    group = set(nodes)
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value.elements is None)
    inputs = tuple(value for value in read if value.producer not in group)
    made = (value for node in nodes for value in node.outputs)
    outputs = tuple(value for value in made if any(user not in group for user, _ in value.uses))

    def given(value: Value) -> Exchanged:
        return plan.host_tensor(value) if placement.on_host(value) else as_contiguous(plan, plan.tensor(value))

    for value in outputs:
        if not placement.on_host(value):
            strides, elements = contiguous_strides(value.sizes), plan.elements_of(value)
            plan.place(value, plan.empty(value.sizes, value.dtype, strides, elements))
    plan.stream.append(
        HostCall(
            run=HostFunction(nodes, inputs, outputs),
            inputs=tuple(map(given, inputs)),
            outputs=tuple(map(given, outputs)),
            label=plan.label,
            reason=placement.reasons[nodes[0]],
            source=plan.source,
            call=plan.call,
        )
    )


def _converted_on_host(plan: Plan, given: HostTensor, dtype: torch.dtype) -> HostTensor:
    """What the host alone keeps, in another dtype."""
    made = HostTensor(dtype, given.sizes)
    convert = HostCall(lambda tensor: (tensor.to(dtype),), (given,), (made,), plan.label, _CONVERTED, plan.source)
    plan.stream.append(convert)
    return made


def _lowered_call(nodes: Sequence[Node]) -> LoweredCall:
    parts = [part for node in nodes for part in (node.blocks[0].nodes if node.blocks else [node])]
    return LoweredCall(tuple(part.qualified_op for part in parts), lambda: sum(map(flops_of, nodes)))
