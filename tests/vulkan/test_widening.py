"""Models in halves as float32 programs that lie as halves: as text, in numbers beside float64 and eager, and what keeps
its own dtype."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from applied import Applied
from device_infos import known_device
from straight_lines import line_of
from test_half_precision import seeded
from torch import Tensor, nn
from torch.nn import functional

import mobopt
from mobopt.errors import MoboptError
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.ir.types import TensorType
from mobopt.options import PrecisionChoice
from mobopt.runtimes.segment import Returned, Segment
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.precision import DECLARED
from mobopt.runtimes.vulkan.compile.widening import HALVES_BY_OPERATOR, declared_dtype, widen_halves
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.program import VulkanProgram

HALVES = (torch.float16, torch.bfloat16)
PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def floats(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes) + seed))


# As text.

W = floats(7, 5).half()


def widened(*lines: str, returned: str, given: str = "%x : Half(3, 5)", **tensors: Tensor) -> Segment:
    graph = line_of(lines, {"w": W, **tensors}, given, returned)
    for value in {value for node in graph.block.nodes for value in node.inputs if value.is_constant}:
        value.type = TensorType(value.constant.dtype, value.sizes)  # the text has them as float32
    segment = Segment(graph, [Returned(number) for number in range(len(graph.outputs))])
    widen_halves(segment)
    verify_graph(graph)
    return segment


def text_of(graph: Graph) -> str:
    text = print_graph(graph, digests=False)
    return "".join(f"{line}\n" for line in text.splitlines() if "prim::Constant" not in line)


def expect(text: str) -> str:
    return textwrap.dedent(text)


LINEAR = "%y : Half(3, 7) = aten::linear(%x, %w, None)"
ANGLES = ("%a : Float(3, 7) = aten::to.dtype(%y, 6, False, False, None)", "%s : Float(3, 7) = aten::sin(%a)")
ROUNDED = "%h : Half(3, 7) = aten::to.dtype(%s, 5, False, False, None)"


def test_the_text() -> None:
    """Dtypes are float32, in arguments too, and each value has the model's as a fact."""
    segment = widened(LINEAR, *ANGLES, ROUNDED, "%z : Half(3, 7) = aten::mul.Tensor(%y, %h)", returned="%z")
    assert text_of(segment.graph) == expect(
        """\
        graph(%x : Float(3, 5) float16[?]):
          %y : Float(3, 7) float16[?] = aten::linear(%x, %w, None)
          %a : Float(3, 7) float32[?] = aten::to.dtype(%y, 6, False, False, None)
          %s : Float(3, 7) float16[?] = aten::sin(%a)
          %h : Float(3, 7) float16[?] = aten::to.dtype(%s, 6, False, False, None)
          %z : Float(3, 7) float16[?] = aten::mul.Tensor(%y, %h)
          return (%z)
        """
    )
    assert segment.declared is not None
    assert segment.declared.inputs == (torch.float16,) == segment.declared.outputs
    assert segment.declared_halves == {segment.inputs[0]: torch.float16, segment.graph.outputs[0]: torch.float16}


def test_it_is_done_once() -> None:
    segment = widened(LINEAR, returned="%y")
    text, declared = text_of(segment.graph), segment.declared
    widen_halves(segment)
    assert (text_of(segment.graph), segment.declared) == (text, declared)


def test_float32_that_is_read_stays_float32() -> None:
    """Sines are read before they are rounded, so they lie as float32; what is rounded reads them."""
    mean = "%m : Float(3) = aten::mean.dim(%s, [1], False, None)"
    segment = widened(LINEAR, *ANGLES, ROUNDED, mean, returned="%h, %m")
    dtypes = {value.name: declared_dtype(value) for node in segment.graph.block.nodes for value in node.outputs}
    assert (dtypes["s"], dtypes["h"], dtypes["m"]) == (torch.float32, torch.float16, torch.float32)


def test_a_result_that_the_caller_gets_in_float32_is_not_rounded() -> None:
    (node, _) = widened(LINEAR, ANGLES[0], returned="%a").graph.block.nodes
    assert declared_dtype(node.output) == torch.float32
    (node, _) = widened(LINEAR, ANGLES[0], returned="%a, %y").graph.block.nodes
    assert declared_dtype(node.output) == torch.float16


