"""``precision="fp16"`` and ``"bf16"`` on a device: what lies as halves, what stays float32 and why, what it costs."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional

import mobopt
from mobopt.commands import main
from mobopt.errors import InputError, UnsupportedError
from mobopt.runtimes.vulkan.compile.precision import DIVIDES, HalfReport
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.balanced_rounding import balanced_halves
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies

LOSS = 2e-3
"""Of a few layers, over the output's scale: each rounding is at most 4.9e-4 of its element."""
LOSSES = {"fp16": LOSS, "bf16": 8 * LOSS}


def seeded(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(parameter[0].numel(), 1) ** 0.5)
    return module.eval()


def numbers(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(5))


def halved(module: nn.Module, x: torch.Tensor, **options: object) -> mobopt.MobileModule:
    return mobopt.optimize_for_mobile(
        torch.jit.script(module),
        backend="vulkan",
        runtime="mobopt",
        example_inputs=[x],
        **{"precision": "fp16", **options},  # type: ignore[arg-type]
    )


def check(module: nn.Module, x: torch.Tensor, loss: float = LOSS, **options: object) -> HalfReport:
    """The report, once the result agrees with eager's within ``loss`` of its scale."""
    with torch.no_grad():
        expected = module(x)
    fast = halved(module, x, **options)
    found = fast(x)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert float((found - expected).abs().max()) <= loss * float(expected.abs().max())
    report = fast.plan_report(x).halves
    assert report is not None
    return report


class Convolutions(nn.Module):
    """Plain, depthwise, strided and transposed, with a residual and a concatenation of channels; odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 20, 3, padding=1)
        self.depthwise = nn.Conv2d(20, 20, 5, padding=2, groups=20)
        self.grouped = nn.Conv2d(20, 20, 1, groups=5)
        self.up = nn.ConvTranspose2d(40, 7, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = self.depthwise(x) + x
        return self.up(torch.cat([y, torch.tanh(self.grouped(y))], 1)) * 2.0


class Encoder(nn.Module):
    """A layer of a transformer, with its softmax written out, and weights that aren't those of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(30)
        self.attention = nn.Linear(30, 90)
        self.out = nn.Linear(30, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(self.norm(x)).view(2, 11, 3, 5, 6).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 6**0.5, -1) * 0.9
        return x + self.out((weights @ v).transpose(1, 2).reshape(2, 11, 30))


@pytest.mark.parametrize("precision", LOSSES)
@pytest.mark.parametrize("sizes", [(1, 3, 17, 19), (2, 3, 9, 5), (1, 3, 1, 7)])
def test_convolutions(sizes: tuple[int, ...], precision: str) -> None:
    report = check(seeded(Convolutions()), numbers(*sizes), LOSSES[precision], precision=precision)
    assert str(report).startswith(f"{report.halves} nodes {precision}, ")
    assert report.halves >= 4 and not report.pinned
    assert report.weight_bytes < 0.6 * report.weight_bytes_fp32
    assert report.result_bytes < 0.85 * report.result_bytes_fp32


@pytest.mark.parametrize("precision", LOSSES)
def test_an_encoder_keeps_what_softmax_reads(precision: str) -> None:
    report = check(seeded(Encoder()), numbers(2, 11, 30), LOSSES[precision], precision=precision)
    assert report.halves >= 4
    assert any("delicate operator reads it" in node.reason for node in report.kept), report.kept


def test_bytes_of_all_results_are_halved_but_those_of_the_border(device: Device) -> None:
    layers = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(5)))
    x = numbers(1, 16, 33, 31)
    report = check(seeded(layers), x)
    image = 16 * 33 * 31 * 4
    assert (report.halves, len(report.kept)) == (4, 1)
    # Units read a copy of the caller's image, and both are rounded.
    of_units = int(multiplies(device.info, torch.float16))
    assert report.result_bytes - report.result_bytes_fp32 == -(4 + 2 * of_units) * image // 2


