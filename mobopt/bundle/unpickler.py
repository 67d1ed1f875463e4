"""The restricted unpickler: reads TorchScript's pickle dialect and nothing else.

It imports nothing and calls nothing that a file names. Only the opcodes and globals below are known; every container is
complete before anything refers to it, so values have no cycles, and their size with all repetitions is bounded.

Source of the dialect: ``torch/csrc/jit/serialization/unpickler.cpp``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.nesting import Nesting
from mobopt.bundle.other_tensors import is_other, refusal_of_class, refusal_of_tensor
from mobopt.bundle.tensors import QUANTIZED_STORAGES, STORAGE_DTYPES, StorageLoader, rebuild_tensor, with_marks
from mobopt.errors import BundleError, GraphError
from mobopt.ir.types import BOOL, FLOAT, INT, TENSOR, DictType, ListType, Type, parse_type, plain_class_name
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import CONTEXT_CLASSES, PackedContext
from mobopt.ops.quantized_contexts import QUANTIZED_CLASSES

_MAX_TYPE = 1 << 14
_QUANTIZED = ".quantized."
"""In the names of the classes of quantised layers."""
CUSTOM_CLASSES = "__torch__.torch.classes."
"""How the names of PyTorch's own classes begin."""


@dataclass(eq=False)
class PickledObject:
    """An object of a class that the file defines: a module, whose state is a dictionary of attributes."""

    class_name: str
    state: Any = None


@dataclass(frozen=True)
class PickledEnum:
    """A member of an enumeration that the file defines, by its value."""

    class_name: str
    value: Any


@dataclass
class Unpickled:
    """What a pickle holds, and the types that its lists and dictionaries are tagged with."""

    value: Any
    types: dict[int, Type] = field(default_factory=dict)
    """Types by ``id`` of the list or dictionary, all of which are in ``value`` or ``kept``."""
    kept: Sequence[Any] = ()


@dataclass(frozen=True)
class _Global:
    """A name that a pickle mentions."""

    module: str
    name: str


class _Mark:
    """The marker on the stack."""


@dataclass(frozen=True)
class _Storage:
    """A storage that a persistent id has named."""

    values: torch.Tensor


