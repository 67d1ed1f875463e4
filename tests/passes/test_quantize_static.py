"""Convolutional nets of integers: the graph, what stays, files for phones' CPUs, the own runtime, bad input."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor, nn
from torch.jit.mobile import _load_for_lite_interpreter

import mobopt
from mobopt import MobileModule, PassPipeline, optimize_for_mobile
from mobopt.commands import main
from mobopt.errors import InputError
from mobopt.frontends.open_source import source_of
from mobopt.ir import print_graph
from mobopt.ops.quantized import quantized
from mobopt.options import INT8_STATIC, Quantization
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import QUANTIZED, STAYS
from mobopt.passes.quantize_static import QuantizeStatic


class Net(nn.Module):
    """Residuals, branches, pools, a gate in floats, sizes that are read, and what changes tensors in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        first = nn.Conv2d(3, 12, 3, stride=2, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(12), nn.ReLU6(True))
        self.deep = nn.Sequential(nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=12), nn.Hardtanh(0.0, 4.0))
        self.wide = nn.Conv2d(12, 8, 1)
        self.gate = nn.Conv2d(20, 20, 1, groups=4)
        self.up = nn.ConvTranspose2d(20, 7, 2, stride=2)
        self.last = nn.Conv2d(7, 5, (3, 1), padding=(1, 0))
        self.head = nn.Linear(5 * 3 * 3, 11)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        y = self.deep(x)
        y += x
        y = torch.cat([torch.relu(y), self.wide(y)], 1)
        y = self.gate(y) * torch.sigmoid(y.mean((2, 3), keepdim=True))
        y = torch.clamp(self.last(self.up(y)), min=0.0)
        y = nn.functional.adaptive_avg_pool2d(nn.functional.max_pool2d(y, 3, 2, 1), 3)
        return self.head(y.reshape(y.size(0), -1)), x


def image(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


X = image(2, 3, 29, 23)


def optimized(model: nn.Module, x: Tensor = X, **options: object) -> MobileModule:
    given = {"backend": "cpu", "quantize": INT8_STATIC, "example_inputs": [x], **options}
    return optimize_for_mobile(torch.jit.script(model.eval()), **given)  # type: ignore[arg-type]


def operators(module: MobileModule) -> Counter[str]:
    return Counter(node.qualified_op for node in module.program.methods["forward"].walk())


def steps_of(x: Tensor, floor: float = -1e9) -> tuple[float, int]:
    """What uint8 stands for, by the least and the greatest element."""
    least, greatest = max(min(float(x.min()), 0.0), floor), max(float(x.max()), 0.0)
    scale = (greatest - least) / 255
    return scale, round(-least / scale)


def rounded(x: Tensor, steps: tuple[float, int]) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, *steps, 0, 255)


def test_a_layer_before_and_after() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()).eval()
    program = source_of(torch.jit.script(model), []).program.clone()
    run_passes(program, [Canonicalize()])
    step = QuantizeStatic(Quantization(INT8_STATIC), examples=Examples({"forward": [X]}))
    (run,) = run_passes(program, [step], check=True)
    assert re.search(
        r"%(\S+) : Tensor = aten::quantize_per_tensor\(%\S+, %\S+, %\S+, %\S+\)\n"
        r"  %(\S+) : Tensor = quantized::conv2d\(%\1, %self.0.weight.packed, %\S+, %\S+\)\n"
        r"  %(\S+) : Tensor = aten::dequantize\(%\2\)\n"
        r"  %(\S+) : Tensor = aten::contiguous\(%\3, %\S+\)\n  return \(%\4\)",
        print_graph(program.methods["forward"]),
    ), print_graph(program.methods["forward"])
    (note,) = run.result.notes
    assert note.kind is QUANTIZED and note.parameters["layer"] == "0"


