"""Code on pages: Python compiles and names what mobopt has, shells parse it, and commands have the options shown.

That README's own examples run is tested in ``test_readme.py``.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mobopt

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for folder in ("", "docs", "examples", "tests/genuine", "tests/conformance")
    for path in (ROOT / folder).glob("*.md")
)


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """Blocks of a page in some languages, with the line at which each begins."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.finditer(rf"^ *```(?:{'|'.join(languages)})\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        lines = found[1].splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        yield text.count("\n", 0, found.start(1)) + 1, "\n".join(line[indent:] for line in lines)


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(True for _ in blocks(page, *languages))]


@pytest.mark.parametrize("page", pages_with("python"), ids=str)
def test_python(page: Path) -> None:
    for line, code in blocks(page, "python"):
        place = f"{page}:{line}"
        tree = ast.parse(code, filename=place)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mobopt":
                module = importlib.import_module(str(node.module))
                missing = [item.name for item in node.names if not hasattr(module, item.name)]
                assert not missing, f"{place}: {node.module} has no {missing}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mobopt":
                assert hasattr(mobopt, node.attr), f"{place}: mobopt has no {node.attr}"


@pytest.mark.parametrize("page", pages_with("bash", "sh", "console"), ids=str)
def test_shell(page: Path) -> None:
    for line, code in [*blocks(page, "bash", "sh"), *((line, typed(code)) for line, code in blocks(page, "console"))]:
        found = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
        assert found.returncode == 0, f"{page}:{line}: {found.stderr}"


def typed(code: str) -> str:
    """What is typed in a console, without what it answers."""
    lines = code.splitlines()
    kept = [line for number, line in enumerate(lines) if line.startswith("$ ") or _goes_on(lines[:number])]
    return "\n".join(line.removeprefix("$ ") for line in kept)


def _goes_on(before: list[str]) -> bool:
    return bool(before) and before[-1].endswith("\\")


def test_mistakes_are_seen() -> None:
    assert typed("$ a \\\n  b\nanswer\n$ c") == "a \\\n  b\nc"
    assert len(pages_with("python")) >= 4 and len(pages_with("bash", "sh", "console")) >= 7
