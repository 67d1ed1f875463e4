"""The graph: values, nodes and blocks in SSA form, shaped like TorchScript's.

Graphs come in two forms. In those of a :class:`~mobopt.ir.program.Program` every argument of an operator is a Value,
and lists of tensors are made by nodes. In the straight line that specialising leaves, only tensors are Values, of a
:class:`~mobopt.ir.types.TensorType`; a node's :attr:`Node.args` have them among plain numbers, strings and lists.

Use-def is right by construction: a node's inputs are an immutable tuple that only methods change, and every change
keeps ``Value.uses`` in step. What a block returns are the inputs of its ``returns`` node, so they are uses like any
other. A constant is a Value without a producer that carries its value; it belongs to no block. A value without a name
is numbered when the graph is printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mobopt.errors import GraphError
from mobopt.ir.facts import UNKNOWN, TensorFacts
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.node_list import InsertionPoint, NodeList
from mobopt.ir.origin import NOWHERE, Origin
from mobopt.ir.schemas import argument_names
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    INT,
    NONE,
    STR,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    TensorType,
    TupleType,
    Type,
)

_NOT_CONSTANT = object()
_SIMPLE_TYPES: tuple[tuple[type, Type], ...] = (
    (torch.Tensor, TENSOR),
    (bool, BOOL),
    (int, INT),
    (float, FLOAT),
    (complex, COMPLEX),
    (str, STR),
    (torch.device, DEVICE),
    (type(None), NONE),
)
_NO_NAME = re.compile(r"[^\w.]")


class Value:
    """One SSA value: a parameter of a block, an output of a node, or a constant."""

    __slots__ = ("_constant", "_uses", "attribute", "facts", "name", "owner", "producer", "type")

    def __init__(self, name: str, type: Type, constant: Any = _NOT_CONSTANT, attribute: str = "") -> None:
        self.name = name
        self.type = type
        self.facts: TensorFacts = UNKNOWN
        """What is known of a tensor of a Program, whose type says no more than that it is one."""
        self.producer: Node | None = None
        self.owner: Block | None = None
        """The block whose parameter this is, if it is one."""
        self.attribute = attribute
        """Name of the attribute that a constant was before it was frozen, if it was one."""
        self._constant = constant
        self._uses: dict[tuple[Node, int], None] = {}

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self._constant is not _NOT_CONSTANT

    @property
    def constant(self) -> Any:
        """The known value.

        Raises:
            GraphError: it is not a constant.
        """
        if self._constant is _NOT_CONSTANT:
            raise GraphError(f"%{self.name} is not a constant")
        return self._constant

    @property
    def uses(self) -> tuple[tuple[Node, int], ...]:
        """Each (node, input index) that reads this value, in order of registration."""
        return tuple(self._uses)

    @property
    def is_used(self) -> bool:
        """Whether a node reads this value, or a block returns it."""
        return bool(self._uses)

    @staticmethod
    def of_tensor(dtype: torch.dtype, sizes: Sequence[int], name: str = "") -> Value:
        """A tensor of a straight line, made by nobody yet."""
        return Value(name, TensorType(dtype, tuple(sizes)))

    @staticmethod
    def of_elements(elements: torch.Tensor, dtype: torch.dtype | None = None) -> Value:
        """A tensor of a straight line whose elements are known; ``dtype`` is its own if not theirs, see
        :attr:`typed_elements`."""
        return Value("", TensorType(dtype or elements.dtype, tuple(elements.shape)), elements)

    @property
    def tensor_type(self) -> TensorType:
        """The type of a tensor of which dtype and sizes are known.

        Raises:
            GraphError: it is not one.
        """
        if not isinstance(self.type, TensorType):
            raise GraphError(f"%{self.name} is {self.type}, not a tensor whose dtype and sizes are known")
        return self.type

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of a tensor; see :attr:`tensor_type`."""
        kind = self.type
        return kind.dtype if isinstance(kind, TensorType) else self.tensor_type.dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of a tensor, which are numbers; see :attr:`tensor_type`."""
        kind = self.type
        return kind.sizes if isinstance(kind, TensorType) else self.tensor_type.sizes  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        """Number of dimensions of a tensor; see :attr:`tensor_type`."""
        return len(self.sizes)

    @property
    def numel(self) -> int:
        """Number of elements of a tensor; see :attr:`tensor_type`."""
        return math.prod(self.sizes)

    @property
    def elements(self) -> torch.Tensor | None:
        """The tensor that a constant is; None for what is computed."""
        return self._constant if self._constant is not _NOT_CONSTANT else None

    @property
    def typed_elements(self) -> torch.Tensor:
        """The tensor that a constant of a straight line is, in the value's dtype: weights of a float32 line may have
        elements of fewer bits."""
        elements: torch.Tensor = self.constant
        return elements.to(self.dtype)

    def replace_all_uses_with(self, other: Value) -> None:
        """Make every reader of this value read ``other``, whose node then stands for this one's too; what was known of
        this one is known of ``other``."""
        if other is self:
            return
        if other.facts is UNKNOWN and self._uses and not other.is_constant:
            other.facts = self.facts
        if self.producer is not None and other.producer is not None and self.producer.computes:
            other.producer.origin |= self.producer.origin
        for node, index in self.uses:
            node.replace_input(index, other)

    def __repr__(self) -> str:
        return f"%{self.name} : {self.type}"


class Node:
    """One operation: ``outputs = op(inputs)`` with attributes and nested blocks.

    Attributes:
        op: qualified name without overload, such as ``aten::conv2d``.
        overload: overload name (``Tensor`` in ``aten::add.Tensor``), empty for the default one.
        attributes: static attributes (``name`` of ``prim::GetAttr``).
        origin: the nodes of the model that it comes from.
        block: the block that holds it, None before insertion and after :meth:`remove` and :meth:`destroy`.
        previous, next: its neighbours in that block.
    """

    __slots__ = (
        "_arguments",
        "_inputs",
        "_number",
        "attributes",
        "block",
        "blocks",
        "next",
        "op",
        "origin",
        "outputs",
        "overload",
        "previous",
    )

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value] = (),
        outputs: Sequence[Value] = (),
        *,
        overload: str = "",
        attributes: dict[str, Any] | None = None,
        origin: Origin = NOWHERE,
    ) -> None:
        self.op = op
        self.overload = overload
        self.attributes: dict[str, Any] = dict(attributes or {})
        self.origin = origin
        self.block: Block | None = None
        self.previous: Node | None = None
        self.next: Node | None = None
        self._number = 0
        self.blocks: list[Block] = []
        self.outputs: list[Value] = []
        self._arguments: tuple[Any, ...] | None = None
        self._inputs: tuple[Value, ...] = tuple(inputs)
        for index, value in enumerate(self._inputs):
            value._uses[self, index] = None
        for value in outputs:
            self.add_output(value)

    @staticmethod
    def call(qualified_op: str, args: Sequence[Any], outputs: Sequence[Value], origin: Origin = NOWHERE) -> Node:
        """A node of a straight line.

        Args:
            qualified_op: name with overload.
            args: all arguments in the order of the operator's schema, keyword-only ones last: Values for tensors (also
                in lists), plain Python values for everything else.
            outputs: what it makes, made by nobody yet.
            origin: the nodes of the model that it comes from.
        """
        op, _, overload = qualified_op.partition(".")
        arguments = tuple(args)
        node = Node(op, tuple(leaves_of(arguments, Value)), outputs, overload=overload, origin=origin)
        node._arguments = arguments
        return node

    @property
    def args(self) -> tuple[Any, ...]:
        """The operator's arguments, as :meth:`call` takes them; the inputs, if all of them are Values."""
        return self._inputs if self._arguments is None else self._arguments

    @property
    def has_inline_arguments(self) -> bool:
        """Whether arguments may be plain values, as in a straight line."""
        return self._arguments is not None

    def __getitem__(self, name: str) -> Any:
        """The argument called ``name`` in the operator's schema."""
        return self.args[argument_names(self.qualified_op).index(name)]

    @property
    def qualified_op(self) -> str:
        """Name with overload: ``aten::add.Tensor``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @property
    def source(self) -> str:
        """Lines of the model that the node comes from, as messages name them; empty if none is known."""
        return str(self.origin)

    @property
    def computes(self) -> bool:
        """Whether it is an operator on tensors; branches, loops and containers are none."""
        return not self.blocks and any(
            value.type == TENSOR or isinstance(value.type, TensorType) for value in self._inputs
        )

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What the node reads; change it through the methods."""
        return self._inputs

    @property
    def output(self) -> Value:
        """The only output.

        Raises:
            GraphError: it has none or several.
        """
        if len(self.outputs) != 1:
            raise GraphError(f"{self.op} has {len(self.outputs)} outputs, not one")
        return self.outputs[0]

    def add_input(self, value: Value) -> None:
        """Read one more value, last."""
        if self._arguments is not None:
            raise GraphError(f"{self.qualified_op} has all of its arguments")
        value._uses[self, len(self._inputs)] = None
        self._inputs = (*self._inputs, value)

    def replace_input(self, index: int, value: Value) -> None:
        """Read ``value`` at ``index`` instead of what is there."""
        del self._inputs[index]._uses[self, index]
        self._inputs = (*self._inputs[:index], value, *self._inputs[index + 1 :])
        value._uses[self, index] = None
        self._renew_arguments()

    def set_inputs(self, values: Sequence[Value]) -> None:
        """Read exactly these values.

        Raises:
            GraphError: a node with plain arguments would read another number of tensors.
        """
        for index, value in enumerate(self._inputs):
            del value._uses[self, index]
        if self._arguments is not None and len(values) not in (0, len(self._inputs)):
            raise GraphError(f"{self.qualified_op} reads {len(self._inputs)} tensors among its arguments")
        self._inputs = tuple(values)
        for index, value in enumerate(self._inputs):
            value._uses[self, index] = None
        self._renew_arguments()

    def _renew_arguments(self) -> None:
        """Put the inputs among the plain arguments, in place of those that were there."""
        if self._arguments is not None and self._inputs:
            inputs = iter(self._inputs)
            self._arguments = map_leaves(self._arguments, Value, lambda _: next(inputs))

    def add_output(self, value: Value) -> Value:
        """Make one more value, last."""
        if value.producer is not None or value.owner is not None or value.is_constant:
            raise GraphError(f"%{value.name} can't be an output of {self.op}: it is made elsewhere")
        value.producer = self
        self.outputs.append(value)
        return value

    def remove_output(self, index: int) -> None:
        """Make one value less.

        Raises:
            GraphError: it is still used.
        """
        if self.outputs[index]._uses:
            raise GraphError(f"%{self.outputs[index].name} of {self.op} is still used")
        self.outputs.pop(index).producer = None

    def add_block(self) -> Block:
        """Append a nested block."""
        block = Block(self)
        self.blocks.append(block)
        return block

    def insert_before(self, anchor: Node) -> Node:
        """Put this node just before ``anchor``; before the returns node means at the end."""
        return InsertionPoint.before(anchor).insert(self)

    def is_before(self, other: Node) -> bool:
        """Whether this node stands before another one of the same block; the returns node stands after all.

        Raises:
            GraphError: they don't stand in one block.
        """
        if self.block is None or self.block is not other.block:
            raise GraphError(f"{self.op} and {other.op} don't stand in one block")
        returns = self.block.returns
        if self is returns or other is returns:
            return self is not returns
        return self.block.nodes.is_before(self, other)

    def remove(self) -> Node:
        """Take the node out of its block, to put it in elsewhere; it goes on reading its inputs."""
        if self.block is not None:
            self.block.nodes.unlink(self)
            self.block = None
        return self

    def destroy(self) -> None:
        """Take the node out of its block and forget its inputs.

        Raises:
            GraphError: an output is still used.
        """
        for value in self.outputs:
            if value._uses:
                raise GraphError(f"{self.op} can't be removed: its output %{value.name} is still used")
        for block in self.blocks:
            block.returns.set_inputs(())
            for node in reversed(block.nodes):
                node.destroy()
        self.set_inputs(())
        self.remove()

    def __repr__(self) -> str:
        outputs = ", ".join(f"%{value.name}" for value in self.outputs)
        return f"{outputs} = {self.qualified_op}({', '.join(f'%{value.name}' for value in self.inputs)})"


