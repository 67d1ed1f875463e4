"""Tables, vectors and strings of a flatbuffer, every offset of which is checked before anything is read there.

Offsets to tables, vectors and strings only point forwards, so no walk along them comes back; what is read, with all
repetitions, is bounded by a multiple of the file.

Source of the form: the page "Internals" of the flatbuffers documentation (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy

from mobopt.errors import BundleError

_READ_FREELY = 1 << 20
_MOST_REPETITIONS = 4
"""Vectors and descriptions of tables may be shared: a file's bytes may be read so often, and so many more freely."""
_LENGTH, _OFFSET, _DESCRIPTION = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<2H")


class FlatBuffer:
    """The bytes of a flatbuffer.

    Args:
        data: the whole file, mapped or in memory.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._left = _READ_FREELY + _MOST_REPETITIONS * len(data)
        self._strings: dict[int, str] = {}

    def root(self) -> Table:
        """The table that all others hang on."""
        return Table(self, self.target(0))

    def unpack(self, layout: struct.Struct, position: int) -> tuple[Any, ...]:
        """The numbers at a position.

        Raises:
            BundleError: they lie outside the file, or too much has been read.
        """
        self._check(position, layout.size)
        return layout.unpack_from(self._data, position)

    def target(self, position: int) -> int:
        """Where the offset at a position points to."""
        (offset,) = self.unpack(_LENGTH, position)
        if not offset:
            raise damaged(f"the offset at byte {position} points nowhere")
        return position + int(offset)

    def span(self, position: int, width: int) -> tuple[int, int]:
        """Begin and number of the elements of the vector at a position; they lie inside the file."""
        (count,) = self.unpack(_LENGTH, position)
        self._check(position + _LENGTH.size, count * width)
        return position + _LENGTH.size, int(count)

    def numbers(self, position: int, dtype: str) -> numpy.ndarray[Any, Any]:
        """The vector at a position, as a view of the file."""
        begin, count = self.span(position, numpy.dtype(dtype).itemsize)
        return numpy.frombuffer(self._data, dtype, count, begin)

    def structs(self, position: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The vector of structures at a position."""
        begin, count = self.span(position, layout.size)
        return list(layout.iter_unpack(self._data[begin : begin + count * layout.size]))

    def string(self, position: int) -> str:
        """The string at a position."""
        if position not in self._strings:
            begin, count = self.span(position, 1)
            try:
                self._strings[position] = bytes(self._data[begin : begin + count]).decode()
            except UnicodeDecodeError:
                raise damaged(f"the string at byte {position} is not UTF-8") from None
        return self._strings[position]

    def _check(self, position: int, size: int) -> None:
        if position < 0 or position + size > len(self._data):
            raise damaged(f"{size} bytes at byte {position} lie outside of the file, which has {len(self._data)}")
        self._left -= size
        if self._left < 0:
            raise damaged("it refers to the same bytes again and again, as no model does")


class Table:
    """A table: fields by number, each of which may be missing.

    Args:
        buffer: the file.
        position: where the table begins.
    """

    def __init__(self, buffer: FlatBuffer, position: int) -> None:
        self._buffer = buffer
        self._position = position
        description = position - buffer.unpack(_OFFSET, position)[0]
        size, self._size = buffer.unpack(_DESCRIPTION, description)
        if size < _DESCRIPTION.size or size % 2:
            raise damaged(f"the table at byte {position} has a description of {size} bytes")
        fields = struct.Struct(f"<{(size - _DESCRIPTION.size) // 2}H")
        self._fields: tuple[int, ...] = buffer.unpack(fields, description + _DESCRIPTION.size)

    def number(self, field: int, layout: str, default: int = 0) -> Any:
        """A number that the table holds itself, of this layout of :mod:`struct`."""
        form = struct.Struct(f"<{layout}")
        place = self._place(field, form.size)
        return default if place is None else self._buffer.unpack(form, place)[0]

    def structure(self, field: int, layout: struct.Struct) -> tuple[Any, ...]:
        """The numbers of a structure that a union refers to."""
        return self._buffer.unpack(layout, self._needed(field))

    def string(self, field: int) -> str:
        """A string; empty if it is missing."""
        target = self._target(field)
        return "" if target is None else self._buffer.string(target)

    def strings(self, field: int) -> Iterator[str]:
        """The strings of a vector of them."""
        return (self._buffer.string(target) for target in self._targets(field))

    def table(self, field: int) -> Table | None:
        """Another table, if there is one."""
        target = self._target(field)
        return None if target is None else Table(self._buffer, target)

    def needed_table(self, field: int) -> Table:
        """Another table.

        Raises:
            BundleError: there is none.
        """
        return Table(self._buffer, self._needed(field))

    def tables(self, field: int) -> Tables:
        """The tables of a vector of them."""
        target = self._target(field)
        return Tables(self._buffer, None if target is None else self._buffer.span(target, _LENGTH.size))

    def numbers(self, field: int, dtype: str) -> numpy.ndarray[Any, Any]:
        """A vector of numbers, as a view of the file; empty if it is missing."""
        target = self._target(field)
        return numpy.empty(0, dtype) if target is None else self._buffer.numbers(target, dtype)

    def span(self, field: int) -> tuple[int, int]:
        """Begin and length of a vector of bytes."""
        target = self._target(field)
        return (0, 0) if target is None else self._buffer.span(target, 1)

    def structs(self, field: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The structures of a vector of them; none if it is missing."""
        target = self._target(field)
        if target is None:
            return []
        return self._buffer.structs(target, layout)

    def _place(self, field: int, size: int) -> int | None:
        """Where a field lies inside of the table; None if it is missing."""
        offset = self._fields[field] if field < len(self._fields) else 0
        if offset == 0:
            return None
        if offset < _OFFSET.size or offset + size > self._size:
            raise damaged(f"field {field} of the table at byte {self._position} lies outside of the table")
        return self._position + offset

    def _target(self, field: int) -> int | None:
        place = self._place(field, _LENGTH.size)
        return None if place is None else self._buffer.target(place)

    def _needed(self, field: int) -> int:
        target = self._target(field)
        if target is None:
            raise damaged(f"field {field} of the table at byte {self._position} is missing")
        return target

    def _targets(self, field: int) -> Iterator[int]:
        target = self._target(field)
        if target is not None:
            begin, count = self._buffer.span(target, _LENGTH.size)
            yield from (self._buffer.target(begin + index * _LENGTH.size) for index in range(count))


class Tables:
    """A vector of tables, each read when it is asked for."""

    def __init__(self, buffer: FlatBuffer, span: tuple[int, int] | None) -> None:
        self._buffer = buffer
        self._begin, self._count = span or (0, 0)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Table]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> Table:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return Table(self._buffer, self._buffer.target(self._begin + index * _LENGTH.size))


def damaged(message: str) -> BundleError:
    """An error about what the file refers to."""
    return BundleError(f"the flatbuffer is damaged: {message}")
