"""Runs of a method on the CPU that show values, or go on with others in their place."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from mobopt.ir import Program, Value
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.double import Float64Interpreter
from mobopt.samples.inputs import SEED

See = Callable[[Value, Any], Any]
"""Is given each value that a graph's nodes make; the run goes on with what it returns."""


class _Watched(Interpreter):
    """An interpreter that shows what it makes."""

    see: See

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: dict[Value, Any]) -> None:
        """See :meth:`Evaluator.bind`."""
        super().bind(values, [self.see(*pair) for pair in zip(values, results, strict=True)], environment)


class _WatchedFloat64(_Watched, Float64Interpreter):
    """The same in double precision."""


def run_watched(program: Program, method: str, arguments: Sequence[Any], see: See, is_double: bool = False) -> Any:
    """What a method returns; random numbers are seeded, arguments are copied, and state begins anew.

    Raises:
        InputError: the arguments are wrong, or the model raises.
        UnsupportedError: it has an operator that this torch lacks.
    """
    interpreter = (_WatchedFloat64 if is_double else _Watched)(program)
    interpreter.see = see
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return copy.deepcopy(interpreter.run(method, copy.deepcopy(list(arguments))))


Instance = tuple[Value, int]
"""A value, and which time it is made, from 0: in a loop, the turn."""


def run_forced(
    program: Program,
    method: str,
    arguments: Sequence[Any],
    watched: Collection[Value],
    forced: Mapping[Instance, torch.Tensor],
) -> tuple[Any, dict[Instance, torch.Tensor]]:
    """A run that goes on with given values in the place of those that it computes.

    Returns:
        What the method returns, and what the run itself made of the values that are watched, in the order in which they
        were made.
    """
    own: dict[Instance, torch.Tensor] = {}
    counts: Counter[Value] = Counter()

    def see(value: Value, result: Any) -> Any:
        if value not in watched or not isinstance(result, torch.Tensor):
            return result
        instance = value, counts[value]
        counts[value] += 1
        own[instance] = result.clone()
        given = forced.get(instance)
        return result if given is None or given.shape != result.shape else given.to(result.dtype, copy=True)

    return run_watched(program, method, arguments, see), own
