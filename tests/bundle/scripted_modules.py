"""Modules whose methods show TorchScript's constructs, one group in each."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Pair(NamedTuple):
    values: Tensor
    count: int


class Branches(nn.Module):
    def forward(self, x: Tensor, flag: bool = False, size: list[int] | None = None) -> Tensor:
        if flag:
            y = x + 1
        elif x.dim() == 2 and x.size(0) > 2:
            y = x * 2
        else:
            y = x - 1
        if size is not None:
            y = y.view(size)
        return y if y.dim() > 1 or flag else -y


class EarlyReturns(nn.Module):
    def pick(self, x: Tensor, n: int) -> Tensor:
        for i in range(n):
            if i == 3:
                return x * i
            if i * 2 > n:
                return x - i
        return x

    def forward(self, x: Tensor, n: int) -> Tensor:
        if n < 0:
            return x.neg()
        return self.pick(x, n)


class Loops(nn.Module):
    def forward(self, x: Tensor, n: int) -> tuple[Tensor, int]:
        total = 0
        y = x
        for i in range(n):
            for j in range(i, n, 2):
                if j == 3:
                    continue
                y = y + j
                total += i * j
        k = 0
        while k < 10:
            k += 3
            if k > 7:
                break
            y = y * 1.5
        return y, total


class Lists(nn.Module):
    def forward(self, x: Tensor) -> tuple[list[Tensor], list[int], list[list[float]], int]:
        parts: list[Tensor] = []
        for i in range(x.size(0)):
            parts.append(x[i])
        parts[0] = parts[0] + 1
        parts = parts[::-1] + [x.sum()]  # noqa: RUF005 (TorchScript has no unpacking here)
        sizes = [part.dim() for part in parts]
        sizes.extend([1, 2])
        sizes.insert(0, 7)
        last = sizes.pop()
        nested: list[list[float]] = [[0.5], torch.jit.annotate(list[float], [])]
        nested[1].append(float(last))
        return parts, sorted(sizes), nested, len(parts)


class Dictionaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {"a": 1.5, "b": -2.0}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {"x": x}
        for name, scale in self.scales.items():
            result[name] = x * scale
        if "b" in result and "c" not in result:
            result["c"] = result.pop("b")
        counts: dict[int, int] = {}
        counts[3] = len(result)
        counts[3] += 1
        result["n"] = torch.tensor(counts[3])
        return result


class Optionals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias: Tensor | None = None

    def shift(self, x: Tensor, by: Tensor | None, scale: float | None = None) -> Tensor:
        previous: Tensor | None = None
        for _i in range(3):
            if previous is not None:
                x = x + previous
            previous = by
        if scale is not None:
            x = x * scale
        if self.bias is not None:
            x = x + self.bias
        return x if by is None else x + torch.jit._unwrap_optional(by)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.shift(x, None), self.shift(x, x, 2.0), self.bias


class NamedTuples(nn.Module):
    def pair(self, x: Tensor, n: int) -> Pair:
        if n > 3:
            return Pair(x, n)
        return Pair(x + 1, n * 2)

    def forward(self, x: Tensor) -> tuple[Pair, Tensor, int]:
        small, large = self.pair(x, 1), self.pair(x, 5)
        values, count = large
        return small, values + small.values, count + small[1]


class Strings(nn.Module):
    def forward(self, x: Tensor, name: str) -> tuple[str, str, int, bool, str]:
        text = f"{name} has {x.size(0)} rows\t\"'\\ é"
        upper = name.upper() if name.startswith("a") else name[1:3]
        joined = "-".join([name, str(len(name))])
        return text, upper, len(text), name == "abc", joined


class Arithmetic(nn.Module):
    def forward(self, x: Tensor, n: int, s: float) -> tuple[Tensor, list[float], list[int], bool]:
        floats = [n / 3, s // 2, s % 2, n**2.0, float("inf"), -s, min(s, 2.0), abs(s), math_floor(s)]
        ints = [n // 3, n % 3, -n, n << 2, n & 6, n | 8, n ^ 1, max(n, 3), int(s), round_up(s)]
        y = 2 - x / n + s * x**2 - (1 / (x.abs() + 1)) + (x @ x)
        flags = (y > 0) & (y < 5) | (y == 1)
        return torch.where(flags, y, -y), floats, ints, not (n > 3 or s < 0.0) and bool(n)


def math_floor(value: float) -> float:
    return float(int(value))


def round_up(value: float) -> int:
    return int(value) + 1


class Indexing(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = x.clone()
        y[:, 0] = 3
        y[1] += x[0]
        mask = x > 0
        h, w = x.shape[-2:]
        return y, x[..., 1:, None], x[mask], x.expand([2, h, w])[:, ::2]


class Conversions(nn.Module):
    def forward(self, x: Tensor) -> tuple[int, float, bool, list[int], list[list[float]], Tensor, Tensor]:
        n = int(x.sum().abs())
        ints: list[int] = x[0].to(torch.long).tolist()
        rows: list[list[float]] = x.tolist()
        made = torch.zeros([n % 3 + 1, 2], dtype=x.dtype, device=x.device)
        return n, float(x[0, 0]), bool(x.max() > 0), ints, rows, made, torch.tensor([n, 1], dtype=torch.float)


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        self.seen = self.seen + x.sum()
        return x * self.seen, self.calls


class Inner(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), scale))

    def forward(self, x: Tensor, twice: bool = True) -> Tensor:
        return x * self.weight * (2 if twice else 1)


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(Inner(1.5), nn.ReLU()), Inner(-2.0)])
        self.table = nn.ModuleDict({"first": nn.Linear(4, 4), "odd name": nn.Linear(4, 3, bias=False)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.arange(4.0))])
        self.shared = self.layers[1]

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x) + index
        x = self.shared(x, twice=False) + self.weights[1]
        for _name, layer in self.table.items():
            x = layer(x)
        return x


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, input: Tensor) -> Tensor:  # as nn.Linear calls it
        pass


class ModulesByNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.table = nn.ModuleDict({"odd name": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        first: Layer = self.layers[0]
        second: Layer = self.layers[1]
        third: Layer = self.table["odd name"]
        return third.forward(second.forward(first.forward(x)))


class ModuleByInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])

    def forward(self, x: Tensor, number: int) -> Tensor:
        layer: Layer = self.layers[number]
        return layer.forward(x)


class NoGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1


class AnyInput(nn.Module):
    def forward(self, y: Any) -> tuple[Tensor, bool]:
        result = torch.ones(2)
        if isinstance(y, int):
            result = result + y
        elif isinstance(y, float):
            result = result * y
        return result, isinstance(y, Tensor)


class Assertions(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        assert x.dim() == 2, f"{x.dim()} dimensions"
        if n == 7:
            raise ValueError("seven")
        return x + n


class Constants(nn.Module):
    sizes: tuple[int, int]

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (2, 3)
        self.kernel = torch.arange(6.0).view(2, 3)
        self.names = ["b", "a"]

    def forward(self, x: Tensor) -> tuple[Tensor, int, list[str], Tensor]:
        return x.view(self.sizes) * self.kernel, self.sizes[1], self.names, torch.full(self.sizes, 1e-5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.lstm(x)
