"""The GGUF container: metadata and tensors by name, read from a memory map.

Source: ``docs/gguf.md`` of the ggml repository, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy

from mobopt.bundle.container import map_file
from mobopt.errors import BundleError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_MOST_DIMENSIONS = 4
_MOST_NESTING = 4
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
"""Formats of numbers by the type of a value."""
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True)
class BlockKind:
    """How elements of a tensor lie in a file.

    Attributes:
        name: as ggml calls it.
        elements: of a block; rows are whole blocks.
        nbytes: of a block.
    """

    name: str
    elements: int
    nbytes: int


KINDS = {
    0: BlockKind("F32", 1, 4),
    1: BlockKind("F16", 1, 2),
    2: BlockKind("Q4_0", 32, 18),
    3: BlockKind("Q4_1", 32, 20),
    6: BlockKind("Q5_0", 32, 22),
    7: BlockKind("Q5_1", 32, 24),
    8: BlockKind("Q8_0", 32, 34),
    10: BlockKind("Q2_K", 256, 84),
    11: BlockKind("Q3_K", 256, 110),
    12: BlockKind("Q4_K", 256, 144),
    13: BlockKind("Q5_K", 256, 176),
    14: BlockKind("Q6_K", 256, 210),
    20: BlockKind("IQ4_NL", 32, 18),
    23: BlockKind("IQ4_XS", 256, 136),
    30: BlockKind("BF16", 1, 2),
    34: BlockKind("TQ1_0", 256, 54),
    35: BlockKind("TQ2_0", 256, 66),
    39: BlockKind("MXFP4", 32, 17),
}
"""Those that are read, by ggml's number."""
_OTHER_KINDS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        sizes: outermost first, as torch has them.
        number: ggml's number of its kind.
        blocks: its bytes (blocks, bytes of a block); None if its kind isn't read.
    """

    name: str
    sizes: tuple[int, ...]
    number: int
    blocks: Any

    @property
    def kind(self) -> str:
        """What ggml calls its kind."""
        known = KINDS.get(self.number)
        return known.name if known else _OTHER_KINDS.get(self.number, f"kind {self.number}")


class GgufFile:
    """A file that has been read.

    Attributes:
        name: for messages.
        metadata: values by key; arrays are lists.
        tensors: by name, in the file's order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read metadata and the tensors' places.

        Raises:
            BundleError: it is no GGUF file, or damaged.
        """
        mapped = map_file(path)
        self.name, self._data = mapped.name, memoryview(mapped.data)
        self._position = 0
        version = self._header()
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = (
                "is big-endian, and only little-endian ones are read"
                if swapped in _VERSIONS
                else (f"is of version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} are read")
            )
            raise BundleError(f"{self.name} {what}; convert the model again")
        tensors, values = self._number("<u8"), self._number("<u8")
        self.metadata: dict[str, Any] = {}
        for _ in range(values):
            key = self._string()
            if key in self.metadata:
                raise self._damaged(f"the key {key!r} is there twice")
            self.metadata[key] = self._value(self._number("<u4"))
        infos = [self._info() for _ in range(tensors)]
        self.tensors = self._placed(infos)

    def _header(self) -> int:
        if bytes(self._data[:4]) != MAGIC:
            raise BundleError(f"{self.name} is no GGUF file: it does not begin with GGUF")
        self._position = 4
        return self._number("<u4")

    def _damaged(self, what: str) -> BundleError:
        return BundleError(f"{self.name}: {what}; the file is damaged")

    def _take(self, count: int) -> memoryview:
        begin = self._position
        if count > len(self._data) - begin:
            raise self._damaged(f"it ends after {len(self._data)} bytes, and {count} more were to come at {begin}")
        self._position = begin + count
        return self._data[begin : begin + count]

    def _number(self, form: str) -> int:
        kind = numpy.dtype(form)
        found: int = numpy.frombuffer(self._take(kind.itemsize), kind)[0].item()
        return found

    def _string(self) -> str:
        try:
            return bytes(self._take(self._number("<u8"))).decode()
        except UnicodeDecodeError:
            raise self._damaged("a name is not text") from None

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _BOOL:
            return bool(self._number("u1"))
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth > _MOST_NESTING:
            raise self._damaged(f"a value is of type {kind}")
        element, count = self._number("<u4"), self._number("<u8")
        if element in _NUMBERS:
            form = numpy.dtype(_NUMBERS[element])
            return numpy.frombuffer(self._take(count * form.itemsize), form).tolist()
        if count > len(self._data):
            raise self._damaged(f"an array has {count} elements")
        return [self._value(element, depth + 1) for _ in range(count)]

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, sizes, kind and offset of a tensor."""
        name, rank = self._string(), self._number("<u4")
        if rank > _MOST_DIMENSIONS:
            raise self._damaged(f"the tensor {name!r} has {rank} dimensions, more than {_MOST_DIMENSIONS}")
        sizes = struct.unpack(f"<{rank}Q", self._take(8 * rank))
        return name, sizes[::-1], self._number("<u4"), self._number("<u8")

    def _placed(self, infos: list[tuple[str, tuple[int, ...], int, int]]) -> dict[str, GgufTensor]:
        alignment = self.metadata.get(_ALIGNMENT, 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment % 8:
            raise self._damaged(f"{_ALIGNMENT} is {alignment!r}")
        start = -(-self._position // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, sizes, number, offset in infos:
            if name in found:
                raise self._damaged(f"the tensor {name!r} is there twice")
            if offset % alignment:
                raise self._damaged(f"the tensor {name!r} begins at {offset}, which is no multiple of {alignment}")
            blocks = None
            if number in KINDS:
                kind, count = KINDS[number], math.prod(sizes)
                if (sizes or (1,))[-1] % kind.elements:
                    raise self._damaged(f"the tensor {name!r} has {sizes} elements, and blocks of {kind.elements}")
                self._position = start + offset
                raw = self._take(count // kind.elements * kind.nbytes)
                blocks = numpy.frombuffer(raw, "u1").reshape(-1, kind.nbytes)
            found[name] = GgufTensor(name, sizes, number, blocks)
        return found
