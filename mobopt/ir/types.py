"""Types of values, as TorchScript has them, with both of its spellings.

``str(type)`` is the spelling of graph text (``Tensor?``, ``int[]``, ``Dict(str, Tensor)``); ``type.annotation`` is
the spelling of TorchScript source and of bytecode (``Optional[Tensor]``, ``List[int]``, ``Dict[str, Tensor]``).
:func:`parse_type` reads both, the named tuples of bytecode, and the types of operator schemas (``int[2]``,
``Tensor(a!)``, ``SymInt``).

A :class:`TensorType` knows dtype and sizes too: ``Float(1, 3, s0, s1)``. It has no strides: sizes and dtypes follow
from each other without them, and what lies how in memory is for a runtime to choose.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch

from mobopt.errors import GraphError
from mobopt.ir.dimensions import Dimension, Expression
from mobopt.ir.dtypes import DTYPE_NAMES, DTYPES
from mobopt.ir.guards import Guards, parse_dimension


@dataclass(frozen=True)
class Type:
    """Base of all types; equal when they mean the same."""

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        return str(self)


@dataclass(frozen=True, eq=False)
class SimpleType(Type):
    """A type without parameters, by its name: ``Tensor``, ``int``, ``Device`` and so on."""

    name: str

    def __eq__(self, other: object) -> bool:
        """Whether it is the same type; most are the very object."""
        return self is other or (isinstance(other, SimpleType) and self.name == other.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        return "number" if self.name == "Scalar" else self.name


@dataclass(frozen=True)
class ListType(Type):
    """A list."""

    element: Type

    def __str__(self) -> str:
        return f"{self.element}[]"

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        return f"List[{self.element.annotation}]"


@dataclass(frozen=True)
class OptionalType(Type):
    """A value or None."""

    element: Type

    def __str__(self) -> str:
        return f"{self.element}?"

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        return f"Optional[{self.element.annotation}]"


@dataclass(frozen=True)
class DictType(Type):
    """A dictionary."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"Dict({self.key}, {self.value})"

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        return f"Dict[{self.key.annotation}, {self.value.annotation}]"


