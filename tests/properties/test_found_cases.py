"""Small models that random ones were reduced to when they were computed wrongly; each on every road."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_graphs import RandomModule
from test_random_graphs import BYTECODE_VERSIONS, check
from torch import nn

_HEAD = """\
class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
"""

CASES: dict[str, tuple[str, tuple[int, ...]]] = {
    # A list was copied to the CPU as it was when it was made.
    "a list that is filled before it is read elsewhere": (
        """
        y = self.linear(x)
        parts = [y[0]]
        for part in torch.unbind(y, 0):
            parts.append(part * 0.5)
        return torch.stack(parts[1:])
        """,
        (3, 4),
    ),
    # A loop that is unrolled made a constant of the same name for each trip.
    "a loop with constants": (
        """
        y = x * 1
        for i in range(x.dim()):
            y = torch.relu(y) * 0.5 + 0.25
        return y
        """,
        (2, 4),
    ),
    # Multiplying by one was left out, and the sum in place was seen in the copy.
    "a copy that is made by multiplying": (
        """
        turned = torch.relu(x).permute(1, 2, 0)
        copy = turned * 1
        total = turned.add_(copy)
        return self.linear(copy) + self.linear(total)
        """,
        (4, 3, 5),
    ),
    # A convolution that pads was made of a padding of five dimensions.
    "padding of five dimensions": ("return nn.functional.pad(x * torch.sigmoid(x), (2, 1))", (2, 1, 3, 3, 4)),
    "padding of channels": ("return nn.functional.pad(torch.relu(x), (1, 0, 2, 1, 1, 1))", (1, 2, 3, 4)),
    # What a sum in place held before relu was lost.
    "a sum in place that is read before relu": (
        """
        y = x * 1
        total = y.add_(x)
        half = y * 0.5
        return half, torch.relu_(total)
        """,
        (2, 4),
    ),
    # The exception's class was left out of bytecode 6 and 7.
    "a pool that asserts": ("return nn.functional.adaptive_avg_pool2d(x, 1) + x", (1, 2, 3, 4)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_found_cases(name: str) -> None:
    body, sizes = CASES[name]
    lines = [line.strip("\n") for line in body.split("\n") if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    source = _HEAD + "".join(f"        {line[margin:]}\n" for line in lines)
    torch.manual_seed(0)
    layers: dict[str, Any] = {"linear": nn.Linear(sizes[0] if name.startswith("a copy") else sizes[-1], 3)}
    check(RandomModule(source, layers, [torch.randn(sizes)], "script"), BYTECODE_VERSIONS, given=True)
