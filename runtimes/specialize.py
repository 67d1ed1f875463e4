"""Specialise: a Program seen with one set of input shapes becomes a Segment, a straight line of nodes on tensors.

The method is evaluated once with tensors that have sizes but no elements (torch's meta kernels say what comes out of an
operator). Sizes, lists, strings, branches and loops are plain Python values, so nothing of them is left. What follows
from constants alone is computed here, once. In-place operators become functional ones (see
:mod:`mobopt.runtimes.abstract`), so every node of a Segment makes new tensors and changes none, and the caller's
tensors and the model's weights stay as they are.

Where the model looks at elements of a computed tensor (a branch on it, ``item()``, ``nonzero()``), the Segment ends:
its result is what must be read, and ``following`` says where the evaluation stands (:mod:`mobopt.runtimes.checkpoint`).
Once that is read, :func:`go_on` makes the next Segment, which takes what is still alive as inputs; nothing is computed
twice. A checkpoint is the same in each trip of a loop, and in each call, unless something but elements differs; so the
Segments of a loop are made in its first trips, and are found again by checkpoint and elements that were read. A look at
an input needs no computing, so the Segment that ends there is empty, and the next one begins where it began.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.ir import NOWHERE, Block, Node, Origin, Program, Value
from mobopt.ir.nests import copy_nests, leaves_of, map_leaves
from mobopt.ir.types import DictType, TensorType
from mobopt.ops.contexts import (
    BatchNormPackedContext,
    ClampedConvContext,
    ClampedLinearContext,
    Conv2dPackedContext,
    LayernormPackedContext,
    VulkanConv2dOpContext,
    XnnpackTransposeConv2dOpContext,
)
from mobopt.ops.records import Trait, has_trait, is_refused
from mobopt.ops.shapes.layouts import row_major
from mobopt.runtimes.abstract import (
    Memory,
    TracedTensor,
    constant_tensor,
    element_positions,
    meta_of,
    shows_as_it_lies,
    whole,
)
from mobopt.runtimes.checkpoint import Checkpoint, Standing
from mobopt.runtimes.cpu.evaluator import Environment, Evaluator
from mobopt.runtimes.host_tape import HostNumber, settled
from mobopt.runtimes.memories import MemoryPlace, StateMemories
from mobopt.runtimes.recorder import NeedsElementsError, Recorder
from mobopt.runtimes.segment import Alias, HostLeaf, Leaf, Returned, Segment

Bounds = tuple[int | float | None, int | float | None]

_OPEN: Any = (TracedTensor, HostNumber)

NO_STATE: Mapping[str, Any] = MappingProxyType({})


def specialize(
    program: Program,
    method: str,
    args: Sequence[Any],
    state: Mapping[str, Any] = NO_STATE,
    by_elements: Collection[str] = (),
) -> Segment:
    """The first Segment of a method for arguments of these shapes and dtypes.

    Args:
        program: the model.
        method: the method's name.
        args: its arguments without self; of tensors, only sizes and dtypes matter.
        state: values of the attributes that the model's methods change; all others are constants.
        by_elements: qualified operators whose results' sizes only the elements tell, beside those known for it.

    Returns:
        A Segment whose ``inputs`` are the tensors of ``args`` in order, then those of ``StateMemories(state)``.

    Raises:
        InputError: the arguments don't fit the model, or the model raises.
        UnsupportedError: the model needs what no runtime of ours can do.
    """
    with torch.no_grad():
        return Specializer(program, Recorder(by_elements=by_elements)).begin(method, args, state)


def go_on(
    program: Program,
    checkpoint: Checkpoint,
    answers: Sequence[torch.Tensor],
    numbers: Sequence[Any] = (),
    by_elements: Collection[str] = (),
) -> Segment:
    """The Segment that follows one which ended at a look at elements.

    Args:
        program: the model.
        checkpoint: where that Segment ended.
        answers: elements, as :meth:`Segment.handed_on` gives them.
        numbers: of the host, likewise.
        by_elements: as for :func:`specialize`.

    Returns:
        A Segment whose ``inputs`` are what the checkpoint carries, what the host computes, then the call's inputs.

    Raises:
        InputError: the model raises.
        UnsupportedError: the model needs what no runtime of ours can do.
    """
    with torch.no_grad():
        return Specializer(program, Recorder(answers, numbers, by_elements)).go_on(checkpoint)


class Specializer(Evaluator):
    """Evaluates with a :class:`TracedTensor` where the interpreter has a tensor."""

    def __init__(self, program: Program, recorder: Recorder) -> None:
        super().__init__(program)
        self._recorder = recorder
        self._graph = self._recorder.graph
        self._returned: dict[Value, int] = {}
        """The outputs, with their numbers."""
        self._given: dict[Memory, Value] = {}
        """The call's inputs by the memory that they stand for."""
        self._adopted: dict[int, TracedTensor] = {}
        """By the state's tensors."""
        self._lifted: dict[int, TracedTensor] = {}

    def begin(self, method: str, args: Sequence[Any], state: Mapping[str, Any]) -> Segment:
        """The first Segment; see :func:`specialize`."""

        def start() -> Checkpoint:
            twin = Specializer(self.program, Recorder())
            return Checkpoint(twin._entered(method, args, state), (), twin._recorder.operand)

        return self._segment(self._entered(method, args, state), [], start)

    def go_on(self, checkpoint: Checkpoint) -> Segment:
        """The next Segment; see :func:`go_on`."""
        contents = [self._parameter(kind, "carried") for kind in checkpoint.types]
        inputs = [self._parameter(kind, "input") for kind in checkpoint.inputs]
        standing = checkpoint.resumed(contents, inputs, self._recorder.numbers)
        self.state = standing.state
        self._given = dict(zip(standing.roots, inputs, strict=True))
        return self._segment(standing, contents, lambda: checkpoint)

    def _entered(self, method: str, args: Sequence[Any], state: Mapping[str, Any]) -> Standing:
        values = self._take(args, state)
        frames, environment = self.entry(method, values)
        arguments = sum(1 for _ in leaves_of(list(args), torch.Tensor))
        return Standing(frames, environment, self.state, list(self._given), arguments)

    def _segment(self, standing: Standing, contents: Sequence[Value], start: Callable[[], Checkpoint]) -> Segment:
        """Evaluate to the next look, or to the end.

        Args:
            standing: where the evaluation stands.
            contents: the inputs that are carried from the segment before.
            start: a checkpoint there.
        """
        self._standing = standing
        before = {name: _identity(value) for name, value in self.state.items()}

        def assigned() -> frozenset[str]:
            now = {name for name, value in self.state.items() if _identity(value) != before.get(name)}
            return standing.assigned | now

        try:
            (result,) = self.proceed(standing.frames, standing.environment)
            updates = {name: self.state[name] for name in self.state if name in assigned()}
            result, updates = self._leaves(result, updates)
            segment = Segment(self._graph, result, updates=updates, writes=self._writes())
        except NeedsElementsError as look:
            segment = self._cut(look.refs, standing, assigned(), contents, start)
        return self._finished(segment, contents)

    def _cut(
        self,
        refs: Sequence[Value],
        standing: Standing,
        assigned: frozenset[str],
        contents: Sequence[Value],
        start: Callable[[], Checkpoint],
    ) -> Segment:
        """The Segment that ends at a look at tensors; see :meth:`_segment`."""
        recorder = self._recorder
        if all(ref.producer is None for ref in refs):  # nothing need be computed to see them
            kept = (0, len(recorder.answers))
            numbers = [number.ref for number in recorder.numbers]
            following = start().answered(recorder.answers, contents, numbers)
        else:
            kept = recorder.partial_answers
            standing = replace(standing, assigned=assigned)
            following = Checkpoint(standing, recorder.answers[slice(*kept)], recorder.operand)
        looked = [self._return(ref) for ref in refs]
        carried = tuple(map(self._return, following.contents))
        return Segment(self._graph, looked, following, carried, tuple(following.numbers), kept=kept)

    def _finished(self, segment: Segment, contents: Sequence[Value]) -> Segment:
        """A Segment with its outputs, inputs and tape in place."""
        recorder = self._recorder
        self._graph.return_values(*self._returned)
        _remove_unused(self._graph.block)
        hosted = list(recorder.hosted.values())
        parameters = self._graph.block.parameters
        of_call = parameters[len(contents) :]
        for value in hosted:
            self._graph.block.add_parameter(value)
        parameters[:] = [*contents, *hosted, *of_call]
        segment.taken = len(contents) + len(hosted)
        segment.tape, segment.hosted = recorder.tape, recorder.hosted_refs
        return segment

    def _return(self, ref: Value) -> Returned:
        """Make a tensor an output."""
        ref = self._recorder.operand(ref)
        return Returned(self._returned.setdefault(ref, len(self._returned)))

    def _take(self, args: Sequence[Any], state: Mapping[str, Any]) -> list[Any]:
        """Arguments and state as tensors of the evaluation; an argument may lie in the state's memory."""
        memories = StateMemories(state)
        given = iter([self._input(tensor) for tensor in leaves_of(list(args), torch.Tensor)])
        wholes = [self._input(tensor) for tensor in memories.tensors]

        def lying(tensor: torch.Tensor) -> TracedTensor | None:
            place = memories.place(tensor)
            if place is None:
                return None
            if id(tensor) not in self._adopted:
                self._adopted[id(tensor)] = self._viewed(wholes[place.memory], place)
            return self._adopted[id(tensor)]

        self.state = copy_nests(state, torch.Tensor, lying)
        values: list[Any] = map_leaves(list(args), torch.Tensor, lambda tensor: _or(lying(tensor), next(given)))
        return values

    def _viewed(self, whole: TracedTensor, place: MemoryPlace) -> TracedTensor:
        if place.view is None:
            return whole
        sizes, strides, offset = place.view
        if strides != row_major(sizes, ()) or whole.meta.dim() != 1:
            steps = [("aten::as_strided", [list(sizes), list(strides), offset])]
        else:
            steps = [
                ("aten::slice.Tensor", [0, offset, offset + math.prod(sizes), 1]),
                ("aten::view", [list(sizes)]),
            ]
        for op, args in steps:
            whole = self._recorder.apply(op, [whole, *args], NOWHERE)
        return whole

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Apply an operator of a schema; a transfer between devices is the tensor itself."""
        op = node.qualified_op
        if has_trait(op, Trait.TRANSFER) or (op == "aten::to.prim_Device" and args[2] is None):
            return args[0]
        op, args, bounds = _without_context(op, args)
        args = self.lift(args)
        _check_dtype(op, args, node.origin)
        result = self._recorder.operate(op, args, node.origin)
        return result if bounds is None else self._recorder.apply("aten::clamp", [result, *bounds], node.origin)

    def arguments(self, node: Node, environment: Environment) -> list[Any]:
        """What a node reads; keys of dictionaries are plain values."""
        args = super().arguments(node, environment)
        if node.op == "prim::DictConstruct":
            args[::2] = settled(args[::2])
        elif len(args) > 1 and isinstance(node.inputs[0].type, DictType):
            args[1] = settled(args[1]) if isinstance(args[1], HostNumber) else args[1]
        elif node.op == "aten::dict" and args:
            args[0] = [(settled(key), item) for key, item in args[0]]
        return args

    def next_trip(self, trip: Any) -> Any:
        """The number of a loop's trip after this one; a number of the host stays one."""
        return trip.tape.do(operator.add, (trip, 1)) if isinstance(trip, HostNumber) else trip + 1

    def python_type(self, value: Any) -> type:
        """The type of a plain value."""
        return type(value.value) if isinstance(value, HostNumber) else type(value)

    def lift(self, value: Any) -> Any:
        """Constants become traced tensors, the same ones each time; containers are copied."""
        return map_leaves(value, torch.Tensor, self._lift_tensor)

    def is_tensor(self, value: Any) -> bool:
        """Whether a value stands for a tensor."""
        return isinstance(value, TracedTensor)

    def _lift_tensor(self, value: torch.Tensor) -> TracedTensor:
        if id(value) not in self._lifted:
            self._lifted[id(value)] = constant_tensor(value.detach())
        return self._lifted[id(value)]

    def _input(self, value: torch.Tensor) -> TracedTensor:
        if value.layout != torch.strided or value.is_quantized:
            raise InputError(f"an input is a {value.layout} {value.dtype} tensor; give a dense one, of plain numbers")
        tensor = whole(self._parameter(TensorType(value.dtype, tuple(value.shape)), "input"), meta_of(value))
        self._given[tensor.memory] = tensor.memory.ref
        return tensor

    def _parameter(self, kind: TensorType, name: str) -> Value:
        """A new input of the graph."""
        ref = Value(f"{name}{len(self._graph.inputs)}", kind)
        self._graph.block.add_parameter(ref)
        return ref

    def _writes(self) -> tuple[tuple[int, int], ...]:
        """The memories of the state that were written to, with what they hold now."""
        return tuple(
            (number, self._return(memory.ref).number)
            for number, memory in enumerate(self._given)
            if memory.is_written and self._standing.is_of_state(memory)
        )

    def _leaves(self, result: Any, updates: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The nests with what their tensors hold now, and which of them share memory.

        As in eager mode, a tensor may share the memory of an argument or of the state. An argument that was written to
        is another tensor then, for the caller's never changes.
        """
        lying: dict[Memory, dict[int, TracedTensor]] = {}
        for tensor in leaves_of([result, updates], TracedTensor):
            lying.setdefault(tensor.memory, {})[id(tensor)] = tensor
        known: dict[int, Leaf] = {}

        def leaf(tensor: TracedTensor) -> Leaf:
            if id(tensor) not in known:
                known[id(tensor)] = self._leaf(tensor, _overlap(lying[tensor.memory].values()))
            return known[id(tensor)]

        def open_leaf(value: TracedTensor | HostNumber) -> Leaf | HostLeaf:
            return HostLeaf(value.ref) if isinstance(value, HostNumber) else leaf(value)

        return map_leaves(result, _OPEN, open_leaf), copy_nests(updates, _OPEN, open_leaf)

    def _leaf(self, tensor: TracedTensor, is_shared: bool) -> Leaf:
        memory = tensor.memory
        if shows_as_it_lies(tensor.meta, memory.meta):
            if memory in self._given and (self._standing.is_of_state(memory) or not memory.is_written):
                return Alias(self._return(self._given[memory]).number, memory.meta, tensor.meta)
            if is_shared:
                return Alias(self._return(memory.ref).number, memory.meta, tensor.meta)
        return self._return(self._recorder.read(tensor))


def _or(tensor: TracedTensor | None, other: TracedTensor) -> TracedTensor:
    return other if tensor is None else tensor


def _overlap(tensors: Collection[TracedTensor]) -> bool:
    """Whether tensors of one memory have elements in common."""
    if len(tensors) < 2:
        return False
    positions = torch.cat([element_positions(tensor.meta) for tensor in tensors])
    return int(torch.unique(positions).numel()) < positions.numel()  # type: ignore[no-untyped-call]


def _identity(value: Any) -> Any:
    """Equal for the same tensors, in the same form, in the same nest of equal plain values."""
    if isinstance(value, TracedTensor):
        return id(value), id(value.meta)
    if isinstance(value, HostNumber):
        return id(value)
    if isinstance(value, (list, tuple)):
        return type(value), [_identity(item) for item in value]
    if isinstance(value, dict):
        return dict, [(key, _identity(item)) for key, item in value.items()]
    return type(value), value


def _check_dtype(op: str, args: list[Any], source: Origin) -> None:
    """Refuse what eager refuses: kernels of the device would give integers, cut off."""
    dtypes = [arg.meta.dtype for arg in args if isinstance(arg, TracedTensor)]
    if dtypes and is_refused(op, args, dtypes):
        place = f" at {source}" if source else ""
        name = str(dtypes[0]).removeprefix("torch.")
        raise InputError(
            f"{op}{place} takes no {name} here, as in eager mode; give the model floats (x.float(), x.npy:float32)"
        )


def _without_context(op: str, args: list[Any]) -> tuple[str, list[Any], Bounds | None]:
    """What the runtimes have in place of an operator that reads a packed context, and the range of its result.

    Normalisations and linear layers become plain operators; convolutions of Metal and XNNPACK become Vulkan's.
    """
    context = args[-1] if args else None
    if isinstance(context, LayernormPackedContext):
        return "aten::layer_norm", [*args[:-1], context.weight, context.bias, context.eps, False], None
    if isinstance(context, BatchNormPackedContext):
        settings = [context.running_mean, context.running_var, False, 0.0, context.eps, False]
        return "aten::batch_norm", [args[0], context.weight, context.bias, *settings], None
    if isinstance(context, ClampedConvContext):
        return "vulkan_prepack::conv2d_clamp_run", [args[0], VulkanConv2dOpContext(*context.state())], None
    if isinstance(context, XnnpackTransposeConv2dOpContext):
        weight, bias, stride, padding, output_padding, dilation, *rest = context.state()
        packed = Conv2dPackedContext(weight, bias, stride, padding, dilation, True, False, output_padding, *rest)
        return "vulkan_prepack::run_tconv2d_context", [args[0], packed], None
    if isinstance(context, ClampedLinearContext):
        bounds = (context.output_min, context.output_max)
        plain = [args[0], context.weight, context.bias]
        return "aten::linear", plain, None if bounds == (None, None) else bounds
    return op, args, None


def _remove_unused(block: Block) -> None:
    """Take out the nodes that no output depends on."""
    for node in reversed(block.nodes):
        if not any(output.is_used for output in node.outputs):
            node.destroy()
