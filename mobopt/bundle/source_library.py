"""The source records of an archive: classes, functions and types by qualified name, parsed when they are asked for."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mobopt.bundle.builder import check_size
from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.source_places import SourcePlaces
from mobopt.errors import BundleError, GraphError
from mobopt.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type, parse_type, plain_class_name

_FREE_SOURCE = 1 << 20
_MOST_COMPRESSION = 30
"""Source is deflated, and takes about a hundred times its size in memory once it is parsed: of a file, so many times
its stored bytes may be parsed, and the free bytes beside."""
_MAX_TYPE = 1 << 14
_BRACKETED = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\b__torch__(?:\.\w+)*\.<\w+>""")
"""A string, or a class's name that isn't plain."""


@dataclass(frozen=True)
class SourceFunction:
    """A function or method, and the record that it stands in."""

    definition: ast.FunctionDef
    record: str


@dataclass
class SourceClass:
    """A class: what it is, its attributes' types and its methods."""

    name: str
    base: str
    record: str
    attributes: dict[str, ast.expr] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    methods: dict[str, SourceFunction] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)
    """Of an enumeration: values by name."""

    @property
    def is_record(self) -> bool:
        """Whether its objects are values with named fields: neither modules nor members of an enumeration."""
        return self.base in ("NamedTuple", "object")


class SourceLibrary:
    """Looks names up in the ``code/`` records of an archive."""

    def __init__(self, archive: ModelFile) -> None:
        self._archive = archive
        self._records = {plain_class_name(name): name for name in archive.records if name.startswith("code/")}
        self._modules: dict[str, dict[str, ast.stmt]] = {}
        self._classes: dict[str, SourceClass] = {}
        self._places: dict[str, SourcePlaces] = {}
        self._resolving: set[str] = set()
        self._parsed = 0
        self._types: dict[ast.expr, Type] = {}
        self._named_tuples: dict[str, TupleType] = {}

    def defines(self, qualified_name: str) -> bool:
        """Whether the archive has source for a name."""
        return self._definition(qualified_name) is not None

    def find(self, qualified_name: str, record: str = "", line: int = 0) -> SourceClass | SourceFunction:
        """The class or function of this name.

        Raises:
            BundleError: the archive doesn't define it; the message names where it is used, if given.
        """
        qualified_name = plain_class_name(qualified_name)
        if qualified_name in self._classes:
            return self._classes[qualified_name]
        path, found = self._record_of(qualified_name), self._definition(qualified_name)
        if isinstance(found, ast.FunctionDef):
            return SourceFunction(found, path)
        if not isinstance(found, ast.ClassDef):
            where = f"{record}:{line} names" if record else "the model needs"
            raise BundleError(f"{where} {qualified_name}, which the file doesn't define; it is incomplete")
        self._classes[qualified_name] = _read_class(qualified_name, found, path)
        return self._classes[qualified_name]

    def _definition(self, qualified_name: str) -> ast.stmt | None:
        path = self._record_of(qualified_name)
        return self._module(path).get(qualified_name.rpartition(".")[2]) if path in self._archive else None

    def _record_of(self, qualified_name: str) -> str:
        """Where the archive keeps what a name of its source means."""
        path = f"code/{plain_class_name(qualified_name).rpartition('.')[0].replace('.', '/')}.py"
        return self._records.get(path, path)

    def place(self, record: str, node: ast.AST) -> str:
        """Where in the author's source a piece of a record comes from, as far as the archive tells."""
        if record not in self._places:
            self._places[record] = SourcePlaces(self._archive, record)
        return self._places[record].place(node)

    def find_class(self, qualified_name: str) -> SourceClass:
        """The class of this name.

        Raises:
            BundleError: there is none.
        """
        found = self.find(qualified_name)
        if not isinstance(found, SourceClass):
            raise BundleError(
                f"{found.record}: {qualified_name} is a function where a class belongs; the file is damaged"
            )
        return found

    def type(self, annotation: ast.expr, record: str) -> Type:
        """The type that an annotation means; named tuples get their fields.

        Raises:
            BundleError: it is not a type.
        """
        if annotation not in self._types:
            self._types[annotation] = self._parse_type(annotation, record)
        return self._types[annotation]

    def _parse_type(self, annotation: ast.expr, record: str) -> Type:
        text = ast.unparse(annotation)
        if len(text) > _MAX_TYPE:
            raise BundleError(f"{record}:{annotation.lineno}: a type has {len(text)} characters, more than any model's")
        try:
            return self._with_fields(parse_type(text))
        except GraphError as error:
            raise BundleError(f"{record}:{annotation.lineno}: {error}") from None

    def _with_fields(self, kind: Type) -> Type:
        if isinstance(kind, ListType):
            return ListType(self._with_fields(kind.element))
        if isinstance(kind, OptionalType):
            return OptionalType(self._with_fields(kind.element))
        if isinstance(kind, DictType):
            return DictType(self._with_fields(kind.key), self._with_fields(kind.value))
        if isinstance(kind, TupleType):
            return TupleType(tuple(self._with_fields(element) for element in kind.elements), kind.name, kind.fields)
        is_own_class = isinstance(kind, ClassType) and kind.name.startswith("__torch__.")
        if is_own_class and isinstance(kind, ClassType) and not kind.name.startswith("__torch__.torch.classes."):
            found = self.find(kind.name)
            if isinstance(found, SourceClass) and found.is_record:
                return self.named_tuple(found)
        return kind

    def named_tuple(self, found: SourceClass) -> TupleType:
        """The type of a named tuple's class, or of one whose objects become named tuples."""
        if found.name in self._named_tuples:
            return self._named_tuples[found.name]
        if found.name in self._resolving:
            raise BundleError(
                f"{found.record}: an object of the class {found.name} holds another, which is not read; hold tensors, "
                "numbers and lists in it"
            )
        self._resolving.add(found.name)
        elements = tuple(self.type(annotation, found.record) for annotation in found.attributes.values())
        self._resolving.discard(found.name)
        self._named_tuples[found.name] = TupleType(elements, found.name, tuple(found.attributes))
        check_size(self._named_tuples[found.name])
        return self._named_tuples[found.name]

    def _module(self, path: str) -> Mapping[str, ast.stmt]:
        if path not in self._modules:
            self._parsed += self._archive.find(path).size
            if self._parsed > _FREE_SOURCE + _MOST_COMPRESSION * self._archive.size:
                raise BundleError(
                    f"{path}: the source unpacks to more than any model's of this size; the file is hostile"
                )
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SyntaxWarning)
                    source = self._archive.read(path).decode()
                    tree = ast.parse(_BRACKETED.sub(lambda match: match[1] or plain_class_name(match[0]), source))
            except SyntaxError as error:
                raise BundleError(f"{path}:{error.lineno}: the source can't be parsed: {error.msg}") from None
            except (ValueError, MemoryError) as error:
                raise BundleError(f"{path}: the source can't be parsed: {error or 'it is nested too deeply'}") from None
            self._modules[path] = _definitions(tree, path)
        return self._modules[path]


