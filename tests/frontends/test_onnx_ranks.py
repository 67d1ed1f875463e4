"""Numbers of dimensions that ONNX's inference doesn't tell: sizes that graphs compute, branches, loops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from mobopt.errors import BundleError, InputError, UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.ir import Program
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

node = helper.make_node
INTS = {"zero": 0, "one": 1, "two": 2, "many": 999, "zeros": [0], "ones": [1], "minus": [-1], "three": [3]}


def value(name: str, kind: int = TensorProto.FLOAT, sizes: Sequence[int | str] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def program_of(nodes: Sequence[Any], sizes: Sequence[int | str], outputs: Sequence[str], opset: int = 11) -> Program:
    return source_of(model_of(nodes, sizes, outputs, opset)).program


def model_of(nodes: Sequence[Any], sizes: Sequence[int | str], outputs: Sequence[str], opset: int = 11) -> Any:
    """Of a graph of ``x`` with the integers above."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("x", sizes=sizes)],
        [value(name) for name in outputs],
        [numpy_helper.from_array(torch.tensor(number).numpy(), name) for name, number in INTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def assert_runs(program: Program, device: Device, x: Tensor, *expected: Tensor) -> None:
    runtime = VulkanProgram(program, device)
    for found in (Interpreter(program).run("forward", [x]), runtime.run("forward", [x])):
        results = found if isinstance(found, tuple) else (found,)
        for one, other in zip(results, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    runtime.close()


SIZES = [
    node("Shape", ["x"], ["sizes"]),
    node("Gather", ["sizes", "zero"], ["n"], axis=0),
    node("Gather", ["sizes", "one"], ["c"], axis=0),
    node("Gather", ["sizes", "two"], ["t"], axis=0),
    node("Mul", ["n", "c"], ["rows"]),
    *(node("Unsqueeze", [name], [f"{name}_"], axes=[0]) for name in ("n", "c", "t", "rows")),
]


def test_reshapes_to_sizes_that_the_graph_computes(device: Device) -> None:
    """As the older exporter of torch and Paddle's write flattening: a softmax of opset 11 must know its rank."""
    nodes = [
        *SIZES,
        node("Concat", ["rows_", "t_"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["flat"]),
        node("Softmax", ["flat"], ["soft"], axis=1),
        node("Concat", ["n_", "minus"], ["items"], axis=0),
        node("Reshape", ["x", "items"], ["wide"]),
        node("Pow", ["wide", "wide"], ["power"]),
        node("Softmax", ["power"], ["other"], axis=-1),
    ]
    program = program_of(nodes, ["n", "c", "t"], ["soft", "other"])
    for sizes in ((2, 3, 5), (1, 7, 11)):
        x = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
        wide = x.flatten(1)
        assert_runs(program, device, x, x.flatten(0, 1).softmax(1), (wide**wide).softmax(-1))


def test_expands_to_sizes_that_the_graph_computes(device: Device) -> None:
    nodes = [
        *SIZES,
        node("Concat", ["three", "n_", "c_", "ones"], ["target"], axis=0),
        node("Expand", ["x", "target"], ["wide"]),
        node("Softmax", ["wide"], ["y"], axis=3),
    ]
    program = program_of(nodes, ["n", "c", "t"], ["y"])
    for sizes in ((2, 3, 5), (1, 7, 11)):
        x = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
        assert_runs(program, device, x, x.expand(3, *sizes).softmax(-1))


def test_joins_of_unknown_rank(device: Device) -> None:
    """A dimension that is counted from the front needs no rank."""
    nodes = [node("Squeeze", ["x"], ["flat"]), node("Concat", ["flat", "flat"], ["y"], axis=0)]
    program = program_of(nodes, ["n", "c", "t"], ["y"])
    for sizes in ((1, 5, 1), (2, 1, 3)):
        x = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
        assert_runs(program, device, x, torch.cat([x.squeeze()] * 2))


def squeezed(rest: Sequence[Any], condition: Sequence[Any] | None = None) -> list[Any]:
    """``squeeze(1)`` of an open size as torch.onnx writes it, and what comes after it."""
    then = helper.make_graph([node("Squeeze", ["x"], ["flat"], axes=[1])], "then", [], [value("flat")])
    otherwise = helper.make_graph([node("Identity", ["x"], ["same"])], "otherwise", [], [value("same")])
    is_one = condition or [*SIZES[:1], node("Gather", ["sizes", "ones"], ["c"]), node("Equal", ["c", "ones"], ["yes"])]
    return [*is_one, node("If", ["yes"], ["y"], then_branch=then, else_branch=otherwise), *rest]


def test_both_branches_are_kept_where_they_can_be(device: Device) -> None:
    program = program_of(squeezed([node("Relu", ["y"], ["z"])]), ["n", "c", "t"], ["z"])
    x = torch.randn(2, 1, 5, generator=torch.Generator().manual_seed(0))
    assert_runs(program, device, x, x.squeeze(1).relu())
    assert_runs(program, device, x.reshape(1, 2, 5), x.reshape(1, 2, 5).relu())


def test_a_branch_is_taken_for_granted_where_only_it_fits(device: Device) -> None:
    """The rest needs the rank, and is of one only; other inputs end in an error, not in other numbers."""
    two = program_of(squeezed([node("Softmax", ["y"], ["s"]), node("Gemm", ["s", "s"], ["z"], transB=1)]), "nct", ["z"])
    x = torch.randn(2, 1, 5, generator=torch.Generator().manual_seed(0))
    soft = x.squeeze(1).softmax(1)
    assert_runs(two, device, x, soft @ soft.T)
    turn = node("Transpose", ["s"], ["z"], perm=[2, 0, 1])
    three = program_of(squeezed([node("Softmax", ["y"], ["s"], axis=2), turn]), "nct", ["z"])
    wide = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    assert_runs(three, device, wide, wide.softmax(2).permute(2, 0, 1))
    for program, wrong, outcome in ((two, wide, "True"), (three, x, "False")):
        words = f"its branches give tensors of different ranks.*for which its condition is {outcome}"
        with pytest.raises(InputError, match=words):
            Interpreter(program).run("forward", [wrong])
        runtime = VulkanProgram(program, device)
        with pytest.raises(InputError, match=words):
            runtime.run("forward", [wrong])
        runtime.close()


def test_no_branch_is_taken_for_granted_that_elements_decide() -> None:
    condition = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "sum"], ["yes"])]
    with pytest.raises(UnsupportedError, match="the number of dimensions of its input is known at run time only"):
        program_of(squeezed([node("Softmax", ["y"], ["z"])], condition), ["n", "c", "t"], ["z"])


