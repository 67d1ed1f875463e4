"""Rows that are moved once: as text, any line of views and row by row steps against itself, and what networks of
windows take on a device."""

from __future__ import annotations

import random
import textwrap

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Program, print_graph, verify_graph
from mobopt.ir.straight_line import copy_line
from mobopt.runtimes.cpu.double import in_double
from mobopt.runtimes.line_run import LineEvaluation
from mobopt.runtimes.vulkan.compile.row_orders import order_rows
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

NORM = "%n : Float(4, 6, 8) = aten::layer_norm(%x, [8], None, None, 1e-05, True)"
ROLL = "%r : Float(4, 6, 8) = aten::roll(%n, [-1, -2], [0, 1])"
LAYER = "%l : Float(4, 6, 8) = aten::linear(%r, %v, None)"
OTHER = "%g : Float(4, 6, 8) = aten::softmax.int(%l, 1, None)"
BACK = "%s : Float(4, 6, 8) = aten::roll(%g, [1, 2], [0, 1])"
SUM = "%y : Float(4, 6, 8) = aten::add.Tensor(%x, %s, 1)"
GIVEN = "%x : Float(4, 6, 8)"


def seeded(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def ordered(lines: list[str], given: str = GIVEN, returned: str = "%y", **tensors: Tensor) -> Graph:
    """A line after it, which computes what it did before."""
    graph = line_of(lines, tensors, given, returned)
    before = copy_line(graph)
    order_rows(graph)
    verify_graph(graph)
    inputs = [seeded(*value.sizes, seed=number).double() for number, value in enumerate(graph.inputs)]
    old, new = (list(LineEvaluation(in_double).outputs(each, inputs).values()) for each in (before, graph))
    torch.testing.assert_close(new, old)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    graph = ordered([NORM, ROLL, LAYER, OTHER, BACK, SUM], v=seeded(8, 8))
    moved = [node["index"].constant for node in graph.block.nodes if node.op == "aten::index_select"]
    rows = torch.arange(24).view(4, 6)
    assert torch.equal(moved[0], rows.roll([-1, -2], [0, 1]).flatten())
    assert torch.equal(moved[1], rows.roll([1, 2], [0, 1]).flatten())
    text = "\n".join(line for line in print_graph(graph).splitlines() if "prim::Constant" not in line)
    assert text.rstrip() == textwrap.dedent(
        """\
        graph(%x : Float(4, 6, 8)):
          %2 : Float(24, 8) = aten::reshape(%x, [24, 8])
          %3 : Float(24, 8) = aten::index_select(%2, 0, %0)
          %4 : Float(4, 6, 8) = aten::reshape(%3, [4, 6, 8])
          %5 : Float(4, 6, 8) = aten::layer_norm(%4, [8], None, None, 1e-05, True)
          %l : Float(4, 6, 8) = aten::linear(%5, %v, None)
          %g : Float(4, 6, 8) = aten::softmax.int(%l, 1, None)
          %6 : Float(24, 8) = aten::reshape(%g, [24, 8])
          %7 : Float(24, 8) = aten::index_select(%6, 0, %1)
          %8 : Float(4, 6, 8) = aten::reshape(%7, [4, 6, 8])
          %y : Float(4, 6, 8) = aten::add.Tensor(%x, %8, 1)
          return (%y)"""
    )


def test_steps_stay_in_the_order_of_the_layer_before() -> None:
    """A sum with what was moved anyway is the layer's; what is of one row at a time waits until another order is
    wanted."""
    graph = ordered(
        [
            NORM,
            ROLL,
            LAYER,
            OTHER,
            "%p : Float(4, 6, 8) = aten::linear(%g, %v, None)",
            "%s : Float(4, 6, 8) = aten::roll(%p, [1, 2], [0, 1])",
            "%a : Float(4, 6, 8) = aten::add.Tensor(%x, %s, 1)",
            "%f : Float(4, 6, 8) = aten::linear(%a, %v, %b)",
            '%h : Float(4, 6, 8) = aten::gelu(%f, "none")',
            "%z : Float(4, 6, 8) = aten::add.Tensor(%a, %h, 1)",
            "%y : Float(4, 6, 8) = aten::roll(%z, [-2, 3], [0, 1])",
        ],
        v=seeded(8, 8),
        b=seeded(8, seed=1),
    )
    assert operators(graph).count("index_select") == 2 and "roll" not in operators(graph)
    assert operators(graph)[-2:] == ["index_select", "reshape"]


@pytest.mark.parametrize(
    ("lines", "given"),
    [
        (
            [
                "%a : Float(2, 3, 5, 8) = aten::view(%x, [2, 3, 5, 8])",
                "%b : Float(2, 5, 3, 8) = aten::permute(%a, [0, 2, 1, 3])",
                "%y : Float(2, 5, 24) = aten::reshape(%b, [2, 5, 24])",
            ],
            "%x : Float(6, 5, 8)",
        ),
        (
            [
                "%a : Float(2, 5, 24) = aten::linear(%x, %v, None)",
                "%b : Float(2, 5, 3, 8) = aten::view(%a, [2, 5, 3, 8])",
                "%c : Float(2, 3, 5, 8) = aten::permute(%b, [0, 2, 1, 3])",
                "%y : Float(2, 3, 5, 8) = aten::softmax.int(%c, -1, None)",
            ],
            "%x : Float(2, 5, 8)",
        ),
        (
            [
                "%p : Float(2, 5, 7, 3) = aten::permute(%x, [0, 2, 3, 1])",
                "%n : Float(2, 5, 7, 3) = aten::layer_norm(%p, [3], None, None, 1e-05, True)",
                "%q : Float(2, 3, 5, 7) = aten::permute(%n, [0, 3, 1, 2])",
                "%y : Float(2, 3, 5, 7) = aten::add.Tensor(%x, %q, 1)",
            ],
            "%x : Float(2, 3, 5, 7)",
        ),
        (["%y : Float(4, 6, 8) = aten::slice.Tensor(%x, 0, 0, 4, 1)"], "%x : Float(5, 6, 8)"),
    ],
    ids=["heads joined", "heads apart", "images as rows", "some rows"],
)
def test_what_stays(lines: list[str], given: str) -> None:
    before = [line.split("= aten::")[1].partition("(")[0].partition(".")[0] for line in lines]
    assert operators(ordered(lines, given, v=seeded(24, 8))) == before


def test_a_norm_that_is_returned_too() -> None:
    graph = ordered([NORM, ROLL, LAYER, OTHER, BACK, SUM], returned="%y, %n, %r", v=seeded(8, 8))
    assert operators(graph).count("layer_norm") == 2


def test_vectors_beside_rows() -> None:
    lines = [
        "%r : Float(2, 8, 5, 3) = aten::roll(%x, [1, 1], [2, 3])",
        "%m : Float(2, 8, 5, 3) = aten::mul.Tensor(%r, %v)",
        "%s : Float(2, 8, 5, 3) = aten::add.Tensor(%m, %w, 1)",
        "%y : Float(2, 8, 5, 3) = aten::roll(%s, [-1, -1], [2, 3])",
    ]
    given = "%x : Float(2, 8, 5, 3)"
    both = {"v": seeded(8, 1, 1), "w": seeded(1, seed=1)}
    assert operators(ordered(lines, given, **both)).count("index_select") == 0
    number = ordered(lines, given, **both | {"w": torch.tensor(0.5)})  # of no dimensions, as it must stay
    assert all(node.args[0].rank > 0 for node in number.block.nodes if node.op == "aten::reshape")
    assert operators(ordered(lines, given, **both | {"v": seeded(8, 1, 3)})).count("index_select") == 2


def test_tensors_of_other_dtypes(device: Device) -> None:
    """Integers and complex numbers are moved as they were."""
    model = Shifted()
    for x in (torch.arange(42).reshape(2, 3, 7), torch.view_as_complex(seeded(2, 3, 7, 2))):
        runner = VulkanProgram(traced(model, x), device)
        torch.testing.assert_close(runner(x), model(x))


class Shifted(nn.Module):
    """Rolled there and back."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.roll((1, 2), (0, 1)).transpose(0, 1).reshape(2, 3, 7) * 3
        return y.reshape(3, 2, 7).transpose(0, 1).roll((-1, -2), (0, 1)) + x


class Parts(nn.Module):
    """The only parts of lists."""

    def forward(self, x: Tensor) -> Tensor:
        (y,) = x.roll((1, 2), (1, 2)).unsqueeze(0).unbind(0)
        (y,) = nn.functional.gelu(y).transpose(1, 2).split(y.shape[2], 1)
        return y.transpose(1, 2).roll((-1, -2), (1, 2)) + x


def test_lists_of_one_part(device: Device) -> None:
    model, x = Parts(), seeded(2, 5, 7, 8)
    torch.testing.assert_close(VulkanProgram(traced(model, x), device)(x), model(x), atol=1e-6, rtol=1e-5)


class _Lines:
    """Lines of steps at random, of tensors of 2 x 4 x 6 x 8 elements in any shape."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes: dict[str, list[int]] = {"x": [2, 4, 6, 8]}
        self.lines: list[str] = []

    def add(self, operator: str, shape: list[int]) -> None:
        name = f"t{len(self.lines)}"
        self.lines.append(f"%{name} : Float({', '.join(map(str, shape))}) = aten::{operator}")
        self.shapes[name] = shape

    def step(self) -> None:
        name, shape = self.random.choice([*self.shapes.items()][-4:])
        rank, kind = len(shape), self.random.randrange(9)
        if kind == 0:
            dims = self.random.sample(range(rank), min(rank, 2))
            self.add(f"roll(%{name}, {[self.random.randrange(-3, 4) for _ in dims]}, {dims})", shape)
        elif kind == 1:
            dims = [*self.random.sample(range(rank - 1), rank - 1), rank - 1]
            dims = self.random.choice([dims, self.random.sample(range(rank), rank)])
            self.add(f"permute(%{name}, {dims})", [shape[d] for d in dims])
        elif kind == 2:
            new = self.random.choice([[48, 8], [2, 2, 2, 3, 2, 8], [8, 6, 8], [2, 24, 8], [4, 6, 16], [2, 8, 4, 6]])
            self.add(f"reshape(%{name}, {new})", new)
        elif kind == 3 and shape[-1] == 8:
            self.add(f"layer_norm(%{name}, [8], %b, None, 1e-05, True)", shape)
        elif kind == 4 and shape[-1] == 8:
            self.add(f"linear(%{name}, %v, %b)", shape)
        elif kind == 5:
            self.add(f'gelu(%{name}, "none")', shape)
        elif kind == 6:
            self.add(f"softmax.int(%{name}, {self.random.randrange(rank)}, None)", shape)
        elif kind == 7 and shape[-1] == 8:
            self.add(f"mul.Tensor(%{name}, %b)", shape)
        else:
            other = self.random.choice([each for each, sizes in self.shapes.items() if sizes == shape])
            self.add(f"add.Tensor(%{name}, %{other}, 1)", shape)


@pytest.mark.parametrize("seed", range(150))
def test_any_line(seed: int) -> None:
    made = _Lines(seed)
    for _ in range(18):
        made.step()
    returned = ", ".join(f"%{name}" for name in [*made.shapes][-2:])
    ordered(made.lines, "%x : Float(2, 4, 6, 8)", returned, v=seeded(8, 8), b=seeded(8, seed=1))


class Windows(nn.Module):
    """A transformer of windows of 4 x 2, every other block of which rolls the image, after a convolution."""

    def __init__(self, is_normalized_after: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.patches = nn.Conv2d(3, 12, 2, 2)
        self.is_normalized_after = is_normalized_after
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(8))
        self.projections = nn.ModuleList(nn.Linear(12, 36) for _ in range(4))
        self.joins = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.first = nn.ModuleList(nn.Linear(12, 20) for _ in range(4))
        self.second = nn.ModuleList(nn.Linear(20, 12) for _ in range(4))
        self.merge = nn.Linear(48, 7)

    def attend(self, x: Tensor, block: int) -> Tensor:
        b, h, w, c = x.shape
        moved = block % 2
        x = x.roll((-moved, -moved), (1, 2)) if moved else x
        x = x.view(b, h // 4, 4, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, c)
        q, k, v = self.projections[block](x).reshape(-1, 8, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 8, c)
        y = self.joins[block](y).view(b, h // 4, w // 2, 4, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return y.roll((moved, moved), (1, 2)) if moved else y

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        for block in range(4):
            first, second = self.norms[2 * block], self.norms[2 * block + 1]
            if self.is_normalized_after:
                x = x + first(self.attend(x, block))
                x = x + second(self.second[block](nn.functional.gelu(self.first[block](x))))
            else:
                x = x + self.attend(first(x), block)
                x = x + self.second[block](nn.functional.gelu(self.first[block](second(x))))
        b, h, w, c = x.shape
        x = x.reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).flatten(3)
        return self.merge(x).mean((1, 2))


def traced(model: nn.Module, x: Tensor) -> Program:
    """With sizes that follow from the input's."""
    return program_from_script_module(torch.jit.trace(model, x))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("is_normalized_after", [False, True], ids=["norms before", "norms after"])
@torch.no_grad()
def test_windows(device: Device, batch: int, is_normalized_after: bool) -> None:
    model, x = Windows(is_normalized_after).eval(), seeded(batch, 3, 16, 12, seed=batch)
    runner = VulkanProgram(traced(model, x), device)
    torch.testing.assert_close(runner(x), model(x), atol=1e-5, rtol=1e-5)
    labels = [item.label.partition(" ")[0] for item in runner.profile([x])]
    assert labels.count("aten::index_select") == 5 and "aten::roll" not in labels


@torch.no_grad()
def test_open_sizes(device: Device) -> None:
    """What is of several sizes is computed as if each were the only one."""
    model = Windows().eval()
    runner = VulkanProgram(traced(model, seeded(2, 3, 16, 12)), device)
    for batch, height in ((1, 16), (2, 16), (3, 8), (2, 24), (1, 16)):
        x = seeded(batch, 3, height, 12, seed=batch)
        torch.testing.assert_close(runner(x), model(x), atol=1e-5, rtol=1e-5)
