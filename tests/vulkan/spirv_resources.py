"""What a compiled shader needs of a device once its constants are specialised, read from its SPIR-V."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

# Operands; opcodes are named where they are told apart. All are numbers of the SPIR-V specification.
_LOCAL_SIZE, _SPEC_ID, _BUILT_IN, _WORKGROUP_SIZE, _WORKGROUP_MEMORY = 17, 1, 11, 25, 4


class _Op(IntEnum):
    EXECUTION_MODE = 16
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_ARRAY = 28
    TYPE_POINTER = 32
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    SPEC_CONSTANT_TRUE = 48
    SPEC_CONSTANT_FALSE = 49
    SPEC_CONSTANT = 50
    SPEC_CONSTANT_COMPOSITE = 51
    SPEC_CONSTANT_OP = 52
    VARIABLE = 59
    DECORATE = 71


_OPERATIONS: dict[int, Callable[..., int]] = {
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: a // b,
    135: lambda a, b: int(a / b),
    137: lambda a, b: a % b,
    139: lambda a, b: int(math.fmod(a, b)),
    166: lambda a, b: int(a or b),
    167: lambda a, b: int(a and b),
    168: lambda a: int(not a),
    169: lambda condition, a, b: a if condition else b,
    170: lambda a, b: int(a == b),
    171: lambda a, b: int(a != b),
    173: lambda a, b: int(a > b),
    175: lambda a, b: int(a >= b),
    177: lambda a, b: int(a < b),
    179: lambda a, b: int(a <= b),
    194: lambda a, b: a >> b,
    195: lambda a, b: a >> b,
    196: lambda a, b: a << b,
    197: lambda a, b: a | b,
    199: lambda a, b: a & b,
}
"""By opcode, of those that ``OpSpecConstantOp`` has in our shaders."""


@dataclass(frozen=True)
class Resources:
    """Of a workgroup."""

    size: tuple[int, int, int]
    """Invocations along each axis."""
    shared_bytes: int


@dataclass
class _Module:
    """What of a module says how much it needs."""

    values: dict[int, int] = field(default_factory=dict)
    composites: dict[int, tuple[int, ...]] = field(default_factory=dict)
    bytes_of_types: dict[int, int] = field(default_factory=dict)
    spec_ids: dict[int, int] = field(default_factory=dict)
    size: tuple[int, ...] = (0, 0, 0)
    size_constant: int | None = None
    shared_bytes: int = 0


def resources(spirv: bytes, specialization: Sequence[int | float]) -> Resources:
    """What a workgroup of a compute shader needs."""
    module = _Module()
    for opcode, words in instructions(spirv):
        _read(module, opcode, words, specialization)
    if module.size_constant is not None:
        module.size = tuple(module.values[word] for word in module.composites[module.size_constant])
    x, y, z = module.size
    return Resources((x, y, z), module.shared_bytes)


def instructions(spirv: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Opcodes, and the words after them."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at = 5
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        yield opcode, words[at + 1 : at + count]
        at += count


def _read(module: _Module, opcode: int, words: tuple[int, ...], specialization: Sequence[int | float]) -> None:
    match opcode:
        case _Op.EXECUTION_MODE if words[1] == _LOCAL_SIZE:
            module.size = words[2:5]
        case _Op.DECORATE if words[1] == _SPEC_ID:
            module.spec_ids[words[0]] = words[2]
        case _Op.DECORATE if words[1:3] == (_BUILT_IN, _WORKGROUP_SIZE):
            module.size_constant = words[0]
        case _Op.TYPE_INT | _Op.TYPE_FLOAT:
            module.bytes_of_types[words[0]] = words[1] // 8
        case _Op.TYPE_VECTOR:
            module.bytes_of_types[words[0]] = module.bytes_of_types.get(words[1], 0) * words[2]
        case _Op.TYPE_ARRAY:
            if words[1] in module.bytes_of_types:
                module.bytes_of_types[words[0]] = module.bytes_of_types[words[1]] * module.values[words[2]]
        case _Op.TYPE_POINTER:
            module.bytes_of_types[words[0]] = module.bytes_of_types.get(words[2], 0)
        case _Op.CONSTANT_TRUE | _Op.CONSTANT_FALSE:
            module.values[words[1]] = int(opcode == _Op.CONSTANT_TRUE)
        case _Op.CONSTANT:
            module.values[words[1]] = words[2]
        case _Op.SPEC_CONSTANT_TRUE | _Op.SPEC_CONSTANT_FALSE | _Op.SPEC_CONSTANT:
            given = module.spec_ids.get(words[1], len(specialization))
            default = words[2] if opcode == _Op.SPEC_CONSTANT else int(opcode == _Op.SPEC_CONSTANT_TRUE)
            value = specialization[given] if given < len(specialization) else default
            module.values[words[1]] = value if isinstance(value, int) else 0
        case _Op.CONSTANT_COMPOSITE | _Op.SPEC_CONSTANT_COMPOSITE:
            module.composites[words[1]] = words[2:]
        case _Op.SPEC_CONSTANT_OP if words[2] in _OPERATIONS and all(word in module.values for word in words[3:]):
            module.values[words[1]] = _OPERATIONS[words[2]](*(module.values[word] for word in words[3:]))
        case _Op.VARIABLE if words[2] == _WORKGROUP_MEMORY:
            module.shared_bytes += module.bytes_of_types[words[0]]