@pytest.mark.parametrize(("channels", "scale", "by_units"), [(16, 1.0, 3), (3, 1.0, 3), (3, 1e5, 2), (3, 1e-5, 2)])
def test_products_of_halves_are_computed_by_matrix_units(
    device: Device, monkeypatch: pytest.MonkeyPatch, channels: int, scale: float, by_units: int
) -> None:
    """Emulated ones, which are always chosen; the first layer rounds the float32 input if float16 holds it."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"emulated-matrix-units"})))
    first = nn.Conv2d(channels, 24, 3, padding=1)
    module = seeded(nn.Sequential(first, nn.ReLU(), nn.Conv2d(24, 40, 3, stride=2), nn.Conv2d(40, 7, 1)))
    with torch.no_grad():
        first.weight *= min(max(1 / scale, 0.01), 100)
    report = check(module, numbers(2, channels, 13, 11) * scale)
    assert (report.products, report.matrix_products) == (3, by_units)
    assert f"{by_units} of 3 products by matrix units" in str(report)


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_products_of_bfloat16_are_computed_by_matrix_units(device: Device, monkeypatch, scale: float) -> None:
    """Whatever the magnitudes of an image are, which is rounded."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"emulated-matrix-units"})))
    module = seeded(nn.Sequential(nn.Conv2d(5, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 7, 1, bias=False)))
    with torch.no_grad():
        module[0].bias.mul_(scale)  # type: ignore[union-attr, operator]
    report = check(module, numbers(2, 5, 13, 11) * scale, LOSSES["bf16"], precision="bf16")
    assert (report.products, report.matrix_products) == (2, 2)


