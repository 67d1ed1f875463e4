"""Modules whose TorchScript uses every form that files have: control flow, containers, state, several methods."""

import warnings
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn


class Pair(NamedTuple):
    first: Tensor
    count: int


class Counter(nn.Module):
    """Changes its own state."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("total", torch.zeros(2))
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.total.add_(1)
        return x + self.count + self.weight.sum() + self.total.sum()


class Everything(nn.Module):
    """Nearly every construct in one method."""

    factor: Final[int]
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.factor = 4
        self.linear = nn.Linear(3, 3)
        self.sequence = nn.Sequential(nn.Linear(3, 3), Counter())
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.table = {"a": 1}
        self.numbers = [1, 2]
        self.pair = (1, "x")
        self.last = None

    def forward(
        self, x: Tensor, k: int = 3, other: Tensor | None = None, names: list[str] | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], str, list[int], tuple[int, int], Pair, list[float]]:
        y = self.sequence(self.linear(x))
        if y.sum() > 0:
            for i in range(k):
                y = y + i
        j = 0
        z: Tensor | None = None
        while j < k and j < 10:
            j += 1
            if z is None:
                z = y
            else:
                z = z + 1
            if j == 7:
                break
            for m in range(j):
                if m % 2 == 0:
                    continue
                y = y + m * 0.25
        for layer in self.layers:
            y = layer(y)
        rows, columns = y.shape
        pair = Pair(y, self.factor)
        doubled = [i * 2 for i in range(3)]
        table = {"a": y, "b": x}
        table["c"] = x
        for _, v in table.items():
            y = y + v
        if other is not None:
            y = y + other
        assert k > 0, "k must be positive"
        if k > 100:
            y = y * float("inf")
        text = f"é{k}" + "\n\"'\\" + ("none" if names is None else names[0])
        y = y[:, 1:] + y[0, 0] + y[..., None][:, 1:, 0]
        y[0] = 1.0
        self.last = y
        if isinstance(other, Tensor):
            y = y + 1
        scores = [0.5, -float("inf"), 1e-30, float(k)]
        triple = (1, 2, 3)
        if len(doubled) == 2:
            return x, pair.first, table, text, doubled[1:], (rows, columns), pair, scores
        return y.to(torch.float64), pair.first, table, text, doubled[1:], triple[:2], pair, scores

    @torch.jit.export
    def edit(self, x: dict[str, int]) -> list[int]:
        self.numbers.append(3)
        x.pop("a")
        del x["b"]
        if "zz" in x:
            raise ValueError("zz is not allowed")
        return [1, 2] + self.numbers + list(x.values())  # noqa: RUF005  (TorchScript has no star in displays)

    @torch.jit.export
    def swap(self, a: Tensor, b: Tensor, times: int) -> tuple[Tensor, Tensor]:
        for _ in range(times):
            a, b = b, a
        return a, b


class Warns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            warnings.warn("positive", stacklevel=2)
        return torch.div(x, 2, rounding_mode="floor") + x.item()


class Lists(nn.Module):
    """Lists of lists, optional elements, and a loop that carries a list."""

    def forward(self, x: Tensor, sizes: list[int]) -> tuple[list[list[int]], list[Tensor], Tensor | None, Tensor]:
        rows: list[list[int]] = []
        parts: list[Tensor] = []
        best: Tensor | None = None
        for size in sizes:
            rows.append([size, size + 1])
            part = x.narrow(0, 0, size)
            parts.append(part)
            if best is None or part.sum() > best.sum():
                best = part
        value = torch.ones(1)
        while bool(value.sum() < 10):
            value = value * 2
        out = torch.empty(0)
        torch.add(value, value, out=out)
        return rows, parts, best, torch.cat([value, out]) + torch.tensor([1, 2])[0]


class Tuples(nn.Module):
    """Elements of tuples, by numbers that loops and calls bring."""

    def forward(self, x: Tensor, sizes: tuple[int, int, int], last: int) -> tuple[list[int], Tensor]:
        parts = (x, x + 1, x * 2)
        found: list[int] = []
        for number in range(3):
            found.append(sizes[number] % sizes[-1])
        return found, parts[last] - parts[0]


CASES = {
    "everything": (
        Everything,
        [(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)), k, None, None) for k in (1, 3, 12)],
    ),
    "everything with optionals": (Everything, [(torch.ones(3, 3), 2, torch.ones(3, 3), ["n"])]),
    "warns": (Warns, [(torch.ones(1),), (-torch.ones(1),)]),
    "lists": (Lists, [(torch.arange(6.0), [1, 4, 2])]),
    "tuples": (Tuples, [(torch.arange(5.0), (7, 11, 4), 1), (torch.arange(3.0), (1, 2, 3), -1)]),
}
"""Modules and arguments for their ``forward``."""
