"""Walks a Program's graphs: control flow, containers and attributes are computed here, operators by a subclass.

The interpreter and the specialiser are both Evaluators; they differ in what a tensor is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mobopt.errors import EndlessError, InputError, MoboptError, UnsupportedError
from mobopt.ir import Block, Node, Program, Value
from mobopt.ir.types import (
    ANY_LIST,
    ANY_TUPLE,
    BOOL,
    FLOAT,
    INT,
    NONE,
    STR,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
)
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


@dataclass(eq=False)
class Frame:
    """Where the evaluation of a block stands."""

    block: Block
    owner: Node | None = None
    """The node that has the block; None for the block of the method itself."""
    position: int = 0
    """Number of the node that comes next."""
    trip: Any = -1
    """Number of the trip, if this is the body of a loop."""
    limit: int = 0

    @property
    def is_loop(self) -> bool:
        """Whether it is the body of a loop."""
        return self.owner is not None and self.owner.op == "prim::Loop"


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """A block's nodes, and how long its own values live."""

    nodes: tuple[Node, ...]
    dead_after: tuple[tuple[Value, ...], ...]
    """For each node, what nothing reads after it."""
    unread_inside: tuple[tuple[Value, ...], ...]
    """For each node, what of these nothing reads inside of its blocks either."""
    unread_parameters: tuple[Value, ...]
    returned: tuple[Value, ...]


