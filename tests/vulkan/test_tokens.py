"""Positions that are added before tokens join patches: as text, where not, and what is made in place."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from sampling import sampled
from straight_lines import line_of
from test_planar_inputs import scripted
from torch import Tensor, nn

from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.tokens import add_before_joining
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.program import VulkanProgram


def floats(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


TENSORS = {
    "w": floats(8, 3, 2, 2),
    "token": floats(1, 1, 8),
    "table": floats(1, 7, 8),
    "row": floats(1, 1, 8),
    "tables": floats(2, 7, 8),
}
CONV = "%c : Float(1, 8, 2, 3) = aten::conv2d(%x, %w, None, [2, 2], [0, 0], [1, 1], 1)"
FLATTEN = "%f : Float(1, 8, 6) = aten::flatten.using_ints(%c, 2, -1)"
TURN = "%t : Float(1, 6, 8) = aten::transpose.int(%f, 1, 2)"
JOIN = "%j : Float(1, 7, 8) = aten::cat([%token, %t], 1)"
ADD = "%y : Float(1, 7, 8) = aten::add.Tensor(%table, %j, 1)"


def added(*lines: str, returned: str = "%y", given: str = "%x : Float(1, 3, 4, 6)") -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    add_before_joining(graph, ConstantStore())
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    graph = added(CONV, FLATTEN, TURN, JOIN, ADD)
    text = print_graph(graph, digests=False)
    used = [line for line in text.splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(1, 3, 4, 6)):
          %c : Float(1, 8, 2, 3) = aten::conv2d(%x, %w, None, [2, 2], [0, 0], [1, 1], 1)
          %2 : Float(1, 8, 6) = aten::permute(%0, [0, 2, 1])
          %3 : Float(1, 8, 2, 3) = aten::reshape(%2, [1, 8, 2, 3])
          %4 : Float(1, 8, 2, 3) = aten::add.Tensor(%c, %3, 1)
          %f : Float(1, 8, 6) = aten::flatten.using_ints(%4, 2, -1)
          %t : Float(1, 6, 8) = aten::transpose.int(%f, 1, 2)
          %y : Float(1, 7, 8) = aten::cat([%1, %t], 1)
          return (%y)"""
    )
    (join,) = [node for node in graph.block.nodes if node.op == "aten::cat"]
    total = join.args[0][0].elements
    assert torch.equal(total, TENSORS["token"] + TENSORS["table"][:, :1])


@pytest.mark.parametrize(
    "views",
    [
        [FLATTEN, TURN.replace("transpose.int(%f, 1, 2)", "permute(%f, [0, -1, 1])")],
        [
            "%f : Float(1, 2, 3, 8) = aten::permute(%c, [0, 2, 3, 1])",
            "%t : Float(1, 6, 8) = aten::reshape(%f, [1, 6, 8])",
        ],
    ],
)
def test_permutations_are_undone(views: list[str]) -> None:
    graph = added(CONV, *views, JOIN, ADD)
    (total,) = [node for node in graph.block.nodes if node.op == "aten::add"]
    table = total.args[1].producer
    assert table is not None and total.output.sizes == (1, 8, 2, 3) and operators(graph)[-1] == "cat"


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([CONV, FLATTEN, TURN, JOIN, ADD], "%y, %j"),
        ([CONV, FLATTEN, TURN, JOIN, ADD], "%y, %t"),
        ([CONV, FLATTEN, TURN, JOIN, ADD.replace(", 1)", ", 2)")], "%y"),
        ([CONV, FLATTEN, TURN, JOIN, ADD.replace("%table", "%row")], "%y"),
        ([CONV, FLATTEN, TURN, JOIN, ADD.replace("%table", "%tables").replace("Float(1", "Float(2")], "%y"),
        (["%j : Float(1, 7, 8) = aten::cat([%x, %x], 1)", ADD], "%y"),
    ],
    ids=["joined returned", "patches returned", "factor", "of a row", "of a batch", "no image"],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    given = "%x : Float(1, 3, 4, 6)" if len(lines) > 2 else "%x : Float(1, 3, 8)"
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert operators(added(*lines, returned=returned, given=given)) == before


