"""Rotary positions and caches of a decoder in one dispatch: as text, and beside float64 on odd sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion_rotary import fold_rotary, join_rotary
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.rotary_kernel import may_rotate
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.lowerings.rotary import ROTARY
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

TABLE = "Float(1, 1, 1, 16)"
PARAMETERS = (
    f"%q : Float(1, 4, 1, 16), %k : Float(1, 2, 1, 16), %v : Float(1, 2, 1, 16), %c : {TABLE}, %s : {TABLE}, "
    "%keys : Float(1, 2, 19, 16), %values : Float(1, 2, 19, 16), %place : Long(1), %other : Long(1)"
)


def turned(name: str, heads: int, cosines: str = "c") -> list[str]:
    whole, half = (f"Float(1, {heads}, 1, {size})" for size in (16, 8))
    return [
        f"%{name}0 : {half}, %{name}1 : {half} = aten::chunk(%{name}, 2, -1)",
        f"%{name}2 : {whole} = aten::mul.Tensor(%{name}, %{cosines})",
        f"%{name}3 : {half} = aten::neg(%{name}1)",
        f"%{name}4 : {whole} = aten::cat([%{name}3, %{name}0], -1)",
        f"%{name}5 : {whole} = aten::mul.Tensor(%{name}4, %s)",
        f"%{name}6 : {whole} = aten::add.Tensor(%{name}2, %{name}5, 1)",
    ]


def neighbours_turned(name: str, heads: int, flatten: str = "flatten.using_ints(%{}5, -2, -1)") -> list[str]:
    whole, half = (f"Float(1, {heads}, 1, {size})" for size in (16, 8))
    return [
        f"%{name}0 : {half} = aten::slice.Tensor(%{name}, 3, 0, 9223372036854775807, 2)",
        f"%{name}1 : {half} = aten::slice.Tensor(%{name}, 3, 1, 9223372036854775807, 2)",
        f"%{name}2 : {whole} = aten::mul.Tensor(%{name}, %c)",
        f"%{name}3 : {half} = aten::neg(%{name}1)",
        f"%{name}5 : Float(1, {heads}, 1, 8, 2) = aten::stack([%{name}3, %{name}0], -1)",
        f"%{name}4 : {whole} = aten::{flatten.format(name)}",
        f"%{name}7 : {whole} = aten::mul.Tensor(%{name}4, %s)",
        f"%{name}6 : {whole} = aten::add.Tensor(%{name}2, %{name}7, 1)",
    ]


def put(result: str, cache: str, source: str, place: str = "place") -> str:
    return f"%{result} : Float(1, 2, 19, 16) = aten::index_copy(%{cache}, 2, %{place}, %{source})"


def joined(device: Any, lines: list[str], returned: str) -> Graph:
    text = f"graph({PARAMETERS}):\n" + "".join(f"  {line}\n" for line in lines) + f"  return ({returned})\n"
    graph = parse_graph(text)
    before = print_graph(graph)
    fold_rotary(graph, device.info)
    join_rotary(graph, device.info)
    verify_graph(graph)
    after = print_graph(graph)
    assert print_graph(parse_graph(after)) == after
    while any(node.blocks for node in graph.block.nodes):
        for node in [node for node in graph.block.nodes if node.blocks]:
            dissolve(node)
    verify_graph(graph)
    assert sorted(print_graph(graph).splitlines()) == sorted(before.splitlines())
    return parse_graph(after)


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.block.nodes if node.op != "aten::chunk"]


def test_a_decoder_step_is_one_node(device: Device) -> None:
    lines = [*turned("q", 4), *turned("k", 2), put("k7", "keys", "k6"), put("v7", "values", "v")]
    graph = joined(device, lines, "%q6, %k7, %v7")
    assert operators(graph) == [ROTARY]
    node = list(graph.block.nodes)[-1]
    assert [value.name for value in node.outputs] == ["q6", "k7", "v7"]
    assert [value.sizes for value in node.outputs] == [(1, 4, 1, 16), (1, 2, 19, 16), (1, 2, 19, 16)]


@pytest.mark.parametrize("flatten", ["flatten.using_ints(%{}5, -2, -1)", "reshape(%{}5, [1, 4, 1, 16])"])
def test_neighbours_may_be_turned(device: Device, flatten: str) -> None:
    lines = neighbours_turned("q", 4, flatten)
    whole = list(joined(device, lines, "%q6").block.nodes)[-1]
    assert whole.op == ROTARY and len(list(whole.blocks[0].nodes)) == 6
    both = [*neighbours_turned("q", 4), *neighbours_turned("k", 2), put("k8", "keys", "k6"), put("v7", "values", "v")]
    assert [node.op for node in joined(device, both, "%q6, %k8, %v7").block.nodes if node.op != "aten::slice"] == [
        ROTARY
    ]
    # halves of one and neighbours of the other are two
    both = [*neighbours_turned("q", 4), *turned("k", 2)]
    assert operators(joined(device, both, "%q6, %k6")).count(ROTARY) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3, 1, 9223372036854775807, 2", "3, 0, 9223372036854775807, 2"),  # both begin at the first
        ("stack([%q3, %q0], -1)", "stack([%q0, %q3], -1)"),
        ("stack([%q3, %q0], -1)", "stack([%q3, %q0], 0)"),
        ("3, 0, 9223372036854775807, 2", "3, 0, 8, 1"),
    ],
)
def test_other_steps_turn_no_neighbours(device: Device, old: str, new: str) -> None:
    lines = [line.replace(old, new) for line in neighbours_turned("q", 4)]
    if new.endswith("0)"):
        lines = [line.replace("Float(1, 4, 1, 8, 2)", "Float(2, 1, 4, 1, 8)") for line in lines]
        lines = [line.replace("flatten.using_ints(%q5, -2, -1)", "reshape(%q5, [1, 4, 1, 16])") for line in lines]
    assert lines != neighbours_turned("q", 4)
    assert ROTARY not in operators(joined(device, lines, "%q6"))


@pytest.mark.parametrize(
    ("lines", "returned", "expected"),
    [
        ([*turned("q", 4), *turned("k", 2)], "%q6, %k6", [ROTARY]),
        ([put("k7", "keys", "k"), put("v7", "values", "v")], "%k7, %v7", [ROTARY]),
        ([put("k7", "keys", "k")], "%k7", ["aten::index_copy"]),
        # Other places, other tables, a rotation that is read elsewhere too.
        ([put("k7", "keys", "k"), put("v7", "values", "v", "other")], "%k7, %v7", ["aten::index_copy"] * 2),
        ([*turned("q", 4), *turned("k", 2, "s")], "%q6, %k6", [ROTARY] * 2),
        ([*turned("k", 2), put("k7", "keys", "k6")], "%k6, %k7", [ROTARY, "aten::index_copy"]),
        # What is read before the caches can be written doesn't wait for them.
        (
            [*turned("q", 4), "%r : Float(1, 2, 1, 16) = aten::slice.Tensor(%q6, 1, 0, 2, 1)", put("k7", "keys", "r"),
             put("v7", "values", "v")],
            "%q6, %k7, %v7",
            [ROTARY, "aten::slice", ROTARY],
        ),
    ],
)  # fmt: skip
def test_what_goes_together(device: Device, lines: list[str], returned: str, expected: list[str]) -> None:
    assert operators(joined(device, lines, returned)) == expected


def test_devices_of_few_buffers_keep_the_steps(device: Device) -> None:
    info = replace(device.info, limits=replace(device.info.limits, max_storage_buffers=8))
    assert may_rotate(device.info) and not may_rotate(info)
    graph = parse_graph(
        f"graph({PARAMETERS}):\n" + "".join(f"  {line}\n" for line in turned("q", 4)) + "  return (%q6)\n"
    )
    fold_rotary(graph, info)
    assert ROTARY not in operators(graph)


class Step(nn.Module):
    """What a decoder does before attention, with caches that are state."""

    def __init__(self, batches: int, heads: int, shared: int, size: int, cached: int, is_turned: bool) -> None:
        super().__init__()
        self.sizes, self.is_turned = (batches, heads, shared, size), is_turned
        torch.manual_seed(3)
        width = heads * size
        self.q, self.k, self.v = (nn.Linear(width, n * size) for n in (heads, shared, shared))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batches, shared, cached, size))
        angles = torch.outer(torch.arange(cached), 10.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def turned(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        if not self.is_turned:
            return x
        first, second = x.chunk(2, -1)
        return x * cosines + torch.cat((-second, first), -1) * sines

    def forward(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batches, heads, shared, size = self.sizes
        cosines, sines = self.cosines.index_select(0, place), self.sines.index_select(0, place)
        q = self.turned(self.q(x).view(batches, 1, heads, size).transpose(1, 2), cosines, sines)
        k = self.turned(self.k(x).view(batches, 1, shared, size).transpose(1, 2), cosines, sines)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, self.v(x).view(batches, 1, shared, size).transpose(1, 2))
        return q * 1.5, self.keys + 0.0, self.values + 0.0


def of_steps(step: Step, place: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(place)
    return torch.randn(step.sizes[0], 1, step.q.in_features, generator=generator), torch.tensor([place])


@pytest.fixture(params=["as it is", "no texels", "discrete"])
def road(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Texels, buffers, and a GPU's ways."""
    info = device.info
    if request.param == "no texels":
        info = replace(info, switches=info.switches | {"no-texels"})
    if request.param == "discrete":
        info = replace(info, kind="discrete")
    monkeypatch.setattr(device, "info", info)
    yield request.param


