"""Nets of integers for phones' GPUs: the graph, what stays, files, what a target without such kernels is told; what
PyTorch's own files of such layers compute."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from pass_harness import program_of
from test_quantize_static import Net, image, rounded, steps_of, two_layers
from torch import Tensor, nn

import mobopt
from mobopt import MobileModule, optimize_for_mobile
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.errors import BundleError, UnsupportedError
from mobopt.frontends.open_source import source_of
from mobopt.frontends.torchscript import in_floats
from mobopt.ir import Program, print_graph
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import (
    Conv1dPackedContext,
    Conv2dPackedContext,
    LinearPackedContext,
    PackedContext,
    QuantizedConv2dContext,
    QuantizedLinearContext,
)
from mobopt.ops.quantized import quantized
from mobopt.ops.targets import Target, judge
from mobopt.options import INT8_STATIC, Quantization
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import STAYS
from mobopt.passes.quantize_static import QuantizeStatic
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.tools.requirements import needs_of

GENUINE = Path(__file__).parents[1] / "golden" / "quantized"
X = image(1, 3, 29, 23)
_RUN = "vulkan_prepack::run_q"


def optimized(model: nn.Module, x: Tensor = X, **options: Any) -> MobileModule:
    given = {"backend": "vulkan", "runtime": "2.6", "quantize": INT8_STATIC, "example_inputs": [x], **options}
    return optimize_for_mobile(torch.jit.script(model.eval()), **given)


def operators(program: Program) -> Counter[str]:
    return Counter(node.qualified_op for node in program.methods["forward"].walk())


def verdicts(module: MobileModule, release: str) -> dict[str, str]:
    """By operator, but transfers."""
    walked = module.program.methods["forward"].walk()
    nodes = [node for node in walked if not node.op.startswith(("prim::", "aten::to"))]
    target, attributes = Target("vulkan", release), module.program.attributes
    return {node.qualified_op: judge(node, target, attributes).verdict for node in nodes}


def off_by_steps(found: Tensor, exact: Tensor, step: float) -> float:
    """In how many elements a sum that lies halfway between two steps took the other one; never more than a step."""
    off = ((found - exact) / step).round().abs()
    assert float(off.max()) <= 1
    return float((off > 0).float().mean())


def test_layers_before_and_after() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(650, 4))
    program = source_of(torch.jit.script(model.eval()), []).program.clone()
    run_passes(program, [Canonicalize()])
    step = QuantizeStatic(Quantization(INT8_STATIC), Examples({"forward": [X]}), Target("vulkan", "2.6"))
    run_passes(program, [step], check=True)
    text = print_graph(program.methods["forward"]).partition("%x : Tensor")[2] or print_graph(
        program.methods["forward"]
    )
    made = [line.strip() for line in text.splitlines() if " = aten::" in line or " = vulkan" in line]
    assert [line.partition(" = ")[2].partition("(")[0] for line in made] == [
        "aten::quantize_per_tensor",
        "vulkan_prepack::run_qconv2d_context",
        "aten::max_pool2d",
        "aten::flatten",
        "vulkan_prepack::run_qlinear_context",
        "aten::dequantize",
    ]
    assert all("quint8[1, " in line for line in made[:-1]) and "float32[1, 4]" in made[-1]
    convolution, linear = (
        value.constant
        for node in program.methods["forward"].walk()
        if node.op.startswith(_RUN)
        for value in node.inputs[-1:]
    )
    assert isinstance(convolution, QuantizedConv2dContext) and isinstance(linear, QuantizedLinearContext)
    assert convolution.weight.axis == 0 and convolution.bias is not None and not convolution.bias.any()
    assert linear.weight.axis is None and linear.weight.integers.shape == (650, 4)


def test_numbers_of_two_layers() -> None:
    model, exact, step = two_layers(X)
    module = optimized(model)
    assert operators(module.program)["aten::dequantize.self"] == 1
    for found in (module(X), Interpreter(module.program).run("forward", [X])):
        assert off_by_steps(found, exact, step) < 0.005


def test_what_becomes_integers_and_what_stays() -> None:
    module = optimized(Net())
    found = operators(module.program)
    assert found["vulkan_prepack::run_qconv2d_context"] == 7 and found["vulkan_prepack::run_qlinear_context"] == 1
    assert found["vulkan_quantized::add"] == 1
    assert found["aten::sigmoid"] == found["aten::cat"] == 1
    (relu,) = (node for node in module.program.methods["forward"].walk() if node.op == "aten::relu")
    assert relu.inputs[0].producer.op == "vulkan_quantized::add"  # two read what is added
    assert not any(note.kind is STAYS for note in module.notes)
    assert set(verdicts(module, "2.6").values()) == {"native"}
    lacks = verdicts(module, "2.2")
    for op in ("vulkan_prepack::run_qconv2d_context", "vulkan_quantized::add", "aten::dequantize.self"):
        assert lacks[op] == "missing"


def test_files(tmp_path: Path) -> None:
    model = Net()
    module = optimized(model)
    torch.jit.save(module, tmp_path / "net.pt")
    module._save_for_lite_interpreter(str(tmp_path / "net.ptl"))
    with torch.no_grad():
        expected = model(X)
    first = Interpreter(module.program).run("forward", [X])
    for name in ("net.pt", "net.ptl"):
        program = read_bundle(tmp_path / name)
        assert needs_of(program, ["lite"]).oldest == "2.2"
        for found, same in zip(Interpreter(program).run("forward", [X]), first, strict=True):
            assert torch.equal(found, same)
        for found, exact in zip(mobopt.load(tmp_path / name)(X), expected, strict=True):  # by floats, on a GPU
            assert (found - exact).abs().max() < 0.05 * exact.abs().max()
    for found, exact in zip(first, expected, strict=True):
        assert (found - exact).abs().max() < 0.05 * exact.abs().max()


def test_transposed_convolutions() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(3, 5, 3, 2, 1, output_padding=1, bias=False).eval()
    module = optimized(nn.Sequential(layer))
    (run,) = (node for node in module.program.methods["forward"].walk() if node.op.startswith(_RUN))
    context = run.inputs[-1].constant
    assert context.transposed and context.weight.axis == 1 and len(context.weight.scales) == 5
    with torch.no_grad():
        weight = quantized(layer.weight, 8, (3, 1, 3, 3)).floats()
        steps = steps_of(layer(X))
        exact = rounded(torch.conv_transpose2d(rounded(X, steps_of(X)), weight, None, 2, 1, 1), steps)
    for found in (module(X), Interpreter(module.program).run("forward", [X])):
        assert off_by_steps(found, exact, steps[0]) < 0.005


def test_layers_that_stay() -> None:
    """By a pattern, and for lack of a kernel; groups are rewritten."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(2), nn.Conv1d(4, 2, 3)
    )
    module = optimized(model, keep_float=["1"])
    found = operators(module.program)
    reasons = [note.parameters["reason"] for note in module.notes if note.kind is STAYS]
    assert reasons == [
        "1 is to keep its weight, by '1'",
        "only convolutions of images and linear layers have kernels of integers",
    ]
    assert found["vulkan_prepack::run_conv2d_context"] == 1 and found["vulkan_prepack::run_qconv2d_context"] == 2


