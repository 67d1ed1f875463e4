"""What exporters write as several operators of ONNX, and torch has as one: the graph is as from a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import onnx.reference
import pytest
import torch
from bad_onnx_models import model_of, tensor_info
from onnx import helper, numpy_helper
from sampling import sampled

from mobopt.frontends.open_source import source_of
from mobopt.ir import Program
from mobopt.ir.types import TENSOR, ListType, OptionalType
from mobopt.runtimes.cpu import Interpreter


def number(value: Any, name: str, kind: Any = numpy.int64) -> Any:
    return numpy_helper.from_array(numpy.array(value, dtype=kind), name)


def operators(program: Program) -> list[str]:
    return [node.op.removeprefix("aten::") for node in program.methods["forward"].walk()]


@pytest.mark.parametrize(("start", "end", "op"), [(2, 3, "select"), (-2, -1, "select"), (-1, 1 << 62, "slice")])
def test_a_slice_of_one_is_selected(start: int, end: int, op: str) -> None:
    nodes = [helper.make_node("Slice", ["x", "s", "e", "a"], ["row"]), helper.make_node("Squeeze", ["row", "a"], ["y"])]
    constants = [number([start], "s"), number([end], "e"), number([1], "a")]
    program = source_of(model_of(nodes, [tensor_info("x", [3, 5])], [tensor_info("y")], constants)).program
    assert operators(program)[0] == op
    x = torch.randn(3, 5)
    assert torch.equal(Interpreter(program).run("forward", [x]), x[:, start])


def test_a_split_by_ones_is_selected_too() -> None:
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2)]
    nodes += [helper.make_node("Squeeze", [name, "axis"], [f"{name}0"]) for name in ("a", "b")]
    outputs = [tensor_info("b0"), tensor_info("a0")]
    program = source_of(model_of(nodes, [tensor_info("x", [2, 3])], outputs, [number([0], "axis")], opset=18)).program
    assert operators(program)[:2] == ["select", "select"]
    x = torch.randn(2, 3)
    assert all(map(torch.equal, Interpreter(program).run("forward", [x]), (x[1], x[0])))


@pytest.mark.parametrize(("middle", "whole", "is_known"), [(0.5, 1.0, True), (0.4, 1.0, False), (0.5, 2.0, False)])
def test_linear_interpolation(middle: float, whole: float, is_known: bool) -> None:
    """Of other numbers it is something else, and stays what it is."""
    nodes = [
        helper.make_node("Sub", ["b", "a"], ["d"]),
        helper.make_node("Less", ["w", "middle"], ["small"]),
        helper.make_node("Mul", ["w", "d"], ["step"]),
        helper.make_node("Add", ["a", "step"], ["near"]),
        helper.make_node("Sub", ["whole", "w"], ["rest"]),
        helper.make_node("Mul", ["d", "rest"], ["back"]),
        helper.make_node("Sub", ["b", "back"], ["far"]),
        helper.make_node("Where", ["small", "near", "far"], ["y"]),
    ]
    constants = [number(middle, "middle", numpy.float32), number(whole, "whole", numpy.float32)]
    inputs = [tensor_info(name, [3, 5]) for name in ("a", "b", "w")]
    program = source_of(model_of(nodes, inputs, [tensor_info("y")], constants)).program
    assert (operators(program) == ["lerp"]) is is_known
    a, b, w = (torch.rand(3, 5) * 2 for _ in range(3))
    expected = torch.where(w < middle, a + w * (b - a), b - (b - a) * (whole - w))
    torch.testing.assert_close(Interpreter(program).run("forward", [a, b, w]), expected)


@pytest.mark.parametrize(("dims", "op"), [((1, 1), "stack"), ((1, 0), "cat")])
def test_a_stack(dims: tuple[int, int], op: str) -> None:
    """Two parts with a dimension more, joined along it; what is joined along another one is no stack."""
    nodes = [helper.make_node("Unsqueeze", [name, "dim"], [f"{name}1"]) for name in ("a", "b")]
    nodes.append(helper.make_node("Concat", ["a1", "b1"], ["y"], axis=dims[1]))
    inputs = [tensor_info(name, [3, 5]) for name in ("a", "b")]
    program = source_of(model_of(nodes, inputs, [tensor_info("y")], [number([dims[0]], "dim")])).program
    assert operators(program)[-1] == op
    a, b = torch.randn(3, 5), torch.randn(3, 5)
    expected = torch.cat([a.unsqueeze(dims[0]), b.unsqueeze(dims[0])], dims[1])
    assert torch.equal(Interpreter(program).run("forward", [a, b]), expected)


@pytest.mark.parametrize(
    ("orders", "count"), [(((1, 2, 0), (2, 0, 1)), 0), (((1, 2, 0), (0, 2, 1)), 1), (((2, 0, 1), (2, 0, 1)), 1)]
)
def test_permutations_become_one_or_none(orders: tuple[tuple[int, ...], ...], count: int) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=orders[0])]
    nodes += [helper.make_node("Transpose", ["t"], ["u"], perm=orders[1]), helper.make_node("Neg", ["u"], ["y"])]
    program = source_of(model_of(nodes, [tensor_info("x", [2, 3, 5])], [tensor_info("y")])).program
    assert operators(program).count("permute") == count
    x = torch.randn(2, 3, 5)
    assert torch.equal(Interpreter(program).run("forward", [x]), -x.permute(orders[0]).permute(orders[1]))


@pytest.mark.parametrize(("scale", "bias", "is_plain"), [(1.0, 0.0, True), (1.0, 0.5, False), (2.0, 0.0, False)])
def test_an_instance_norm_by_ones_and_zeros_has_neither(scale: float, bias: float, is_plain: bool) -> None:
    nodes = [helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["y"])]
    constants = [number([scale] * 3, "scale", numpy.float32), number([bias] * 3, "bias", numpy.float32)]
    program = source_of(model_of(nodes, [tensor_info("x", [2, 3, 5])], [tensor_info("y")], constants)).program
    norm = next(node for node in program.methods["forward"].walk() if node.op == "aten::instance_norm")
    assert all((value.is_constant and value.constant is None) is is_plain for value in norm.inputs[1:3])
    x = torch.randn(2, 3, 5)
    expected = torch.nn.functional.instance_norm(x) * scale + bias
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), expected)


def test_a_list_of_indices_may_have_gaps() -> None:
    """PyTorch 1.13's lite interpreter refuses other lists where the schema has these."""
    nodes = [helper.make_node("GatherND", ["x", "at"], ["y"])]
    inputs = [tensor_info("x", [3, 5]), tensor_info("at", [4, 2], onnx.TensorProto.INT64)]
    program = source_of(model_of(nodes, inputs, [tensor_info("y")])).program
    (taken,) = (node for node in program.methods["forward"].walk() if node.op == "aten::index")
    assert taken.inputs[1].type == ListType(OptionalType(TENSOR))
    x, at = torch.randn(3, 5), torch.tensor([[0, 4], [2, -1], [-3, 0], [1, 1]])
    assert torch.equal(Interpreter(program).run("forward", [x, at]), x[at[:, 0], at[:, 1]])


