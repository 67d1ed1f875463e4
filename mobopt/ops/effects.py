"""What a node does besides computing its outputs: writes, randomness, side effects; and which values may share memory.

Everything follows from the alias annotations of operator schemas, and from the short lists here of what they leave out.
"""

from __future__ import annotations

from collections.abc import Iterable

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.schemas import Schema, schema_of, schemas_of
from mobopt.ir.types import ANY, TENSOR, ClassType, DictType, ListType, OptionalType, TupleType, Type

RANDOM_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        "_fused_dropout",
        "alpha_dropout",
        "alpha_dropout_",
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "dropout",
        "dropout_",
        "exponential_",
        "feature_alpha_dropout",
        "feature_dropout",
        "feature_dropout_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "rrelu",
        "rrelu_",
        "rrelu_with_noise",
        "uniform_",
    )
)
"""Operators whose result differs from call to call; dropout only while training, see :func:`is_random`."""

_UNDEFINED_CONTENTS = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
_SIDE_EFFECTS = frozenset(
    {
        "prim::RaiseException",
        "prim::SetAttr",
        "prim::Print",
        "aten::warn",
        "aten::set_grad_enabled",
        "aten::_assert_async",
        "aten::save",
        "aten::manual_seed",
        "prim::Enter",
        "prim::Exit",
        "prim::AddStatValue",
    }
)
_PURE_LANGUAGE = frozenset(
    f"prim::{name}"
    for name in (
        "DictConstruct",
        "GetAttr",
        "IfThenElse",
        "ListConstruct",
        "ListUnpack",
        "NumToTensor",
        "TupleConstruct",
        "TupleIndex",
        "TupleSlice",
        "TupleUnpack",
        "Uninitialized",
        "abs",
        "device",
        "dtype",
        "is_cpu",
        "is_cuda",
        "is_nested",
        "is_quantized",
        "is_vulkan",
        "isinstance",
        "itemsize",
        "layout",
        "max",
        "min",
        "requires_grad",
        "shape",
        "tolist",
        "type",
        "unchecked_cast",
        "unchecked_unwrap_optional",
    )
)
_UNANNOTATED_ALIASES = frozenset(
    f"aten::{name}"
    for name in (
        "alpha_dropout",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_to",
        "dropout",
        "einsum",
        "feature_alpha_dropout",
        "feature_dropout",
        "pad",
        "sum_to_size",
        "type_as",
        "_cast_Float",
        "_cast_Double",
    )
)
"""Operators that may hand an argument, or a view of it, back although their schema does not say so."""


def schema_of_node(node: Node) -> Schema | None:
    """The schema of a node; None for the language's own operators."""
    known = any(schema.overload == node.overload for schema in schemas_of(node.op))
    if node.op.startswith("prim::") and not known:
        return None
    return schema_of(node.qualified_op)


def is_random(node: Node) -> bool:
    """Whether two runs of the node on the same inputs may differ."""
    if node.op in _UNDEFINED_CONTENTS:
        return True
    if node.op not in RANDOM_OPERATORS:
        return False
    if "dropout" in node.op or "rrelu" in node.op:
        schema = schema_of(node.qualified_op)
        names = [argument.name for argument in schema.arguments]
        flag = node.inputs[names.index("train" if "train" in names else "training")]
        return not (flag.is_constant and flag.constant is False)
    return True


def written_inputs(node: Node) -> tuple[Value, ...]:
    """The inputs that a node changes in place."""
    schema = schema_of_node(node)
    if schema is None:
        return ()
    pairs = zip(node.inputs, schema.arguments, strict=False)
    return tuple(value for value, argument in pairs if argument.is_written)


def has_side_effects(node: Node) -> bool:
    """Whether the node does something that can be seen outside the graph, beside writing to its inputs."""
    if node.op in _SIDE_EFFECTS:
        return True
    if node.blocks:
        return any(has_side_effects(inner) for block in node.blocks for inner in block.nodes)
    return node.op.startswith("prim::") and node.op not in _PURE_LANGUAGE and schema_of_node(node) is None


def is_pure(node: Node) -> bool:
    """Whether the node only computes its outputs from its inputs: no writes, randomness, side effects or blocks.

    ``prim::GetAttr`` is not pure: an attribute may be assigned to between two reads.
    """
    if node.blocks or node.op == "prim::GetAttr":
        return False
    return not (is_random(node) or has_side_effects(node) or written_inputs(node))


def holds_tensors(kind: Type) -> bool:
    """Whether a value of this type is a tensor, or a container that may hold one."""
    if isinstance(kind, (ListType, OptionalType)):
        return holds_tensors(kind.element)
    if isinstance(kind, DictType):
        return holds_tensors(kind.value) or holds_tensors(kind.key)
    if isinstance(kind, TupleType):
        return any(holds_tensors(element) for element in kind.elements)
    return kind in (TENSOR, ANY)


