"""Packed weights become plain ones; transfers go; what is left computes the same."""

from __future__ import annotations

import pytest
import torch
from pass_harness import apply, assert_close, expect, operators, program_of
from torch import nn

from mobopt.errors import UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import verify
from mobopt.ir.types import BOOL, ClassType
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import Conv2dPackedContext, PackedContext, QuantizedConv2dContext
from mobopt.options import Settings
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.passes.remove_transfers import RemoveTransfers
from mobopt.passes.unpack import Unpack
from mobopt.runtimes.cpu import Interpreter

_CONTEXT = ClassType("__torch__.torch.classes.vulkan.Conv2dPackedContext")
_TEXT = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %c : __torch__.torch.classes.vulkan.Conv2dPackedContext = prim::GetAttr[name="packed"](%self)
      %y : Tensor = vulkan_prepack::run_conv2d_context(%x, %c)
      %z : Tensor = vulkan_prepack::run_conv2d_context(%y, %c)
      return (%z)
"""


def _context(low: float | None = None, high: float | None = None) -> Conv2dPackedContext:
    weight = torch.randn(3, 3, 3, 3)
    return Conv2dPackedContext(weight, None, [1, 1], [1, 1], [1, 1], False, False, [0], 1, low, high)


def test_a_convolution_and_its_range_are_two_operators() -> None:
    context = _context(-1.0, 1.0)
    program = program_of(_TEXT, attributes={"packed": (_CONTEXT, context), "optimized_for_vulkan": (BOOL, True)})
    expected = Interpreter(program).run("forward", [torch.ones(1, 3, 5, 5)])
    after, notes = apply(Unpack(), program)
    assert operators(program) == ["aten::conv2d", "aten::clamp"] * 2
    assert after.splitlines()[2] == "%z.1 : Tensor = aten::conv2d(%y.2, %8, %9, %10, %11, %12, %13)"
    weights = {node.inputs[1].constant.data_ptr() for node in program.methods["forward"].walk() if "conv" in node.op}
    assert weights == {context.weight.data_ptr()}, "both read one tensor, which is the file's"
    assert notes[0].endswith("is aten::conv2d on plain weights")
    assert notes[-1] == "unpack: optimized_for_vulkan dropped: the file is for no backend any more"
    assert not program.attributes
    assert_close(Interpreter(program).run("forward", [torch.ones(1, 3, 5, 5)]), expected)


@pytest.mark.parametrize(
    ("low", "high", "op"), [(0, None, "aten::relu"), (None, 2, "aten::clamp"), (0, 6, "aten::clamp")]
)
def test_ranges(low: float | None, high: float | None, op: str) -> None:
    program = program_of(_TEXT, attributes={"packed": (_CONTEXT, _context(low, high))})
    expected = Interpreter(program).run("forward", [torch.ones(2, 3, 4, 5)])
    apply(Unpack(), program)
    assert operators(program)[1] == op
    assert_close(Interpreter(program).run("forward", [torch.ones(2, 3, 4, 5)]), expected)


class Layers(nn.Module):
    """One layer of every kind that some backend packs."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2)
        self.conv = nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, dilation=(1, 2))
        self.norm = nn.BatchNorm2d(4)
        self.layer = nn.LayerNorm(7)
        self.linear = nn.Linear(7, 5)
        self.gru = nn.GRU(5, 4, 2, batch_first=True)
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.flat(x).unsqueeze(1).expand(-1, 2, -1, -1)
        y = self.norm(torch.relu(self.up(torch.relu(self.conv(y)))))
        y = torch.nn.functional.adaptive_avg_pool2d(y, [6, 7]).flatten(1, 2)
        y, h = self.gru(self.linear(self.layer(y)))
        return self.lstm(y)[0], h


