"""Objective-C++ for iOS: a class that Swift sees, over the C++ class of the kit."""

from __future__ import annotations

from collections.abc import Iterator

from mobopt.tools.app_kit.cpp import cpp_type, header_name, namespace
from mobopt.tools.app_kit.description import Argument, Description, Method, tried_texts
from mobopt.tools.app_kit.forms import Form, Items, Mapping, Maybe, Nothing, Plain, Record, records_of
from mobopt.tools.app_kit.names import comment, pascal_case

_DTYPES = {
    "Float32": "kFloat",
    "Float64": "kDouble",
    "Float16": "kHalf",
    "Int64": "kLong",
    "Int32": "kInt",
    "Int16": "kShort",
    "Int8": "kChar",
    "UInt8": "kByte",
    "Bool": "kBool",
}
_NUMBERS = {"int": "longLongValue", "float": "doubleValue", "bool": "boolValue"}


def objc_header(kit: Description) -> str:
    """The file ``<Class>.h``."""
    name = kit.class_name
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. It is yours: change it as you like.",
        "#import <Foundation/Foundation.h>",
        "",
        "NS_ASSUME_NONNULL_BEGIN",
        "",
        f"typedef NS_ENUM(NSInteger, {name}DType) {{",
        *(f"  {name}DType{dtype}," for dtype in _DTYPES),
        "};",
        "",
        "/// A tensor: its elements in row-major order.",
        f"@interface {name}Tensor : NSObject",
        "@property(nonatomic, readonly, copy) NSData *data;",
        "@property(nonatomic, readonly, copy) NSArray<NSNumber *> *shape;",
        f"@property(nonatomic, readonly) {name}DType dtype;",
        "- (instancetype)init NS_UNAVAILABLE;",
        f"- (instancetype)initWithData:(NSData *)data shape:(NSArray<NSNumber *> *)shape dtype:({name}DType)dtype;",
        "@end",
        "",
    ]
    called = [method for method in kit.methods if not method.reason_not_carried]
    for method in called:
        for record in method.records:
            lines += [*_record(kit, record, method), ""]
    lines += [
        f"/// The model {comment(kit.file)}. One object is for one thread at a time; keep calls off the main thread.",
        f"@interface {name} : NSObject",
        "- (instancetype)init NS_UNAVAILABLE;",
        "- (nullable instancetype)initWithPath:(NSString *)path error:(NSError **)error;",
    ]
    for method in kit.methods:
        lines.append("")
        if method in called:
            lines += [*_documentation(method), f"{_signature(kit, method)} {_swift_name(method)};"]
        else:
            lines.append(f"// The method {comment(method.name)} is not here: {comment(method.reason_not_carried)}.")
    lines += ["@end", "", "NS_ASSUME_NONNULL_END"]
    return "\n".join(lines) + "\n"


def _record(kit: Description, record: Record, method: Method) -> Iterator[str]:
    yield f"/// A tuple of the method {comment(method.name)}."
    yield f"@interface {kit.class_name}{record.name} : NSObject"
    for name, form in record.fields:
        nullable = ", nullable" if isinstance(form, Maybe) else ""
        yield f"@property(nonatomic, strong{nullable}) {_object(kit, form)}{name};"
    yield "@end"


def _documentation(method: Method) -> Iterator[str]:
    yield f"/// The method {comment(method.name)}. Returns {comment(method.type)}{_empty(method)}."
    for argument, tried in zip(method.arguments, tried_texts(method), strict=True):
        yield f"/// - Parameter {argument.identifier}: {comment(argument.type)}{tried}"


def _empty(method: Method) -> str:
    return ", in an array that is empty for None" if isinstance(method.form, Maybe) else ""


def _result_type(kit: Description, form: Form) -> str:
    """What a method returns: an object, for nil means an error."""
    if isinstance(form, Nothing):
        return "BOOL"
    if isinstance(form, Maybe):
        return f"nullable NSArray<{_object(kit, form.element)}> *"
    return f"nullable {_object(kit, form)}"


