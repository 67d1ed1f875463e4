"""C++ for the Android NDK and for iOS: a class with a function for each method, on LibTorch's mobile API.

IValues of every dtype pass here, so what Java can't carry is callable from C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from mobopt.ir.nests import leaves_of
from mobopt.tools.app_kit.description import Argument, Description, Method, tried_texts
from mobopt.tools.app_kit.forms import Form, Items, Mapping, Maybe, Nothing, Opaque, Plain, Record
from mobopt.tools.app_kit.names import comment, snake_case, string_literal

_WIDTH = 100
_TYPES = {"tensor": "at::Tensor", "int": "int64_t", "float": "double", "bool": "bool", "str": "std::string"}
_GETTERS = {"tensor": "toTensor", "int": "toInt", "float": "toDouble", "bool": "toBool", "str": "toStringRef"}
_KEYS = {"str": ("std::string", "c10::StringType"), "int": ("int64_t", "c10::IntType")}


def namespace(kit: Description) -> str:
    """The namespace of a kit's C++ code."""
    return f"{snake_case(kit.class_name)}_kit"


def header_name(kit: Description) -> str:
    """The name of the C++ header."""
    return f"{snake_case(kit.class_name)}_model.h"


def cpp_header(kit: Description) -> str:
    """The file ``<class>_model.h``."""
    module = "mobile/module.h" if kit.is_lite else "api/module.h"
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. It is yours: change it as you like. C++17.",
        "#pragma once",
        "",
        "#include <ATen/ATen.h>",
        f"#include <torch/csrc/jit/{module}>",
        "",
        "#include <cstdint>",
        "#include <map>",
        "#include <optional>",
        "#include <string>",
        "#include <vector>",
        "",
        f"namespace {namespace(kit)} {{",
        "",
    ]
    called = [method for method in kit.methods if not method.reason_not_carried]
    for method in called:
        for record in method.records:
            lines += [f"// A tuple of the method {comment(method.name)}.", f"struct {record.name} {{"]
            lines += [f"  {cpp_type(form)} {name};" for name, form in record.fields]
            lines += ["};", ""]
    lines += [
        f"// The model {comment(kit.file)}. One object is for one thread at a time.",
        "class Model {",
        " public:",
        "  // Throws c10::Error if the file can't be read, or needs an operator that the library lacks.",
        "  explicit Model(const std::string& path);",
        "",
    ]
    for method in kit.methods:
        if method in called:
            lines += _declaration(method)
        else:
            lines.append(f"  // The method {comment(method.name)} is not here: {comment(method.reason_not_carried)}.")
        lines.append("")
    kind = "torch::jit::mobile::Module" if kit.is_lite else "torch::jit::Module"
    lines += [" private:", f"  {kind} module_;", "};", "", f"}}  // namespace {namespace(kit)}"]
    return "\n".join(lines) + "\n"


def _declaration(method: Method) -> Iterator[str]:
    yield f"  // The method {comment(method.name)}."
    for argument, tried in zip(method.arguments, tried_texts(method), strict=True):
        yield f"  // {argument.identifier}: {comment(argument.type)}{tried}"
    yield f"  // Returns {comment(method.type)}."
    yield from wrapped(f"  {cpp_type(method.form)} {method.identifier}(", _parameters(method), ");")


def _parameters(method: Method) -> list[str]:
    return [_parameter(argument) for argument in method.arguments]


def wrapped(head: str, items: list[str], tail: str) -> Iterator[str]:
    """A list in brackets, on one line if that is short, else with a line for each item."""
    line = f"{head}{', '.join(items)}{tail}"
    if len(line) <= _WIDTH or not items:
        yield line
        return
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    yield head
    yield from (f"{indent}{item}," for item in items[:-1])
    yield f"{indent}{items[-1]}{tail}"


def _parameter(argument: Argument) -> str:
    kind = cpp_type(argument.form)
    by_value = isinstance(argument.form, Plain) and argument.form.kind in ("int", "float", "bool")
    return f"{kind} {argument.identifier}" if by_value else f"const {kind}& {argument.identifier}"


