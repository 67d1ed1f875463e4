"""The page of targets is made from the rows, and is the one in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from mobopt.ops.targets.condition_parser import definitions
from mobopt.ops.targets.row import Row
from mobopt.ops.targets.table import all_rows
from mobopt.tools.target_page import releases_text, target_page

PAGE = Path(__file__).parents[2] / "docs" / "targets.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == target_page(), "python -m mobopt.tools.target_page > docs/targets.md"


def test_every_row_is_a_line_of_its_table() -> None:
    *sections, names = target_page().split("\n## ")[1:]
    assert [line.split("`")[1].partition("(")[0] for line in names.splitlines() if "`" in line] == list(definitions())
    assert [section.partition("\n")[0] for section in sections] == ["vulkan", "metal", "cpu"]
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        rows = all_rows(section.partition("\n")[0])
        assert len(lines) == len(rows) + bool(rows)
        for line in lines:
            assert line.replace("\\|", "").count("|") == 8, line


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [("1.13", "2.6", "all"), ("2.1", "2.6", "2.1 on"), ("1.13", "2.0", "to 2.0"), ("2.0", "2.2", "2.0 to 2.2")],
)
def test_releases_in_words(since: str, until: str, text: str) -> None:
    assert releases_text(Row(("aten::relu",), "native", since=since, until=until)) == text
