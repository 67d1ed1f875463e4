"""The module object of ``data.pkl`` as one flat table of attributes with dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mobopt.bundle.builder import value_type
from mobopt.bundle.result_types import join
from mobopt.bundle.source_library import SourceLibrary
from mobopt.bundle.stored_state import stored_state
from mobopt.bundle.unpickler import PickledEnum, PickledObject, Unpickled
from mobopt.errors import BundleError, GraphError
from mobopt.ir import Attribute
from mobopt.ir.types import ClassType, OptionalType, TupleType, Type

Member: TypeAlias = "str | Submodule | PickledEnum"


@dataclass(frozen=True, eq=False)
class Submodule:
    """A module by its dotted path from the root, which is empty for the root itself."""

    path: str
    class_name: str
    members: Mapping[str, Member]
    """What its attributes are: a dotted name in the table, a module, or a member of an enumeration."""


class ModuleTree:
    """All modules of a pickled model and their attributes.

    Attributes:
        root: the model itself.
        attributes: every attribute that is not a module, by dotted name, in the order of the pickle.
    """

    def __init__(self, unpickled: Unpickled, library: SourceLibrary) -> None:
        root = unpickled.value
        if not isinstance(root, PickledObject):
            raise BundleError(f"the model is a {type(root).__name__} where a module belongs; the file is damaged")
        self.attributes: dict[str, Attribute] = {}
        self._types = unpickled.types
        self._library = library
        self._seen: dict[int, Submodule] = {}
        self.root = self._module("", root)

    def _module(self, path: str, module: PickledObject) -> Submodule:
        if id(module) in self._seen:
            return self._seen[id(module)]
        state = module.state
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            state = stored_state(self._library.find_class(module.class_name), state)
        members: dict[str, Member] = {}
        for name, value in state.items():
            dotted = f"{path}.{name}" if path else name
            record = self._optional_record(module.class_name, name) if isinstance(value, PickledObject) else None
            if isinstance(value, PickledObject) and record is not None and isinstance(value.state, dict):
                members[name] = dotted
                self._add(dotted, tuple(value.state[field] for field in record.fields), record)
            elif isinstance(value, PickledObject):
                members[name] = self._module(dotted, value)
            elif isinstance(value, PickledEnum):
                members[name] = value
            else:
                members[name] = dotted
                self._add(dotted, value)
        self._seen[id(module)] = Submodule(path, module.class_name, members)
        return self._seen[id(module)]

    def _optional_record(self, class_name: str, name: str) -> TupleType | None:
        """The named tuple that an attribute holds, if methods may set it to None or to another object."""
        if not self._library.defines(class_name):  # a file without source, whose objects are all modules
            return None
        owner = self._library.find_class(class_name)
        annotation = owner.attributes.get(name)
        declared = None if annotation is None else self._library.type(annotation, owner.record)
        kind = declared.element if isinstance(declared, OptionalType) else None
        return kind if isinstance(kind, TupleType) and kind.name else None

    def _add(self, dotted: str, value: Any, kind: Type | None = None) -> None:
        if dotted in self.attributes:
            raise BundleError(f"the model holds two attributes named {dotted!r}; the file is damaged")
        try:
            kind = kind or value_type(value, self._types)
        except GraphError as error:
            raise BundleError(f"attribute {dotted!r}: {error}") from None
        self.attributes[dotted] = Attribute(kind, value)

    @property
    def root_type(self) -> ClassType:
        """The type of the model itself."""
        return ClassType(self.root.class_name)

    def all_modules(self) -> list[Submodule]:
        """Every module, each before what it holds is complete."""
        return list(self._seen.values())

    def slot(self, module: Submodule, index: int) -> Member:
        """The attribute of a module by its number, which is its place in the pickle.

        Raises:
            BundleError: there is none.
        """
        members = list(module.members.values())
        if index >= len(members):
            raise BundleError(
                f"attribute {index} of {module.path or 'the model'} is read, which has {len(members)}; "
                "the file is damaged"
            )
        return members[index]

    def widen(self, name: str, kind: Type) -> None:
        """Note that an attribute is also given values of another type."""
        attribute = self.attributes[name]
        attribute.type = join(attribute.type, kind)