def test_the_logarithm_of_a_sigmoid_is_finite_where_the_sigmoid_vanishes() -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Log", ["s"], ["y"])]
    program = source_of(model_of(nodes, [tensor_info("x", [3])], [tensor_info("y")])).program
    assert "log_sigmoid" in operators(program)
    assert "log" not in operators(program)
    x = torch.tensor([-200.0, 0.5, 90.0])
    assert torch.equal(Interpreter(program).run("forward", [x]), torch.nn.functional.logsigmoid(x))


POOLS = [
    ("AveragePool", [7], 2, 2, 0, 0),
    ("AveragePool", [8, 5], 3, 2, 1, 0),
    ("AveragePool", [9, 7], 3, 5, 1, 1),
    ("AveragePool", [5, 4, 7], 2, 3, 0, 0),
    ("AveragePool", [1, 10, 11], 2, 1, 1, 0),
    ("MaxPool", [7], 2, 2, 0, 0),
    ("MaxPool", [8, 5], 3, 2, 1, 0),
    ("MaxPool", [5, 4, 7], 2, 3, 0, 0),
]


@pytest.mark.parametrize(("operator", "sizes", "kernel", "stride", "pad", "counts"), POOLS)
def test_windows_that_are_rounded_up(
    operator: str, sizes: list[int], kernel: int, stride: int, pad: int, counts: int
) -> None:
    """One operator, also where sizes are open; images smaller than a window, which torch refuses in three dimensions,
    are padded."""
    rank = len(sizes)
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
    if operator == "AveragePool":
        attributes["count_include_pad"] = counts
    node = helper.make_node(operator, ["x"], ["y"], ceil_mode=1, **attributes)
    x = torch.randn(2, 3, *sizes)
    for known in (x.shape, [2, 3, *["s"] * rank]):
        model = model_of([node], [tensor_info("x", known)], [tensor_info("y")], opset=22)
        is_small = rank == 3 and operator == "AveragePool" and min(sizes) < kernel
        if is_small and known is not x.shape:
            continue
        program = source_of(model).program
        if not is_small:
            assert operators(program) == [f"{'avg' if operator == 'AveragePool' else 'max'}_pool{rank}d"]
        (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x.numpy()})
        torch.testing.assert_close(Interpreter(program).run("forward", [x]), torch.from_numpy(expected))