@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize("sizes", [(1, 4, 2, 8, 13), (3, 5, 1, 24, 7), (1, 2, 2, 64, 131)])
def test_steps(device: Device, road: str, sizes: tuple[int, ...], is_turned: bool) -> None:
    step = Step(*sizes, is_turned).eval().requires_grad_(False)  # type: ignore[arg-type]
    exact = Step(*sizes, is_turned).double().eval().requires_grad_(False)  # type: ignore[arg-type]
    runner = VulkanProgram(program_from_script_module(torch.jit.script(step)), device)
    try:
        for place in (0, sizes[-1] - 1, 3, 3):
            x, where = of_steps(step, place)
            for found, expected in zip(runner(x, where), exact(x.double(), where), strict=True):
                assert float((found - expected).abs().max()) <= 2e-6 * float(expected.abs().max())
        shaders = [item.operation.shader for item in runner.profile([x, where]) if isinstance(item.operation, Dispatch)]
        assert sum(name.startswith("rotary") for name in shaders) == 1, shaders
        with pytest.raises(MoboptError, match=r"index_copy|index_select"):
            runner(x, torch.tensor([sizes[-1]]))
        again = exact(x.double(), where)
        assert float((runner(x, where)[1] - again[1]).abs().max()) <= 2e-6 * float(again[1].abs().max())
    finally:
        runner.close()


