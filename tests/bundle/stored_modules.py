"""Modules whose attributes and results are of all sorts. Their annotations are read by TorchScript as they are."""

from typing import NamedTuple

import torch
from torch import nn


class Inner(NamedTuple):
    value: torch.Tensor
    sizes: list[int]


class Views(nn.Module):
    """Attributes of all sorts: shared storages, views, other dtypes, containers, an assigned number."""

    names: list[str]
    table: dict[str, torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(24, dtype=torch.float32)
        self.weight = nn.Parameter(base.view(4, 6))
        self.turned = nn.Parameter(self.weight.detach().t())
        self.register_buffer("part", base[7:13].view(2, 3))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("low", torch.ones(3, dtype=torch.float16))
        self.names = ['a "b"', "c\nd", "é"]
        self.table = {"x": base[:2], "y": torch.ones(1, dtype=torch.int64)}
        self.count = 5

    def forward(
        self,
        x: torch.Tensor,
        other: torch.Tensor | None = None,
        sizes: list[int] | None = None,
        scale: float = 2.0,
        name: str = 'd"\n',
        flag: bool = False,
    ) -> torch.Tensor:
        self.count = self.count + 1
        y = torch.mm(x, self.weight) * scale + self.part.sum() + self.table["x"].sum() + self.low.sum()
        if other is not None:
            y = y + other
        if sizes is not None:
            y = y.reshape(sizes)
        if flag and name in self.names:
            y = torch.mm(y, self.turned)
        return y + float(self.empty.numel()) + float(self.flags.size(0))


class Makes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[Inner, list[Inner], dict[str, Inner]]:
        inner = Inner(x, [1, 2])
        return inner, [inner], {"a": inner}
