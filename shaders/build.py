"""Compile every shader variant to SPIR-V: ``python -m mobopt.shaders.build``.

Runs when the package is built, for wheels and editable installs alike, so users need no compiler. A variant is
compiled again only if its text, a file that it includes, its macros, the compiler or its SPIR-V changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# Relative, because the build backend runs this as `shaders.build`, before mobopt is installed.
from .compilers import CompileError, Compiler, find_compiler, need_compiler
from .expand import expand
from .table import GLSL_FOLDER, SPIRV_FOLDER, TABLE, ShaderError, Variant, parse_table

JOBS = 2


@dataclass(frozen=True)
class BuildResult:
    """Names of the variants that were compiled, and of those that were up to date."""

    compiled: tuple[str, ...]
    current: tuple[str, ...]
    compiler: str | None
    """Name, version and options of the compiler; None if there is none, and all was up to date."""


def build(glsl_folder: Path = GLSL_FOLDER, spirv_folder: Path = SPIRV_FOLDER, table: Path = TABLE) -> BuildResult:
    """Bring the SPIR-V of every variant up to date, and remove what no variant names.

    Where there is no compiler, SPIR-V of any compiler is up to date if it was made from the same text.

    Raises:
        ShaderError: there is no compiler for what isn't up to date, a file is missing, or variants don't compile
            (each is named, with the compiler's messages).
    """
    rows = parse_table(table.read_text(encoding="utf-8"))
    spirv_folder.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(spirv_folder)
    compiler = find_compiler()
    texts = {name: expand(row, glsl_folder) for name, row in rows.items()}
    current = {
        name: entry
        for name, entry in manifest.items()
        if name in rows and _is_current(entry, texts[name], compiler, spirv_folder / f"{name}.spv")
    }
    stale = [name for name in rows if name not in current]
    errors: dict[str, CompileError] = {}
    if stale:
        compiled, errors = _compile_all(need_compiler(compiler), {name: texts[name] for name in stale}, spirv_folder)
        current.update(compiled)
        # An old compiler knows no cooperative matrices, or no bfloat16; devices do without them then.
        errors = {name: error for name, error in errors.items() if not _lacks_units(rows[name], error)}
    if current != manifest:
        _write_atomically(spirv_folder / "manifest.json", json.dumps(current, indent=0, sort_keys=True).encode())
    else:
        (spirv_folder / "manifest.json").touch()  # nothing is older than its source
    _remove_leftovers(spirv_folder, current)
    if errors:
        messages = "\n".join(f"{name}: {message}" for name, message in errors.items())
        raise ShaderError(f"{len(errors)} of {len(rows)} shader variants don't compile:\n{messages}")
    identity = compiler.identity if compiler is not None else None
    return BuildResult(tuple(stale), tuple(name for name in rows if name not in stale), identity)


_UNIT_EXTENSIONS = {"matrix_units": "GL_KHR_cooperative_matrix", "bfloat16_units": "GL_EXT_bfloat16"}
"""By the feature that variants require which use them."""


def _lacks_units(row: Variant, error: CompileError) -> bool:
    return any(feature in row.requires and name in str(error) for feature, name in _UNIT_EXTENSIONS.items())


Entry = dict[str, str]
"""What the manifest says of a variant: the compiler, and the hashes of its text and of its SPIR-V."""


def _is_current(entry: Entry, text: str, compiler: Compiler | None, spirv: Path) -> bool:
    """Whether a variant's SPIR-V is what would be made now."""
    if not spirv.is_file():
        return False
    identity = compiler.identity if compiler is not None else entry.get("compiler", "")
    return entry == _entry(identity, text, spirv.read_bytes())


def _entry(identity: str, text: str, spirv: bytes) -> Entry:
    return {"compiler": identity, "text": _digest(text.encode()), "spirv": _digest(spirv)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compile_all(
    compiler: Compiler, texts: dict[str, str], spirv_folder: Path
) -> tuple[dict[str, Entry], dict[str, CompileError]]:
    """Compile texts into a folder: entries of those that compile, errors of those that don't."""

    def compile_one(name: str) -> Entry | CompileError:
        try:
            spirv = compiler.compile(texts[name])
        except CompileError as error:
            return error
        _write_atomically(spirv_folder / f"{name}.spv", spirv)
        return _entry(compiler.identity, texts[name], spirv)

    with ThreadPoolExecutor(JOBS) as pool:
        results = dict(zip(texts, pool.map(compile_one, texts), strict=True))
    errors = {name: result for name, result in results.items() if isinstance(result, CompileError)}
    return {name: result for name, result in results.items() if not isinstance(result, CompileError)}, errors


def _read_manifest(spirv_folder: Path) -> dict[str, Entry]:
    """The entries of the last build; none if the file is missing or damaged."""
    try:
        manifest = json.loads((spirv_folder / "manifest.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(manifest, dict):
        return {}
    return {name: entry for name, entry in manifest.items() if isinstance(entry, dict)}


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
    how = f" by {result.compiler}" if result.compiled else ""
    sys.stdout.write(f"{len(result.compiled)} shader variants compiled{how}, {len(result.current)} up to date\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
