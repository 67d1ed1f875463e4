"""The page of accuracies is made from the files in the repository, and has every function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mobopt.tools.accuracy_functions import functions
from mobopt.tools.accuracy_page import accuracy_page

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "accuracy").glob("*.json"))
DRIVERS = ["lavapipe", "nvidia", "swiftshader"]


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "accuracy.md").read_text(encoding="utf-8") == accuracy_page(FILES), (
        "python -m mobopt.tools.accuracy_page docs/accuracy/*.json > docs/accuracy.md"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_measured_is_within_its_bar(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))["functions"]
    bars = {function.name: function.bar for function in functions()}
    assert found and found.keys() <= bars.keys()
    for name, row in found.items():
        assert row["ulp"] <= bars[name], f"{name}: {row}"
        assert not row["special"], f"{name}: {row}"


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_function_was_measured_on_each_driver(driver: str) -> None:
    found = json.loads((DOCS / f"accuracy/{driver}.json").read_text(encoding="utf-8"))["functions"]
    assert list(found) == [function.name for function in functions()]


def test_every_function_is_a_line_with_a_cell_for_each_driver() -> None:
    lines = [line for line in accuracy_page(FILES).splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[1:]] == [f.name for f in functions()]
    assert {line.count("|") for line in lines} == {4 + 2 * len(FILES)}


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"device": "A GPU (x)", "driver": "d", "mantissas": 1, "functions": {}}))
    page = accuracy_page([path])
    assert page.count("not measured") == len(functions())
    assert "| A GPU | subnormals |" in page
