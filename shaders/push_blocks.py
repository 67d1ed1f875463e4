"""How blocks of push constants lie in memory, as GLSL and as the bytes that the host packs.

A block is a dataclass derived from :class:`PushConstants`: its annotations say the types of GLSL, and from them come
the text that shaders include and the format that packs its values, so that neither can differ from the other. Numbers
lie by the rules of std430, and have explicit offsets in GLSL.

A block with a field of :class:`Words` is an array of words instead: how long such fields are, only specialization
constants say, so the shader gets constants that name the word where each field starts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from .table import ShaderError

PUSH_CONSTANT_BYTES = 128
"""The least ``maxPushConstantsSize`` that Vulkan allows."""
WORD_BYTES = 4
PUSH_CONSTANT_WORDS = PUSH_CONSTANT_BYTES // WORD_BYTES


@dataclass(frozen=True)
class Type:
    """A type of GLSL by the rules of std430."""

    name: str
    code: str
    """Of :mod:`struct`."""
    size: int
    alignment: int
    definition: str = ""
    """What GLSL needs before the type is used."""


_SCALARS = {"int": "i", "uint": "I", "float": "f"}
_TYPES = {name: Type(name, code, WORD_BYTES, WORD_BYTES) for name, code in _SCALARS.items()}
_TYPES |= {
    f"{prefix}vec{n}": Type(f"{prefix}vec{n}", f"{n}{code}", n * WORD_BYTES, (2 if n == 2 else 4) * WORD_BYTES)
    for prefix, code in {"": "f", "i": "i", "u": "I"}.items()
    for n in (2, 3, 4)
}


@dataclass(frozen=True)
class Named:
    """Marks numbers that are members of their own: ``out`` of ``Named("h", "w")`` is ``out_h`` and ``out_w``."""

    suffixes: tuple[str, ...]
    type: str = "int"


@dataclass(frozen=True)
class Array:
    """Marks an array."""

    count: int
    type: str = "int"


@dataclass(frozen=True)
class Structure:
    """Marks a struct of integers, which may be the type of several fields."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Words:
    """Marks integers in a block of words, as many as ``count`` says in GLSL; with ``each``, that many runs of them, and
    the shader gets a function that tells where a run starts."""

    count: str
    each: str | None = None


Uint = Annotated[int, "uint"]


@dataclass(frozen=True)
class Member:
    """A member of a block in GLSL."""

    name: str
    type: Type
    offset: int
    count: int | None = None
    """Elements of an array."""

    @property
    def code(self) -> str:
        """Of :mod:`struct`."""
        padding = -self.type.size % self.type.alignment
        return self.type.code if self.count is None else f"{self.type.code}{padding}x" * self.count

    @property
    def declaration(self) -> str:
        """As a variable of that name is declared."""
        return f"{self.type.name} {self.name}{'' if self.count is None else f'[{self.count}]'}"

    @property
    def glsl(self) -> str:
        """As it is declared in the block."""
        return f"layout(offset = {self.offset}) {self.declaration};"


class PushConstants:
    """Base of the blocks."""

    first: ClassVar[int] = 0
    """Offset of the first member."""
    macro: ClassVar[str | None] = None
    """Name of a macro that GLSL gets in place of a block."""
    _numbers: ClassVar[Callable[[Any], tuple[float, ...]]]
    """All numbers of a block in order."""
    _formats: ClassVar[dict[int, struct.Struct]]
    """By how many numbers there are."""

    def __init_subclass__(cls) -> None:
        """Each class finds out its own when it first packs something."""
        cls._formats = {}

    @classmethod
    def end(cls) -> int:
        """The first byte after the block."""
        last = members(cls)[-1]
        return last.offset + struct.calcsize(f"<{last.code}")

    def pack(self) -> bytes:
        """The bytes that shaders read, of the size that all blocks have.

        Raises:
            ShaderError: a block of words has more of them than there are.
            struct.error: there are too few numbers or too many, or one does not fit into its type.
        """
        cls = type(self)
        if not cls._formats:
            cls._numbers = staticmethod(_flattener(cls))
        numbers = cls._numbers(self)
        form = cls._formats.get(len(numbers))
        if form is None:
            form = cls._formats[len(numbers)] = _format(cls, len(numbers))
        return form.pack(*numbers)


def _flattener(block: type[PushConstants]) -> Callable[[Any], tuple[float, ...]]:
    """What makes one tuple of a block's numbers, as an expression of its fields, as a new size packs hundreds."""
    values = "".join(f"{'*' if _is_sequence(hint) else ''}block.{name}, " for name, hint in _fields(block).items())
    made: Callable[[Any], tuple[float, ...]] = eval(f"lambda block: ({values})")
    return made


def _fields(block: type[PushConstants]) -> dict[str, Any]:
    """Annotations of the fields by name, those of base classes first."""
    hints = get_type_hints(block, include_extras=True)
    return {field.name: hints[field.name] for field in fields(block)}  # type: ignore[arg-type]


