"""Swift for iOS: conveniences over the Objective-C class, and a test that compares results with the expected ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from mobopt.tools.app_kit.description import Description, Example, Method, children
from mobopt.tools.app_kit.forms import Form, Mapping, Maybe, Nothing, Plain, Record
from mobopt.tools.app_kit.names import comment, string_literal

_SPECIAL = {"inf": "Double.infinity", "-inf": "-Double.infinity", "nan": "Double.nan"}
_VALUES = {"int": "int64Value", "float": "doubleValue", "bool": "boolValue"}


def swift_source(kit: Description) -> str:
    """The file ``<Class>.swift``."""
    path = PurePath(kit.file)
    text = _SOURCE.replace("KIT", kit.class_name).replace("$STEM", string_literal(path.stem, "swift"))
    text = text.replace("$EXTENSION", string_literal(path.suffix.removeprefix("."), "swift"))
    return text.replace("$FILE", comment(kit.file))


def swift_test(kit: Description) -> str:
    """The file ``<Class>Tests.swift``."""
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. The files of test/ are resources of the "
        "test, beside test.json.",
        "import Foundation",
        "import XCTest",
        "",
        f"final class {kit.class_name}Tests: XCTestCase {{",
        f"    private let test = {kit.class_name}TestData(bundle: Bundle(for: {kit.class_name}Tests.self))",
    ]
    for method, example in kit.tests:
        lines += ["", *_test(kit, method, example)]
    lines += ["}", "", *_TEST_DATA.replace("KIT", kit.class_name).splitlines()]
    return "\n".join(lines) + "\n"


def _test(kit: Description, method: Method, example: Example) -> Iterator[str]:
    name = method.identifier[:1].upper() + method.identifier[1:]
    yield f"    func test{name}() throws {{"
    yield f"        let model = try {kit.class_name}(bundle: test.bundle)"
    arguments = [
        f"{argument.identifier}: "
        + _literal(kit, f"{method.identifier}.input.{argument.identifier}", argument.form, value)
        for argument, value in zip(method.arguments, example.arguments, strict=True)
    ]
    call = f"try model.{method.identifier}({', '.join(arguments)})"
    if len(arguments) > 1:
        inner = ",\n".join(f"            {argument}" for argument in arguments)
        call = f"try model.{method.identifier}(\n{inner}\n        )"
    if isinstance(method.form, Nothing):
        yield f"        {call}"
    else:
        yield f"        let result = {call}"
    access, form = "result", method.form
    if isinstance(form, Maybe):
        yield f"        XCTAssertEqual(result.count, {0 if example.result is None else 1})"
        access, form = "result[0]", form.element
    if example.result is not None:
        for line in _checks(f"{method.identifier}.output", access, form, example.result, example.tolerance):
            yield f"        {line}"
    yield "    }"


def _literal(kit: Description, name: str, form: Form, value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(form, Maybe):
        return _literal(kit, name, form.element, value)
    if isinstance(form, Plain):
        return (
            f"try test.tensor({string_literal(name, 'swift')})" if form.kind == "tensor" else _number(form.kind, value)
        )
    parts = [_literal(kit, part, inner, item) for part, inner, item in children(name, form, value)]
    parts = ["NSNull()" if part == "nil" else part for part in parts]
    if isinstance(form, Record):
        sets = "; ".join(
            f"tuple.{field} = {part}" for (field, _), part in zip(form.fields, parts, strict=True) if part != "NSNull()"
        )
        return f"try {{ let tuple = {kit.class_name}{form.name}(); {sets}; return tuple }}()"
    if isinstance(form, Mapping):
        pairs = [f"{_number(form.key, key)}: {part}" for key, part in zip(value, parts, strict=True)]
        return f"[{', '.join(pairs) or ':'}]"
    return f"[{', '.join(parts)}]"


def _number(kind: str, value: Any) -> str:
    if kind == "str":
        return string_literal(value, "swift")
    if kind == "bool":
        return f"NSNumber(value: {'true' if value else 'false'})"
    if kind == "int":
        return f"NSNumber(value: Int64({int(value)}))"
    return f"NSNumber(value: {_SPECIAL.get(repr(float(value)), repr(float(value)))})"


def _checks(name: str, access: str, form: Form, value: Any, tolerance: float) -> Iterator[str]:
    if isinstance(form, Maybe):
        if value is None:
            yield f"XCTAssertNil({access})"
            return
        access, form = f"XCTUnwrap({access})", form.element
        access = f"(try {access})"
    if isinstance(form, Plain):
        if form.kind == "tensor":
            yield f"try test.assertClose({string_literal(name, 'swift')}, {access}, tolerance: {tolerance!r})"
        elif form.kind == "str":
            yield f"XCTAssertEqual({access}, {string_literal(value, 'swift')})"
        elif form.kind == "float":
            number = _SPECIAL.get(repr(float(value)), repr(float(value)))
            yield f"XCTAssertEqual({access}.doubleValue, {number}, accuracy: {abs(value) * tolerance!r})"
        else:
            expected = ("true" if value else "false") if form.kind == "bool" else int(value)
            yield f"XCTAssertEqual({access}.{_VALUES[form.kind]}, {expected})"
        return
    if not isinstance(form, Record):
        yield f"XCTAssertEqual({access}.count, {len(value or ())})"
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value or ())))
    for key, (part, inner, item) in zip(keys, children(name, form, value), strict=True):
        if isinstance(form, Record):
            step = f"{access}.{part.rpartition('.')[2]}"
        elif isinstance(form, Mapping):
            step = f"(try XCTUnwrap({access}[{_number(form.key, key)}]))"
        else:
            step = f"{access}[{key}]"
        yield from _checks(part, step, inner, item, tolerance)


_SOURCE = """\
// Made by mobopt app-kit for $FILE. It is yours: change it as you like.
// KIT.h must be imported by the bridging header of the app.
import Foundation