def _is_shared(kind: Type) -> bool:
    """Whether values of this type have an identity: they can be changed and seen changed elsewhere."""
    if isinstance(kind, OptionalType):
        return _is_shared(kind.element)
    if isinstance(kind, TupleType):
        return any(_is_shared(element) for element in kind.elements)
    return kind in (TENSOR, ANY) or isinstance(kind, (ListType, DictType, ClassType))


class AliasSets:
    """Which values of a graph may share memory, found once, without regard to order (it may say yes too often).

    A method's inputs, attributes and constants are external: what is written there can be seen by the caller, or by the
    next call.
    """

    def __init__(self, graph: Graph) -> None:
        self._parent: dict[Value, Value] = {}
        self._external: set[Value] = set()
        self._constants: dict[int, Value] = {}
        self._attributes: dict[str, Value] = {}
        self._written: list[tuple[Node, Value]] = []
        inputs = [value for value in graph.inputs[1:] if _is_shared(value.type)]
        for value in inputs:
            self._unite(inputs[0], value)
        self._external.update(inputs)
        self._block(graph.block)
        self._members: dict[Value, list[Value]] = {}
        for value in list(self._parent):
            self._members.setdefault(self._root(value), []).append(value)
        self._writers: dict[Value, list[tuple[Node, Value]]] = {}
        for node, value in self._written:
            self._writers.setdefault(self._root(value), []).append((node, value))

    def may_alias(self, left: Value, right: Value) -> bool:
        """Whether the two may share memory."""
        return self._root(left) is self._root(right)

    def members(self, value: Value) -> list[Value]:
        """Every value in which a change of this one may be seen, itself included.

        A change of a tensor is seen in the containers that hold it; one of a container is not seen in its tensors.
        """
        found = self._members.get(self._root(value), [value])
        return [item for item in found if not _is_plain_tensor(item.type)] if _is_container(value.type) else found

    def is_external(self, value: Value) -> bool:
        """Whether a change of it may be seen after the call."""
        return any(item in self._external for item in self.members(value))

    def writers(self, value: Value) -> list[Node]:
        """Nodes whose writes may be seen in it."""
        found = self._writers.get(self._root(value), [])
        return [node for node, target in found if not (_is_plain_tensor(value.type) and _is_container(target.type))]

    def _root(self, value: Value) -> Value:
        root = value
        while (parent := self._parent.get(root, root)) is not root:
            root = parent
        while (parent := self._parent.get(value, value)) is not value:
            self._parent[value], value = root, parent
        return root

    def _unite(self, left: Value, right: Value) -> None:
        if _is_shared(left.type) and _is_shared(right.type):
            for value in (left, right):
                self._parent.setdefault(value, value)
            self._parent[self._root(right)] = self._root(left)

    def _block(self, block: Block) -> None:
        for node in block.nodes:
            for value in node.inputs:
                if value.is_constant:
                    self._constant(value)
            self._node(node)
            for nested in node.blocks:
                self._block(nested)
            self._written += [(node, value) for value in written_inputs(node)]
        for value in block.outputs:
            if value.is_constant:
                self._constant(value)

    def _constant(self, value: Value) -> None:
        if _is_shared(value.type):
            self._external.add(value)
            self._unite(self._constants.setdefault(id(value.constant), value), value)

    def _node(self, node: Node) -> None:
        for output in node.outputs:
            self._parent.setdefault(output, output)
        if node.op == "prim::If":
            for block in node.blocks:
                self._pairs(node.outputs, block.outputs)
        elif node.op == "prim::Loop":
            body = node.blocks[0]
            self._pairs(node.outputs, node.inputs[2:])
            self._pairs(node.outputs, body.parameters[1:])
            self._pairs(node.outputs, body.outputs[1:])
        elif node.op == "prim::GetAttr":
            name = node.attributes.get("name", "")
            self._external.add(node.output)
            self._unite(self._attributes.setdefault(name, node.output), node.output)
        else:
            self._operator(node)

    def _pairs(self, left: Iterable[Value], right: Iterable[Value]) -> None:
        for first, second in zip(left, right, strict=True):
            self._unite(first, second)

    def _operator(self, node: Node) -> None:
        sources = _aliased_inputs(node)
        for output in node.outputs:
            for value in sources:
                self._unite(value, output)
        for target in written_inputs(node):
            if _is_container(target.type):  # what a container is given stays in it
                for value in node.inputs:
                    self._unite(target, value)


def _aliased_inputs(node: Node) -> list[Value]:
    """Inputs whose memory an output may share."""
    schema = schema_of_node(node)
    if schema is None or schema.is_variadic or node.op in _UNANNOTATED_ALIASES:
        return list(node.inputs)
    gives_containers = any(isinstance(output.type, (ListType, DictType, TupleType)) for output in node.outputs)
    pairs = zip(node.inputs, schema.arguments, strict=False)
    return [
        value
        for value, argument in pairs
        if argument.aliases or (gives_containers and not _is_plain_tensor(value.type))
    ]


def _is_container(kind: Type) -> bool:
    return isinstance(kind, (ListType, DictType))


def _is_plain_tensor(kind: Type) -> bool:
    return kind == TENSOR or (isinstance(kind, OptionalType) and kind.element == TENSOR)
