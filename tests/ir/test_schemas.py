import pytest
import torch

from mobopt.errors import UnsupportedError
from mobopt.ir.types import BOOL, FLOAT, INT, NONE, TENSOR, ListType
from mobopt.ops.schemas import resolve, schema_of, schemas_of


@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("aten::add", (TENSOR, TENSOR, INT), "aten::add.Tensor"),
        ("aten::add", (TENSOR, FLOAT), "aten::add.Scalar"),
        ("aten::add", (INT, INT), "aten::add.int"),
        ("aten::conv2d", (TENSOR, TENSOR, NONE, *[ListType(INT)] * 3, INT), "aten::conv2d"),
        ("aten::max_pool2d", (TENSOR, INT), "aten::max_pool2d"),
        ("aten::mean", (TENSOR, ListType(INT), BOOL), "aten::mean.dim"),
        ("vulkan_prepack::create_linear_context", (TENSOR, NONE), "vulkan_prepack::create_linear_context"),
    ],
)
def test_overload_is_torchscripts_choice(name: str, types: tuple, expected: str) -> None:
    assert resolve(name, types).qualified_name == expected


def test_overloads_agree_with_torchs_compiler() -> None:
    def function(x: torch.Tensor, n: int, f: float):  # type: ignore[no-untyped-def]
        return x + n, x * f, x.sum(1), n + n, torch.cat([x, x], 1), x[n], x.mean([1]), torch.clamp(x, 0), x / f, n / n

    for node in torch.jit.script(function).graph.nodes():
        if node.kind().startswith("aten::"):
            from mobopt.ir.types import parse_type

            types = [parse_type(value.type().annotation_str) for value in node.inputs()]
            assert resolve(node.kind(), types).overload == torch._C.parse_schema(node.schema()).overload_name


def test_mutation_and_aliases_are_known() -> None:
    assert schema_of("aten::relu_").is_mutating
    assert not schema_of("aten::relu").is_mutating
    assert schema_of("aten::view").arguments[0].aliases


def test_unknown_names_say_what_exists() -> None:
    assert schemas_of("aten::no_such_operator") == ()
    with pytest.raises(UnsupportedError, match=r"its overloads are .*aten::add\.Tensor"):
        schema_of("aten::add.Nope")
    with pytest.raises(UnsupportedError, match="no overload of aten::relu takes"):
        resolve("aten::relu", (BOOL,))


def test_every_schema_of_torch_can_be_read() -> None:
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    assert len(names) > 1000
    for name in names:
        assert schemas_of(name)