class Patches(nn.Module):
    """How vision transformers begin."""

    def __init__(self, tokens: int, at_end: bool, width: int = 12, is_permuted: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.is_permuted = is_permuted
        self.made = nn.Conv2d(3, width, 4, stride=4)
        self.tokens = nn.ParameterList([torch.randn(1, 1, width) for _ in range(tokens)])
        self.positions = nn.Parameter(torch.randn(1, 15 + tokens, width))
        self.norm, self.at_end = nn.LayerNorm(width), at_end

    def forward(self, x: Tensor) -> Tensor:
        image = self.made(x)
        patches = image.permute(0, 2, 3, 1).flatten(1, 2) if self.is_permuted else image.flatten(2).transpose(1, 2)
        tokens: list[Tensor] = []
        for token in self.tokens:
            tokens.append(token.expand(x.shape[0], -1, -1))
        parts = [patches, *tokens] if self.at_end else [*tokens, patches]
        return self.norm(torch.cat(parts, 1) + self.positions)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("switches", ["", "shared-products"])
@pytest.mark.parametrize(("tokens", "at_end", "batch"), [(1, False, 1), (2, False, 3), (1, True, 2), (2, True, 1)])
@pytest.mark.parametrize("is_permuted", [False, True])
@torch.no_grad()
def test_beside_the_cpu(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    at_end: bool,
    batch: int,
    switches: str,
    precision: str,
    is_permuted: bool,
) -> None:
    if switches:
        monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({switches})))
    model, x = Patches(tokens, at_end, is_permuted=is_permuted).eval(), floats(batch, 3, 12, 20)
    runner = VulkanProgram(scripted(torch.jit.trace(model, x)), device, precision=PrecisionChoice(precision))
    expected = model(x)
    loss = 2e-6 if precision == "fp32" else 3e-3
    assert float((runner(x) - expected).abs().max()) <= loss * float(expected.abs().max())
    copies = [item.label for item in runner.profile([x]) if "cat" in item.label]
    assert len(copies) == tokens, f"patches are made in place: {copies}"


