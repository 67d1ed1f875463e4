"""GLSL compute shaders: the table of their variants, and the SPIR-V that was built from them.

``variants.toml`` has one table per variant::

    [add_vec4]
    source = "add.comp"            # in shaders/glsl
    defines = { VECTOR = 4 }       # optional; true stands for a name without a value
    requires = ["float16"]         # optional; features of DeviceInfo that the device must have
    chains = true                  # optional; adds the variant add_vec4_chained, see glsl/chain_end.glsl; "ahead": it
                                   # reads constants before it waits, so it calls wait_for_operands itself

``python -m mobopt.shaders.build`` compiles them; wheels carry the result.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache

from .expand import expand
from .table import CHAINED, GLSL_FOLDER, SHADERS_FOLDER, SPIRV_FOLDER, TABLE, ShaderError, Variant, variants

__all__ = ["CHAINED", "ShaderError", "Variant", "fingerprint", "is_built", "load", "variants"]


def load(name: str) -> bytes:
    """The SPIR-V of a variant.

    Raises:
        ShaderError: there is no such variant, it hasn't been built, or its source has changed since.
    """
    if name not in variants():
        raise ShaderError(f"there is no shader variant {name!r}; add a row to shaders/variants.toml")
    path = SPIRV_FOLDER / f"{name}.spv"
    try:
        spirv = path.read_bytes()
    except FileNotFoundError:
        raise ShaderError(
            f"shader variant {name!r} has not been compiled ({path} is missing); run `python -m mobopt.shaders.build`"
        ) from None
    if _is_stale(name):
        raise ShaderError(
            f"shader variant {name!r} was compiled before its source changed, as after an update of a checkout; run "
            "`python -m mobopt.shaders.build`"
        )
    return spirv


def _is_stale(name: str) -> bool:
    """Whether a variant was compiled of another text: its numbers would be wrong beside the host's new code."""
    built = _texts_to_check()
    if built is None:
        return False
    text = expand(variants()[name], GLSL_FOLDER)
    return built.get(name) != hashlib.sha256(text.encode()).hexdigest()


@cache
def _texts_to_check() -> dict[str, str] | None:
    """Hashes of what variants were compiled of; None if all that texts are made of is older, as builds leave it, or
    this is no checkout."""
    manifest = SPIRV_FOLDER / "manifest.json"
    if not (SHADERS_FOLDER.parent / "pyproject.toml").exists():
        return None
    if not manifest.exists():
        return {}
    sources = [TABLE, *GLSL_FOLDER.glob("*"), *SHADERS_FOLDER.glob("*.py")]
    built = manifest.stat().st_mtime_ns
    if all(source.stat().st_mtime_ns <= built for source in sources):
        return None
    return {name: entry["text"] for name, entry in json.loads(manifest.read_bytes()).items()}


@cache
def is_built(name: str) -> bool:
    """Whether a variant was built: an old compiler leaves out what it has no extension for."""
    return (SPIRV_FOLDER / f"{name}.spv").is_file()


def fingerprint() -> bytes:
    """Bytes that change whenever any compiled shader does."""
    path = SPIRV_FOLDER / "manifest.json"
    return path.read_bytes() if path.exists() else b""
