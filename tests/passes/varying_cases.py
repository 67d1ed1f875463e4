"""Modules whose sizes one example doesn't tell: other methods, branches, loops, masks, growing lists."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ROW = torch.linspace(0.1, 0.9, 8)[None]
IMAGE = torch.linspace(-1, 1, 4 * 9 * 7).reshape(1, 4, 9, 7)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.l = nn.Linear(8, 8)
        self.c = nn.Conv2d(4, 8, 3)
        self.t = nn.ConvTranspose2d(4, 5, 2)
        self.g = nn.GRU(8, 6, batch_first=True)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)


class Preserved(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x)

    @torch.jit.export
    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(torch.relu(x))

    @torch.jit.export
    def images(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(x)

    @torch.jit.export
    def larger(self, x: torch.Tensor) -> torch.Tensor:
        return self.t(x)

    @torch.jit.export
    def steps(self, x: torch.Tensor) -> torch.Tensor:
        return self.g(x)[0]


class InBranch(Layers):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        if flag:
            y = torch.cat([x, 2 * x])
            return self.l(torch.tanh(y))
        return self.l(x)


class ImagesInBranch(Layers):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x
        if flag:
            y = torch.cat([x, 2 * x])
        return self.t(torch.tanh(self.c(torch.sigmoid(y)))[:, :4])


class StepsInLoop(Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        y = x
        for _ in range(n):
            y = torch.cat([y, x], 1)
        return self.g(torch.tanh(y))[0]


class AfterBranch(Layers):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x
        if flag:
            y = torch.cat([x, 2 * x])
        return self.l(torch.tanh(y))


class OptionalOperand(Layers):
    def forward(self, x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        y = x if other is None else torch.cat([x, other])
        return self.l(y)


class InLoop(Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        z = x
        for _ in range(n):
            z = self.l(torch.cat([x, x]))
        return z


class GrowingList(Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        items = [x]
        for i in range(n):
            items.append(x * i)
        return self.l(torch.cat(items))


class ByMask(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x[x[:, 0] > 0])


class ByNumber(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x[: int(x[0, 1].item() * 10)])


class Doubling(Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        while n > 0:
            x = torch.cat([x, x])
            n -= 1
        return self.l(x)


class Cache(Layers):
    """Its attribute grows from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.past = torch.zeros(0, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x])
        return self.l(self.past)


CASES: dict[str, tuple[type[nn.Module], tuple[Any, ...], str, tuple[Any, ...]]] = {
    "preserved linear": (Preserved, (ROW,), "rows", (torch.cat([ROW, -ROW, ROW]),)),
    "preserved conv": (Preserved, (ROW,), "images", (torch.cat([IMAGE, -IMAGE]),)),
    "preserved transposed conv": (Preserved, (ROW,), "larger", (torch.cat([IMAGE, -IMAGE]),)),
    "preserved gru": (Preserved, (ROW,), "steps", (torch.cat([ROW, -ROW, ROW])[None],)),
    "branch": (InBranch, (ROW, False), "forward", (ROW, True)),
    "branch of images": (ImagesInBranch, (IMAGE, False), "forward", (IMAGE, True)),
    "loop of steps": (StepsInLoop, (ROW[None], 1), "forward", (ROW[None], 3)),
    "after a branch": (AfterBranch, (ROW, False), "forward", (ROW, True)),
    "None": (OptionalOperand, (ROW, None), "forward", (ROW, -ROW)),
    "loop": (InLoop, (ROW, 0), "forward", (ROW, 2)),
    "growing list": (GrowingList, (ROW, 0), "forward", (ROW, 3)),
    "growing list seen": (GrowingList, (ROW, 1), "forward", (ROW, 3)),
    "mask": (ByMask, (ROW,), "forward", (torch.cat([ROW, -ROW, ROW]),)),
    "empty mask": (ByMask, (ROW,), "forward", (-ROW,)),
    "number": (ByNumber, (ROW,), "forward", (torch.cat([5 * ROW, -ROW, ROW]),)),
    "doubling": (Doubling, (ROW, 0), "forward", (ROW, 2)),
    "doubling seen": (Doubling, (ROW, 1), "forward", (ROW, 2)),
}