extension KIT {
    /// Loads the model from the resources of the app.
    convenience init(bundle: Bundle = .main) throws {
        guard let url = bundle.url(forResource: $STEM, withExtension: $EXTENSION) else {
            throw CocoaError(.fileNoSuchFile)
        }
        try self.init(path: url.path)
    }
}

extension KITTensor {
    /// A tensor of float32; values are in row-major order.
    convenience init(_ values: [Float], shape: [Int]) {
        self.init(data: values.withUnsafeBytes { Data($0) }, shape: shape as [NSNumber], dtype: .float32)
    }

    /// A tensor of int64; values are in row-major order.
    convenience init(_ values: [Int64], shape: [Int]) {
        self.init(data: values.withUnsafeBytes { Data($0) }, shape: shape as [NSNumber], dtype: .int64)
    }

    /// The elements as numbers of a type, which must be that of the dtype: `tensor.elements(of: Float.self)`.
    func elements<Element>(of type: Element.Type) -> [Element] {
        data.withUnsafeBytes { bytes in
            (0 ..< bytes.count / MemoryLayout<Element>.size).map {
                bytes.loadUnaligned(fromByteOffset: $0 * MemoryLayout<Element>.size, as: type)
            }
        }
    }
}
"""

_TEST_DATA = """\
/// The tensors that test.json describes: raw, little-endian, row-major.
private struct KITTestData {
    let bundle: Bundle

    func tensor(_ name: String) throws -> KITTensor {
        let description = try XCTUnwrap(try tensors()[name])
        let file = try XCTUnwrap(description["file"] as? String)
        let shape = try XCTUnwrap(description["sizes"] as? [NSNumber])
        let dtypes: [String: KITDType] = [
            "float32": .float32, "float64": .float64, "float16": .float16, "int64": .int64, "int32": .int32,
            "int16": .int16, "int8": .int8, "uint8": .uInt8, "bool": .bool,
        ]
        let dtype = try XCTUnwrap(dtypes[try XCTUnwrap(description["dtype"] as? String)])
        return KITTensor(data: try read(file), shape: shape, dtype: dtype)
    }

    /// Compares with the expected tensor: floats within tolerance * its largest magnitude, integers exactly.
    func assertClose(_ name: String, _ actual: KITTensor, tolerance: Double) throws {
        let expected = try tensor(name)
        XCTAssertEqual(expected.dtype, actual.dtype, "\\(name): dtype")
        XCTAssertEqual(expected.shape, actual.shape, "\\(name): sizes")
        let isExact: Bool
        switch expected.dtype {
        case .float32, .float64, .float16: isExact = false
        default: isExact = true
        }
        let wanted = values(expected)
        let found = values(actual)
        guard wanted.count == found.count else { return }
        let scale = wanted.filter(\\.isFinite).map(abs).max() ?? 0
        let allowed = isExact ? 0 : tolerance * scale
        for (index, (want, have)) in zip(wanted, found).enumerated() {
            let isSame = want == have || (want.isNaN && have.isNaN)
            XCTAssert(
                isSame || abs(want - have) <= allowed,
                "\\(name): element \\(index) is \\(have), and \\(want) is expected, within \\(allowed)"
            )
        }
    }

    private func values(_ tensor: KITTensor) -> [Double] {
        switch tensor.dtype {
        case .float32: return tensor.elements(of: Float.self).map(Double.init)
        case .float64: return tensor.elements(of: Double.self)
        case .float16: return tensor.elements(of: UInt16.self).map(half)
        case .int64: return tensor.elements(of: Int64.self).map(Double.init)
        case .int32: return tensor.elements(of: Int32.self).map(Double.init)
        case .int16: return tensor.elements(of: Int16.self).map(Double.init)
        case .int8: return tensor.elements(of: Int8.self).map(Double.init)
        default: return tensor.elements(of: UInt8.self).map(Double.init)
        }
    }

    /// The value of a half-precision number, by its bits; Float16 is not on every platform.
    private func half(_ bits: UInt16) -> Double {
        let sign: Double = bits >> 15 == 0 ? 1 : -1
        let exponent = Int(bits >> 10 & 0x1f)
        let fraction = Double(bits & 0x3ff)
        if exponent == 0x1f { return fraction == 0 ? sign * .infinity : .nan }
        if exponent == 0 { return sign * scalbn(fraction, -24) }
        return sign * scalbn(1024 + fraction, exponent - 25)
    }

    private func tensors() throws -> [String: [String: Any]] {
        let object = try JSONSerialization.jsonObject(with: try read("test.json")) as? [String: Any]
        return try XCTUnwrap(object?["tensors"] as? [String: [String: Any]])
    }

    private func read(_ name: String) throws -> Data {
        try Data(contentsOf: try XCTUnwrap(bundle.url(forResource: name, withExtension: nil)))
    }
}
"""
