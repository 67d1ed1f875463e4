"""Results share memory with inputs and with each other where they do in eager mode: what is written to one is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.ir.nests import leaves_of

CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "input": lambda x: x,
    "view of an input": lambda x: x.view(-1),
    "row of an input": lambda x: (x[1], x * 1.0),
    "transposed input": lambda x: (x.t(), x),
    "input twice": lambda x: (x, x),
    "copy of an input": lambda x: (x.clone(), x),
    "input that is contiguous": lambda x: x.contiguous(),
    "tensor twice": lambda x: [x * 2.0] * 2,
    "tensor and its row": lambda x: (lambda y: (y, y[0]))(x * 2.0),
    "tensor and its transposed": lambda x: (lambda y: (y.t(), y))(x * 2.0),
    "tensor and its copies": lambda x: (lambda y: (y, y.clone(), y.clone()))(x * 2.0),
    "halves": lambda x: (lambda y: (y[:1], y[1:]))(x * 2.0),
    "overlapping parts": lambda x: (lambda y: (y[:2], y[1:]))(x * 2.0),
    "copy at the end": lambda x: x.relu().clone(),
    "copy of a transposed at the end": lambda x: x.relu().t().contiguous(),
    "sorted": lambda x: x.sort(dim=1),
    "parts of a dictionary": lambda x: (lambda y: {"whole": y, "parts": y.view(-1)[2:4]})(x - 1.0),
    "nothing": lambda x: (x[:0], x + 1.0),
}


@pytest.mark.parametrize("backend", ["vulkan", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_writes_are_seen_where_eager_mode_shows_them(name: str, backend: str, device: object) -> None:
    module = Applied(CASES[name])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))
    traced = torch.jit.trace(module, x, strict=False, check_trace=False)
    mobile = optimize_for_mobile(traced, backend=backend, runtime="mobopt" if backend == "vulkan" else "2.6")
    count = len(list(leaves_of([module(x)], torch.Tensor)))
    for written in range(count + 1):
        seen = []
        for run in (mobile, module):
            given = x.clone()
            tensors = [given, *leaves_of([run(given)], torch.Tensor)]
            assert len(tensors) == count + 1
            tensors[written].fill_(3)
            seen.append(tensors)
        torch.testing.assert_close(*seen)


def test_inputs_in_another_order_of_elements_keep_their_values(device: object) -> None:
    module = Applied(lambda x: (x.flatten(), x.transpose(0, 1)[0], x))
    x = torch.randn(3, 4)
    mobile = optimize_for_mobile(torch.jit.trace(module, x), backend="vulkan", runtime="mobopt")
    for given in (torch.randn(4, 3).t(), torch.randn(6, 4)[::2], torch.randn(4).expand(3, 4)):
        torch.testing.assert_close(mobile(given), module(given))


class Empty(nn.Module):
    """Writes to parts that are empty for some sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.size(0))
        mask[0:-4] = 0.0
        mask[x.size(0) :] = 7.0
        return mask + x


@pytest.mark.parametrize("rows", [3, 4, 7])
def test_empty_parts_are_written_to(rows: int, device: object) -> None:
    mobile = optimize_for_mobile(torch.jit.script(Empty()), backend="vulkan", runtime="mobopt")
    torch.testing.assert_close(mobile(torch.ones(rows)), Empty()(torch.ones(rows)))
