"""Torch's quantised layers as floats that are rounded alike, beside torch's own kernels: all that are known."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from sampling import sampled
from torch import Tensor, nn

import mobopt
from mobopt.commands import main
from mobopt.errors import BundleError, MoboptError, UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import print_graph
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.quantized import DEQUANTIZE
from mobopt.ops.quantized_contexts import QuantizedConv2d, QuantizedLinear
from mobopt.ops.records import Trait, record_of
from mobopt.ops.records.layers import LAYERS
from mobopt.passes.expand_quantized import RULES
from mobopt.runtimes.cpu import Interpreter
from mobopt.tools.requirements import inspect_bundle

Q = torch.ops.quantized
SCALE, ZERO = 0.07, 121

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says of each of its functions here that it is deprecated


@contextmanager
def _on(engine: str) -> Iterator[None]:
    """Torch's setting for a while."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@pytest.fixture(params=["qnnpack", "x86"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What packs and computes in torch."""
    if request.param not in torch.backends.quantized.supported_engines:
        pytest.skip(f"this torch has no {request.param}")
    with _on(request.param):
        yield request.param


def quantized(x: Tensor, scale: float = 0.05, zero: int = 117) -> Tensor:
    return torch.quantize_per_tensor(x, scale, zero, torch.quint8)


class Calling(nn.Module):
    """A function between quantising and dequantising, with packed weights if there are some."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result = self.function(torch.quantize_per_tensor(x, 0.05, 117, torch.quint8))
        return result.dequantize()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda q: q,
    "relu": torch.relu,
    "relu6": lambda q: Q.relu6(q, False),
    "clamp": lambda q: torch.clamp(q, -0.33, 1.21),
    "hardtanh": lambda q: nn.functional.hardtanh(q, -0.5, 0.5),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": nn.functional.hardsigmoid,
    "max_pool2d": lambda q: nn.functional.max_pool2d(q, 3, 2, 1),
    "avg_pool2d": lambda q: nn.functional.avg_pool2d(q, 3, 2, 1),
    "adaptive_avg_pool2d": lambda q: nn.functional.adaptive_avg_pool2d(q, (3, 2)),
    "mean": lambda q: q.mean([2, 3]),
    "upsample_nearest": lambda q: nn.functional.interpolate(q, scale_factor=2.0),
    "upsample_bilinear": lambda q: nn.functional.interpolate(q, (13, 11), mode="bilinear", align_corners=False),
    "views": lambda q: q.permute(0, 2, 3, 1).reshape(2, -1)[:, 3:].unsqueeze(0).contiguous(),
    "chunks": lambda q: Q.cat(list(q.chunk(2, 1)), 2, 0.06, 100),
    "cat": lambda q: Q.cat([q, torch.relu(q)], 1, SCALE, ZERO),
    "cat_relu": lambda q: Q.cat_relu([q, q], 1, SCALE, ZERO),
    "add": lambda q: Q.add(q, torch.relu(q), SCALE, ZERO),
    "add_relu": lambda q: Q.add_relu(q, q, SCALE, ZERO),
    "mul": lambda q: Q.mul(q, torch.sigmoid(q), SCALE, ZERO),
    "mul_relu": lambda q: Q.mul_relu(q, q, SCALE, ZERO),
    "hardswish": lambda q: Q.hardswish(q, SCALE, ZERO),
    "leaky_relu": lambda q: Q.leaky_relu(q, 0.1, False, SCALE, ZERO),
    "elu": lambda q: Q.elu(q, SCALE, ZERO, 1.3),
    "celu": lambda q: Q.celu(q, SCALE, ZERO, 0.7),
    "own sigmoid": lambda q: Q.sigmoid(q, 1 / 200, 3),
    "layer_norm": lambda q: Q.layer_norm(q, [5, 7], torch.ones(5, 7) * 1.5, torch.ones(5, 7) * 0.1, 1e-5, SCALE, ZERO),
    "group_norm": lambda q: Q.group_norm(q, 2, torch.ones(4) * 1.5, torch.ones(4) * 0.1, 1e-5, SCALE, ZERO),
    "instance_norm": lambda q: Q.instance_norm(q, torch.ones(4), torch.ones(4) * 0.1, 1e-5, SCALE, ZERO),
    "batch_norm2d": lambda q: Q.batch_norm2d(
        q, torch.ones(4) * 1.5, torch.zeros(4), torch.ones(4) * 0.2, torch.ones(4) * 2, 1e-5, SCALE, ZERO
    ),
    "sizes": lambda q: q.reshape(q.size(0), -1),
}


TIES = ("adaptive_avg_pool2d", "avg_pool2d", "chunks", "hardswish", "leaky_relu", "upsample_bilinear")
"""Functions whose results often lie halfway between two steps: means of few integers, factors such as 5/6."""


def _agrees(module: Any, x: Tensor, step: float = 0.0, share: int = 50) -> Any:
    """The runtimes beside torch's kernels: equal to the last bits, or a step apart here and there.

    Torch rounds sums of integers with a multiplier of its own, so where a sum lies between two steps its neighbour may
    be taken: at most one element in ``share``, by one step.
    """
    expected = module(x)
    for runtime in ("2.6", "mobopt"):
        optimised = mobopt.optimize_for_mobile(module, backend="vulkan", runtime=runtime, example_inputs=[x])
        found = optimised(x)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        different = ((found - expected).abs() > 1e-5).sum()
        assert different <= expected.numel() // share, f"{different} of {expected.numel()}"
        torch.testing.assert_close(found, expected, rtol=0, atol=step * 1.001 + 1e-5)
    return optimised


@pytest.mark.parametrize("engine", ["x86"], indirect=True)
@pytest.mark.parametrize("name", sampled(FUNCTIONS, one_in=2))
def test_functions(name: str, engine: str) -> None:
    x = torch.randn(2, 4, 5, 7) * 3
    traced = torch.jit.trace(Calling(FUNCTIONS[name]), x, check_trace=False)
    _agrees(traced, x, step=SCALE, share=6 if name in TIES else 50)


class Layers(nn.Module):
    """Layers that are quantised with ranges seen in one call."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.layers(self.quant(x)))


