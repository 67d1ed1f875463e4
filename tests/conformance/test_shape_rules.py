"""Rules of shapes are right: on PyTorch's own samples of its operators, and where other sizes meet their guards."""

import logging
import zlib

import pytest
import torch
from opinfo_samples import dtypes_of, operators, samples_of
from rule_checking import check, other_sizes

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TensorType
from mobopt.ops.shapes import infer, operators_with_rules, rules
from mobopt.ops.shapes.kinds import are_of_schema
from mobopt.runtimes.specialize import specialize

NAMES = sorted(operators())
PARTS = 3
FEW = [name for name in NAMES if zlib.crc32(name.encode()) % 24 == 0]
"""Every 24th operator, for the small run."""


def problems_of(name: str, count: int, trials: int) -> list[str]:
    found = []
    for dtype in dtypes_of(name):
        for sample in samples_of(name, dtype, count):
            found += check(sample, trials).problems
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_one_sample_of_some_operators(part: int) -> None:
    problems = []
    for name in FEW[part::PARTS]:
        dtypes = dtypes_of(name)
        if dtypes:
            dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
            problems += [item for sample in samples_of(name, dtype, 1) for item in check(sample, 4).problems]
    assert not problems, "\n".join(problems)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_of_an_operator(name: str) -> None:
    problems = problems_of(name, 4, 8)
    assert not problems, "\n".join(problems)


def test_rules_are_of_operators() -> None:
    for name in operators_with_rules():
        assert schema_of(name).returns


