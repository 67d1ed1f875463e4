"""Which operators the Vulkan runtime computes, and by which function.

A lowering is a function ``(plan, call) -> result``: it appends dispatches to ``plan.stream`` and returns the
:class:`DeviceTensor` (or a tuple of them) for ``call.outputs``. Its ``check`` says, without a device in hand, whether
a call can be lowered: it returns None, or the reason why not. The same registry answers the audit, the partitioner
and the docs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mobopt.errors import UnsupportedError
from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes
from mobopt.runtimes.vulkan.lowerings.narrow import has_narrow, lower_widened

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.plan import Plan

LoweringResult = DeviceTensor | tuple[DeviceTensor, ...]
LoweringFunction = Callable[["Plan", Node], LoweringResult]
Check = Callable[[Node], "str | None"]


@dataclass(frozen=True)
class Lowering:
    """How one operator is computed, and which calls of it can be."""

    function: LoweringFunction
    check: Check
    exact: bool = False
    """Whether its results are elements of their dtypes by themselves: it moves elements, or rounds and wraps them.
    Other lowerings are given wider dtypes in place of narrow ones (see ``narrow.py``)."""
    long: bool = False
    """Whether it takes int64 tensors whose elements have 64 bits, and makes its results so where
    :meth:`Plan.elements_of` says."""


_LOWERINGS: dict[str, Lowering] = {}


def always(call: Node) -> str | None:
    """The check of an operator that is computed in every combination of its arguments."""
    return None


def lowers(
    *operators: str, check: Check = always, exact: bool = False, long: bool = False
) -> Callable[[LoweringFunction], LoweringFunction]:
    """Register the decorated function as the lowering of ``operators`` (qualified names with overload).

    See :class:`Lowering` for ``check``, ``exact`` and ``long``.

    Raises:
        ValueError: one of them has a lowering already.
    """

    def register(function: LoweringFunction) -> LoweringFunction:
        for operator in operators:
            if operator in _LOWERINGS:
                raise ValueError(f"{operator} has two lowerings: {_LOWERINGS[operator].function} and {function}")
            _LOWERINGS[operator] = Lowering(function, check, exact, long)
        return function

    return register


@cache
def load_lowerings() -> None:
    """Import every module of lowerings, so that the registry is complete."""
    package = importlib.import_module("mobopt.runtimes.vulkan.lowerings")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def lowering_of(operator: str) -> Lowering | None:
    """The lowering of an operator, or None."""
    return _LOWERINGS.get(operator)


def supported_operators() -> list[str]:
    """Every operator with a lowering, sorted."""
    return sorted(_LOWERINGS)


def why_unsupported(call: Node) -> str | None:
    """None if the call runs on the GPU, else the reason why it doesn't."""
    lowering = _LOWERINGS.get(call.qualified_op)
    if lowering is None:
        return check_dtypes(call) or "there is no lowering for this operator"
    return lowering.check(call)


def takes_longs(call: Node) -> bool:
    """Whether the lowering of a call computes with 64 bits where int64 tensors need them."""
    lowering = _LOWERINGS.get(call.qualified_op)
    return lowering is not None and lowering.long


def lower(plan: Plan, call: Node) -> LoweringResult:
    """Append the dispatches of a call to the plan.

    Raises:
        UnsupportedError: the call can't be lowered.
    """
    reason = why_unsupported(call)
    if reason is not None:
        raise UnsupportedError(f"{call.qualified_op}: {reason}")
    return lower_supported(plan, call)


def lower_supported(plan: Plan, call: Node) -> LoweringResult:
    """As :func:`lower`, of a call of which :func:`why_unsupported` is known to be None."""
    lowering = _LOWERINGS[call.qualified_op]
    if lowering.exact or not has_narrow(call):
        return lowering.function(plan, call)
    return lower_widened(plan, call, lowering.function)


def lower_part(plan: Plan, part: Node, whole: Node, attribute: str, others: object) -> LoweringResult:
    """Lower the part of a node that makes what the whole does, and tell it by an attribute what the others do."""
    plan.stand_in(part.output, whole.output)
    part.attributes[attribute] = others
    try:
        return lower_supported(plan, part)
    finally:
        del part.attributes[attribute]
