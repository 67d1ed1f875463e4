"""The files of serialised TorchScript source: read within bounds, found by qualified name, and the types they name.

``__torch__.torch.nn.modules.conv.Conv2d`` is the definition ``Conv2d`` in the record
``code/__torch__/torch/nn/modules/conv.py``. The text is Python's syntax; it is parsed, never run.
Source of the format: ``torch/csrc/jit/serialization/python_print.cpp`` and ``import_source.cpp`` of PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from mobopt.errors import BundleError
from mobopt.ir.types import (
    ANY,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    GENERATOR,
    INT,
    NONE,
    SCALAR,
    STR,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    SimpleType,
    TupleType,
    Type,
)

MAX_SOURCE = 32 * 2**20
"""Characters of source that one model may have."""

MAX_TYPE_SIZE = 2000
"""Types that one type may be made of, with repetitions: an item that is a tuple of itself twice doubles it."""

CPP_CLASSES = "__torch__.torch.classes."
"""Prefix of classes that are defined in C++ (packed contexts), so in no file."""

_SIMPLE_TYPES = {
    "Tensor": TENSOR,
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "complex": COMPLEX,
    "str": STR,
    "number": SCALAR,
    "Device": DEVICE,
    "NoneType": NONE,
    "Any": ANY,
    "Generator": GENERATOR,
    "ScalarType": INT,
    "Layout": INT,
    "MemoryFormat": INT,
}


@dataclass(frozen=True)
class SourceFile:
    """One record under ``code/`` and its top-level definitions."""

    path: str
    definitions: dict[str, ast.ClassDef | ast.FunctionDef]

    def error(self, node: ast.AST, message: str) -> BundleError:
        """A refusal of what stands at a node."""
        return BundleError(f"code/{self.path}:{getattr(node, 'lineno', 1)}: {message}")


@dataclass(frozen=True)
class ClassDefinition:
    """A class of the source: a module, a named tuple or another one."""

    name: str
    """Qualified name."""
    file: SourceFile
    base: str
    """``Module``, ``NamedTuple``, ``Interface``, ``Enum``, or empty."""
    annotations: dict[str, ast.expr] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    lists: dict[str, frozenset[str]] = field(default_factory=dict)
    """``__parameters__``, ``__buffers__`` and the like."""


class SourceLibrary:
    """All source of a model, read when it is first asked for.

    Args:
        load: text of a record under ``code/`` by its path there, or None.
    """

    def __init__(self, load: Callable[[str], str | None]) -> None:
        self._load = load
        self._files: dict[str, SourceFile | None] = {}
        self._classes: dict[str, ClassDefinition] = {}
        self._tuples: dict[str, TupleType | None] = {}
        self._types: dict[ast.expr, Type] = {}
        self._characters = 0

    def find(self, qualified_name: str) -> tuple[SourceFile, ast.ClassDef | ast.FunctionDef] | None:
        """The definition of this name and the file that has it; None if there is none."""
        module, _, name = qualified_name.rpartition(".")
        file = self._file(module.replace(".", "/") + ".py")
        if file is None or name not in file.definitions:
            return None
        return file, file.definitions[name]

    def class_of(self, qualified_name: str) -> ClassDefinition:
        """A class by its qualified name.

        Raises:
            BundleError: the source does not define it.
        """
        if qualified_name not in self._classes:
            found = self.find(qualified_name)
            if found is None or not isinstance(found[1], ast.ClassDef):
                raise BundleError(
                    f"the file has no source for the class {qualified_name}; it is damaged, or was written without code"
                )
            self._classes[qualified_name] = _read_class(qualified_name, found[0], found[1])
        return self._classes[qualified_name]

    def type_of(self, node: ast.expr, file: SourceFile) -> Type:
        """The type that an annotation means; named tuples get their fields.

        Raises:
            BundleError: it is no type that a Program can hold.
        """
        if node not in self._types:
            self._types[node] = self._read_type(node, file)
        return self._types[node]

    def _read_type(self, node: ast.expr, file: SourceFile) -> Type:
        if isinstance(node, ast.Constant) and node.value is None:
            return NONE
        if isinstance(node, ast.Name) and node.id in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[node.id]
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            result = _generic(node.value.id, tuple(self.type_of(item, file) for item in items))
        else:
            result = self._named(node, file)
        if result is None:
            raise file.error(node, f"{shown(node)} is no type that mobopt reads")
        return result

    def _named(self, node: ast.expr, file: SourceFile) -> Type | None:
        name = dotted_name(node)
        if name is None or not name.startswith("__torch__."):
            return None
        if name.startswith(CPP_CLASSES):
            return ClassType(name)
        found = self.find(name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None
        definition = self.class_of(name)
        return self._named_tuple(definition, node, file) if definition.base == "NamedTuple" else ClassType(name)

    def _named_tuple(self, definition: ClassDefinition, node: ast.expr, file: SourceFile) -> TupleType:
        name = definition.name
        if name not in self._tuples:
            self._tuples[name] = None
            elements = tuple(self.type_of(item, definition.file) for item in definition.annotations.values())
            result = TupleType(elements, name, tuple(definition.annotations))
            if type_size(result) > MAX_TYPE_SIZE:
                raise file.error(node, f"the named tuple {name} has more than {MAX_TYPE_SIZE} parts, mobopt's limit")
            self._tuples[name] = result
        known = self._tuples[name]
        if known is None:
            raise file.error(node, f"the named tuple {name} contains itself")
        return known

    def _file(self, path: str) -> SourceFile | None:
        if path not in self._files:
            text = self._load(path)
            self._files[path] = None if text is None else self._parse(path, text)
        return self._files[path]

    def _parse(self, path: str, text: str) -> SourceFile:
        self._characters += len(text)
        if self._characters > MAX_SOURCE:
            raise BundleError(f"code/{path}: the model's source is larger than {MAX_SOURCE} characters, mobopt's limit")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            raise BundleError(f"code/{path}:{line}: this is not TorchScript source ({error})") from None
        except (RecursionError, MemoryError):
            raise BundleError(f"code/{path}: the source is nested too deeply") from None
        file = SourceFile(path, {})
        for node in tree.body:
            _add_definition(file, node)
        return file


def type_size(kind: Type) -> int:
    """How many types a type is made of, with repetitions, counted up to the limit; 0 for a simple one."""
    if isinstance(kind, (SimpleType, ClassType)):
        return 0
    size, pending = 0, [kind]
    while pending and size <= MAX_TYPE_SIZE:
        size += 1
        pending += _parts(pending.pop())
    return size


def _parts(kind: Type) -> tuple[Type, ...]:
    match kind:
        case ListType() | OptionalType():
            return (kind.element,)
        case DictType():
            return (kind.key, kind.value)
        case TupleType():
            return kind.elements
    return ()


def dotted_name(node: ast.expr) -> str | None:
    """``a.b.c`` of an expression that is one, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def shown(node: ast.AST) -> str:
    """A node's source for a message, shortened."""
    text = ast.unparse(node).split("\n", 1)[0]
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _generic(name: str, items: tuple[Type, ...]) -> Type | None:
    """A type with parameters; None if there is no such type."""
    if name == "Tuple":
        return TupleType(items)
    if name == "Dict" and len(items) == 2:
        return DictType(*items)
    if name in ("List", "Optional", "Final") and len(items) == 1:
        return {"List": ListType(items[0]), "Optional": OptionalType(items[0])}.get(name, items[0])
    if name == "Union":
        members = tuple(item for item in items if item != NONE)
        kind = members[0] if len(members) == 1 else SCALAR if set(members) <= {INT, FLOAT, COMPLEX} else None
        return OptionalType(kind) if kind is not None and NONE in items else kind
    return None


