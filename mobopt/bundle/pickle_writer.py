"""Pickles in the dialect of TorchScript archives.

It is protocol 2; lists and dictionaries carry their types.
Source of the dialect: ``torch/csrc/jit/serialization/pickler.cpp``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, SupportsInt

import torch

from mobopt.bundle.tensors import StorageTable, writable_tensor
from mobopt.errors import BundleError
from mobopt.ir.types import ANY, BOOL, FLOAT, INT, STR, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import PackedContext

_LIST_BUILDERS: dict[Type, str] = {
    INT: "build_intlist",
    TENSOR: "build_tensorlist",
    FLOAT: "build_doublelist",
    BOOL: "build_boollist",
}


class PickleWriter:
    """Writes one pickle.

    Args:
        storages: where the storages of its tensors are collected.
    """

    def __init__(self, storages: StorageTable) -> None:
        self._storages = storages
        self._out = bytearray(b"\x80\x02")
        self._memo: dict[Any, int] = {}
        self._kept: list[Any] = []

    def finish(self) -> bytes:
        """The whole pickle."""
        return bytes(self._out + b".")

    def value(self, value: Any, kind: Type | None = None) -> None:
        """Write a value of a type; without one it follows from the value."""
        if isinstance(kind, OptionalType):
            kind = None if value is None else kind.element
        if value is None or isinstance(value, (bool, int, float, str, complex, torch.device)):
            self._scalar(float(value) if kind == FLOAT and type(value) is int else value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, AffineTensor):
            self._quantized_tensor(value)
        elif isinstance(value, tuple):
            self._typed_tuple(value, kind)
        elif isinstance(value, list):
            self._list(value, kind)
        elif isinstance(value, dict):
            self._dict(value, kind)
        elif isinstance(value, PackedContext):
            self._context(value)
        else:
            raise BundleError(f"a value of type {type(value).__name__} can't be written to a model file")

    def module(self, class_name: str, attributes: Mapping[str, tuple[Any, Type]]) -> None:
        """Write a module object with its attributes, each a value and a type, in order."""
        self._object(class_name)
        self._out += b"}("
        for name, (value, kind) in attributes.items():
            self.string(name)
            self.value(value, kind)
        self._out += b"ub"

    def plain(self, value: Any) -> None:
        """Write tuples, strings and numbers of a table, whose lists, if any, are not expected."""
        if isinstance(value, tuple):
            self.tuple_of([lambda item=item: self.plain(item) for item in value])
        else:
            self._scalar(value)

    def tuple_of(self, writers: Iterable[Any]) -> None:
        """Write a tuple whose elements the given functions write."""
        items = list(writers)
        if not items:
            self._out += b")"
            return
        if len(items) > 3:
            self._out += b"("
        for write in items:
            write()
        self._out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(items), b"t")

    def string(self, text: str) -> None:
        """Write a string, or a reference to an earlier equal one."""
        if not self._get(("str", text)):
            data = text.encode()
            self._out += b"X" + struct.pack("<I", len(data)) + data
            self._put(("str", text))

    def _scalar(self, value: Any) -> None:
        if value is None:
            self._out += b"N"
        elif isinstance(value, bool):
            self._out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._int(value)
        elif isinstance(value, float):
            self._out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self.string(value)
        elif isinstance(value, complex):
            self._global("builtins", "complex")
            self._out += b"G" + struct.pack(">d", value.real) + b"G" + struct.pack(">d", value.imag) + b"\x86R"
        else:
            self._global("torch", "device")
            self.string(str(value))
            self._out += b"\x85R"

    def _int(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._out += b"K" + struct.pack("<B", value)
        elif 0 <= value < 1 << 16:
            self._out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self._out += b"J" + struct.pack("<i", value)
        elif -(1 << 63) <= value < 1 << 63:
            self._out += b"\x8a\x08" + struct.pack("<q", value)
        else:
            raise BundleError(f"the integer {value} has no place in a model file, whose integers have 64 bits")

    def _int_tuple(self, values: Iterable[SupportsInt]) -> None:
        self._out += b"("
        for value in values:
            self._int(int(value))
        self._out += b"t"

    def _tensor(self, tensor: torch.Tensor) -> None:
        plain = writable_tensor(tensor)
        self._global("torch._utils", "_rebuild_tensor_v2")
        self._out += b"("
        self._elements(plain)
        self._out += b"\x88" if tensor.requires_grad else b"\x89"
        self._global("collections", "OrderedDict")
        self._out += b")RtR"

    def _quantized_tensor(self, tensor: AffineTensor) -> None:
        """A tensor that its class restores with its scales."""
        self._global("torch._utils", "_rebuild_qtensor")
        self._out += b"("
        self._elements(writable_tensor(tensor.integers), is_quantized=True)
        self._out += b"("
        if tensor.axis is None:
            self._global("torch", "per_tensor_affine")
            self._scalar(float(tensor.scales))
            self._int(int(tensor.zero_points))
        else:
            self._global("torch", "per_channel_affine")
            self._tensor(tensor.scales.double())
            self._tensor(tensor.zero_points.long())
            self._int(tensor.axis)
        self._out += b"t\x89"
        self._global("collections", "OrderedDict")
        self._out += b")RtR"

    def _elements(self, tensor: torch.Tensor, is_quantized: bool = False) -> None:
        """Storage, offset, sizes and strides of a tensor, which is kept with its storage."""
        self._storage(tensor, is_quantized)
        self._int(int(tensor.storage_offset()))
        self._int_tuple(tensor.shape)
        self._int_tuple(tensor.stride())
        self._kept.append(tensor)

    def _storage(self, tensor: torch.Tensor, is_quantized: bool) -> None:
        storage_class, key, count = self._storages.reference(tensor, is_quantized)
        if self._get(("storage", key, storage_class)):
            return
        self._out += b"("
        self.string("storage")
        self._global("torch", storage_class)
        self.string(key)
        self.string("cpu")
        self._int(count)
        self._out += b"tQ"
        self._put(("storage", key, storage_class))

    def _typed_tuple(self, value: tuple[Any, ...], kind: Type | None) -> None:
        kinds = (
            kind.elements if isinstance(kind, TupleType) and len(kind.elements) == len(value) else (None,) * len(value)
        )
        self.tuple_of([lambda v=v, k=k: self.value(v, k) for v, k in zip(value, kinds, strict=True)])

    def _list(self, value: list[Any], kind: Type | None) -> None:
        element = kind.element if isinstance(kind, ListType) else _common_type(value)
        if element in _LIST_BUILDERS:
            self._global("torch.jit._pickle", _LIST_BUILDERS[element])
            self._out += b"("
            self._items(value, element)
            self._out += b"tR"
        else:
            self._global("torch.jit._pickle", "restore_type_tag")
            self._items(value, element)
            self.string(ListType(element).annotation)
            self._out += b"\x86R"

    def _items(self, values: list[Any], element: Type) -> None:
        self._out += b"]("
        for item in values:
            self.value(item, None if element == ANY else element)
        self._out += b"e"

    def _dict(self, value: dict[Any, Any], kind: Type | None) -> None:
        if not isinstance(kind, DictType):
            kind = DictType(_common_type(list(value)), _common_type(list(value.values())))
        self._global("torch.jit._pickle", "restore_type_tag")
        self._out += b"}("
        for key, item in value.items():
            self.value(key, kind.key)
            self.value(item, kind.value)
        self._out += b"u"
        self.string(kind.annotation)
        self._out += b"\x86R"

    def _context(self, context: PackedContext) -> None:
        if self._get(("object", id(context))):
            return
        self._object(context.qualified_name)
        state = context.state()
        self.value(state if context.state_is_list else tuple(state), context.state_type)
        self._out += b"b"
        self._put(("object", id(context)))
        self._kept.append(context)

    def _object(self, qualified_name: str) -> None:
        self._global(*qualified_name.rsplit(".", 1))
        self._out += b")\x81"

    def _global(self, module: str, name: str) -> None:
        if not self._get(("global", module, name)):
            self._out += f"c{module}\n{name}\n".encode()
            self._put(("global", module, name))

    def _get(self, key: Any) -> bool:
        index = self._memo.get(key)
        if index is None:
            return False
        self._out += b"h" + struct.pack("<B", index) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def _put(self, key: Any) -> None:
        index = self._memo[key] = len(self._memo)
        self._out += b"q" + struct.pack("<B", index) if index < 256 else b"r" + struct.pack("<I", index)


def _common_type(values: list[Any]) -> Type:
    """The element type of a list that comes without one."""
    simple: dict[type, Type] = {bool: BOOL, int: INT, float: FLOAT, str: STR}
    kinds = {simple.get(type(value), TENSOR if isinstance(value, torch.Tensor) else ANY) for value in values}
    return kinds.pop() if len(kinds) == 1 else ANY