def _signature(kit: Description, method: Method) -> str:
    parts = []
    for number, argument in enumerate(method.arguments):
        label = f"With{pascal_case(argument.identifier)}" if number == 0 else f" {argument.identifier}"
        parts.append(f"{label}:({_parameter(kit, argument)}){argument.identifier}")
    last = " error:(NSError **)error" if parts else "WithError:(NSError **)error"
    return f"- ({_result_type(kit, method.form)}){method.identifier}{''.join(parts)}{last}"


def _swift_name(method: Method) -> str:
    labels = "".join(f"{argument.identifier}:" for argument in method.arguments)
    return f"NS_SWIFT_NAME({method.identifier}({labels}))"


def _parameter(kit: Description, argument: Argument) -> str:
    if isinstance(argument.form, Maybe):
        return f"nullable {_object(kit, argument.form)}".rstrip()
    return _object(kit, argument.form).rstrip()


def _object(kit: Description, form: Form) -> str:
    """The class of the object that holds a form, with its star."""
    if isinstance(form, Plain):
        return {"tensor": f"{kit.class_name}Tensor *", "str": "NSString *"}.get(form.kind, "NSNumber *")
    if isinstance(form, Items):
        return f"NSArray<{_element(kit, form.element)}> *"
    if isinstance(form, Mapping):
        key = "NSString *" if form.key == "str" else "NSNumber *"
        return f"NSDictionary<{key}, {_element(kit, form.value)}> *"
    if isinstance(form, Maybe):
        return _object(kit, form.element)
    if isinstance(form, Record):
        return f"{kit.class_name}{form.name} *"
    return "NSNull *"


def _element(kit: Description, form: Form) -> str:
    """In containers, NSNull stands for None."""
    return "id" if isinstance(form, (Maybe, Nothing)) else _object(kit, form)


def objc_source(kit: Description) -> str:
    """The file ``<Class>.mm``."""
    name = kit.class_name
    called = [method for method in kit.methods if not method.reason_not_carried]
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. It is yours: change it as you like.",
        f'#import "{name}.h"',
        "",
        f'#include "{header_name(kit)}"',
        "",
        "#include <c10/core/ScalarType.h>",
        "",
        "#include <exception>",
        "#include <memory>",
        "#include <stdexcept>",
        "",
        f"@implementation {name}Tensor",
        "",
        f"- (instancetype)initWithData:(NSData *)data shape:(NSArray<NSNumber *> *)shape dtype:({name}DType)dtype {{",
        "  if ((self = [super init])) {",
        "    _data = [data copy];",
        "    _shape = [shape copy];",
        "    _dtype = dtype;",
        "  }",
        "  return self;",
        "}",
        "",
        "@end",
        "",
    ]
    for method in called:
        for record in method.records:
            lines += [f"@implementation {name}{record.name}", "@end", ""]
    lines += ["namespace {", "", *_helpers(name), ""]
    for method in called:
        given = [record for argument in method.arguments for record in records_of(argument.form)]
        for record in given:
            lines += [*_from_record(kit, record), ""]
        for record in records_of(method.form):
            lines += [*_to_record(kit, record), ""]
    lines += [
        "}  // namespace",
        "",
        f"@implementation {name} {{",
        f"  std::unique_ptr<{namespace(kit)}::Model> _model;",
        "}",
        "",
        "- (nullable instancetype)initWithPath:(NSString *)path error:(NSError **)error {",
        "  if ((self = [super init])) {",
        "    try {",
        f"      _model = std::make_unique<{namespace(kit)}::Model>(std::string(path.fileSystemRepresentation));",
        "    } catch (const std::exception &exception) {",
        "      report(exception, error);",
        "      return nil;",
        "    }",
        "  }",
        "  return self;",
        "}",
        "",
    ]
    for method in called:
        lines += [*_method(kit, method), ""]
    lines.append("@end")
    return "\n".join(lines) + "\n"


def _helpers(name: str) -> list[str]:
    to_torch = [f"    case {name}DType{dtype}:\n      return at::{kind};" for dtype, kind in _DTYPES.items()]
    from_torch = [f"    case at::{kind}:\n      return {name}DType{dtype};" for dtype, kind in _DTYPES.items()]
    text = _HELPERS.replace("$TO", "\n".join(to_torch)).replace("$FROM", "\n".join(from_torch))
    return text.replace("$", name).splitlines()


