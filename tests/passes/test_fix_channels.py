"""Numbers of channels that a script asks for and its weights tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from pass_harness import apply, assert_close, operators, program_of
from torch import Tensor, nn

from mobopt import audit, optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import Settings
from mobopt.passes.facts import Examples
from mobopt.passes.fix_channels import FixChannels
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

IMAGE = torch.rand(1, 3, 7, 5)
TEXT = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %pair : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %y : Tensor = aten::conv2d(%x, %w, %none, %pair, %zeros, %pair, %one)
{body}
  return (%n)
"""


def asked(body: str, example: Tensor | None = IMAGE, weight: Tensor | None = None) -> list[str]:
    """What is noted of a method that returns %n."""
    program = program_of(TEXT.format(body=body), {"w": torch.rand(6, 3, 1, 1) if weight is None else weight})
    return apply(FixChannels(Examples() if example is None else Examples({"forward": (example,)})), program)[1]


@pytest.mark.parametrize(
    ("body", "channels"),
    [
        ("  %n : int = aten::size(%y, %one)", 6),
        ("  %s : int[] = aten::size(%y)\n  %n : int = aten::__getitem__(%s, %one)", 6),
        ("  %s : int[] = aten::size(%y)\n  %a : int, %n : int, %b : int, %c : int = prim::ListUnpack(%s)", 6),
        ("  %r : Tensor = aten::relu(%y)\n  %n : int = aten::size(%r, %one)", 6),
        ("  %r : Tensor = aten::mul(%y, %x)\n  %n : int = aten::size(%r, %one)", 6),
        (
            "  %l : Tensor[] = prim::ListConstruct(%y, %y)\n  %r : Tensor = aten::cat(%l, %one)\n"
            "  %n : int = aten::size(%r, %one)",
            12,
        ),
    ],
)
def test_what_weights_tell(body: str, channels: int) -> None:
    (note,) = asked(
        body, IMAGE if "mul" not in body else torch.rand(1, 1, 7, 5), torch.rand(6, 1 if "mul" in body else 3, 1, 1)
    )
    assert note.endswith(f"is {channels}, by the weights before it")


@pytest.mark.parametrize(
    "body",
    [
        "  %n : int = aten::size(%x, %one)",
        "  %r : Tensor = aten::add(%x, %x, %one)\n  %n : int = aten::size(%r, %one)",
        "  %l : Tensor[] = prim::ListConstruct(%y, %x)\n  %r : Tensor = aten::cat(%l, %one)\n"
        "  %n : int = aten::size(%r, %one)",
        "  %s : int[] = aten::size(%y)\n  %n : int[] = aten::slice(%s, %one, %one, %one)",
        "  %r : Tensor = aten::permute(%y, %pair)\n  %n : int = aten::size(%r, %one)",
    ],
)
def test_what_the_caller_decides_stays(body: str) -> None:
    if "permute" in body:
        body = body.replace("%pair", "%order")
        body = "  %order : int[] = prim::Constant[value=[0, 2, 1, 3]]()\n" + body
    assert asked(body) == []


def test_dimension_1_of_an_image_without_batch_is_its_height() -> None:
    assert asked("  %n : int = aten::size(%y, %one)", IMAGE[0]) == []
    assert asked("  %n : int = aten::size(%y, %one)", None) == []


def test_a_product_with_more_dimensions_has_other_ones() -> None:
    body = "  %s : Tensor = aten::unsqueeze(%x, %one)\n  %r : Tensor = aten::mul(%s, %y)\n"
    body += "  %n : int = aten::size(%r, %one)"
    assert asked(body, torch.rand(6, 1, 7, 5), torch.rand(6, 1, 1, 1)) == []


def test_one_channel_may_be_stretched() -> None:
    """What one channel is multiplied with may have more."""
    body = "  %r : Tensor = aten::mul(%y, %x)\n  %n : int = aten::size(%r, %one)"
    assert asked(body, weight=torch.rand(1, 3, 1, 1)) == []


class _BlurPool(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.register_buffer("blur", torch.rand(1, 1, 3, 3).repeat(6, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(x))
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.blur, stride=2, groups=x.shape[1])


@pytest.mark.parametrize("first", [nn.Conv2d(6, 6, 3), nn.ConvTranspose2d(6, 6, 2, 2)])
def test_blurred_pooling_is_packed(first: nn.Module) -> None:
    module, x = _BlurPool(first).eval(), torch.rand(1, 6, 7, 5)
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, pipeline_for(Settings("vulkan"), Examples({"forward": (x,)})), check=True)
    assert not {"aten::conv2d", "aten::conv_transpose2d"} & set(operators(program))
    assert_close(Interpreter(program).run("forward", [x]), module(x))


def test_groups_that_only_the_input_tells() -> None:
    """Weights are packed with their groups ahead of time: the convolution runs on the CPU, or is named."""
    module, x = _BlurPool(nn.Identity()).eval(), torch.rand(1, 6, 7, 5)
    script: Any = torch.jit.script(module)
    optimized = optimize_for_mobile(script, backend="vulkan", example_inputs=[x])
    (node,) = [node for node in optimized.program.methods["forward"].walk() if node.op == "aten::conv2d"]
    assert not node.inputs[0].name.endswith("vulkan")
    torch.testing.assert_close(optimized(x), module(x))
    for backend, verdict in (("vulkan", "cpu"), ("metal", "missing")):
        (line,) = [item for item in audit(script, backend, example_inputs=[x]).lines if item.operator == "aten::conv2d"]
        assert line.verdict == verdict and "a parameter is computed when the model runs" in line.reason
