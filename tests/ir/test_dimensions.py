"""Arithmetic of dimensions is that of integers, its normal form is one for equal expressions, and guards say when."""

import operator
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mobopt.errors import GraphError, InputError
from mobopt.ir.dimensions import Dimension, Expression, ceil_divide, divide_exactly, maximum, minimum
from mobopt.ir.guards import Guards, UndecidedError, parse_dimension

FUNCTIONS = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "//": (operator.floordiv, operator.floordiv),
    "%": (operator.mod, operator.mod),
    "min": (minimum, min),
    "max": (maximum, max),
}

TREES = st.recursive(
    st.sampled_from(["s0", "s1", "s2"]) | st.integers(-7, 9),
    lambda inner: (
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
        | st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 6))
        | st.tuples(st.sampled_from(["//", "%"]), inner, st.sampled_from(["s0", "s1"]))
    ),
    max_leaves=8,
)


def compute(tree: object, values: dict[str, Dimension], which: int) -> Dimension:
    """A tree with dimensions (``which`` 0), or with Python's own functions of integers (1)."""
    if isinstance(tree, tuple):
        name, *operands = tree
        return FUNCTIONS[name][which](*(compute(item, values, which) for item in operands))
    return values[tree] if isinstance(tree, str) else tree  # type: ignore[return-value]


def symbols(lower: int = 1, upper: int = 12, example: int | None = None) -> tuple[Guards, dict[str, Dimension]]:
    guards = Guards()
    return guards, {f"s{index}": guards.symbol(lower=lower, upper=upper, example=example) for index in range(3)}


@settings(max_examples=300, deadline=None, derandomize=True)
@given(TREES, st.tuples(*[st.integers(1, 12)] * 3))
def test_algebra_is_integer_arithmetic(tree: object, sizes: tuple[int, ...]) -> None:
    guards, names = symbols()
    made = compute(tree, names, 0)
    values = dict(zip(names, sizes, strict=True))
    expected = compute(tree, dict(values), 1)
    assert guards.compile([made, 7])(*sizes) == (expected, 7)
    if isinstance(made, int):
        assert made == expected
        return
    assert made.substitute(values) == expected
    assert made.lower <= expected <= made.upper
    again = parse_dimension(str(made), guards)
    assert isinstance(again, Expression) and again.key == made.key
    assert not guards.conditions, "arithmetic decides nothing"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TREES, TREES, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.tuples(*[st.integers(1, 6)] * 3))
def test_comparisons_hold_where_their_guards_do(
    first: object, second: object, relation: str, sizes: tuple[int, ...]
) -> None:
    compare = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}.get(
        relation, operator.ge
    )
    guards = Guards()
    names = {f"s{index}": guards.symbol(lower=1, upper=6, example=size) for index, size in enumerate(sizes)}
    a, b = compute(first, dict(names), 0), compute(second, dict(names), 0)
    answer = compare(a, b)
    assert compare(a, b) is answer and len(guards.conditions) <= 1, "what was decided once is known"
    assert guards.hold(sizes)
    for others in product([1, 2, 5, 6], repeat=3):
        values: dict[str, Dimension] = dict(zip(names, others, strict=True))
        assert guards.hold(others) == (guards.broken(others) is None)
        if guards.hold(others):
            assert compare(compute(first, values, 1), compute(second, values, 1)) is answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("s0 + s1 - s0", "s1"),
        ("(s0 + 1)*(s0 - 1)", "s0*s0 - 1"),
        ("(s0*2 + 5)//4", "s0//2 + 1"),
        ("((s0 + 1)//2 + 1)//2", "(s0 + 3)//4"),
        ("(-s0)//2*2", "(s0//2)*2 - s0*2"),
        ("(s0*s1*6)//(s1*4)", "(s0*3)//2 + 0*s1"),
        ("(s0*6)//3", "s0*2"),
        ("(s0*s1 + s0*2)//(s1 + 2)", "s0"),
        ("(s0*4 + 6)%4", "2"),
        ("(s0%8 + s1)%4", "(s0 + s1)%4"),
        ("(s0 + (4 - s0%4)%4)%4", "0"),
        ("(s0*2)%4", "(s0%2)*2"),
        ("s0%13", "s0"),
        ("s0//13", "0"),
        ("min(s0, s0 + 1, 40)", "s0"),
        ("max(s0, min(s1, s2), 1, s0)", "max(min(s1, s2), s0)"),
    ],
)
def test_equal_expressions_are_the_same(text: str, normal: str) -> None:
    guards, _ = symbols()
    found, expected = parse_dimension(text, guards), parse_dimension(normal, guards)
    assert str(found) == str(expected)
    assert (found.key if isinstance(found, Expression) else found) == getattr(expected, "key", expected)


