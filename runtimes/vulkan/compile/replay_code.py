"""Python code that does recorded steps again, with numbers in place of expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch

from mobopt.ir import Origin, Value
from mobopt.ir.dimensions import Expression
from mobopt.runtimes.vulkan.engine.stream import LoweredCall
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind
from mobopt.runtimes.vulkan.kernels.plan import label_of

_PLAIN = (str, bytes, float, complex, range, torch.dtype, torch.Tensor, Enum, Origin, FunctionType, type)
"""What is the same for all sizes."""


class UnrecordableError(Exception):
    """What was recorded can't be done again for other sizes."""


class _Step(NamedTuple):
    """A step that was written."""

    line: int
    text: str
    storages: Sequence[str]
    """That it is given, in the order in which they come."""


class _Storages:
    """Collects the storages of a step's arguments.

    Attributes:
        texts: what the code calls them.
    """

    def __init__(self, text: Callable[[Any], str]) -> None:
        self.texts: list[str] = []
        self._text = text
        self._numbers: dict[Storage, int] = {}

    def form(self, value: Any) -> Any:
        """What is equal for arguments with which a step does the same, but for the storages."""
        if isinstance(value, Expression):
            return value.key
        if isinstance(value, Storage):
            if value not in self._numbers:
                self._numbers[value] = len(self.texts)
                self.texts.append(self._text(value))
            is_constant = value.kind is StorageKind.CONSTANT
            return self._numbers[value], self.form(value.nbytes), is_constant, value.elements
        if isinstance(value, (list, tuple)):
            return type(value), *map(self.form, value)
        if isinstance(value, partial):
            return partial, value.func, self.form(value.args), self.form(tuple(value.keywords.items()))
        if isinstance(value, Value):
            return value if value.elements is not None else (value.dtype, self.form(value.sizes))
        if is_dataclass(value) and not isinstance(value, type):
            return type(value), *[self.form(getattr(value, field.name)) for field in fields(value)]
        return type(value), repr(value) if isinstance(value, float) else value