_MARK = _Mark()
_LISTS = {"build_intlist": INT, "build_tensorlist": TENSOR, "build_doublelist": FLOAT, "build_boollist": BOOL}
_LIST_ELEMENTS: dict[str, type | tuple[type, ...]] = {
    "build_intlist": int,
    "build_tensorlist": (torch.Tensor, AffineTensor, type(None)),
    "build_doublelist": float,
    "build_boollist": bool,
}
_PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
"""What follows the tensor in their arguments (gradients, hooks, attributes) is nothing to a model that only infers."""
_TENSOR_CLASSES = {("torch", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.nn.parameter", "Buffer")}
_FUNCTIONS = {
    *(("torch.jit._pickle", name) for name in (*_LISTS, "restore_type_tag")),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_qtensor"),
    *(("torch._utils", name) for name in _PARAMETERS),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("collections", "OrderedDict"),
    ("builtins", "complex"),
    ("torch", "device"),
}
_STORAGES = {("torch", name) for name in (*STORAGE_DTYPES, *QUANTIZED_STORAGES)}
_PER_TENSOR, _PER_CHANNEL = ("torch", "per_tensor_affine"), ("torch", "per_channel_affine")
_SCHEMES = {_PER_TENSOR, _PER_CHANNEL, ("torch", "per_channel_affine_float_qparams")}

_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_DOUBLE = struct.Struct(">d")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_INT64 = struct.Struct("<q")


def unpickle(data: bytes, storages: StorageLoader | None, record: str) -> Unpickled:
    """Read a pickle.

    Args:
        data: the pickle.
        storages: where its tensors' storages are; None if it may hold none.
        record: its name for messages.

    Raises:
        BundleError: an unknown opcode or global, a damaged stream, a tensor outside its storage, or a context whose
            state is wrong.
    """
    machine = _Machine(data, storages)
    try:
        value = machine.run()
    except BundleError as error:
        raise BundleError(f"{record}: {error}") from None
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, TypeError, KeyError) as error:
        raise BundleError(f"{record}: the pickle is damaged near byte {machine.position} ({error})") from None
    return Unpickled(value, machine.types, machine.kept)


class _Machine:
    """The pickle machine: a stack, a memo, and a measure of every container."""

    def __init__(self, data: bytes, storages: StorageLoader | None) -> None:
        self.data = data
        self.storages = storages
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.types: dict[int, Type] = {}
        self.open: set[int] = set()
        """By ``id``, lists and dictionaries that may still be appended to, because only the stack refers to them."""
        self.nesting = Nesting()
        self.kept: list[Any] = []
        """Containers with a type, whose ``id`` must stay theirs."""

    def run(self) -> Any:
        """The pickled value."""
        if self.data[:2] != b"\x80\x02":
            raise BundleError("it is not a pickle of protocol 2; the record is damaged")
        self.position = 2
        while True:
            opcode = self.data[self.position]
            self.position += 1
            if opcode == 0x2E:  # STOP
                return self.pop()
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise BundleError(
                    f"pickle opcode 0x{opcode:02x} at byte {self.position - 1} is not one that models use; "
                    "the file is damaged or hostile"
                )
            handler(self)

    def take(self, layout: struct.Struct) -> Any:
        """The next number of the stream."""
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return value

    def take_byte(self) -> int:
        """The next byte of the stream."""
        value = self.data[self.position]
        self.position += 1
        return value

    def take_bytes(self, count: int) -> bytes:
        """The next bytes of the stream."""
        if count < 0 or self.position + count > len(self.data):
            raise BundleError(f"a string of {count} bytes runs over the end; the record is truncated")
        chunk = self.data[self.position : self.position + count]
        self.position += count
        return chunk

    def take_line(self) -> str:
        """The stream up to a newline."""
        end = self.data.index(b"\n", self.position)
        return self.take_bytes(end + 1 - self.position)[:-1].decode()

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take a value off the stack, which something else now refers to."""
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise BundleError("the pickle is damaged: a marker stands where a value belongs")
        self.open.discard(id(value))
        return value

    def pop_to_mark(self) -> list[Any]:
        """Values above the last marker."""
        index = len(self.stack) - 1
        while index >= 0 and self.stack[index] is not _MARK:
            index -= 1
        if index < 0:
            raise BundleError("the pickle is damaged: a marker is missing")
        values = self.stack[index + 1 :]
        del self.stack[index:]
        self.open.difference_update(map(id, values))
        return values

    def mutable(self, container: Any, parts: list[Any]) -> None:
        """Push a list or dictionary of these parts that may be appended to."""
        self.open.add(id(container))
        self.push(self.nesting.measured(self.nesting.counted(container), parts))

    def new_list(self, items: list[Any]) -> None:
        """Push a list of these items that may be appended to."""
        self.mutable(items, items)

    def top_open(self, kind: type) -> Any:
        """The container on top of the stack, which must still be open."""
        container = self.stack[-1]
        if not isinstance(container, kind) or id(container) not in self.open:
            raise BundleError("the pickle is damaged: it appends to what is not a new container")
        return container

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        target = self.top_open(list)
        target.extend(items)
        self.nesting.measured(target, items)

    def update(self, items: list[Any]) -> None:
        """Set items of the dictionary on top."""
        target = self.top_open(dict)
        if len(items) % 2:
            raise BundleError("the pickle is damaged: a dictionary's key has no value")
        if not all(isinstance(key, (str, int, float, bool, complex)) for key in items[::2]):
            raise BundleError("the pickle is damaged: a dictionary's key is neither string nor number")
        target.update(zip(items[::2], items[1::2], strict=True))
        self.nesting.measured(target, items)

    def push_tuple(self, items: list[Any]) -> None:
        """Push a tuple."""
        self.push(self.nesting.measured(self.nesting.counted(tuple(items)), items))

    def get(self, index: int) -> None:
        """Push what was memoised."""
        if index not in self.memo:
            raise BundleError(f"the pickle is damaged: it refers to entry {index} of its memo, which is not set")
        value = self.memo[index]
        if id(value) in self.open or (isinstance(value, PickledObject) and value.state is None):
            raise BundleError("the pickle is damaged: a value is referred to before it is complete")
        self.push(value)

    def put(self, index: int) -> None:
        """Memoise the top of the stack."""
        if self.stack[-1] is _MARK:
            raise BundleError("the pickle is damaged: it memoises a marker")
        self.memo[index] = self.stack[-1]

    def global_name(self) -> None:
        """Push a global, if it is one that models use."""
        module, name = self.take_line(), self.take_line()
        known = (module, name) in _FUNCTIONS | _STORAGES | _SCHEMES | _TENSOR_CLASSES
        if is_other(module, name):
            raise BundleError(refusal_of_tensor(name, *self.place()))
        if not known and module != "__torch__" and not module.startswith("__torch__."):
            raise BundleError(
                f"it names the global {module}.{name}, which is not among those that mobopt reads; "
                "the file is hostile, or not a TorchScript model"
            )
        self.push(_Global(module, name))

    def place(self) -> tuple[list[tuple[str, str]], str]:
        """Attribute and class of each object that is being made, the model first, and the last attribute's name."""
        holders: list[tuple[str, str]] = []
        name = ""
        for item in self.stack:
            if isinstance(item, PickledObject) and item.state is None:
                holders.append((name, item.class_name))
                name = ""
            elif isinstance(item, str):
                name = item
        return holders, name

    def new_object(self) -> None:
        """Push an object of a class of the file."""
        arguments, cls = self.pop(), self.pop()
        if arguments != () or not isinstance(cls, _Global) or not cls.module.startswith("__torch__"):
            raise BundleError("the pickle is damaged: it makes an object of what is not a class of the model")
        self.push(self.nesting.counted(PickledObject(plain_class_name(f"{cls.module}.{cls.name}"))))

    def build(self) -> None:
        """Give the object on top of the stack its state; packed contexts come into being here."""
        state, made = self.pop(), self.pop()
        if not isinstance(made, PickledObject) or made.state is not None:
            raise BundleError("the pickle is damaged: it gives a state to what is not a new object")
        if made.class_name.startswith(CUSTOM_CLASSES):
            context = packed_context(made.class_name, state, lambda: self.place()[0])
            self.push(self.nesting.measured(context, [state]))
            return
        if isinstance(state, dict):
            for name in (name for name, value in state.items() if isinstance(value, AffineTensor)):
                raise BundleError(
                    refusal_of_tensor("_rebuild_qtensor", [*self.place()[0], ("", made.class_name)], name)
                )
        made.state = state
        self.push(self.nesting.measured(made, [state]))

    def reduce(self) -> None:
        """Apply one of the known functions to its arguments."""
        arguments, function = self.pop(), self.pop()
        is_own = isinstance(function, _Global) and f"{function.module}.".startswith("__torch__.")
        if is_own and isinstance(arguments, (int, float, str)):
            name = plain_class_name(f"{function.module}.{function.name}")
            self.push(self.nesting.counted(PickledEnum(name, arguments)))
            return
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise BundleError("the pickle is damaged: it calls what is not a function")
        if (function.module, function.name) not in _FUNCTIONS:
            raise BundleError(f"it calls {function.module}.{function.name}, which no model does; the file is hostile")
        self.push(self.call(function.name, arguments))

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """The result of a known function."""
        if name in _LISTS:
            (items,) = arguments
            if not isinstance(items, list) or not all(self.is_element(name, item) for item in items):
                raise BundleError(f"the pickle is damaged: {name} is given something else")
            return self.tagged(items, ListType(_LISTS[name]))
        if name == "restore_type_tag":
            value, text = arguments
            return self.tagged(value, tagged_type(text))
        if name == "_rebuild_tensor_v2":
            storage, offset, sizes, strides, requires_grad = arguments[:5]
            if not isinstance(storage, _Storage):
                raise BundleError("the pickle is damaged: a tensor has no storage")
            rebuilt = rebuild_tensor(storage.values, offset, sizes, strides, requires_grad)
            return with_marks(rebuilt, arguments[6]) if len(arguments) > 6 else rebuilt
        if name in _PARAMETERS and arguments and isinstance(arguments[0], torch.Tensor):
            return arguments[0]
        if name == "_rebuild_from_type_v2":  # a tensor with attributes
            return self.of_class(*arguments[:3])
        if name == "_rebuild_qtensor":
            return self.affine_tensor(*arguments[:5])
        if name == "OrderedDict" and arguments == ():
            return self.nesting.counted({})
        if name == "complex" and len(arguments) == 2:
            return complex(*arguments)
        if name == "device" and len(arguments) == 1 and isinstance(arguments[0], str):
            return named_device(arguments[0])
        raise BundleError(f"the pickle is damaged: {name} has {len(arguments)} arguments")

    def of_class(self, function: Any, cls: Any, arguments: Any) -> Any:
        """A tensor of a class that adds nothing to it."""
        if not isinstance(cls, _Global) or (cls.module, cls.name) not in _TENSOR_CLASSES:
            raise BundleError("the pickle is damaged: it makes a tensor of what is no class of tensors")
        if not isinstance(function, _Global) or (function.module, function.name) not in _FUNCTIONS:
            raise BundleError("the pickle is damaged: it makes a tensor by what is not a function for that")
        if function.name not in ("_rebuild_tensor_v2", *_PARAMETERS) or not isinstance(arguments, tuple):
            raise BundleError(f"the pickle is damaged: it makes a tensor by {function.name}")
        return self.call(function.name, arguments)

    def affine_tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, quantizer: Any) -> AffineTensor:
        """A quantised tensor; only quantised layers and packed weights may hold one."""
        holders, attribute = self.place()
        if not any(_may_hold_integers(class_name) for _, class_name in holders):
            raise BundleError(refusal_of_tensor("_rebuild_qtensor", holders, attribute))
        if not isinstance(storage, _Storage):
            raise BundleError("the pickle is damaged: a tensor has no storage")
        integers = rebuild_tensor(storage.values, offset, sizes, strides, False)
        match quantizer:
            case (_Global() as kind, float() as scale, int() as zero) if (kind.module, kind.name) == _PER_TENSOR:
                scales = torch.tensor([scale], dtype=torch.double)
                return AffineTensor(integers, scales, torch.tensor([float(zero)]), None)
            case (_Global() as kind, torch.Tensor() as scales, torch.Tensor() as zeros, int() as axis) if (
                (kind.module, kind.name) == _PER_CHANNEL
                and 0 <= axis < integers.dim()
                and scales.shape == zeros.shape == integers.shape[axis : axis + 1]
            ):
                return AffineTensor(integers, scales.double(), zeros.float(), axis)
        raise BundleError("the pickle is damaged: a quantised tensor has no scale that is known")

    def is_element(self, name: str, item: Any) -> bool:
        """Whether a value may be an element of a list of numbers or tensors."""
        return isinstance(item, _LIST_ELEMENTS[name]) and (name != "build_intlist" or not isinstance(item, bool))

    def tagged(self, value: Any, kind: Type) -> Any:
        """A list or dictionary whose type is known from here on."""
        if not isinstance(value, list if isinstance(kind, ListType) else dict):
            raise BundleError(f"the pickle is damaged: a {type(value).__name__} is tagged as {kind}")
        if id(value) in self.types and self.types[id(value)] != kind:
            raise BundleError(f"the pickle is damaged: one value is tagged as {self.types[id(value)]} and as {kind}")
        if id(value) not in self.types:
            self.kept.append(value)
        self.types[id(value)] = kind
        return value

    def persistent_id(self) -> None:
        """Push the storage that a persistent id names."""
        reference = self.pop()
        if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
            raise BundleError("the pickle is damaged: a persistent id does not name a storage")
        _, cls, key, _, count = reference
        is_torchs = isinstance(cls, _Global) and cls.module == "torch"
        dtype = {**STORAGE_DTYPES, **QUANTIZED_STORAGES}.get(cls.name) if is_torchs else None
        if dtype is None or not isinstance(key, str) or type(count) is not int or count < 0:
            raise BundleError(f"the pickle is damaged: the storage {key!r} has no readable type or size")
        if self.storages is None:
            raise BundleError("it holds a tensor where none belongs; the file is damaged")
        self.push(_Storage(self.storages.load(dtype, key, count)))