def cpp_source(kit: Description) -> str:
    """The file ``<class>_model.cpp``."""
    include, load = ("mobile/import.h", "_load_for_mobile") if kit.is_lite else ("serialization/import.h", "load")
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. It is yours: change it as you like. C++17.",
        f'#include "{header_name(kit)}"',
        "",
        "#include <c10/core/InferenceMode.h>",
        f"#include <torch/csrc/jit/{include}>",
        "",
        "#include <utility>",
        "",
        f"namespace {namespace(kit)} {{",
        "",
        f"Model::Model(const std::string& path) : module_(torch::jit::{load}(path)) {{}}",
    ]
    for method in kit.methods:
        if not method.reason_not_carried:
            lines += ["", *_definition(kit, method)]
    lines += ["", f"}}  // namespace {namespace(kit)}"]
    return "\n".join(lines) + "\n"


def _definition(kit: Description, method: Method) -> Iterator[str]:
    yield from wrapped(f"{cpp_type(method.form)} Model::{method.identifier}(", _parameters(method), ") {")
    yield "  c10::InferenceMode guard;"
    taken = [argument.identifier for argument in method.arguments]
    writer = _Writer(kit.needs.backend if kit.moves_tensors else "", taken)
    values = [None] * len(method.arguments) if method.example is None else method.example.arguments
    names = []
    for argument, value in zip(method.arguments, values, strict=True):
        writer.moves = writer.backend != "" and _is_moved(value)
        names.append(writer.pack(argument.form, argument.identifier))
    yield from writer.lines
    yield from wrapped("  std::vector<c10::IValue> inputs{", names, "};")
    call = "forward(" if method.name == "forward" else f"get_method({string_literal(method.name, 'cpp')})("
    if isinstance(method.form, Nothing):
        yield f"  module_.{call}std::move(inputs));"
    else:
        yield f"  const c10::IValue result = module_.{call}std::move(inputs));"
        reader = _Writer(writer.backend, [*taken, *writer.names])
        value = reader.unpack(method.form, "result")
        yield from reader.lines
        yield f"  return {value.removeprefix('std::move(').removesuffix(')') if _is_local(method.form) else value};"
    yield "}"


def _is_local(form: Form) -> bool:
    """Whether a form is taken apart into a variable, which a return moves by itself."""
    return isinstance(form, (Items, Mapping, Maybe))


def _is_moved(value: object) -> bool:
    """Whether an argument lies on the GPU: integers stay on the CPU, where its kernels look for them."""
    tensors = list(leaves_of(value, torch.Tensor))
    return not tensors or all(tensor.is_floating_point() for tensor in tensors)


