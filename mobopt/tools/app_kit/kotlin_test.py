"""Kotlin for Android: an instrumented test that compares the phone's results with the expected ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mobopt.tools.app_kit.description import Description, Example, Method, children
from mobopt.tools.app_kit.forms import Form, Items, Mapping, Maybe, Nothing, Plain, Record
from mobopt.tools.app_kit.kotlin import wrapped
from mobopt.tools.app_kit.names import comment, string_literal

_SPECIAL = {"inf": "Double.POSITIVE_INFINITY", "-inf": "Double.NEGATIVE_INFINITY", "nan": "Double.NaN"}
_ARRAYS = {"int": "longArrayOf", "float": "doubleArrayOf", "bool": "booleanArrayOf"}


def kotlin_test(kit: Description) -> str:
    """The file ``<Class>Test.kt``, which goes into ``src/androidTest``."""
    lines = [
        f"// Made by mobopt app-kit for {comment(kit.file)}. The files of test/ are assets of the test, "
        "beside test.json.",
        f"package {kit.package}",
        "",
        "import android.content.res.AssetManager",
        "import androidx.test.ext.junit.runners.AndroidJUnit4",
        "import androidx.test.platform.app.InstrumentationRegistry",
        "import java.nio.ByteBuffer",
        "import kotlin.math.abs",
        "import org.json.JSONObject",
        "import org.junit.Assert.assertArrayEquals",
        "import org.junit.Assert.assertEquals",
        "import org.junit.Assert.assertTrue",
        "import org.junit.Test",
        "import org.junit.runner.RunWith",
        "import org.pytorch.DType",
        "import org.pytorch.MemoryFormat",
        "import org.pytorch.Tensor",
        "",
        "@RunWith(AndroidJUnit4::class)",
        f"class {kit.class_name}Test {{",
        "    private val instrumentation = InstrumentationRegistry.getInstrumentation()",
        f"    private val test = {kit.class_name}TestData(instrumentation.context.assets)",
    ]
    for method, example in kit.kotlin_tests:
        lines += ["", *_test(kit, method, example)]
    lines += ["}", "", *_test_data(kit)]
    return "\n".join(lines) + "\n"


def _test(kit: Description, method: Method, example: Example) -> Iterator[str]:
    yield "    @Test"
    yield f"    fun {method.identifier}() {{"
    yield f"        {kit.class_name}.fromAssets(instrumentation.targetContext).use {{ model ->"
    arguments = [
        f"{argument.identifier} = " + _literal(f"{method.identifier}.input.{argument.identifier}", argument.form, value)
        for argument, value in zip(method.arguments, example.arguments, strict=True)
    ]
    given = "" if isinstance(method.form, Nothing) else "val result = "
    sure = "!!" if isinstance(method.form, Maybe) and example.result is not None else ""
    yield from wrapped(f"            {given}model.{method.identifier}", arguments, sure)
    form = method.form.element if sure and isinstance(method.form, Maybe) else method.form
    for line in _checks(f"{method.identifier}.output", "result", form, example.result, example.tolerance):
        yield f"            {line}"
    yield "        }"
    yield "    }"


def _literal(name: str, form: Form, value: Any) -> str:
    """An expression that gives a value of an example."""
    if value is None:
        return "null"
    if isinstance(form, Maybe):
        return _literal(name, form.element, value)
    if isinstance(form, Plain):
        return f"test.tensor({string_literal(name, 'kotlin')})" if form.kind == "tensor" else _number(form.kind, value)
    parts = [_literal(part, inner, item) for part, inner, item in children(name, form, value)]
    if isinstance(form, Record):
        return f"{form.name}({', '.join(parts)})" if form.fields else form.name
    if isinstance(form, Mapping):
        kind = "str" if form.key == "str" else "int"
        pairs = [f"{_number(kind, key)} to {part}" for key, part in zip(value, parts, strict=True)]
        return f"mapOf({', '.join(pairs)})"
    element = form.element if isinstance(form, Items) else None
    maker = _ARRAYS.get(element.kind, "listOf") if isinstance(element, Plain) else "listOf"
    return f"{maker}({', '.join(parts)})"


def _number(kind: str, value: Any) -> str:
    if kind == "str":
        return string_literal(value, "kotlin")
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return "Long.MIN_VALUE" if int(value) == -(1 << 63) else f"{int(value)}L"
    return _SPECIAL.get(repr(float(value)), repr(float(value)))


def _checks(name: str, access: str, form: Form, value: Any, tolerance: float) -> Iterator[str]:
    """Statements that compare a result with the example's."""
    if isinstance(form, Maybe):
        if value is None:
            yield f"assertEquals(null, {access})"
            return
        access, form = f"{access}!!", form.element
    if isinstance(form, Nothing):
        return
    if isinstance(form, Plain):
        if form.kind == "tensor":
            yield f"test.assertClose({string_literal(name, 'kotlin')}, {access}, tolerance = {tolerance!r})"
        elif form.kind == "float":
            yield f"assertEquals({_number('float', value)}, {access}, {abs(value) * tolerance!r})"
        else:
            yield f"assertEquals({_number(form.kind, value)}, {access})"
        return
    if isinstance(form, Items) and isinstance(form.element, Plain) and form.element.kind in _ARRAYS:
        scale = f", {max(map(abs, value), default=0.0) * tolerance!r}" if form.element.kind == "float" else ""
        yield f"assertArrayEquals({_literal(name, form, value)}, {access}{scale})"
        return
    if isinstance(form, (Items, Mapping)):
        yield f"assertEquals({len(value)}, {access}.size)"
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value or ())))
    for key, (part, inner, item) in zip(keys, children(name, form, value), strict=True):
        if isinstance(form, Record):
            step = f"{access}.{part.rpartition('.')[2]}"
        elif isinstance(form, Mapping):
            step = f"{access}.getValue({_number('str' if form.key == 'str' else 'int', key)})"
        else:
            step = f"{access}[{key}]"
        yield from _checks(part, step, inner, item, tolerance)