def test_a_wrong_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check checks: other sizes, other dtypes, and arguments that torch refuses are found out."""
    (sample,) = samples_of("nn.functional.linear", torch.float32, 1)
    assert check(sample, 4).told == {"aten::linear"} and not check(sample, 4).problems
    for wrong in (
        lambda x, weight, bias: x,
        lambda x, weight, bias: TensorType(torch.float64, (*x.sizes[:-1], weight.sizes[0])),
        lambda x, weight, bias: TensorType(x.dtype, (*x.sizes[:-1], weight.sizes[0])),
    ):
        monkeypatch.setitem(rules._RULES, "aten::linear", wrong)
        assert check(sample, 40).problems


def tensor(*sizes: int, dtype: torch.dtype = torch.float32) -> TensorType:
    return TensorType(dtype, sizes)


LSTM = [tensor(16, 3), tensor(16, 4), tensor(16), tensor(16)]
"""Parameters of one direction."""


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("aten::conv2d", [tensor(2, 3, 9, 8), tensor(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], 1]),
        ("aten::conv2d", [tensor(2, 6, 9, 8), tensor(6, 1, 3, 3), tensor(6), [1, 1], [2, 2], [2, 2], 6]),
        ("aten::conv2d", [tensor(3, 9, 8), tensor(4, 3, 3, 3), None, [1], [0], [1], 1]),
        ("aten::conv1d.padding", [tensor(2, 3, 9), tensor(4, 3, 3), None, [1], "same", [2], 1]),
        (
            "aten::conv_transpose2d.input",
            [tensor(2, 4, 5, 7), tensor(4, 3, 3, 3), tensor(6), [2, 2], [1, 1], [1, 1], 2, [1, 1]],
        ),
        ("aten::max_pool2d", [tensor(2, 3, 11, 6), [3, 3], [2, 2], [1, 1], [1, 1], True]),
        ("aten::max_pool1d", [tensor(2, 3, 11), [3], [2], [0], [1], False]),
        ("aten::avg_pool2d", [tensor(2, 3, 11, 6), [2, 3], [], [0, 1], True, True, None]),
        ("aten::adaptive_avg_pool2d", [tensor(2, 3, 11, 6), [1, 2]]),
        ("aten::upsample_nearest2d.vec", [tensor(2, 3, 5, 7), None, [2.0, 1.5]]),
        ("aten::upsample_bilinear2d", [tensor(2, 3, 5, 7), [9, 4], False, None, None]),
        ("aten::layer_norm", [tensor(2, 5, 8), [8], tensor(8), tensor(8), 1e-5, True]),
        ("aten::group_norm", [tensor(2, 6, 5, 4), 3, tensor(6), tensor(6), 1e-5, True]),
        ("aten::matmul", [tensor(4, 1, 5, 6), tensor(3, 6, 2)]),
        ("aten::baddbmm", [tensor(3, 1, 4), tensor(3, 2, 5), tensor(3, 5, 4), 1, 1]),
        ("aten::einsum", ["bhqd,bhkd->bhqk", [tensor(2, 3, 4, 5), tensor(2, 3, 6, 5)], None]),
        ("aten::cat", [[tensor(2, 3), tensor(2, 5), tensor(0)], -1]),
        ("aten::chunk", [tensor(2, 7), 3, 1]),
        ("aten::tensor_split.sections", [tensor(2, 7), 3, 1]),
        ("aten::view", [tensor(2, 3, 4), [2, -1]]),
        ("aten::unflatten.int", [tensor(2, 12), 1, [3, -1]]),
        ("aten::slice.Tensor", [tensor(2, 9), 1, 1, -1, 2]),
        ("aten::unfold", [tensor(2, 9), 1, 3, 2]),
        ("aten::index.Tensor", [tensor(4, 5, 6), [None, tensor(2, 3, dtype=torch.int64)]]),
        ("aten::index.Tensor", [tensor(4, 5, 6), [tensor(3, dtype=torch.int64), None, tensor(1, dtype=torch.int64)]]),
        ("aten::where.ScalarOther", [tensor(3, 1, dtype=torch.bool), tensor(4), 1]),
        ("aten::add.Tensor", [tensor(3, 1), tensor(4, dtype=torch.int64), 2]),
        ("aten::div.Tensor", [tensor(3, dtype=torch.int64), tensor(dtype=torch.int32)]),
        ("aten::arange.start_step", [2, 11, 3, None, None, None, None]),
        ("aten::lstm.input", [tensor(2, 5, 3), [tensor(2, 2, 4)] * 2, LSTM * 2, True, 1, 0.0, False, True, True]),
        ("aten::lstm_cell", [tensor(5, 3), [tensor(5, 4)] * 2, *LSTM]),
        ("aten::rnn_tanh_cell", [tensor(5, 3), tensor(5, 16), tensor(16, 3), tensor(16, 16), tensor(16), None]),
    ],
)
def test_layers_with_other_sizes(operator: str, args: list[object]) -> None:
    assert infer(operator, args) is not None
    problems = other_sizes(operator, args, 60)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("aten::add.Tensor", [tensor(2, 3), tensor(2, 4), 1]),
        ("aten::conv2d", [tensor(1, 3, 2, 2), tensor(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], 1]),
        ("aten::conv2d", [tensor(1, 3, 8, 8), tensor(4, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], 1]),
        ("aten::view", [tensor(2, 3), [4, -1]]),
        ("aten::view", [tensor(0, 3), [0, -1]]),
        ("aten::mm", [tensor(2, 3), tensor(2, 3)]),
        ("aten::linear", [tensor(2, 3), tensor(4, 3, dtype=torch.float64), None]),
        ("aten::relu", [tensor(3, dtype=torch.bool)]),
        ("aten::softmax.int", [tensor(3, dtype=torch.int64), 0, None]),
        ("aten::select.int", [tensor(3), 0, 3]),
        ("aten::permute", [tensor(2, 3), [0, 0]]),
        ("aten::max.dim", [tensor(2, 0), 1, False]),
    ],
)
def test_what_torch_refuses_is_left_to_it(operator: str, args: list[object]) -> None:
    assert infer(operator, args) is None


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("aten::relu", [None]),
        ("aten::relu", [3.0]),
        ("aten::relu", []),
        ("aten::mm", [tensor(2, 3), [tensor(3, 2)]]),
        ("aten::cat", [tensor(2, 3), 0]),
        ("aten::select.int", [tensor(3), tensor(), 0]),
        ("aten::view", [tensor(6), ["2", 3]]),
    ],
)
def test_arguments_of_other_kinds_are_left_to_torch(operator: str, args: list[object]) -> None:
    assert infer(operator, args) is None  # and no fault is logged: see conftest
    assert not are_of_schema(operator, args)


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("aten::conv2d", [tensor(3, 9, 8), tensor(4, 3, 3, 3), None, 1, [0, 0], [1], 1]),
        ("aten::to.dtype", [tensor(3), torch.float16, False, False, None]),
        ("aten::to.dtype", [tensor(3), 5, False, False, 0]),
        ("aten::index.Tensor", [tensor(3, 2), [None, tensor(1, dtype=torch.int64)]]),
        ("aten::full", [[2, 3], 1.5, 6, None, "cpu", None]),
        ("aten::add.Scalar", [tensor(3), True, 2]),
    ],
)
def test_arguments_of_the_right_kinds(operator: str, args: list[object]) -> None:
    assert are_of_schema(operator, args)


@pytest.mark.parametrize("error", [AttributeError("'int' object has no attribute 'sizes'"), TypeError, KeyError("x")])
def test_a_rule_that_fails_is_logged_and_torch_tells(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(x: TensorType) -> TensorType:
        raise error

    monkeypatch.setitem(rules._RULES, "aten::relu", failing)
    logger = logging.getLogger("mobopt.shapes")
    kept, logger.handlers = logger.handlers, []  # those of conftest, which fail the test
    try:
        x = torch.linspace(-1, 1, 6).reshape(2, 3)
        script = torch.jit.trace(torch.nn.ReLU(), (x,))
        with caplog.at_level(logging.WARNING, "mobopt.shapes"):
            found = specialize(program_from_script_module(script), "forward", [x])
    finally:
        logger.handlers = kept
    assert "the rule of aten::relu failed on [Float(2, 3)]" in caplog.text
    assert found.value_of(found.result).tensor_type == tensor(2, 3)