def test_what_keeps_its_halves() -> None:
    bits = "%i : Short(3, 7) = aten::view.dtype(%y, 2)"
    back = "%n : Half(3, 7) = aten::nextafter(%y, %y)"
    segment = widened(LINEAR, bits, back, "%z : Half(3, 7) = aten::relu(%n)", returned="%i, %z")
    assert text_of(segment.graph) == expect(
        """\
        graph(%x : Float(3, 5) float16[?]):
          %y : Float(3, 7) float16[?] = aten::linear(%x, %w, None)
          %0 : Half(3, 7) = aten::to.dtype(%y, torch.float16, False, False, None)
          %i : Short(3, 7) = aten::view.dtype(%0, 2)
          %1 : Half(3, 7) = aten::to.dtype(%y, torch.float16, False, False, None)
          %2 : Half(3, 7) = aten::to.dtype(%y, torch.float16, False, False, None)
          %n : Half(3, 7) = aten::nextafter(%1, %2)
          %3 : Float(3, 7) float16[?] = aten::to.dtype(%n, torch.float32, False, False, None)
          %z : Float(3, 7) float16[?] = aten::relu(%3)
          return (%i, %z)
        """
    )


def test_what_decides_reads_what_halves_hold() -> None:
    """A product that overflows in half precision is infinite to ``isinf``."""
    large = "%l : Half(3, 7) = aten::mul.Tensor(%y, %y)"
    segment = widened(LINEAR, large, "%i : Bool(3, 7) = aten::isinf(%l)", returned="%i")
    assert [node.qualified_op for node in segment.graph.block.nodes][2:] == [
        *["aten::to.dtype"] * 2,
        "aten::isinf",
    ]


@pytest.mark.parametrize("lines", [["%y : Half(3, 5) = aten::mul.Tensor(%x, %x)"], []])
def test_lines_without_layers_of_halves_stay_as_they_are(lines: list[str]) -> None:
    """Operators by themselves are rounded one by one, as by torch."""
    given = "%x : Half(3, 5), %v : Float(3, 5), %u : Float(7, 5)"
    layer = "%z : Float(3, 7) = aten::linear(%v, %u, None)"
    segment = widened(*lines, layer, returned="%z", given=given)
    assert segment.declared is None
    assert all(value.facts.known_dtype is None for value in segment.inputs)


def test_large_weights_stay_halves_on_the_host() -> None:
    large, vector = floats(64, 65).half(), floats(64).half()
    lines = ["%y : Half(3, 64) = aten::linear(%x, %big, %b)", "%z : Half(3, 64) = aten::mul.Tensor(%y, %b)"]
    graph = widened(*lines, returned="%z", given="%x : Half(3, 65)", big=large, b=vector).graph
    first = graph.block.nodes.first
    assert first is not None
    _, weight, bias = first.inputs
    assert (weight.dtype, weight.constant.dtype) == (torch.float32, torch.float16)
    assert weight.constant is large
    assert (bias.dtype, bias.constant.dtype) == (torch.float32, torch.float32)
    assert torch.equal(weight.typed_elements, large.float())


# In numbers.


