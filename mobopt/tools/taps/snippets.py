"""Code that saves what a phone makes of a tapped file: Kotlin, complete; Swift, beside the code of an app kit."""

from __future__ import annotations

from mobopt.tools.app_kit.names import comment, identifier, string_literal
from mobopt.tools.taps.table import TapTable


def kotlin_snippet(table: TapTable, file: str, name: str, package: str) -> str:
    """The file ``<Name>Taps.kt``: an object that runs a tapped file and writes an ``.npz`` file.

    Args:
        table: of the file.
        file: its name.
        name: what the object is called, without ``Taps``.
        package: of the code.
    """
    text = _KOTLIN.replace("$CALL", _KOTLIN_EXAMPLE if table.example else "")
    loader = "LiteModuleLoader" if file.endswith(".ptl") else "Module"
    imports = "".join(f"import org.pytorch.{item}\n" for item in sorted(_kotlin_imports(table, loader)))
    for mark, value in {
        "$PACKAGE": package,
        "$IMPORTS": imports,
        "$NAME": name,
        "$FILE": comment(file),
        "$LOADER": loader,
        "$EXAMPLE": string_literal(table.example, "kotlin"),
        "$TAPPED": comment(table.tapped),
    }.items():
        text = text.replace(mark, value)
    return text


def _kotlin_imports(table: TapTable, loader: str) -> set[str]:
    return {"DType", "IValue", "Tensor", *(("Device", "Module", loader) if table.example else ())}


def swift_snippet(table: TapTable, file: str, name: str) -> str:
    """The file ``<Name>Taps.swift``: writes the tensors that the class of an app kit returns to a folder.

    Args:
        table: of the file.
        file: its name.
        name: of the app kit's class.
    """
    method = identifier(table.example or table.tapped)
    text = _SWIFT
    for mark, value in {"$NAME": name, "$FILE": comment(file), "$METHOD": method}.items():
        text = text.replace(mark, value)
    return text


_KOTLIN_EXAMPLE = """\
    /**
     * Runs the inputs that the file holds, and saves what came of them.
     *
     * @param device what the file was made for: Device.VULKAN or Device.CPU
     */
    fun saveExample(modelPath: String, target: File, device: Device) {
        val module: Module = $LOADER.load(modelPath, null, device)
        try {
            save(module.runMethod($EXAMPLE), target)
        } finally {
            module.destroy()
        }
    }

"""

_KOTLIN = """\
// Made by mobopt tap for $FILE. It is yours: change it as you like.
package $PACKAGE

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
$IMPORTS
/** Saves values in between, for `mobopt compare $FILE --dump phone.npz` on a computer. */
object $NAMETaps {
$CALL    /** Saves what the method $TAPPED returned, also for inputs of the app: they are among it. */
    fun save(taps: IValue, target: File) {
        ZipOutputStream(target.outputStream().buffered()).use { zip ->
            for ((name, value) in taps.toDictStringKey()) {
                zip.putNextEntry(ZipEntry("$name.npy"))
                zip.write(npy(value.toTensor()))
                zip.closeEntry()
            }
        }
    }

    /** A tensor as numpy's .npy file has it, version 1.0. */
    private fun npy(tensor: Tensor): ByteArray {
        val count = tensor.numel().toInt()
        val (dtype, width) = when (tensor.dtype()) {
            DType.FLOAT32 -> Pair("<f4", 4)
            DType.FLOAT64 -> Pair("<f8", 8)
            DType.INT32 -> Pair("<i4", 4)
            DType.INT64 -> Pair("<i8", 8)
            DType.INT8 -> Pair("|i1", 1)
            DType.UINT8 -> Pair("|u1", 1)
            else -> throw IllegalArgumentException("a tensor of ${tensor.dtype()} can't be saved")
        }
        val sizes = tensor.shape().joinToString("") { size -> "$size, " }
        val text = "{'descr': '$dtype', 'fortran_order': False, 'shape': ($sizes), }"
        val length = (text.length + 74) / 64 * 64 - 10
        val header = text.padEnd(length - 1) + "\\n"
        val file = ByteBuffer.allocate(10 + length + count * width).order(ByteOrder.LITTLE_ENDIAN)
        file.put(0x93.toByte()).put("NUMPY".toByteArray()).put(1.toByte()).put(0.toByte())
        file.putShort(length.toShort()).put(header.toByteArray())
        when (tensor.dtype()) {
            DType.FLOAT32 -> tensor.getDataAsFloatArray().forEach { file.putFloat(it) }
            DType.FLOAT64 -> tensor.getDataAsDoubleArray().forEach { file.putDouble(it) }
            DType.INT32 -> tensor.getDataAsIntArray().forEach { file.putInt(it) }
            DType.INT64 -> tensor.getDataAsLongArray().forEach { file.putLong(it) }
            DType.INT8 -> file.put(tensor.getDataAsByteArray())
            else -> file.put(tensor.getDataAsUnsignedByteArray())
        }
        return file.array()
    }
}
"""

_SWIFT = """\
// Made by mobopt tap for $FILE. It needs the class of the app kit: mobopt app-kit $FILE -o kit
import Foundation

/// Saves values in between, for `mobopt compare $FILE --dump folder` on a computer.
enum $NAMETaps {
    /// Saves what the kit's class returned, one .npy file each: `try $NAMETaps.save(model.$METHOD(), to: folder)`.
    static func save(_ taps: [String: $NAMETensor], to folder: URL) throws {
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        for (name, tensor) in taps {
            try npy(tensor).write(to: folder.appendingPathComponent("\\(name).npy"))
        }
    }

    /// A tensor as numpy's .npy file has it, version 1.0.
    private static func npy(_ tensor: $NAMETensor) -> Data {
        let dtype: String
        switch tensor.dtype {
        case .float32: dtype = "<f4"
        case .float64: dtype = "<f8"
        case .float16: dtype = "<f2"
        case .int64: dtype = "<i8"
        case .int32: dtype = "<i4"
        case .int16: dtype = "<i2"
        case .int8: dtype = "|i1"
        case .uInt8: dtype = "|u1"
        default: dtype = "|b1"
        }
        let sizes = tensor.shape.map { "\\($0), " }.joined()
        let text = "{'descr': '\\(dtype)', 'fortran_order': False, 'shape': (\\(sizes)), }"
        let length = (text.utf8.count + 74) / 64 * 64 - 10
        let padding = String(repeating: " ", count: length - 1 - text.utf8.count)
        var file = Data([0x93])
        file.append(contentsOf: "NUMPY".utf8)
        file.append(contentsOf: [1, 0, UInt8(length & 0xff), UInt8(length >> 8)])
        file.append(contentsOf: "\\(text)\\(padding)\\n".utf8)
        file.append(tensor.data)
        return file
    }
}
"""
