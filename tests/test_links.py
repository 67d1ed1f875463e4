"""Links of pages lead to files that are there, and to headings that these have."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def targets(text: str) -> list[str]:
    """What a page links to, outside of its code."""
    return re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text)))


def anchors(text: str) -> set[str]:
    """Anchors of a page as GitHub makes them of its headings; of equal ones, the later are numbered."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.*?) *$", _BLOCK.sub("", text), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@cache
def anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text(encoding="utf-8"))


def is_alive(target: str, page: Path) -> bool:
    if target.startswith(("https://", "http://", "mailto:")):
        return True
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not anchor or (file.suffix == ".md" and anchor in anchors_of(file)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    found = targets(page.read_text(encoding="utf-8"))
    assert [target for target in found if not is_alive(target, page)] == []


def test_dead_links_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# A `b_c`, d\n\n## Twice\n## Twice\n[x](#a-b_c-d) `[y](no)`\n```\n# no heading [z](no)\n```\n"
    page.write_text(text, encoding="utf-8")
    assert anchors(text) == {"a-b_c-d", "twice", "twice-1"} and targets(text) == ["#a-b_c-d"]
    for target in ("#a-b_c-d", "#twice-1", "page.md#twice", ".", "https://example.org/no"):
        assert is_alive(target, page), target
    for target in ("#twice-2", "other.md", "page.md#a-b", "#no-heading-z"):
        assert not is_alive(target, page), target
    assert len(PAGES) > 15
