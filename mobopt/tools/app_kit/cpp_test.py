"""C++: a program that compares the results of a phone, or of LibTorch on a desktop, with the expected ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mobopt.tools.app_kit.cpp import cpp_type, header_name, namespace
from mobopt.tools.app_kit.description import Description, Example, Method, children, dtype_name
from mobopt.tools.app_kit.forms import Form, Mapping, Maybe, Plain, Record
from mobopt.tools.app_kit.names import comment, string_literal
from mobopt.tools.app_kit.test_data import bin_name

_SCALAR_TYPES = {
    "float32": "kFloat",
    "float64": "kDouble",
    "float16": "kHalf",
    "int64": "kLong",
    "int32": "kInt",
    "int16": "kShort",
    "int8": "kChar",
    "uint8": "kByte",
    "bool": "kBool",
}
_INFINITE = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}


def cpp_test(kit: Description) -> str:
    """The file ``<class>_test.cpp``, a program: ``test MODEL FOLDER``."""
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. Run it as: test path/of/{comment(kit.file)} path/of/test",
        f'#include "{header_name(kit)}"',
        "",
        *_HELPERS.splitlines(),
        "",
    ]
    for method, example in kit.tests:
        lines += [*_function(kit, method, example), ""]
    lines += [
        "int main(int argc, char** argv) {",
        "  if (argc != 3) {",
        '    std::cerr << "usage: " << argv[0] << " MODEL FOLDER\\n";',
        "    return 2;",
        "  }",
        "  folder = argv[2];",
        "  try {",
        *(f"    test_{method.identifier}(argv[1]);" for method, _ in kit.tests),
        "  } catch (const c10::Error& error) {",
        "    std::cerr << error.what_without_backtrace() << '\\n';",
        "    return 2;",
        "  }",
        "  return failures == 0 ? 0 : 1;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _function(kit: Description, method: Method, example: Example) -> Iterator[str]:
    yield f"static void test_{method.identifier}(const std::string& path) {{"
    yield f"  {namespace(kit)}::Model model(path);"
    arguments = []
    for argument, value in zip(method.arguments, example.arguments, strict=True):
        form = argument.form
        name = f"{method.identifier}.input.{argument.identifier}"
        yield f"  const {_qualified(kit, form)} {argument.identifier}Input = {_literal(kit, name, form, value)};"
        arguments.append(f"{argument.identifier}Input")
    call = f"model.{method.identifier}({', '.join(arguments)})"
    if cpp_type(method.form) == "void":
        yield f"  {call};"
    else:
        yield f"  const auto result = {call};"
        yield from (
            f"  {line}"
            for line in _checks(
                kit, f"{method.identifier}.output", "result", method.form, example.result, example.tolerance
            )
        )
    yield "}"


def _qualified(kit: Description, form: Form) -> str:
    """The type of a form, from outside of the namespace."""
    if isinstance(form, Record):
        return f"{namespace(kit)}::{form.name}"
    if isinstance(form, Maybe):
        return f"std::optional<{_qualified(kit, form.element)}>"
    if isinstance(form, Mapping):
        return f"std::map<{'std::string' if form.key == 'str' else 'int64_t'}, {_qualified(kit, form.value)}>"
    element = getattr(form, "element", None)
    return cpp_type(form) if element is None else f"std::vector<{_qualified(kit, element)}>"


def _literal(kit: Description, name: str, form: Form, value: Any) -> str:
    if value is None:
        return "std::nullopt" if isinstance(form, Maybe) else "{}"
    if isinstance(form, Maybe):
        return _literal(kit, name, form.element, value)
    if isinstance(form, Plain):
        return _tensor(name, value) if form.kind == "tensor" else _number(form.kind, value)
    parts = [_literal(kit, part, inner, item) for part, inner, item in children(name, form, value)]
    if isinstance(form, Mapping):
        keys = [_number(form.key, key) for key in value]
        parts = [f"{{{key}, {part}}}" for key, part in zip(keys, parts, strict=True)]
    return f"{_qualified(kit, form)}{{{', '.join(parts)}}}"


def _tensor(name: str, value: Any) -> str:
    sizes = ", ".join(map(str, value.shape))
    return f"tensor({string_literal(bin_name(name), 'cpp')}, at::{_SCALAR_TYPES[dtype_name(value)]}, {{{sizes}}})"


def _number(kind: str, value: Any) -> str:
    if kind == "str":
        return f"std::string({string_literal(value, 'cpp')})"
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return "INT64_MIN" if int(value) == -(1 << 63) else f"INT64_C({int(value)})"
    return _INFINITE.get(repr(float(value)), repr(float(value)))


def _checks(kit: Description, name: str, access: str, form: Form, value: Any, tolerance: float) -> Iterator[str]:
    label = string_literal(name, "cpp")
    if isinstance(form, Maybe):
        yield f"check({label}, {access}.has_value() == {'false' if value is None else 'true'});"
        if value is None:
            return
        access, form = f"{access}.value()", form.element
    if isinstance(form, Plain):
        if form.kind == "tensor":
            yield f"check_close({label}, {access}, {_tensor(name, value)}, {tolerance!r});"
        elif form.kind == "float":
            yield f"check({label}, is_close({access}, {_number('float', value)}, {tolerance!r}));"
        else:
            yield f"check({label}, {access} == {_number(form.kind, value)});"
        return
    if not isinstance(form, Record):
        yield f"check({label}, {access}.size() == {len(value or ())});"
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value or ())))
    for key, (part, inner, item) in zip(keys, children(name, form, value), strict=True):
        if isinstance(form, Record):
            step = f"{access}.{part.rpartition('.')[2]}"
        else:
            step = f"{access}.at({_number(form.key, key) if isinstance(form, Mapping) else key})"
        yield from _checks(kit, part, step, inner, item, tolerance)


_HELPERS = """\
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

