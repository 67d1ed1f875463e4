"""The reference interpreter against torch's own TorchScript."""

from typing import NamedTuple, Optional

import pytest
import torch
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Attribute, Program, parse_graph
from mobopt.ops.contexts import GruPackedContext, LstmPackedContext
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.kernels import kernel


def run(module: nn.Module, *args: object) -> object:
    return Interpreter(program_from_script_module(torch.jit.script(module))).run("forward", args)


class Loops(nn.Module):
    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        y = x
        for step in range(count):
            if step % 2 == 0:
                y = y + float(step)
            elif step > 4:
                break
            else:
                y = y * 2.0
        while bool((y.sum() < 100.0).item()):
            y = y + 10.0
        return y


def test_loops_and_branches():
    x = torch.randn(2, 3)
    for count in (0, 1, 5, 9):
        assert torch.equal(run(Loops(), x, count), Loops()(x, count))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Containers(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        others: list[torch.Tensor],
        scale: Optional[float],  # noqa: UP045 (TorchScript knows no other spelling)
    ) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], Pair, str, int]:
        table: dict[str, torch.Tensor] = {"x": x}
        items = [x]
        for index, other in enumerate(others):
            table[f"other{index}"] = other * (1.0 if scale is None else scale)
            items.append(table[f"other{index}"])
        items.reverse()
        if "x" in table:
            table["sum"] = torch.stack(items).sum(0)
        name = "{} of {}".format(len(items), "tensors")
        return table, items[:-1], Pair(left=x, right=items[0]), name, len(table)


@pytest.mark.parametrize("scale", [None, 0.5])
def test_containers(scale):
    x, others = torch.randn(3), [torch.randn(3), torch.randn(3)]
    found, expected = run(Containers(), x, others, scale), Containers()(x, others, scale)
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(found[0][key], expected[0][key]) for key in expected[0])
    assert all(map(torch.equal, found[1], expected[1]))
    assert torch.equal(found[2].right, expected[2].right) and found[2]._fields == ("left", "right")
    assert found[3:] == expected[3:] == ("3 of tensors", 4)


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError(f"x has {x.dim()} dimensions, not 2")
        return x


def test_what_the_model_raises_is_one_clear_error():
    with pytest.raises(InputError, match="x has 3 dimensions, not 2"):
        run(Raises(), torch.zeros(1, 1, 1))


def test_shapes_that_do_not_fit_name_operator_and_shapes():
    with pytest.raises(InputError, match=r"aten::linear.*float32\[2, 5\]"):
        run(nn.Linear(4, 3), torch.zeros(2, 5))


def test_wrong_number_of_inputs():
    with pytest.raises(InputError, match="forward takes 1 inputs"):
        run(nn.ReLU(), torch.zeros(1), torch.zeros(1))
    with pytest.raises(InputError, match="no method 'backward'"):
        Interpreter(program_from_script_module(torch.jit.script(nn.ReLU()))).run("backward", [])


class Mutates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table[1] += x
        row = self.table[1]
        row.mul_(2.0)
        return self.table


def test_buffers_that_are_changed_are_state():
    program, eager = program_from_script_module(torch.jit.script(Mutates())), Mutates()
    interpreter = Interpreter(program)
    for x in (torch.arange(3.0), torch.ones(3)):
        assert torch.equal(interpreter.run("forward", [x]), eager(x))
    assert torch.equal(program.attributes["table"].value, torch.zeros(2, 3))
    with pytest.raises(InputError):
        interpreter.run("forward", [torch.ones(4)])
    assert torch.equal(interpreter.model_state.values["table"], eager.table)


class Counts(nn.Module):
    count: int

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + float(self.count)


def test_assigned_attributes_last():
    interpreter = Interpreter(program_from_script_module(torch.jit.script(Counts())))
    assert [interpreter.run("forward", [torch.zeros(1)]).item() for _ in range(3)] == [1.0, 2.0, 3.0]


