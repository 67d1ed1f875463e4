"""Kotlin for Android: a class with a function for each method of the file, on org.pytorch's API."""

from __future__ import annotations

from collections.abc import Iterator

from mobopt.tools.app_kit.description import Argument, Description, Method, tried_texts
from mobopt.tools.app_kit.forms import Form, Items, Mapping, Maybe, Nothing, Opaque, Plain, Record, parts_of
from mobopt.tools.app_kit.names import comment, string_literal

_WIDTH = 100
_TYPES = {"tensor": "Tensor", "int": "Long", "float": "Double", "bool": "Boolean", "str": "String"}
_ARRAYS = {"int": "LongArray", "float": "DoubleArray", "bool": "BooleanArray"}
_GETTERS = {"tensor": "toTensor", "int": "toLong", "float": "toDouble", "bool": "toBool", "str": "toStr"}
_LIST_GETTERS = {"int": "toLongList", "float": "toDoubleList", "bool": "toBoolList"}
_DICTS = {
    "str": ("String", "dictStringKeyFrom", "toDictStringKey"),
    "int": ("Long", "dictLongKeyFrom", "toDictLongKey"),
}


def kotlin_source(kit: Description) -> str:
    """The file ``<Class>.kt``."""
    called = [method for method in kit.methods if not method.reason_not_in_java]
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. It is yours: change it as you like.",
        f"package {kit.package}",
        "",
        "import android.content.Context",
        "import java.io.File",
        *(("import org.pytorch.Device",) if kit.needs.backend == "vulkan" else ()),
        "import org.pytorch.IValue",
        *(("import org.pytorch.LiteModuleLoader",) if kit.is_lite else ()),
        "import org.pytorch.Module",
        *(("import org.pytorch.Tensor",) if any(map(_has_tensors, called)) else ()),
        "",
    ]
    for method in called:
        for record in method.records:
            lines += [*_record(record, method), ""]
    lines += _class(kit, called)
    return "\n".join(lines) + "\n"


def _has_tensors(method: Method) -> bool:
    forms = [method.form, *(argument.form for argument in method.arguments)]
    return any(part == Plain("tensor") for form in forms for part in parts_of(form))


def _record(record: Record, method: Method) -> Iterator[str]:
    yield f"/** A tuple of the method {comment(method.name)}. */"
    if not record.fields:
        yield f"object {record.name}"
        return
    yield f"class {record.name}("
    yield from (f"    val {name}: {kotlin_type(form)}," for name, form in record.fields)
    yield ")"


def _class(kit: Description, called: list[Method]) -> Iterator[str]:
    where = "on the GPU, by Vulkan" if kit.needs.backend == "vulkan" else "on the CPU"
    loader = "LiteModuleLoader" if kit.is_lite else "Module"
    arguments = "modelPath, null, Device.VULKAN" if kit.needs.backend == "vulkan" else "modelPath"
    yield "/**"
    yield f" * The model {comment(kit.file)}, {where}."
    yield " *"
    yield " * Loading and calls take time: keep them off the main thread. One object is for one thread at a time."
    yield " */"
    yield f"class {kit.class_name}(modelPath: String) : AutoCloseable {{"
    yield f"    private val module: Module = {loader}.load({arguments})"
    yield ""
    for method in kit.methods:
        if method in called:
            yield from _function(method)
        else:
            yield (
                f"    // The method {comment(method.name)} can't be called from here: "
                f"{comment(method.reason_not_in_java)}."
            )
        yield ""
    yield "    override fun close() {"
    yield "        module.destroy()"
    yield "    }"
    yield ""
    yield "    companion object {"
    yield f"        const val MODEL_FILE = {string_literal(kit.file, 'kotlin')}"
    yield ""
    yield (
        "        /** Loads the model from the app's assets: they are copied to a file, for the loader takes a path. */"
    )
    yield f"        fun fromAssets(context: Context): {kit.class_name} {{"
    yield "            val file = File(context.noBackupFilesDir, MODEL_FILE)"
    yield "            context.assets.open(MODEL_FILE).use { asset ->"
    yield "                file.outputStream().use { asset.copyTo(it) }"
    yield "            }"
    yield f"            return {kit.class_name}(file.absolutePath)"
    yield "        }"
    yield "    }"
    yield "}"


def _function(method: Method) -> Iterator[str]:
    yield from _documentation(method)
    parameters = [_parameter(argument) for argument in method.arguments]
    returned = "" if isinstance(method.form, Nothing) else f": {kotlin_type(method.form)}"
    yield from wrapped(f"    fun {method.identifier}", parameters, f"{returned} {{")
    values = [pack(argument.form, argument.identifier) for argument in method.arguments]
    if method.name != "forward":
        values.insert(0, string_literal(method.name, "kotlin"))
    call = "module.forward" if method.name == "forward" else "module.runMethod"
    if isinstance(method.form, Nothing):
        yield from wrapped(f"        {call}", values, "")
    else:
        yield from wrapped(f"        val result: IValue = {call}", values, "")
        yield from _return(method.form)
    yield "    }"


