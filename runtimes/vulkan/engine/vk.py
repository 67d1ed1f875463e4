"""The only module that imports the ``vulkan`` binding, and only when something is first asked of it.

``vk.lib.vkCreateBuffer`` are the C functions, ``vk.ffi`` is cffi, ``vk.VK_...`` are the constants: read through this
module's attributes. The binding's Python wrappers are left aside: they convert every argument on every call.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from functools import cache
from types import ModuleType
from typing import Any

from mobopt.errors import DeviceError, DeviceLostError

Handle = Any
"""A Vulkan handle or a pointer to a structure; cffi has no static types."""

_EXPORTED = ("VK_", "lib", "ffi")


@cache
def _binding() -> ModuleType:
    try:
        return importlib.import_module("vulkan")
    except OSError:
        return _binding_with_loader(*_find_loader())
    except ImportError as error:
        raise DeviceError(f"the Python package `vulkan` can't be imported ({error}); `pip install vulkan`") from None


_MORE_LOADERS = {
    "darwin": tuple(
        f"{folder}{name}"
        for name in ("libvulkan.1.dylib", "libMoltenVK.dylib")
        for folder in ("", "/opt/homebrew/lib/", "/usr/local/lib/")
    ),
}
"""By platform, the libraries to try where the one that the binding knows isn't found: Homebrew's folder is none that
macOS looks into, and MoltenVK can be used without a loader."""
_HOW_TO_GET_A_LOADER = {
    "darwin": "libvulkan.dylib) on this machine; install it with MoltenVK (`brew install vulkan-loader molten-vk`)",
    "win32": "vulkan-1.dll) on this machine; it comes with the driver of the GPU",
}
_HOW_TO_GET_ONE_ON_LINUX = (
    "libvulkan.so.1) on this machine; install it with a driver (Debian: `apt install libvulkan1 mesa-vulkan-drivers`)"
)


def _find_loader() -> tuple[Any, str]:
    """The binding's cffi, and a loader that it can open.

    Raises:
        DeviceError: there is none.
    """
    # Where the binding's own import has failed, that of its C declarations has not.
    ffi: Any = getattr(sys.modules.get("vulkan._vulkancache"), "ffi", None)
    for name in _MORE_LOADERS.get(sys.platform, ()) if ffi is not None else ():
        try:
            ffi.dlopen(name)
        except OSError:
            continue
        return ffi, name
    raise DeviceError(f"no Vulkan loader ({_HOW_TO_GET_A_LOADER.get(sys.platform, _HOW_TO_GET_ONE_ON_LINUX)}")


def _binding_with_loader(ffi: Any, loader: str) -> ModuleType:
    """The binding, imported while its cffi opens ``loader`` by whatever name it is asked for."""
    declarations = sys.modules["vulkan._vulkancache"]
    declarations.ffi = _OneLibrary(ffi, loader)  # type: ignore[attr-defined]
    try:
        binding = importlib.import_module("vulkan")
    finally:
        declarations.ffi = ffi  # type: ignore[attr-defined]
    binding.ffi = sys.modules["vulkan._vulkan"].ffi = ffi  # type: ignore[attr-defined]
    return binding


class _OneLibrary:
    """A cffi object, but every library is the same one."""

    def __init__(self, ffi: Any, library: str) -> None:
        self._ffi = ffi
        self._library = library

    def dlopen(self, name: str, *flags: int) -> Any:
        return self._ffi.dlopen(self._library, *flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ffi, name)


def __getattr__(name: str) -> Any:
    if name.startswith(_EXPORTED):
        value = globals()[name] = getattr(_binding(), name)  # found at once from now on
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check(result: int, action: str) -> None:
    """Raise if a Vulkan call failed.

    Raises:
        DeviceLostError: the device is lost.
        DeviceError: ``result`` is another error code; the message says what was tried.
    """
    if result < 0:
        name = _result_name(result)
        kind = DeviceLostError if name == _LOST else DeviceError
        raise kind(f"can't {action}: {name}{_ADVICE.get(name, '')}")


_LOST = "VK_ERROR_DEVICE_LOST"
_USE_LESS = "use a smaller input or batch, or close other models"
_ADVICE = {
    "VK_ERROR_OUT_OF_DEVICE_MEMORY": f" (device memory is exhausted; {_USE_LESS})",
    "VK_ERROR_OUT_OF_HOST_MEMORY": f" (host memory is exhausted; {_USE_LESS})",
    _LOST: " (the device stopped answering: a driver ends what runs for seconds, or was reset; the next call opens the "
    "device anew)",
    "VK_ERROR_INCOMPATIBLE_DRIVER": " (no driver is installed; Debian: `apt install mesa-vulkan-drivers`)",
    "VK_ERROR_INITIALIZATION_FAILED": " (the driver could not start; is the device in use or its driver damaged?)",
    "VK_ERROR_LAYER_NOT_PRESENT": " (Debian: `apt install vulkan-validationlayers`)",
}


def _result_name(result: int) -> str:
    binding = _binding()
    names = (name for name in vars(binding) if name.startswith("VK_ERROR_") and getattr(binding, name) == result)
    return next(names, f"VkResult {result}")


# What a structure points to must outlive it.
_pointed_to: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def struct(name: str, **fields: Any) -> Handle:
    """A pointer to a new structure; ``sType`` is filled in, strings and lists become C strings and arrays.

    A structure given for a pointer field is a pointer that this function returned; it is kept alive.
    """
    ffi = _binding().ffi
    pointer = ffi.new(f"{name}*")
    kept = [_fill(pointer, field, value) for field, value in fields.items()]
    if "sType" not in fields and hasattr(pointer, "sType"):
        pointer.sType = _structure_types()[name.removeprefix("Vk").upper()]
    _pointed_to[pointer] = kept
    return pointer


def _fill(pointer: Handle, field: str, value: Any) -> Any:
    """Set one field of a structure; returns what must be kept alive as long as the structure."""
    ffi = _binding().ffi
    kind = _field_type(ffi.typeof(pointer[0]), field)
    if kind.kind == "struct":
        setattr(pointer, field, value[0])
        return value
    if kind.kind == "pointer":
        if isinstance(value, list):
            value = _array(ffi, kind.item, value)
        elif isinstance(value, (str, bytes)):
            value = ffi.new("char[]", value.encode() if isinstance(value, str) else value)
        setattr(pointer, field, ffi.cast(kind, value))
        return value
    setattr(pointer, field, value)
    return value


def _array(ffi: Any, item: Any, values: list[Any]) -> Any:
    """A C array; structures are copied in by value, strings as pointers."""
    kept: list[Any] = list(values)
    if item.kind == "struct":
        array = ffi.new(f"{item.cname}[]", [value[0] for value in values])
    elif item.kind == "pointer" and values and isinstance(values[0], str):
        kept = [ffi.new("char[]", value.encode()) for value in values]
        array = ffi.new("char*[]", kept)
    else:
        array = ffi.new(f"{item.cname}[]", values)
    _pointed_to[array] = kept
    return array


def number(handle: Handle) -> int:
    """A handle as 64 bits: what descriptor update templates read."""
    return int(_binding().ffi.cast("uint64_t", handle))


@cache
def _field_type(structure: Any, field: str) -> Any:
    return dict(structure.fields)[field].type


@cache
def _structure_types() -> dict[str, int]:
    """Values of VK_STRUCTURE_TYPE_..., by the structure's name in capitals without its ``Vk``."""
    prefix = "VK_STRUCTURE_TYPE_"
    found = {name: value for name, value in vars(_binding()).items() if name.startswith(prefix)}
    return {name.removeprefix(prefix).replace("_", ""): value for name, value in found.items()}


def string(characters: Handle) -> str:
    """A C string or character array as text."""
    text: bytes = _binding().ffi.string(characters)
    return text.decode("utf-8", "replace")
