"""Which operators are computed as several others, and how these are put together.

A decomposition is a function ``(build, node) -> results``: it calls ``build(operator, *args)`` for each operator that
it needs, and returns what stands for the node's outputs: a Value, or a sequence with None in place of outputs that
nobody reads. It returns None for a node that it leaves as it is. What it builds may have decompositions too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mobopt.ir import Node, Origin, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.shapes import infer
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.memories import version_of
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

Decomposition = Callable[["NodeBuilder", Node], "Value | Sequence[Value | None] | None"]

_DECOMPOSITIONS: dict[str, Decomposition] = {}
_OF_COMPLEX: dict[str, Decomposition] = {}
_OTHERWISE: list[Decomposition] = []


def decomposes(*operators: str) -> Callable[[Decomposition], Decomposition]:
    """Register the decorated function as the decomposition of ``operators`` (qualified names with overload).

    Raises:
        ValueError: one of them has a decomposition already.
    """

    return _register(_DECOMPOSITIONS, operators)


def decomposes_complex(*operators: str) -> Callable[[Decomposition], Decomposition]:
    """As :func:`decomposes`, for calls that take or make complex tensors.

    Raises:
        ValueError: one of them has such a decomposition already.
    """
    return _register(_OF_COMPLEX, operators)


def _register(table: dict[str, Decomposition], operators: Sequence[str]) -> Callable[[Decomposition], Decomposition]:
    def register(function: Decomposition) -> Decomposition:
        for operator in operators:
            if operator in table:
                raise ValueError(f"{operator} has two decompositions: {table[operator]} and {function}")
            table[operator] = function
        return function

    return register


def decomposes_others(function: Decomposition) -> Decomposition:
    """Register what is asked of operators that have no decomposition of their own."""
    _OTHERWISE.append(function)
    return function


@cache
def load_decompositions() -> None:
    """Import every module of decompositions, so that the registry is complete."""
    package = importlib.import_module("mobopt.runtimes.vulkan.decompositions")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def has_complex(node: Node) -> bool:
    """Whether a call takes or makes complex tensors."""
    return any(value.dtype.is_complex for value in (*node.inputs, *node.outputs))


class UndecomposedError(Exception):
    """The device can't compute a node, nor parts of it."""


class NodeBuilder:
    """Makes nodes that have lowerings, with the types that rules of shapes, or meta kernels, give.

    What is computed of constants alone is a constant.

    Attributes:
        nodes: what was made, in order; they stand in no block.
    """

    def __init__(self, origin: Origin) -> None:
        """Start without nodes; all get this origin."""
        self.nodes: list[Node] = []
        self._origin = origin

    def __call__(self, operator: str, *args: Any, **keywords: Any) -> Value:
        """Add an operator that makes one tensor.

        Args:
            operator: qualified name.
            args: its first arguments, in the order of its schema.
            keywords: others, by name; those not given have their defaults.

        Raises:
            UndecomposedError: the device can't compute it.
        """
        (value,) = self.all(operator, *args, **keywords)
        return value

    def all(self, operator: str, *args: Any, **keywords: Any) -> tuple[Value, ...]:
        """As :meth:`__call__`, of an operator that makes several tensors."""
        given = _all_arguments(operator, args, keywords)
        tensors = list(leaves_of(given, Value))
        if tensors and all(value.elements is not None for value in tensors):
            return _folded_values(operator, given)
        outputs = tuple(Value("", kind) for kind in _types(operator, given))
        node = Node.call(operator, given, outputs, self._origin)
        if why_unsupported(node) is None:
            self.nodes.append(node)
            return outputs
        try:
            return tuple(value for value in self.parts_of(node) if value is not None)
        finally:
            node.destroy()

    def parts_of(self, node: Node) -> tuple[Value | None, ...]:
        """Add what a node is made of; returns what stands for its outputs, None for some that nobody reads.

        Raises:
            UndecomposedError: there is nothing that the device can compute.
        """
        own = (_OF_COMPLEX if has_complex(node) else _DECOMPOSITIONS).get(node.qualified_op)
        tried = [*([] if own is None else [own]), *_OTHERWISE]
        if any(value.dtype == torch.complex32 for value in node.outputs):
            tried = []  # the parts would be float32
        made = next((found for item in tried if (found := item(self, node)) is not None), None)
        if made is None:
            raise UndecomposedError(f"{node!r}: {why_unsupported(node)}")
        results = (made,) if isinstance(made, Value) else tuple(made)
        for value, result in zip(node.outputs, results, strict=True):
            assert result is None or result.type == value.type, f"{node!r} became {result}"
        return results

    def discard(self) -> None:
        """Take everything back."""
        for node in reversed(self.nodes):
            node.destroy()
        self.nodes.clear()


def _all_arguments(operator: str, args: Sequence[Any], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Every argument of an operator's schema, in order."""
    names = schema_of(operator).arguments
    unknown = keywords.keys() - {argument.name for argument in names[len(args) :]}
    assert not unknown, f"{operator} has no arguments {unknown}"
    return (*args, *(keywords.get(argument.name, argument.default) for argument in names[len(args) :]))


def _types(operator: str, args: Sequence[Any]) -> list[TensorType]:
    inferred = infer(operator, map_leaves(tuple(args), Value, lambda value: value.tensor_type))
    if inferred is not None:
        return list(leaves_of(inferred, TensorType))
    metas = map_leaves(tuple(args), Value, lambda value: torch.empty(value.sizes, dtype=value.dtype, device="meta"))
    made = leaves_of(kernel(operator)(*metas), torch.Tensor)
    return [TensorType(tensor.dtype, tuple(tensor.shape)) for tensor in made]


_FOLDED: MutableMapping[torch.Tensor, dict[str, list[torch.Tensor]]] = WeakIdKeyDictionary()
"""What was computed of a constant alone, so that plans for other sizes share it, and what is packed of it."""


def _folded_values(operator: str, args: Sequence[Any]) -> tuple[Value, ...]:
    """What an operator makes of constants. Elements that have fewer bits than their dtype keep these if they are only
    moved."""
    typed = leaves_of(args, Value)
    if all(value.constant.dtype == value.dtype for value in typed):
        return tuple(map(Value.of_elements, _folded(operator, args)))
    if has_trait(operator, Trait.MOVES_ELEMENTS):
        pairs = zip(_types(operator, args), _folded(operator, args), strict=True)
        return tuple(Value("", kind, elements) for kind, elements in pairs)
    wide = map_leaves(tuple(args), Value, lambda value: Value.of_elements(value.typed_elements))
    return tuple(map(Value.of_elements, _folded(operator, wide)))


def _folded(operator: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """The results of an operator on constants, in memory of their own, and in row-major order, as parts are told of."""
    constants = [value.constant for value in leaves_of(args, Value)]
    known = _FOLDED.setdefault(constants[0], {}) if len(constants) == 1 else {}
    key = f"{operator}{map_leaves(tuple(args), Value, lambda value: version_of(constants[0]))}"
    if key not in known:
        with torch.no_grad():
            dense = map_leaves(list(args), Value, lambda value: value.constant.contiguous())
            results = leaves_of(kernel(operator)(*dense), torch.Tensor)
            known[key] = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in results]
    return known[key]
