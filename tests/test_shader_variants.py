"""Every shader variant that the runtime can name exists, is built and is valid; none is left over."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from mobopt import shaders

RUNTIME = Path(__file__).parent.parent / "runtimes" / "vulkan"
ANYTHING = r"\w+"
NEWER_CAPABILITIES = {
    "Invalid capability operand: 6022": "SPV_KHR_cooperative_matrix",
    "Invalid capability operand: 5116": "SPV_KHR_bfloat16",
}
"""What an old validator says of shaders for matrix units, and what it doesn't know."""


def texts(expression: ast.expr) -> set[str]:
    """Regular expressions of the strings that an expression can be; parts that are computed match anything."""
    if isinstance(expression, ast.Constant):
        return {re.escape(str(expression.value))}
    if isinstance(expression, ast.IfExp):
        return texts(expression.body) | texts(expression.orelse)
    if isinstance(expression, ast.FormattedValue):
        return texts(expression.value)
    if isinstance(expression, ast.JoinedStr):
        return {"".join(parts) for parts in product(*(texts(part) for part in expression.values))}
    return {ANYTHING}


def shader_parameters(trees: list[ast.Module]) -> dict[str, int]:
    """Functions that take a shader's name, and the position of that argument (self apart)."""
    found: dict[str, int] = {}
    for function in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        if "shader" in names:
            found[function.name] = names.index("shader")
    return found


def named_shaders() -> Iterator[str]:
    """A regular expression for each place of the runtime that names a shader."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(RUNTIME.rglob("*.py"))]
    positions = {**shader_parameters(trees), "Dispatch": 0}
    assert "dispatch" in positions
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.name == "shader":
            for result in (item for item in ast.walk(node) if isinstance(item, ast.Return) and item.value):
                yield from texts(result.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["shader"]:
            yield from texts(node.value)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if name in positions and ("shader" in given or positions[name] < len(node.args)):
                yield from texts(given.get("shader") or node.args[positions[name]])


def test_every_name_has_a_variant_and_every_variant_is_named() -> None:
    patterns = {pattern for pattern in named_shaders() if not pattern.startswith(ANYTHING)}
    assert len(patterns) > 5
    table = set(shaders.variants())
    missing = [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in table)]
    assert not missing
    # A helper that takes the stem and adds "_texels" or "_long" leaves a pattern that starts with anything. The engine
    # itself adds "_chained".
    stems = "|".join(sorted(patterns))
    assert not [name for name in table if not re.fullmatch(f"({stems})(_texels|_long|{shaders.CHAINED})?", name)]


@pytest.mark.parametrize("name", shaders.variants())
def test_each_variant_is_built_and_valid(name: str, tmp_path: Path) -> None:
    code = shaders.load(name)
    validator = shutil.which("spirv-val")
    if validator is None:
        assert not os.environ.get("CI"), "spirv-val is missing, and this check must not pass for success"
        pytest.skip("spirv-val is not installed (Debian: spirv-tools)")
    (tmp_path / "shader.spv").write_bytes(code)
    needs_memory_model = {"matrix_units", "device_memory_model"} & set(shaders.variants()[name].requires)
    environment = "vulkan1.2" if needs_memory_model else "vulkan1.1"
    done = subprocess.run(
        [validator, "--target-env", environment, "shader.spv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    for message, extension in NEWER_CAPABILITIES.items():
        if "matrix_units" in shaders.variants()[name].requires and message in done.stderr:
            pytest.skip(f"this spirv-val is older than {extension}")
    assert done.returncode == 0, done.stdout + done.stderr