class Pooled(torch.nn.Module):
    def __init__(self, *size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x * 2, self.size)


class Unpooled(torch.nn.Module):
    """As in SegNet: to where the greatest elements were, of a plane of odd sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, indices = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        return torch.nn.functional.max_unpool2d(y.relu() + 1, indices, 3, 2, 1, output_size=x.shape[-2:])


EXPORTED = [
    (Pooled(2, 3), [2, 3, 7, 9], "adaptive_avg_pool2d"),  # all windows are equally large
    (Pooled(2, 3), [2, 3, 7, 11], "adaptive_avg_pool2d"),
    (Pooled(6, 1), [1, 5, 4, 7], "adaptive_avg_pool2d"),
    (Pooled(5, 7), [1, 3, 13, 3], "adaptive_avg_pool2d"),
    (Unpooled(), [2, 3, 7, 11], "max_unpool2d"),
]


@pytest.mark.parametrize(
    ("module", "sizes", "op"), sampled(EXPORTED, one_in=2, key=lambda case: f"{case[2]} {case[1]}")
)
def test_pools_that_the_exporter_takes_apart(
    module: torch.nn.Module, sizes: list[int], op: str, tmp_path: Path
) -> None:
    x = torch.randn(sizes)
    torch.onnx.export(module.eval(), (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    program = source_of(tmp_path / "net.onnx").program
    found = operators(program)
    assert op in found
    assert not {"index", "index_put", "permute", "where", "mean", "div", "remainder"} & set(found)
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), module(x))


@pytest.mark.parametrize(("last", "is_known"), [(10, True), (9, False)])
def test_windows_of_other_elements_are_no_adaptive_pool(last: int, is_known: bool) -> None:
    """Two windows of six rows and columns of eleven, which share one; or not quite those."""
    rows = numpy.array([range(6), [5, 6, 7, 8, 9, last]])
    places = numpy.stack([*numpy.broadcast_arrays(rows[:, :, None, None], rows)], -1)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[2, 3, 0, 1]),
        helper.make_node("GatherND", ["t", "places"], ["taken"]),
        helper.make_node("Transpose", ["taken"], ["windows"], perm=[4, 5, 0, 1, 2, 3]),
        helper.make_node("ReduceMean", ["windows", "axes"], ["y"], keepdims=0),
    ]
    constants = [number(places, "places"), number([-3, -1], "axes")]
    inputs = [tensor_info("x", [2, 3, 11, 11])]
    program = source_of(model_of(nodes, inputs, [tensor_info("y")], constants, opset=18)).program
    assert ("adaptive_avg_pool2d" in operators(program)) is is_known
    x = torch.randn(2, 3, 11, 11)
    expected = x[:, :, places[..., 0], places[..., 1]].mean((3, 5))
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), expected)


@pytest.mark.parametrize(("begins", "is_known"), [([0, 24, 48], True), ([1, 24, 47], False), ([0, 25, 48], False)])
def test_planes_that_begin_elsewhere_are_no_unpooling(begins: list[int], is_known: bool) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["values", "at"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("MaxPool", ["x"], ["same", "each"], kernel_shape=[1, 1]),
        helper.make_node("Slice", ["each", "zeros", "ones", "axes"], ["first"]),
        helper.make_node("Sub", ["at", "first"], ["plane"]),
        helper.make_node("Add", ["plane", "begins"], ["moved"]),
        helper.make_node("Reshape", ["moved", "row"], ["line"]),
        helper.make_node("Unsqueeze", ["line", "row"], ["places"]),
        helper.make_node("Reshape", ["values", "row"], ["updates"]),
        helper.make_node("ScatterND", ["empty", "places", "updates"], ["flat"]),
        helper.make_node("Reshape", ["flat", "sizes"], ["y"]),
    ]
    constants = [
        number([0, 0], "zeros"),
        number([1, 1], "ones"),
        number([2, 3], "axes"),
        number(numpy.reshape(begins, [1, 3, 1, 1]), "begins"),
        number([-1], "row"),
        number(numpy.zeros(72), "empty", numpy.float32),
        number([1, 3, 4, 6], "sizes"),
    ]
    model = model_of(nodes, [tensor_info("x", [1, 3, 4, 6])], [tensor_info("y")], constants, opset=18)
    program = source_of(model).program
    found = operators(program)
    assert ("max_unpool2d" in found) is is_known
    x = torch.randn(1, 3, 4, 6)
    values, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    places = indices + torch.tensor(begins).reshape(1, 3, 1, 1)
    expected = torch.zeros(72).scatter(0, places.reshape(-1), values.reshape(-1)).reshape(x.shape)
    assert torch.equal(Interpreter(program).run("forward", [x]), expected)