class Evaluator(ABC):
    """Evaluates methods of a Program on Python values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.attributes: dict[str, Any] = {name: item.value for name, item in program.attributes.items()}
        """Values of attributes that no method changes."""
        self.state: dict[str, Any] = {}
        """Values of the others, as far as the evaluation has come: in-place operators and ``prim::SetAttr`` change
        them."""
        self._plans: dict[Block, BlockPlan] = {}
        self._bound: LoopBound | None = None

    def bounded(self: _Evaluator) -> _Evaluator:
        """The same, which gives up loops that do not end soon, and large results: for runs that nobody asked for.

        Its methods raise EndlessError too; those of the interpreter InputError for a result of over a gigabyte.
        """
        self._bound = LoopBound()
        return self

    @property
    def is_bounded(self) -> bool:
        """Whether nobody asked for the run."""
        return self._bound is not None

    @abstractmethod
    def operator(self, node: Node, args: list[Any]) -> Any:
        """The result of a schema's operator; several results are a tuple or a list."""

    @abstractmethod
    def lift(self, value: Any) -> Any:
        """A constant or an attribute as a value of the evaluation."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value stands for a tensor."""
        return False

    def python_type(self, value: Any) -> type:
        """The type of a plain value."""
        return type(value)

    def evaluate(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns for these arguments (without self).

        Raises:
            InputError: there is no such method, or the number of arguments is wrong, or the model raises.
        """
        (result,) = self.proceed(*self.entry(method, args))
        return result

    def entry(self, method: str, args: Sequence[Any]) -> tuple[list[Frame], Environment]:
        """Where the evaluation of a method stands at first; see :meth:`evaluate`."""
        graph = self.program.methods.get(method)
        if graph is None:
            known = ", ".join(self.program.methods)
            raise InputError(f"the model has no method {method!r}; its methods are {known}")
        expected = len(graph.inputs) - 1
        if len(args) != expected:
            names = ", ".join(value.name for value in graph.inputs[1:])
            raise InputError(f"{method} takes {expected} inputs ({names}), not {len(args)}")
        environment: Environment = {}
        self.bind(graph.inputs, [_SELF, *args], environment)
        return [Frame(graph.block)], environment

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: Environment) -> None:
        """Give values of a graph what they are: a block's parameters, or a node's outputs."""
        environment.update(zip(values, results, strict=True))

    def proceed(self, frames: list[Frame], environment: Environment) -> list[Any]:
        """Go on where an evaluation stands, to the end of its method; returns what the method's block returns.

        Args:
            frames: the blocks that it is in, outermost first; when an operator raises, they say where it stands.
            environment: the values that are still read.
        """
        while True:
            frame = frames[-1]
            plan = self._plan(frame.block)
            if frame.position < len(plan.nodes):
                self._step(frames, plan, environment)
                continue
            results = [self.value(value, environment) for value in frame.block.outputs]
            for value in plan.returned:
                environment.pop(value, None)
            if frame.owner is None:
                return results
            if not self._goes_round(frame, results, environment):
                frames.pop()
                self._done(frames[-1], results[frame.is_loop :], environment)

    def trips(self, limit: Any) -> Any:
        """How often a loop goes round at most, as a number."""
        return int(limit)

    def next_trip(self, trip: Any) -> Any:
        """The number of a loop's trip after this one."""
        return trip + 1

    def _step(self, frames: list[Frame], plan: BlockPlan, environment: Environment) -> None:
        """Evaluate the next node of the innermost block, or enter one of the node's own blocks."""
        frame = frames[-1]
        node = plan.nodes[frame.position]
        if node.op == "prim::If":
            condition = self.truth(self.value(node.inputs[0], environment), node)
            inner = Frame(node.blocks[0 if condition else 1], node)
        elif node.op == "prim::Loop":
            limit, *results = [self.value(value, environment) for value in node.inputs]
            inner = Frame(node.blocks[0], node, limit=self.trips(limit))
            if not self._goes_round(inner, results, environment):
                self._done(frame, results[1:], environment)
                return
        else:
            self._done(frame, self.node(node, environment), environment)
            return
        frames.append(inner)
        for value in plan.unread_inside[frame.position]:
            environment.pop(value, None)

    def _goes_round(self, frame: Frame, results: list[Any], environment: Environment) -> bool:
        """Begin another trip of a loop if there is one; ``results`` are its condition, and what goes round."""
        if not frame.is_loop:
            return False
        assert frame.owner is not None
        condition, *carried = results
        frame.trip = self.next_trip(frame.trip)
        if not (frame.trip < frame.limit and self.truth(condition, frame.owner)):
            return False
        if self._bound is not None:
            self._bound.count(frame.owner)
        frame.position = 0
        self.bind(frame.block.parameters, [frame.trip, *carried], environment)
        for parameter in self._plan(frame.block).unread_parameters:
            del environment[parameter]
        return True

    def _done(self, frame: Frame, results: Sequence[Any], environment: Environment) -> None:
        """Go on to the next node of a block."""
        plan = self._plan(frame.block)
        self.bind(plan.nodes[frame.position].outputs, results, environment)
        for value in plan.dead_after[frame.position]:
            environment.pop(value, None)
        frame.position += 1

    def value(self, value: Value, environment: Environment) -> Any:
        """The value of a graph's Value."""
        return self.lift(value.constant) if value.is_constant else environment[value]

    def arguments(self, node: Node, environment: Environment) -> list[Any]:
        """What a node reads."""
        return [self.value(value, environment) for value in node.inputs]

    def node(self, node: Node, environment: Environment) -> Sequence[Any]:
        """The outputs of a node without blocks."""
        args = self.arguments(node, environment)
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

    def _plan(self, block: Block) -> BlockPlan:
        plan = self._plans.get(block)
        if plan is None:
            plan = self._plans[block] = _planned(block)
        return plan


def _planned(block: Block) -> BlockPlan:
    nodes = tuple(block.nodes)
    own = set(block.parameters).union(*(node.outputs for node in nodes))
    returned = tuple(own.intersection(block.outputs))
    seen = set(returned)
    dead_after: list[tuple[Value, ...]] = []
    unread_inside: list[tuple[Value, ...]] = []
    for node in reversed(nodes):
        read = own.intersection(_reads(node)).union(node.outputs)
        dead = tuple(value for value in read if value not in seen)
        inside = {value for nested in node.blocks for value in _reads_inside(nested)}
        dead_after.append(dead)
        unread_inside.append(tuple(value for value in dead if value not in inside) if node.blocks else ())
        seen |= read
    unread_parameters = tuple(value for value in block.parameters if value not in seen)
    return BlockPlan(nodes, tuple(dead_after[::-1]), tuple(unread_inside[::-1]), unread_parameters, returned)


def _reads(node: Node) -> Iterator[Value]:
    """Every value that a node and what is nested in it read."""
    yield from node.inputs
    for block in node.blocks:
        yield from _reads_inside(block)


def _reads_inside(block: Block) -> Iterator[Value]:
    for node in block.nodes:
        yield from _reads(node)
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
    if kind in (ANY_LIST, ANY_TUPLE):
        return isinstance(value, list if kind == ANY_LIST else tuple)
    if kind == TENSOR:
        return evaluator.is_tensor(value)
    python_types: dict[Type, type] = {INT: int, FLOAT: float, BOOL: bool, STR: str, NONE: type(None)}
    return evaluator.python_type(value) is python_types.get(kind)


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
