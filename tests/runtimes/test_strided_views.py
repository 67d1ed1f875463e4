"""``as_strided`` of views and of tensors that don't lie row by row: it counts places in memory, beside eager."""

from __future__ import annotations

import pytest
import torch
from applied import Applied
from strided_cases import CASES
from torch import Tensor, nn

from mobopt.errors import UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram


def _written(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = (x + 1).t()
    part = whole[1:].as_strided((2, 2), (2, 1))
    part.mul_(10)
    before = whole.clone()
    whole.add_(1)
    return part + 0, before


def _scattered(x: Tensor) -> tuple[Tensor, ...]:
    whole, source = (x * 2).t(), -x[:2, :3]
    return (
        torch.as_strided_scatter(whole[1:], source, (2, 3), (9, 2), 3) * 2,
        torch.as_strided_scatter(whole, source, (2, 3), (9, 2)).as_strided((6, 5), (5, 1), 1),
        torch.as_strided_scatter(x * 3, source, (2, 3), (1, 12), 2),
    )


EVERY = {**CASES, "written": (_written, (4, 5)), "scattered": (_scattered, (5, 7))}


@pytest.mark.parametrize("name", EVERY)
def test_beside_eager(device, name: str) -> None:
    function, sizes = EVERY[name]
    x = torch.rand(sizes)
    traced = torch.jit.trace(Applied(function), (x,), check_trace=False)  # type: ignore[no-untyped-call]
    runner = VulkanProgram(program_from_script_module(traced), device)
    for given in (x, torch.rand(sizes)):
        torch.testing.assert_close(runner.run("forward", [given]), function(given))


class Bits(nn.Module):
    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        self.is_turned = is_turned

    def forward(self, x: Tensor) -> Tensor:
        bits = (x * 2).view(torch.int32)
        return (bits.t() if self.is_turned else bits).as_strided((3, 3), (5, 2), 1)


def test_a_view_of_other_elements_is_refused_where_it_is_turned(device) -> None:
    """Exported, as neither scripts nor traces hold ``view`` by a dtype."""
    x = torch.rand(5, 7)
    runners = [
        VulkanProgram(source_of(torch.export.export(Bits(is_turned), (x,))).program, device)
        for is_turned in (False, True)
    ]
    torch.testing.assert_close(runners[0].run("forward", [x]), Bits(False)(x))
    with pytest.raises(UnsupportedError, match=r"aten::as_strided at .* give it a contiguous tensor"):
        runners[1].run("forward", [x])