@pytest.mark.parametrize("backend", ["vulkan", "metal", "cpu"])
def test_every_layer_that_a_backend_packs(backend: str) -> None:
    module = Layers().eval()
    module.norm.running_mean.uniform_(-1, 1)
    x = torch.randn(2, 4, 9)
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, pipeline_for(Settings(backend, "2.6", legalize="off", xnnpack=backend == "cpu")), check=True)
    assert any("pack" in node.op for node in program.methods["forward"].walk())
    run_passes(program, [Unpack(), RemoveTransfers()], check=True)
    verify(program)
    assert not any("pack" in op or "metal" in op for op in operators(program))
    assert not any(isinstance(item.value, PackedContext) for item in program.attributes.values())
    with torch.no_grad():
        assert_close(Interpreter(program).run("forward", [x]), module(x))


def test_what_can_not_be_unpacked_is_named() -> None:
    integers = torch.zeros(3, 3, 3, 3, dtype=torch.int8)
    weight = AffineTensor(integers, torch.ones(1, dtype=torch.double), torch.zeros(1), None)
    packed = QuantizedConv2dContext(weight, None, [1, 1], [1, 1], [1, 1], False, True, [0], 1, None, None)
    with pytest.raises(UnsupportedError, match="run_conv2d_context has quantised weights"):
        Unpack().run(program_of(_TEXT, attributes={"packed": (_CONTEXT, packed)}))
    computed = """
    graph(%self : __torch__.M,
          %x : Tensor,
          %w : Tensor):
      %none : NoneType = prim::Constant()
      %c : __torch__.torch.classes.vulkan.LinearPackedContext = vulkan_prepack::create_linear_context(%w, %none)
      %y : Tensor = vulkan_prepack::run_linear_context(%x, %c)
      return (%y)
    """
    with pytest.raises(UnsupportedError, match="create_linear_context packs weights that the model computes"):
        Unpack().run(program_of(computed))
    handed_on = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %c : __torch__.torch.classes.vulkan.Conv2dPackedContext = prim::GetAttr[name="packed"](%self)
      return (%c)
    """
    with pytest.raises(UnsupportedError, match="hands on the packed weights 'packed'"):
        Unpack().run(program_of(handed_on, attributes={"packed": (_CONTEXT, _context())}))


_MOVED = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %device : Device = prim::Constant[value="vulkan"]()
      %cpu : Device = prim::Constant[value="cpu"]()
      %none : NoneType = prim::Constant()
      %no : bool = prim::Constant[value=0]()
      %a : Tensor = aten::to.prim_Device(%x, %device, %none, %no, %no)
      %b : Tensor = {op}(%a)
      %y : Tensor = aten::to.prim_Device(%b, %cpu, %none, %no, %no)
      return (%y)
"""


def test_transfers_go() -> None:
    program = program_of(_MOVED.format(op="aten::relu"))
    after, notes = apply(RemoveTransfers(), program)
    assert after == expect(
        """
        %b : Tensor = aten::relu(%x)
        return (%b)
        """
    )
    assert notes[0] == "remove_transfers: aten::to %a removed: every tensor lies on the CPU"


def test_a_transfer_that_is_written_to_stays_a_copy() -> None:
    program = program_of(_MOVED.format(op="aten::relu_"))
    x = torch.tensor([-1.0, 2.0])
    apply(RemoveTransfers(), program)
    assert operators(program)[:2] == ["aten::clone", "aten::relu_"]
    assert Interpreter(program).run("forward", [x]).tolist() == [0.0, 2.0]
    assert x.tolist() == [-1.0, 2.0]


def test_other_devices_become_the_cpu() -> None:
    text = """
    graph(%self : __torch__.M,
          %n : int):
      %device : Device = prim::Constant[value="cuda:0"]()
      %none : NoneType = prim::Constant()
      %sizes : int[] = prim::ListConstruct(%n, %n)
      %y : Tensor = aten::zeros(%sizes, %none, %none, %device, %none)
      return (%y)
    """
    program = program_of(text)
    _, notes = apply(RemoveTransfers(), program)
    (zeros,) = (node for node in program.methods["forward"].walk() if node.op == "aten::zeros")
    assert zeros.inputs[3].constant == torch.device("cpu")
    assert notes == ["remove_transfers: aten::zeros %y names the CPU in place of cuda:0"]
