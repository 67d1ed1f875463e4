"""No table of operators' names stands outside of their records: tables drift apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mobopt.ops.schemas  # noqa: F401  # registers operators that are no library's
from mobopt.ir.schemas import schemas_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("mobopt", "passes", "runtimes", "shaders")
LEAST = 3
"""A collection of so many names of operators is a table."""

ALLOWED = {
    "mobopt/ops/records": "the records",
    "mobopt/ops/targets": "bounds of results that rows ask for, and the words of their conditions",
    "mobopt/bundle": "the formats of files: which operators a writer spells or numbers in a way of its own",
    "mobopt/frontends/exported": "what exporting calls operators, and functions of Python on sizes",
    "mobopt/tools/requirements.py": "the releases that have an operator: verdicts, by release",
    "mobopt/tools/accuracy_functions.py": "bars of accuracy, by function",
    "passes/clear_lanes.py": "what the kernels of one target leave in unused lanes",
    "passes/fuse_clamp.py": "the operators of one fusion",
    "passes/legalizations": "what one rewrite takes, beside the row that names it",
    "passes/metal_rewrites.py": "the operators of one rewrite",
    "passes/number_operands.py": "the operators of one rewrite",
    "passes/constant_folding.py": "what one pass leaves alone",
    "passes/quantize_static.py": "what torch has for quantised tensors, for one rewrite",
    "passes/quantized_forms.py": "what stands for a layer there, for the same rewrite",
    "passes/remove_list_mutation.py": "the operators of one rewrite",
    "passes/constant_propagation.py": "the operators of one rewrite",
    "passes/rank_bounds.py": "comparisons with their sides swapped, for one rewrite",
    "runtimes/cpu": "functions by the operators that they compute",
    "runtimes/vulkan/kernels/convolution_parameters.py": "names of one family of kernels",
    "runtimes/vulkan/lowerings/pointwise.py": "how torch's CPU kernels round halves",
    "runtimes/vulkan/lowerings/pointwise_expressions.py": "expressions by the operators that they compute",
    "runtimes/vulkan/lowerings/resize.py": "names of one family of kernels",
}
"""Files and folders with tables of another kind, and what kind."""


def _known(word: str) -> bool:
    name = word.partition(".")[0]
    return bool(name.replace("::", "").isidentifier()) and bool(schemas_of(name if "::" in name else f"aten::{name}"))


def _words(node: ast.AST) -> list[str]:
    """The words of a collection's strings, or of the keys of a dictionary; of a long string, too."""
    items: list[ast.expr | None] = []
    match node:
        case ast.Set(elts=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
            items = list(elements)
        case ast.Dict(keys=keys):
            items = list(keys)
        case ast.Constant(value=str()):
            items = [node] if len(node.value.split()) >= LEAST else []
    strings = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [word for text in strings for word in text.split()]


def _is_registration(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a collection only says which function is for which operator, in a decorator or by its values."""
    if isinstance(node, ast.Dict):
        return all(isinstance(value, (ast.Name, ast.Lambda, ast.Attribute, ast.Call)) for value in node.values)
    while node in parents:
        parent = parents[node]
        if isinstance(parent, ast.FunctionDef) and node in parent.decorator_list:
            return True
        node = parent
    return False


def _is_docstring(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    return isinstance(node, ast.Constant) and isinstance(parents.get(node), ast.Expr)


def tables(source: str) -> Iterator[tuple[int, list[str]]]:
    """Lines and names of the tables of a module."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        words = _words(node)
        if len(words) < LEAST or _is_docstring(node, parents) or _is_registration(node, parents):
            continue
        names = [word for word in words if _known(word)]
        if len(names) >= max(LEAST, 0.8 * len(words)):
            yield getattr(node, "lineno", 0), names


def _files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def _lies_in(path: Path, place: str) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return name == place or name.startswith(f"{place}/")


def test_no_table_outside_of_the_records() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(names[:4])}..."
        for path in _files()
        if not any(_lies_in(path, place) for place in ALLOWED)
        for line, names in tables(path.read_text())
    ]
    assert not found, "give these operators a trait in mobopt/ops/records, and ask for it"


@pytest.mark.parametrize("place", ALLOWED)
def test_every_exception_is_needed(place: str) -> None:
    assert any(any(tables(path.read_text())) for path in _files() if _lies_in(path, place))


@pytest.mark.parametrize(
    "source",
    [
        '_VIEWS = {"aten::view", "aten::reshape", "aten::flatten"}',
        '_VIEWS = frozenset(f"aten::{name}" for name in ("view", "reshape", "flatten"))',
        'def f(node):\n    return node.op in ("aten::view", "aten::reshape", "aten::flatten")',
        '_VIEWS = "view reshape flatten".split()',
        '_RANKS = {"aten::mm": 2, "aten::bmm": 3, "aten::addmm": 2}',
    ],
)
def test_a_table_is_seen(source: str) -> None:
    assert [len(names) for _, names in tables(source)] == [3]


@pytest.mark.parametrize(
    "source",
    [
        '@lowers("aten::view", "aten::reshape", "aten::flatten")\ndef f():\n    pass',
        '@rule(*("view", "reshape", "flatten"))\ndef f():\n    pass',
        '_RULES = {"aten::mm": _product, "aten::bmm": _product, "aten::addmm": _sum}',
        '"""Takes view, reshape and flatten."""',
        '_NAMES = ("alpha beta", "gamma delta")',
    ],
)
def test_registrations_and_prose_are_none(source: str) -> None:
    assert not list(tables(source))
