"""Builds a graph node by node, as both readers need it: defaults filled in, casts where types were refined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mobopt.bundle.other_tensors import way_out_of_operator
from mobopt.bundle.result_types import argument_types, join, result_types
from mobopt.errors import BundleError
from mobopt.ir import NOWHERE, Block, Graph, Node, Origin, Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.schemas import Argument, Schema, accepts
from mobopt.ir.types import ANY, BOOL, NONE, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.permitted import is_of_library, refusal

_FREE_STEPS = 50_000
_STEPS_PER_BYTE = 0.25
_MAX_PARTS = 2000


class Allowance:
    """What the reading of one file may cost, over all its methods, and which libraries' operators it may name.

    Calls are inlined, so source of a few bytes can ask for endless work.
    """

    def __init__(self, unpacked_bytes: int, libraries: Collection[str] | None = ()) -> None:
        """Make an allowance.

        Args:
            unpacked_bytes: size of the file's records, unpacked.
            libraries: namespaces of operators beyond torch's own that it may name; None for all that are loaded.
        """
        self.steps = int(_FREE_STEPS + _STEPS_PER_BYTE * unpacked_bytes)
        self._left = self.steps
        self._libraries = libraries

    def spend(self, steps: int) -> None:
        """Count steps.

        Raises:
            BundleError: they are more than any real model of the file's size takes.
        """
        self._left -= steps
        if self._left < 0:
            raise BundleError(
                f"the methods take over {self.steps} steps once their calls are inlined, more than a model of this "
                "size; the file is hostile"
            )

    def check(self, schema: Schema) -> None:
        """Refuse an operator that a file may not name.

        Raises:
            BundleError: the operator does more than compute from its arguments.
        """
        name = schema.qualified_name
        reason = refusal(name)
        if not reason:
            return
        namespace = name.partition("::")[0]
        if is_of_library(name) and (self._libraries is None or namespace in self._libraries):
            return
        raise BundleError(f"the operator {reason}{way_out_of_operator(name)}")


class GraphBuilder:
    """Appends nodes to the current block of a graph.

    Attributes:
        graph: what is built.
        source: where in the file the next nodes come from.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.graph = Graph()
        self.source = ""
        self._place = "", NOWHERE
        self._block = self.graph.block
        self._allowance = allowance

    @property
    def origin(self) -> Origin:
        """Of the next nodes."""
        if self._place[0] != self.source:
            self._place = self.source, Origin.of_line(self.source)
        return self._place[1]

    def step(self, copied: int = 0) -> None:
        """Count a step of reading and the variables that it copies, so that a small file can't ask for endless work.

        Raises:
            BundleError: more steps than any real model takes.
        """
        self._allowance.spend(1 + copied // 16)

    @property
    def block(self) -> Block:
        """The block that is appended to."""
        return self._block

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to a nested block for a while."""
        outer, self._block = self._block, block
        try:
            yield
        finally:
            self._block = outer

    def constant(self, value: Any, kind: Type | None = None) -> Value:
        """A constant."""
        return self.graph.constant(value, kind)

    def node(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[Type],
        overload: str = "",
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> list[Value]:
        """Append a node with an output of each type.

        Raises:
            BundleError: the methods have grown beyond every real model's size.
        """
        self._allowance.spend(1 + (len(inputs) + len(types)) // 16)
        for kind in types:
            check_size(kind)
        names = [name] if name else []
        node = self.graph.create(
            op, inputs, types, overload=overload, attributes=dict(attributes or {}), names=names, origin=self.origin
        )
        return self._block.append(node).outputs

    def append(self, node: Node) -> None:
        """Append a node made elsewhere."""
        self._block.append(node)

    def operator(self, schema: Schema, given: Mapping[int, Value], extra: Sequence[Value] = ()) -> list[Value]:
        """Append a call of an operator.

        Args:
            schema: the operator.
            given: values by position in the schema; the others take their defaults.
            extra: values beyond the arguments of a variadic operator.

        Raises:
            BundleError: the operator does more than compute from its arguments, or lacks one.
        """
        self._allowance.check(schema)
        inputs: list[Value] = []
        for index, argument in enumerate(schema.arguments):
            if index in given:
                inputs.append(self.refined(given[index], argument.type))
            elif argument.has_default:
                inputs.append(self.constant(argument.default, default_type(argument)))
            else:
                raise BundleError(f"a call of {schema.qualified_name} lacks the argument {argument.name!r}")
        expected = argument_types(schema, [value.type for value in inputs])
        inputs = [self.refined(value, kind) for value, kind in zip(inputs, expected, strict=True)]
        inputs += extra
        types = result_types(schema, [value.type for value in inputs])
        return self.node(schema.name, inputs, types, schema.overload)

    def refined(self, value: Value, expected: Type) -> Value:
        """The value, cast if it is None or optional where another type is needed.

        Files leave such casts out where a condition proves them, also in branches that are never taken.
        """
        if _leaves_open(value.type) and not _leaves_open(expected):
            return self.cast(value, expected)
        if accepts(expected, value.type, convert=True):
            return value
        if value.type == NONE:
            return self.cast(value, expected)
        if isinstance(value.type, OptionalType) and accepts(expected, value.type.element, convert=True):
            return self.cast(value, value.type.element)
        return value

    def cast(self, value: Value, kind: Type) -> Value:
        """The value as one of a narrower type."""
        if value.type == kind:
            return value
        return self.node("prim::unchecked_cast", [value], [kind], name=value.name)[0]

    def if_else(self, condition: Value) -> Node:
        """A branch with two empty blocks, which is not yet appended."""
        node = Node("prim::If", [self.refined(condition, BOOL)], origin=self.origin)
        node.add_block()
        node.add_block()
        return node

    def finish_if(
        self, node: Node, then: Sequence[Value], otherwise: Sequence[Value], names: Sequence[str] = ()
    ) -> list[Value]:
        """Give a branch its results and append it; the values of both branches in pairs."""
        types = [join(left.type, right.type) for left, right in zip(then, otherwise, strict=True)]
        for values in (then, otherwise):
            for value, kind in zip(values, types, strict=True):
                settle(value, kind)
        node.blocks[0].returns.set_inputs(then)
        node.blocks[1].returns.set_inputs(otherwise)
        hints = [*names, *[""] * (len(types) - len(names))]
        outputs = [node.add_output(self.graph.value(kind, name)) for kind, name in zip(types, hints, strict=True)]
        self.append(node)
        return outputs

    def loop(
        self,
        limit: Value,
        condition: Value,
        carried: Sequence[Value],
        fill: Callable[[Block, list[Type]], list[Value]],
        names: Sequence[str] = (),
    ) -> list[Value]:
        """Append a loop; gives its results.

        ``fill`` makes the body for types of what is carried, and gives what it returns; it is asked again with wider
        types until the body keeps to them.
        """
        types = [value.type for value in carried]
        while True:
            node = Node("prim::Loop", [limit, condition, *carried], origin=self.origin)
            returned = fill(node.add_block(), types)
            widened = [join(kind, value.type) for kind, value in zip(types, returned[1:], strict=True)]
            if widened == types:
                break
            node.destroy()
            types = widened
        node.blocks[0].returns.set_inputs(returned)
        hints = [*names, *[""] * (len(types) - len(names))]
        outputs = [node.add_output(self.graph.value(kind, name)) for kind, name in zip(types, hints, strict=True)]
        self.append(node)
        return outputs


def _leaves_open(kind: Type) -> bool:
    """Whether a type says Any where the value has a definite type."""
    return kind == ANY or (isinstance(kind, ListType) and kind.element == ANY)


def check_size(kind: Type) -> None:
    """Refuse a type that is built of very many parts.

    Raises:
        BundleError: it has more parts than any real model's.
    """
    left, count = [kind], 0
    while left:
        part = left.pop()
        count += 1
        if count > _MAX_PARTS:
            raise BundleError(f"a type has over {_MAX_PARTS} parts; the file is hostile")
        match part:
            case ListType(element) | OptionalType(element):
                left.append(element)
            case DictType(key, value):
                left += (key, value)
            case TupleType(elements):
                left += elements


def settle(value: Value, kind: Type) -> None:
    """Give a value whose type the file leaves open the type that its use shows."""
    if value.type == ANY and value.producer is not None and value.producer.op == "prim::Uninitialized":
        value.type = kind


def default_type(argument: Argument) -> Type:
    """The type of an argument's default, as a constant."""
    kind = argument.type
    if argument.default is None:
        return type_of_constant(None)
    if isinstance(argument.default, list):
        return kind.element if isinstance(kind, OptionalType) else kind
    return type_of_constant(argument.default)


def value_type(value: Any, types: Mapping[int, Type]) -> Type:
    """The type of an unpickled value; its lists and dictionaries are tagged in ``types``."""
    if id(value) in types:
        return types[id(value)]
    if isinstance(value, tuple):
        return TupleType(tuple(value_type(item, types) for item in value))
    if isinstance(value, list) and not value:
        return ListType(ANY)
    return type_of_constant(value)