def _context_program(op: str, inputs: str, context: object, results: int) -> Program:
    outputs = ", ".join(f"%r{index} : Tensor" for index in range(results))
    names = ", ".join(f"%r{index}" for index in range(results))
    kind = type(context).qualified_name
    declared = ", ".join(f"%{name} : Tensor" for name in inputs)
    text = f"""graph(%self : __torch__.M, {declared}):
  %packed : {kind} = prim::GetAttr[name="context"](%self)
  {outputs} = {op}({", ".join(f"%{name}" for name in inputs)}, %packed)
  %t : ({", ".join(["Tensor"] * results)}) = prim::TupleConstruct({names})
  return (%t)
"""
    from mobopt.ir.types import ClassType

    return Program({"forward": parse_graph(text)}, {"context": Attribute(ClassType(kind), context)}, "__torch__.M")


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_recurrent_contexts_in_both_forms(kind, split):
    gates, layers = (3, 2) if kind == "gru" else (4, 2)
    net = (nn.GRU if kind == "gru" else nn.LSTM)(5, 6, layers, batch_first=True)
    params = [parameter.detach() for parameter in net.parameters()]
    if split:
        whole, params = params, []
        for layer in range(layers):
            w_ih, w_hh, b_ih, b_hh = (tensor.chunk(gates) for tensor in whole[4 * layer : 4 * layer + 4])
            for gate in range(gates):
                params += [w_ih[gate], b_ih[gate], w_hh[gate], b_hh[gate]]
    context_type = GruPackedContext if kind == "gru" else LstmPackedContext
    context = context_type(params, True, layers, 0.0, False, False, True)
    x, h, c = torch.randn(1, 4, 5), torch.randn(layers, 1, 6), torch.randn(layers, 1, 6)
    inputs, args = ("xh", [x, h]) if kind == "gru" else ("xhc", [x, h, c])
    found = Interpreter(_context_program(f"vulkan_prepack::run_{kind}_context", inputs, context, len(inputs))).run(
        "forward", args
    )
    output, state = net(x, h if kind == "gru" else (h, c))
    expected = [output, *(state if isinstance(state, tuple) else [state])]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_packed_convolutions():
    x, weight, bias = torch.randn(1, 4, 7, 6), torch.randn(6, 2, 3, 3), torch.randn(6)
    context = kernel("vulkan_prepack::create_conv2d_context")(weight, bias, [2, 1], [1, 0], [1, 1], 2, 0.0, 1.5)
    expected = nn.functional.conv2d(x, weight, bias, [2, 1], [1, 0], [1, 1], 2).clamp(0.0, 1.5)
    assert torch.equal(kernel("vulkan_prepack::run_conv2d_context")(x, context), expected)
    weight = torch.randn(4, 3, 3, 2)
    context = kernel("vulkan_prepack::create_tconv2d_context")(
        weight, bias, [2, 2], [1, 1], [1, 1], [1, 1], 2, None, None
    )
    expected = nn.functional.conv_transpose2d(x, weight, bias, [2, 2], [1, 1], [1, 1], 2, [1, 1])
    assert torch.equal(kernel("vulkan_prepack::run_tconv2d_context")(x, context), expected)


def test_a_transfer_is_the_tensor_itself():
    text = """graph(%self : __torch__.M, %x : Tensor):
  %d : Device = prim::Constant[value="vulkan"]()
  %n : NoneType = prim::Constant()
  %f : bool = prim::Constant[value=0]()
  %c : Device = prim::Constant[value="cpu"]()
  %v : Tensor = aten::to(%x, %d, %n, %f, %f)
  %r : Tensor = aten::relu(%v)
  %y : Tensor = aten::to(%r, %c, %n, %f, %f)
  return (%y)
"""
    x = torch.randn(3)
    assert torch.equal(Interpreter(Program({"forward": parse_graph(text)})).run("forward", [x]), x.relu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_torch_computes_in_floats_alone(dtype: torch.dtype) -> None:
    """ONNX files of halves have it; other errors stay, and so does what is written in place."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 3, 5, 7, generator=generator).to(dtype)
    with pytest.raises(NotImplementedError):
        torch.ops.aten.avg_pool3d(x, 2)
    found = kernel("aten::avg_pool3d")(x, [2, 2, 2], [1, 1, 1], [0, 0, 0], False, True, None)
    assert found.dtype == dtype
    assert torch.equal(found, torch.nn.functional.avg_pool3d(x.float(), 2, 1).to(dtype))
    rows = x[0, 0, 0]
    with pytest.raises(NotImplementedError):
        torch.ops.aten.cdist(rows, rows)
    distances = kernel("aten::cdist")(rows, rows, 2.0, None)
    assert torch.equal(distances, torch.cdist(rows.float(), rows.float()).to(dtype))
    with pytest.raises(NotImplementedError):
        kernel("aten::geqrf.a")(rows, rows, rows[0])