def _may_hold_integers(class_name: str) -> bool:
    context = CONTEXT_CLASSES.get(class_name)
    return _QUANTIZED in class_name or (context is not None and context.with_integers is not None)


def packed_context(class_name: str, state: Any, holders: Callable[[], list[tuple[str, str]]]) -> PackedContext:
    """Packed weights from their state.

    Args:
        class_name: one of PyTorch's own classes.
        state: what the class pickles.
        holders: tells attribute and class of each object around it, from the model inwards.

    Raises:
        BundleError: the class is not read, or the state is wrong.
    """
    context = CONTEXT_CLASSES.get(class_name) or QUANTIZED_CLASSES.get(class_name)
    if context is None:
        known = ", ".join(name.removeprefix(CUSTOM_CLASSES) for name in CONTEXT_CLASSES)
        unknown = f"an object of class {class_name} is not one that mobopt reads; it reads {known}"
        raise BundleError(refusal_of_class(class_name, holders()) or unknown)
    if not isinstance(state, list if context.state_is_list else tuple):
        raise BundleError(f"the state of {class_name} is a {type(state).__name__}; the file is damaged")
    return context.from_state(state)


def tagged_type(text: Any) -> Type:
    """The type of a list or dictionary by its tag."""
    if not isinstance(text, str) or len(text) > _MAX_TYPE:
        raise BundleError(f"a value has the type tag {str(text)[:80]!r}, which is no type; the file is damaged")
    try:
        kind = parse_type(text)
    except GraphError as error:
        raise BundleError(f"a value has the type tag {text!r}: {error}") from None
    if not isinstance(kind, (ListType, DictType)):
        raise BundleError(f"a value has the type tag {text!r}, which is neither a list nor a dictionary")
    return kind


