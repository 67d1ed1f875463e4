"""The rooms of the Vulkan runtime import downwards only, and no module imports what imports it."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mobopt import runtimes

_ROOT = Path(runtimes.__file__).parent / "vulkan"
_PACKAGE = "mobopt.runtimes.vulkan."
_ROOMS = ("engine", "kernels", "lowerings", "compile")
"""From below."""


def _modules() -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(_ROOT.rglob("*.py"))
        if path.name != "__init__.py"
    }


def _imports(tree: ast.Module) -> Iterator[str]:
    """Modules of the runtime that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            module = str(node.module).removeprefix(_PACKAGE)
            yield from ([f"{module}.{name.name}" for name in node.names] if module in _ROOMS else [module])


def test_no_module_imports_what_imports_it() -> None:
    graph = {name: set(_imports(tree)) for name, tree in _modules().items()}
    assert graph["engine.executable"] >= {"engine.lane", "engine.device"}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("room", _ROOMS)
def test_rooms_import_downwards(room: str) -> None:
    above = {f"{other}." for other in _ROOMS[_ROOMS.index(room) + 1 :]} | {"program"}
    wrong = [
        f"{name} imports {other}"
        for name, tree in _modules().items()
        if name.startswith(f"{room}.")
        for other in _imports(tree)
        if other.startswith(tuple(above))
    ]
    assert not wrong