def _parameter(argument: Argument) -> str:
    default = " = null" if isinstance(argument.form, Maybe) else ""
    return f"{argument.identifier}: {kotlin_type(argument.form)}{default}"


def _return(form: Form) -> Iterator[str]:
    if not isinstance(form, Record) or not form.fields:
        yield f"        return {unpack(form, 'result')}"
        return
    yield "        val items: Array<IValue> = result.toTuple()"
    fields = [f"{name} = {unpack(field, f'items[{index}]')}" for index, (name, field) in enumerate(form.fields)]
    yield from wrapped(f"        return {form.name}", fields, "")


def wrapped(head: str, items: list[str], tail: str) -> Iterator[str]:
    """A call or a declaration, on one line if that is short, else with a line for each item."""
    line = f"{head}({', '.join(items)}){tail}"
    if len(line) <= _WIDTH or not items:
        yield line
        return
    indent = " " * (len(head) - len(head.lstrip()))
    yield f"{head}("
    yield from (f"{indent}    {item}," for item in items)
    yield f"{indent}){tail}"


def _documentation(method: Method) -> Iterator[str]:
    yield "    /**"
    yield f"     * The method {comment(method.name)}."
    yield "     *"
    for argument, tried in zip(method.arguments, tried_texts(method), strict=True):
        yield f"     * @param {argument.identifier} {comment(argument.type)}{tried}"
    yield f"     * @return {comment(method.type)}"
    yield "     */"


def kotlin_type(form: Form) -> str:
    """How Kotlin spells a form."""
    if isinstance(form, Plain):
        return _TYPES[form.kind]
    if isinstance(form, Items):
        element = form.element
        if isinstance(element, Plain) and element.kind in _ARRAYS:
            return _ARRAYS[element.kind]
        return f"List<{kotlin_type(element)}>"
    if isinstance(form, Mapping):
        return f"Map<{_DICTS[form.key][0]}, {kotlin_type(form.value)}>"
    if isinstance(form, Maybe):
        return kotlin_type(form.element).removesuffix("?") + "?"
    if isinstance(form, Record):
        return form.name
    return "Unit" if isinstance(form, Nothing) else "IValue"


def pack(form: Form, value: str, depth: int = 0) -> str:
    """An expression that makes an IValue of a value of Kotlin."""
    item = f"item{depth or ''}"
    if isinstance(form, Plain):
        return f"IValue.from({value})"
    if isinstance(form, Items):
        element = form.element
        if isinstance(element, Plain) and element.kind in _ARRAYS:
            return f"IValue.listFrom(*{value})"
        if element == Plain("tensor"):
            return f"IValue.listFrom(*{value}.toTypedArray())"
        return f"IValue.listFrom(*{value}.map {{ {item} -> {pack(element, item, depth + 1)} }}.toTypedArray())"
    if isinstance(form, Mapping):
        inner = pack(form.value, item, depth + 1)
        return f"IValue.{_DICTS[form.key][1]}({value}.mapValues {{ (_, {item}) -> {inner} }})"
    if isinstance(form, Maybe):
        return f"if ({value} == null) IValue.optionalNull() else {pack(form.element, value, depth)}"
    if isinstance(form, Record):
        return f"IValue.tupleFrom({', '.join(pack(field, f'{value}.{name}', depth) for name, field in form.fields)})"
    return "IValue.optionalNull()"


def unpack(form: Form, value: str, depth: int = 0) -> str:
    """An expression that takes the value of Kotlin out of an IValue."""
    item = f"item{depth or ''}"
    if isinstance(form, Plain):
        return f"{value}.{_GETTERS[form.kind]}()"
    if isinstance(form, Items):
        element = form.element
        if isinstance(element, Plain) and element.kind in _LIST_GETTERS:
            return f"{value}.{_LIST_GETTERS[element.kind]}()"
        if element == Plain("tensor"):
            return f"{value}.toTensorList().toList()"
        return f"{value}.toList().map {{ {item} -> {unpack(element, item, depth + 1)} }}"
    if isinstance(form, Mapping):
        inner = unpack(form.value, item, depth + 1)
        return f"{value}.{_DICTS[form.key][2]}().mapValues {{ (_, {item}) -> {inner} }}"
    if isinstance(form, Maybe):
        return f"if ({value}.isNull()) null else {unpack(form.element, value, depth)}"
    if isinstance(form, Record):
        if not form.fields:
            return form.name
        inner = ", ".join(
            f"{name} = {unpack(field, f'{value}.toTuple()[{number}]', depth)}"
            for number, (name, field) in enumerate(form.fields)
        )
        return f"{form.name}({inner})"
    if isinstance(form, Opaque):
        raise ValueError(form.reason)
    return "Unit"