def two_layers(given: Tensor) -> tuple[nn.Module, Tensor, float]:
    """A model, what its integers give by float arithmetic that is rounded, and the step of that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)).eval()
    first, second = model[0], model[2]
    with torch.no_grad():
        middle, last = model[:2](given), model(given)
        weights = [quantized(layer.weight, 8, (1, *layer.weight.shape[1:])).floats() for layer in (first, second)]
        x = rounded(given, steps_of(given))
        x = rounded(torch.conv2d(x, weights[0], first.bias, 2, 1), steps_of(middle, 0.0))
        exact = rounded(torch.conv2d(x, weights[1], second.bias, groups=8), steps_of(last))
    return model, exact, steps_of(last)[0]


@pytest.mark.usefixtures("qnnpack")
def test_numbers_of_two_layers() -> None:
    model, exact, step = two_layers(X)
    for options in ({}, {"backend": "vulkan", "runtime": "mobopt"}):
        found = optimized(model, **options)(X)
        off = ((found - exact) / step).round().abs()  # a sum halfway between two steps may take either
        assert float(off.max()) <= 1 and float((off > 0).float().mean()) < 0.005


def test_what_becomes_integers_and_what_stays() -> None:
    module = optimized(Net())
    found = operators(module)
    assert found["quantized::conv2d.new"] == 5 and found["quantized::linear"] == 1
    assert found["quantized::add"] == 1 and found["quantized::cat"] == 1
    assert not {"aten::relu_", "aten::hardtanh", "aten::clamp", "aten::conv2d"} & found.keys()
    (relu,) = (node for node in module.program.methods["forward"].walk() if node.op == "aten::relu")
    assert relu.inputs[0].producer.op == "quantized::add"  # two read what is added
    assert found["aten::conv_transpose2d.input"] == found["aten::sigmoid"] == 1
    reasons = [
        note.parameters["reason"] for note in module.notes if note.pass_name == "quantize_static" and note.kind is STAYS
    ]
    assert reasons == ["only convolutions of images and linear layers have kernels of integers"]


@pytest.mark.usefixtures("qnnpack")
@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_files_for_phones(tmp_path: Path, runtime: str) -> None:
    model = Net()
    module = optimized(model, runtime=runtime)
    torch.jit.save(module, tmp_path / "net.pt")
    module._save_for_lite_interpreter(str(tmp_path / "net.ptl"))
    with torch.no_grad():
        expected = model(X)
    loaded = [
        torch.jit.load(tmp_path / "net.pt"),
        _load_for_lite_interpreter(str(tmp_path / "net.ptl")),
        mobopt.load(tmp_path / "net.ptl", device="cpu"),
    ]
    for found, exact in zip(mobopt.load(tmp_path / "net.ptl")(X), expected, strict=True):  # by floats, on a GPU
        assert (found - exact).abs().max() < 0.08 * exact.abs().max()
    first = module(X)
    for made in (item(X) for item in loaded):
        for found, same, exact in zip(made, first, expected, strict=True):
            assert torch.equal(found, same)
            assert (found - exact).abs().max() < 0.08 * exact.abs().max()


def test_on_the_own_runtime() -> None:
    model = Net()
    module = optimized(model, backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        expected = model(X)
    for found, exact in zip(module(X), expected, strict=True):
        assert (found - exact).abs().max() < 0.08 * exact.abs().max()


def test_layers_that_keep_their_floats() -> None:
    module = optimized(Net(), keep_float=["stem.*", "head"])
    found = operators(module)
    assert found["quantized::conv2d.new"] == 4 and found["quantized::linear"] == 0 and found["aten::linear"] == 1


class Turns(nn.Module):
    """A layer at the top, and one in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if float(x.sum()) > 0:
            x = self.second(x)
        return x.transpose(1, 2)


