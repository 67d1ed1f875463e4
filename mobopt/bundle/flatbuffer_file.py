"""A model in a flatbuffer: the form of the lite interpreter's files that begin with ``PTMF`` at byte 4.

What an archive keeps in pickles stands here in one list of values; source, storages and extra files are shown as the
records that an archive has for them.

Source of the form: ``torch/csrc/jit/serialization/mobile_bytecode.fbs``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

from mobopt.bundle.bytecode import Function, OperatorEntry, parse_bytecode, parse_operators
from mobopt.bundle.container import MappedFile, Record
from mobopt.bundle.flatbuffer import FlatBuffer, damaged
from mobopt.bundle.flatbuffer_values import FUNCTION, FlatbufferValues
from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.source_library import SourceLibrary
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import Unpickled
from mobopt.bundle.versions import BASE, READABLE
from mobopt.errors import BundleError

_IDENTIFIER = b"PTMF"
_BYTECODE_VERSION, _EXTRA_FILES, _METHODS, _MODULE, _VALUES, _STORAGE_COUNT, _STORAGES, _CLASSES = range(8)
_SOURCES, _CONSTANTS, _OPERATOR_VERSION = range(8, 11)
"""Fields of the root table."""
_INSTRUCTION = struct.Struct("<bxHi")
_OPCODES = re.findall(
    r"\w+",
    "OP OPN LOAD MOVE STOREN STORE DROP DROPR LOADC JF JMP LOOP RET WAIT CALL GUARD TYPECHECK FAIL_GUARD PROFILE_OP "
    "TAIL_CALL INTERFACE_CALL GET_ATTR SET_ATTR LIST_UNPACK TUPLE_CONSTRUCT NAMED_TUPLE_CONSTRUCT LIST_CONSTRUCT "
    "DICT_CONSTRUCT CREATE_OBJECT ISINSTANCE TUPLE_SLICE TUPLE_INDEX RAISE_EXCEPTION DICT_INDEX UNCHECKED_CAST __IS__ "
    "UN_INITIALIZED __ISNOT__ FORMAT DEVICE DTYPE DIM __NOT__ TO_LIST NUM_TO_TENSOR IS_CUDA FORK WARN ENTER EXIT "
    "AWAITABLE",
)
"""By number: ``torch/csrc/jit/runtime/instruction.h``."""
_MOST_RECORDS = 100_000
_SOURCE_NAME = re.compile(r"[\w.<>]+")


def is_flatbuffer(file: MappedFile) -> bool:
    """Whether a file is of this form."""
    return bytes(file.data[4:8]) == _IDENTIFIER


class FlatbufferFile(ModelFile):
    """A model of a flatbuffer.

    Raises:
        BundleError: what the file refers to lies outside of it, or contradicts itself.
    """

    def __init__(self, file: MappedFile) -> None:
        self.name, self._data = file.name, file.data
        try:
            self._root = FlatBuffer(file.data).root()
            self.records = {record.name: record for record in self._all_records()}
            self._check_overlaps()
        except BundleError as error:
            raise BundleError(f"{self.name}: {error}") from None
        self._library = SourceLibrary(self)
        self._functions: dict[int, Function] = {}
        self._values = FlatbufferValues(
            self._root.tables(_VALUES),
            self._root.tables(_CLASSES),
            StorageLoader(self, "data"),
            self._function,
            self._declared,
        )

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self._data)

    @property
    def unpacked_size(self) -> int:
        """Nothing in it is packed."""
        return self.size

    @property
    def has_bytecode(self) -> bool:
        """Whether it lists methods."""
        return len(self._root.numbers(_METHODS, "<u4")) > 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """By what ``torch.jit.save_jit_module_to_flatbuffer`` writes beside the bytecode."""
        source = ("torchscript",) if self.has_source else ()
        return (*source, "lite") if self.has_bytecode else source

    def find(self, record: str) -> Record:
        """What a record would be in an archive."""
        if record not in self.records:
            raise self.error(f"has no {record!r}; it is incomplete")
        return self.records[record]

    def view(self, record: str) -> memoryview:
        """A record's bytes: a writable, private view of the mapped file."""
        entry = self.find(record)
        return memoryview(self._data)[entry.header_offset : entry.header_offset + entry.size]

    def read(self, record: str) -> bytes:
        """A copy of a record's bytes."""
        return bytes(self.view(record))

    def error(self, message: str) -> BundleError:
        """An error about this file."""
        return BundleError(f"{self.name} {message}")

    def check_form(self) -> None:
        """Refuse a file that lists no methods."""
        if not self.has_bytecode and not self.has_source:
            raise self.error("is a flatbuffer without methods; it is no model, or damaged")

    def version(self) -> int:
        """The version of its operators; below the base it says that none has changed its meaning since."""
        version = max(self._root.number(_OPERATOR_VERSION, "I"), BASE)
        if version not in READABLE:
            raise self.error(f"has operators of version {version}; versions {READABLE[0]} to {READABLE[-1]} are read")
        return int(version)

    def module(self) -> Unpickled:
        """The value that the file calls its state."""
        return self._values.with_types(self._values.value(self._root.number(_MODULE, "I")))

    def constants(self) -> Unpickled:
        """The values that the file lists beside its source."""
        numbers = self._root.numbers(_CONSTANTS, "<u4").tolist()
        return self._values.with_types(tuple(self._values.value(number) for number in numbers))

    def bytecode(self) -> tuple[int, list[Function]]:
        """The methods that it lists."""
        return parse_bytecode(self._tables(self._methods(), with_values=True))

    def operators(self) -> set[OperatorEntry]:
        """Those of the methods that it lists; no other value is made."""
        return parse_operators(self._tables(self._methods(), with_values=False))

    def mentions(self, words: Collection[bytes]) -> bool:
        """Whether one of the words stands in the file outside of its storages."""
        storages = sorted((record.header_offset, record.size) for record in self.below("data/"))
        ends = [0, *(begin + size for begin, size in storages)]
        begins = [*(begin for begin, _ in storages), self.size]
        # A length stands before each storage, so no word reaches from one piece into the next.
        pieces = (bytes(self._data[begin:end]) for begin, end in zip(ends, begins, strict=True))
        return any(word in piece for piece in pieces for word in words)

    def _all_records(self) -> Iterator[Record]:
        sources, extra = self._root.tables(_SOURCES), self._root.tables(_EXTRA_FILES)
        storages, count = self._root.tables(_STORAGES), self._root.number(_STORAGE_COUNT, "i")
        if len(sources) + len(extra) + len(storages) > _MOST_RECORDS:
            raise damaged(f"it has over {_MOST_RECORDS} sources, extra files and storages, more than any model's")
        for table in sources:
            name = table.string(0)
            if not _SOURCE_NAME.fullmatch(name):
                raise damaged(f"its source is of {name[:80]!r}, which is not a module's name")
            yield _record(f"code/{name.replace('.', '/')}.py", table.span(1))
        for table in extra:
            yield _record(f"extra/{table.string(0)}", table.span(1))
        if len(storages) != count:
            raise damaged(f"it has {len(storages)} storages where it says {count}; those of another file are not read")
        for index, table in enumerate(storages):
            yield _record(f"data/{index}", table.span(0))

    def _check_overlaps(self) -> None:
        """No two records share bytes, so that together they are no larger than the file."""
        filled = sorted((item for item in self.records.values() if item.size), key=lambda item: item.header_offset)
        for before, record in pairwise(filled):
            if record.header_offset < before.header_offset + before.size:
                raise damaged(f"{before.name!r} and {record.name!r} overlap")

    def _methods(self) -> list[int]:
        return [int(number) for number in self._root.numbers(_METHODS, "<u4").tolist()]

    def _declared(self, class_name: str) -> Sequence[str]:
        """Attributes of a class as the file's source declares them; none without source."""
        return list(self._library.find_class(class_name).attributes) if self.has_source else ()

    def _function(self, number: int) -> Function:
        """The method that a value is."""
        if number not in self._functions:
            self._functions[number] = parse_bytecode(self._tables([number], with_values=True))[1][0]
        return self._functions[number]

    def _tables(self, methods: Sequence[int], with_values: bool) -> Unpickled:
        """Methods in the form that an archive pickles them in, with their constants and defaults or with None."""
        version = self._root.number(_BYTECODE_VERSION, "I")
        return self._values.with_types((version, *(self._method(number, with_values) for number in methods)))

    def _method(self, number: int, with_values: bool) -> tuple[Any, ...]:
        values = self._root.tables(_VALUES)
        if number >= len(values) or values[number].number(0, "B") != FUNCTION:
            raise damaged(f"value {number} is not a method")
        table = values[number].needed_table(1)
        value = self._values.value if with_values else lambda index: None
        instructions, operators = table.structs(1, _INSTRUCTION), table.tables(2)
        self._values.count(len(instructions) + len(operators))
        tables = (
            ("instructions", tuple((_opcode(op), x, n) for op, n, x in instructions)),
            ("operators", tuple((it.string(0), it.string(1), it.number(2, "i", -1)) for it in operators)),
            ("constants", tuple(value(index) for index in table.numbers(3, "<u4").tolist())),
            ("types", tuple(table.strings(4))),
            ("register_size", table.number(5, "i")),
        )
        schema = table.table(6)
        if schema is None:
            return table.string(0), tables
        parameters, results = schema.tables(0), schema.tables(1)
        self._values.count(4 * (len(parameters) + len(results)))
        arguments, returns = (
            tuple(
                (("name", it.string(0)), ("type", it.string(1)), ("default_value", value(it.number(2, "I"))))
                for it in tables_of
            )
            for tables_of in (parameters, results)
        )
        return table.string(0), tables, (("arguments", arguments), ("returns", returns))


def _record(name: str, span: tuple[int, int]) -> Record:
    begin, size = span
    return Record(name, size, size, is_deflated=False, crc=0, header_offset=begin)


def _opcode(number: int) -> str:
    return _OPCODES[number] if 0 <= number < len(_OPCODES) else f"opcode {number}"