def _mark(hint: Any) -> Named | Array | Structure | Words | None:
    """What marks a field whose value is a sequence."""
    extra = get_args(hint)[1] if hasattr(hint, "__metadata__") else None
    return extra if isinstance(extra, Named | Array | Structure | Words) else None


def _is_sequence(hint: Any) -> bool:
    return _mark(hint) is not None or _plain(hint).size > WORD_BYTES


def _plain(hint: Any) -> Type:
    """The type of a field without a mark."""
    extra = get_args(hint)[1] if hasattr(hint, "__metadata__") else hint.__name__
    return _TYPES[extra]


def _is_words(block: type[PushConstants]) -> bool:
    return any(isinstance(_mark(hint), Words) for hint in _fields(block).values())


def members(block: type[PushConstants]) -> list[Member]:
    """The members of a block that is not of words.

    Raises:
        ShaderError: it is larger than any device must allow.
    """
    found: list[Member] = []
    end = block.first
    for field, hint in _fields(block).items():
        for name, kind, count in _declared(field, hint):
            offset = math.ceil(end / kind.alignment) * kind.alignment
            found.append(Member(name, kind, offset, count))
            stride = math.ceil(kind.size / kind.alignment) * kind.alignment
            end = offset + (kind.size if count is None else stride * count)
    if block.macro is None and end > PUSH_CONSTANT_BYTES:
        raise ShaderError(f"{block.__name__} has {end} bytes of push constants; there are {PUSH_CONSTANT_BYTES}")
    return found


def _declared(field: str, hint: Any) -> list[tuple[str, Type, int | None]]:
    """Name, type and count of the members that a field makes."""
    mark = _mark(hint)
    if isinstance(mark, Named):
        return [(f"{field}_{suffix}", _TYPES[mark.type], None) for suffix in mark.suffixes]
    if isinstance(mark, Array):
        return [(field, _TYPES[mark.type], mark.count)]
    if isinstance(mark, Structure):
        definition = f"struct {mark.name} {{ int {', '.join(mark.members)}; }};"
        size = len(mark.members) * WORD_BYTES
        return [(field, Type(mark.name, f"{len(mark.members)}i", size, WORD_BYTES, definition), None)]
    return [(field, _plain(hint), None)]


def _format(block: type[PushConstants], numbers: int) -> struct.Struct:
    """How that many numbers are packed."""
    if _is_words(block):
        if numbers > PUSH_CONSTANT_WORDS:
            raise ShaderError(f"a kernel needs {numbers} words of push constants; there are {PUSH_CONSTANT_WORDS}")
        last = "".join(_plain(hint).code for hint in _fields(block).values() if _mark(hint) is None)
        code = f"{numbers - len(last)}i{last}"
    else:
        code, end = "", block.first
        for member in members(block):
            code += f"{member.offset - end}x{member.code}"
            end = member.offset + struct.calcsize(f"<{member.code}")
    size = struct.calcsize(f"<{code}")
    return struct.Struct(f"<{code}" if block.macro else f"<{code}{PUSH_CONSTANT_BYTES - size}x")


def glsl_of_block(block: type[PushConstants]) -> list[str]:
    """Lines of GLSL: the block, or, of one that adds fields to another block of words, only where they start."""
    if _is_words(block):
        return _glsl_of_words(block)
    declared = members(block)
    if block.macro is not None:
        return [f"#define {block.macro} {' '.join(member.glsl for member in declared)}"]
    definitions = dict.fromkeys(member.type.definition for member in declared if member.type.definition)
    body = [f"    {member.glsl}" for member in declared]
    held = [f"{member.declaration} = pushed.{member.name};" for member in declared]
    return [*definitions, *_block(block, body, held)]


def _block(block: type[PushConstants], body: Sequence[str], held: Sequence[str]) -> list[str]:
    """A block whose members shaders use by their names. Kernels for CPU drivers copy them to variables when they begin:
    lavapipe of Mesa 22 loads a push constant once for each lane where some lanes have returned, else once for all."""
    start = f"layout(push_constant) uniform {block.__name__} {{"
    plain = [start, *body, "    CHAIN_FIELDS", "};"]
    return ["#ifdef TEXELS", start, *body, "} pushed;", *held, "#else", *plain, "#endif"]


def _glsl_of_words(block: type[PushConstants]) -> list[str]:
    (base,) = block.__bases__
    inherited = set() if base is PushConstants else set(_fields(base))
    words = f"int words[{PUSH_CONSTANT_WORDS}]"
    lines = [] if inherited else _block(block, [f"    {words};"], [f"{words} = pushed.words;"])
    start = "0"
    for field, hint in _fields(block).items():
        mark, name = _mark(hint), f"{field.upper()}_WORD"
        count = mark.count if isinstance(mark, Words) else "1"
        if isinstance(mark, Words) and mark.each is not None:
            made = f"int {field}_word(int number) {{ return {start} + number * ({count}); }}"
            end = f"{start} + ({mark.each}) * ({count})"
        else:
            made = f"const int {name} = {start};"
            end = count if start == "0" else f"{name} + {count}"
        if field not in inherited:
            lines.append(made)
        start = end
    return lines