static std::string folder;
static int failures = 0;

// A tensor from a raw file: little-endian, row-major.
[[maybe_unused]] static at::Tensor tensor(const std::string& name, at::ScalarType dtype, std::vector<int64_t> sizes) {
  std::ifstream file(folder + "/" + name, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  at::Tensor result = at::empty(sizes, dtype);
  if (!file || bytes.size() != result.nbytes()) {
    std::cerr << "can't read " << folder << "/" << name << "\\n";
    std::exit(2);
  }
  if (!bytes.empty()) {
    std::memcpy(result.data_ptr(), bytes.data(), bytes.size());
  }
  return result;
}

static void report(const std::string& name, bool is_good, const std::string& detail) {
  std::cout << (is_good ? "ok    " : "WRONG ") << name << detail << "\\n";
  failures += is_good ? 0 : 1;
}

[[maybe_unused]] static void check(const std::string& name, bool is_good) {
  report(name, is_good, "");
}

[[maybe_unused]] static bool is_close(double actual, double expected, double tolerance) {
  return actual == expected || (std::isnan(actual) && std::isnan(expected)) ||
      std::abs(actual - expected) <= tolerance * std::abs(expected);
}

// Floats agree within tolerance * the largest finite magnitude of the expected tensor, integers exactly.
[[maybe_unused]] static void check_close(
    const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes()) {
    report(name, false, ": it has another dtype or other sizes");
    return;
  }
  const at::Tensor found = actual.to(at::kDouble).contiguous();
  const at::Tensor wanted = expected.to(at::kDouble).contiguous();
  const double* a = found.data_ptr<double>();
  const double* b = wanted.data_ptr<double>();
  double scale = 0, difference = 0;
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    scale = std::isfinite(b[i]) ? std::max(scale, std::abs(b[i])) : scale;
  }
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      const double distance = std::abs(a[i] - b[i]);
      difference = std::isnan(distance) ? INFINITY : std::max(difference, distance);
    }
  }
  const double allowed = at::isFloatingType(expected.scalar_type()) ? tolerance * scale : 0;
  const std::string detail = ": off by " + std::to_string(difference) + ", allowed " + std::to_string(allowed);
  report(name, difference <= allowed, detail);
}"""
