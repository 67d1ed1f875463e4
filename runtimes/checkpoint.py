"""Where the evaluation of a method stands when it must look at elements, so that it can go on any number of times.

A checkpoint holds the blocks that the evaluation is in, the values that are still read, and the state as it has become.
Tensors among them lie in memories (:mod:`mobopt.runtimes.abstract`): those that hold what was computed are *carried* to
the next segment, whose parameters they become, so views and what shares memory last. Two evaluations stand at the same
checkpoint if nothing that decides how they go on tells them apart: ``key`` has the place in the control flow, plain
values, and the types, strides and sharing of tensors, but no elements of what is carried, and of numbers that a loop
has made only that they are numbers. So a loop whose trips differ in elements and numbers comes by one
checkpoint in each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.ir import NOWHERE, Block, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.runtimes.abstract import Memory, TracedTensor, ViewRecipe
from mobopt.runtimes.cpu.evaluator import Environment, Frame
from mobopt.runtimes.host_tape import Decisions, HostNumber, Ref, Tape, elements_key, form_of

_SMALL_BYTES = 1024
"""Constants of so many bytes are told apart by what they hold, larger ones by where they lie."""
_ENDLESS = 2**63 - 1
"""The limit of a loop that only its condition ends."""
_PLAIN = Ref(-1)
"""Stands for a number that no tape has."""


@dataclass
class Standing:
    """An evaluation between two nodes."""

    frames: list[Frame]
    environment: Environment
    state: dict[str, Any]
    roots: list[Memory]
    """The memories of the call's inputs: of arguments, then of the state."""
    arguments: int
    """How many of these are of arguments."""
    assigned: frozenset[str] = frozenset()
    """Attributes that were given other values since the call began."""

    def is_of_state(self, memory: Memory) -> bool:
        """Whether a memory is one of the state's."""
        return any(memory is root for root in self.roots[self.arguments :])


class Checkpoint:
    """A standing that belongs to no evaluation: each that goes on from here gets a copy.

    Attributes:
        key: equal for checkpoints from which evaluations go on alike.
        types: of what the carried memories hold, in order.
        inputs: the types of the call's inputs.
        decisions: how evaluations went on from here.
    """

    def __init__(self, standing: Standing, answers: Sequence[torch.Tensor], operand: Callable[[Value], Value]) -> None:
        """Take a copy of where an evaluation stands; :attr:`contents` is what it must hand on.

        Args:
            standing: it.
            answers: elements that the evaluation has been given before it asked for more; it asks for them again.
            operand: what the graph has for a tensor that the host computed from elements; other values as they are.
        """
        standing = _opened(standing)
        tidy = _Tidying()
        for tensor in _tensors(standing):
            tidy.tensor(tensor)
        form = _Form(standing, operand)
        self._form = form.key
        self._answers = form_of(tuple(answers))
        self.contents = [operand(memory.ref) for memory in form.carried]
        """What the carried memories hold; values of the segment that ends here."""
        self.numbers = [number.value if number.ref == _PLAIN else number.ref for number in form.numbers]
        """Numbers that the evaluation goes on with: of the segment's tape, or plain ones."""
        self.types = [value.tensor_type for value in self.contents]
        self.inputs = [memory.ref.tensor_type for memory in standing.roots]
        self.decisions = Decisions()
        blanks = [[Value("", kind) for kind in types] for types in (self.types, self.inputs)]
        blank_numbers = [HostNumber(0, Ref(0), Tape(())) for _ in form.numbers]
        blank = _by_id(form.numbers, blank_numbers)
        self._standing, self._carried = _copied(standing, form.carried, blanks[0], blanks[1], blank)
        self._numbers = blank_numbers

    @property
    def key(self) -> Hashable:
        """Equal for checkpoints from which evaluations go on alike."""
        return self._form, self._answers

    def answered(
        self, answers: Sequence[torch.Tensor], contents: Sequence[Value], numbers: Sequence[Ref | int | float]
    ) -> Checkpoint:
        """The same place with more answers, at the end of a segment that computes nothing but hands on what it took."""
        twin = copy(self)
        twin._answers, twin.contents, twin.numbers = form_of(tuple(answers)), list(contents), list(numbers)
        twin.decisions = Decisions()
        return twin

    def resumed(self, contents: Sequence[Value], inputs: Sequence[Value], numbers: Sequence[HostNumber]) -> Standing:
        """A standing to go on with.

        Args:
            contents: what the carried memories hold, in order.
            inputs: the call's inputs.
            numbers: those that were handed on.
        """
        return _copied(self._standing, self._carried, contents, inputs, _by_id(self._numbers, numbers))[0]