def test_branches_read_floats() -> None:
    torch.manual_seed(0)
    model = Turns()
    module = optimized(model)
    with torch.no_grad():
        expected = model(X)
    assert operators(module)["quantized::conv2d.new"] == 1
    assert (module(X) - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"example_inputs": None}, "int8_static learns from example inputs how large numbers get; give some"),
        ({"backend": "metal", "runtime": "2.6"}, "int8_static is for the backend cpu and for the runtime mobopt"),
        (
            {"backend": "vulkan", "runtime": "2.2"},
            "int8_static with the backend vulkan needs GPU kernels of integers that were seen to be right: those of "
            "PyTorch 2.6, and the runtime is 2.2. Give runtime 2.6 or mobopt, or the backend cpu",
        ),
        ({"backend": "vulkan", "runtime": "2.6", "legalize": "off"}, "legalize is 'off'; give 'safe' or 'full'"),
        ({"keep_float": ["haed"]}, "no layer matches 'haed'.*did you mean head"),
    ],
)
def test_what_can_not_be_asked_for(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimized(Net(), **options)


class Views(nn.Module):
    """What asks for the layout that convolutions of floats leave, a pool of single pixels, and a filter of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.zeros = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(6 * 5, 7)
        nn.init.zeros_(self.zeros.weight[1:3])

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        x = self.first(x)
        y = torch.sigmoid(x).view(x.size(0), 6, -1)
        z = nn.functional.max_pool2d(x, 1, 2).view(x.size(0), -1)[:, : 6 * 5]
        return self.head(z), {"y": y, "x": x}, [self.zeros(x)]


@pytest.mark.usefixtures("qnnpack")
def test_layouts_are_those_of_floats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Views()
    module = optimized(model)
    module._save_for_lite_interpreter(str(tmp_path / "net.ptl"))
    with torch.no_grad():
        expected = model(X)
    for made in (module(X), _load_for_lite_interpreter(str(tmp_path / "net.ptl"))(X)):
        found = [made[0], *made[1].values(), *made[2]]
        for one, exact in zip(found, [expected[0], *expected[1].values(), *expected[2]], strict=True):
            assert one.is_contiguous() and (one - exact).abs().max() < 0.05 * exact.abs().max()


class Asked(nn.Module):
    """What asks whether a tensor is of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x.flatten(2) if x.is_floating_point() and x.dim() == 4 else x


def test_a_layer_still_makes_floats() -> None:
    for options in ({}, {"backend": "vulkan", "runtime": "2.6"}):
        module = optimized(Asked(), **options)
        assert module(X).shape == (2, 6, 27 * 21)


def test_infinities_in_examples() -> None:
    x = X.clone()
    x[0, 0, 0, 0] = float("inf")
    module = optimized(nn.Sequential(nn.Conv2d(3, 4, 3)), x)
    assert "quantized::conv2d.new" not in operators(module)


def test_the_pipeline_without_rounding() -> None:
    pipeline = PassPipeline.default("cpu", quantize=INT8_STATIC)
    assert "quantize_static" in pipeline.names and "quantize_static" not in pipeline.without_rounding().names


def test_it_learns_from_several_calls() -> None:
    """A call that isn't like the others would be cut off at what they reached."""
    model, loud = Net().eval(), 20 * image(1, 3, 29, 23)
    expected = model(loud)[0].detach()

    def error(calls: list[object]) -> float:
        module = optimize_for_mobile(
            torch.jit.script(model), example_inputs=[X], quantize="int8_static", calibration_inputs=calls
        )
        found: Tensor = module(loud)[0]
        return float((found - expected).abs().max() / expected.abs().max())

    assert error([(image(1, 3, 29, 23),), [loud]]) < 0.1 < error([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibration_inputs": [X]}, "calibration_inputs is a list that isn't made of lists or tuples of arguments"),
        ({"calibration_inputs": X}, "calibration_inputs is a Tensor that isn't made of"),
        ({"calibration_inputs": [(X,), (X[:, :2],)]}, "call 1 of the calibration inputs: aten::conv2d"),
        ({"calibration_inputs": [(X,)], "quantize": None}, "nothing learns from calibration inputs but int8_static"),
    ],
)
def test_what_nothing_is_learnt_from(options: dict[str, object], message: str) -> None:
    given = {"example_inputs": [X], "quantize": "int8_static", **options}
    with pytest.raises(InputError, match=message):
        optimize_for_mobile(torch.jit.script(Net().eval()), **given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("qnnpack")
def test_a_folder_of_calls(tmp_path: Path) -> None:
    model, calls = tmp_path / "model.pt", tmp_path / "calls"
    torch.jit.script(Net().eval()).save(str(model))
    options = ["--backend", "cpu", "--random", "2,3,29,23", "--quantize", "int8_static", "--calibration", str(calls)]
    calls.mkdir()

    def converted(name: str) -> Result:
        return CliRunner().invoke(main, ["convert", str(model), "-o", str(tmp_path / name), *options])

    result = converted("none.ptl")
    assert result.exit_code == 2 and "holds no .npy or .npz files" in result.output
    (calls / "a.npz").write_bytes(b"PK broken")
    assert "a.npz is not an .npz file of numbers" in converted("broken.ptl").output
    assert not list(tmp_path.glob("*.ptl"))
    numpy.savez(calls / "a.npz", (20 * image(1, 3, 29, 23)).numpy())
    numpy.save(calls / "b.npy", image(1, 3, 29, 23).numpy())
    assert converted("loud.ptl").exit_code == 0
    for path in calls.glob("*.npz"):
        path.unlink()
    assert converted("quiet.ptl").exit_code == 0
    loud = 20 * image(1, 3, 29, 23)
    found = [_load_for_lite_interpreter(str(tmp_path / name))(loud)[0] for name in ("loud.ptl", "quiet.ptl")]
    expected = Net().eval()(loud)[0].detach()
    errors = [float((result - expected).abs().max() / expected.abs().max()) for result in found]
    assert errors[0] < 0.1 < errors[1]