def _to_record(kit: Description, record: Record) -> Iterator[str]:
    """A function that makes an object of a record's structure."""
    cls, struct = f"{kit.class_name}{record.name}", f"{namespace(kit)}::{record.name}"
    yield f"{cls} *toObject(const {struct} &value) {{"
    yield f"  {cls} *object = [[{cls} alloc] init];"
    yield from (f"  object.{name} = {_to_object(kit, form, f'value.{name}')};" for name, form in record.fields)
    yield "  return object;"
    yield "}"


def _from_record(kit: Description, record: Record) -> Iterator[str]:
    """A function that makes a record's structure of an object."""
    cls, struct = f"{kit.class_name}{record.name}", f"{namespace(kit)}::{record.name}"
    yield f"{struct} to{record.name}({cls} *object) {{"
    yield (
        f"  return {struct}{{{', '.join(_from_object(kit, form, f'object.{name}') for name, form in record.fields)}}};"
    )
    yield "}"


def _method(kit: Description, method: Method) -> Iterator[str]:
    yield f"{_signature(kit, method)} {{"
    yield "  try {"
    values = ", ".join(_from_object(kit, argument.form, argument.identifier) for argument in method.arguments)
    call = f"_model->{method.identifier}({values})"
    if isinstance(method.form, Nothing):
        yield f"    {call};"
        yield "    return YES;"
    elif isinstance(method.form, Maybe):
        yield f"    const auto result = {call};"
        yield f"    return result ? @[ {_to_object(kit, method.form.element, '*result')} ] : @[];"
    else:
        yield f"    return {_to_object(kit, method.form, call)};"
    yield "  } catch (const std::exception &exception) {"
    yield "    report(exception, error);"
    yield f"    return {'NO' if isinstance(method.form, Nothing) else 'nil'};"
    yield "  }"
    yield "}"


def _to_object(kit: Description, form: Form, value: str) -> str:
    if isinstance(form, Plain):
        if form.kind in ("tensor", "str"):
            return f"toObject({value})"
        return f"@({value})"
    if isinstance(form, (Items, Mapping)):
        inner = form.element if isinstance(form, Items) else form.value
        made = _to_object(kit, inner, "item")
        if isinstance(inner, Maybe):
            made = f"item ? (id){_to_object(kit, inner.element, '*item')} : [NSNull null]"
        function = "toArray" if isinstance(form, Items) else "toDictionary"
        return f"{function}({value}, [](const auto &item) -> id {{ return {made}; }})"
    if isinstance(form, Maybe):
        return f"({value} ? {_to_object(kit, form.element, f'*{value}')} : nil)"
    if isinstance(form, Record):
        return f"toObject({value})"
    return "[NSNull null]"


def _from_object(kit: Description, form: Form, value: str) -> str:
    if isinstance(form, Plain):
        if form.kind == "tensor":
            return f"toTensor({value})"
        if form.kind == "str":
            return f"std::string({value}.UTF8String)"
        return f"{value}.{_NUMBERS[form.kind]}"
    if isinstance(form, (Items, Mapping)):
        inner = form.element if isinstance(form, Items) else form.value
        item = f"({_object(kit, inner).rstrip()})item"
        made = _from_object(kit, inner, f"({item})")
        if isinstance(inner, Maybe):
            made = f"item == [NSNull null] ? std::nullopt : {_optional(kit, inner, f'({item})')}"
        key = "" if isinstance(form, Items) else f"{'std::string' if form.key == 'str' else 'int64_t'}, "
        function = "toVector" if isinstance(form, Items) else "toMap"
        kind = _qualified(kit, inner)
        return f"{function}<{key}{kind}>({value}, [](id item) -> {kind} {{ return {made}; }})"
    if isinstance(form, Maybe):
        return f"({value} == nil ? std::nullopt : {_optional(kit, form, value)})"
    if isinstance(form, Record):
        return f"to{form.name}({value})"
    return "c10::IValue()"


