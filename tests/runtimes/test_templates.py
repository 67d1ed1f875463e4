"""Segments from templates are those that specialising for their sizes gives, in every word; guards tell which sizes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch
from model_zoo import UNet
from nets import NETS
from torch import Tensor, nn

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, print_graph
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specializations import Specializations
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.template import Template

TRIALS = 5


def text_of(make: Callable[[], Segment]) -> str:
    """A Segment in words, or the error in its place."""
    try:
        segment = make()
    except MoboptError as error:
        return str(error)
    graph = print_graph(segment.graph, sources=True)
    return re.sub("0x[0-9a-f]+", "", f"{graph} {segment.result} {segment.updates} {segment.writes}")


class Counted:
    """How many Segments came from templates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hits = 0
        made = Template.segment

        def counting(template: Template, values: tuple[int, ...]) -> Segment | None:
            segment = made(template, values)
            self.hits += segment is not None
            return segment

        monkeypatch.setattr(Template, "segment", counting)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def check(program: Program, calls: list[list[object]]) -> None:
    """Compare all calls, one after the other, with the Segments of their own."""
    made = Specializations(program)
    for args in calls:
        expected = text_of(lambda args=args: specialize(program, "forward", args))
        assert text_of(lambda args=args: made.segment("forward", args)) == expected, args


def scripted(module: nn.Module) -> Program:
    return program_from_script_module(torch.jit.script(module.eval()))


def of_other_sizes(inputs: list[Tensor], draw: random.Random) -> list[object]:
    """Inputs where some sizes are others, the same ones for sizes that were equal."""
    sizes: dict[tuple[bool, int], int] = {}

    def size(tensor: Tensor, dim: int) -> int:
        old = tensor.shape[dim]
        if dim == 1 and tensor.dim() > 3:
            return old
        others = [old, max(1, old + draw.choice([-3, -1, 1, 2, 8, 16])), draw.randint(1, 2 * old + 2)]
        return sizes.setdefault((dim == 0, old), draw.choice(others))

    return [torch.zeros([size(tensor, dim) for dim in range(tensor.dim())], dtype=tensor.dtype) for tensor in inputs]


@pytest.mark.parametrize("way", ["traced", "scripted"])
@pytest.mark.parametrize("name", ["Res2Net", "CoordConv", "BERT", "TextCNN", "TCN"])
def test_segments_of_nets(name: str, way: str, counted: Counted) -> None:
    net, draw = NETS[name], random.Random(3)
    if way not in net.ways:
        pytest.skip("torch can't make it so")
    inputs = net.inputs()
    module = net.module()
    program = scripted(module) if way == "scripted" else program_from_script_module(torch.jit.trace(module, inputs))
    check(program, [list(inputs), *(of_other_sizes(inputs, draw) for _ in range(TRIALS))])


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETS)
def test_segments_of_all_nets(name: str) -> None:
    net = NETS[name]
    for way in net.ways:
        draw, inputs, module = random.Random(4), net.inputs(), net.module()
        program = scripted(module) if way == "scripted" else program_from_script_module(torch.jit.trace(module, inputs))
        check(program, [list(inputs), *(of_other_sizes(inputs, draw) for _ in range(4 * TRIALS))])


def images(*sizes: tuple[int, ...]) -> list[list[object]]:
    return [[torch.zeros(size)] for size in sizes]


@pytest.mark.parametrize("bilinear", [True, False])
def test_a_net_that_pads_by_its_sizes(bilinear: bool, counted: Counted) -> None:
    check(scripted(UNet(bilinear, width=4)), images(*((1, 3, h, w) for h in range(24, 32) for w in (24, 47))))
    assert counted.hits >= 5


class Branches(nn.Module):
    """Asks for sizes, in most of the ways that there are."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        n, c, h, w = x.shape
        if h > 2 * w:
            x = x.transpose(2, 3)
        elif (h * w) % 2 == 0:
            x = x[:, :, : h // 2]
        grid = torch.arange(x.size(3)).to(torch.float32) / x.size(3)
        y = (x + grid).reshape(n, -1, x.size(2))
        mask = torch.zeros(y.size(2), y.size(2)) + torch.ones(y.size(2)).cumsum(0)
        y = torch.matmul(y, mask).view(n, c, -1)
        y = torch.cat([y, torch.zeros_like(y[:, :, 1:])], 2)
        parts = [n, y.size(1)]
        parts.append(y.numel() // (n * y.size(1)))
        return y.reshape(parts).flatten(1), h * w + len(parts)


class Writes(nn.Module):
    """Writes to memory that may be shared with what it was made of, or not, as the sizes are."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 2
        y = x.transpose(1, 2).reshape(x.size(0), -1)
        y.add_(1)
        z = torch.zeros(x.size(0), x.size(1))
        z[:, 1:] = x[:, 1:, 0]
        return x, y + z.sum()


class Shares(nn.Module):
    """Returns views of its input, of each other, and numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        y = x + 1
        return x[1:], y, y[:, : y.size(1) // 2], [x.size(0), 7]


class Loops(nn.Module):
    """Goes round as often as an input is long."""

    def forward(self, x: Tensor, scale: int) -> Tensor:
        total = x[:, 0]
        for index in range(1, x.size(1)):
            total = total * 0.5 + x[:, index] * scale
        texts = {str(x.size(0)): x.size(0)}
        return total * texts[str(x.size(0))]


@pytest.mark.parametrize("module", [Branches(), Writes(), Shares()], ids=lambda module: type(module).__name__)
def test_models_whose_course_depends_on_sizes(module: nn.Module) -> None:
    draw = random.Random(7)
    rank = 4 if isinstance(module, Branches) else 3
    check(scripted(module), images(*(tuple(draw.choice([1, 2, 3, 5, 8]) for _ in range(rank)) for _ in range(40))))


def test_loops_and_numbers_among_arguments() -> None:
    draw = random.Random(8)
    calls = [[torch.zeros(draw.randint(1, 4), draw.randint(1, 6)), draw.randint(1, 2)] for _ in range(40)]
    check(scripted(Loops()), calls)


def test_forms_of_arguments_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mobopt.runtimes.specializations.MAX_FORMS", 3)
    made = Specializations(scripted(Loops()))
    for scale in range(9):
        made.segment("forward", [torch.zeros(2, 3), scale])
    assert len(made._families) == 3


def test_batches_of_none_and_one() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    check(scripted(model), images(*((n, 3, h, h) for n in (1, 4, 0, 2, 1, 3, 7, 0) for h in (5, 8))))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        y = nn.functional.interpolate(y, scale_factor=1.5, mode="bilinear", align_corners=False)
        return nn.functional.adaptive_avg_pool2d(y, (x.size(2) // 2 + 1, 3))


def test_scaled_sizes(counted: Counted) -> None:
    check(scripted(Scaled()), images(*((1, 2, h, w) for h, w in [(8, 8), (6, 10), (4, 12), (16, 2), (10, 6), (5, 7)])))


def test_most_sizes_take_no_trace(counted: Counted) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU6(), nn.Conv2d(4, 4, 3, 2, 1), nn.AdaptiveAvgPool2d(1))
    sizes = [(1, 3, h, w) for h in range(20, 30) for w in (20, 33)]
    check(scripted(model), images(*sizes))
    assert counted.hits == len(sizes) - 3, "all but the first, the second height and the second width"
