import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mobopt.errors import GraphError
from mobopt.ir.dimensions import minimum
from mobopt.ir.guards import Guards
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
    TensorType,
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


def test_tensor_types_have_dtype_and_sizes() -> None:
    guards = Guards()
    height = guards.symbol("h", lower=1, upper=64)
    kind = TensorType(torch.float32, (1, 3, height, (height + 1) // 2))
    assert str(kind) == "Float(1, 3, h, (h + 1)//2)" and kind.annotation == "Tensor"
    assert parse_type(str(kind), guards) == kind and parse_type("Float()") == TensorType(torch.float32, ())
    assert parse_type("(Long(2, min(4, h))[], int)", guards) == TupleType(
        (ListType(TensorType(torch.int64, (2, minimum(height, 4)))), INT)
    )
    assert str(kind.numel) == "h*((h + 1)//2)*3"
    assert kind != TensorType(torch.float32, (1, 3, height, height)) and not guards.conditions
    assert hash(kind) == hash(parse_type(str(kind), guards))


@pytest.mark.parametrize("text", ["Float(1, s0)", "Float(1,", "Float(1,)", "Float(a b)", "Float(1.5)"])
def test_tensor_types_that_are_refused(text: str) -> None:
    with pytest.raises(GraphError, match="can't read"):
        parse_type(text)