def statically(model: nn.Module, x: Tensor, engine: str, fused: list[str] | None = None) -> Any:
    model.eval()
    if fused:
        model = torch.ao.quantization.fuse_modules(model, fused)
    model.qconfig = torch.ao.quantization.get_default_qconfig(engine)  # type: ignore[assignment]
    prepared = torch.ao.quantization.prepare(model)
    prepared(x)
    return torch.ao.quantization.convert(prepared)


LAYERS_OF: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "conv2d": (lambda: [nn.Conv2d(3, 16, 3, stride=2, padding=1)], (1, 3, 17, 13)),
    "conv2d padded otherwise": (lambda: [nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect")], (1, 3, 11, 13)),
    "groups": (lambda: [nn.Conv2d(8, 24, 3, groups=4, dilation=2, bias=False)], (1, 8, 11, 13)),
    "depthwise": (lambda: [nn.Conv2d(16, 16, 5, groups=16, padding=2)], (1, 16, 11, 13)),
    "conv1d": (lambda: [nn.Conv1d(5, 16, 3, stride=2, padding=1)], (2, 5, 31)),
    "linear": (lambda: [nn.Linear(37, 41)], (5, 37)),
    "large linear": (lambda: [nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3)], (5, 128)),
}


@pytest.mark.parametrize("name", sampled(LAYERS_OF, one_in=2))
def test_layers(name: str, engine: str) -> None:
    make, sizes = LAYERS_OF[name]
    x = torch.randn(sizes)
    model = statically(Layers(*make()), x, engine)
    last = model.layers[-1]
    scripted = torch.jit.script(model)
    optimised = _agrees(scripted, x, step=last.scale)
    nodes = list(program_from_script_module(scripted).methods["forward"].walk())
    held = [value.constant for node in nodes for value in node.inputs if value.is_constant]
    assert not any(isinstance(item, Tensor) and item.requires_grad for item in held)  # no file can hold such a constant
    is_large = any(value.numel() >= 1024 for value in (last.weight(),))
    if is_large:
        ops = [node.qualified_op for node in optimised.program.methods["forward"].block.nodes]
        assert DEQUANTIZE in ops