class Joined(nn.Module):
    """Patches, and tokens that something else makes."""

    def __init__(self, make: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.made, self.other = nn.Conv2d(3, 12, 4, stride=4), nn.Conv2d(3, 12, 4, stride=4)
        self.layer, self.norm, self.end = nn.Linear(5, 12), nn.LayerNorm(12), nn.Linear(12, 8)
        self.make = make

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        patches, tokens = self.made(x).flatten(2).transpose(1, 2), self.layer(z)
        made = {
            "a layer": lambda: tokens,
            "a norm": lambda: self.norm(tokens),
            "arithmetic": lambda: torch.relu(tokens) + 1,
            "other patches": lambda: self.other(x * 2).flatten(2).transpose(1, 2),
            "a softmax": lambda: torch.softmax(tokens, -1),
            "a sum": lambda: tokens.sum(1, keepdim=True),
            "a product": lambda: tokens @ tokens.transpose(1, 2) @ tokens,
            "attention": lambda: nn.functional.scaled_dot_product_attention(tokens, tokens, tokens),
            "the patches": lambda: patches * 2,
            "running sums": lambda: torch.cumsum(tokens, 1),
        }[self.make]()
        return self.end(self.norm(torch.cat([made, patches], 1))) + made.mean()


MAKERS = ["a layer", "a norm", "arithmetic", "other patches", "a softmax", "a sum", "a product", "attention"]


@pytest.mark.parametrize("switches", [(), ("shared-products", "no-texels")], ids=["CPU", "GPU"])
@pytest.mark.parametrize("make", [*MAKERS, "the patches", "running sums"])
@torch.no_grad()
def test_whoever_makes_the_other_tokens(
    device: Device, monkeypatch: pytest.MonkeyPatch, make: str, switches: tuple[str, ...]
) -> None:
    """Parts of a batch lie apart in what they are joined to."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset(switches)))
    model, inputs = Joined(make).eval(), (floats(3, 3, 8, 12), floats(3, 4, 5))
    runner = VulkanProgram(scripted(torch.jit.trace(model, inputs)), device)
    torch.testing.assert_close(runner(*inputs), model(*inputs), atol=1e-5, rtol=1e-5)


def filtered(taps: int, groups: int) -> nn.Conv2d:
    return nn.Conv2d(12, 12, taps, padding=taps // 2, groups=groups)


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "single pixels": lambda: nn.Conv2d(12, 12, 1),
    "depthwise": lambda: filtered(3, 12),
    "depthwise, large": lambda: filtered(9, 12),
    "pairs of channels": lambda: filtered(3, 6),
    "whole vectors": lambda: filtered(3, 3),
    "triples of channels": lambda: filtered(3, 4),
    "an expansion": lambda: nn.Sequential(nn.Conv2d(12, 24, 1), nn.ReLU(), nn.Conv2d(24, 12, 1)),
    "a filter of an expansion": lambda: nn.Sequential(nn.Conv2d(12, 12, 1), nn.ReLU(), filtered(3, 12)),
    "transposed": lambda: nn.ConvTranspose2d(12, 12, 2, stride=2),
    "transposed single pixels": lambda: nn.ConvTranspose2d(12, 12, 1),
    "means": lambda: nn.AvgPool2d(2),
    "maxima": lambda: nn.MaxPool2d(3, 2, 1),
    "adaptive means": lambda: nn.AdaptiveAvgPool2d((3, 2)),
    "upsampling": lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"),
    "doubled pixels": lambda: nn.Upsample(scale_factor=2.0),
    "upsampled single pixels": lambda: nn.Sequential(
        nn.Conv2d(12, 12, 1), nn.Upsample(scale_factor=2.0, mode="bilinear")
    ),
    "an activation": lambda: nn.Sequential(filtered(3, 1), nn.Hardswish()),
    "a norm": lambda: nn.GroupNorm(3, 12),
}
"""Modules that make an image of 12 channels of one."""
COMBINED: dict[str, Callable[[Tensor, nn.Module, nn.Module], Tensor]] = {
    "residual": lambda x, single, filters: single(x) + x,
    "residual of a filter": lambda x, single, filters: filters(x) + x,
    "shortcut": lambda x, single, filters: torch.relu(nn.functional.conv2d(x, single.weight * 2) + single(x)),
    "sum": lambda x, single, filters: torch.relu(single(x) + filters(x)),
    "turned": lambda x, single, filters: single(x).transpose(2, 3),
    "turned filter": lambda x, single, filters: filters(x).transpose(2, 3),
    "excitation": lambda x, single, filters: single(x * torch.sigmoid(single(x.mean((2, 3), keepdim=True)))),
}
"""Of an image, a convolution of single pixels, and a depthwise one."""


class Levels(nn.Module):
    """Images of two sizes as the tokens of one sequence, as transformers of several levels have them."""

    def __init__(self, make: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.other = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 12, 4, stride=4)
        self.single, self.filters = nn.Conv2d(12, 12, 1), filtered(3, 12)
        self.step = IMAGES[make]() if make in IMAGES else None
        self.make, self.end = make, nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        image = torch.relu(self.first(x))
        made = COMBINED[self.make](image, self.single, self.filters) if self.step is None else self.step(image)
        other = self.other(x).flatten(2).transpose(1, 2)
        return self.end(torch.cat([made.flatten(2).transpose(1, 2), other], 1))


@pytest.mark.parametrize(
    ("make", "switches", "precision"),
    sampled(product([*IMAGES, *COMBINED], [(), ("shared-products", "no-texels")], ["fp32", "fp16"]), one_in=4),
)
@torch.no_grad()
def test_whatever_makes_images_that_are_tokens(
    device: Device, monkeypatch: pytest.MonkeyPatch, make: str, switches: tuple[str, ...], precision: str
) -> None:
    """Images of a batch lie apart among the tokens, so that pixels of all of them are no single run."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset(switches)))
    model, x = Levels(make).eval(), floats(3, 3, 12, 8)
    runner = VulkanProgram(scripted(torch.jit.trace(model, x)), device, precision=PrecisionChoice(precision))
    expected = model(x)
    loss = 2e-6 if precision == "fp32" else 3e-3
    assert float((runner(x) - expected).abs().max()) <= loss * float(expected.abs().max())