@pytest.mark.parametrize(
    "text",
    ["s0*2 + 1", "(s0 + 1)//2", "s1 + ((s0 + 1)//2)*3", "-s0 + 4", "s0*s1*7 - (s0//2)", "s1 + s0//2 - 1", "-(s0%3)"],
)
def test_text_is_what_was_read(text: str) -> None:
    assert str(parse_dimension(text, symbols()[0])) == text


@pytest.mark.parametrize(
    "text", ["", "s9", "s0 +", "s0/2", "s0**2", "abs(s0)", "1.5", "True", "s0//0", "min()", "s0.x"]
)
def test_what_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(GraphError, match="can't read the dimension"):
        parse_dimension(text, symbols()[0])


def test_ranges_decide_without_a_guard() -> None:
    guards = Guards()
    s0, s1 = guards.symbol(lower=2, upper=9), guards.symbol(lower=1, upper=4)
    assert s0 > 1 and s0 != 1 and s0 * s1 >= 2 and s0 < 10 and s0 // 2 >= 1 and s0 != 40
    assert s0 >= s0 // 2 and s0 // 2 * 2 <= s0, "a quotient is never more than what was divided"
    assert (s0 * 4) % 2 == 0 and s0 * 2 != 5, "even is not odd"
    assert not guards.conditions
    with pytest.raises(UndecidedError, match="s0 >= s1"):
        bool(s0 >= s1)


def test_what_the_example_decides_is_a_guard() -> None:
    guards = Guards()
    s0, s1 = (guards.symbol(lower=1, upper=64, example=size) for size in (8, 3))
    assert s0 != 1 and s0 > s1 and s0 % 4 == 0 and s1 < 5
    assert [str(guard) for guard in guards.conditions] == ["s0 != 1", "s0 >= s1 + 1", "s0%4 == 0", "4 >= s1"]
    assert s0 >= 2 and s0 - s1 >= 1 and (s0 + 4) % 4 == 0 and s1 * 2 <= 8 and len(guards.conditions) == 4
    assert guards.hold([12, 4]) and not guards.hold([12, 5]) and not guards.hold([1, 1]) and not guards.hold([68, 4])
    assert str(guards.broken([12, 5])) == "4 >= s1" and guards.broken([12, 4]) is None


def test_python_integers_are_made_by_specialising() -> None:
    guards = Guards()
    size = guards.symbol(lower=0, upper=99, example=6)
    assert list(range(size // 2)) == [0, 1, 2]
    assert [str(guard) for guard in guards.conditions] == ["s0//2 == 3"]
    assert size * 0.5 == 3.0 and size / 4 == 1.5 and float(size) == 6.0
    assert str(guards.conditions[-1]) == "s0 == 6" and size * 2 == 12 and len(guards.conditions) == 2


def test_closed_guards_take_no_more() -> None:
    guards = Guards()
    size = guards.symbol(lower=1, upper=9, example=6)
    assert size > 3
    guards.close()
    assert size > 2
    with pytest.raises(UndecidedError):
        bool(size > 4)
    assert len(guards.conditions) == 1


def test_sizes_out_of_range_are_named() -> None:
    guards = Guards()
    guards.symbol("width", lower=2, upper=9, origin="dimension 3 of input x")
    guards.check([9])
    with pytest.raises(InputError, match="dimension 3 of input x is 10, and its upper bound is 9"):
        guards.check([10])
    with pytest.raises(InputError, match="lower bound is 2"):
        guards.check([1])
    with pytest.raises(InputError, match="upper bound"):
        guards.symbol("height", upper=3, example=4)
    for name in ("width", "2s", "min"):
        with pytest.raises(GraphError, match=name):
            guards.symbol(name)


def test_products_divide_exactly() -> None:
    guards, names = symbols()
    generator = random.Random(0)
    for _ in range(40):
        parts = [
            sum((generator.randint(1, 5) * names[f"s{index}"] for index in range(3)), start=generator.randint(0, 4))
            for _ in range(2)
        ]
        assert isinstance(parts[1], Expression) and isinstance(parts[0], Expression)
        quotient = divide_exactly(parts[0] * parts[1], parts[1])
        assert isinstance(quotient, Expression) and quotient.key == parts[0].key
        assert divide_exactly(parts[0] * parts[1] + 1, parts[1]) is None
    assert not guards.conditions


def test_substitution_of_some_symbols_leaves_the_others() -> None:
    _, names = symbols()
    made = ceil_divide(names["s0"] * names["s1"] + names["s2"], 3)
    assert isinstance(made, Expression)
    assert str(made.substitute({"s0": 6})) == "s1*2 + (s2 + 2)//3"
    assert made.substitute({"s0": 2, "s1": 2, "s2": 5}) == 3
    assert made.symbols() == {"s0", "s1", "s2"}


def test_division_by_zero_is_an_error() -> None:
    guards = Guards()
    zero = guards.symbol(lower=0, upper=4, example=0)
    for divide in (operator.floordiv, operator.mod):
        with pytest.raises(ZeroDivisionError):
            divide(8, zero)
        with pytest.raises(ZeroDivisionError):
            divide(zero + 1, 0)
