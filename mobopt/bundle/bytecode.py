"""The tables of ``bytecode.pkl``: their form, checked, and the instruction set.

Source: ``torch/csrc/jit/mobile/parse_bytecode.cpp``, ``parse_operators.cpp``, ``torch/csrc/jit/runtime/instruction.h``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mobopt.bundle.builder import check_size, value_type
from mobopt.bundle.unpickler import Unpickled
from mobopt.errors import BundleError, GraphError
from mobopt.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type, parse_type, plain_class_name

VERSIONS = range(4, 10)
"""Bytecode versions that are read."""

_MAX_REGISTERS = 1 << 20
_MAX_TYPE = 1 << 14

OPERANDS: dict[str, str] = {
    "OP": "O",
    "OPN": "OI",
    "LOAD": "R",
    "MOVE": "R",
    "STOREN": "RI",
    "STORE": "R",
    "DROP": "",
    "DROPR": "R",
    "LOADC": "C",
    "JF": "P",
    "JMP": "P",
    "LOOP": "PI",
    "RET": "",
    "GET_ATTR": "S",
    "SET_ATTR": "S",
    "LIST_UNPACK": "I",
    "TUPLE_CONSTRUCT": "I",
    "NAMED_TUPLE_CONSTRUCT": "TI",
    "LIST_CONSTRUCT": "TI",
    "DICT_CONSTRUCT": "TI",
    "ISINSTANCE": "TI",
    "TUPLE_SLICE": "II",
    "WARN": "",
    "TUPLE_INDEX": "",
    "RAISE_EXCEPTION": "",
    "DICT_INDEX": "",
    "UNCHECKED_CAST": "",
    "__IS__": "",
    "UN_INITIALIZED": "",
    "__ISNOT__": "",
    "FORMAT": "I",
    "DEVICE": "",
    "DTYPE": "",
    "DIM": "",
    "__NOT__": "",
    "TO_LIST": "",
    "NUM_TO_TENSOR": "",
    "IS_CUDA": "",
}
"""Instructions that are read, and what their two operands are: O operator, R register, C constant, P relative jump,
T type, S attribute slot, I number."""

PROMOTED: dict[str, str] = {
    "TUPLE_INDEX": "prim::TupleIndex",
    "RAISE_EXCEPTION": "prim::RaiseException",
    "DICT_INDEX": "aten::__getitem__.Dict_str",
    "UNCHECKED_CAST": "prim::unchecked_cast",
    "__IS__": "aten::__is__",
    "UN_INITIALIZED": "prim::Uninitialized",
    "__ISNOT__": "aten::__isnot__",
    "FORMAT": "aten::format",
    "DEVICE": "prim::device",
    "DTYPE": "prim::dtype",
    "DIM": "aten::dim",
    "__NOT__": "aten::__not__",
    "TO_LIST": "prim::tolist",
    "NUM_TO_TENSOR": "prim::NumToTensor.Scalar",
    "IS_CUDA": "prim::is_cuda",
}
"""Instructions of version 8 that stand for an operator."""


@dataclass(frozen=True)
class OperatorEntry:
    """A line of the operator table."""

    name: str
    overload: str
    argument_count: int | None
    """How many inputs a call pushes; None for all of the schema's."""

    @property
    def qualified_name(self) -> str:
        """Name with overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True)
class ArgumentEntry:
    """An argument or a result of a method."""

    name: str
    type: Type
    default: Any


@dataclass(frozen=True)
class Function:
    """One method: its tables and its schema."""

    name: str
    instructions: tuple[tuple[str, int, int], ...]
    operators: tuple[OperatorEntry, ...]
    constants: tuple[Any, ...]
    constant_types: tuple[Type, ...]
    types: tuple[Type, ...]
    register_count: int
    arguments: tuple[ArgumentEntry, ...]
    returns: tuple[ArgumentEntry, ...]


def parse_bytecode(unpickled: Unpickled) -> tuple[int, list[Function]]:
    """Version and methods of ``bytecode.pkl``.

    Raises:
        BundleError: a table is missing or malformed, an index is out of range, or an instruction is unknown.
    """
    version, methods = _methods(unpickled)
    return version, [_function(item, unpickled) for item in methods]


def parse_operators(unpickled: Unpickled) -> set[OperatorEntry]:
    """The operators of all methods of ``bytecode.pkl``, also of methods with instructions that are not read.

    Raises:
        BundleError: a table is missing or malformed, or an index is out of range.
    """
    _, methods = _methods(unpickled)
    functions = [_function(item, unpickled, known_only=True) for item in methods]
    return {entry for function in functions for entry in function.operators}


def _methods(unpickled: Unpickled) -> tuple[int, tuple[Any, ...]]:
    """Version and methods, as they are pickled."""
    root = unpickled.value
    if not isinstance(root, tuple) or not root or type(root[0]) is not int:
        raise BundleError("bytecode does not begin with a version number; the file is damaged")
    version = root[0]
    if version not in VERSIONS:
        raise BundleError(f"bytecode is of version {version}; versions {VERSIONS[0]} to {VERSIONS[-1]} are read")
    return version, root[1:]


def _function(item: Any, unpickled: Unpickled, known_only: bool = False) -> Function:
    if not isinstance(item, tuple) or len(item) not in (2, 3) or not isinstance(item[0], str):
        raise BundleError("bytecode holds a method that is not (name, tables, schema); the file is damaged")
    name = item[0]
    if len(item) == 2:
        raise BundleError(f"bytecode has no schema for {name!r}; export the model again with PyTorch 1.9 or later")
    try:
        function = _tables(name, item[1], item[2], unpickled)
    except GraphError as error:
        raise BundleError(f"bytecode, {name!r}: {error}") from None
    for index, instruction in enumerate(function.instructions):
        if instruction[0] in OPERANDS or not known_only:
            _check_instruction(function, index, *instruction)
    return function


def _tables(name: str, tables: Any, schema: Any, unpickled: Unpickled) -> Function:
    names = ("instructions", "operators", "constants", "types", "register_size")
    instructions, operators, constants, types, registers = _fields(name, tables, names)
    arguments, returns = _fields(name, schema, ("arguments", "returns"))
    for field_name, table in zip(names, (instructions, operators, constants, types), strict=False):
        if not isinstance(table, tuple):
            raise BundleError(f"bytecode, {name!r}: the table {field_name!r} is a {type(table).__name__}")
    if type(registers) is not int or not 0 <= registers <= _MAX_REGISTERS:
        raise BundleError(f"bytecode, {name!r}: register_size is {registers!r}; at most {_MAX_REGISTERS} are read")
    for instruction in instructions:
        if not (isinstance(instruction, tuple) and [type(part) for part in instruction] == [str, int, int]):
            raise BundleError(f"bytecode, {name!r}: {instruction!r} is not an instruction (name, number, number)")
    known, named = _named_tuples(types)
    return Function(
        plain_class_name(name),
        instructions,
        tuple(_operator(name, item) for item in operators),
        constants,
        tuple(value_type(item, unpickled.types) for item in constants),
        known,
        registers,
        tuple(_argument(name, item, named) for item in arguments),
        tuple(_argument(name, item, named) for item in returns),
    )


def _named_tuples(types: Sequence[Any]) -> tuple[tuple[Type, ...], dict[str, Type]]:
    """The types of a table, and its named tuples by name; a type names only tuples that stand before it."""
    found: list[Type] = []
    named: dict[str, Type] = {}
    for item in types:
        kind = _with_fields(parse_bytecode_type(item), named)
        check_size(kind)
        found.append(kind)
        if isinstance(kind, TupleType) and kind.name:
            named[kind.name] = kind
    return tuple(found), named


def _with_fields(kind: Type, named: Mapping[str, Type]) -> Type:
    """The type with named tuples in place of their bare names."""
    match kind:
        case ClassType(name):
            return named.get(name, kind)
        case ListType(element):
            return ListType(_with_fields(element, named))
        case OptionalType(element):
            return OptionalType(_with_fields(element, named))
        case DictType(key, value):
            return DictType(key, _with_fields(value, named))
        case TupleType(elements, name, fields):
            return TupleType(tuple(_with_fields(element, named) for element in elements), name, fields)
        case _:
            return kind


def _fields(method: str, table: Any, names: tuple[str, ...]) -> list[Any]:
    """Values of a tuple of (name, value) pairs, whose names must be these."""
    pairs = table if isinstance(table, tuple) else ()
    found = [pair[0] if isinstance(pair, tuple) and len(pair) == 2 else None for pair in pairs]
    if found != list(names):
        raise BundleError(f"bytecode, {method!r}: expected the fields {', '.join(names)}, found {found}")
    return [pair[1] for pair in pairs]


def _operator(method: str, item: Any) -> OperatorEntry:
    kinds = [type(part) for part in item] if isinstance(item, tuple) else []
    if kinds not in ([str, str], [str, str, int]):
        raise BundleError(f"bytecode, {method!r}: {item!r} is not an operator (name, overload, number of arguments)")
    count = item[2] if len(item) == 3 and item[2] >= 0 else None
    return OperatorEntry(item[0], item[1], count)


def _argument(method: str, item: Any, named: Mapping[str, Type]) -> ArgumentEntry:
    name, kind, default = _fields(method, item, ("name", "type", "default_value"))
    if not isinstance(name, str):
        raise BundleError(f"bytecode, {method!r}: an argument's name is {name!r}")
    return ArgumentEntry(name, _with_fields(parse_bytecode_type(kind), named), default)


def _check_instruction(function: Function, index: int, op: str, x: int, n: int) -> None:
    if op not in OPERANDS:
        raise BundleError(
            f"bytecode, {function.name!r}: instruction {index} is {op!r}, which mobopt does not read; "
            "the model calls interfaces, makes objects or runs tasks, or the file is damaged"
        )
    limits = {
        "O": ("operator", 0, len(function.operators)),
        "R": ("register", 1, function.register_count + 1),
        "C": ("constant", 0, len(function.constants)),
        "T": ("type", 0, len(function.types)),
        "P": ("jump", -index, len(function.instructions) - index + 1),
        "S": ("attribute", 0, _MAX_REGISTERS),
        "I": ("number", 0, _MAX_REGISTERS),
    }
    for kind, value in zip(OPERANDS[op], (x, n), strict=False):
        what, low, end = limits[kind]
        if not low <= value < end and not (op == "TUPLE_SLICE" and abs(value) < _MAX_REGISTERS):
            raise BundleError(
                f"bytecode, {function.name!r}: instruction {index} ({op}) names {what} {value}, "
                f"which is outside {low}..{end - 1}; the file is damaged"
            )
    ends = {"STOREN": function.register_count + 1, "ISINSTANCE": len(function.types)}
    if op in ends and x + n > ends[op]:
        raise BundleError(f"bytecode, {function.name!r}: instruction {index} ({op}) reaches {x + n - 1}, out of range")


def bytecode_type(kind: Type, known: Collection[str] = ()) -> str:
    """A type in the spelling of bytecode, which writes a named tuple's fields out, unless its name is ``known``."""
    if isinstance(kind, TupleType) and kind.name in known:
        return kind.name
    parts = [bytecode_type(part, known) for part in _parts(kind)]
    if isinstance(kind, TupleType) and kind.name:
        fields = ",".join(f"[{field}, {part}]" for field, part in zip(kind.fields, parts, strict=True))
        return f"{kind.name}[NamedTuple, [{fields}]]"
    name = _CONTAINERS.get(type(kind))
    return kind.annotation if name is None else f"{name}[{', '.join(parts)}]"


_CONTAINERS: Mapping[type[Type], str] = {
    TupleType: "Tuple",
    ListType: "List",
    OptionalType: "Optional",
    DictType: "Dict",
}


def _parts(kind: Type) -> tuple[Type, ...]:
    match kind:
        case TupleType(elements):
            return elements
        case ListType(element) | OptionalType(element):
            return (element,)
        case DictType(key, value):
            return key, value
    return ()


def named_tuples_in(kind: Type) -> Iterator[TupleType]:
    """The named tuples that stand in a type, but in no other one there, and aren't the type itself."""
    for part in _parts(kind):
        if isinstance(part, TupleType) and part.name:
            yield part
        else:
            yield from named_tuples_in(part)


def parse_bytecode_type(text: Any) -> Type:
    """Read a type in the spelling of bytecode.

    Raises:
        BundleError: the text is not a type.
    """
    if not isinstance(text, str) or len(text) > _MAX_TYPE:
        raise BundleError(f"a type is {str(text)[:80]!r}, which is not a type's name; the file is damaged")
    try:
        return parse_type(plain_class_name(text))
    except GraphError as error:
        raise BundleError(f"bytecode: {error}") from None
