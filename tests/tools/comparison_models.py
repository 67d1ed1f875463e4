"""Small models with what comparisons meet: fusions, folded norms, loops, looks at elements; and faults to plant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from mobopt.ir import Graph, Node
from mobopt.passes.manager import graph_pass
from mobopt.passes.notes import NoteBook
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, Opcode, ProgramBuilder
from mobopt.runtimes.vulkan.lowerings import registry


class Net(nn.Module):
    """Convolutions, a norm, a residual and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 11)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.body(x) + x)
        return self.head(torch.tanh(x * 2).mean([2, 3]))


class Loops(nn.Module):
    """A loop that looks at elements, then one of three turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trips = 0
        while float(x.abs().max()) > 0.05 and trips < 3:
            x = torch.tanh(self.layer(x)) * 0.5
            trips += 1
        for _ in range(3):
            x = self.layer(x) + 1
        return x


class Magnifying(nn.Module):
    """A sine of large numbers: right by itself, and useless."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(31, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.layer(x) * 1e5).sum(1)


class Cancelling(nn.Module):
    """Sums whose large terms cancel: single precision is not enough for it, on any device."""

    def __init__(self) -> None:
        super().__init__()
        half = torch.rand(5, 509) * 1e5
        self.layer = nn.Linear(1018, 5)
        self.layer.weight.data = torch.cat([half, -half], 1)[:, torch.randperm(1018)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def net() -> tuple[torch.jit.ScriptModule, torch.Tensor]:
    """A scripted Net and its input."""
    return torch.jit.script(Net().eval()), torch.randn(1, 3, 13, 11)


def cancelling_in_halves() -> tuple[torch.jit.ScriptModule, torch.Tensor]:
    """Two layers that single precision is enough for and half precision is not, and their input."""
    first, second = nn.Linear(7, 13), nn.Linear(13, 5, bias=False)
    with torch.no_grad():
        first.bias.fill_(200)
        second.weight -= second.weight.mean(1, keepdim=True)
    return torch.jit.script(nn.Sequential(first, second).eval()), torch.randn(3, 7)


@graph_pass("wrong_factor")
def wrong_factor(graph: Graph, notes: NoteBook) -> bool:
    """Multiply by another number."""
    nodes = [node for node in graph.walk() if node.op == "aten::mul"]
    for node in nodes:
        node.replace_input(1, graph.constant(2.5))
    return bool(nodes)


@contextmanager
def scaled(operator: str, factor: float) -> Iterator[None]:
    """The lowering of an operator gives a multiple of what it should, for as long as the context lasts."""
    registry.load_lowerings()
    right = registry.lowering_of(operator)
    assert right is not None

    def wrong(plan: Plan, call: Node) -> DeviceTensor:
        made = right.function(plan, call)
        assert isinstance(made, DeviceTensor)
        builder = ProgramBuilder()
        value = builder.step(Opcode.MUL, builder.tensor(made), builder.scalar(factor, Kind.FLOAT))
        return compute(plan, builder, value, call.output.sizes, call.output.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._LOWERINGS, operator, replace(right, function=wrong))
        yield


def doubled(operator: str) -> AbstractContextManager[None]:
    """See :func:`scaled`."""
    return scaled(operator, 2.0)
