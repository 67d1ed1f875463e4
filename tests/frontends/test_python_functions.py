"""Traces that call autograd functions, as published models have them."""

from typing import Any

import pytest
import torch
from torch import nn

import mobopt
from mobopt.errors import UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.passes.note_kinds import RUNS_ON_CPU
from mobopt.runtimes.cpu import Interpreter


class _Swish(torch.autograd.Function):
    """With a cheap gradient, as efficientnet_pytorch has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))))


class _Gelu(torch.autograd.Function):
    """As bloom has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class _MinMax(torch.autograd.Function):
    """Two results, two operands, one of them a number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.minimum(x, y) * scale, torch.maximum(x, y)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], grads[1], None


class _Act(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Swish.apply(x)  # type: ignore[no-any-return]


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(4, 8, 3), _Act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.conv(x))
        low, high = _MinMax.apply(_Gelu.apply(y), self.act(y), 0.5)
        return low + self.act(high)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["trace in training", "trace without gradients"])
def test_functions_are_what_they_compute(mode: str) -> None:
    torch.manual_seed(2)
    net, x = _Net().eval(), torch.randn(1, 4, 7, 5)
    with torch.set_grad_enabled(mode == "trace in training"):
        script = torch.jit.trace(net, x)  # type: ignore[no-untyped-call]
    before = str(script.inlined_graph)
    program = program_from_script_module(script)
    assert "prim::PythonOp" not in {node.op for node in program.methods["forward"].walk()}
    with torch.no_grad():
        torch.testing.assert_close(Interpreter(program).run("forward", [x]), net(x))
    assert str(script.inlined_graph) == before, "the module itself is not changed"
    module = mobopt.optimize_for_mobile(script, backend="vulkan", example_inputs=[x])
    assert not any(note.kind is RUNS_ON_CPU for note in module.notes)


class _Attention(nn.Module):
    """As timm's MobileViTv2 has it: nobody gives ``other``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return self.norm(x) if other is None else self.hidden(x, other)

    @torch.jit.ignore
    def hidden(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * other


class _Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()
        self.scale = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x) * self.scale

    @torch.jit.export
    def half(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x) / 2


def test_python_that_no_call_comes_to_is_left_out() -> None:
    torch.manual_seed(2)
    module, x = _Attentive(), torch.randn(3, 5)
    script = torch.jit.script(module)
    program = program_from_script_module(script, ["half"])
    assert script.training and script.attention.training, "the module itself is not changed"
    module.eval()
    for name, method in (("forward", module), ("half", module.half)):
        torch.testing.assert_close(Interpreter(program).run(name, [x]), method(x))


def test_python_that_tracing_did_not_see_is_named() -> None:
    class Ignored(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden(x)

        @torch.jit.ignore
        def hidden(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with pytest.raises(UnsupportedError, match=r"calls Python.*trace or script"):
        program_from_script_module(torch.jit.script(Ignored()))
