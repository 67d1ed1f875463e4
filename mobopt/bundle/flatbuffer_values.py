"""The values of a flatbuffer model: its list of them is read in order, and each refers only to those before it.

Source of the form: ``torch/csrc/jit/serialization/mobile_bytecode.fbs``, ``flatbuffer_serializer.cpp`` and
``torch/csrc/jit/mobile/flatbuffer_loader.cpp``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from mobopt.bundle.bytecode import Function
from mobopt.bundle.flatbuffer import Table, Tables, damaged
from mobopt.bundle.nesting import Container, Nesting
from mobopt.bundle.other_tensors import refusal_of_tensor
from mobopt.bundle.stored_state import assigned_slots
from mobopt.bundle.tensors import StorageLoader, rebuild_tensor
from mobopt.bundle.unpickler import (
    CUSTOM_CLASSES,
    PickledEnum,
    PickledObject,
    Unpickled,
    named_device,
    packed_context,
    tagged_type,
)
from mobopt.errors import BundleError
from mobopt.ir.dtypes import SCALAR_TYPES
from mobopt.ir.types import BOOL, FLOAT, INT, DictType, ListType, Type, plain_class_name

FUNCTION = 16
"""The kind of a value that is a method."""
_TENSOR, _LIST, _TUPLE, _DICT, _OBJECT = 5, 7, 8, 9, 10
_WITH_FIELDS, _CUSTOM, _WITH_STATE = 1, 2, 3
"""Kinds of classes."""
_LONG, _BYTE, _REAL, _COMPLEX = struct.Struct("<q"), struct.Struct("<B"), struct.Struct("<d"), struct.Struct("<2d")
_QUANTISED_TYPES = (12, 13, 14, 16, 17)

SlotNames = Callable[[str], Sequence[str]]
"""Names of the attributes that a class declares; none if nothing tells them."""


class FlatbufferValues:
    """Reads values, each once.

    Args:
        values: the model's list of them.
        classes: its list of classes.
        storages: where its tensors' storages are.
        function: reads the method that a value is.
        slot_names: what classes declare.
    """

    def __init__(
        self,
        values: Tables,
        classes: Tables,
        storages: StorageLoader,
        function: Callable[[int], Function],
        slot_names: SlotNames,
    ) -> None:
        self._tables = values
        self._classes = classes
        self._storages = storages
        self._function = function
        self._slot_names = slot_names
        self._values: list[Any] = []
        self._types: dict[int, Type] = {}
        self._nesting = Nesting()
        self._readers: dict[int, Callable[[Table], Any]] = {
            0: lambda table: None,
            1: lambda table: table.structure(1, _LONG)[0],
            2: lambda table: bool(table.structure(1, _BYTE)[0]),
            3: lambda table: table.structure(1, _REAL)[0],
            4: lambda table: complex(*table.structure(1, _COMPLEX)),
            _TENSOR: lambda table: self._tensor(table.needed_table(1)),
            6: lambda table: table.needed_table(1).string(0),
            _LIST: lambda table: self._list(table.needed_table(1)),
            _TUPLE: lambda table: self._tuple(table.needed_table(1)),
            _DICT: lambda table: self._dictionary(table.needed_table(1)),
            _OBJECT: lambda table: self._object(table.needed_table(1)),
            11: lambda table: self._numbers(table.needed_table(1).numbers(0, "<i8").tolist(), INT),
            12: lambda table: self._numbers(table.needed_table(1).numbers(0, "<f8").tolist(), FLOAT),
            13: lambda table: self._numbers((table.needed_table(1).numbers(0, "u1") != 0).tolist(), BOOL),
            14: lambda table: named_device(table.needed_table(1).string(0)),
            15: lambda table: self._enumeration(table.needed_table(1)),
            FUNCTION: lambda table: None,  # methods are read by those who call them
        }

    def value(self, index: int) -> Any:
        """A value by its number.

        Raises:
            BundleError: there is none, or one up to it is damaged or of a kind that is not read.
        """
        if not 0 <= index < len(self._tables):
            raise damaged(f"it refers to value {index} of {len(self._tables)}")
        while len(self._values) <= index:
            table = self._tables[len(self._values)]
            kind = table.number(0, "B")
            if kind not in self._readers:
                raise BundleError(f"value {len(self._values)} is of kind {kind}, which no release of PyTorch writes")
            self._values.append(self._readers[kind](table))
        return self._values[index]

    def with_types(self, value: Any) -> Unpickled:
        """A value, or something made of values, with the types of all lists and dictionaries."""
        return Unpickled(value, self._types, self._values)

    def count(self, number: int) -> None:
        """Count what is made of the file beside values.

        Raises:
            BundleError: there is more than in any model.
        """
        self._nesting.count(number)

    def _earlier(self, index: int) -> Any:
        """What the value that is being read refers to."""
        if index >= len(self._values):
            raise damaged(f"value {len(self._values)} refers to value {index}, which is not before it")
        return self._values[index]

    def _items(self, table: Table, field: int) -> list[Any]:
        return [self._earlier(index) for index in table.numbers(field, "<u4").tolist()]

    def _container(self, container: Container, parts: list[Any]) -> Container:
        return self._nesting.measured(self._nesting.counted(container), parts)

    def _numbers(self, items: list[Any], kind: Type) -> list[Any]:
        self._types[id(items)] = ListType(kind)
        return self._container(items, items)

    def _list(self, table: Table) -> list[Any]:
        items = self._items(table, 0)
        kind = tagged_type(table.string(1))
        if not isinstance(kind, ListType):
            raise damaged(f"a list is tagged as {kind}")
        self._types[id(items)] = kind
        return self._container(items, items)

    def _tuple(self, table: Table) -> tuple[Any, ...]:
        items = self._items(table, 0)
        return self._container(tuple(items), items)

    def _dictionary(self, table: Table) -> dict[Any, Any]:
        keys, values = self._items(table, 0), self._items(table, 1)
        kind = tagged_type(table.string(2))
        if len(keys) != len(values) or not isinstance(kind, DictType):
            raise damaged(f"a dictionary of {len(keys)} keys and {len(values)} values is tagged as {kind}")
        if not all(isinstance(key, (str, int, float, bool, complex)) for key in keys):
            raise damaged("a dictionary's key is neither string nor number")
        result = dict(zip(keys, values, strict=True))
        self._types[id(result)] = kind
        return self._container(result, [*keys, *values])

    def _enumeration(self, table: Table) -> PickledEnum:
        name, value = plain_class_name(table.string(0)), self._earlier(table.number(1, "I"))
        if not name.startswith("__torch__.") or not isinstance(value, (int, float, str)):
            raise damaged(f"a member of the enumeration {name!r} is a {type(value).__name__}")
        return self._nesting.counted(PickledEnum(name, value))

    def _tensor(self, table: Table) -> torch.Tensor:
        kind = table.number(1, "b")
        if table.table(6) is not None or kind in _QUANTISED_TYPES:
            raise BundleError(refusal_of_tensor("_rebuild_qtensor", *self._place()))
        if kind not in SCALAR_TYPES:
            raise BundleError(f"a tensor is of scalar type {kind}, which mobopt does not read")
        dtype, key = SCALAR_TYPES[kind], str(table.number(0, "I"))
        storage = self._storages.load(dtype, key, self._storages.bytes_of(key) // dtype.itemsize)
        sizes, strides = (tuple(table.numbers(field, "<i4").tolist()) for field in (3, 4))
        return rebuild_tensor(storage, table.number(2, "i"), sizes, strides, bool(table.number(5, "B")))

    def _class(self, table: Table) -> tuple[str, Table]:
        """Name and table of an object's class."""
        index = table.number(0, "I")
        if index >= len(self._classes):
            raise damaged(f"it refers to class {index} of {len(self._classes)}")
        return plain_class_name(self._classes[index].string(0)), self._classes[index]

    def _object(self, table: Table) -> Any:
        name, kind = self._class(table)
        if not name.startswith("__torch__"):
            raise damaged(f"an object is of class {name!r}, which is not one of the model's")
        form = kind.number(1, "B")
        if name.startswith(CUSTOM_CLASSES) or form == _CUSTOM:
            state = self._earlier(table.number(1, "I"))
            return self._container(packed_context(name, state, lambda: self._place()[0]), [state])
        if form == _WITH_FIELDS:
            return self._with_fields(name, list(kind.strings(2)), self._items(table, 2))
        if form == _WITH_STATE:
            return self._with_state(name, self._function(table.number(3, "I")), self._earlier(table.number(1, "I")))
        raise damaged(f"the class {name} is of kind {form}, of which there are no objects")

    def _with_fields(self, name: str, names: list[str], values: list[Any]) -> PickledObject:
        if len(names) != len(values) or len(set(names)) < len(names):
            raise damaged(f"an object of {name} has {len(values)} values for the attributes {', '.join(names)[:200]}")
        return self._container(PickledObject(name, dict(zip(names, values, strict=True))), values)

    def _with_state(self, name: str, function: Function, state: Any) -> PickledObject:
        """An object that its class restores from a state; where nothing tells, its attributes' names are numbers."""
        self._nesting.count(len(function.instructions))
        slots = assigned_slots(function, state)
        names = self._slot_names(name)
        if not names:
            names = [str(slot) for slot in range(max(slots, default=-1) + 1)]
        if any(slot >= len(names) for slot in slots):
            raise damaged(f"{function.name} sets what {name} does not declare")
        values = [slots.get(slot, False if known == "training" else None) for slot, known in enumerate(names)]
        return self._with_fields(name, list(names), values)

    def _place(self) -> tuple[list[tuple[str, str]], str]:
        """Attribute and class of each object around the value that is being read, the model first, and its own name."""
        steps: list[tuple[str, str]] = []
        index = len(self._values)
        try:
            while (owner := self._owner(index)) is not None:
                index, name, class_name = owner
                steps += [(name, class_name)] if class_name else []
        except BundleError:
            return [], ""
        names, classes = [name for name, _ in steps], [class_name for _, class_name in steps]
        holders = zip([*names[1:], ""], classes, strict=True) if steps else ()
        return list(holders)[::-1], names[0] if names else ""

    def _owner(self, index: int) -> tuple[int, str, str] | None:
        """What holds a value: its number, and of an object the attribute and the class."""
        for owner in range(index + 1, len(self._tables)):
            kind, table = self._tables[owner].number(0, "B"), self._tables[owner].table(1)
            if table is None or kind not in (_LIST, _TUPLE, _DICT, _OBJECT):
                continue
            if kind != _OBJECT:
                fields = (0, 1) if kind == _DICT else (0,)
                if any((table.numbers(field, "<u4") == index).any() for field in fields):
                    return owner, "", ""
                continue
            name, description = self._class(table)
            places = numpy.flatnonzero(table.numbers(2, "<u4") == index)
            if len(places):
                return owner, [*description.strings(2), ""][int(places[0])], name
            if table.number(1, "I") == index and description.number(1, "B") != _WITH_FIELDS:
                return owner, "", name
        return None
