"""Attention of one query that puts its own key and value into their caches: numbers, and what isn't of that kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mobopt.errors import MoboptError
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion_cached_attention import NO_CACHED_ATTENTION
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.program import VulkanProgram

CACHED = "attention_row_cached"


@dataclass(frozen=True)
class Sizes:
    """Of a layer, and how it is written."""

    batches: int = 1
    heads: int = 4
    shared: int = 2
    head: int = 16
    cached: int = 67
    turned: int = 16
    """Elements of a head that are turned, the first ones."""
    mask: str = "bool"
    rows_first: bool = False
    """Whether rotations are written of (batches, rows, heads, elements)."""
    puts: bool = False
    """Whether rows are put by ``keys[:, :, place] = row``."""
    neighbours: bool = False
    """Whether neighbours are turned, in place of halves."""


class Layer(nn.Module):
    """Attention of a decoder, with caches that are state."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.sizes = sizes
        width = sizes.heads * sizes.head
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, sizes.shared * sizes.head) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(sizes.batches, sizes.shared, sizes.cached, sizes.head))
        half = torch.arange(0, max(sizes.turned, 2), 2) / max(sizes.turned, 2)
        angles = torch.outer(torch.arange(sizes.cached), 10.0**-half).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.register_buffer("numbers", torch.arange(sizes.cached))

    def tables(self, place: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = self.cosines.index_select(0, place), self.sines.index_select(0, place)
        return (cosines.unsqueeze(1), sines.unsqueeze(1)) if self.sizes.rows_first else (cosines, sines)

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        count = self.sizes.turned
        if not count:
            return x
        cosines, sines = tables
        first, half = x[..., :count], count // 2
        if self.sizes.neighbours:
            across = torch.stack((-first[..., 1::2], first[..., ::2]), -1).flatten(-2)
        else:
            across = torch.cat((-first[..., half:], first[..., :half]), -1)
        first = first * cosines + across * sines
        return first if count == self.sizes.head else torch.cat((first, x[..., count:]), -1)

    def rows(self, layer: nn.Module, x: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = layer(x).view(self.sizes.batches, 1, -1, self.sizes.head)
        if tables is None:
            return x.transpose(1, 2)
        return self.turn(x, tables).transpose(1, 2) if self.sizes.rows_first else self.turn(x.transpose(1, 2), tables)

    def seen(self, place: Tensor) -> Tensor | None:
        counts = (self.numbers <= place)[None, None, None]
        if self.sizes.mask == "bool":
            return counts
        return torch.where(counts, 0.25, -torch.inf).to(self.keys.dtype) if self.sizes.mask == "float" else None

    def put(self, cache: Tensor, place: Tensor, row: Tensor, wraps: bool) -> None:
        if wraps:
            cache[:, :, place] = row
        else:
            cache.index_copy_(2, place, row)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        tables = self.tables(place) if self.sizes.turned else None
        q, k, v = self.rows(self.q, x, tables), self.rows(self.k, x, tables), self.rows(self.v, x)
        for cache, row in ((self.keys, k), (self.values, v)):
            self.put(cache, place, row, self.sizes.puts)
        is_grouped = self.sizes.heads != self.sizes.shared
        found = functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=self.seen(place), enable_gqa=is_grouped
        )
        return self.out(found.transpose(1, 2).reshape(x.shape))


def of_step(sizes: Sizes, place: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + place)
    return torch.randn(sizes.batches, 1, sizes.heads * sizes.head, generator=generator), torch.tensor([place])


def runner_of(device: Device, model: nn.Module, sizes: Sizes, **options: Any) -> VulkanProgram:
    exported = torch.export.export(model.eval().requires_grad_(False), of_step(sizes, 3))
    return VulkanProgram(ExportedProgramSource(exported).program, device, **options)


def shaders_of(runner: VulkanProgram, inputs: tuple[Tensor, ...]) -> list[str]:
    return [item.operation.shader for item in runner.profile(inputs) if isinstance(item.operation, Dispatch)]


def cache_of(runner: VulkanProgram, name: str) -> Tensor:
    arrays = runner._state_arrays
    return arrays.array(runner.model_state.forms[name]).tensor()


def is_close(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> bool:
    return float((found.double() - expected.double()).abs().max()) <= tolerance * float(expected.abs().max())


def on_a_gpu(device: Device, monkeypatch: pytest.MonkeyPatch, *switches: str) -> None:
    info = replace(device.info, kind="discrete", switches=device.info.switches | {"shared-products", *switches})
    monkeypatch.setattr(device, "info", info)


@pytest.fixture(params=["barriers", "chains"])
def road(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    on_a_gpu(device, monkeypatch, *(["emulated-chains", "no-texels"] if request.param == "chains" else []))
    yield request.param


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(),
        Sizes(batches=3, heads=6, shared=2, head=12, turned=8, cached=131, mask="float"),
        Sizes(heads=3, shared=3, head=20, turned=0, cached=5, mask="none"),
        Sizes(heads=8, shared=1, head=64, turned=64, cached=513),
        Sizes(batches=2, heads=2, shared=2, head=8, turned=8, rows_first=True, puts=True),
        Sizes(heads=5, shared=5, head=128, turned=40, cached=70, mask="float", puts=True),
        Sizes(heads=6, shared=2, cached=131, neighbours=True),
        Sizes(batches=3, heads=4, shared=4, head=24, turned=12, cached=7, mask="none", neighbours=True),
        Sizes(batches=2, heads=2, shared=2, head=8, turned=8, rows_first=True, puts=True, neighbours=True),
    ],
    ids=str,
)
def test_tokens(device: Device, road: str, sizes: Sizes) -> None:
    runner, exact = runner_of(device, Layer(sizes), sizes), Layer(sizes).double().requires_grad_(False)
    try:
        for place in (0, sizes.cached - 1, 3, 3, 2):
            x, where = of_step(sizes, place)
            assert is_close(runner(x, where), exact(x.double(), where)), place
            for name in ("keys", "values"):
                assert is_close(cache_of(runner, name), getattr(exact, name)), (place, name)
        before = [cache_of(runner, name) for name in ("keys", "values")]
        shaders = shaders_of(runner, (x, where))
        assert shaders.count(CACHED) == 1 and not any(name.startswith("rotary") for name in shaders), shaders
        assert all(map(torch.equal, before, (cache_of(runner, name) for name in ("keys", "values"))))
    finally:
        runner.close()


@pytest.mark.parametrize("puts", [False, True])
def test_a_row_that_there_is_not(device: Device, road: str, puts: bool) -> None:
    """Nothing is left of the call, and the next one goes on; places may count from the end by ``keys[:, :, place]``."""
    sizes = Sizes(turned=0, mask="none", puts=puts)
    runner, exact = runner_of(device, Layer(sizes), sizes), Layer(sizes).double().requires_grad_(False)
    try:
        x, where = of_step(sizes, 4)
        assert is_close(runner(x, where), exact(x.double(), where))
        before = [cache_of(runner, name) for name in ("keys", "values")]
        for place in (sizes.cached, -sizes.cached - 1, *([] if puts else [-1])):
            with pytest.raises(MoboptError, match="index"):
                runner(x, torch.tensor([place]))
            assert all(map(torch.equal, before, (cache_of(runner, name) for name in ("keys", "values"))))
        where = torch.tensor([-2 if puts else 5])
        assert is_close(runner(x, where), exact(x.double(), where))
        assert CACHED in shaders_of(runner, (x, where))
    finally:
        runner.close()


@pytest.mark.parametrize("keys_wrap", [False, True])
def test_a_place_that_one_of_two_refuses(device: Device, road: str, keys_wrap: bool) -> None:
    """``index_copy_`` takes no places from the end, and the cache beside it isn't written either."""

    class Mixed(Layer):
        def put(self, cache: Tensor, place: Tensor, row: Tensor, wraps: bool) -> None:
            super().put(cache, place, row, wraps=keys_wrap == (cache is self.keys))

    sizes = Sizes(turned=0, mask="none")
    runner, exact = runner_of(device, Mixed(sizes), sizes), Mixed(sizes).double().requires_grad_(False)
    try:
        x, where = of_step(sizes, 4)
        assert is_close(runner(x, where), exact(x.double(), where))
        before = [cache_of(runner, name) for name in ("keys", "values")]
        with pytest.raises(MoboptError, match="index"):
            runner(x, torch.tensor([-1]))
        assert all(map(torch.equal, before, (cache_of(runner, name) for name in ("keys", "values"))))
        assert CACHED in shaders_of(runner, (x, where))
    finally:
        runner.close()


def test_what_is_written_over_comes_back(device: Device, road: str) -> None:
    """A later step of the call fails, when the rows have been written."""

    class Failing(Layer):
        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            return super().forward(x, place) + self.numbers.index_select(0, place * 7)

    sizes = Sizes(batches=2, turned=8)
    runner, exact = runner_of(device, Failing(sizes), sizes), Failing(sizes).double().requires_grad_(False)
    try:
        x, where = of_step(sizes, 9)
        before = [getattr(exact, name).clone() for name in ("keys", "values")]
        with pytest.raises(MoboptError, match="index"):
            runner(x, torch.tensor([10]))
        assert all(map(is_close, (cache_of(runner, name) for name in ("keys", "values")), before, (0.0, 0.0)))
        assert is_close(runner(x, where), exact(x.double(), where))
        assert CACHED in shaders_of(runner, (x, where))
    finally:
        runner.close()


def test_halves(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(device, monkeypatch)
    sizes = Sizes(heads=6, shared=3, head=32, turned=32)
    runner = runner_of(device, Layer(sizes), sizes, precision=PrecisionChoice.of("fp16"))
    exact = Layer(sizes).double().requires_grad_(False)
    try:
        for place in (0, 5, 66):
            x, where = of_step(sizes, place)
            assert is_close(runner(x, where), exact(x.double(), where), 3e-3)
        assert CACHED in shaders_of(runner, (x, where))
    finally:
        runner.close()


def test_what_a_profile_says(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(device, monkeypatch)
    sizes = Sizes()
    runner = runner_of(device, Layer(sizes), sizes)
    try:
        steps = [item.operation for item in runner.profile(of_step(sizes, 3))]
        (step,) = [step for step in steps if isinstance(step, Dispatch) and step.shader == CACHED]
        operators = {node.text.partition(" ")[0] for node in step.source.nodes}
        assert {"aten::index_copy_", "aten::scaled_dot_product_attention", "aten::cat"} <= operators
        assert step.call.flops >= 4 * sizes.heads * sizes.cached * sizes.head
    finally:
        runner.close()


class ReadBefore(Layer):
    """The keys are read before attention, by what it waits for."""

    def seen(self, place: Tensor) -> Tensor | None:
        return self.keys.sum((-1, 1)).unsqueeze(1).unsqueeze(1) > -1e9


class OtherTables(Layer):
    """Queries are turned by other numbers than keys."""

    def turn(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        return super().turn(x, tables if x.size(1) == self.sizes.shared else (tables[1], tables[0]))


class TurnedValues(Layer):
    """Values are turned, too."""

    def rows(self, layer: nn.Module, x: Tensor, tables: tuple[Tensor, Tensor] | None = None) -> Tensor:
        return super().rows(layer, x, self.place_tables if layer is self.v else tables)

    def tables(self, place: Tensor) -> tuple[Tensor, Tensor]:
        self.place_tables = super().tables(place)
        return self.place_tables


@pytest.mark.parametrize(
    ("layer", "sizes", "switch"),
    [
        (Layer, Sizes(heads=9, shared=1), ""),  # too many share keys
        (Layer, Sizes(heads=2, shared=1, head=132, turned=0), ""),  # too long
        (Layer, Sizes(head=18, turned=0), ""),  # no whole vec4s
        (Layer, Sizes(), "no-writes-in-place"),
        (Layer, Sizes(), NO_CACHED_ATTENTION),
        (ReadBefore, Sizes(mask="else"), ""),
        (OtherTables, Sizes(), ""),
        (TurnedValues, Sizes(), ""),
    ],
)
def test_what_stays_apart(
    device: Device, monkeypatch: pytest.MonkeyPatch, layer: type[Layer], sizes: Sizes, switch: str
) -> None:
    on_a_gpu(device, monkeypatch, *filter(None, [switch]))
    runner, exact = runner_of(device, layer(sizes), sizes), layer(sizes).double().requires_grad_(False)
    try:
        for place in (3, 60):
            x, where = of_step(sizes, place)
            assert is_close(runner(x, where), exact(x.double(), where))
        assert CACHED not in shaders_of(runner, (x, where))
    finally:
        runner.close()


def test_cpus_put_rows_before(device: Device) -> None:
    sizes = Sizes()
    runner, exact = runner_of(device, Layer(sizes), sizes), Layer(sizes).double().requires_grad_(False)
    try:
        x, where = of_step(sizes, 3)
        assert is_close(runner(x, where), exact(x.double(), where))
        assert not device.info.is_cpu or CACHED not in shaders_of(runner, (x, where))
    finally:
        runner.close()