def _definitions(tree: ast.Module, record: str) -> dict[str, ast.stmt]:
    """Classes and functions of a record by name."""
    found: dict[str, ast.stmt] = {}
    for item in tree.body:
        match item:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) if name not in found:
                found[name] = item
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                raise BundleError(f"{record}:{item.lineno}: {name} is defined twice; the file is damaged")
            case ast.Assign(targets=[ast.Name(id="op_version_set")]):
                pass  # releases before 1.2
            case _:
                raise BundleError(
                    f"{record}:{item.lineno}: {ast.unparse(item)[:80]!r} is neither a class nor a function, which is "
                    "all that a model's source holds"
                )
    return found


def _read_class(name: str, definition: ast.ClassDef, record: str) -> SourceClass:
    base = definition.bases[0] if definition.bases else None
    found = SourceClass(name, base.id if isinstance(base, ast.Name) else "object", record)
    for item in definition.body:
        match item:
            case ast.FunctionDef():
                found.methods[item.name] = SourceFunction(item, record)
            case ast.AnnAssign(target=ast.Name(id=attribute)):
                if item.value is not None:
                    found.constants[attribute] = item.value
                else:
                    found.attributes[attribute] = item.annotation
            case ast.Assign(targets=[ast.Name(id="__parameters__")]):
                found.parameters = _strings(item.value, record)
            case ast.Assign(targets=[ast.Name(id="__buffers__")]):
                found.buffers = _strings(item.value, record)
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id="__annotations__"), slice=ast.Constant(value=str(key)))]
            ):
                found.attributes[key] = item.value
            case ast.Assign(targets=[ast.Name(id="__forward_hooks__" | "__forward_pre_hooks__")]):
                if _strings(item.value, record):
                    raise BundleError(f"{record}:{item.lineno}: {name} has forward hooks, which mobopt does not read")
            case ast.Assign(targets=[ast.Name(id=member)], value=ast.Constant(value=int() | float() | str() as value)):
                found.members[member] = value
            case ast.Assign(targets=[ast.Name()]) | ast.Pass():
                pass
            case _:
                raise BundleError(
                    f"{record}:{item.lineno}: a class holds {ast.unparse(item)[:80]!r}, which mobopt does not read"
                )
    return found


def _strings(value: ast.expr, record: str) -> list[str]:
    items = value.elts if isinstance(value, ast.List) else [value]
    names = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if len(names) != len(items):
        raise BundleError(f"{record}:{value.lineno}: {ast.unparse(value)[:80]!r} is not a list of names")
    return names