@dataclass(frozen=True)
class TupleType(Type):
    """A tuple; a named tuple has the class's qualified name and its field names too."""

    elements: tuple[Type, ...]
    name: str = ""
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name:
            return f"NamedTuple({', '.join(f'{t} {f}' for t, f in zip(self.elements, self.fields, strict=True))})"
        return f"({', '.join(map(str, self.elements))})"

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source."""
        if self.name:
            return self.name
        return f"Tuple[{', '.join(t.annotation for t in self.elements)}]" if self.elements else "Tuple[()]"

    def type_at(self, index: int | None) -> Type | None:
        """The type of the element that a number chooses, which None stands for where it isn't known.

        None if there is no such element, or if it depends on the number.
        """
        if index is None:
            return self.elements[0] if len(set(self.elements)) == 1 else None
        return self.elements[index] if -len(self.elements) <= index < len(self.elements) else None


def plain_class_name(name: str) -> str:
    """A class's name as it can stand in source, of the same length: torch writes names of Python modules such as
    ``<run_path>``, of ``runpy``, as they are, and its own parser refuses them."""
    return name.replace("<", "_").replace(">", "_")


@dataclass(frozen=True)
class ClassType(Type):
    """A class by its qualified name (``__torch__.torch.classes.vulkan.Conv2dPackedContext``)."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class TensorType(Type):
    """A tensor whose dtype and sizes are known."""

    dtype: torch.dtype
    sizes: tuple[Dimension, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def numel(self) -> Dimension:
        """Number of elements."""
        return math.prod(self.sizes)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same type; no sizes are compared that a guard would have to decide."""
        return isinstance(other, TensorType) and (self.dtype, self._keys()) == (other.dtype, other._keys())

    def __hash__(self) -> int:
        return hash((self.dtype, self._keys()))

    def _keys(self) -> tuple[object, ...]:
        return tuple(size.key if isinstance(size, Expression) else size for size in self.sizes)

    def __str__(self) -> str:
        name = DTYPE_NAMES.get(self.dtype) or str(self.dtype).removeprefix("torch.")
        return f"{name}({', '.join(map(str, self.sizes))})"

    __repr__ = __str__

    @property
    def annotation(self) -> str:
        """The spelling of TorchScript source, which has neither dtype nor sizes."""
        return "Tensor"


TENSOR = SimpleType("Tensor")
INT = SimpleType("int")
FLOAT = SimpleType("float")
BOOL = SimpleType("bool")
COMPLEX = SimpleType("complex")
STR = SimpleType("str")
SCALAR = SimpleType("Scalar")
DEVICE = SimpleType("Device")
NONE = SimpleType("NoneType")
ANY = SimpleType("Any")
GENERATOR = SimpleType("Generator")
ANY_LIST, ANY_TUPLE = SimpleType("list"), SimpleType("tuple")
"""Of ``isinstance(x, (list, tuple))``, which asks for no elements."""


def _union(members: tuple[Type, ...]) -> Type:
    """``Union[T, None]`` is optional, numbers are ``Scalar``; any other may hold anything, as far as is known."""
    others = [item for item in members if item != NONE]
    if not others:
        return NONE
    kind = others[0]
    if len(others) > 1:
        kind = SCALAR if set(others) <= {INT, FLOAT, BOOL, COMPLEX} else ANY
    return OptionalType(kind) if NONE in members and kind != ANY else kind


_SIMPLE = (TENSOR, INT, FLOAT, BOOL, COMPLEX, STR, SCALAR, DEVICE, NONE, ANY, GENERATOR, ANY_LIST, ANY_TUPLE)
_SPELLINGS = {
    "number": SCALAR,
    "None": NONE,
    "SymInt": INT,
    "ScalarType": INT,
    "Layout": INT,
    "MemoryFormat": INT,
    "DeviceObjType": DEVICE,
    "tVal": ANY,
    **{t.name: t for t in _SIMPLE},
}


def parse_type(text: str, guards: Guards | None = None) -> Type:
    """Read a type in any of TorchScript's spellings.

    Args:
        text: such as ``Dict(str, Tensor)`` or ``Float(1, s0 + 1)``.
        guards: what the symbols of sizes belong to, if there are any.

    Raises:
        GraphError: the text is not a type.
    """
    parser = _Parser(text, guards or Guards())
    result = parser.type()
    if parser.rest:
        raise GraphError(f"can't read the type {text!r}: {parser.rest!r} is left over")
    return result


class _Parser:
    """Recursive descent over the tokens of one type."""

    def __init__(self, text: str, guards: Guards) -> None:
        self.text = text
        self.guards = guards
        self.rest = text.strip()

    def type(self) -> Type:
        """A type with its ``[]``, ``[2]``, ``?`` and alias suffixes."""
        result = self.atom()
        while self.rest:
            if match := re.match(r"\[\s*\d*\s*\]", self.rest):
                result = ListType(result)
            elif match := re.match(r"\?", self.rest):
                result = OptionalType(result)
            elif match := re.match(r"\((?:[a-z]+|\*)[^(),]*\)", self.rest):
                pass  # the alias annotation of a schema
            elif match := re.match(r"\(\)", self.rest):
                raise GraphError(f"can't read the type {self.text!r}")
            else:
                break
            self.rest = self.rest[match.end() :].lstrip()
        return result

    def atom(self) -> Type:
        """A name, with parameters if it takes any, or a parenthesised tuple."""
        if self.rest.startswith("("):
            return TupleType(self.items("(", ")"))
        match = re.match(r"[A-Za-z_][\w.]*", self.rest)
        if match is None:
            raise GraphError(f"can't read the type {self.text!r} at {self.rest!r}")
        name = match.group()
        self.rest = self.rest[match.end() :].lstrip()
        if name in ("List", "Optional", "Dict", "Tuple", "Union", "Future") and self.rest[:1] in ("[", "("):
            opening = self.rest[0]
            return self.generic(name, self.items(opening, "]" if opening == "[" else ")"))
        if name == "NamedTuple" and self.rest.startswith("("):
            return self.named_tuple()
        if re.match(r"\[\s*NamedTuple\s*,", self.rest):
            return self.bytecode_named_tuple(name)
        if name in DTYPES and self.rest.startswith("("):
            return TensorType(DTYPES[name], self.sizes())
        if name in _SPELLINGS:
            return _SPELLINGS[name]
        if name.endswith("Tensor") and "." not in name:
            return TENSOR
        if name.islower() and "." not in name:
            return ANY  # a type variable of a schema: t, key, tVal
        return ClassType(name) if "." in name else SimpleType(name)

    def generic(self, name: str, items: tuple[Type, ...]) -> Type:
        """A parametrised type."""
        if name == "Tuple":
            return TupleType(items)
        if name == "Dict" and len(items) == 2:
            return DictType(*items)
        if name in ("List", "Optional") and len(items) == 1:
            return ListType(items[0]) if name == "List" else OptionalType(items[0])
        if name == "Union" and items:
            return _union(items)
        raise GraphError(f"the type {self.text!r} is not supported: {name} of {len(items)}")

    def items(self, opening: str, closing: str) -> tuple[Type, ...]:
        """Types between brackets."""
        self.expect(opening)
        items: list[Type] = []
        if self.rest.startswith("()"):  # Tuple[()]
            self.rest = self.rest[2:].lstrip()
        while not self.rest.startswith(closing):
            items.append(self.type())
            if self.rest.startswith(","):
                self.expect(",")
            elif not self.rest.startswith(closing):
                raise GraphError(f"can't read the type {self.text!r} at {self.rest!r}")
        self.expect(closing)
        return tuple(items)

    def sizes(self) -> tuple[Dimension, ...]:
        """Dimensions in parentheses, which hold parentheses and commas themselves."""
        depth, start, items = 0, 1, []
        for index, character in enumerate(self.rest):
            depth += (character == "(") - (character == ")")
            if (character == "," and depth == 1) or depth == 0:
                items.append(self.rest[start:index])
                start = index + 1
            if depth == 0:
                self.rest = self.rest[index + 1 :].lstrip()
                return tuple(parse_dimension(item, self.guards) for item in items) if any(items) else ()
        raise GraphError(f"can't read the type {self.text!r}: a parenthesis is open")

    def named_tuple(self) -> Type:
        """``NamedTuple(Tensor a, int b)`` of graph text."""
        self.expect("(")
        elements: list[Type] = []
        fields: list[str] = []
        while not self.rest.startswith(")"):
            elements.append(self.type())
            match = re.match(r"\w+", self.rest)
            if match is None:
                raise GraphError(f"can't read the type {self.text!r} at {self.rest!r}")
            fields.append(match.group())
            self.rest = self.rest[match.end() :].lstrip()
            if self.rest.startswith(","):
                self.expect(",")
        self.expect(")")
        return TupleType(tuple(elements), "NamedTuple", tuple(fields))

    def bytecode_named_tuple(self, name: str) -> Type:
        """``__torch__.Pair[NamedTuple, [[a, Tensor],[b, int]]]`` of bytecode, behind its name."""
        elements: list[Type] = []
        fields: list[str] = []
        for token in ("[", "NamedTuple", ",", "["):
            self.expect(token)
        while not self.rest.startswith("]"):
            self.expect("[")
            match = re.match(r"(\w+)\s*,\s*", self.rest)
            if match is None:
                raise GraphError(f"can't read the type {self.text!r} at {self.rest!r}")
            fields.append(match[1])
            self.rest = self.rest[match.end() :]
            elements.append(self.type())
            self.expect("]")
            if self.rest.startswith(","):
                self.expect(",")
        self.expect("]")
        self.expect("]")
        return TupleType(tuple(elements), name, tuple(fields))

    def expect(self, token: str) -> None:
        """Step over a token."""
        if not self.rest.startswith(token):
            raise GraphError(f"can't read the type {self.text!r}: expected {token!r} at {self.rest!r}")
        self.rest = self.rest[len(token) :].lstrip()
