"""The language of the rows' conditions: what is refused, three values, and each condition seen true and false."""

from __future__ import annotations

import cpu_calls
import metal_calls
import pytest
import vulkan_layer_calls
import vulkan_product_calls
import vulkan_quantized_calls
import vulkan_tensor_calls
from row_calls import UNKNOWN, RowCall, call, stored, tensor

from mobopt.errors import TableError
from mobopt.ir.guards import UnknownFactError
from mobopt.ops.targets import conditions, verdicts
from mobopt.ops.targets.call_view import CallView
from mobopt.ops.targets.condition_parser import definitions
from mobopt.ops.targets.conditions import Condition, parse_condition
from mobopt.ops.targets.row import Row
from mobopt.ops.targets.table import all_rows, checked_rows

CALLS = (
    *vulkan_layer_calls.CALLS,
    *vulkan_product_calls.CALLS,
    *vulkan_quantized_calls.CALLS,
    *vulkan_tensor_calls.CALLS,
    *metal_calls.CALLS,
    *cpu_calls.CALLS,
)
NEVER_FALSE = {"output.dtype == 'float32'"}
"""Unknown or true: tensors of other dtypes are refused before any row is asked."""


@pytest.mark.parametrize("example", CALLS, ids=lambda example: f"{example.operator} {example.target}")
def test_a_call_is_judged_as_it_was_seen(example: RowCall) -> None:
    finding = example.finding()
    rewrite = finding.row.rewrite if finding.row is not None else ""
    assert ":".join(filter(None, (finding.verdict, rewrite))) == example.expected


def test_every_condition_is_seen_true_and_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """By calls that come to its row, so that no earlier row decides them all."""
    seen: set[tuple[str, str, bool]] = set()
    holds = Condition.holds

    def observed(condition: Condition, view: CallView) -> bool:
        result = holds(condition, view)
        seen.add((condition.place, condition.text, result))
        return result

    monkeypatch.setattr(conditions.Condition, "holds", observed)
    for example in CALLS:
        example.finding()
    rows = [row for backend in ("vulkan", "metal", "cpu") for row in all_rows(backend) if row.when and row.can_occur]
    wanted = {(str(row), " ".join(row.when.split()), truth) for row in rows for truth in (True, False)}
    unseen = [(place, text, truth) for place, text, truth in wanted - seen if truth or text not in NEVER_FALSE]
    assert not unseen, "add calls to tests/ops/*_calls.py"


def test_every_name_is_used() -> None:
    texts = [row.when for backend in ("vulkan", "metal", "cpu") for row in all_rows(backend)]
    texts += [item.means for item in definitions().values()]
    assert [name for name in definitions() if not any(name in text for text in texts)] == []


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("wieght.rank == 4", 1, "wieght is not known; there are the arguments input, weight, bias, stride"),
        ("groups > 1 and bias.size == 3", 16, "a tensor has no size; it has rank, sizes, numel"),
        ("groups.rank == 1", 1, "`groups` is a value, and only a tensor has fields"),
        ("groups", 1, "`groups` is a value, and only what is true or false may stand here"),
        ("not stride", 5, "`stride` is a value, and only what is true or false"),
        ("groups > 1 and __import__('os')", 16, "there is no function __import__; there are abs, all, any, computed"),
        ("input.sizes.__class__ == 1", 1, "`input.sizes` is a value, and only a tensor has fields"),
        ("(lambda: True)()", 1, "there is no function lambda: True; there are"),
        ("[step for step in stride] == 1", 1, "is not of the language"),
        ("groups / 2 == 1", 1, "the operators with two operands are + - * // %"),
        ("~groups == 1", 1, "the operators with one operand are - and not"),
        ("groups is 1", 11, "`is` compares with None only"),
        ("computed(stride, steps)", 18, "computed takes arguments of the operator, which are input, weight, bias"),
        ("producer(input, weight) == ''", 1, "producer takes one argument by name"),
        ("max() == 1", 1, "max takes 1 to 3 arguments, not 0"),
        ("all(stride)", 5, "all takes `... for x in ...`"),
        ("any(s > 1 for s in stride if s)", 4, "a loop has one `for`, and no `if`"),
        ("is_number() ", 1, "is_number takes x"),
        ("input[0] == 1", 1, "`input` is a tensor, which has no items"),
        ("groups == )", 11, "unmatched"),
        (
            "keeps_float32",
            1,
            "keeps_float32 of names.toml: column 1 of `dtype is None or dtype == 6`: dtype is not known",
        ),
        ("1j == 1", 1, "1j is no number, no text, and not None"),
        ("(input if groups > 1 else 1) == 1", 2, "this is a tensor or a value; both must be of one kind"),
    ],
)
def test_what_is_not_of_the_language_is_refused(text: str, column: int, reason: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_condition(text, ["aten::conv2d"], "some.toml, row 3")
    message = str(caught.value)
    assert message.startswith("some.toml, row 3")
    assert f"column {column} of `" in message
    assert reason in message


def test_arguments_must_be_of_one_kind_in_all_operators() -> None:
    parse_condition("self.rank == 1", ["aten::add.Tensor", "aten::add.Scalar"], "")
    with pytest.raises(TableError, match="other` is of several kinds, by operator"):
        parse_condition("other.rank == 1", ["aten::add.Tensor", "aten::add.Scalar"], "")
    with pytest.raises(TableError, match="dim is not known"):
        parse_condition("dim == 1", ["aten::softmax.int", "aten::relu"], "")


TRUTHS = {"true": "groups == 1", "false": "groups == 2", "unknown": "input.rank == 4", "fault": "weight.sizes[7] == 1"}
"""Of a call of one group, with an input of which nothing is known."""


def truth_of(text: str) -> str:
    condition = parse_condition(text, ["aten::conv2d"], "here")
    example = call("vulkan 2.6", "aten::conv2d", "", input=tensor(), weight=stored(2, 2, 3, 3), bias=None, groups=1)
    try:
        return str(condition.holds(example.view(facts_known=False))).lower()
    except UnknownFactError:
        return "unknown"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("true", "true", "true", "true"),
        ("true", "false", "false", "true"),
        ("false", "false", "false", "false"),
        ("true", "unknown", "unknown", "true"),
        ("unknown", "true", "unknown", "true"),
        ("false", "unknown", "false", "unknown"),
        ("unknown", "false", "false", "unknown"),
        ("unknown", "unknown", "unknown", "unknown"),
        ("unknown", "fault", "unknown", "unknown"),
    ],
)
def test_three_values(left: str, right: str, both: str, either: str) -> None:
    first, second = TRUTHS[left], TRUTHS[right]
    assert truth_of(f"{first} and {second}") == both
    assert truth_of(f"{first} or {second}") == either
    if right != "fault":
        looped = "for part in (1, 2)"
        chosen = f"({first}) if part == 1 else ({second})"
        assert truth_of(f"all({chosen} {looped})") == both
        assert truth_of(f"any({chosen} {looped})") == either