class Block:
    """Nodes in order, the parameters they may read, and what the block returns."""

    __slots__ = ("node", "nodes", "parameters", "returns")

    def __init__(self, node: Node | None = None) -> None:
        self.node = node
        """The node that holds this block; None for a graph's own block."""
        self.parameters: list[Value] = []
        self.nodes = NodeList()
        self.returns = Node("prim::Return")
        self.returns.block = self

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What the block returns."""
        return self.returns.inputs

    def add_parameter(self, value: Value) -> Value:
        """One more parameter, last."""
        if value.producer is not None or value.is_constant:
            raise GraphError(f"%{value.name} can't be a parameter: it is made elsewhere")
        value.owner = self
        self.parameters.append(value)
        return value

    def append(self, node: Node) -> Node:
        """Put a node at the end.

        Raises:
            GraphError: it stands in a block already.
        """
        return InsertionPoint.end(self).insert(node)

    def walk(self) -> Iterator[Node]:
        """Every node in order, nested ones right after the node that holds them; the block may change on the way."""
        for node in list(self.nodes):
            yield node
            for block in node.blocks:
                yield from block.walk()


class Graph:
    """One method: its block, whose parameters are the method's inputs (``self`` first if it has one)."""

    def __init__(self) -> None:
        self.block = Block()
        self._names: dict[str, int] = {}
        self._taken: set[str] = set()

    @property
    def inputs(self) -> list[Value]:
        """Parameters of the method."""
        return self.block.parameters

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What the method returns (TorchScript methods return exactly one value)."""
        return self.block.outputs

    def walk(self) -> Iterator[Node]:
        """Every node, also nested ones; see :meth:`Block.walk`."""
        return self.block.walk()

    def unique_name(self, hint: str = "") -> str:
        """A value name that this graph has not given out yet, made from ``hint``, of word characters and dots."""
        base = hint.rsplit(".", 1)[0] if hint.rpartition(".")[2].isdigit() else hint
        base = _NO_NAME.sub("_", base)
        base = "" if base.isdigit() else base
        while True:
            count = self._names.get(base, 0)
            self._names[base] = count + 1
            name = base if base and count == 0 else f"{base}.{count}" if base else str(count)
            if name not in self._taken:
                self._taken.add(name)
                return name

    def reserve_name(self, name: str) -> None:
        """Say that a value made elsewhere has this name."""
        self._taken.add(name)

    def value(self, type: Type, name: str = "") -> Value:
        """A new value with a unique name, made by nobody yet."""
        return Value(self.unique_name(name), type)

    def add_input(self, name: str, type: Type) -> Value:
        """One more parameter of the method."""
        return self.block.add_parameter(self.value(type, name))

    def constant(self, value: Any, type: Type | None = None, name: str = "") -> Value:
        """A constant; its type follows from the value unless given."""
        return Value(self.unique_name(name), type_of_constant(value) if type is None else type, value)

    def create(
        self,
        op: str,
        inputs: Sequence[Value] = (),
        types: Sequence[Type] = (TENSOR,),
        *,
        overload: str = "",
        attributes: dict[str, Any] | None = None,
        names: Sequence[str] = (),
        origin: Origin = NOWHERE,
    ) -> Node:
        """A new node, with an output of each type, that stands in no block yet."""
        hints = [*names, *([""] * (len(types) - len(names)))]
        outputs = [self.value(kind, hint) for kind, hint in zip(types, hints, strict=True)]
        return Node(op, inputs, outputs, overload=overload, attributes=attributes, origin=origin)

    def return_values(self, *values: Value) -> None:
        """Say what the method returns."""
        self.block.returns.set_inputs(values)


def type_of_constant(value: Any) -> Type:
    """The type that TorchScript gives a Python value.

    Raises:
        GraphError: TorchScript has no such constant.
    """
    for python_type, result in _SIMPLE_TYPES:
        if isinstance(value, python_type):
            return result
    if isinstance(value, tuple):
        return TupleType(tuple(type_of_constant(item) for item in value))
    if isinstance(value, list):
        return ListType(type_of_constant(value[0]) if value else ANY)
    if isinstance(value, dict) and value:
        key, item = next(iter(value.items()))
        return DictType(type_of_constant(key), type_of_constant(item))
    qualified_name = getattr(value, "qualified_name", None)
    if isinstance(qualified_name, str):
        return ClassType(qualified_name)
    raise GraphError(f"a {type(value).__name__} can't be a constant of a graph")