def _test_data(kit: Description) -> list[str]:
    return _TEST_DATA.replace("TestData", f"{kit.class_name}TestData").splitlines()


_TEST_DATA = """\
/** The tensors that test.json describes: raw, little-endian, row-major. */
internal class TestData(private val assets: AssetManager) {
    private val tensors = JSONObject(String(read("test.json"), Charsets.UTF_8)).getJSONObject("tensors")

    fun tensor(name: String): Tensor {
        val description = tensors.getJSONObject(name)
        val sizes = description.getJSONArray("sizes")
        val shape = LongArray(sizes.length()) { sizes.getLong(it) }
        val bytes: ByteArray = read(description.getString("file"))
        val buffer: ByteBuffer = Tensor.allocateByteBuffer(bytes.size)
        buffer.put(bytes)
        buffer.rewind()
        return when (val dtype = description.getString("dtype")) {
            "float32" -> Tensor.fromBlob(buffer.asFloatBuffer(), shape)
            "float64" -> Tensor.fromBlob(buffer.asDoubleBuffer(), shape)
            "int64" -> Tensor.fromBlob(buffer.asLongBuffer(), shape)
            "int32" -> Tensor.fromBlob(buffer.asIntBuffer(), shape)
            "int8" -> Tensor.fromBlob(buffer, shape)
            "uint8" -> Tensor.fromBlobUnsigned(buffer, shape)
            else -> error("$name has the dtype $dtype")
        }
    }

    /** Compares with the expected tensor: floats within tolerance * its largest magnitude, integers exactly. */
    fun assertClose(name: String, actual: Tensor, tolerance: Double) {
        val expected: Tensor = tensor(name)
        assertEquals("$name: dtype", expected.dtype(), actual.dtype())
        assertArrayEquals("$name: sizes", expected.shape(), actual.shape())
        val wanted = values(expected)
        val found = values(actual)
        val isExact = expected.dtype() != DType.FLOAT32 && expected.dtype() != DType.FLOAT64
        val scale = wanted.filter { it.isFinite() }.maxOfOrNull { abs(it) } ?: 0.0
        val allowed = if (isExact) 0.0 else tolerance * scale
        for (index in wanted.indices) {
            val isSame = wanted[index] == found[index] || (wanted[index].isNaN() && found[index].isNaN())
            assertTrue(
                "$name: element $index is ${found[index]}, and ${wanted[index]} is expected, within $allowed",
                isSame || abs(wanted[index] - found[index]) <= allowed,
            )
        }
    }

    /** The elements in row-major order, whatever order they lie in. */
    private fun values(tensor: Tensor): DoubleArray {
        val stored = when (tensor.dtype()) {
            DType.FLOAT32 -> tensor.dataAsFloatArray.let { data -> DoubleArray(data.size) { data[it].toDouble() } }
            DType.FLOAT64 -> tensor.dataAsDoubleArray
            DType.INT64 -> tensor.dataAsLongArray.let { data -> DoubleArray(data.size) { data[it].toDouble() } }
            DType.INT32 -> tensor.dataAsIntArray.let { data -> DoubleArray(data.size) { data[it].toDouble() } }
            DType.INT8 -> tensor.dataAsByteArray.let { data -> DoubleArray(data.size) { data[it].toDouble() } }
            DType.UINT8 -> tensor.dataAsUnsignedByteArray.let { data ->
                DoubleArray(data.size) { (data[it].toInt() and 0xff).toDouble() }
            }
            else -> error("dtype ${tensor.dtype()}")
        }
        if (tensor.memoryFormat() == MemoryFormat.CONTIGUOUS) return stored
        val shape = tensor.shape() // N, C, then places: stored as N, places, C
        val channels = shape[1].toInt()
        val places = shape.drop(2).fold(1L) { product, size -> product * size }.toInt()
        return DoubleArray(stored.size) { index ->
            val (row, place) = index / places to index % places
            stored[(row / channels * places + place) * channels + row % channels]
        }
    }

    private fun read(name: String): ByteArray = assets.open(name).use { it.readBytes() }
}
"""