def test_other_forms_of_unknown() -> None:
    unknown = TRUTHS["unknown"]
    assert truth_of(f"not {unknown}") == "unknown"
    assert truth_of(f"known({unknown})") == "false"
    assert truth_of("known(weight.rank)") == "true"
    assert truth_of("max(input.sizes) > 1") == "unknown"
    assert truth_of("1 < groups < input.rank") == "false"
    assert truth_of(f"groups == 1 if {unknown} else groups == 1") == "unknown"


def test_a_condition_without_a_guard_names_its_row() -> None:
    with pytest.raises(TableError, match=r"here: `weight.sizes\[7\] == 1` can't be computed of a call: IndexError"):
        truth_of(TRUTHS["fault"])


def test_a_loop_inside_of_a_loop_has_its_own_variables() -> None:
    assert truth_of("all(sum(s for s in weight.sizes[:s]) >= s for s in (1, 2)) and groups == 1") == "true"
    assert truth_of("all(any(p == s for p in stride) for s in stride)") == "true"


def test_a_computed_number_is_known_by_its_name_only() -> None:
    example = call(
        "vulkan 2.6", "aten::conv2d", "", input=tensor(1, 2, 5, 5), weight=stored(2, 2, 3, 3), stride=UNKNOWN
    )
    assert parse_condition("computed(stride)", [example.operator], "").holds(example.view())
    with pytest.raises(UnknownFactError, match="stride"):
        parse_condition("max(stride) > 1", [example.operator], "").holds(example.view())


ROW = '[[row]]\nop = ["aten::relu"]\nverdict = "missing"\nwhy = "it is so"\n'
NARROW = ROW + "when = \"self.rank == 4 and self.dtype == 'float32'\"\n"
WIDE = ROW + 'when = "self.rank == 4"\n'


@pytest.mark.parametrize(
    "rows",
    [
        ROW + ROW,
        ROW + NARROW,
        WIDE + NARROW,
        NARROW + NARROW,
        ROW + 'until = "2.0"\n' + ROW + 'since = "2.1"\n' + NARROW,
        ROW + "any_dtype = true\n" + ROW + "over_limit = true\n",
        '[[row]]\nop = ["aten::relu", "aten::tanh"]\nverdict = "native"\n' + WIDE,
    ],
)
def test_a_row_that_no_call_comes_to_is_an_error(rows: str) -> None:
    with pytest.raises(TableError, match=r"rows.toml, row \d, of aten::relu: earlier rows of aten::relu decide"):
        checked_rows({"rows.toml": rows})


@pytest.mark.parametrize(
    "rows",
    [
        NARROW + WIDE + ROW,
        ROW + 'until = "2.0"\n' + NARROW,
        ROW + ROW + "any_dtype = true\n",
        ROW + "over_limit = true\n" + ROW,
        ROW + ROW.replace("relu", "tanh"),
        "",
    ],
)
def test_a_row_that_some_call_comes_to_is_none(rows: str) -> None:
    assert len(checked_rows({"rows.toml": rows})) == rows.count("[[row]]")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW + "wen = 'groups > 1'\n", "rows.toml, row 1: there is no column wen; there are any_dtype, any_rank"),
        (ROW.replace("missing", "bad"), "the verdict is bad, not one of native, wrong, missing"),
        (ROW.replace("why", "help"), "a verdict of missing needs a why"),
        (ROW + 'since = "1.0"\n', "since is 1.0, not one of 1.13, 2.0"),
        (ROW.replace("op", "any_rank"), "rows.toml, row 1: it needs op"),
        (ROW + 'when = "groups > 1"\n', "column 1 of `groups > 1`: groups is not known; there are the arguments self"),
    ],
)
def test_a_row_that_is_not_well_formed_is_an_error(row: str, message: str) -> None:
    with pytest.raises(TableError) as caught:
        checked_rows({"rows.toml": row})
    assert message in str(caught.value)


def test_a_row_about_arguments_that_the_installed_torch_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(("aten::relu",), "wrong", when="inplace", why="it is so", new_arguments=("inplace",))
    assert not row.can_occur
    entry = ROW + 'when = "inplace"\nnew_arguments = ["inplace"]\n'
    assert len(checked_rows({"rows.toml": entry})) == 1


def test_an_operator_that_the_installed_torch_lacks_needs_no_schema() -> None:
    assert len(checked_rows({"rows.toml": ROW.replace("relu", "no_such_operator")})) == 1
    assert verdicts.rows_for("cpu")