@pytest.mark.parametrize("engine", ["qnnpack"], indirect=True)  # others of torch have no such kernel
def test_transposed_convolutions(engine: str) -> None:
    x = torch.randn(1, 4, 7, 5)
    model = Layers(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("qnnpack")  # type: ignore[assignment]
    prepared = torch.ao.quantization.prepare(model)
    prepared(x)
    converted = torch.ao.quantization.convert(prepared)
    _agrees(torch.jit.script(converted), x, step=converted.layers[0].scale)


def test_a_residual_net_from_files(engine: str, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
            self.first, self.norm, self.relu = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
            self.second, self.sum = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.quantized.FloatFunctional()
            self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu(self.norm(self.first(self.quant(x))))
            x = nn.functional.max_pool2d(self.sum.add_relu(x, self.second(x)), 2)
            return self.dequant(self.head(self.pool(x).flatten(1)))

    x = torch.randn(1, 3, 17, 19)
    model = torch.jit.script(statically(Net(), x, engine, ["first", "norm", "relu"]))
    expected = model(x)
    torch.jit.save(model, tmp_path / "model.pt")
    model._save_for_lite_interpreter(str(tmp_path / "model.ptl"))
    for name in ("model.pt", "model.ptl"):
        optimised = mobopt.optimize_for_mobile(tmp_path / name, backend="vulkan", runtime="mobopt", example_inputs=[x])
        torch.testing.assert_close(optimised(x), expected, rtol=0, atol=0.05)
        assert not optimised.plan_report(x).fallbacks
    info, needs = inspect_bundle(tmp_path / "model.pt")
    assert needs.oldest and any(need.what == "class quantized.LinearPackedParamsBase" for need in needs.needs)
    assert [(item.weight_shape, item.class_name) for item in info.contexts][-1][0] == (10, 16)
    mobopt.migrate(tmp_path / "model.ptl", tmp_path / "plain.pt", example_inputs=[x])
    torch.testing.assert_close(torch.jit.load(tmp_path / "plain.pt")(x), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(("dtype", "spread"), [(torch.qint8, 3.0), (torch.qint8, 0.0), (torch.float16, 3.0)])
@pytest.mark.parametrize("runtime", ["2.6", "mobopt"])
def test_dynamic_linear(dtype: torch.dtype, spread: float, runtime: str) -> None:
    """Phones' QNNPACK rounds to 8 bits where ``reduce_range`` asks for 7, which desktops' kernels heed."""
    supported = torch.backends.quantized.supported_engines
    if not {"x86", "qnnpack"} <= set(supported):
        pytest.skip(f"this torch has {supported} only")
    model = nn.Sequential(nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 5)).eval()
    x = torch.randn(3, 37) * spread
    results = {}
    for name in ("x86", "qnnpack") if dtype == torch.qint8 else ("x86",):
        with _on(name):
            dynamic = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)
            results[name] = dynamic(x).detach()
    expected = results["qnnpack" if runtime == "2.6" and dtype == torch.qint8 else "x86"]
    with _on("x86"):
        scripted = torch.jit.script(dynamic)
        optimised = mobopt.optimize_for_mobile(scripted, backend="vulkan", runtime=runtime, example_inputs=[x])
    torch.testing.assert_close(optimised(x), expected, rtol=0, atol=float(expected.abs().max()) * 1e-5)
    if len(results) == 2 and spread:
        assert (results["x86"] - results["qnnpack"]).abs().max() > expected.abs().max() * 1e-3


def test_text() -> None:
    traced = torch.jit.trace(Calling(lambda q: Q.add(q, q, 0.1, 120)), torch.randn(3), check_trace=False)
    text = print_graph(program_from_script_module(traced).methods["forward"])
    ops = [line.partition(" = ")[2].partition("(")[0] for line in text.splitlines() if "aten::" in line]
    fq = ["aten::mul", "aten::round", "aten::clamp", "aten::mul"]
    assert ops == [*fq, "aten::add", *fq, "aten::clone"]
    assert "quantized::" not in text and "value=20." in text


def test_it_is_said(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    traced = torch.jit.trace(Calling(lambda q: Q.add(q, q, 0.1, 120)), x, check_trace=False)
    with pytest.warns(UserWarning, match="the model is quantised: 3 of its operators became float .*alike"):
        mobopt.optimize_for_mobile(traced, backend="vulkan", example_inputs=[x])
    traced.save(str(tmp_path / "model.pt"))
    command = ["convert", str(tmp_path / "model.pt"), "-o", str(tmp_path / "made.ptl"), "--random", "3,5"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0 and "the model is quantised: 3 of its operators" in " ".join(result.output.split())


def test_every_operator_that_files_may_name_has_a_rule() -> None:
    named = {name for name in LAYERS if name.startswith("quantized::")}
    assert named == {name for name in RULES if name.startswith("quantized::")}
    assert all(Trait.COMPUTES in record_of(name).traits for name in named)


class Counted(nn.Module):
    def forward(self, x: Tensor, turns: int) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.05, 117, torch.quint8)
        for _ in range(turns):
            q = torch.relu(q)
        if turns > 2:
            q = q.reshape(-1)
        else:
            q = q.flatten()
        return q.dequantize()


def test_loops_and_branches_keep_steps() -> None:
    script, x = torch.jit.script(Counted()), torch.randn(3, 5)
    program = program_from_script_module(script)
    for turns in (0, 1, 3):
        torch.testing.assert_close(Interpreter(program).run("forward", [x, turns]), script(x, turns))


class Returning(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.05, 117, torch.quint8)


class Branching(nn.Module):
    def forward(self, x: Tensor, flag: bool) -> Tensor:
        if flag:
            q = torch.quantize_per_tensor(x, 0.05, 117, torch.quint8)
        else:
            q = torch.quantize_per_tensor(x, 0.06, 117, torch.quint8)
        return q.dequantize()


class Computing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, float(x.max()) / 255, 0, torch.quint8).dequantize()


class Sorting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(torch.quantize_per_tensor(x, 0.05, 117, torch.quint8))[0].dequantize()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Returning(), "returns a quantised tensor"),
        (Branching(), "tensors of different scales"),
        (Computing(), "'scale' is computed"),
        (Sorting(), "aten::sort.* is not known to compute on them"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, nn.Module) else "",
)
def test_what_is_not_known_is_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        program_from_script_module(torch.jit.script(module))