class Normalized(nn.Module):
    """Root-mean-square norms in float32, as in Llama and its kin."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Decoder(nn.Module):
    """A layer of a decoder: rotations by angles that are computed in float32, attention in steps, gates."""

    def __init__(self, size: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.each = heads, size // heads
        self.first, self.second = Normalized(size), Normalized(size)
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.out, self.up = nn.Linear(size, size, bias=False), nn.Linear(size, 2 * size, bias=False)
        self.gate, self.down = nn.Linear(size, 2 * size, bias=False), nn.Linear(2 * size, size, bias=False)
        powers = torch.arange(0, self.each, 2).float() / self.each
        self.register_buffer("frequencies", 1 / 1e4**powers, persistent=False)

    def _turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(1000, 1000 + x.shape[2]).float()[:, None] * self.frequencies.float()[None]
        angles = torch.cat([angles, angles], -1)
        half = self.each // 2
        moved = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angles.cos().to(x.dtype) + moved * angles.sin().to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, C) to the same."""
        batch, count, size = x.shape
        normed = self.first(x)
        parts = [part(normed).view(batch, count, self.heads, self.each) for part in (self.query, self.key, self.value)]
        query, key, value = (part.transpose(1, 2) for part in parts)
        scores = self._turned(query) @ self._turned(key).transpose(2, 3) * self.each**-0.5
        shares = scores.softmax(-1, dtype=torch.float32).to(x.dtype)
        x = x + self.out((shares @ value).transpose(1, 2).reshape(batch, count, size))
        normed = self.second(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 13, 3, 2, 1), nn.BatchNorm2d(13)
        self.depthwise, self.group = nn.Conv2d(13, 13, 3, 1, 1, groups=13), nn.GroupNorm(1, 13)
        self.last = nn.Linear(13, 7)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, 7)."""
        x = functional.relu6(self.norm(self.first(x)))
        x = x + functional.hardswish(self.group(self.depthwise(x)))
        return self.last(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(11, 17, batch_first=True), nn.Linear(17, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, (hidden, _) = self.layer(x)
        return self.last(states), hidden


NETS = {
    "decoder": (Decoder, (2, 7, 48)),
    "images": (Images, (2, 3, 19, 23)),
    "recurrent": (Recurrent, (2, 5, 11)),
}


def tensors_of(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def check(found: Any, module: nn.Module, *args: Tensor) -> None:
    """Dtypes are eager's, and the numbers as close to float64 as eager's, but for another rounding of the results."""
    with torch.no_grad():
        eager = tensors_of(module(*args))
        exact = tensors_of(copy.deepcopy(module).double()(*(x.double() if x.is_floating_point() else x for x in args)))
    for ours, theirs, right in zip(tensors_of(found), eager, exact, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = right.abs().max()
        rounding = torch.finfo(theirs.dtype).eps if theirs.is_floating_point() else 0
        assert (ours.double() - right).abs().max() <= 1.5 * (theirs.double() - right).abs().max() + rounding * scale


def traced(module: nn.Module, *args: Tensor) -> Any:
    return program_from_script_module(torch.jit.trace(module, args, check_trace=False))  # type: ignore[no-untyped-call]


def exported(module: nn.Module, *args: Tensor, **options: Any) -> Any:
    return ExportedProgramSource(torch.export.export(module, args, **options)).program


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_numbers_and_dispatches(any_device: Device, name: str, dtype: torch.dtype) -> None:
    kind, sizes = NETS[name]
    module, x = seeded(kind()).to(dtype), floats(*sizes).to(dtype)
    program = VulkanProgram(traced(module, x), any_device, fallback="error")
    for _ in range(2):
        check(program(x), module, x)
    report = program.plan_report([x])
    wide = traced(copy.deepcopy(module).float(), x.float())
    single = VulkanProgram(wide, any_device, fallback="error", precision=PrecisionChoice(PRECISIONS[dtype]))
    single(x.float())
    rounding = int(name == "recurrent")  # of the last state, which its kernel leaves in float32
    assert report.dispatches <= single.plan_report([x.float()]).dispatches + rounding
    assert report.halves is not None
    assert report.halves.precision == PRECISIONS[dtype]
    program.close()
    single.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_same_layers_are_found_as_in_float32(dtype: torch.dtype) -> None:
    known = known_device("nvidia_h200")

    def shaders(module: nn.Module, x: Tensor) -> list[str]:
        built = build_stream(specialize(exported(module, x), "forward", [x]), known, ConstantStore())
        return [each.shader for each in built.stream.operations if isinstance(each, Dispatch)]

    module, x = seeded(Decoder(128)), floats(2, 31, 128)
    wide, narrow = shaders(module, x), shaders(module.to(dtype), x.to(dtype))
    assert len(narrow) == len(wide)
    matrix = {torch.float16: "attention_matrix", torch.bfloat16: "attention_matrix_bfloat"}[dtype]
    assert [name for name in wide if "attention" in name] == ["attention"]
    assert [name for name in narrow if "attention" in name] == [matrix]
    assert "rotary" in narrow


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_other_sizes(device: Device, dtype: torch.dtype) -> None:
    """Also those that are replayed from what was lowered for all sizes."""
    module, x = seeded(Decoder()).to(dtype), floats(2, 7, 48).to(dtype)
    count = torch.export.Dim("count", min=2, max=64)
    program = VulkanProgram(exported(module, x, dynamic_shapes={"x": {1: count}}), device, fallback="error")
    for length in (7, 13, 29, 31, 37):
        given = floats(2, length, 48).to(dtype)
        check(program(given), module, given)
    program.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_that_is_asked_for(device: Device, dtype: torch.dtype, precision: str) -> None:
    """Whatever halves the model has, those of the precision lie in memory; inputs and results are the model's."""
    module, x = seeded(Decoder()).to(dtype), floats(2, 7, 48).to(dtype)
    wide = copy.deepcopy(module).float()
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(x.double())
    losses = []
    for net, given in ((module, x), (wide, x.float())):
        choice = PrecisionChoice(precision)
        program = VulkanProgram(exported(net, given), device, fallback="error", precision=choice)
        found = program(given)
        report = program.plan_report([given]).halves
        assert report is not None
        assert (found.dtype, report.precision) == (given.dtype, precision)
        losses.append(float((found.double() - exact).abs().max()))
        program.close()
    assert losses[0] <= 1.5 * losses[1] + torch.finfo(dtype).eps * float(exact.abs().max())


