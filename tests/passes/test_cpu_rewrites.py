from typing import Any

import pytest
import torch
from pass_harness import apply, operators, optimise, program_of
from torch import nn

from mobopt.ir.types import BOOL, ClassType
from mobopt.passes.conv1d_to_2d import Conv1dTo2d
from mobopt.passes.freeze import Freeze
from mobopt.passes.fuse_add_relu import FuseAddRelu
from mobopt.passes.hoist_conv_packed_params import HoistConvPackedParams
from mobopt.passes.pipelines import CPU
from mobopt.passes.remove_dropout import RemoveDropout
from mobopt.passes.set_flag import SetFlag

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %flag : bool):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %two : int[] = prim::Constant[value=[2]]()
  %half : float = prim::Constant[value=0.5]()
  %true : bool = prim::Constant[value=1]()
  %false : bool = prim::Constant[value=0]()
"""
CONSTANTS: dict[str, Any] = {"w": torch.rand(4, 3, 5)}


def after(item: Any, body: str) -> tuple[str, list[str]]:
    return apply(item, program_of(HEAD + body, CONSTANTS))


@pytest.mark.parametrize(
    "op", ["dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout", "feature_alpha_dropout"]
)
def test_dropout_goes(op: str) -> None:
    text, notes = after(RemoveDropout(), f"  %y : Tensor = aten::{op}(%x, %half, %false)\n  return (%y)")
    assert text == "return (%x)\n"
    assert notes == [f"remove_dropout: aten::{op} %y removed: it does nothing in evaluation mode"]


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ("%true", "stays: it is asked to train even in evaluation mode"),
        ("%flag", "stays: whether it trains is not known before the model runs"),
    ],
)
def test_dropout_that_trains_stays(train: str, reason: str) -> None:
    text, notes = after(RemoveDropout(), f"  %y : Tensor = aten::dropout(%x, %half, {train})\n  return (%y)")
    assert "aten::dropout" in text
    assert notes == [f"remove_dropout: aten::dropout %y {reason}"]


@pytest.mark.parametrize(
    ("add", "relu", "fused"),
    [("add", "relu", "_add_relu"), ("add", "relu_", "_add_relu"), ("add_", "relu_", "_add_relu_")],
)
def test_relu_joins_the_addition(add: str, relu: str, fused: str) -> None:
    body = f"  %a : Tensor = aten::{add}(%x, %w, %one)\n  %y : Tensor = aten::{relu}(%a)\n  return (%y)"
    text, _ = after(FuseAddRelu(), body)
    assert text == f"%a : Tensor = aten::{fused}(%x, %w, %one)\nreturn (%a)\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "  %a : Tensor = aten::add_(%x, %w, %one)\n  %y : Tensor = aten::relu(%a)\n  return (%y)",
            "not fused with aten::relu %y: the one is in place and the other is not",
        ),
        (
            "  %a : Tensor = aten::add(%x, %w, %one)\n  %y : Tensor = aten::relu(%a)\n"
            "  %z : Tensor = aten::mul(%a, %y)\n  return (%z)",
            "not fused with aten::relu %y: the sum is read elsewhere too",
        ),
    ],
)
def test_relu_that_stays(body: str, reason: str) -> None:
    text, notes = after(FuseAddRelu(), body)
    assert "aten::relu(" in text
    assert notes[0].endswith(reason)


class SumSeenBefore(nn.Module):
    """What a sum in place holds is read before relu clamps it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x * 1
        total = a.add_(y)
        half = a * 0.5
        return half, torch.relu_(total)


class SumClampedInBranch(nn.Module):
    """A sum in place is clamped only sometimes, and read always."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x * 1
        total = a.add_(y)
        if x.shape[0] > 5:
            return torch.relu_(total) * 2
        return a


class SumClampedInLoop(nn.Module):
    """Each trip clamps the same sum anew and changes the result in place."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total, result = x + y, x
        for _ in range(x.shape[0]):
            result = result + torch.relu(total).mul_(2)
        return result


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (SumSeenBefore(), "may read the sum before"),
        (SumClampedInBranch(), "they do not run equally often"),
        (SumClampedInLoop(), "they do not run equally often"),
    ],
)
def test_relu_that_must_stay_apart(module: nn.Module, reason: str) -> None:
    program, notes = optimise(module, [torch.randn(3, 4), torch.randn(3, 4)], CPU)
    assert any(op.startswith("aten::relu") for op in operators(program))
    assert any(note.message.endswith(reason) for note in notes)


