"""Nests of inputs and outputs, as serialised programs tell them, and as values of a graph.

Source of the form: ``torch/utils/_pytree.py``, protocol 1.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mobopt.bundle.builder import GraphBuilder
from mobopt.bundle.source_text import is_identifier
from mobopt.errors import BundleError, UnsupportedError
from mobopt.ir import Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.types import STR, TENSOR, DictType, ListType, TupleType, Type

_PROTOCOL = 1
_SEQUENCES = {
    "builtins.tuple": "tuple",
    "builtins.list": "list",
    "collections.deque": "list",
    "torch.Size": "tuple",
}
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")
_DEFAULT_DICTIONARY = "collections.defaultdict"
_RETURNED = "torch.return_types."
_NAMED_TUPLE = "collections.namedtuple"
_DEEPEST = 64


@dataclass(frozen=True)
class Tree:
    """A nest: a leaf, or a container of nests.

    Attributes:
        kind: ``leaf``, ``tuple``, ``list``, ``dict``, ``named`` (a class with fields) or ``other``.
        children: what a container holds.
        names: keys of a dictionary, or fields of a class.
        type_name: the Python class of a container.
    """

    kind: str
    children: tuple[Tree, ...] = ()
    names: tuple[Any, ...] = ()
    type_name: str = ""

    @property
    def leaf_count(self) -> int:
        """How many leaves it has."""
        return 1 if self.kind == "leaf" else sum(child.leaf_count for child in self.children)

    @property
    def is_record(self) -> bool:
        """Whether it has names that can be fields."""
        return bool(self.names) and all(isinstance(name, str) and is_identifier(name) for name in self.names)


LEAF = Tree("leaf")


def parse_tree(text: str, fields: Mapping[str, Any]) -> Tree:
    """Read a nest.

    Args:
        text: JSON, as ``treespec_dumps`` writes it.
        fields: names of the fields of named tuples, by class.

    Raises:
        BundleError: the text is none.
    """
    try:
        protocol, data = json.loads(text)
        if protocol != _PROTOCOL:
            raise BundleError(f"nests of inputs and outputs are written in the form {protocol!r}; {_PROTOCOL} is read")
        return _tree(data, fields, 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BundleError(f"the nest {text[:100]!r} can't be read: {error!r}") from None


def _tree(data: Mapping[str, Any], fields: Mapping[str, Any], depth: int) -> Tree:
    if depth > _DEEPEST:
        raise ValueError("it is too deep")
    name = data["type"]
    if name is None:
        return LEAF
    children = tuple(_tree(child, fields, depth + 1) for child in data["children_spec"])
    if name == _NAMED_TUPLE:
        owner = str(data["context"])
        names = fields.get(owner, {}).get("field_names", ())
        is_known = len(names) == len(children)
        return Tree("named" if is_known else "tuple", children, tuple(names) if is_known else (), owner)
    context = json.loads(data["context"]) if isinstance(data["context"], str) else data["context"]
    return tree_of(name, context, children)


def tree_of(type_name: str, context: Any, children: tuple[Tree, ...]) -> Tree:
    """A container.

    Args:
        type_name: its class, with the module.
        context: what torch keeps beside its children: keys of a dictionary, fields of a class.
        children: what it holds.
    """
    if type_name in _SEQUENCES:
        return Tree(_SEQUENCES[type_name], children, type_name=type_name)
    if type_name.startswith(_RETURNED):
        return Tree("tuple", children, type_name=type_name)
    match context:
        case {"dict_context": keys}:
            pass
        case [[*keys], [*_]]:  # a dataclass: fields that are given, and those that are None
            pass
        case [_, [*keys]] if type_name == _DEFAULT_DICTIONARY:
            pass
        case _:
            keys = context
    if isinstance(keys, (list, tuple)) and len(keys) == len(children):
        kind = "dict" if type_name in (*_DICTIONARIES, _DEFAULT_DICTIONARY) else "named"
        return Tree(kind, children, tuple(keys), type_name)
    return Tree("other", children, type_name=type_name)


def arrange(tree: Tree, leaves: Iterator[Any]) -> Any:
    """Python values in the nest that a call of a packed graph gives (:meth:`Packer.pack`), from its leaves in order."""
    return _arranged(tree, leaves)[0]


def _arranged(tree: Tree, leaves: Iterator[Any]) -> tuple[Any, Type]:
    if tree.kind == "leaf":
        leaf = next(leaves)
        return leaf, type_of_constant(leaf)
    parts = [_arranged(child, leaves) for child in tree.children]
    values = [value for value, _ in parts]
    kind = packed_type(tree, [kind for _, kind in parts])
    match kind:
        case ListType():
            return values, kind
        case DictType():
            return dict(zip(tree.names, values, strict=True)), kind
        case TupleType(_, name, fields) if fields:
            return namedtuple(name.rpartition(".")[2], fields)(*values), kind
    return tuple(values), kind


def packed_type(tree: Tree, kinds: Sequence[Type]) -> Type:
    """The type of a container of values of these types.

    TorchScript's lists and dictionaries hold elements of one type; others become tuples, and those with names for
    their elements named tuples.
    """
    if tree.kind == "list" and len(set(kinds)) <= 1:
        return ListType(kinds[0] if kinds else TENSOR)
    if tree.kind == "dict" and len(set(kinds)) == 1 and all(isinstance(key, str) for key in tree.names):
        return DictType(STR, kinds[0])
    if tree.is_record and kinds:
        return TupleType(tuple(kinds), _class_name(tree), tuple(tree.names))
    return TupleType(tuple(kinds))


class Packer:
    """Puts values together to nests, and takes nests apart, by nodes that it appends."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._named: dict[str, TupleType] = {}

    def pack(self, tree: Tree, leaves: Iterator[Value]) -> Value:
        """One value of a nest, of the type that :func:`packed_type` tells, but for names that others have."""
        if tree.kind == "leaf":
            return next(leaves)
        values = [self.pack(child, leaves) for child in tree.children]
        kind = packed_type(tree, [value.type for value in values])
        match kind:
            case ListType():
                return self._builder.node("prim::ListConstruct", values, [kind])[0]
            case DictType():
                values = [part for pair in zip(map(self._key, tree.names), values, strict=True) for part in pair]
                return self._builder.node("prim::DictConstruct", values, [kind])[0]
            case TupleType():
                kind = self._distinct(kind)
        return self._builder.node("prim::TupleConstruct", values, [kind])[0]

    def _distinct(self, kind: TupleType) -> TupleType:
        """TorchScript knows named tuples by their names alone, while a class of Python may leave out what is None."""
        if not kind.name:
            return kind
        named, number = kind, 0
        while self._named.setdefault(named.name, named) != named:
            number += 1
            named = replace(kind, name=f"{kind.name}_{number}")
        return named

    def unpack(self, tree: Tree, value: Value) -> Iterator[Value]:
        """The leaves of a value whose type is that of :func:`input_type`."""
        if tree.kind == "leaf":
            yield value
            return
        for child, part in zip(tree.children, self._parts(tree, value), strict=True):
            yield from self.unpack(child, part)

    def _parts(self, tree: Tree, value: Value) -> list[Value]:
        match value.type:
            case TupleType(elements):
                return self._builder.node("prim::TupleUnpack", [value], list(elements))
            case ListType(element):
                return self._builder.node("prim::ListUnpack", [value], [element] * len(tree.children))
            case DictType(_, element):
                item = "aten::__getitem__"
                parts = [self._builder.node(item, [value, self._key(key)], [element], "Dict_str") for key in tree.names]
                return [part for (part,) in parts]
        raise UnsupportedError(f"an input of type {value.type} can't be taken apart")

    def _key(self, key: str) -> Value:
        return self._builder.constant(key)