def test_samples_of_a_batch_share_their_weights() -> None:
    module = optimized(nn.Sequential(nn.Conv2d(3, 5, 3)), image(3, 3, 9, 7))
    runs = [node for node in module.program.methods["forward"].walk() if node.op.startswith(_RUN)]
    assert len(runs) == 3 and len({id(node.inputs[-1].constant) for node in runs}) == 1


class Moved(nn.Module):
    """What kernels lose the steps of, between two layers; a pool of a padded image; a tensor of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        x = torch.cat([x, x.flip(3)], 3)[:, :, 1:].clamp(-0.5, 0.5)
        y = torch.relu(self.second(nn.functional.max_pool2d(x, 3, 2, 1)))
        return self.head(y.flatten(2).transpose(1, 2)), nn.functional.interpolate(y, scale_factor=2.0)


def test_what_loses_its_steps_reads_floats() -> None:
    torch.manual_seed(0)
    model = Moved()
    module = optimized(model)
    for node in module.program.methods["forward"].walk():
        kinds = {value.facts.known_dtype for value in node.inputs}
        if node.op in ("aten::cat", "aten::slice", "aten::clamp", "aten::transpose", "aten::permute"):
            assert "quint8" not in kinds, node
    with torch.no_grad():
        expected = model(X)
    for found, exact in zip(module(X), expected, strict=True):
        assert (found - exact).abs().max() < 0.03 * exact.abs().max()
    assert set(verdicts(module, "2.6").values()) == {"native"}


class AfterCpu(nn.Module):
    """A layer that reads what runs on the phone's CPU, which has no quantised tensors to give."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cumprod(x, 3))