class HalfWeights(nn.Module):
    """Adds a weight in half precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.weight)


class Halves(nn.Module):
    """Computes in half precision without a weight that shows it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.bfloat16)
        return torch.relu(y + y)


def test_sums_in_half_precision_stay() -> None:
    """PyTorch's fused operator asserts on them."""
    for module, dtype in ((HalfWeights(torch.float16), torch.float16), (Halves(), torch.float32)):
        program, notes = optimise(module, [torch.randn(3, 4).to(dtype)], CPU)
        assert "aten::relu" in operators(program)
        assert any("half precision, which the fused operator does not take" in str(note) for note in notes)


def test_conv1d_is_a_flat_conv2d() -> None:
    body = "  %y : Tensor = aten::conv1d(%x, %w, %none, %two, %two, %two, %one)\n  return (%y)"
    program = program_of(HEAD + body, CONSTANTS)
    apply(Conv1dTo2d(), program)
    wide, convolution, flat = program.methods["forward"].block.nodes
    assert (wide.op, convolution.op, flat.qualified_op) == ("aten::unsqueeze", "aten::conv2d", "aten::squeeze.dim")
    assert convolution.inputs[1].constant.shape == (4, 3, 1, 5)
    assert [value.constant for value in convolution.inputs[3:6]] == [[1, 2], [0, 2], [1, 2]]


def test_conv1d_with_computed_weight_stays() -> None:
    body = "  %y : Tensor = aten::conv1d(%x, %x, %none, %two, %two, %two, %one)\n  return (%y)"
    text, notes = after(Conv1dTo2d(), body)
    assert "aten::conv1d" in text
    assert notes == ["conv1d_to_2d: aten::conv1d %y stays: its weight, stride, padding or dilation is not constant"]


@pytest.mark.parametrize("sizes", [(2, 3, 11), (3, 11)])
def test_conv1d_gives_the_numbers_of_eager(sizes: tuple[int, ...]) -> None:
    module = nn.Sequential(nn.Conv1d(3, 6, 3, stride=2, padding=1, dilation=2, groups=3), nn.ReLU())
    program, _ = optimise(module, [torch.rand(sizes)], CPU)
    assert "aten::conv1d" not in operators(program)


class Residual(nn.Module):
    """An addition with relu behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(nn.functional.dropout(self.conv(x), training=self.training) + x)


@pytest.mark.parametrize("how", ["script", "trace"])
def test_cpu_pipeline(how: str) -> None:
    program, _ = optimise(Residual(), [torch.rand(1, 3, 5, 7)], CPU, how)
    assert operators(program) == ["aten::conv2d", "aten::_add_relu"]
    assert program.attributes["mobile_optimized"].value is True


def test_flag_is_set_once() -> None:
    program = program_of("graph(%self : __torch__.M,\n      %x : Tensor):\n  return (%x)")
    apply(SetFlag("optimized_for_vulkan"), program)
    assert program.attributes["optimized_for_vulkan"].type == BOOL
    assert program.attributes["optimized_for_vulkan"].value is True


def test_packed_weights_of_quantised_convolutions_become_attributes() -> None:
    if "qnnpack" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no quantised convolutions")
    torch.backends.quantized.engine = "qnnpack"
    packed = torch.ops.quantized.conv2d_prepack(
        torch.quantize_per_tensor(torch.rand(2, 2, 1, 1), 0.1, 0, torch.qint8), None, [1, 1], [0, 0], [1, 1], 1
    )
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %scale : float = prim::Constant[value=0.1]()
      %zero : int = prim::Constant[value=0]()
      %w : __torch__.torch.classes.quantized.Conv2dPackedParamsBase = prim::GetAttr[name="conv._packed_params"](%self)
      %y : Tensor = quantized::conv2d(%x, %w, %scale, %zero)
      return (%y)
    """
    kind = ClassType("__torch__.torch.classes.quantized.Conv2dPackedParamsBase")
    program = program_of(text, attributes={"conv._packed_params": (kind, packed)})
    Freeze().run(program)
    name = "_jit_pass_hoist_conv_packed_params.conv._packed_params.1"
    after_text, notes = apply(HoistConvPackedParams(), program)
    assert f'prim::GetAttr[name="{name}"](%self)' in after_text
    assert program.attributes[name].value is packed
    assert notes == [f"hoist_conv_packed_params: quantized::conv2d %y reads its packed weights from attribute {name}"]