class ReplayWriter:
    """Writes a function ``(plan, numbers, constants)`` of recorded steps.

    Tensors and storages are made where they are first used, each once; what depends on no size, and lies in no storage
    of the plan, is a constant of the function.

    Attributes:
        expressions: whose values are the function's numbers.
    """

    def __init__(self, flag: DeviceTensor | None, constants: Sequence[Storage]) -> None:
        """Begin.

        Args:
            flag: of the recorded stream.
            constants: storages of constants that depend on sizes, of which the function is given others.
        """
        self.expressions: list[Expression] = []
        self._flag = None if flag is None else flag.storage
        self._open = {storage: f"constants[{number}]" for number, storage in enumerate(constants)}
        self._lines: list[str] = []
        self._constants: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        """Of constants by identity, of expressions by key."""
        self._made: dict[int, str] = {}
        """Variables of objects, by identity."""
        self._steps: dict[Any, _Step] = {}
        """The first of steps that differ in storages alone."""
        self._labels: dict[str, str] = {}
        """Variables of labels."""
        self._kept: list[Any] = []
        """Objects whose identities are keys."""

    def call(self, function: Callable[..., None], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Write the call of a step; what one did earlier with other storages is repeated, if that can be."""
        text, storages = f"{self._constant(function)}(plan, {self._arguments(args, named)})", _Storages(self._text)
        key = (function, storages.form(tuple(args)), storages.form(tuple(named.items())))
        first = self._steps.get(key)
        if first is None:
            self._steps[key] = _Step(len(self._lines), text, storages.texts)
            self._lines.append(text)
            return
        done, count = f"d{first.line}", "len(plan.stream.operations)"
        self._lines[first.line] = f"m = {count}; {first.text}; {done} = plan.stream.operations[m:]"
        storages_of_both = f"[{', '.join(first.storages)}], [{', '.join(storages.texts)}]"
        self._lines.append(f"plan.repeat({done}, {storages_of_both}) or {text}")

    def enter(self, operator: str, sizes: Sequence[int], source: Origin, call: LoweredCall) -> None:
        """Write that another call begins; storages are named after its label."""
        self._lines.append(f"plan.enter({self._arguments((operator, sizes, source, call), {})})")
        label = label_of(operator, sizes)
        name = self._labels[label] = f"l{len(self._labels)}"
        self._lines.append(f"{name} = plan.label")

    def extend(self, name: str, tensors: Sequence[Any]) -> None:
        """Write that tensors are inputs, or outputs, of the stream."""
        self._lines.append(f"plan.stream.{name} += {self._text(list(tensors))}")

    def function(self) -> Callable[..., None]:
        """What was written."""
        numbers = "".join(f"n{index}, " for index in range(len(self.expressions)))
        lines = [f"({numbers}) = numbers", *self._lines]
        source = "def replay(plan, numbers, constants):\n" + "".join(f"    {line}\n" for line in lines)
        names = dict(self._constants)
        exec(source, names)
        return names["replay"]  # type: ignore[no-any-return]

    def _text(self, value: Any) -> str:
        """An expression of the code that gives the value for other sizes."""
        kind = type(value)
        if value is None or kind is bool or kind is int:
            return repr(value)
        if kind is Expression:
            return self._number(value)
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, _PLAIN):
            return self._constant(value)
        if isinstance(value, (list, tuple)):
            return self._items(value)
        if isinstance(value, partial):
            return f"{self._constant(partial)}({self._arguments((value.func, *value.args), value.keywords)})"
        if isinstance(value, Storage):
            return self._storage(value)
        if isinstance(value, LoweredCall):
            flops = f"lambda: {self._text(value.flops)}"
            return f"{self._constant(LoweredCall)}({self._constant(value.operators)}, {flops})"
        if isinstance(value, Value):
            return self._value(value)
        if is_dataclass(value):
            return self._record(value)
        raise UnrecordableError(f"a {kind.__name__} among the arguments of a step")

    def _arguments(self, args: Sequence[Any], named: Mapping[str, Any]) -> str:
        texts = [self._text(argument) for argument in args]
        return ", ".join([*texts, *(f"{name}={self._text(argument)}" for name, argument in named.items())])

    def _items(self, items: Sequence[Any]) -> str:
        texts = [self._text(item) for item in items]
        if isinstance(items, list):
            return f"[{', '.join(texts)}]"
        text = f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
        return f"{self._constant(type(items))}{text}" if hasattr(items, "_fields") else text

    def _record(self, value: Any) -> str:
        """An instance of a dataclass: itself, if nothing in it depends on sizes or on storages of the plan."""
        parts = [(field.name, getattr(value, field.name)) for field in fields(value) if field.init]
        if not any(self._varies(part) for _, part in parts):
            return self._constant(value)
        made = f"{self._constant(type(value))}({', '.join(self._text(part) for _, part in parts)})"
        return self._variable(value, made)

    def _varies(self, value: Any) -> bool:
        if isinstance(value, Expression):
            return True
        if isinstance(value, Storage):
            return value.kind is not StorageKind.CONSTANT or value in self._open
        if isinstance(value, Value):
            return value.elements is None and any(isinstance(size, Expression) for size in value.sizes)
        if isinstance(value, (list, tuple)):
            return any(map(self._varies, value))
        if is_dataclass(value) and not isinstance(value, type):
            return any(self._varies(getattr(value, field.name)) for field in fields(value))
        return False

    def _storage(self, storage: Storage) -> str:
        if storage in self._open:
            return self._open[storage]
        if storage.kind is StorageKind.CONSTANT:
            return self._constant(storage)
        if storage is self._flag:
            return "plan.stream.raised_by().storage"
        texts = [*map(self._text, (storage.nbytes, storage.kind, None))]
        texts += [self._labels.get(storage.name) or self._constant(storage.name), self._text(storage.elements)]
        return self._variable(storage, f"{self._constant(Storage)}({', '.join(texts)})")

    def _value(self, value: Value) -> str:
        """A tensor of the graph, of which a step sees dtype and sizes, or elements."""
        if not self._varies(value):
            return self._constant(value)
        made = self._constant(Value.of_tensor)
        return self._variable(value, f"{made}({self._text(value.dtype)}, {self._text(value.sizes)})")

    def _number(self, expression: Expression) -> str:
        name = self._names.get(expression.key)
        if name is None:
            name = self._names[expression.key] = f"n{len(self.expressions)}"
            self.expressions.append(expression)
        return name

    def _variable(self, value: Any, text: str) -> str:
        name = self._made[id(value)] = f"v{len(self._made)}"
        self._kept.append(value)
        self._lines.append(f"{name} = {text}")
        return name

    def _constant(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"c{len(self._constants)}"
            self._constants[name] = value
        return name
