"""Results that lie as who reads them wants: which layouts are chosen, fewer dispatches, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from device_infos import known_device
from harness import assert_close
from straight_lines import line_of
from test_planar_inputs import scripted
from torch import Tensor, nn

from mobopt.ir import Graph
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings import wanted_layout
from mobopt.runtimes.vulkan.lowerings.wanted_layout import wanted_of
from mobopt.runtimes.vulkan.program import VulkanProgram

LINES = {
    "rows for a product": (
        "2, 3, 5, 7",
        ["%y : Float(2, 3, 5, 11) = aten::matmul(%n, %w)"],
        "2, 3, 7, 11",
        (120, 40, 8, 1),
    ),
    "columns for a product": (
        "1, 7, 1, 3, 8",
        [
            "%b : Float(1, 7, 3, 8) = aten::squeeze.dim(%n, 2)",
            "%a : Float(1, 3, 8, 7) = aten::permute(%b, [0, 2, 3, 1])",
            "%y : Float(1, 3, 5, 7) = aten::matmul(%w, %a)",
        ],
        "1, 3, 5, 8",
        (1, 1, 1, 64, 8),
    ),
    "heads side by side": (
        "1, 3, 5, 8",
        [
            "%a : Float(1, 5, 3, 8) = aten::transpose.int(%n, 1, 2)",
            "%y : Float(1, 5, 24) = aten::reshape(%a, [1, 5, 24])",
        ],
        "1",
        (1, 8, 24, 1),
    ),
    "a single dimension is no matter": (
        "1, 3, 5, 8",
        [
            "%a : Float(3, 1, 5, 8) = aten::transpose.int(%n, 0, 1)",
            "%b : Float(3, 5, 8) = aten::reshape(%a, [3, 5, 8])",
            "%y : Float(3, 5, 2) = aten::bmm(%b, %w)",
        ],
        "3, 8, 2",
        (1, 40, 8, 1),
    ),
    "as usual for others": ("1, 3, 5, 8", ["%y : Float(1, 3, 5, 8) = aten::relu(%n)"], "1", None),
    "in vain": (
        "1, 4, 6, 8",
        [
            "%a : Float(1, 2, 2, 6, 8) = aten::reshape(%n, [1, 2, 2, 6, 8])",
            "%b : Float(1, 2, 6, 2, 8) = aten::permute(%a, [0, 1, 3, 2, 4])",
            "%c : Float(1, 8, 2, 6, 2) = aten::permute(%b, [0, 4, 1, 2, 3])",
            "%d : Float(16, 12) = aten::reshape(%c, [16, 12])",
            "%y : Float(16, 12) = aten::t(%d)",
        ],
        "1",
        None,
    ),
}


def graph_of(sizes: str, lines: list[str], other: str, returned: str = "%y") -> Graph:
    softmax = f"%n : Float({sizes}) = aten::softmax.int(%x, -1, None)"
    return line_of([softmax, *lines], {}, f"%x : Float({sizes}), %w : Float({other})", returned)


@pytest.mark.parametrize("sizes, lines, other, wanted", LINES.values(), ids=LINES)
def test_layouts(sizes: str, lines: list[str], other: str, wanted: tuple[int, ...] | None) -> None:
    graph = graph_of(sizes, lines, other)
    assert wanted_of(graph.block.nodes[0].output) == wanted


@pytest.mark.parametrize("returned", ["%y, %n", "%n"])
def test_what_others_read_lies_as_usual(returned: str) -> None:
    sizes, lines, other, _ = LINES["rows for a product"]
    assert wanted_of(graph_of(sizes, lines, other, returned).block.nodes[0].output) is None


class Attention(nn.Module):
    """Heads whose scores are changed in a way that no fused kernel knows."""

    def __init__(self, heads: int, size: int, mixes: bool) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.projections = nn.Linear(heads * size, 3 * heads * size)
        self.last = nn.Linear(heads * size, 5)
        self.mix = nn.Conv2d(heads, heads, 1) if mixes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        parts = self.projections(x).reshape(batch, rows, 3, self.heads, self.size)
        q, k, v = parts.unbind(2)
        q, k = torch.tanh(q * 0.3), torch.tanh(k * 0.5)
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1)
        weights = self.mix(torch.softmax(torch.tanh(scores), -1))
        y = torch.sigmoid(weights) @ v.transpose(1, 2)
        return self.last(y.transpose(1, 2).reshape(batch, rows, width))


class Rounded(nn.Module):
    """What a statically quantised model makes of an attention."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        q = self.steps(x * 0.3, 0.02)
        weights = self.steps(torch.softmax(self.steps(q @ x.transpose(-1, -2), 0.05), -1), 0.004)
        y = self.steps(weights @ x, 0.01)
        return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], y.shape[1] * self.size)

    def steps(self, x: Tensor, scale: float) -> Tensor:
        return torch.clamp(torch.round(x / scale), -128, 127) * scale


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "of a batch": (lambda: Attention(3, 8, mixes=False), (2, 7, 24)),
    "of one": (lambda: Attention(2, 12, mixes=True), (1, 13, 24)),
    "one head": (lambda: Attention(1, 20, mixes=False), (3, 5, 20)),
    "of parts of vec4s": (lambda: Attention(3, 5, mixes=True), (2, 11, 15)),
    "one row": (lambda: Attention(4, 4, mixes=False), (2, 1, 16)),
    "rounded": (lambda: Rounded(8), (2, 3, 7, 8)),
    "rounded parts of vec4s": (lambda: Rounded(6), (1, 5, 9, 6)),
}


@pytest.mark.parametrize("make, sizes", MODELS.values(), ids=MODELS)
def test_numbers(device: Device, make: Callable[[], nn.Module], sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(sizes)
    with torch.no_grad():
        expected = module(x)
    found = VulkanProgram(scripted(module), device)(x)
    assert_close(found, expected)


def dispatches(module: nn.Module, x: Tensor) -> int:
    segment = specialize(scripted(module), "forward", [x])
    return len(build_stream(segment, known_device("nvidia_h200"), ConstantStore()).stream.operations)


@pytest.mark.parametrize("name, saved", [("of a batch", 2), ("of one", 2), ("rounded", 2)])
def test_fewer_dispatches(name: str, saved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, sizes = MODELS[name]
    module, x = make().eval(), torch.randn(sizes)
    now = dispatches(module, x)
    monkeypatch.setattr(wanted_layout, "_layouts", lambda sizes, dims: iter(()))
    assert dispatches(module, x) - now == saved