def _tensor(*sizes: int, axis: int | None = None) -> AffineTensor:
    count = 1 if axis is None else sizes[axis]
    integers = torch.randint(-128, 128, sizes, dtype=torch.int8)
    return AffineTensor(integers, torch.rand(count) + 0.1, torch.randint(-9, 9, (count,)).float(), axis)


def test_every_version_of_packed_convolutions() -> None:
    weight, bias = _tensor(6, 2, 3, 3, axis=0), torch.randn(6)
    numbers = [2, 1, 2, 0, 1, 1, 1, 0, 0, 3, 0]
    small = [torch.tensor([number], dtype=torch.int16) for number in numbers]
    states = [
        (weight, bias, small[1:3], small[3:5], small[5:7], small[9]),
        ("2", [torch.tensor(numbers, dtype=torch.int16), weight], [bias]),
        (3, numbers, [None, weight, bias]),
    ]
    for state in states:
        layer = QuantizedConv2d.from_state(state)
        assert (layer.stride, layer.padding, layer.dilation, layer.groups) == ([1, 2], [0, 1], [1, 1], 3)
        assert torch.equal(layer.bias, bias) and not layer.transposed and layer.output_padding == [0, 0]
    assert QuantizedConv2d.from_state(("2", states[1][1], [])).bias is None
    assert weight.floats()[4, 1, 2, 0] == (weight.integers[4, 1, 2, 0] - weight.zero_points[4]) * weight.scales[4]


@pytest.mark.parametrize("state", [(), ("2", [], []), (3, [2, 1], [None, None, None]), (4, 5, 6), None])
def test_damaged_states(state: Any) -> None:
    for cls in (QuantizedConv2d, QuantizedLinear):
        with pytest.raises(BundleError, match="the file is damaged"):
            cls.from_state(state)


def test_hostile_files_end_in_one_message(tmp_path: Path) -> None:
    """Bytes of a file of a quantised model changed here and there."""
    x = torch.randn(1, 3, 9, 9)
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(statically(Layers(nn.Conv2d(3, 4, 3)), x, "qnnpack")), path)
    data = path.read_bytes()
    places = torch.randint(0, len(data), (60,)).tolist()
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                mobopt.optimize_for_mobile(path, backend="cpu", example_inputs=[x])
            except MoboptError as error:
                assert "\n" not in str(error)[:40]
