"""Expressions on a call as functions, in a logic of three values: true, false, and unknown.

A function gives a value, or raises :class:`UnknownFactError` where only a run of the model tells. What is computed of
something unknown is unknown. ``and``, ``or``, ``any`` and ``all`` follow Kleene's logic: an operand that decides does
so whatever the others are, and without one the whole is unknown if an operand is. Operands are computed from left to
right, up to the one that decides, so that one may guard the next; an operand behind an unknown guard that can't be
computed is unknown too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mobopt.ir.guards import UnknownFactError
from mobopt.ops.targets.call_view import CallView

Variables = Mapping[int, Any]
"""What the variables of loops stand for, by their slots."""
Evaluate = Callable[[CallView, Variables], Any]

FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a function raises for values that it is not made for."""


def constant(value: Any) -> Evaluate:
    """Always the same."""
    return lambda call, variables: value


def variable(slot: int) -> Evaluate:
    """What a variable of a loop stands for."""
    return lambda call, variables: variables[slot]


def applied(function: Callable[..., Any], parts: Sequence[Evaluate]) -> Evaluate:
    """A function of values."""
    if len(parts) == 1:
        (only,) = parts
        return lambda call, variables: function(only(call, variables))
    if len(parts) == 2:
        left, right = parts
        return lambda call, variables: function(left(call, variables), right(call, variables))
    return lambda call, variables: function(*(part(call, variables) for part in parts))


def chosen(test: Evaluate, yes: Evaluate, no: Evaluate) -> Evaluate:
    """One of two values."""
    return lambda call, variables: (yes if test(call, variables) else no)(call, variables)


def is_known(part: Evaluate) -> Evaluate:
    """Whether a value is known; never unknown itself."""

    def evaluate(call: CallView, variables: Variables) -> bool:
        try:
            part(call, variables)
        except UnknownFactError:
            return False
        return True

    return evaluate


def joined(parts: Sequence[Evaluate], decisive: bool) -> Evaluate:
    """Kleene's ``or`` (decisive: true) or ``and`` (decisive: false)."""

    def evaluate(call: CallView, variables: Variables) -> bool:
        return _decided(((part, variables) for part in parts), call, decisive)

    return evaluate


def quantified(part: Evaluate, items: Evaluate, slots: Sequence[int], decisive: bool) -> Evaluate:
    """Kleene's ``any`` (decisive: true) or ``all`` (decisive: false) of a loop."""

    def evaluate(call: CallView, variables: Variables) -> bool:
        bindings = _bindings(items(call, variables), slots, variables)
        return _decided(((part, bound) for bound in bindings), call, decisive)

    return evaluate


def listed(part: Evaluate, items: Evaluate, slots: Sequence[int]) -> Evaluate:
    """The values of a loop."""

    def evaluate(call: CallView, variables: Variables) -> list[Any]:
        return [part(call, bound) for bound in _bindings(items(call, variables), slots, variables)]

    return evaluate


def _decided(parts: Iterable[tuple[Evaluate, Variables]], call: CallView, decisive: bool) -> bool:
    unknown: UnknownFactError | None = None
    for part, variables in parts:
        try:
            if bool(part(call, variables)) is decisive:
                return decisive
        except UnknownFactError as error:
            unknown = unknown or error
        except FAULTS:
            if unknown is None:
                raise
    if unknown is not None:
        raise unknown
    return not decisive


def _bindings(items: Iterable[Any], slots: Sequence[int], outer: Variables) -> Iterator[Variables]:
    for item in items:
        values = (item,) if len(slots) == 1 else item
        yield {**outer, **dict(zip(slots, values, strict=True))}