def _opened(standing: Standing) -> Standing:
    """The same with the numbers that bodies of loops have made as numbers of the host.

    So trips that differ in these alone come by one checkpoint; what is asked of a number decides.
    """
    environment = dict(standing.environment)
    bodies = {frame.block for frame in standing.frames if frame.is_loop}
    for value, item in standing.environment.items():
        if type(item) in (int, float) and _is_made_in(bodies, value):
            environment[value] = HostNumber(item, _PLAIN, Tape(()))
    frames = [replace(frame) for frame in standing.frames]
    for frame in frames:
        if _counts(frame) and type(frame.trip) is int:
            counter = environment.get(frame.block.parameters[0])
            frame.trip = HostNumber(frame.trip, _PLAIN, Tape(())) if counter is None else counter
    return replace(standing, frames=frames, environment=environment)


def _is_made_in(bodies: Collection[Block], value: Value) -> bool:
    """Whether a value belongs to one of these blocks, or to one nested in them."""
    block = value.owner if value.producer is None else value.producer.block
    while block is not None and block not in bodies:
        block = None if block.node is None else block.node.block
    return block is not None


def _counts(frame: Frame) -> bool:
    """Whether anything asks how often a loop has gone round."""
    return frame.is_loop and (frame.limit != _ENDLESS or frame.block.parameters[0].is_used)


def _by_id(old: Sequence[HostNumber], new: Sequence[HostNumber]) -> dict[int, HostNumber]:
    return {id(one): other for one, other in zip(old, new, strict=True)}


def _copied(
    standing: Standing,
    carried: Sequence[Memory],
    contents: Sequence[Value],
    inputs: Sequence[Value],
    numbers: dict[int, HostNumber],
) -> tuple[Standing, list[Memory]]:
    """A copy, and the memories in it that are carried."""
    held = {
        memory: value
        for memory, value in zip(standing.roots, inputs, strict=True)
        if not memory.is_written or memory.ref.elements is None
    }
    held.update(zip(carried, contents, strict=True))
    copies = _Copy(held, numbers)
    twin = Standing(
        [replace(frame, trip=copies.of(frame.trip)) for frame in standing.frames],
        {value: copies.of(item) for value, item in standing.environment.items()},
        {name: copies.of(item) for name, item in standing.state.items()},
        [copies.memory(memory) for memory in standing.roots],
        standing.arguments,
        standing.assigned,
    )
    return twin, [copies.memory(memory) for memory in carried]


def _tensors(standing: Standing) -> Iterable[TracedTensor]:
    yield from leaves_of(list(standing.environment.values()), TracedTensor)
    yield from leaves_of(list(standing.state.values()), TracedTensor)


