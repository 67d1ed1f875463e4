"""Writes flatbuffer models by PyTorch's schema: any tree of tables, and what an archive of pickles holds.

Source of the form: ``torch/csrc/jit/serialization/mobile_bytecode.fbs``.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.archive_file import ArchiveFile
from mobopt.bundle.bytecode import bytecode_type
from mobopt.bundle.flatbuffer_file import _OPCODES
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import PickledEnum, PickledObject, Unpickled, unpickle
from mobopt.ir.types import BOOL, FLOAT, INT, ListType, Type
from mobopt.ops.contexts import PackedContext


@dataclass(frozen=True)
class Number:
    """A number of a layout of :mod:`struct`."""

    layout: str
    value: Any


@dataclass(frozen=True)
class Numbers:
    """A vector of numbers."""

    layout: str
    values: Sequence[Any]


@dataclass(frozen=True)
class Inline:
    """A structure that a union refers to, or with a count a vector of structures; aligned to 8 bytes."""

    data: bytes
    count: int | None = None


@dataclass(eq=False)
class Tab:
    """A table: fields by number; a field is a number, text, bytes, a vector, a table, a list of tables or of texts."""

    fields: dict[int, Any] = field(default_factory=dict)


def written(root: Tab) -> bytes:
    """A flatbuffer with this root."""
    out = bytearray(b"\0\0\0\0PTMF")
    waiting: deque[tuple[int, Any]] = deque([(0, root)])
    while waiting:
        place, node = waiting.popleft()
        start = _WRITERS[type(node)](out, node, waiting)
        struct.pack_into("<I", out, place, start - place)
    return bytes(out)


def _pad(out: bytearray, alignment: int, before: int = 0) -> None:
    out.extend(bytes(-(len(out) + before) % alignment))


def _table(out: bytearray, table: Tab, waiting: deque[tuple[int, Any]]) -> int:
    count = max(table.fields, default=-1) + 1
    _pad(out, 2)
    description = len(out)
    out.extend(bytes(4 + 2 * count))
    _pad(out, 8)
    start = len(out)
    out.extend(struct.pack("<i", start - description))
    for number, item in table.fields.items():
        layout = f"<{item.layout}" if isinstance(item, Number) else "<I"
        _pad(out, struct.calcsize(layout))
        struct.pack_into("<H", out, description + 4 + 2 * number, len(out) - start)
        if not isinstance(item, Number):
            waiting.append((len(out), item))
        out.extend(struct.pack(layout, item.value if isinstance(item, Number) else 0))
    struct.pack_into("<2H", out, description, 4 + 2 * count, len(out) - start)
    return start


def _bytes(out: bytearray, data: bytes | str, waiting: deque[tuple[int, Any]]) -> int:
    text = data.encode() if isinstance(data, str) else bytes(data)
    _pad(out, 16, 4)
    start = len(out)
    out.extend(struct.pack("<I", len(text)) + text + b"\0")
    return start


def _numbers(out: bytearray, numbers: Numbers, waiting: deque[tuple[int, Any]]) -> int:
    _pad(out, 8, 4)
    start = len(out)
    out.extend(struct.pack(f"<I{len(numbers.values)}{numbers.layout}", len(numbers.values), *numbers.values))
    return start


def _inline(out: bytearray, item: Inline, waiting: deque[tuple[int, Any]]) -> int:
    _pad(out, 8, 0 if item.count is None else 4)
    start = len(out)
    out.extend((b"" if item.count is None else struct.pack("<I", item.count)) + item.data)
    return start


def _offsets(out: bytearray, items: list[Any], waiting: deque[tuple[int, Any]]) -> int:
    _pad(out, 4)
    start = len(out)
    out.extend(struct.pack("<I", len(items)) + bytes(4 * len(items)))
    waiting.extend((start + 4 + 4 * index, item) for index, item in enumerate(items))
    return start


_WRITERS: dict[type, Callable[[bytearray, Any, deque[tuple[int, Any]]], int]] = {
    Tab: _table,
    str: _bytes,
    bytes: _bytes,
    Numbers: _numbers,
    Inline: _inline,
    list: _offsets,
}
_SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
FIELDS, CUSTOM, SETSTATE = 1, 2, 3


class Model:
    """A model that is being written: value 0 is None, as PyTorch has it."""

    def __init__(self) -> None:
        self.values: list[Tab] = [Tab({0: Number("B", 0)})]
        self.classes: list[Tab] = []
        self.storages: list[bytes] = []
        self.root: dict[int, Any] = {}
        self.types: Mapping[int, Type] = {}
        self._known: dict[int, tuple[Any, int]] = {}
        self._class_numbers: dict[str, int] = {}
        self._storage_numbers: dict[tuple[int, int], int] = {}

    def add(self, kind: int, value: Any) -> int:
        """A value of this kind of the union."""
        self.values.append(Tab({0: Number("B", kind), 1: value}))
        return len(self.values) - 1

    def add_class(self, name: str, kind: int, attributes: Sequence[str] = ()) -> int:
        """A class of objects."""
        fields: dict[int, Any] = {0: name, 1: Number("B", kind)}
        self.classes.append(Tab(fields | ({2: list(attributes)} if kind == FIELDS else {})))
        return len(self.classes) - 1

    def data(self) -> bytes:
        """The file."""
        fields = {
            0: Number("I", 9),
            1: [],
            2: Numbers("I", []),
            4: self.values,
            5: Number("i", len(self.storages)),
            6: [Tab({0: item}) for item in self.storages],
            7: self.classes,
            8: [],
            9: Numbers("I", []),
            11: Number("I", len(self.values)),
        }
        return written(Tab(fields | self.root))

    def store(self, value: Any) -> int:
        """The number of a value, each object once."""
        if value is None:
            return 0
        if id(value) not in self._known:
            self._known[id(value)] = value, self._store(value)
        return self._known[id(value)][1]

    def indices(self, values: Sequence[Any]) -> Numbers:
        """Numbers of several values."""
        return Numbers("I", [self.store(item) for item in values])

    def _store(self, value: Any) -> int:
        match value:
            case bool():
                return self.add(2, Inline(struct.pack("<B", value)))
            case int():
                return self.add(1, Inline(struct.pack("<q", value)))
            case float():
                return self.add(3, Inline(struct.pack("<d", value)))
            case complex():
                return self.add(4, Inline(struct.pack("<2d", value.real, value.imag)))
            case str():
                return self.add(6, Tab({0: value}))
            case torch.Tensor():
                return self.add(5, self._tensor(value))
            case torch.device():
                return self.add(14, Tab({0: str(value)}))
            case tuple():
                return self.add(8, Tab({0: self.indices(value)}))
            case dict():
                keys, values = self.indices(list(value)), self.indices(list(value.values()))
                return self.add(9, Tab({0: keys, 1: values, 2: bytecode_type(self.types[id(value)])}))
            case PickledEnum():
                return self.add(15, Tab({0: value.class_name, 1: Number("I", self.store(value.value))}))
            case PickledObject():
                names = list(value.state)
                number = self._class_number(value.class_name, FIELDS, names)
                attributes = self.indices([value.state[name] for name in names])
                return self.add(10, Tab({0: Number("I", number), 2: attributes}))
            case PackedContext():
                return self._context(value)
        return self._list(value)

    def _list(self, value: list[Any]) -> int:
        kind = self.types.get(id(value))
        element = kind.element if isinstance(kind, ListType) else None
        if element is None:  # of a packed context's state
            first = value[0] if value else 0
            element = BOOL if isinstance(first, bool) else INT if isinstance(first, int) else None
        if element in (INT, FLOAT, BOOL):
            union, layout = {INT: (11, "q"), FLOAT: (12, "d"), BOOL: (13, "?")}[element]
            return self.add(union, Tab({0: Numbers(layout, value)}))
        text = "List[Tensor]" if element is None else bytecode_type(ListType(element))
        return self.add(7, Tab({0: self.indices(value), 1: text}))

    def _context(self, value: PackedContext) -> int:
        state = value.state()
        stored = self._list_of_any(state) if value.state_is_list else self.store(tuple(state))
        number = self._class_number(value.qualified_name, CUSTOM)
        return self.add(10, Tab({0: Number("I", number), 1: Number("I", stored)}))

    def _list_of_any(self, state: list[Any]) -> int:
        return self.add(7, Tab({0: self.indices(state), 1: "List[Any]"}))

    def _class_number(self, name: str, kind: int, attributes: Sequence[str] = ()) -> int:
        if name not in self._class_numbers:
            self._class_numbers[name] = self.add_class(name, kind, attributes)
        return self._class_numbers[name]

    def _tensor(self, tensor: torch.Tensor) -> Tab:
        storage = tensor.untyped_storage()
        identity = storage.data_ptr(), storage.nbytes()
        if identity not in self._storage_numbers:
            self._storage_numbers[identity] = len(self.storages)
            self.storages.append(bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy()))
        return Tab(
            {
                0: Number("I", self._storage_numbers[identity]),
                1: Number("b", _SCALAR_TYPES[tensor.dtype]),
                2: Number("i", tensor.storage_offset()),
                3: Numbers("i", tuple(tensor.shape)),
                4: Numbers("i", tensor.stride()),
                5: Number("B", tensor.requires_grad),
            }
        )

    def function(self, name: str, tables: Mapping[str, Any], schema: Mapping[str, Any]) -> int:
        """A method by the tables that an archive pickles."""
        instructions = b"".join(struct.pack("<bxHi", _OPCODES.index(op), n, x) for op, x, n in tables["instructions"])
        operators = [
            Tab({0: item[0], 1: item[1], 2: Number("i", item[2] if len(item) == 3 else -1)})
            for item in tables["operators"]
        ]
        fields = {
            0: name,
            1: Inline(instructions, len(tables["instructions"])),
            2: operators,
            3: self.indices(tables["constants"]),
            4: list(tables["types"]),
            5: Number("i", tables["register_size"]),
            6: Tab({0: self._arguments(schema["arguments"]), 1: self._arguments(schema["returns"])}),
            7: Tab({0: Numbers("q", [-1] * len(tables["instructions"]))}),
            8: Number("I", 0),
        }
        return self.add(16, Tab(fields))

    def _arguments(self, entries: Sequence[Any]) -> list[Tab]:
        items = [dict(entry) for entry in entries]
        return [Tab({0: it["name"], 1: it["type"], 2: Number("I", self.store(it["default_value"]))}) for it in items]


def from_archive(data: bytes, with_source: bool = True) -> bytes:
    """The flatbuffer of a lite archive of pickles, as PyTorch would write it."""
    file, model = ArchiveFile(io.BytesIO(data)), Model()
    bytecode = _bytecode(file)
    _, *methods = bytecode.value
    model.types = {**bytecode.types, **(module := file.module()).types}
    functions = [model.function(name, dict(tables), dict(schema)) for name, tables, schema in methods]
    state = model.store(module.value)
    model.root = {2: Numbers("I", functions), 3: Number("I", state), 10: Number("I", file.version())}
    model.root[11] = Number("I", len(model.values))
    if with_source:
        constants = file.constants()
        model.types |= constants.types
        model.root[9] = model.indices(constants.value)
        sources = [item.name for item in file.below("code/") if item.name.endswith(".py")]
        names = [name.removeprefix("code/").removesuffix(".py").replace("/", ".") for name in sources]
        model.root[8] = [_file(name, file.read(source)) for name, source in zip(names, sources, strict=True)]
    model.root[1] = [_file(name, content) for name, content in file.extra_files().items()]
    return model.data()


def _file(name: str, content: bytes) -> Tab:
    return Tab({0: name, 1: content})


def _bytecode(file: ArchiveFile) -> Unpickled:
    folder = "bytecode" if any(True for _ in file.below("bytecode/")) else "constants"
    return unpickle(file.read("bytecode.pkl"), StorageLoader(file, folder), "bytecode.pkl")
