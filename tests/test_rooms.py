"""Rooms import in one direction: each from those below it, wherever in a file the import stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"mobopt": "mobopt", "passes": "mobopt.passes", "runtimes": "mobopt.runtimes", "shaders": "mobopt.shaders"}
"""Where the folders of the repository lie in the package."""

ROOMS = {
    "mobopt": "face",
    "mobopt.__main__": "commands",
    "mobopt.bundle": "bundle",
    "mobopt.commands": "commands",
    "mobopt.deprecations": "deprecations",
    "mobopt.display": "display",
    "mobopt.environment": "environment",
    "mobopt.errors": "errors",
    "mobopt.exporters": "exporters",
    "mobopt.files": "files",
    "mobopt.frontends": "frontends",
    "mobopt.integrations": "integrations",
    "mobopt.ir": "ir",
    "mobopt.lints": "optimizer",
    "mobopt.module": "module",
    "mobopt.onnx_backend": "onnx_backend",
    "mobopt.ops": "ops",
    "mobopt.optimizer": "optimizer",
    "mobopt.options": "options",
    "mobopt.passes": "passes",
    "mobopt.runtimes": "runtimes",
    "mobopt.runtimes.vulkan": "vulkan",
    "mobopt.runtimes.vulkan.compile": "compile",
    "mobopt.runtimes.vulkan.decompositions": "decompositions",
    "mobopt.runtimes.vulkan.engine": "engine",
    "mobopt.runtimes.vulkan.kernels": "kernels",
    "mobopt.runtimes.vulkan.lowerings": "lowerings",
    "mobopt.samples": "samples",
    "mobopt.shaders": "shaders",
    "mobopt.stand_in": "module",
    "mobopt.tools": "tools",
}
"""The room of a module, by the longest prefix of its name."""

_BELOW_VULKAN = "errors ir ops runtimes"
BELOW = {
    "deprecations": "",
    "display": "",
    "environment": "errors",
    "errors": "",
    "shaders": "",
    "files": "errors",
    "options": "errors",
    "ir": "errors",
    "ops": "errors ir",
    "bundle": "errors files ir ops",
    "runtimes": "errors ir ops",
    "passes": "errors ir ops options runtimes",
    "frontends": "deprecations errors bundle ir ops passes runtimes",
    "samples": "errors frontends ir ops passes runtimes",
    "exporters": "deprecations errors bundle ir ops options passes runtimes",
    "engine": "environment errors files shaders runtimes",
    "kernels": f"{_BELOW_VULKAN} engine shaders",
    "lowerings": f"{_BELOW_VULKAN} engine kernels shaders",
    "decompositions": f"{_BELOW_VULKAN} kernels lowerings",
    "compile": f"{_BELOW_VULKAN} engine kernels lowerings decompositions",
    "vulkan": f"{_BELOW_VULKAN} options engine kernels lowerings compile",
    "module": "deprecations errors bundle frontends ir ops options passes runtimes vulkan engine",
    "onnx_backend": "errors frontends ir module options engine",
    "optimizer": "errors frontends ir module ops options passes runtimes samples",
    "tools": (
        "deprecations errors bundle display exporters files frontends ir module ops optimizer options passes runtimes "
        "samples vulkan engine"
    ),
    "commands": "environment errors bundle display face files ops options passes samples tools engine",
    "integrations": "errors frontends ir ops optimizer options runtimes vulkan engine",
    "face": "errors frontends integrations engine module optimizer options passes tools",
}
"""What each room may import, beside itself."""

EXCEPTIONS = {
    ("mobopt.runtimes.vulkan.engine.profiling", "mobopt.ir.origin"): "the type of origins, which it hands on",
    ("mobopt.runtimes.vulkan.engine.stream", "mobopt.ir.origin"): "the type of origins, which it hands on",
    ("mobopt.tools.html_page", "mobopt"): "the version",
}
"""Imports between two modules in another direction, and why each is still there; the list may only shrink."""
ALLOWED_CIRCLES = (("mobopt.ir.graph", "mobopt.ir.node_list"),)
"""Modules that import each other; the list may only shrink."""
WITHOUT_TORCH_JIT = (
    "ir",
    "ops",
    "bundle",
    "passes",
    "runtimes",
    "samples",
    "engine",
    "kernels",
    "lowerings",
    "compile",
)
"""Rooms that know nothing of where a model came from."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed, by name."""
    found = {}
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = [package, *file.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules of the package that a module imports, also inside of functions and for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "mobopt":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "mobopt")


def room_of(module: str) -> str:
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    prefix = next(prefix for prefix in prefixes if prefix in ROOMS)
    assert prefix != "mobopt" or module == "mobopt", f"{module} is in no room; name its room in this file"
    return ROOMS[prefix]


def wrong_imports(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    pairs = {(name, other) for name, tree in trees.items() for other in imports_of(tree)}
    return {
        (name, other)
        for name, other in pairs
        if room_of(other) != room_of(name) and room_of(other) not in BELOW[room_of(name)].split()
    }


def circles(trees: dict[str, ast.Module]) -> list[tuple[str, ...]]:
    """Groups of modules that import each other, over any number of steps."""
    ahead = {name: {other for other in imports_of(tree) if other in trees} - {name} for name, tree in trees.items()}
    reach = {name: set(others) for name, others in ahead.items()}
    for middle in reach:
        for others in reach.values():
            if middle in others:
                others |= reach[middle]
    groups = {
        tuple(sorted(other for other in reach if name in reach[other] and other in reach[name])) for name in reach
    }
    return sorted(group for group in groups if group)


def test_rooms_import_from_those_below_them() -> None:
    assert wrong_imports(modules()) == set(EXCEPTIONS)


def test_no_module_imports_itself_over_others() -> None:
    assert circles(modules()) == list(ALLOWED_CIRCLES)


def test_the_directions_make_no_circle() -> None:
    order: list[str] = []
    while len(order) < len(BELOW):
        ready = [room for room in BELOW if room not in order and set(BELOW[room].split()) <= set(order)]
        assert ready, f"a circle among {set(BELOW) - set(order)}"
        order += ready


def test_only_sources_and_the_face_know_torch_jit() -> None:
    for name, tree in modules().items():
        if room_of(name) in WITHOUT_TORCH_JIT:
            for node in ast.walk(tree):
                imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not any(item.startswith("torch.jit") for item in imported), name
                assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.jit"), name


@pytest.mark.parametrize(
    ("source", "is_wrong"),
    [
        ("from mobopt.tools.audit import audit", True),
        ("def late():\n    import mobopt.optimizer", True),
        ("if TYPE_CHECKING:\n    from mobopt.passes.notes import Note", True),
        ("from mobopt import bundle", True),
        ("from mobopt.errors import GraphError", False),
        ("import torch", False),
    ],
)
def test_an_import_from_above_is_seen_wherever_it_stands(source: str, is_wrong: bool) -> None:
    assert bool(wrong_imports({"mobopt.ir.graph": ast.parse(source)})) == is_wrong


def test_a_circle_over_three_modules_is_seen() -> None:
    names = ["mobopt.ir.graph", "mobopt.ir.program", "mobopt.ir.verify"]
    trees = {
        name: ast.parse(f"def late():\n    import {other}")
        for name, other in zip(names, [*names[1:], names[0]], strict=True)
    }
    assert circles(trees) == [tuple(names)]
    assert circles({name: trees[name] for name in names[:2]}) == []