def _add_definition(file: SourceFile, node: ast.stmt) -> None:
    """Enter one top-level statement; old files also have imports and a version number, which say nothing more."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        if node.name in file.definitions:
            raise file.error(node, f"{node.name!r} is defined twice")
        file.definitions[node.name] = node
    elif not isinstance(node, (ast.Import, ast.ImportFrom)) and not _assigns(node, "op_version_set"):
        raise file.error(node, f"{shown(node)} is neither a class nor a function")


def _assigns(node: ast.stmt, name: str) -> bool:
    return (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
    )


def _read_class(name: str, file: SourceFile, node: ast.ClassDef) -> ClassDefinition:
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    definition = ClassDefinition(name, file, bases[0] if bases else "")
    for item in node.body:
        _read_member(definition, item)
    return definition


def _read_member(definition: ClassDefinition, node: ast.stmt) -> None:
    """Enter one statement of a class body."""
    match node:
        case ast.Pass():
            pass
        case ast.FunctionDef():
            definition.methods[node.name] = node
        case ast.AnnAssign(target=ast.Name(id=name), value=None):
            definition.annotations[name] = node.annotation
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            table = definition.annotations if definition.base == "NamedTuple" else definition.constants
            table[name] = node.annotation if definition.base == "NamedTuple" else value
        case ast.Assign(targets=[ast.Name(id="__annotations__")]):
            pass
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id="__annotations__"), slice=ast.Constant(value=str(name)))]
        ):
            definition.annotations[name] = node.value
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=items)):
            definition.lists[name] = frozenset(str(item.value) for item in items if isinstance(item, ast.Constant))
        case _:
            raise definition.file.error(node, f"{shown(node)} has no place in a class")