class OfChanged(AfterCpu):
    """A layer that reads memory that is changed under another name, and so stays on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        if x.size(3) > 1:
            x[..., 1:].mul_(2.0)
        return self.last(x)


@pytest.mark.parametrize("make", [AfterCpu, OfChanged])
def test_tensors_are_quantised_where_they_stay(make: type[nn.Module]) -> None:
    module = optimized(make())
    nodes = list(module.program.methods["forward"].walk())
    (quantise,) = (node for node in nodes if node.op == "aten::quantize_per_tensor")
    assert quantise.inputs[0].producer.qualified_op == "aten::to.prim_Device"
    moved = [node.inputs[0] for node in nodes if node.qualified_op == "aten::to.prim_Device"]
    assert moved and not any(value.facts.known_dtype == "quint8" for value in moved)


@pytest.mark.parametrize("name", ["vulkan.pt", "vulkan.ptl"])
def test_genuine_files(name: str, device: Any) -> None:
    """Convolutions of both kinds, a linear layer, arithmetic, views: what PyTorch 2.6's own kernels gave."""
    x, *expected = (
        torch.from_numpy(numpy.load(GENUINE / f"{part}.npy")) for part in ("input_0", "expected_0", "expected_1")
    )
    program = read_bundle(GENUINE / name)
    assert needs_of(program, ["lite"]).oldest == "2.2"
    on_device = VulkanProgram(in_floats(program), device)
    for found in (Interpreter(program).run("forward", [x]), on_device.run("forward", [x])):
        assert all(map(torch.equal, found, expected))
    on_device.close()
    for write in (write_torchscript, write_lite):
        file = io.BytesIO()
        write(program, file)
        file.seek(0)
        assert all(map(torch.equal, Interpreter(read_bundle(file)).run("forward", [x]), expected))


def _affine(*sizes: int) -> AffineTensor:
    return AffineTensor(torch.ones(sizes, dtype=torch.int8), torch.ones(1, dtype=torch.double), torch.zeros(1), None)


def _state(weight: object, is_quantized: bool) -> list[object]:
    """Of a convolution."""
    return [weight, None, [1, 1], [0, 0], [1, 1], False, is_quantized, [0], 1, None, None]


@pytest.mark.parametrize(
    ("context", "state", "match"),
    [
        (Conv2dPackedContext, _state(torch.ones(1, 1, 1, 1), True), "bool for 'quantized'"),
        (Conv2dPackedContext, _state(_affine(1, 1, 1, 1), False), "bool for 'quantized'"),
        (LinearPackedContext, [_affine(1, 1), None, 3], "3 elements where 2 belong"),
        (LinearPackedContext, [_affine(1, 1), 3], "int for 'bias'"),
        (Conv1dPackedContext, [_affine(1, 1, 1), torch.ones(1), [1], [0], [1], 1], "AffineTensor for 'weight'"),
    ],
)
def test_states_that_fit_no_context(context: type[PackedContext], state: list[object], match: str) -> None:
    with pytest.raises(BundleError, match=match):
        context.from_state(state)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (
            "vulkan_prepack::run_qconv2d_context(%q, %s, %z, %c)",
            "run_qconv2d_context .* its weights are computed",
        ),
        ("vulkan_quantized::add(%q, %q, %t, %z)", "vulkan_quantized::add .* 'scale' is computed"),
    ],
)
def test_what_has_no_form_in_floats(body: str, match: str) -> None:
    text = f"""
    graph(%self : __torch__.M,
          %x : Tensor,
          %t : float,
          %c : __torch__.torch.classes.vulkan.Conv2dPackedContext):
      %s : float = prim::Constant[value=0.5]()
      %z : int = prim::Constant[value=3]()
      %d : int = prim::Constant[value=13]()
      %q : Tensor = aten::quantize_per_tensor(%x, %s, %z, %d)
      %y : Tensor = {body}
      %f : Tensor = aten::dequantize(%y)
      return (%f)
    """
    with pytest.raises(UnsupportedError, match=match):
        in_floats(program_of(text))