def test_example_inputs_tell_which_branch_is_theirs(device: Device) -> None:
    """What comes after fits both branches, and needs the rank: both of two branches are those of the example."""
    model = model_of(
        [
            *squeezed([node("Softmax", ["y"], ["s"], axis=-1)]),
            *renamed(squeezed([node("Softmax", ["y"], ["s"], axis=-1)]), "second_"),
            node("Concat", ["s", "second_s"], ["z"], axis=-1),
        ],
        "nct",
        ["z"],
    )
    wide = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    narrow = wide[:, :1]
    for x in (wide, narrow):
        flat = x.squeeze(1)
        expected = torch.cat([flat.softmax(-1)] * 2, -1)
        assert_runs(source_of(model, example_inputs=[x]).program, device, x, expected)
        assert_runs(source_of(model, example_inputs={"forward": [x]}).program, device, x, expected)
    without = source_of(model).program  # small sizes are tried
    assert_runs(without, device, wide, torch.cat([wide.softmax(-1)] * 2, -1))
    with pytest.raises(InputError, match=r"its branches give tensors of different ranks.*its condition is False"):
        Interpreter(without).run("forward", [narrow])


def renamed(nodes: Sequence[Any], prefix: str) -> list[Any]:
    """Nodes that make the same under other names."""
    made = {name for item in nodes for name in item.output}
    copies = [type(item).FromString(item.SerializeToString()) for item in nodes]
    for item in copies:
        for names in (item.input, item.output):
            names[:] = [prefix + name if name in made else name for name in names]
    return copies


def loop(first: str, nodes: Sequence[Any], state: str, trips: str = "n") -> list[Any]:
    """Trips that carry ``first`` and ``x``: as many as ``x`` has rows, or by a number of the file."""
    body = helper.make_graph(
        [*nodes, node("Identity", ["go"], ["again"]), node("Add", ["x_", "x_"], ["double"])],
        "body",
        [value("trip", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state"), value("x_")],
        [value("again", TensorProto.BOOL, []), value(state), value("double")],
    )
    truth = numpy_helper.from_array(torch.tensor(True).numpy(), "always")
    return [
        *SIZES[:2],
        node("Constant", [], ["always"], value=truth),
        node("Constant", [], ["number"], value=numpy_helper.from_array(torch.tensor(1.5).numpy())),
        node("Loop", [trips, "always", first, "x"], ["last", "y"], body=body),
    ]


def test_a_loop_carries_a_number_that_becomes_a_tensor_of_one_element(device: Device) -> None:
    nodes = loop("number", [node("Add", ["state", "half"], ["more"])], "more")
    half = node("Constant", [], ["half"], value=numpy_helper.from_array(torch.tensor([0.5]).numpy()))
    program = program_of([half, *nodes, node("Mul", ["last", "y"], ["z"])], ["n", "t"], ["z"])
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert_runs(program, device, x, 2.5 * 4 * x)


def test_a_loop_that_makes_what_it_carries_of_another_rank(device: Device) -> None:
    """Paddle carries numbers in the place of variables that the body makes, and that only what comes after reads."""
    nodes = loop("number", [node("Mul", ["x_", "x_"], ["square"])], "square")
    program = program_of([*nodes, node("Add", ["last", "y"], ["z"])], ["n", "t"], ["z"])
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert_runs(program, device, x, 4 * x * x + 4 * x)
    reads = loop("number", [node("Mul", ["x_", "state"], ["square"])], "square")
    message = "the number of dimensions of what it carries as number 0 changes"
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        program_of([*reads, node("Add", ["last", "y"], ["z"])], ["n", "t"], ["z"])


def test_a_loop_of_few_trips_is_written_out(device: Device) -> None:
    """What it carries may change its rank then, and what comes after it knows the rank."""
    nodes = loop("number", [node("Mul", ["x_", "state"], ["product"])], "product", trips="three")
    program = program_of([*nodes, node("Softmax", ["last"], ["z"], axis=-1)], ["n", "t"], ["z", "y"], opset=13)
    assert loops(program) == 0
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)) / 4
    assert_runs(program, device, x, (1.5 * x * 2 * x * 4 * x).softmax(-1), 8 * x)