def _optional(kit: Description, form: Maybe, value: str) -> str:
    return f"{_qualified(kit, form)}({_from_object(kit, form.element, value)})"


def _qualified(kit: Description, form: Form) -> str:
    if isinstance(form, Record):
        return f"{namespace(kit)}::{form.name}"
    if isinstance(form, Maybe):
        return f"std::optional<{_qualified(kit, form.element)}>"
    if isinstance(form, Items):
        return f"std::vector<{_qualified(kit, form.element)}>"
    if isinstance(form, Mapping):
        return f"std::map<{'std::string' if form.key == 'str' else 'int64_t'}, {_qualified(kit, form.value)}>"
    return cpp_type(form)


_HELPERS = """\
void report(const std::exception &exception, NSError **error) {
  if (error != nullptr) {
    NSString *reason = [NSString stringWithUTF8String:exception.what()] ?: @"unknown error";
    *error = [NSError errorWithDomain:@"$" code:1 userInfo:@{NSLocalizedDescriptionKey : reason}];
  }
}

at::ScalarType toScalarType($DType dtype) {
  switch (dtype) {
$TO
  }
  throw std::invalid_argument("the tensor has an unknown dtype");
}

$DType toDType(at::ScalarType type) {
  switch (type) {
$FROM
    default:
      throw std::invalid_argument(std::string("a result has the dtype ") + c10::toString(type));
  }
}

[[maybe_unused]] at::Tensor toTensor($Tensor *object) {
  std::vector<int64_t> sizes;
  size_t bytes = c10::elementSize(toScalarType(object.dtype));
  for (NSNumber *size in object.shape) {
    sizes.push_back(size.longLongValue);
    bytes *= size.unsignedLongLongValue;
  }
  if (bytes != object.data.length) {
    throw std::invalid_argument("the data of a tensor has another length than its shape and dtype");
  }
  const auto options = at::TensorOptions().dtype(toScalarType(object.dtype));
  return at::from_blob(const_cast<void *>(object.data.bytes), sizes, options).clone();
}

[[maybe_unused]] $Tensor *toObject(const at::Tensor &value) {
  const at::Tensor tensor = value.contiguous();
  NSMutableArray<NSNumber *> *shape = [NSMutableArray array];
  for (const int64_t size : tensor.sizes()) {
    [shape addObject:@(size)];
  }
  NSData *data = [NSData dataWithBytes:tensor.data_ptr() length:tensor.nbytes()];
  return [[$Tensor alloc] initWithData:data shape:shape dtype:toDType(tensor.scalar_type())];
}

[[maybe_unused]] NSString *toObject(const std::string &text) {
  return [[NSString alloc] initWithBytes:text.data() length:text.size() encoding:NSUTF8StringEncoding] ?: @"";
}

[[maybe_unused]] NSNumber *toObject(int64_t number) {
  return @(number);
}

template <typename T, typename Convert>
NSArray *toArray(const std::vector<T> &values, Convert convert) {
  NSMutableArray *array = [NSMutableArray array];
  for (const auto &value : values) {
    [array addObject:convert(value)];
  }
  return array;
}

template <typename K, typename V, typename Convert>
NSDictionary *toDictionary(const std::map<K, V> &values, Convert convert) {
  NSMutableDictionary *dictionary = [NSMutableDictionary dictionary];
  for (const auto &entry : values) {
    dictionary[toObject(entry.first)] = convert(entry.second);
  }
  return dictionary;
}

template <typename T, typename Convert>
std::vector<T> toVector(NSArray *array, Convert convert) {
  std::vector<T> values;
  for (id item in array) {
    values.push_back(convert(item));
  }
  return values;
}

[[maybe_unused]] void read(id key, std::string &value) {
  value = ((NSString *)key).UTF8String;
}

[[maybe_unused]] void read(id key, int64_t &value) {
  value = ((NSNumber *)key).longLongValue;
}

template <typename K, typename V, typename Convert>
std::map<K, V> toMap(NSDictionary *dictionary, Convert convert) {
  std::map<K, V> values;
  for (id name in dictionary) {
    K key;
    read(name, key);
    values.emplace(key, convert(dictionary[name]));
  }
  return values;
}"""
