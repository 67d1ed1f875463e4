"""GLSL compilers: the glslang inside the wheel ``slangpy``, which pip brings, and the system's ``glslc``.

Both take expanded text (:mod:`.expand`) and give optimised SPIR-V for Vulkan 1.1.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .table import ShaderError

VARIABLE = "MOBOPT_GLSL_COMPILER"
"""Environment variable that names the compiler to use; without it, the first that is there."""


class CompileError(Exception):
    """A shader's text doesn't compile; the message is the compiler's."""


class Compiler(Protocol):
    """Turns the text of a compute shader into SPIR-V; may be called from several threads."""

    @property
    def identity(self) -> str:
        """Name, version and options: SPIR-V that was made under another identity is made again."""

    def compile(self, text: str) -> bytes:
        """SPIR-V of an expanded text.

        Raises:
            CompileError: it doesn't compile.
        """


_OUTPUT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
"""Takes data, their size in bytes, and a pointer of the caller's."""
_COMPUTE_STAGE = 6
_GLSL_TO_SPIRV = 0
_OPTIMIZE_HIGH = 2
"""The passes of ``spirv-opt -O``."""
_NO_DEBUG_INFORMATION = 0


class _SpirvVersion(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class _CompileRequest(ctypes.Structure):
    """``glslang_CompileRequest_1_2`` of Slang's ``slang-glslang.h``."""

    _fields_ = (
        ("size_in_bytes", ctypes.c_size_t),
        ("source_path", ctypes.c_char_p),
        ("input_begin", ctypes.c_void_p),
        ("input_end", ctypes.c_void_p),
        ("diagnostic_function", _OUTPUT),
        ("diagnostic_user_data", ctypes.c_void_p),
        ("output_function", _OUTPUT),
        ("output_user_data", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("action", ctypes.c_uint),
        ("optimization_level", ctypes.c_uint),
        ("debug_information", ctypes.c_uint),
        ("target_name", ctypes.c_char_p),
        ("spirv_version", _SpirvVersion),
        ("entry_point", ctypes.c_char_p),
    )


class SlangGlslang:
    """The glslang that the wheel ``slangpy`` carries for its own use, called as Slang calls it."""

    def __init__(self, library: Path, version: str) -> None:
        """Load the library of a slangpy of that version.

        Raises:
            ShaderError: it can't be loaded, or lacks the function.
        """
        try:
            self._compile = ctypes.CDLL(str(library)).glslang_compile_1_2
        except (OSError, AttributeError) as error:
            raise ShaderError(f"slangpy {version} has no GLSL compiler that mobopt can call: {error}") from None
        self._compile.argtypes = (ctypes.POINTER(_CompileRequest),)
        self._compile.restype = ctypes.c_int
        self._version = version

    @classmethod
    def find(cls) -> SlangGlslang | None:
        """The one of this Python environment; None if slangpy isn't installed. slangpy itself is not imported."""
        spec = importlib.util.find_spec("slangpy")
        folders = spec.submodule_search_locations if spec is not None else None
        for folder in folders or ():
            names = ("libslang-glslang*.so", "libslang-glslang*.dylib", "slang-glslang*.dll")
            found = sorted(path for name in names for path in Path(folder).glob(name))
            if found:
                return cls(found[0], importlib.metadata.version("slangpy"))
        return None

    @property
    def identity(self) -> str:
        """Name, version and options."""
        return f"slangpy {self._version}, SPIR-V 1.3, optimised"

    def compile(self, text: str) -> bytes:
        """SPIR-V of an expanded text.

        Raises:
            CompileError: it doesn't compile.
        """
        encoded = text.encode()
        source = ctypes.create_string_buffer(encoded, len(encoded))
        begin = ctypes.addressof(source)
        messages, write_message = _collector()
        output, write_output = _collector()
        request = _CompileRequest(
            size_in_bytes=ctypes.sizeof(_CompileRequest),
            source_path=b"shader",
            input_begin=begin,
            input_end=begin + len(encoded),
            diagnostic_function=write_message,
            output_function=write_output,
            stage=_COMPUTE_STAGE,
            action=_GLSL_TO_SPIRV,
            optimization_level=_OPTIMIZE_HIGH,
            debug_information=_NO_DEBUG_INFORMATION,
            # With no target's name, the version decides.
            target_name=None,
            spirv_version=_SpirvVersion(1, 3, 0),
            entry_point=b"main",
        )
        failed = self._compile(ctypes.byref(request))
        if failed or not output:
            lines = b"".join(messages).decode(errors="replace").strip().splitlines()
            raise CompileError("\n".join(line for line in lines if line) or f"glslang failed with code {failed}")
        return b"".join(output)


def _collector() -> tuple[list[bytes], Callable[[int, int, int | None], None]]:
    """A list, and a callback that appends to it what the library writes."""
    pieces: list[bytes] = []
    return pieces, _OUTPUT(lambda data, size, _: pieces.append(ctypes.string_at(data, size)))


class Glslc:
    """The system's ``glslc``, of shaderc."""

    _OPTIONS = ("--target-env=vulkan1.1", "-O")

    def __init__(self, path: str) -> None:
        self._path = path
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        self.identity = " ".join(["glslc", *version.splitlines()[:1], *self._OPTIONS])
        """Name, version and options."""

    @classmethod
    def find(cls) -> Glslc | None:
        """The one on PATH; None if there is none."""
        path = shutil.which("glslc")
        return cls(path) if path else None

    def compile(self, text: str) -> bytes:
        """SPIR-V of an expanded text.

        Raises:
            CompileError: it doesn't compile.
        """
        command = [self._path, *self._OPTIONS, "-fshader-stage=compute", "-", "-o", "-"]
        done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
        if done.returncode:
            raise CompileError(done.stderr.decode(errors="replace").strip())
        return done.stdout


_FINDERS: dict[str, Callable[[], Compiler | None]] = {"slangpy": SlangGlslang.find, "glslc": Glslc.find}
"""By the name that the environment variable may give; the first that is found is used."""

_HOW_TO_GET_ONE = (
    "install the wheel that pyproject.toml names (`pip install slangpy`), or the system's compiler "
    "(Debian: `apt install glslc`, elsewhere: the Vulkan SDK)"
)


def find_compiler() -> Compiler | None:
    """The compiler to use; None if there is none.

    Raises:
        ShaderError: MOBOPT_GLSL_COMPILER names none that mobopt knows, or one that isn't there.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return next((compiler for finder in _FINDERS.values() if (compiler := finder()) is not None), None)
    if wanted not in _FINDERS:
        raise ShaderError(f"{VARIABLE}={wanted}: mobopt knows {' and '.join(_FINDERS)}")
    found = _FINDERS[wanted]()
    if found is None:
        raise ShaderError(f"{VARIABLE}={wanted}, which isn't there: {_HOW_TO_GET_ONE}")
    return found


def need_compiler(compiler: Compiler | None) -> Compiler:
    """What :func:`find_compiler` found.

    Raises:
        ShaderError: it found none.
    """
    if compiler is None:
        raise ShaderError(f"there is no GLSL compiler: {_HOW_TO_GET_ONE}")
    return compiler