@pytest.mark.parametrize("place", ["around", "node", "initializer"])
def test_loops_that_split_into_a_sequence(place: str, device: Device) -> None:
    """As torch.onnx writes ``tensor_split``; its condition is a constant around the loop, or in it."""
    always = numpy_helper.from_array(torch.tensor(True).numpy(), "again")
    again = {
        "around": [node("Identity", ["always"], ["again"])],
        "node": [node("Constant", [], ["yes"], value=always), node("Identity", ["yes"], ["again"])],
        "initializer": [],
    }
    body = helper.make_graph(
        [
            node("Gather", ["starts", "trip"], ["start"], axis=0),
            node("Add", ["trip", "one"], ["next"]),
            node("Gather", ["starts", "next"], ["end"], axis=0),
            node("Unsqueeze", ["start", "zeros"], ["start_"]),
            node("Unsqueeze", ["end", "zeros"], ["end_"]),
            node("Slice", ["x", "start_", "end_", "ones"], ["part"]),
            node("SequenceInsert", ["parts", "part"], ["more"]),
            *again[place],
        ],
        "body",
        [
            value("trip", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None),
        ],
        [value("again", TensorProto.BOOL, []), helper.make_tensor_sequence_value_info("more", TensorProto.FLOAT, None)],
        [always] if place == "initializer" else [],
    )
    nodes = [
        node("Constant", [], ["always"], value=numpy_helper.from_array(torch.tensor(True).numpy())),
        node("Constant", [], ["starts"], value=numpy_helper.from_array(torch.tensor([0, 2, 3, 7]).numpy())),
        node("SequenceEmpty", [], ["empty"]),
        node("Loop", ["three", "always", "empty"], ["all"], body=body),
        node("SequenceAt", ["all", "two"], ["last"]),
        node("Transpose", ["last"], ["turned"]),
        node("Shape", ["turned"], ["y"]),
        node("Softmax", ["turned"], ["z"], axis=0),
    ]
    program = program_of(nodes, ["n", "c", "t"], ["z", "y"], opset=13)
    assert loops(program) == 0
    x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0))
    last = x[:, 3:7].permute(2, 1, 0)
    assert_runs(program, device, x, last.softmax(0), torch.tensor(last.shape))


def test_loops_stay_whose_end_the_file_does_not_tell(device: Device) -> None:
    """Their trips are a size, or too many to be written out, or a computed condition ends them."""
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    twice = [node("Add", ["state", "state"], ["more"])]
    by_size = program_of([*loop("x", twice, "more"), node("Add", ["last", "y"], ["z"])], ["n", "t"], ["z"])
    assert loops(by_size) == 1
    assert_runs(by_size, device, x, 8 * x)
    halves = [node("Sin", ["state"], ["more"])]
    many = program_of([*loop("x", halves, "more", trips="many"), node("Sin", ["last"], ["z"])], ["n", "t"], ["z"])
    assert loops(many) == 1
    body = helper.make_graph(
        [node("Add", ["state", "state"], ["more"]), node("ReduceMax", ["more"], ["most"], keepdims=0),
         node("Less", ["most", "limit"], ["again"])],
        "body",
        [value("trip", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state")],
        [value("again", TensorProto.BOOL, []), value("more")],
    )  # fmt: skip
    nodes = [
        node("Constant", [], ["always"], value=numpy_helper.from_array(torch.tensor(True).numpy())),
        node("Constant", [], ["limit"], value=numpy_helper.from_array(torch.tensor(8.0).numpy())),
        node("Loop", ["many", "always", "x"], ["z"], body=body),
    ]
    until = program_of(nodes, ["n", "t"], ["z"])
    assert loops(until) == 1
    expected = x
    for _ in range(int(INTS["many"])):
        expected = expected + expected
        if expected.max() >= 8:
            break
    assert_runs(until, device, x, expected)


def test_a_loop_whose_condition_is_a_cycle() -> None:
    nodes = loop("x", [node("Add", ["state", "state"], ["more"])], "more", trips="two")
    body = nodes[-1].attribute[0].g
    body.node[1].input[0] = "turn"
    body.node.append(node("Identity", ["again"], ["turn"]))
    with pytest.raises(BundleError, match="the graph is cyclic or lacks a part"):
        program_of([*nodes, node("Add", ["last", "y"], ["z"])], ["n", "t"], ["z"])


def loops(program: Program) -> int:
    return sum(item.op == "prim::Loop" for item in program.methods["forward"].walk())
