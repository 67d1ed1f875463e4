"""The records of operators, against what torch itself does with the samples of its operator database."""

import zlib
from typing import Any

import pytest
import torch
from operator_calls import calls_of, names
from trait_checks import complaints

from mobopt.ir.schemas import schemas_of
from mobopt.ops.records import WRITTEN_DOWN, Like, Trait, has_trait, record_of
from mobopt.runtimes.cpu.kernels import kernel

NAMES = names()
FEW = [name for name in NAMES if zlib.crc32(name.encode()) % 40 == 0]
"""A few operators for the small run, beside those of each family that are called by hand."""


def _wrong(name: str, count: int) -> list[str]:
    return [
        f"{call.op}: {text}: {call.text}" for call in calls_of(name, count) for text in complaints(call.op, call.args)
    ]


@pytest.mark.parametrize("name", FEW)
def test_what_records_say_holds(name: str) -> None:
    assert not _wrong(name, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_what_records_say_holds_for_all_samples(name: str) -> None:
    assert not _wrong(name, 4)


def _x(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(7))


_CALLS: list[tuple[str, list[Any]]] = [
    ("aten::relu", [_x(3, 5)]),
    ("aten::clamp", [_x(3, 5), -0.5, 0.5]),
    ("aten::clamp.Tensor", [_x(3), _x(2, 3), None]),
    ("aten::add.Tensor", [_x(5, 1, 3), _x(7, 1), 2]),
    ("aten::where.self", [_x(3, 1) > 0, _x(3, 5), _x(5)]),
    ("aten::pow.Scalar", [2.0, _x(3, 5)]),
    ("aten::conv2d", [_x(2, 3, 7, 5), _x(8, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], 1]),
    ("aten::conv_transpose2d.input", [_x(2, 4, 5, 3), _x(4, 3, 3, 3), None, [1, 1], [0, 0], [0, 0], 2, [1, 1]]),
    ("aten::linear", [_x(2, 3, 5), _x(7, 5), None]),
    ("aten::linear", [_x(2, 3, 5), _x(5), None]),
    ("aten::max_pool2d", [_x(2, 3, 7, 5), [3, 3], [1, 1], [0, 0], [1, 1], False]),
    ("aten::max_pool2d", [_x(3, 7, 5), [3, 3], [1, 1], [0, 0], [1, 1], False]),
    ("aten::upsample_nearest2d", [_x(2, 3, 7, 5), [9, 11], None, None]),
    ("aten::layer_norm", [_x(2, 3, 5), [5], None, None, 1e-5, False]),
    ("aten::cat", [[_x(2, 3, 5), _x(2, 4, 5)], 1]),
    ("aten::permute", [_x(2, 3, 5), [2, 0, 1]]),
    ("aten::reshape", [_x(2, 3, 5), [5, -1]]),
    ("aten::slice.Tensor", [_x(7, 5), 0, 1, 6, 2]),
    ("aten::to.dtype", [_x(3, 5), torch.int32, False, False, None]),
    ("aten::feature_alpha_dropout", [_x(2, 3, 5), 0.5, False]),
    ("aten::dropout", [_x(20, 30), 0.5, True]),
    ("aten::bernoulli", [torch.full((20, 30), 0.5), None]),
    ("aten::zeros_like", [_x(3, 5), None, None, None, None, None]),
    ("aten::unsafe_chunk", [_x(4, 3), 2, 0]),
    ("aten::split_with_sizes", [_x(4, 3), [1, 3], 0]),
    ("aten::unbind.int", [_x(4, 3), 1]),
    ("aten::diagonal", [_x(4, 3), 1, 0, 1]),
    ("aten::expand", [_x(4, 1), [4, 3], False]),
    ("aten::meshgrid", [[_x(3), _x(5)]]),
    ("aten::broadcast_tensors", [[_x(3), _x(5, 3)]]),
    ("aten::cartesian_prod", [[_x(3)]]),
    ("aten::chain_matmul", [[_x(3, 3)]]),
    ("aten::nonzero", [_x(3, 5)]),
    ("aten::gather", [_x(3, 5), 1, torch.tensor([[4], [0], [2]]), False]),
]


@pytest.mark.parametrize("op, args", _CALLS, ids=[f"{op} {number}" for number, (op, _) in enumerate(_CALLS)])
def test_every_family(op: str, args: list[Any]) -> None:
    kernel(op)(*args)  # torch takes them
    assert not list(complaints(op, args))


def test_a_wrong_record_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import trait_checks

    other = {"aten::permute": "aten::relu", "aten::relu": "aten::permute", "aten::expand": "aten::view"}
    monkeypatch.setattr(trait_checks, "record_of", lambda op: record_of(other[op]))
    for op, args in (("aten::permute", [_x(2, 3), [1, 0]]), ("aten::relu", [_x(2, 3)])):
        assert list(complaints(op, args))
    assert any("DISTINCT" in text for text in complaints("aten::expand", [_x(3, 1), [3, 2], False]))


_METADATA = [
    schema.qualified_name
    for name in WRITTEN_DOWN
    if has_trait(name, Trait.READS_METADATA_ONLY)
    for schema in schemas_of(name)
    if any(str(argument.type) == "Tensor" for argument in schema.arguments) and not schema.name.startswith("prim::")
]


@pytest.mark.parametrize("name", _METADATA)
def test_metadata_is_the_same_without_elements(name: str) -> None:
    found = 0
    for args in ([_x(2, 3, 5)], [_x(2, 3, 5), 1], [1, _x(2, 3, 5)], [_x(2, 3, 5), _x(2, 3, 5)]):
        try:
            expected = kernel(name)(*args)
        except Exception:
            continue
        found += 1
        given = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args]
        if not has_trait(name, Trait.READS_PLACE):
            assert kernel(name)(*given) == expected
        others = [torch.zeros_like(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        assert kernel(name)(*others) == expected
    assert found or name.endswith("imname")


_EXCEPTIONS = {
    "aten::_ctc_loss": "lists give the lengths that its sizes depend on",
    "aten::index.Tensor": "only indices that are truth values decide about sizes; the dtype tells",
    "aten::rrelu": "draws numbers while training",
    "aten::batch_norm": "writes its statistics while training, and shares no memory",
    "aten::_batch_norm_impl_index": "as batch_norm",
    "aten::equal": "gives a truth value, and no tensor of its operands' sizes",
}
_TRAITS = {
    torch.Tag.nondeterministic_seeded: Trait.RANDOM,
    torch.Tag.dynamic_output_shape: Trait.SIZES_BY_ELEMENTS,
    torch.Tag.data_dependent_output: Trait.VALUE_BY_ELEMENTS,
    torch.Tag.pointwise: Trait.ELEMENTWISE,
    torch.Tag.maybe_aliasing_or_mutating: Trait.VIEW,
}


def test_torchs_tags_agree() -> None:
    """What torch tags has the trait; of what is pointwise, as far as a record is written down."""
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        short, _, overload = rest.partition(".")
        function = getattr(getattr(torch.ops.aten, short, None), overload or "default", None)
        if namespace != "aten" or "out" in overload or function is None or "backward" in name:
            continue
        record = record_of(name)
        written = f"aten::{short}" in WRITTEN_DOWN
        for tag, trait in _TRAITS.items():
            is_asked = tag in function.tags and (written or tag not in (torch.Tag.pointwise,))
            if is_asked and trait not in record.traits and name not in _EXCEPTIONS:
                missing.append((name, trait))
        if (torch.Tag.inplace_view in function.tags) and short not in ("resize_", "resize_as_", "set_"):
            assert Trait.VIEWS_IN_PLACE in record.traits, name
    assert not missing


def test_overloads_are_told_apart() -> None:
    assert has_trait("aten::max.other", Trait.ELEMENTWISE) and not has_trait("aten::max.dim", Trait.ELEMENTWISE)
    assert record_of("aten::clamp").rank == Like.FIRST and record_of("aten::clamp.Tensor").rank == Like.OPERANDS
    assert has_trait("aten::add_.Tensor", Trait.KEEPS_SIZES) and has_trait("aten::add_.Tensor", Trait.WRITES)
    assert not has_trait("aten::add.Tensor", Trait.KEEPS_SIZES)


@pytest.mark.parametrize("name", ["aten::add.int", "aten::slice.t", "aten::eq.str", "aten::split.str", "aten::Int.str"])
def test_forms_without_tensors_have_no_traits_of_tensors(name: str) -> None:
    traits = {Trait.ELEMENTWISE, Trait.MOVES_ELEMENTS, Trait.KEEPS_SIZES, Trait.VALUE_BY_ELEMENTS}
    record = record_of(name)
    assert record.schema is not None and record.rank is None
    assert record.traits.isdisjoint(traits) and Trait.COMPUTES in record.traits


def test_operators_that_are_not_written_down() -> None:
    assert has_trait("aten::_philox_normal_", Trait.WRITES)
    assert has_trait("aten::_scaled_dot_product_flash_attention", Trait.RANDOM)
    assert has_trait("aten::_assert_scalar", Trait.TOUCHES_WORLD)
    assert has_trait("prim::NoSuchThing", Trait.TOUCHES_WORLD)
    assert record_of("nowhere::nothing").schema is None and not record_of("nowhere::nothing").traits


def test_every_name_is_an_operator() -> None:
    language = {"prim::DictConstruct", "prim::GetAttr", "prim::If", "prim::ListConstruct", "prim::ListUnpack"}
    language |= {"prim::Loop", "prim::SetAttr", "prim::TupleConstruct", "prim::TupleSlice", "prim::isinstance"}
    language |= {
        "prim::Enter",
        "prim::Exit",
        "prim::is_contiguous",
        "prim::is_ort",
        "prim::ndim",
        "prim::shape",
    }
    unknown = {name for name in WRITTEN_DOWN if not schemas_of(name.partition(".")[0])}
    assert unknown <= language