def test_angles_are_not_rounded(device: Device) -> None:
    """Positions of some thousand, whose products with frequencies would be off by several radians in bfloat16."""

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(9, 9)

        def forward(self, x: Tensor, places: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
            angles = places[:, None].float() * frequencies[None]
            return self.layer(x) * angles.cos().to(x.dtype), angles.sum(-1)

    module = seeded(Angles()).bfloat16()
    given = floats(5, 9).bfloat16(), torch.arange(4001, 4006), torch.rand(9, generator=torch.Generator().manual_seed(1))
    program = VulkanProgram(exported(module, *given), device, fallback="error")
    found, angles = program(*given)
    expected, exact = module(*given)
    torch.testing.assert_close(angles, exact, rtol=1e-6, atol=1e-6)
    report = program.plan_report(given).halves
    assert report is not None
    assert {node.reason for node in report.kept} == {DECLARED}
    assert not report.pinned
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    program.close()


def test_overflows_are_seen(device: Device) -> None:
    """As in models that clamp where half precision has overflowed."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.linear(x, w)
        large = y * 40.0
        return torch.isinf(large), torch.where(torch.isinf(large), torch.full_like(large, 7.0), large)

    x, w = (floats(5, 11) * 60).half(), (floats(13, 11, seed=1) * 8).half()
    program = VulkanProgram(traced(Applied(function), x, w), device, fallback="error")
    found, expected = program(x, w), function(x, w)
    assert expected[0].any()
    assert not expected[0].all()
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=2e-3, atol=0)
    program.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_by_operator_halves_are_rounded_as_by_torch(
    device: Device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """To the last bit, where products are sums of few exact numbers; else they are closer to float64."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = functional.linear(x, w)
        return (y * 1.37 + x[:, :1]) * (y - 0.3)

    x, w = (torch.randint(-4, 5, sizes, generator=torch.Generator().manual_seed(2)) for sizes in ((9, 8), (8, 8)))
    x, w = x.to(dtype), w.to(dtype)
    exact = function(x.double(), w.double())

    def result() -> Tensor:
        program = VulkanProgram(traced(Applied(function), x, w), device, fallback="error")
        found: Tensor = program(x, w)
        program.close()
        return found

    wide = result()
    switches = device.info.switches | {HALVES_BY_OPERATOR}
    monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    assert torch.equal(result(), function(x, w))
    assert (wide.double() - exact).abs().mean() < 0.9 * (function(x, w).double() - exact).abs().mean()


def of_two_halves(x: Tensor, w: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    y = functional.linear(x, w)
    mixed = y + other
    return y.relu(), mixed, other * 2, (y.float() + 1).to(other.dtype), w.t()


def test_both_types_of_halves_in_one_model(device: Device) -> None:
    args = floats(5, 11).half(), floats(13, 11).half(), floats(13).bfloat16()
    program = VulkanProgram(traced(Applied(of_two_halves), *args), device, fallback="error")
    for found, expected in zip(program(*args), of_two_halves(*args), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)
    program.close()


class Host(nn.Module):
    """A layer, and operators without kernels before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(11, 13)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        complex_numbers = torch.fft.fft(x.float()).real.to(x.dtype)
        y = self.layer(x + complex_numbers * 0.1)
        return y, y.double().mean(-1), torch.geqrf(y.float())[0].to(x.dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_runs_on_the_cpu(device: Device, dtype: torch.dtype) -> None:
    module, x = seeded(Host()).to(dtype), floats(5, 11).to(dtype)
    program = VulkanProgram(exported(module, x), device)
    found, expected = program(x), module(x)
    assert program.plan_report([x]).fallbacks
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    program.close()


def test_what_no_buffer_holds(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and results that stay on the host are halves there, as the caller gives and takes them."""
    limits = replace(device.info.limits, max_storage_buffer_range=4096)
    monkeypatch.setattr(device, "info", replace(device.info, limits=limits))

    def function(x: Tensor, w: Tensor, large: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = functional.linear(x, w)
        return y, large + y.sum(), large * 2

    args = floats(5, 11).half(), floats(13, 11).half(), floats(2500).half()
    program = VulkanProgram(traced(Applied(function), *args), device)
    for found, expected in zip(program(*args), function(*args), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)
    program.close()


class Cached(nn.Module):
    """Keys and values of a decoder, as its state."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(24, 24, dtype=dtype), nn.Linear(24, 24, dtype=dtype)
        for name in ("key_cache", "value_cache"):
            self.register_buffer(name, torch.zeros(1, 3, 11, 8, dtype=dtype))
        self.register_buffer("table", torch.zeros(5, dtype=dtype))

    def forward(self, x: Tensor, place: Tensor, other: Tensor) -> Tensor:
        """(1, 24), a place, and an index of five, to (1, 3, 1, 8)."""
        self.key_cache.index_copy_(2, place, self.keys(x).view(1, 3, 1, 8))
        self.value_cache.index_copy_(2, place, self.values(x).view(1, 3, 1, 8))
        seen = functional.scaled_dot_product_attention(x.view(1, 3, 1, 8), self.key_cache, self.value_cache)
        return seen + self.table.index_select(0, other)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("is_discrete", [False, True])
def test_caches_of_the_state(
    device: Device, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, is_discrete: bool
) -> None:
    if is_discrete:
        monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    module = seeded(Cached(dtype))
    program = VulkanProgram(program_from_script_module(torch.jit.script(module)), device, fallback="error")
    with torch.no_grad():
        for number in (0, 1, 2, 7, 2, 3):
            x, place = floats(1, 24, seed=number).to(dtype), torch.tensor([number])
            found, expected = program(x, place, torch.tensor([4])), module(x, place, torch.tensor([4]))
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
            with pytest.raises(MoboptError):  # what it has written over by then is put back
                program(-x * 7, torch.tensor([1]), torch.tensor([5]))
    program.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_arrays_on_the_device(device: Device, dtype: torch.dtype) -> None:
    module, x = seeded(Decoder()).to(dtype), floats(2, 7, 48).to(dtype)
    program = VulkanProgram(exported(module, x), device, fallback="error")
    array = program.run_on_device("forward", [x])
    assert array.dtype == dtype
    again = program.run_on_device("forward", [array])
    with torch.no_grad():
        expected = module(module(x))
    torch.testing.assert_close(again.tensor(), expected, rtol=0.05, atol=0.05)
    program.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_model_as_its_users_have_it(dtype: torch.dtype) -> None:
    """Through the drop-in face, with what it finds out about the loss on the way."""
    module, x = seeded(Images()).to(dtype), floats(2, 3, 19, 23).to(dtype)
    script = torch.jit.trace(module, x)  # type: ignore[no-untyped-call]
    optimized = mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x])
    check(optimized(x), module, x)
    assert f"nodes {PRECISIONS[dtype]}" in str(optimized.plan_report(x))


def functions_of_halves(x: Tensor, w: Tensor) -> Sequence[Tensor]:
    """Outputs of every kind: views, constants, inputs, the same twice, integers, float32."""
    y = functional.linear(x, w)
    return (
        y,
        y.t(),
        x,
        torch.ones(3, dtype=x.dtype),
        y.argmax(1),
        y.float(),
        x.t(),
        y > 0,
        y.sum(0, dtype=torch.float32),
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_outputs_of_every_kind(any_device: Device, dtype: torch.dtype) -> None:
    args = floats(5, 11).to(dtype), floats(13, 11).to(dtype)
    program = VulkanProgram(traced(Applied(functions_of_halves), *args), any_device, fallback="error")
    tolerance = 4 * torch.finfo(dtype).eps
    for found, expected in zip(program(*args), functions_of_halves(*args), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 8)
    program.close()
