"""Appends calls of operators to a graph; what follows from constants alone is computed at once.

Values are graph Values, or plain Python values and tensors, which are constants. So a translation reads like eager
code: ``emit("add", x, 1)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from mobopt.bundle.builder import Allowance, GraphBuilder
from mobopt.errors import MoboptError
from mobopt.ir import Block, Node, Value
from mobopt.ir.dtypes import SCALAR_NUMBERS
from mobopt.ir.graph import type_of_constant
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import Schema, resolve, schema_of
from mobopt.ir.types import ANY, ListType, OptionalType, Type
from mobopt.ops.effects import is_pure
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.cpu.builtins import BUILTINS
from mobopt.runtimes.cpu.kernels import kernel

_SMALL = 4096
"""Elements of operands whose results need no look at their size before they are computed."""
_MOST_ELEMENTS = 1 << 28
_MOST_GROWTH = 1 << 20
"""Bytes of a folded result that is larger than what it is computed from."""
_NUMBERS = {
    **SCALAR_NUMBERS,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
"""Of dtypes; source: ``c10/core/ScalarType.h``."""


class Emitter:
    """Appends to the current block of a graph.

    Attributes:
        builder: what appends.
        blocks: the blocks that are being built, the outermost first.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.builder = GraphBuilder(allowance)
        self.blocks: list[Block] = [self.builder.graph.block]
        self.nonnegative: set[Value] = set()
        """Integers that are known to be no less than zero."""
        self._constants: dict[int, tuple[torch.Tensor, Value]] = {}
        self._names: dict[int, str] = {}

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to a nested block for a while."""
        self.blocks.append(block)
        try:
            with self.builder.inside(block):
                yield
        finally:
            self.blocks.pop()

    def name_constant(self, tensor: torch.Tensor, name: str) -> None:
        """Say what the model calls a tensor."""
        self._names[id(tensor)] = name
        self._constants.pop(id(tensor), None)

    def name_as(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Call a tensor what another one is called."""
        self.name_constant(tensor, self._names.get(id(other), ""))

    def __call__(self, op: str, *args: Any, **keywords: Any) -> Any:
        """Call an operator of ``aten``, or of another namespace: ``prim::min.int``.

        Args:
            op: its name; the overload is chosen by the types, unless it is given.
            args: Values and plain values; a dtype stands for its number.
            keywords: arguments by name.

        Returns:
            What it makes: a Value, or a tuple of them; plain if all arguments are.
        """
        name = op if "::" in op else f"aten::{op}"
        given = [_plain(item) for item in args]
        named = {key: _plain(item) for key, item in keywords.items()}
        types = [_type_of(item) for item in given]
        if "." in op:
            schema = schema_of(name)
        else:
            schema = _resolved(name, tuple(types), tuple((key, _type_of(item)) for key, item in named.items()))
        bound = dict(enumerate(given))
        positions = {argument.name: index for index, argument in enumerate(schema.arguments)}
        bound.update((positions[key], item) for key, item in named.items())
        if not any(True for _ in leaves_of(list(bound.values()), Value)) and _is_foldable(schema.qualified_name):
            folded, result = _fold(schema, bound)
            if folded:
                return result
        inputs = {index: self.value(item, schema.arguments[index].type) for index, item in bound.items()}
        outputs = self.builder.operator(schema, inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def value(self, item: Any, expected: Type | None = None) -> Value:
        """A Value of anything."""
        if isinstance(item, Value):
            return item
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        inner = expected.element if isinstance(expected, OptionalType) else expected
        if isinstance(item, (list, tuple)) and any(
            True for kind in (Value, torch.Tensor) for _ in leaves_of(item, kind)
        ):
            parts = [self.value(part) for part in item]
            element = parts[0].type
            if isinstance(inner, ListType) and isinstance(inner.element, OptionalType):
                element = inner.element  # 1.13's lite interpreter asks for it
            return self.builder.node("prim::ListConstruct", parts, [ListType(element)])[0]
        if isinstance(item, tuple):
            item = list(item)
        if isinstance(item, list) and not item and isinstance(inner, ListType):
            return self.builder.constant(item, inner)
        return self.builder.constant(item)

    def _tensor(self, tensor: torch.Tensor) -> Value:
        if id(tensor) not in self._constants:
            value = self.builder.constant(tensor)
            name = self._names.get(id(tensor), "")
            value.attribute = name
            self._constants[id(tensor)] = tensor, value
        return self._constants[id(tensor)][1]

    def list_of(self, items: Sequence[Any], element: Type) -> Value:
        """A list that the graph makes."""
        parts = [self.value(item) for item in items]
        return self.builder.node("prim::ListConstruct", parts, [ListType(element)])[0]

    def size(self, x: Any, dim: int) -> Any:
        """The size of a dimension at run time."""
        if isinstance(x, torch.Tensor):
            return x.shape[dim]
        result = self("size.int", x, dim)
        self.nonnegative.add(result)
        return result

    def is_nonnegative(self, number: Any) -> bool:
        """Whether a number is known not to be negative."""
        return number in self.nonnegative if isinstance(number, Value) else number >= 0


@cache
def _is_foldable(qualified_op: str) -> bool:
    """Whether a call can be computed ahead of time, and is worth it."""
    name, _, overload = qualified_op.partition(".")
    return is_pure(Node(name, (), (), overload=overload)) and not has_trait(qualified_op, Trait.EXPANDS)


@cache
def _resolved(name: str, types: tuple[Type, ...], keywords: tuple[tuple[str, Type], ...]) -> Schema:
    return resolve(name, types, dict(keywords))


def _plain(item: Any) -> Any:
    if isinstance(item, torch.dtype):
        return _NUMBERS[item]
    return [_plain(part) for part in item] if isinstance(item, (list, tuple)) else item


def _type_of(item: Any) -> Type:
    if isinstance(item, Value):
        return item.type
    if isinstance(item, list):
        return ListType(_type_of(item[0])) if item else ListType(ANY)
    return type_of_constant(item)


def _fold(schema: Schema, bound: dict[int, Any]) -> tuple[bool, Any]:
    """Whether a call on constants was computed, and what it gives."""
    args = []
    for index, argument in enumerate(schema.arguments):
        if index not in bound and not argument.has_default:
            return False, None
        args.append(bound.get(index, argument.default))
    name = schema.qualified_name
    tensors = list(leaves_of(args, torch.Tensor))
    given = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    try:
        function = BUILTINS.get(name) or kernel(name)
        with torch.no_grad():
            if _asks_for_much(args) or (sum(x.numel() for x in tensors) > _SMALL and _is_large(function, args)):
                return False, None
            result = function(*args)
    except (MoboptError, RuntimeError, TypeError, ValueError, LookupError, NotImplementedError, ArithmeticError):
        return False, None  # the model itself fails here, if it ever comes here; leave that to run time
    made = sum(tensor.numel() * tensor.element_size() for tensor in leaves_of(result, torch.Tensor))
    if made > _MOST_GROWTH and made > given:
        return False, None
    result = map_leaves(result, torch.Tensor, torch.Tensor.contiguous)
    return True, tuple(result) if len(schema.returns) > 1 else result


def _asks_for_much(args: list[Any]) -> bool:
    """Whether a list of sizes, or the end of a range, stands for more elements than any weight has."""
    for item in args:
        if isinstance(item, list) and item and all(type(part) is int and part > 0 for part in item):
            if math.prod(item) > _MOST_ELEMENTS:
                return True
        elif type(item) is int and abs(item) > _MOST_ELEMENTS and abs(item) < 1 << 62:
            return True
    return False


def _is_large(function: Any, args: list[Any]) -> bool:
    """Whether a result would have more elements than any weight, as torch's meta kernels tell."""
    try:
        result = function(*map_leaves(args, torch.Tensor, lambda x: x.to("meta")))
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # only elements tell
    return any(tensor.numel() > _MOST_ELEMENTS for tensor in leaves_of(result, torch.Tensor))