class _Writer:
    """Writes statements that put IValues together and take them apart; returns the expression of the whole."""

    def __init__(self, backend: str, taken: Iterable[str]) -> None:
        self.backend = backend
        """``vulkan`` or ``metal`` if tensors are moved by the app."""
        self.moves = False
        self.lines: list[str] = []
        self._indent = "  "
        self.names = set(taken)

    def _name(self, wish: str) -> str:
        number, name = 2, wish
        while name in self.names:
            name, number = f"{wish}{number}", number + 1
        self.names.add(name)
        return name

    def _write(self, line: str) -> None:
        self.lines.append(f"{self._indent}{line}")

    def pack(self, form: Form, value: str) -> str:
        """An expression of the type IValue."""
        if isinstance(form, Plain):
            moved = f"{_receiver(value)}.{self.backend}()" if form.kind == "tensor" and self.moves else value
            return f"c10::IValue({moved})"
        if isinstance(form, Items):
            name = self._name("list")
            self._write(f"c10::impl::GenericList {name}({_element_type(form.element)});")
            item = self._name("item")
            self._branch(
                f"for (const auto& {item} : {value})", lambda: f"{name}.push_back({self.pack(form.element, item)});"
            )
            return f"c10::IValue({name})"
        if isinstance(form, Mapping):
            name = self._name("dict")
            self._write(f"c10::impl::GenericDict {name}({_KEYS[form.key][1]}::get(), {_element_type(form.value)});")
            entry = self._name("entry")
            self._branch(
                f"for (const auto& {entry} : {value})",
                lambda: f"{name}.insert(c10::IValue({entry}.first), {self.pack(form.value, f'{entry}.second')});",
            )
            return f"c10::IValue({name})"
        if isinstance(form, Maybe):
            name = self._name("optional")
            self._write(f"c10::IValue {name};")
            self._branch(f"if ({value})", lambda: f"{name} = {self.pack(form.element, _inside(form, value))};")
            return name
        if isinstance(form, Record):
            parts = ", ".join(self.pack(field, f"{value}.{name}") for name, field in form.fields)
            return f"c10::ivalue::Tuple::create(std::vector<c10::IValue>{{{parts}}})"
        return "c10::IValue()"

    def _branch(self, head: str, body: Callable[[], str]) -> None:
        """Write a block; ``body`` writes its statements, and returns the last."""
        self._write(f"{head} {{")
        outer, self._indent = self._indent, f"{self._indent}  "
        self._write(body())
        self._indent = outer
        self._write("}")

    def unpack(self, form: Form, value: str) -> str:
        """An expression of the form's type in C++."""
        if isinstance(form, Plain):
            moved = ".cpu()" if form.kind == "tensor" and self.backend else ""
            return f"{value}.{_GETTERS[form.kind]}(){moved}"
        if isinstance(form, Items):
            name = self._name("list")
            self._write(f"{cpp_type(form)} {name};")
            items = self._name("items")
            self._write(f"const auto {items} = {value}.toList();")
            item = self._name("item")
            index = self._name("index")
            self._branch(
                f"for (size_t {index} = 0; {index} < {items}.size(); ++{index})",
                lambda: self._into(name, item, f"{items}.get({index})", form.element),
            )
            return f"std::move({name})"
        if isinstance(form, Mapping):
            name, entry = self._name("dict"), self._name("entry")
            self._write(f"{cpp_type(form)} {name};")
            key = "toStringRef" if form.key == "str" else "toInt"
            self._branch(
                f"for (const auto& {entry} : {value}.toGenericDict())",
                lambda: f"{name}.emplace({entry}.key().{key}(), {self.unpack(form.value, f'{entry}.value()')});",
            )
            return f"std::move({name})"
        if isinstance(form, Maybe):
            name = self._name("optional")
            self._write(f"{cpp_type(form)} {name};")
            self._branch(
                f"if (!{value}.isNone())",
                lambda: f"{name} = {self.unpack(form.element, value)};",
            )
            return f"std::move({name})"
        if isinstance(form, Record):
            elements = self._name("elements")
            self._write(f"const auto& {elements} = {value}.toTuple()->elements();")
            parts = ", ".join(
                self.unpack(field, f"{elements}[{number}]") for number, (_, field) in enumerate(form.fields)
            )
            return f"{form.name}{{{parts}}}"
        if isinstance(form, Opaque):
            raise ValueError(form.reason)
        return "{}"

    def _into(self, name: str, item: str, element: str, form: Form) -> str:
        self._write(f"const c10::IValue {item} = {element};")
        return f"{name}.push_back({self.unpack(form, item)});"


def _receiver(value: str) -> str:
    return f"({value})" if value.startswith("*") else value


def _inside(form: Maybe, value: str) -> str:
    """What an optional holds."""
    return f"(*{value})" if isinstance(form.element, (Record, Maybe)) else f"*{value}"


def _element_type(form: Form) -> str:
    """The type of a list's elements, as the IValue needs it."""
    if isinstance(form, Plain):
        names = {"tensor": "Tensor", "int": "Int", "float": "Float", "bool": "Bool", "str": "String"}
        return f"c10::{names[form.kind]}Type::get()"
    if isinstance(form, Items):
        return f"c10::ListType::create({_element_type(form.element)})"
    if isinstance(form, Mapping):
        return f"c10::DictType::create({_KEYS[form.key][1]}::get(), {_element_type(form.value)})"
    if isinstance(form, Maybe):
        return f"c10::OptionalType::create({_element_type(form.element)})"
    if isinstance(form, Record):
        return f"c10::TupleType::create({{{', '.join(_element_type(field) for _, field in form.fields)}}})"
    return "c10::NoneType::get()"


def cpp_type(form: Form) -> str:
    """How C++ spells a form."""
    if isinstance(form, Plain):
        return _TYPES[form.kind]
    if isinstance(form, Items):
        return f"std::vector<{cpp_type(form.element)}>"
    if isinstance(form, Mapping):
        return f"std::map<{_KEYS[form.key][0]}, {cpp_type(form.value)}>"
    if isinstance(form, Maybe):
        return f"std::optional<{cpp_type(form.element)}>"
    if isinstance(form, Record):
        return form.name
    return "void" if isinstance(form, Nothing) else "c10::IValue"
