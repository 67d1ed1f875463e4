"""Walks a Program's graphs: control flow, containers and attributes are computed here, operators by a subclass.

The interpreter and the specialiser are both Evaluators; they differ in what a tensor is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mobopt.errors import EndlessError, InputError, MoboptError, UnsupportedError
from mobopt.ir import Block, Node, Program, Value
from mobopt.ir.types import BOOL, FLOAT, INT, NONE, STR, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ir.types import parse_type as parse
from mobopt.runtimes.cpu.builtins import BUILTINS, model_error
from mobopt.runtimes.cpu.kernels import operator_error

_SELF = object()
"""What stands for the module itself."""

_Evaluator = TypeVar("_Evaluator", bound="Evaluator")
Environment = dict[Value, Any]


_MOST_TRIPS = 1_000_000
_MOST_SECONDS = 10.0


class LoopBound:
    """How often the loops of a run may go round in all, and how long."""

    def __init__(self) -> None:
        self._trips = 0
        self._end = time.monotonic() + _MOST_SECONDS

    def count(self, loop: Node) -> None:
        """Count a trip.

        Raises:
            EndlessError: it is one too many, or too late.
        """
        self._trips += 1
        if self._trips > _MOST_TRIPS or time.monotonic() > self._end:
            raise EndlessError(
                f"the model's loops{_place(loop)} went round {self._trips:,} times without an end; give inputs of "
                "which you know that it ends"
            )


class Evaluator(ABC):
    """Evaluates methods of a Program on Python values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.attributes: dict[str, Any] = {name: item.value for name, item in program.attributes.items()}
        """Values of attributes that no method changes."""
        self.state: dict[str, Any] = {}
        """Values of the others, as far as the evaluation has come: in-place operators and ``prim::SetAttr`` change
        them."""
        self._releases: dict[Block, list[list[Value]]] = {}
        self._bound: LoopBound | None = None

    def bounded(self: _Evaluator) -> _Evaluator:
        """The same, which gives up loops that do not end soon: for runs that nobody asked for.

        Its methods raise EndlessError too.
        """
        self._bound = LoopBound()
        return self

    @abstractmethod
    def operator(self, node: Node, args: list[Any]) -> Any:
        """The result of a schema's operator; several results are a tuple or a list."""

    @abstractmethod
    def lift(self, value: Any) -> Any:
        """A constant or an attribute as a value of the evaluation."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value stands for a tensor."""
        return False

    def evaluate(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns for these arguments (without self).

        Raises:
            InputError: there is no such method, or the number of arguments is wrong, or the model raises.
        """
        graph = self.program.methods.get(method)
        if graph is None:
            known = ", ".join(self.program.methods)
            raise InputError(f"the model has no method {method!r}; its methods are {known}")
        expected = len(graph.inputs) - 1
        if len(args) != expected:
            names = ", ".join(value.name for value in graph.inputs[1:])
            raise InputError(f"{method} takes {expected} inputs ({names}), not {len(args)}")
        (result,) = self.block(graph.block, {}, [_SELF, *args])
        return result

    def block(self, block: Block, environment: Environment, arguments: Sequence[Any]) -> list[Any]:
        """What a block returns; ``environment`` holds the values of the blocks around it."""
        environment.update(zip(block.parameters, arguments, strict=True))
        for node, dead in zip(block.nodes, self._dead_after(block), strict=True):
            results = self.node(node, environment)
            environment.update(zip(node.outputs, results, strict=True))
            for value in dead:
                environment.pop(value, None)
        return [self.value(value, environment) for value in block.outputs]

    def value(self, value: Value, environment: Environment) -> Any:
        """The value of a graph's Value."""
        return self.lift(value.constant) if value.is_constant else environment[value]

    def node(self, node: Node, environment: Environment) -> Sequence[Any]:
        """The outputs of one node."""
        if node.op == "prim::If":
            return self._if(node, environment)
        if node.op == "prim::Loop":
            return self._loop(node, environment)
        args = [self.value(value, environment) for value in node.inputs]
        language = _LANGUAGE.get(node.op)
        if language is not None:
            return language(self, node, args)
        builtin = BUILTINS.get(node.qualified_op)
        if builtin is not None and not (node.op == "aten::len" and self.is_tensor(args[0])):
            return _as_outputs(node, self._builtin(builtin, node, args))
        return _as_outputs(node, self.operator(node, args))

    def _builtin(self, function: Callable[..., Any], node: Node, args: list[Any]) -> Any:
        """What an operator of the language gives; what it refuses is the input's or the model's fault."""
        try:
            return function(*args)
        except MoboptError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
            raise operator_error(node.qualified_op, node.origin, args, error) from error

    def truth(self, value: Any, node: Node) -> bool:
        """A condition as a bool."""
        return bool(value)

    def _if(self, node: Node, environment: Environment) -> list[Any]:
        condition = self.truth(self.value(node.inputs[0], environment), node)
        return self.block(node.blocks[0 if condition else 1], environment, [])

    def _loop(self, node: Node, environment: Environment) -> list[Any]:
        limit, condition, *carried = [self.value(value, environment) for value in node.inputs]
        iteration = 0
        while iteration < limit and self.truth(condition, node):
            if self._bound is not None:
                self._bound.count(node)
            condition, *carried = self.block(node.blocks[0], environment, [iteration, *carried])
            iteration += 1
        return carried

    def _dead_after(self, block: Block) -> list[list[Value]]:
        """For each node of a block, the block's own values that nothing reads after it."""
        if block not in self._releases:
            self._releases[block] = _last_uses(block)
        return self._releases[block]


def _last_uses(block: Block) -> list[list[Value]]:
    own = set(block.parameters).union(*(node.outputs for node in block.nodes))
    seen = set(block.outputs)
    releases: list[list[Value]] = []
    for node in reversed(block.nodes):
        read = own.intersection(_reads(node)).union(node.outputs)
        releases.append([value for value in read if value not in seen])
        seen |= read
    return releases[::-1]


def _reads(node: Node) -> Iterator[Value]:
    """Every value that a node and what is nested in it read."""
    yield from node.inputs
    for block in node.blocks:
        for nested in block.nodes:
            yield from _reads(nested)
        yield from block.outputs


def _as_outputs(node: Node, result: Any) -> Sequence[Any]:
    if len(node.outputs) == 1:
        return (result,)
    if not node.outputs:
        return ()
    if not isinstance(result, (tuple, list)) or len(result) != len(node.outputs):
        raise UnsupportedError(
            f"{node.op} gave {type(result).__name__} where the graph has {len(node.outputs)} outputs"
        )
    return result


# The operators of the prim namespace that take their form from the language.


def _get_attribute(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    name = node.attributes["name"]
    if args[0] is not _SELF:
        return (getattr(args[0], name),)
    if name in evaluator.state:
        return (evaluator.state[name],)
    if name not in evaluator.attributes:
        raise UnsupportedError(f"the model reads attribute {name!r}, which the file doesn't hold")
    return (evaluator.lift(evaluator.attributes[name]),)


def _set_attribute(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    if args[0] is not _SELF:
        raise UnsupportedError(f"{node!r} changes an object other than the module itself, which mobopt can't run")
    evaluator.state[node.attributes["name"]] = args[1]
    return ()


def _place(node: Node) -> str:
    return f" at {node.source}" if node.source else ""


def _construct_tuple(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    kind = node.output.type
    if isinstance(kind, TupleType) and kind.fields:
        return (namedtuple(kind.name.rpartition(".")[2] or "NamedTuple", kind.fields)(*args),)
    return (tuple(args),)


def _slice_tuple(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    begin = node.attributes.get("beg", args[1] if len(args) > 1 else 0)
    end = node.attributes.get("end", args[2] if len(args) > 2 else None)
    return (args[0][begin:end],)


def _unpack(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    items: Sequence[Any] = args[0]
    if len(items) != len(node.outputs):
        raise InputError(f"the model unpacks {len(items)} values into {len(node.outputs)}{_place(node)}")
    return items


def _raise(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    raise model_error(str(args[0]), args[1] if len(args) > 1 else None, node.source)


def _is_instance(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    types = node.attributes.get("types", ())
    return (any(_has_type(evaluator, args[0], parse(kind) if isinstance(kind, str) else kind) for kind in types),)


def _has_type(evaluator: Evaluator, value: Any, kind: Type) -> bool:
    if isinstance(kind, OptionalType):
        return value is None or _has_type(evaluator, value, kind.element)
    if isinstance(kind, ListType):
        return isinstance(value, list) and all(_has_type(evaluator, item, kind.element) for item in value)
    if isinstance(kind, TupleType):
        return isinstance(value, tuple) and len(value) == len(kind.elements)
    if isinstance(kind, DictType):
        return isinstance(value, dict)
    if kind == TENSOR:
        return evaluator.is_tensor(value)
    python_types: dict[Type, type] = {INT: int, FLOAT: float, BOOL: bool, STR: str, NONE: type(None)}
    return type(value) is python_types.get(kind)


def _unsupported(evaluator: Evaluator, node: Node, args: list[Any]) -> Sequence[Any]:
    raise UnsupportedError(f"{node.op}{_place(node)} can't be run: mobopt runs inlined graphs only")


_LANGUAGE: dict[str, Callable[[Evaluator, Node, list[Any]], Sequence[Any]]] = {
    "prim::GetAttr": _get_attribute,
    "prim::SetAttr": _set_attribute,
    "prim::ListConstruct": lambda evaluator, node, args: (args,),
    "prim::ListUnpack": _unpack,
    "prim::TupleConstruct": _construct_tuple,
    "prim::TupleUnpack": _unpack,
    "prim::TupleSlice": _slice_tuple,
    "prim::DictConstruct": lambda evaluator, node, args: (dict(zip(args[::2], args[1::2], strict=True)),),
    "prim::RaiseException": _raise,
    "prim::isinstance": _is_instance,
    "prim::CallMethod": _unsupported,
    "prim::CallFunction": _unsupported,
    "prim::CreateObject": _unsupported,
    "prim::fork": _unsupported,
}
