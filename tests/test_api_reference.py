"""Public names say what they take, give and raise, and the reference that is built of their docstrings has them all."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mobopt

BUILDER = Path(__file__).parent.parent / "docs" / "build_api.py"
FUNCTIONS = [name for name in mobopt.__all__ if inspect.isfunction(getattr(mobopt, name))]
RESULTS = [name for name in mobopt.__all__ if dataclasses.is_dataclass(getattr(mobopt, name))]


def section(text: str, title: str) -> str:
    """What stands under ``Args:`` or the like, without its indentation."""
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n|\n)*)", text + "\n", re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ""


def described(lines: str) -> set[str]:
    return set(re.findall(r"^(\w+):", lines, re.MULTILINE))


def fields_with_docstrings(cls: type) -> Iterator[str]:
    """Fields that a string follows, and those under ``Attributes:``."""
    yield from described(section(inspect.getdoc(cls) or "", "Attributes"))
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for item, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(after, ast.Expr):
            yield item.target.id


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_say_what_they_take_give_and_raise(name: str) -> None:
    function: Any = getattr(mobopt, name)
    text = inspect.getdoc(function) or ""
    taken = [item.name for item in inspect.signature(function).parameters.values() if not item.name.startswith("_")]
    assert set(taken) <= described(section(text, "Args")), name
    assert section(text, "Returns") or not taken, name
    assert section(text, "Raises") or not taken, name


@pytest.mark.parametrize("name", RESULTS)
def test_results_say_what_their_fields_are(name: str) -> None:
    cls = getattr(mobopt, name)
    told = set(fields_with_docstrings(cls))
    assert [item.name for item in dataclasses.fields(cls) if item.name not in told] == []


def test_every_error_says_when_it_is_raised() -> None:
    errors = [getattr(mobopt, name) for name in mobopt.__all__ if name.endswith("Error")]
    assert len(errors) == 9 and all(issubclass(error, mobopt.MoboptError) for error in errors)
    assert all("__doc__" in vars(error) and len(error.__doc__) > 30 for error in errors)


@pytest.mark.sweep
def test_the_reference_has_all_of_it(tmp_path: Path) -> None:
    """By pdoc, which the extra ``docs`` brings: no docstring that it can't read, no link that leads nowhere."""
    done = subprocess.run([sys.executable, str(BUILDER), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "mobopt.html").read_text(encoding="utf-8")
    assert [name for name in mobopt.__all__ if f'<section id="{name}">' not in page] == []
    assert 'id="MobileModule.run_on_device"' in page and ":func:" not in page and "<h6" in page