def named_device(text: str) -> torch.device:
    """The device of this name."""
    try:
        return torch.device(text)
    except RuntimeError:
        raise BundleError(f"{text!r} is not a device; the file is damaged") from None


def _long(machine: _Machine) -> None:
    if machine.take_byte() != 8:
        raise BundleError("the pickle is damaged: an integer has another size than 8 bytes")
    machine.push(machine.take(_INT64))


_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    ord("]"): lambda m: m.mutable([], []),
    ord("}"): lambda m: m.mutable({}, []),
    ord(")"): lambda m: m.push(()),
    ord("("): lambda m: m.push(_MARK),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("N"): lambda m: m.push(None),
    ord("J"): lambda m: m.push(m.take(_INT32)),
    ord("K"): lambda m: m.push(m.take_byte()),
    ord("M"): lambda m: m.push(m.take(_UINT16)),
    0x8A: _long,
    ord("G"): lambda m: m.push(m.take(_DOUBLE)),
    ord("X"): lambda m: m.push(m.take_bytes(m.take(_UINT32)).decode()),
    0x8D: lambda m: m.push(m.take_bytes(m.take(_UINT64)).decode()),
    ord("t"): lambda m: m.push_tuple(m.pop_to_mark()),
    0x85: lambda m: m.push_tuple([m.pop()]),
    0x86: lambda m: m.push_tuple([m.pop(), m.pop()][::-1]),
    0x87: lambda m: m.push_tuple([m.pop(), m.pop(), m.pop()][::-1]),
    ord("l"): lambda m: m.new_list(m.pop_to_mark()),
    ord("a"): lambda m: m.extend([m.pop()]),
    ord("e"): lambda m: m.extend(m.pop_to_mark()),
    ord("s"): lambda m: m.update([m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: m.update(m.pop_to_mark()),
    ord("q"): lambda m: m.put(m.take_byte()),
    ord("r"): lambda m: m.put(m.take(_UINT32)),
    ord("h"): lambda m: m.get(m.take_byte()),
    ord("j"): lambda m: m.get(m.take(_UINT32)),
    ord("c"): lambda m: m.global_name(),
    0x81: lambda m: m.new_object(),
    ord("b"): lambda m: m.build(),
    ord("R"): lambda m: m.reduce(),
    ord("Q"): lambda m: m.persistent_id(),
}
