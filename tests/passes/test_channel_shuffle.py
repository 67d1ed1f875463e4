import pytest
import torch
from pass_harness import assert_close, operators
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.channel_shuffle import RecognizeChannelShuffle
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.runtimes.cpu import Interpreter


class Shuffle(nn.Module):
    """As torchvision's ShuffleNet writes it."""

    def __init__(self, groups: int, dims: tuple[int, int] = (1, 2), is_contiguous: bool = True) -> None:
        super().__init__()
        self.groups, self.dims, self.is_contiguous = groups, dims, is_contiguous

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.size()
        y = x.view(n, self.groups, c // self.groups, h, w).transpose(self.dims[0], self.dims[1])
        if self.is_contiguous:
            return y.contiguous().view(n, -1, h, w)
        return y.reshape(n, -1, h, w)


def recognised(module: nn.Module, x: torch.Tensor, how: str, examples: bool = True) -> Program:
    script = torch.jit.script(module) if how == "script" else torch.jit.trace(module, (x,))
    program = program_from_script_module(script)
    item = RecognizeChannelShuffle(Examples({"forward": (x,)}) if examples else Examples())
    run_passes(program, [SIMPLIFY, item, SIMPLIFY], check=True)
    assert_close(Interpreter(program).run("forward", [x]), module(x))
    return program


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize(
    ("groups", "dims", "is_contiguous"), [(2, (1, 2), True), (3, (2, 1), False), (6, (-4, 2), True)]
)
def test_shuffles_are_one_operator(groups: int, dims: tuple[int, int], is_contiguous: bool, how: str) -> None:
    program = recognised(Shuffle(groups, dims, is_contiguous), torch.randn(2, 6, 5, 7), how)
    assert [name for name in operators(program) if name.startswith("aten::") and name != "aten::size"] in (
        ["aten::channel_shuffle"],
        [*["aten::floor_divide"] * operators(program).count("aten::floor_divide"), "aten::channel_shuffle"],
    )


def test_other_changes_of_shape_stay() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(2, 3, 2, 5, 7).transpose(1, 3).reshape(2, 6, 5, 7)

    assert "aten::channel_shuffle" not in operators(recognised(Other(), torch.randn(2, 6, 5, 7), "script"))


def test_without_an_example_nothing_is_found() -> None:
    program = recognised(Shuffle(2), torch.randn(2, 6, 5, 7), "script", examples=False)
    assert "aten::channel_shuffle" not in operators(program)
