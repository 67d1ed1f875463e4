"""Nets with what torch.export makes of a model: state, nests, dynamic sizes, checks, branches, loops.

``python tests/frontends/exported_nets.py`` writes the file of the net with branches and loops anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


pytree._register_namedtuple(Pair, serialized_type_name="exported_nets.Pair")  # torch saves no others


class Everything(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.offset = torch.ones(3)

    def forward(
        self, x: torch.Tensor, pair: Any, *, scale: float = 2.0, mask: torch.Tensor | None = None
    ) -> tuple[Any, ...]:
        self.count += 1
        y = self.norm(self.conv(x)).relu_()
        self.mean = y.mean((0, 2, 3))
        z = y + pair[0].sum() - pair[1]["a"].max()
        rows = x.shape[0]
        part = y.view(rows, -1)[:, : rows * 2 + x.shape[2] // 2]
        with torch.no_grad():
            doubled = z * scale
        left, right = part.split([1, part.shape[1] - 1], 1)
        named = {"z": z, "parts": [part, doubled], "rows": rows}
        return named, Pair(left, right), self.offset + 1, tuple(y.flatten(1).max(1)), self.count.clone()


class Turns(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.cond(x.sum() > 0, lambda a: (self.linear(a), a + 1), lambda a: (a - 1, a * 3), (x,))
        turns, grown = torch.while_loop(
            lambda i, a: (i < 5) & (a.sum() < 100), lambda i, a: (i + 1, a * 2 + x), (torch.tensor(0), y[1])
        )
        count = x.abs().sum().to(torch.int64).item()
        torch._check(count >= 1)
        torch._check(count < 40)
        return y[0], turns, grown, torch.arange(count)


TURNS = Path(__file__).parent / "turns.pt2"


def turns_net() -> Turns:
    torch.manual_seed(0)
    return Turns().eval()


def example(rows: int = 2, height: int = 8) -> list[Any]:
    generator = torch.Generator().manual_seed(rows * 100 + height)
    x = torch.randn(rows, 3, height, 8, generator=generator)
    return [x, (torch.ones(2), {"a": torch.randn(2, generator=generator)})]


def net() -> Everything:
    torch.manual_seed(0)
    return Everything().eval()


def exported() -> ExportedProgram:
    sizes = {0: Dim("rows", min=2, max=9), 2: Dim.DYNAMIC}
    shapes = {"x": sizes, "pair": (None, {"a": None}), "scale": None, "mask": None}
    return torch.export.export(net(), tuple(example()), {"scale": 2.0, "mask": None}, dynamic_shapes=shapes)


if __name__ == "__main__":
    torch.export.save(torch.export.export(turns_net(), (torch.ones(3, 2),)), TURNS)
