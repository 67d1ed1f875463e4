"""Compile every shader variant to SPIR-V: ``python -m mobopt.shaders.build``.

Runs when the package is built, for wheels and editable installs alike, so users need no compiler. A variant is
compiled again only if its text, a file that it includes, its macros, the options or its SPIR-V changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# Relative, because the build backend runs this as `shaders.build`, before mobopt is installed.
from .table import GLSL_FOLDER, SPIRV_FOLDER, TABLE, ShaderError, Variant, parse_table

JOBS = 2
OPTIONS = ("--target-env=vulkan1.1", "-O")
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class BuildResult:
    """Names of the variants that were compiled, and of those that were up to date."""

    compiled: tuple[str, ...]
    current: tuple[str, ...]


def build(glsl_folder: Path = GLSL_FOLDER, spirv_folder: Path = SPIRV_FOLDER, table: Path = TABLE) -> BuildResult:
    """Bring the SPIR-V of every variant up to date, and remove what no variant names.

    Raises:
        ShaderError: ``glslc`` is missing, or variants don't compile (each is named, with the compiler's messages).
    """
    rows = parse_table(table.read_text(encoding="utf-8"))
    spirv_folder.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(spirv_folder)
    wanted = {name: _digest(row, glsl_folder) for name, row in rows.items()}
    found = {name: _entry(wanted[name], spirv_folder / f"{name}.spv") for name in rows}
    stale = [name for name in rows if found[name] is None or found[name] != manifest.get(name)]
    compiler = _compiler() if stale else ""
    with ThreadPoolExecutor(JOBS) as pool:
        failures = list(pool.map(lambda name: _compile(compiler, rows[name], glsl_folder, spirv_folder), stale))
    errors = {name: failure for name, failure in zip(stale, failures, strict=True) if failure}
    built = {name: _entry(wanted[name], spirv_folder / f"{name}.spv") for name in rows if name not in errors}
    if built != manifest:
        _write_atomically(spirv_folder / "manifest.json", json.dumps(built, indent=0, sort_keys=True).encode())
    _remove_leftovers(spirv_folder, built)
    if errors:
        messages = "\n".join(f"{name}: {message}" for name, message in errors.items())
        raise ShaderError(f"{len(errors)} of {len(rows)} shader variants don't compile:\n{messages}")
    return BuildResult(tuple(stale), tuple(name for name in rows if name not in stale))


def _compiler() -> str:
    path = shutil.which("glslc")
    if path is None:
        raise ShaderError(
            "the shader compiler glslc is not on PATH; install it "
            "(Debian: `apt install glslc`, elsewhere: the Vulkan SDK)"
        )
    return path


def _digest(variant: Variant, glsl_folder: Path) -> str:
    """Hash of everything that a variant's SPIR-V is made from."""
    digest = hashlib.sha256(repr((variant.source, variant.defines, OPTIONS)).encode())
    for path in _sources(glsl_folder / variant.source, variant.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _sources(path: Path, variant: str) -> Iterator[Path]:
    """A shader's file and every file that it includes, each once."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        if not current.is_file():
            raise ShaderError(f"shader variant {variant!r} needs {current}, which doesn't exist")
        seen.add(current)
        yield current
        waiting.extend(current.parent / name.decode() for name in _INCLUDE.findall(current.read_bytes()))


def _compile(compiler: str, variant: Variant, glsl_folder: Path, spirv_folder: Path) -> str | None:
    """Compile one variant; returns the compiler's messages if it fails."""
    macros = [f"-D{name}={value}" if value else f"-D{name}" for name, value in variant.defines]
    source = glsl_folder / variant.source
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.spv"
        options = [*OPTIONS, "-fshader-stage=compute", "-I", str(glsl_folder), *macros]
        result = subprocess.run([compiler, *options, str(source), "-o", str(target)], capture_output=True, text=True)
        if result.returncode:
            return (result.stderr or result.stdout).strip()
        _write_atomically(spirv_folder / f"{variant.name}.spv", target.read_bytes())
    return None


def _entry(source_digest: str, spirv: Path) -> dict[str, str] | None:
    """What the manifest says of a variant: hashes of its sources and of its SPIR-V; None if it isn't built."""
    if not spirv.is_file():
        return None
    return {"sources": source_digest, "spirv": hashlib.sha256(spirv.read_bytes()).hexdigest()}


def _read_manifest(spirv_folder: Path) -> dict[str, object]:
    try:
        manifest = json.loads((spirv_folder / "manifest.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _remove_leftovers(spirv_folder: Path, names: Iterable[str]) -> None:
    keep = {f"{name}.spv" for name in names}
    for path in spirv_folder.glob("*.spv"):
        if path.name not in keep:
            path.unlink(missing_ok=True)


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def main() -> int:
    """Build, and say what was done."""
    try:
        result = build()
    except ShaderError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{len(result.compiled)} shader variants compiled, {len(result.current)} up to date\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
