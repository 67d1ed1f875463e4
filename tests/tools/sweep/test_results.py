"""Tables, pages and differences of results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import swept_models
from wild import NETS as PUBLISHED

from mobopt.tools.sweep.changes import Changes, changes_of
from mobopt.tools.sweep.jobs import Job, Outcome
from mobopt.tools.sweep.matrix import Matrix, busy_text, problems_of
from mobopt.tools.sweep.page import page, write_page
from mobopt.tools.sweep.store import Result
from mobopt.tools.sweep.zoo_page import zoo_page

METAL = Job("convert", "metal")
AUDIT, CONVERT, BENCH = Job("audit"), Job("convert"), Job("bench", "vulkan", "mobopt", "llvmpipe")


def result(model: str, job: Job, state: str = "good", text: str = "", log: str = "", **data: object) -> Result:
    return Result(model, job, "", "", "0.1.0", Outcome(state, text, dict(data), log, 1.0, 1, "host"), "2026-01-01")


RESULTS = [
    result("a.pt", AUDIT, gpu_share=0.98, on_cpu=3),
    result("a.pt", CONVERT, error=2.5e-7),
    result("a.pt", BENCH, ms=[2.0, 3.0, 4.0], eager_ms=[1.5]),
    result("<b>&.pt", AUDIT, "bad", "2 missing", problems=["2 missing"]),
    result("<b>&.pt", CONVERT, "fault", "<script>alert(1)</script>\x1b[31m", "Traceback <i>"),
]


def test_the_matrix() -> None:
    matrix = Matrix.of(RESULTS)
    assert matrix.jobs == (AUDIT, CONVERT, BENCH) and matrix.states == ["good", "bad", "fault"]
    assert list(matrix.rows()) == [
        ("a.pt", ["98% GPU, 3 on CPU", "2.5e-07", "3 ms (2x eager)"]),
        ("<b>&.pt", ["bad: 2 missing", "fault", ""]),
    ]
    assert list(matrix.counts())[1] == ("convert vulkan 2.1", "1", "", "1")


def test_the_page_escapes_needs_no_network_and_links_problems(tmp_path: Path) -> None:
    write_page(RESULTS, tmp_path / "page.html", "s.sqlite")
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text and "\x1b" not in text and "<b>&" not in text and "Traceback <i>" not in text
    assert "&lt;b&gt;&amp;.pt" in text and "&lt;script&gt;alert(1)" in text and "Traceback &lt;i&gt;" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    links, places = re.findall(r'href="#(problem-\d+)"', text), re.findall(r'id="(problem-\d+)"', text)
    assert sorted(links) == places == ["problem-1", "problem-2"]
    assert "There are no results yet" in page([], "empty")


def kinds(found: Changes) -> list[str]:
    return [change.kind for change in found.changes]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (("good",), ("bad",), "wrong"),
        (("good",), ("timeout",), "wrong"),
        (("refused",), ("good",), "works"),
        (("refused",), ("crashed",), "otherwise"),
        (("bad",), ("bad",), None),
    ],
)
def test_states_that_change(before: tuple[str], after: tuple[str], kind: str | None) -> None:
    found = changes_of([result("a", CONVERT, *before)], [result("a", CONVERT, *after)])
    assert kinds(found) == ([kind] if kind else [])
    assert found.is_worse == (kind == "wrong") and found.same == (kind is None)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([10.0, 10.1, 10.2, 10.3], [12.0, 12.1, 12.2, 12.3], "slower"),
        ([10.0, 10.1, 10.2, 10.3], [10.4, 10.5, 10.6, 10.7], None),  # surely slower, by 4 percent
        ([8.0, 10.0, 12.5, 14.0], [9.0, 12.6, 12.7, 13.0], None),  # by 12 percent, within what calls vary
        ([12.0, 12.1, 12.2, 12.3], [10.0, 10.1, 10.2, 10.3], "faster"),
        ([10.0], [12.0], "slower"),
    ],
)
def test_times_change_where_the_spread_lets_it_be_told(
    before: list[float], after: list[float], kind: str | None
) -> None:
    found = changes_of([result("a", BENCH, ms=before)], [result("a", BENCH, ms=after)])
    assert kinds(found) == ([kind] if kind else [])
    assert found.is_worse == (kind == "slower")


def test_times_are_shown_with_their_spread() -> None:
    (change,) = changes_of([result("a", BENCH, ms=[10.0, 10.2])], [result("a", BENCH, ms=[20.0, 20.4])]).changes
    assert (change.before, change.after) == ("10.1 ms (10.1 to 10.1)", "20.2 ms (20.1 to 20.3)")


def test_errors_that_grow_are_told_and_are_no_regression() -> None:
    old = [result("a", CONVERT, error=1e-7), result("b", CONVERT, error=1e-9), result("c", CONVERT, error=None)]
    new = [result("a", CONVERT, error=2e-5), result("b", CONVERT, error=1e-7), result("d", CONVERT)]
    found = changes_of(old, new)
    assert kinds(found) == ["less exact"] and not found.is_worse
    assert (found.same, found.only_old, found.only_new) == (1, 1, 1)


def test_the_zoo_page(tmp_path: Path) -> None:
    counts = {"native": 7, "rewritten": 2, "cpu": 1}
    causes = [{"operator": "aten::gelu", "count": 1}]
    times = {"ms": [2.0, 3.0, 4.0], "eager_ms": [1.0, 2.0, 4.0], "device": "llvmpipe", "threads": 2, "load": 4.2}
    times |= {"on_cpu": [], "dispatches": 9, "peak_bytes": 2_000_000, "lower_bound_bytes": 1_000_000}
    results = [
        result("swept:zoo.a|b", AUDIT, gpu_share=0.983, on_cpu=1, counts=counts, causes=causes),
        result("swept:zoo.a|b", CONVERT, error=2.5e-7, bytes=1_250_000, on_cpu=1, operators=12, fixed_to_sizes=0),
        result("swept:zoo.a|b", BENCH, **times),
        result("swept:nets.c", AUDIT, "refused", "no <b>inputs</b> *are* known"),
        result("swept:nets.c", CONVERT, "refused", "no <b>inputs</b> *are* known"),
        result("swept:nets.c", BENCH, "timeout", "it took longer than 5 s"),
        result(
            "swept:zoo.a|b", Job("convert", "metal"), error=None, bytes=7_000, on_cpu=0, operators=3, fixed_to_sizes=2
        ),
    ]
    lacks = ["aten::gelu is missing: no kernel", "aten::sqrt is wrong: it is zero"]
    results.append(result("swept:nets.c", METAL, "bad", "it lacks", lacks=lacks))
    results.append(result("swept:nets.d", METAL, "bad", "it lacks", lacks=lacks[:1]))
    text = zoo_page(results)
    assert "- bad, convert metal 2.1: aten::gelu is missing: no kernel: `nets.c`, `nets.d`\n" in text
    assert "- bad, convert metal 2.1: aten::sqrt is wrong: it is zero: `nets.c`\n" in text
    assert "## 3 models\n" in text
    assert "| `zoo.a\\|b` |  | 7 | 2 | 1 | 98% | `aten::gelu` |\n" in text
    assert "| model | metal 2.1 | vulkan 2.1 |\n" in text
    assert "| `zoo.a\\|b` | not compared, 7.0 kB, **sizes** | 2.5e-07, 1.2 MB, 1 of 12 |\n" in text
    assert "| `nets.c` | **bad** | **refused** |\n" in text
    assert (
        "| convert metal 2.1 | 1 | 2 |  |  |  |\n" in text
        and "| convert vulkan 2.1 | 1 |  | 1 |  | 1 |\n" in text
        and "not run" not in zoo_page(results[:3])
    )
    assert "| `zoo.a\\|b` |  | 3 | 2 | 1.5 (1.2 to 1.8) | 9 | 0 | 2.0 MB, 2.00x |\n" in text
    assert "On llvmpipe; eager PyTorch on 2 threads of the same CPU" in text and "4 processes wanted each core" in text
    assert "| `nets.c` | **timeout** |  |  |  |  |  |  |\n" in text
    for job in (AUDIT, CONVERT):
        assert f"- refused, {job}: no \\<b\\>inputs\\</b\\> \\*are\\* known: `nets.c`\n" in text
    busy = "1 time was taken while 4 processes wanted each core"
    assert busy_text(item.outcome for item in results).startswith(busy) and busy in page(results, "zoo").lower()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(widths) == 1, table


def test_the_zoo_page_in_the_repository_is_of_such_a_sweep() -> None:
    page_of_repository = (Path(__file__).parents[3] / "docs" / "zoo.md").read_text(encoding="utf-8")
    assert page_of_repository.startswith(zoo_page([]).partition("## ")[0])
    models = set(re.findall(r"^\| `(\w+)\.(\w+)`", page_of_repository, re.MULTILINE))
    assert len(models) >= 14
    for group, name in models:
        assert f"{group}.{name}" in PUBLISHED or name in getattr(swept_models, group).names, name


def test_results_that_end_alike_are_one_problem() -> None:
    results = [result("a.pt", job, "refused", "it is truncated") for job in (AUDIT, CONVERT)]
    results += [result("a.pt", BENCH, "refused", "no device"), result("b.pt", AUDIT), result("c.pt", AUDIT, "bad")]
    assert [[str(item.key[1]) for item in group] for group in problems_of(results)] == [
        [str(AUDIT), str(CONVERT)],
        [str(BENCH)],
        [str(AUDIT)],
    ]