def test_halves(device: Device) -> None:
    step = Step(1, 4, 2, 16, 13, True).eval().requires_grad_(False)
    runner = VulkanProgram(
        program_from_script_module(torch.jit.script(step)), device, precision=PrecisionChoice.of("fp16")
    )
    exact = Step(1, 4, 2, 16, 13, True).double().eval().requires_grad_(False)
    try:
        x, where = of_steps(step, 5)
        for found, expected in zip(runner(x, where), exact(x.double(), where), strict=True):
            assert float((found - expected).abs().max()) <= 3e-3 * float(expected.abs().max())
    finally:
        runner.close()


class Wide(nn.Module):
    """Rotations of many rows, of tensors whose rows lie apart."""

    def forward(self, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
        q, k = turned_rows(q.transpose(1, 2), cosines, sines), turned_rows(k, cosines, sines)
        return q * 2.0, k * 2.0


def turned_rows(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half = x.size(-1) // 2
    return x * cosines + torch.cat((-x[..., half:], x[..., :half]), -1) * sines


def turned_pairs(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Neighbours, as those of Cohere, GLM, Helium and ERNIE."""
    return x * cosines + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sines


class Partial(nn.Module):
    """Rotations of the first elements of each head, as GPT-NeoX's and Phi's, and a cache."""

    def __init__(self, count: int, of_neighbours: bool) -> None:
        super().__init__()
        self.count, self.of_neighbours = count, of_neighbours
        self.register_buffer("keys", torch.zeros(1, 2, 5, 24))

    def turned(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        if self.of_neighbours:
            first = turned_pairs(x[..., : self.count], cosines, sines)
        else:
            first = turned_rows(x[..., : self.count], cosines, sines)
        return torch.cat((first, x[..., self.count :]), -1)

    def forward(self, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.turned(q, cosines, sines), self.turned(k, cosines, sines)
        if k.size(2) == 1:
            self.keys.index_copy_(2, place, k)
            return q * 2.0, self.keys * 2.0
        return q * 2.0, k * 2.0


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize(
    ("count", "of_neighbours", "is_folded"),
    [(8, False, True), (16, False, True), (12, False, False), (8, True, True), (12, True, True), (14, True, False)],
)
def test_some_elements_of_heads(
    device: Device, road: str, rows: int, count: int, of_neighbours: bool, is_folded: bool
) -> None:
    generator = torch.Generator().manual_seed(7)
    q, k = (torch.randn(1, heads, rows, 24, generator=generator) for heads in (3, 2))
    cosines, sines = (torch.randn(1, 1, rows, count, generator=generator) for _ in range(2))
    inputs = (q, k, cosines, sines, torch.tensor([3]))
    runner = VulkanProgram(program_from_script_module(torch.jit.script(Partial(count, of_neighbours).eval())), device)
    try:
        expected = Partial(count, of_neighbours).double().eval()(*(x.double() for x in inputs[:-1]), inputs[-1])
        for found, wanted in zip(runner(*inputs), expected, strict=True):
            assert float((found - wanted).abs().max()) <= 1e-6 * float(wanted.abs().max())
        shaders = [item.operation.shader for item in runner.profile(inputs) if isinstance(item.operation, Dispatch)]
        rest = ["pointwise"] * 4  # two products, and their copies as outputs
        kinds = [name.partition("_")[0] for name in shaders]
        assert (kinds == ["rotary", *rest]) == is_folded, shaders
    finally:
        runner.close()


class Normed(nn.Module):
    """Heads that are normalised before they are turned, as Qwen3's."""

    def forward(self, q: Tensor, cosines: Tensor, sines: Tensor, gains: Tensor) -> Tensor:
        return turned_rows(torch.rms_norm(q, [16], gains, 1e-6).transpose(1, 2), cosines, sines) * 2.0


def test_a_norm_of_heads_is_read_as_it_lies(device: Device, road: str) -> None:
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(1, 7, 3, 16, generator=generator)
    inputs = (q, *(torch.randn(size, generator=generator) for size in ((7, 16), (7, 16), (16,))))
    runner = VulkanProgram(program_from_script_module(torch.jit.script(Normed().eval())), device)
    try:
        found, expected = runner(*inputs), Normed()(*(x.double() for x in inputs))
        assert float((found - expected).abs().max()) <= 2e-6 * float(expected.abs().max())
        labels = [item.operation.label for item in runner.profile(inputs)]
        assert sum(label.startswith("mobopt::rotary") for label in labels) == 1, labels
    finally:
        runner.close()


class RowsFirst(nn.Module):
    """Rotations before heads are put first, of whole numbers of heads, then of one token into a cache."""

    def __init__(self, cached: int, heads: int, size: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, heads, cached, size))

    def forward(self, q: Tensor, k: Tensor, cosines: Tensor, sines: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        q, k = turned_rows(q, cosines, sines), turned_rows(k, cosines, sines)
        if k.size(1) == 1:
            self.keys.index_copy_(2, place, k.transpose(1, 2))
            return q.transpose(1, 2) * 2.0, self.keys * 2.0
        return q.transpose(1, 2) * 2.0, k * 2.0


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("is_of_one_size", [True, False])
def test_rows_before_heads(device: Device, road: str, rows: int, is_of_one_size: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    heads = rows if is_of_one_size and rows > 1 else 3
    q, k = (torch.randn(1, rows, n, 16, generator=generator) for n in (heads, 2))
    cosines, sines = (torch.randn(1, rows, 1, 16, generator=generator) for _ in range(2))
    model, inputs = RowsFirst(5, 2, 16).eval(), (q, k, cosines, sines, torch.tensor([3]))
    runner = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
    try:
        exact = RowsFirst(5, 2, 16).double().eval()
        expected = exact(*(x.double() for x in inputs[:-1]), inputs[-1])
        for found, wanted in zip(runner(*inputs), expected, strict=True):
            assert float((found - wanted).abs().max()) <= 1e-6 * float(wanted.abs().max())
        shaders = [item.operation.shader for item in runner.profile(inputs) if isinstance(item.operation, Dispatch)]
        assert sum(name.startswith("rotary") for name in shaders) == 1, shaders
    finally:
        runner.close()


@pytest.mark.parametrize("sizes", [(1, 3, 7, 16), (2, 5, 11, 8)])
def test_many_rows(device: Device, road: str, sizes: tuple[int, ...]) -> None:
    batches, heads, rows, size = sizes
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(batches, rows, heads, size, generator=generator)
    k = torch.randn(batches, 2, rows, size + 3, generator=generator)[
        ..., 1 : size + 1
    ]  # rows that don't begin on vec4s
    cosines, sines = (torch.randn(batches, 1, rows, size, generator=generator) for _ in range(2))
    model = Wide().eval()
    runner = VulkanProgram(program_from_script_module(torch.jit.script(model)), device)
    try:
        inputs = (q, k, cosines, sines)
        for found, expected in zip(runner(*inputs), model(*(x.double() for x in inputs)), strict=True):
            assert float((found - expected).abs().max()) <= 1e-6 * float(expected.abs().max())
        shaders = [item.operation.shader for item in runner.profile(inputs) if isinstance(item.operation, Dispatch)]
        assert sum(name.startswith("rotary") for name in shaders) == 1, shaders
    finally:
        runner.close()


PUTS = {
    "index_copy": "aten::index_copy(%keys, 2, %place, %{row})",
    "index_put": "aten::index_put(%keys, [None, None, %place], %{row}, False)",
    "accumulated": "aten::index_put(%keys, [None, None, %place], %{row}, True)",
    "other dimension": "aten::index_put(%keys, [None, %place], %{row}, False)",
}


@pytest.mark.parametrize(("how", "is_joined"), [(how, how.startswith("index")) for how in PUTS])
def test_ways_to_put_a_row(device: Device, how: str, is_joined: bool) -> None:
    row = "k6" if how == "index_copy" else "r"
    lines = [*turned("k", 2), *(["%r : Float(2, 1, 16) = aten::view(%k6, [2, 1, 16])"] if row == "r" else [])]
    lines.append(f"%k7 : Float(1, 2, 19, 16) = {PUTS[how].format(row=row)}")
    found = operators(joined(device, lines, "%k7"))
    assert (found == [ROTARY]) if is_joined else (len(found) == 3)


def test_a_row_that_is_repeated_is_not_put(device: Device) -> None:
    text = "%k7 : Float(1, 2, 19, 16) = aten::index_put(%keys, [None, None, %place], %r, False)"
    lines = ["%r : Float(1, 1, 1, 16) = aten::slice.Tensor(%k, 1, 0, 1, 1)", text, put("v7", "values", "v")]
    assert ROTARY not in operators(joined(device, lines, "%k7, %v7"))
