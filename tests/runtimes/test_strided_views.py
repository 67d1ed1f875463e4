"""``as_strided`` of views and of tensors that don't lie row by row: it counts places in memory, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from torch import Tensor, nn

from mobopt.errors import UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram

CHANNELS_LAST = torch.channels_last


def _chunks(x: Tensor) -> Tensor:
    """Longformer's: halves of neighbours overlap; heads come before tokens as a view of the layer's result."""
    heads = (x * 2).view(8, 1, 3, 5).transpose(0, 1).transpose(1, 2).reshape(3, 8, 5).view(3, 2, 4, 5)
    sizes, strides = list(heads.shape), list(heads.stride())
    sizes[1], strides[1] = sizes[1] * 2 - 1, strides[1] // 2
    return heads.as_strided(sizes, strides)


def _written(x: Tensor) -> tuple[Tensor, Tensor]:
    whole = (x + 1).t()
    part = whole[1:].as_strided((2, 2), (2, 1))
    part.mul_(10)
    before = whole.clone()
    whole.add_(1)
    return part + 0, before


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "of a transposed tensor": (lambda x: (x * 2).t().as_strided((2, 3, 4), (12, 2, 1)), (5, 7)),
    "from its own offset": (lambda x: (x * 2).t()[1:].as_strided((2, 2), (1, 3)), (5, 7)),
    "from another offset": (lambda x: (x * 2).t()[1:].as_strided((2, 2), (1, 3), 5), (5, 7)),
    "copied": (lambda x: torch.as_strided_copy((x * 2).t(), (3, 3), (2, 1), 4), (5, 7)),
    "channels last": (lambda x: (x.to(memory_format=CHANNELS_LAST) * 2).as_strided((2, 7), (9, 1)), (1, 3, 6, 5)),
    "a view of channels last": (
        lambda x: (x.to(memory_format=CHANNELS_LAST) * 2)[:, 1].as_strided((2, 7), (9, 2)),
        (1, 3, 6, 5),
    ),
    "chunks": (_chunks, (8, 1, 15)),
    "written": (_written, (4, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_eager(device, name: str) -> None:
    function, sizes = CASES[name]
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