class _Tidying:
    """Makes views hang on their own memory alone, so that nothing else is carried for them."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def tensor(self, tensor: TracedTensor) -> None:
        """Tidy a tensor, and what its recipe reads."""
        if id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        recipe, memory = tensor.recipe, tensor.memory
        if recipe is None:
            return
        if self._reads_others(recipe, memory) and _is_dense(memory.meta) and memory.meta.dtype == tensor.meta.dtype:
            whole = TracedTensor(memory, memory.meta, memory.ref, memory.version)
            meta = tensor.meta
            place = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
            tensor.recipe = ViewRecipe("aten::as_strided", (whole, *place), 0, NOWHERE)
            return
        for base in leaves_of(recipe.args, TracedTensor):
            self.tensor(base)

    def _reads_others(self, recipe: ViewRecipe, memory: Memory) -> bool:
        bases = list(leaves_of(recipe.args, TracedTensor))
        return any(
            base.memory is not memory or (base.recipe is not None and self._reads_others(base.recipe, memory))
            for base in bases
        )


def _is_dense(meta: torch.Tensor) -> bool:
    return meta.is_contiguous() and meta.storage_offset() == 0


class _Form:
    """What decides how an evaluation goes on, in an order of its own."""

    def __init__(self, standing: Standing, operand: Callable[[Value], Value]) -> None:
        self._standing = standing
        self._operand = operand
        self._roots = {id(memory): number for number, memory in enumerate(standing.roots)}
        self._numbers: dict[int, int] = {}
        self.carried: list[Memory] = []
        self.numbers: list[HostNumber] = []
        values = sorted(standing.environment.items(), key=lambda item: id(item[0]))
        self.key: Hashable = (
            tuple(map(self._of_frame, standing.frames)),
            tuple((id(value), self._of(item)) for value, item in values),
            tuple(self._of(item) for item in standing.state.values()),
            tuple(self._of_root(memory) for memory in standing.roots),
            standing.assigned,
        )

    def _of_frame(self, frame: Frame) -> Hashable:
        """A place in the control flow."""
        trips = (self._of(frame.trip), frame.limit) if _counts(frame) else None
        return id(frame.block), frame.position, trips

    def _of(self, value: Any) -> Hashable:
        if isinstance(value, TracedTensor):
            return self._once(value, self._of_tensor)
        if isinstance(value, HostNumber):
            return self._once(value, self._of_number)
        if isinstance(value, list):
            return self._once(value, lambda items: ("list", *map(self._of, items)))
        if isinstance(value, dict):
            return self._once(value, lambda items: ("dict", *[(key, self._of(item)) for key, item in items.items()]))
        if isinstance(value, tuple):
            return type(value), *map(self._of, value)
        if isinstance(value, float):
            return float, value.hex()
        if isinstance(value, (bool, int, str, type(None), torch.device, torch.dtype)):
            return type(value), value
        return type(value), id(value)

    def _once(self, value: Any, describe: Callable[[Any], Hashable]) -> Hashable:
        """What something is where it is met first, and its number wherever it is met again."""
        number = self._numbers.get(id(value))
        if number is not None:
            return "again", number
        self._numbers[id(value)] = len(self._numbers)
        return describe(value)

    def _of_number(self, number: HostNumber) -> Hashable:
        self.numbers.append(number)
        return "number", type(number.value)

    def _of_tensor(self, tensor: TracedTensor) -> Hashable:
        geometry: Hashable = None
        others: list[TracedTensor] = []
        if tensor.recipe is not None:
            meta = tensor.meta
            geometry = meta.dtype, meta.shape, meta.stride(), meta.storage_offset()
            bases = list(leaves_of(tensor.recipe.args, TracedTensor))
            others = [] if all(base.memory is tensor.memory for base in bases) else bases
        memory = self._once(tensor.memory, self._of_memory)
        return "tensor", geometry, memory, tuple(map(self._of, others))

    def _of_root(self, memory: Memory) -> Hashable:
        """Of an input that was written to, the caller may have to be told what it holds now."""
        if memory.is_written and self._standing.is_of_state(memory):
            return self._once(memory, self._of_memory)
        return memory.is_written

    def _of_memory(self, memory: Memory) -> Hashable:
        number = self._roots.get(id(memory))
        if number is not None and not memory.is_written:
            return "input", number
        elements = memory.ref.elements
        if elements is not None and self._operand(memory.ref) is memory.ref:
            return "constant", number, _constant_key(elements)
        self.carried.append(memory)
        meta = memory.meta
        return "carried", number, memory.ref.dtype, memory.ref.sizes, meta.dtype, meta.shape, meta.stride()


def _constant_key(elements: torch.Tensor) -> Hashable:
    if elements.is_nested or elements.layout != torch.strided:
        return id(elements)
    if elements.numel() * elements.element_size() <= _SMALL_BYTES:
        return elements_key(elements.detach())
    return elements.data_ptr(), elements.dtype, elements.shape, elements.stride()


class _Copy:
    """Copies nests of traced tensors; what is one thing in several places stays one."""

    def __init__(self, contents: dict[Memory, Value], numbers: dict[int, HostNumber]) -> None:
        """``contents`` is what memories hold; the others are constants. ``numbers`` are those in place of others."""
        self._contents = contents
        self._copies: dict[int, Any] = dict(numbers)

    def of(self, value: Any) -> Any:
        """The copy of a nest."""
        if isinstance(value, TracedTensor):
            return self._tensor(value)
        if isinstance(value, HostNumber):
            return self._copies[id(value)]
        if isinstance(value, tuple):
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if not isinstance(value, (list, dict)):
            return value
        if id(value) not in self._copies:
            if isinstance(value, list):
                self._copies[id(value)] = [self.of(item) for item in value]
            else:
                self._copies[id(value)] = {key: self.of(item) for key, item in value.items()}
        return self._copies[id(value)]

    def memory(self, memory: Memory) -> Memory:
        """A memory that holds what it is said to hold."""
        if id(memory) not in self._copies:
            ref = self._contents.get(memory, memory.ref)
            self._copies[id(memory)] = Memory(ref, memory.meta, is_written=memory.is_written)
        copy: Memory = self._copies[id(memory)]
        return copy

    def _tensor(self, tensor: TracedTensor) -> TracedTensor:
        if id(tensor) not in self._copies:
            memory = self.memory(tensor.memory)
            recipe = tensor.recipe
            if recipe is not None:
                args = map_leaves(recipe.args, TracedTensor, self._tensor)
                recipe = replace(recipe, args=args)
            version = memory.version if recipe is None else memory.version - 1
            self._copies[id(tensor)] = TracedTensor(memory, tensor.meta, memory.ref, version, recipe)
        copy: TracedTensor = self._copies[id(tensor)]
        return copy
