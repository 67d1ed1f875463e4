"""Branches and loops that depend on elements, as ``torch.cond`` and ``while_loop``, which take and give tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mobopt.errors import UnsupportedError
from mobopt.ir import Block, Node, Value
from mobopt.runtimes.cpu.evaluator import Environment

Run = Callable[[Environment, Sequence[Any]], Sequence[Any]]
"""What a block gives in an environment for arguments."""
_NUMBERS = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)
_DTYPES = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    torch.SymBool: torch.bool,
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float64,
}


@dataclass(frozen=True)
class _Form:
    """What a nest of results is but for its tensors: numbers are tensors without dimensions meanwhile."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """For each leaf, torch.Tensor, the dtype of a number, or the value itself."""

    def restored(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The nest again, with these tensors."""
        rest = iter(tensors)
        values = [_restored(leaf, rest) for leaf in self.leaves]
        return pytree.tree_unflatten(values, self.spec)


def _restored(leaf: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if leaf is torch.Tensor:
        return next(tensors)
    return next(tensors).item() if isinstance(leaf, torch.dtype) else leaf


def _taken_apart(nest: Any) -> tuple[list[torch.Tensor], _Form]:
    """The tensors of a nest, dense and in memory of their own, as torch asks for, and its form."""
    leaves, spec = pytree.tree_flatten(nest)
    tensors: list[torch.Tensor] = []
    kinds: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf.clone(memory_format=torch.contiguous_format))
            kinds.append(torch.Tensor)
        elif isinstance(leaf, _NUMBERS):
            dtype = _DTYPES[type(leaf)]
            tensors.append(torch.scalar_tensor(leaf, dtype=dtype))  # type: ignore[arg-type]
            kinds.append(dtype)
        else:
            kinds.append(leaf)
    return tensors, _Form(spec, tuple(kinds))


class Captured:
    """What nested blocks read from outside, as operands that torch passes to functions."""

    def __init__(self, node: Node, environment: Environment) -> None:
        self._environment = environment
        inner = {value for block in node.blocks for value in _made_in(block)}
        read = dict.fromkeys(value for block in node.blocks for value in _read_in(block) if value not in inner)
        known = {value: environment[value] for value in read if not value.is_constant}
        known.update((value, value.constant) for value in read if value.is_constant and _is_tensor(value.constant))
        self._values = list(known)
        leaves, self._spec = pytree.tree_flatten(list(known.values()))
        self._is_operand = [isinstance(leaf, (torch.Tensor, torch.SymInt)) for leaf in leaves]
        self._others = [leaf for leaf, passed in zip(leaves, self._is_operand, strict=True) if not passed]
        self.operands = tuple(leaf for leaf, passed in zip(leaves, self._is_operand, strict=True) if passed)

    def inside(self, operands: Sequence[Any]) -> Environment:
        """The environment that a function has, which is given these operands."""
        passed, others = iter(operands), iter(self._others)
        leaves = [next(passed) if is_operand else next(others) for is_operand in self._is_operand]
        values = pytree.tree_unflatten(leaves, self._spec)
        return {**self._environment, **dict(zip(self._values, values, strict=True))}


def branch(node: Node, condition: Any, environment: Environment, runs: Sequence[Run]) -> list[Any]:
    """What ``prim::If`` gives, whichever block the condition chooses.

    Raises:
        UnsupportedError: the blocks give nests of different forms, or change what lasts.
    """
    _check(node)
    captured = Captured(node, environment)
    forms: list[_Form] = []

    def function(run: Run) -> Callable[..., tuple[torch.Tensor, ...]]:
        def call(*operands: Any) -> tuple[torch.Tensor, ...]:
            tensors, form = _taken_apart(list(run(captured.inside(operands), [])))
            forms.append(form)
            return tuple(tensors)

        return call

    tensors = torch.ops.higher_order.cond(condition, function(runs[0]), function(runs[1]), captured.operands)
    if any(form != forms[0] for form in forms):
        raise UnsupportedError(
            f"the two ways of {_named(node)} give results of different forms, which no format can say"
        )
    return list(forms[0].restored(tensors))


def loop(
    node: Node, limit: Any, condition: Any, start: Any, carried: Sequence[Any], environment: Environment, run: Run
) -> list[Any]:
    """What ``prim::Loop`` gives from some iteration on.

    Raises:
        UnsupportedError: the body changes the form of what it carries, or what lasts.
    """
    _check(node)
    captured = Captured(node, environment)
    counters, _ = _taken_apart([start, limit])
    tensors, form = _taken_apart([condition, list(carried)])
    count = 2 + len(tensors)

    def goes_on(iteration: torch.Tensor, last: torch.Tensor, condition: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.logical_and(condition, iteration < last)

    def body(*operands: Any) -> tuple[torch.Tensor, ...]:
        iteration, last = operands[:2]
        values = form.restored(operands[2:count])[1]
        proceeds, *results = run(captured.inside(operands[count:]), [iteration.item(), *values])
        made, after = _taken_apart([proceeds, results])
        if form != after:
            raise UnsupportedError(f"{_named(node)} carries values of other forms from trip to trip")
        return iteration + 1, last.clone(), *made

    result = torch.ops.higher_order.while_loop(goes_on, body, (*counters, *tensors), captured.operands)
    return list(form.restored(result[2:])[1])


def _check(node: Node) -> None:
    inner = [item for block in node.blocks for item in block.walk()]
    if any(item.op == "prim::SetAttr" for item in inner):
        raise UnsupportedError(f"{_named(node)} assigns to an attribute in a branch that depends on elements")


def always_raises(block: Block) -> bool:
    """Whether a block ends in an exception."""
    return any(node.op == "prim::RaiseException" for node in block.nodes)


def _named(node: Node) -> str:
    return f"{node.op}{f' at {node.source}' if node.source else ''}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _made_in(block: Block) -> Iterator[Value]:
    yield from block.parameters
    for node in block.walk():
        yield from node.outputs
        for nested in node.blocks:
            yield from nested.parameters


def _read_in(block: Block) -> Iterator[Value]:
    for node in block.walk():
        yield from node.inputs
        for nested in node.blocks:
            yield from nested.outputs
    yield from block.outputs
