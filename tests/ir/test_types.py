import pytest
from hypothesis import given
from hypothesis import strategies as st

from mobopt.errors import GraphError
from mobopt.ir.types import (
    BOOL,
    DEVICE,
    FLOAT,
    INT,
    SCALAR,
    STR,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    Type,
    parse_type,
)

simple = st.sampled_from([TENSOR, INT, FLOAT, BOOL, STR, DEVICE, ClassType("__torch__.a.B")])
types = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(ListType),
        inner.filter(lambda kind: not isinstance(kind, OptionalType)).map(OptionalType),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: TupleType(tuple(items))),
        st.tuples(st.sampled_from([INT, STR]), inner).map(lambda pair: DictType(*pair)),
    ),
    max_leaves=6,
)


@given(types)
def test_both_spellings_round_trip(kind: Type) -> None:
    assert parse_type(str(kind)) == kind
    assert parse_type(kind.annotation) == kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int[2]", ListType(INT)),
        ("Tensor(a!)", TENSOR),
        ("Tensor(a -> *)", TENSOR),
        ("Tensor(a)[]", ListType(TENSOR)),
        ("SymInt[]?", OptionalType(ListType(INT))),
        ("number", SCALAR),
        ("Tuple[()]", TupleType(())),
        ("Union[int, NoneType]", OptionalType(INT)),
    ],
)
def test_spellings_of_schemas_and_bytecode(text: str, expected: Type) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize("text", ["", "List[", "Dict[int]", "int]", "Tuple[int", "Tensor, int", "(Tensor"])
def test_bad_type_is_one_clear_error(text: str) -> None:
    with pytest.raises(GraphError, match=r"can't read the type|not supported"):
        parse_type(text)