@pytest.mark.parametrize(("precision", "half"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_weights_and_results_between_layers_are_rounded_and_nothing_else(precision: str, half: torch.dtype) -> None:
    first, second = nn.Conv2d(5, 40, 3, bias=False), nn.Conv2d(40, 7, 3, bias=False)
    module, x = seeded(nn.Sequential(first, nn.Tanh(), second)), numbers(1, 5, 11, 13)
    x = x.to(half).float()  # as matrix units, if there are any, take it
    filters = [layer.weight.detach() for layer in (first, second)]
    weights = [balanced_halves(each.flatten(1), half).float().reshape(each.shape) for each in filters]
    between = torch.tanh(nn.functional.conv2d(x, weights[0])).to(half).float()
    expected = nn.functional.conv2d(between, weights[1])
    found = halved(module, x, precision=precision)(x)
    # Sums in another order may round the values between to the neighbour, one in a thousand.
    assert (found - expected).abs().max() < 0.1 * torch.finfo(half).eps * expected.abs().max()
    assert (found - module(x)).abs().max() > 0.2 * torch.finfo(half).eps * expected.abs().max()


class Cached(nn.Module):
    """Attention that returns its keys, which a cache keeps in float32."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.factor = nn.Linear(16, 48), factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.first(x).view(2, 19, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        k = k * self.factor
        return nn.functional.scaled_dot_product_attention(q, k, v), k


@pytest.mark.parametrize(("precision", "factor", "by_units"), [("fp16", 0.5, 1), ("fp16", 1e5, 0), ("bf16", 0.5, 1)])
def test_attention_rounds_what_only_the_caller_keeps_in_float32(
    device: Device, monkeypatch: pytest.MonkeyPatch, precision: str, factor: float, by_units: int
) -> None:
    """Keys that are too large for halves stay what they are."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset({"emulated-matrix-units"})))
    model, x = seeded(Cached(factor)), numbers(2, 19, 16)
    with torch.no_grad():
        expected, keys = model(x)
    fast, loss = halved(model, x, precision=precision), LOSSES[precision]
    found, found_keys = fast(x)
    assert float((found - expected).abs().max()) <= (loss if by_units else 0.1) * float(expected.abs().max())
    assert found_keys.dtype == torch.float32
    assert float((found_keys - keys).abs().max()) <= loss * float(keys.abs().max())
    report = fast.plan_report(x).halves
    assert report is not None
    assert (report.products, report.matrix_products) == (2, by_units)


class Large(nn.Module):
    """Values that float16 can't hold, between layers that they can."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first = nn.Linear(13, 40)
        self.second = nn.Linear(40, 7)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.first(x) * self.factor, self.first(x)], 0)
        return self.second(y) / self.factor


@pytest.mark.parametrize(("factor", "words"), [(1e6, "float16 ends at 65504"), (1e-7, "few bits there")])
def test_what_overflows_or_vanishes_on_the_examples_stays_float32(factor: float, words: str) -> None:
    module = seeded(Large(factor))
    report = check(module, numbers(9, 13))
    assert any(words in node.reason for node in report.pinned)
    assert words in str(report)


class LinearAttention(nn.Module):
    """Attention by two products, each query divided by its sum: that of a query of zeros is the epsilon alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (x * 2).clone().relu(), (x + 1).relu(), functional.pad(x * 3, (0, 0, 0, 1), value=1.0)
        found = value @ key.transpose(1, 2) @ query
        return (found[:, :-1] / (found[:, -1:] + 1e-15) + 1) * 0.5


def test_what_divides_stays_float32() -> None:
    x = numbers(2, 7, 13)
    x[:, :, ::3] = -1
    report = check(LinearAttention(), x)
    assert any(node.reason == DIVIDES for node in report.kept)


@pytest.mark.parametrize("factor", [1e6, 1e30, 1e-7])
def test_bfloat16_holds_all_magnitudes(factor: float) -> None:
    report = check(seeded(Large(factor)), numbers(9, 13), LOSSES["bf16"], precision="bf16")
    assert not report.pinned and report.halves


def test_a_loaded_file_is_probed_on_its_first_call(tmp_path: Path) -> None:
    module, x = seeded(Large(1e6)), numbers(9, 13)
    torch.jit.script(module).save(str(tmp_path / "model.pt"))
    fast = mobopt.load(tmp_path / "model.pt", precision="fp16")
    expected = module(x).detach()
    torch.testing.assert_close(fast(x), expected, rtol=0, atol=LOSS * float(expected.abs().max()))
    report = fast.plan_report(x).halves
    assert report is not None and report.pinned


def test_the_files_stay_float32(tmp_path: Path) -> None:
    module, x = seeded(Convolutions()), numbers(1, 3, 8, 8)
    fast = halved(module, x)
    fast.save(tmp_path / "model.pt")
    again = mobopt.load(tmp_path / "model.pt")
    torch.testing.assert_close(again(x), module(x), rtol=1e-4, atol=1e-5)
    assert pickle.loads(pickle.dumps(fast)).precision == fast.precision


def test_patterns_name_nodes() -> None:
    module, x = seeded(Encoder()), numbers(2, 11, 30)
    report = check(module, x, fp32_nodes="*in attention*")
    assert any("linear" in node.op for node in report.pinned)
    assert all("'*in attention*' names it" in node.reason for node in report.pinned)
    every = check(module, x, loss=1e-5, fp32_nodes=["aten::*"])
    assert every.halves == 0 and every.weight_bytes == every.weight_bytes_fp32


class Delicate(nn.Module):
    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1.001
        if self.function == "sin":
            return (torch.sin(y.view(-1) * 100.0) + 1.0).view(3, 35)
        if self.function == "floor":
            return torch.floor(y * 100.0).transpose(0, 1).contiguous()
        if self.function == "index":
            return x[(y.argmax(1, keepdim=True) + torch.arange(3)) % 3]
        return y.cumsum(1).cumsum(1) - y.exp().log()


@pytest.mark.parametrize("function", ["sin", "floor", "index", "cumsum"])
def test_delicate_operators_get_and_give_float32(function: str) -> None:
    check(Delicate(function).eval(), numbers(3, 35) * 3, loss=1e-5)


def test_sizes_that_follow_and_state_keep_their_precision() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = nn.Buffer(torch.zeros(5))
            self.layer = nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x.sum(0))
            kept = x[x[:, 0] > 0]
            return self.layer(torch.relu(self.layer(kept))) + self.total

    module = seeded(Counter())
    fast = mobopt.MobileModule(
        mobopt.optimize_for_mobile(torch.jit.script(module), backend="vulkan", runtime="mobopt").program,
        precision=mobopt.options.PrecisionChoice.of("fp16"),
    )
    for rows in (7, 11, 3):
        x = numbers(rows, 5)
        expected = module(x).detach()
        torch.testing.assert_close(fast(x), expected, rtol=0, atol=LOSS * float(expected.abs().max()))


def test_a_loop_whose_last_turn_computes_nothing() -> None:
    """What it returns was carried from the turn before."""

    class Halving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1.0
            while float(y.abs().max()) > 0.2:
                y = y * 0.5
            return y

    x = numbers(7, 5)
    scripted = torch.jit.script(Halving())
    half = mobopt.optimize_for_mobile(
        scripted, backend="vulkan", precision="fp16", runtime="mobopt", example_inputs=[x]
    )
    expected = Halving()(x)
    torch.testing.assert_close(half(x), expected, rtol=0, atol=LOSS * float(expected.abs().max()))
    assert mobopt.compare(scripted, example_inputs=[x]).agrees


def test_ten_runs_are_bit_equal() -> None:
    module, x = seeded(Convolutions()), numbers(1, 3, 13, 11)
    fast = halved(module, x)
    first = fast(x)
    assert all(torch.equal(fast(x), first) for _ in range(10))


def test_what_is_refused() -> None:
    script = torch.jit.script(seeded(Encoder()))
    with pytest.raises(InputError, match="precision is 'fp8'; give 'fp32', 'fp16' or 'bf16'"):
        mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'\*decoder\*', which no node of the model matches"):
        mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", precision="fp16", fp32_nodes="*decoder*")
    with pytest.raises(InputError, match="give precision='fp16' or 'bf16' with it"):
        mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", fp32_nodes="aten::*")
    with pytest.raises(UnsupportedError, match="the module runs on the CPU"):
        mobopt.optimize_for_mobile(script, precision="fp16")


def test_the_command_says_what_lies_as_halves(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.script(seeded(Large(1e6))).save(str(path))
    command = ["run", str(path), "--random", "9,13", "--precision", "fp16"]
    text = CliRunner().invoke(main, command)
    assert text.exit_code == 0, text.output
    assert "nodes fp16" in text.output and "float16 ends at 65504" in text.output and "fp16 - fp32" in text.output
    data = json.loads(CliRunner().invoke(main, [*command, "--json", "--fp32-nodes", "aten::linear"]).stdout)
    assert data["halves"]["weight_bytes"] == data["halves"]["weight_bytes_fp32"]
    assert data["precision"]["relative"] < LOSS
    wide = CliRunner().invoke(main, [*command[:-1], "bf16"])
    assert wide.exit_code == 0 and "nodes bf16" in wide.output and "bf16 - fp32" in wide.output
    refused = CliRunner().invoke(main, [*command, "--fp32-nodes", "aten::none"])
    assert refused.exit_code == 2 and "no node of the model matches" in refused.output


def test_a_comparison_shows_what_halves_cost() -> None:
    script, x = torch.jit.script(seeded(Convolutions())), numbers(1, 3, 13, 11).half().float()
    by_layer = mobopt.compare(script, example_inputs=[x], precision="fp16")
    assert by_layer.agrees and by_layer.tolerance == 1e-2
    assert 1e-5 < max(layer.total.error for layer in by_layer.layers) < by_layer.tolerance / 4
    assert not mobopt.compare(script, example_inputs=[x], precision="fp16", tolerance=1e-5).agrees
    wide = mobopt.compare(script, example_inputs=[x], precision="bf16")
    assert wide.agrees and wide.tolerance == 8e-2 and "bf16" in wide.other
    assert mobopt.compare(script, example_inputs=[x], precision="fp16", tolerance=1e-5, fp32_nodes="*").agrees


class Patches(nn.Module):
    """Patches of an image, weighted and added up: torch takes unfold apart, and views what it has copied."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = nn.functional.unfold(x, 3, padding=1).view(2, 4, 9, 5, 7)
        return (patches * patches[:, :1]).sum(2)


def test_copies_that_are_left_out_are_no_matter_to_what_halves_are_seen_of() -> None:
    module, x = Patches(), numbers(2, 4, 5, 7)
    found, expected = halved(module, x)(x), module(x)
    assert (found - expected).abs().max() < 2e-3 * expected.abs().max()


@pytest.mark.parametrize("function", ["sigmoid", "silu", "gelu", "gelu_tanh"])
def test_activations_that_are_rounded_next_are_those_of_float32_but_for_rounding(function: str) -> None:
    functions = {
        "sigmoid": nn.Sigmoid(),
        "silu": nn.SiLU(),
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"),
    }
    width = 64

    # Halves times ones are summed exactly, so what is compared is the activation.
    first, last = nn.Linear(width, width), nn.Linear(width, width)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.copy_(torch.eye(width))
            layer.bias.zero_()
    model = nn.Sequential(first, functions[function], last).eval()
    x = torch.cat(
        [torch.linspace(-11, 11, 60 * width), torch.logspace(-3, 4, 2 * width), -torch.logspace(-3, 4, 2 * width)]
    )
    x = x.half().float().view(-1, width)
    expected = functions[function](x.double())
    found = halved(model, x)(x).double()
    # Half of the last place of a normal half, and of a subnormal one; the functions themselves may be off by 2^-15.
    allowed = expected.abs() * (2.0**-11 + 2.0**-15) + 2.0**-24
    worst = ((found - expected).abs() / allowed).max()
    assert worst <= 1, float(worst)
