"""Small models with state, written at random: each statement changes or reads what outlives a call."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

HEAD = """
from typing import Dict, List, Optional, Tuple
import torch
from torch import Tensor, nn

class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("deep", torch.full((4,), 0.25))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
{inner}
        return x * self.deep

class Model(nn.Module):
    items: List[Tensor]
    table: Dict[str, Tensor]
    cache: Optional[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([0.5, -1.0, 2.0, 3.0]))
        self.register_buffer("m", torch.arange(12.0).view(3, 4))
        self.register_buffer("row", {row})
        self.register_buffer("k", torch.zeros(2, 6))
        self.register_buffer("fixed", torch.tensor([1.0, 0.0, -1.0, 2.0]))
        self.register_buffer("where", torch.tensor([2, 0]))
        self.register_buffer("c", torch.tensor(0))
        self.register_buffer("flags", torch.tensor([False, True, False, False]))
        self.register_buffer("short", torch.ones(4).half())
        self.items = []
        self.table = {{}}
        self.cache = None
        self.n = 0
        self.inner = Inner()
        self.layer = nn.Linear(4, 4)
        nn.init.constant_(self.layer.weight, 0.125)
        nn.init.constant_(self.layer.bias, 0.5)

    def forward(self, x: Tensor) -> {kind}:
        y = x * 2.0
        old = self.a
{forward}
        return {results}

{export}
    def step(self, x: Tensor) -> Tensor:
        y = x - 1.0
        old = self.row
{step}
        return {result}
"""

TENSOR_STATEMENTS = (
    "self.a.add_(x)",
    "self.a.mul_(0.5)",
    "self.a.copy_(y)",
    "self.a[1:3] = x[:2]",
    "self.a.clamp_(min=-4.0, max=4.0)",
    "self.m[2] = x",
    "self.m[:, 1:3] = y[:2]",
    "self.m.index_copy_(0, self.where, torch.stack([x, y]))",
    "self.m.transpose(0, 1)[0].add_(1.0)",
    "self.m.view(-1)[3:7].mul_(2.0)",
    "self.row.add_(y)",
    "self.row.zero_()",
    "self.k[:, 2:4] = x[:2]",
    "self.k.fill_(1.5)",
    "old.sub_(0.25)",
    "y = self.a + y",
    "y = y + self.row + self.fixed",
    "y = self.layer(y) + self.inner(x)",
    "y = torch.relu(y).clone()",
    "y = self.m.sum(0) - self.k[:, :4].sum(0)",
    "y += self.a",
    "old = self.a.clone()",
    "part = self.m[0]\npart.mul_(0.5)\ny = y + part",
    "self.c.add_(1)\ny = y + self.c",
    "self.c += 2",
    "self.flags.logical_or_(x > 0.5)\ny = torch.where(self.flags, y, x)",
    "y = y.masked_fill(self.flags, 0.5)",
    "self.flags[1:].fill_(False)",
    "self.short.add_(x.half())\ny = y + self.short.float()",
    "self.m.scatter_(0, self.where.unsqueeze(0), y[:2].unsqueeze(0))",
    "self.m.masked_fill_(self.flags, 1.0)",
)
"""Statements that a trace sees as a script does."""

SCRIPT_STATEMENTS = (
    "self.n += 1\ny = y + self.n",
    "self.n = self.n * 2 + 1",
    "self.m[self.n % 3] = x",
    "self.k[:, self.n % 6 : self.n % 6 + 1] = x[:2].unsqueeze(1)",
    "self.a = self.a + x",
    "self.a = y",
    "self.a = self.row",
    "self.items.append(y)",
    "self.items.append(self.a)",
    "if len(self.items) > 0:\n    self.items[0] = x + 1.0",
    "if len(self.items) > 1:\n    y = y + self.items.pop(0)",
    "if len(self.items) > 0:\n    self.items[-1].add_(0.5)",
    "self.items = [x, y]",
    "for item in self.items:\n    y = y + item",
    "self.table['x'] = y",
    "if 'x' in self.table:\n    y = y + self.table['x']",
    "self.table['x'] = self.row",
    "cache = self.cache\nif cache is None:\n    self.cache = y.unsqueeze(0)\n"
    "else:\n    self.cache = torch.cat([cache, y.unsqueeze(0)])[-3:]\n    y = y + cache.mean(0)",
    "self.cache = None",
    "if bool(y.sum() > 3.0):\n    self.a.add_(1.0)\nelse:\n    y = y + 1.0",
    "while bool(self.row.sum() < 2.0):\n    self.row.add_(1.0)",
    "for i in range(3):\n    self.m[i].add_(float(i))",
)

RESULTS = (
    *("y", "y.clone()", "self.a", "self.m", "self.row", "self.m[1]", "self.m.t()", "old", "x", "self.a.clone()"),
    *(
        "y.view(2, 2)",
        "self.k[:, 1:3].contiguous()",
        "self.a + 0.0",
        "x.view(2, 2)",
        "self.fixed + y",
        "self.c",
        "self.flags",
    ),
)


@dataclass(frozen=True)
class Program:
    """A model written at random."""

    source: str
    make: Callable[[], nn.Module]
    """A new model, in evaluation mode."""


def random_program(seed: int, folder: Path, is_traced: bool) -> Program:
    """The model of a seed; its source is kept in ``folder``, where scripting reads it."""
    draw = random.Random(seed)
    statements = TENSOR_STATEMENTS if is_traced else (*TENSOR_STATEMENTS, *SCRIPT_STATEMENTS)
    results = draw.sample(RESULTS, draw.randint(1, 3))
    inner = ["self.deep.add_(x)", "self.deep.mul_(0.5)"]
    inner += [] if is_traced else ["self.count += 1", "x = x + self.count"]
    source = HEAD.format(
        inner=_block(draw.sample(inner, draw.randint(0, 2)) or ["pass"]),
        row="self.m[1].clone()" if is_traced else "self.m[1]",  # torch can't trace buffers that are views
        export="" if is_traced else "    @torch.jit.export",
        kind="Tensor" if len(results) == 1 else f"Tuple[{', '.join(['Tensor'] * len(results))}]",
        forward=_block(draw.choices(statements, k=draw.randint(2, 6))),
        results=", ".join(results),
        step=_block(draw.choices(statements, k=draw.randint(1, 3))),
        result=draw.choice(RESULTS),
    )
    path = folder / f"state_program_{seed}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return Program(source, lambda: loaded.Model().eval())


def _block(statements: list[str]) -> str:
    lines = [line for statement in statements for line in statement.split("\n")]
    return "\n".join(f"        {line}" for line in lines)
