"""What the host computes from elements that it has read, written down so that another call needs no evaluation for it.

When a model has looked at elements, what follows from them alone is computed by the host while the model is evaluated:
numbers in arithmetic, the places where a mask is true. A :class:`Tape` notes each such step, and each time something of
a value decides how the evaluation goes on: a branch, a size, an index, how many places there are. All else is open: a
:class:`HostNumber` in arithmetic with tensors, and a tensor that the host made, are inputs of the segment. So a call
that comes by again does the steps with its own values (:class:`Decisions`), and where they decide alike, the same
segment follows, whatever the values are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir.literals import bytes_of
from mobopt.ir.nests import map_leaves

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments, in which a :class:`Ref` stands for a value."""


@dataclass(frozen=True)
class Ref:
    """A value of a tape: given to it at first, or a leaf of what a step gave, by number."""

    number: int


class HostNumber:
    """A number that follows from elements; what Python asks of it is decided by its value, which the tape notes."""

    __slots__ = ("ref", "tape", "value")

    def __init__(self, value: int | float, ref: Ref, tape: Tape) -> None:
        self.value = value
        self.ref = ref
        self.tape = tape

    def settled(self) -> int | float:
        """The value, which decides something."""
        self.tape.decide(self.ref)
        return self.value

    def _compare(self, function: Callable[..., Any], other: Any) -> bool:
        return bool(self.tape.do(function, (self, other)))

    def __bool__(self) -> bool:
        return self._compare(operator.ne, 0)

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return self._compare(operator.eq, other)

    def __hash__(self) -> int:
        return hash(self.settled())

    def __index__(self) -> int:
        return operator.index(self.settled())  # type: ignore[arg-type]  # it says what a float is not

    def __int__(self) -> int:
        return int(self.settled())

    def __float__(self) -> float:
        return float(self.settled())

    def __add__(self, other: Any) -> Any:
        return self.settled() + other

    def __mul__(self, other: Any) -> Any:
        return self.settled() * other

    def __rmul__(self, other: Any) -> Any:
        return other * self.settled()

    def __repr__(self) -> str:
        return repr(self.settled())


def settled(value: Any) -> Any:
    """A nest with plain numbers, which decide how the evaluation goes on."""
    return map_leaves(value, HostNumber, HostNumber.settled)


class Tape:
    """The steps of one evaluation, and its decisions, in order."""

    def __init__(self, given: Sequence[Any]) -> None:
        """``given`` are tensors and numbers to begin with."""
        self.values = list(given)
        """Those given, then the numbers and tensors that steps gave."""
        self._known: set[Ref] = set()
        self.entries: list[tuple[Step | Ref, Hashable]] = []
        """Steps with the form of what they gave, and values that decided, with what they were."""

    def decide(self, ref: Ref) -> None:
        """Note that a value decides."""
        if ref not in self._known:
            self._known.add(ref)
            self.entries.append((ref, form_of(self.values[ref.number], True)))

    def do(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What a function gives for values of the tape and others; numbers and tensors in it are values of the tape.

        Args:
            function: without effects.
            args: nests with :class:`HostNumber` and :class:`HostTensor` leaves among plain ones.
        """
        step = function, tuple(map_leaves(list(args), _HELD, lambda value: value.ref))
        result = function(*map_leaves(list(args), _HELD, lambda value: value.value))
        self.entries.append((step, form_of(result)))
        return map_leaves(result, _OPEN, self._kept)

    def tensor(self, ref: Ref) -> HostTensor:
        """A tensor that the tape was given."""
        return HostTensor(self.values[ref.number], ref)

    def _kept(self, value: Any) -> Any:
        if isinstance(value, bool):
            return value
        ref = Ref(len(self.values))
        self.values.append(value)
        return HostTensor(value, ref) if isinstance(value, torch.Tensor) else HostNumber(value, ref, self)


@dataclass(frozen=True, eq=False)
class HostTensor:
    """A tensor that follows from elements."""

    value: torch.Tensor
    ref: Ref


_HELD: Any = (HostNumber, HostTensor)
_OPEN: Any = (torch.Tensor, int, float)
"""What may be any value of its form; bools, texts and nests decide."""


def form_of(value: Any, with_value: bool = False) -> Hashable:
    """What of a value decides, as part of a key: of tensors dtype and sizes, of numbers their types, of others all."""
    if isinstance(value, torch.Tensor):
        nested = value._nested_tensor_size().tolist() if value.is_nested else None
        sizes = value.dtype, tuple(value.shape) if nested is None else tuple(map(tuple, nested))
        return (*sizes, elements_key(value)) if with_value else sizes
    if isinstance(value, (list, tuple)):
        return type(value), *[form_of(item, with_value) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return type(value), value
    if not with_value:
        return type(value).__name__
    return type(value), value.hex() if isinstance(value, float) else value


def elements_key(tensor: torch.Tensor) -> Hashable:
    """A tensor's elements as part of a key."""
    return tensor.dtype, tensor.shape, bytes_of(tensor)


class Decisions:
    """A tree of the ways that evaluations went on from one checkpoint: steps, and what followed for each outcome.

    A leaf stands for the segment that follows.

    Attributes:
        hosted: of a leaf, the tensors of the tape that the segment takes.
        size: of a whole tree, how many nodes it has.
    """

    def __init__(self) -> None:
        self.hosted: Sequence[Ref] = ()
        self.size = 1
        self._is_leaf = False
        self._entry: Step | Ref | None = None
        self._ways: dict[Hashable, Decisions] = {}

    def find(self, given: Sequence[Any]) -> tuple[Decisions | None, list[Any]]:
        """The leaf for these values, and all values of the tape; None if no evaluation went that way."""
        values, node = list(given), self
        while node._entry is not None:
            if isinstance(node._entry, Ref):
                key = form_of(values[node._entry.number], True)
            else:
                function, args = node._entry
                try:
                    result = function(*map_leaves(list(args), Ref, lambda ref: values[ref.number]))
                except Exception:  # the evaluation raises it again, and says where in the model
                    return None, values
                key = form_of(result)
                values.extend(_open_leaves(result))
            following = node._ways.get(key)
            if following is None:
                return None, values
            node = following
        return (node if node._is_leaf else None), values

    def add(self, tape: Tape) -> Decisions:
        """The leaf for an evaluation."""
        node = self
        for entry, key in tape.entries:
            if node._entry is None:
                node._entry = entry
            if key not in node._ways:
                node._ways[key] = Decisions()
                self.size += 1
            node = node._ways[key]
        node._is_leaf = True
        return node


def _open_leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _open_leaves(item)
    elif isinstance(result, (torch.Tensor, int, float)) and not isinstance(result, bool):
        yield result