def _class_name(tree: Tree) -> str:
    last = tree.type_name.rpartition(".")[2]
    return f"__torch__.{last if is_identifier(last) and tree.kind == 'named' else 'Outputs'}"


def input_type(name: str, tree: Tree, leaves: Iterator[Type]) -> Type:
    """The type of a method's parameter.

    Args:
        name: of the parameter, for messages.
        tree: its nest.
        leaves: types of its leaves.

    Raises:
        UnsupportedError: a graph has no such parameter.
    """
    if tree.kind == "leaf":
        return next(leaves)
    kinds = [input_type(name, child, leaves) for child in tree.children]
    if tree.kind in ("tuple", "named"):
        return TupleType(tuple(kinds))
    if tree.kind == "list" and len(set(kinds)) <= 1:
        return ListType(kinds[0] if kinds else TENSOR)
    if tree.kind == "dict" and len(set(kinds)) == 1 and all(isinstance(key, str) for key in tree.names):
        return DictType(STR, kinds[0])
    what = tree.type_name.removeprefix("builtins.")
    mixed = f" of {', '.join(sorted(set(map(str, kinds))))}" if tree.kind in ("list", "dict") else ""
    raise UnsupportedError(
        f"the input {name!r} is a {what}{mixed}, which no graph takes; give a forward that takes tensors, or tuples, "
        "lists and dictionaries of them, and makes the rest"
    )
