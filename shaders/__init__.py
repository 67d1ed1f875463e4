"""GLSL compute shaders: the table of their variants, and the SPIR-V that was built from them.

``variants.toml`` has one table per variant::

    [add_vec4]
    source = "add.comp"            # in shaders/glsl
    defines = { VECTOR = 4 }       # optional; true stands for a name without a value
    requires = ["float16"]         # optional; features of DeviceInfo that the device must have
    chains = true                  # optional; adds the variant add_vec4_chained, see glsl/chain_end.glsl

``python -m mobopt.shaders.build`` compiles them; wheels carry the result.
"""

from __future__ import annotations

from functools import cache

from .table import CHAINED, SPIRV_FOLDER, ShaderError, Variant, variants

__all__ = ["CHAINED", "ShaderError", "Variant", "fingerprint", "is_built", "load", "variants"]


def load(name: str) -> bytes:
    """The SPIR-V of a variant.

    Raises:
        ShaderError: there is no such variant, or it hasn't been built.
    """
    if name not in variants():
        raise ShaderError(f"there is no shader variant {name!r}; add a row to shaders/variants.toml")
    path = SPIRV_FOLDER / f"{name}.spv"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ShaderError(
            f"shader variant {name!r} has not been compiled ({path} is missing); run `python -m mobopt.shaders.build`"
        ) from None


@cache
def is_built(name: str) -> bool:
    """Whether a variant was built: an old compiler leaves out what it has no extension for."""
    return (SPIRV_FOLDER / f"{name}.spv").is_file()


def fingerprint() -> bytes:
    """Bytes that change whenever any compiled shader does."""
    path = SPIRV_FOLDER / "manifest.json"
    return path.read_bytes() if path.exists() else b""
