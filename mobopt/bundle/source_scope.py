"""What names stand for while source is translated: values, and the things that leave no value in a graph."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from mobopt.bundle.source_files import ClassDefinition, SourceFile
from mobopt.ir import Value
from mobopt.ir.types import Type


@dataclass(frozen=True, eq=False)
class ObjectReference:
    """A module, or another object that is never changed, by its dotted path from the root."""

    path: str
    definition: ClassDefinition
    state: Any
    """The unpickled object."""


@dataclass(frozen=True)
class FunctionReference:
    """A function at the top level of a file, or a method of an object."""

    file: SourceFile
    node: ast.FunctionDef
    receiver: ObjectReference | None = None

    @property
    def name(self) -> str:
        """Name without its module."""
        return self.node.name


@dataclass(frozen=True)
class TupleReference:
    """A named tuple's class, to be called."""

    type: Type


@dataclass(frozen=True)
class GradientMode:
    """A context manager such as ``torch.no_grad``, which says nothing about a model that only infers."""


@dataclass(frozen=True)
class Results:
    """Several results of one operator, or the items of a tuple display, before anything is made of them."""

    values: tuple[Value, ...]


Binding = Value | ObjectReference | FunctionReference | TupleReference | GradientMode | Results


class Scope:
    """Names of one block; names that it lacks are those of the block around it."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.names: dict[str, Binding] = {}
        """What this block itself has assigned."""
        self._types: dict[str, Type] = {}

    def get(self, name: str) -> Binding | None:
        """What a name stands for; None if it is unknown."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def assign(self, name: str, binding: Binding, type: Type | None = None) -> None:
        """Let a name stand for something; ``type`` is the variable's, where that may be wider than the value's."""
        self.names[name] = binding
        if type is not None:
            self._types[name] = type

    def type(self, name: str) -> Type | None:
        """The type of a variable that holds a value; None if it holds none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                binding = scope.names[name]
                return scope._types.get(name, binding.type) if isinstance(binding, Value) else None
            scope = scope.parent
        return None
