"""Products of few rows that store what gates let pass: beside float64 on odd sizes, in every form that weights have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from test_quantized import asymmetrical
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Node, Value
from mobopt.ir.nests import map_leaves
from mobopt.ops.quantized import DEQUANTIZE, Quantized, quantized
from mobopt.optimizer import optimize
from mobopt.options import PrecisionChoice, Settings
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.vulkan.compile import quantized as compile_quantized
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine import executable as executable_module
from mobopt.runtimes.vulkan.engine.chains import may_chain
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch, storages
from mobopt.runtimes.vulkan.engine.tensor import Storage, StorageKind
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.device_costs import chained_workgroups
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS, RowKernel, row_kernels
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import LoadMode
from mobopt.shaders.push_constants import CHAIN_END

LOSS = 2e-6
"""Of the largest result, for sums in float32."""


@pytest.fixture
def gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with the kernels of GPUs, without matrix units."""
    info = replace(device.info, kind="discrete", switches=frozenset({"no-matrix-units"}))
    monkeypatch.setattr(device, "info", info)
    return device


def floats(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


# Kernels.

Weight = Tensor | Quantized


def segment_of(
    x: Tensor, gate: Weight, passing: Weight, biases: tuple[Tensor, Tensor] | None
) -> tuple[Segment, Tensor]:
    """``silu(gate) * passing``, and its result in float64."""
    graph = Graph()
    source = graph.block.add_parameter(Value.of_tensor(x.dtype, tuple(x.shape), "x"))

    def layer(weight: Weight, bias: Tensor | None) -> tuple[Value, Tensor]:
        if isinstance(weight, Quantized):
            given = map_leaves(weight.arguments, Tensor, Value.of_elements)
            maker = graph.block.append(Node.call(DEQUANTIZE, given, [Value.of_tensor(torch.float32, weight.sizes)]))
            matrix, exact = maker.output, weight.floats()
        else:
            matrix, exact = Value.of_elements(weight), weight
        added = None if bias is None else Value.of_elements(bias)
        made = Value.of_tensor(x.dtype, (*x.shape[:-1], exact.shape[0]))
        graph.block.append(Node.call("aten::linear", (source, matrix, added), [made]))
        return made, functional.linear(x.double(), exact.double(), None if bias is None else bias.double())

    (first, one), (second, other) = (layer(w, b) for w, b in zip((gate, passing), biases or (None, None), strict=True))
    step, result = (Value.of_tensor(x.dtype, first.sizes) for _ in range(2))
    graph.block.append(Node.call("aten::silu", (first,), [step]))
    graph.block.append(Node.call("aten::mul.Tensor", (step, second), [result]))
    graph.return_values(result)
    return Segment(graph, [result]), functional.silu(one) * other


def check(
    device: Device, x: Tensor, gate: Weight, passing: Weight, biases: tuple[Tensor, Tensor] | None = None
) -> Dispatch:
    """Compare with float64; returns what computed it: one dispatch, beside a copy of rows that are no whole vec4s."""
    segment, expected = segment_of(x, gate, passing, biases)
    stream = build_stream(segment, device.info, ConstantStore(), allow_fallback=False).stream
    *copies, step = [item for item in stream.operations if isinstance(item, Dispatch)]
    assert len(copies) == (x.shape[-1] % 4 > 0)
    executable = Executable(device, stream)
    try:
        (found,) = executable.run([x])
    finally:
        executable.close()
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < LOSS, f"differs by {error:.1e} of the scale"
    return step


FORMS: dict[str, Callable[[int, int, int], Weight]] = {
    "float32": lambda columns, inner, seed: floats(columns, inner, seed=seed),
    "int8": lambda columns, inner, seed: quantized(floats(columns, inner, seed=seed), 8, (1, inner)),
    "int4": lambda columns, inner, seed: quantized(floats(columns, inner, seed=seed), 4, (1, 32)),
    "int4 offsets": lambda columns, inner, seed: asymmetrical(4, columns, inner, 32),
    "int8 offsets": lambda columns, inner, seed: asymmetrical(8, columns, inner, inner),
}
SIZES = [((1, 71), 20), ((2, 131), 44), ((1, 3, 67), 132), ((2, 1, 2, 97), 4), ((59,), 36)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("sizes", "columns"), SIZES)
@pytest.mark.parametrize("has_biases", [False, True])
def test_forms(gpu: Device, form: str, sizes: tuple[int, ...], columns: int, has_biases: bool) -> None:
    gate, passing = (FORMS[form](columns, sizes[-1], seed) for seed in (2, 3))
    biases = (floats(columns, seed=4), floats(columns, seed=5)) if has_biases else None
    step = check(gpu, floats(*sizes), gate, passing, biases)
    assert step.shader == ("product_rows" if form == "float32" else "product_rows_quantized")
    assert step.specialization[18] == 1


def _blocks(bits: int) -> list[RowKernel]:
    shape = ProductShape(1, 100, 100, 100, is_plain=True, bits=bits)
    return [*row_kernels(known_device("nvidia_h200"), shape)]


@pytest.mark.parametrize("form", ["float32", "int8", "int4"])
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("rows", [1, pytest.param(MOST_ROWS, marks=pytest.mark.sweep)])
def test_every_block(gpu: Device, monkeypatch: pytest.MonkeyPatch, form: str, number: int, rows: int) -> None:
    blocks = _blocks({"float32": 0, "int8": 8, "int4": 4}[form])
    if number >= len(blocks):
        pytest.skip("there are fewer")
    kernel = replace(blocks[number], rows=rows)
    if not kernel.fits(gpu.info):
        pytest.skip("larger than this device's workgroups")
    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", lambda device, shape: kernel)
    columns = 4 * 37  # no block is full
    check(gpu, floats(rows, 331), *(FORMS[form](columns, 331, seed) for seed in (2, 3)))


def test_what_is_not_finite_stays_in_its_column(gpu: Device) -> None:
    gate, passing = floats(20, 37, seed=2), floats(20, 37, seed=3)
    gate[3, 5], passing[8, 36] = torch.inf, torch.nan
    segment, expected = segment_of(x := floats(2, 37), gate, passing, None)
    executable = Executable(gpu, build_stream(segment, gpu.info, ConstantStore()).stream)
    (found,) = executable.run([x])
    executable.close()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("ahead_of_time", [True, False])
def test_groups_that_kernels_do_not_take(gpu: Device, monkeypatch: pytest.MonkeyPatch, ahead_of_time: bool) -> None:
    """They become floats: constants, or such as a call makes, which are no weights of gates."""
    monkeypatch.setattr(compile_quantized, "_MEMORY_SHARE", 1 << 60)
    monkeypatch.setattr(compile_quantized, "_MOST_EXPANDED", 1 << 20 if ahead_of_time else 0)
    gate, passing = (quantized(floats(20, 72, seed=seed), 4, (1, 24)) for seed in (2, 3))
    segment, expected = segment_of(x := floats(2, 72), gate, passing, None)
    stream = build_stream(segment, gpu.info, ConstantStore()).stream
    names = [step.shader for step in stream.operations if isinstance(step, Dispatch)]
    called = ["dequantize", *names[1:-1], "pointwise_2_1"]
    assert names == (["product_rows"] if ahead_of_time else called)
    assert names.count("dequantize") == (0 if ahead_of_time else 1)
    executable = Executable(gpu, stream)
    (found,) = executable.run([x])
    executable.close()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


# Models.


class FeedForward(nn.Module):
    """That of a decoder."""

    def __init__(
        self,
        inner: int,
        columns: int,
        activation: Callable[[Tensor], Tensor] = functional.silu,
        norm: str = "",
        bias: bool = False,
        is_one: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        norms = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "": nn.Identity}
        self.norm = norms[norm](inner)
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)
        self.activation, self.is_one = activation, is_one
        if is_one:
            self.both = nn.Linear(inner, 2 * columns, bias)
        else:
            self.gate, self.up = nn.Linear(inner, columns, bias), nn.Linear(inner, columns, bias)
        self.down = nn.Linear(columns, inner, bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x)
        gate, up = self.both(rows).chunk(2, -1) if self.is_one else (self.gate(rows), self.up(rows))
        return x + self.down(up * self.activation(gate))


def program_of(model: nn.Module, x: Tensor, device: Device, precision: str = "fp32") -> VulkanProgram:
    with torch.no_grad():
        traced = program_from_script_module(torch.jit.trace(model.eval(), x))
    return VulkanProgram(traced, device, precision=PrecisionChoice.of(precision))


def shaders_in(program: VulkanProgram, x: Tensor) -> list[str]:
    steps = [step.operation for step in program.profile([x])]
    return [step.shader for step in steps if isinstance(step, Dispatch)]


def run(model: nn.Module, x: Tensor, device: Device, precision: str = "fp32") -> tuple[Tensor, list[str]]:
    program = program_of(model, x, device, precision)
    result = program(x)
    shaders = shaders_in(program, x)
    program.close()
    assert isinstance(result, Tensor)
    return result, shaders


def error_of(found: Tensor, model: nn.Module, x: Tensor) -> float:
    """Of the result's scale, beside float64."""
    with torch.no_grad():
        exact = model.double()(x.double())
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", ["", "rms", "layer"])
@pytest.mark.parametrize("is_one", [False, True])
def test_models(gpu: Device, rows: int, norm: str, is_one: bool) -> None:
    model, x = FeedForward(68, 44, norm=norm, bias=norm == "layer", is_one=is_one), floats(1, rows, 68)
    found, shaders = run(model, x, gpu)
    assert error_of(found, model, x) <= LOSS
    assert shaders == ["product_rows_normalized" if norm else "product_rows", "product_rows"]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "written silu": lambda x: x * torch.sigmoid(x),
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu6": functional.relu6,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.25),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(gpu: Device, name: str) -> None:
    model, x = FeedForward(36, 20, ACTIVATIONS[name]), floats(1, 36)
    found, shaders = run(model, x, gpu)
    assert error_of(found, model, x) <= LOSS and shaders == ["product_rows"] * 2


def test_a_gated_linear_unit(gpu: Device) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(36, 88), nn.GLU(-1), nn.Linear(44, 8)), floats(3, 36)
    found, shaders = run(model, x, gpu)
    assert error_of(found, model, x) <= LOSS and shaders == ["product_rows"] * 2


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_far_means(gpu: Device, offset: float) -> None:
    """Rows whose means are far from zero are computed twice, and stored once."""
    model, x = FeedForward(68, 44, norm="layer", bias=True), floats(3, 68) + offset
    found, _ = run(model, x, gpu)
    assert error_of(found, model, x) <= LOSS * max(1.0, offset / 10)


@pytest.mark.parametrize("rows", [5, 37])
@pytest.mark.parametrize("norm", ["", "rms"])
@pytest.mark.parametrize("is_one", [False, True])
def test_many_rows_have_as_many_dispatches_as_ever(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, rows: int, norm: str, is_one: bool
) -> None:
    """Nothing is copied, and vec4s are loaded whole."""
    model, x = FeedForward(68, 44, norm=norm, is_one=is_one), floats(1, rows, 68)
    program = program_of(model, x, gpu)
    found = program(x)
    steps = [step.operation for step in program.profile([x])]
    program.close()
    (pointwise,) = [step for step in steps if isinstance(step, Dispatch) and step.shader.startswith("pointwise")]
    names = [step.shader.partition("_")[0] for step in steps if isinstance(step, Dispatch)]
    assert names == ["normalize"] * bool(norm) + ["product", "pointwise", "product"] and len(steps) == len(names)
    assert error_of(found, model, x) <= LOSS
    # Two dimensions, operands and instructions, and vec4s.
    assert pointwise.specialization[1:8] == (2, 2, 0, 2, 1, LoadMode.VECTOR, LoadMode.VECTOR)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("norm", ["", "rms"])
def test_what_lies_as_halves(gpu: Device, precision: str, rows: int, norm: str) -> None:
    model, x = FeedForward(136, 132, norm=norm), floats(rows, 136)
    found, shaders = run(model, x, gpu, precision)
    assert error_of(found, model, x) <= (2e-3 if precision == "fp16" else 2e-2)
    assert any(name.startswith("pointwise") for name in shaders) == (rows > MOST_ROWS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_halves_are_rounded_after_each_operator(gpu: Device, dtype: torch.dtype, rows: int) -> None:
    """To the bit of the steps: integers, so that sums have no order."""
    torch.manual_seed(0)
    model = FeedForward(24, 20).eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-3, 4, parameter.shape).float() / 8
    model, x = model.to(dtype), torch.randint(-4, 5, (rows, 24)).to(dtype)
    found, shaders = run(model, x, gpu)
    assert shaders[0] == "product_rows"
    gpu.info = replace(gpu.info, switches=gpu.info.switches | {"no-gated-products"})
    plain, steps = run(model, x, gpu)
    assert len(steps) == len(shaders) + 1 and torch.equal(found, plain)


@pytest.mark.parametrize("scheme", ["int8_weights", "int4_weights"])
@pytest.mark.parametrize("norm", ["", "rms", "layer"])
@pytest.mark.parametrize("rows", [1, 4])
def test_weights_of_few_bits(gpu: Device, scheme: str, norm: str, rows: int) -> None:
    model, x = FeedForward(96, 44, norm=norm, bias=True).eval(), floats(1, rows, 96)
    exported = torch.export.export(model, (x,))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize=scheme)
    program = VulkanProgram(module.program, gpu)
    found, shaders = program(x), shaders_in(program, x)
    program.close()
    gpu.info = replace(gpu.info, kind="cpu", switches=frozenset())  # other kernels
    expected = VulkanProgram(module.program, gpu)(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert shaders == [f"product_rows{'_normalized' if norm else ''}_quantized", "product_rows_quantized"]


def test_layers_that_a_phone_was_given(gpu: Device) -> None:
    """Whose weights are (in, out), in packed contexts."""
    model, x = FeedForward(68, 44, bias=True).eval(), floats(1, 68)
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
    program = VulkanProgram(optimize(ScriptModuleSource(traced), Settings("vulkan"), [x]).program, gpu)
    found, shaders = program(x), shaders_in(program, x)
    program.close()
    assert error_of(found, model, x) <= LOSS and shaders == ["product_rows"] * 2


def constants_of(program: VulkanProgram, x: Tensor) -> set[Storage]:
    steps = [step.operation for step in program.profile([x])]
    held = (storage for step in steps if isinstance(step, Dispatch) for storage, _, _ in storages(step))
    return {storage for storage in held if storage.kind is StorageKind.CONSTANT}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("scheme", [None, "int8_weights", "int4_weights"])
@pytest.mark.parametrize("is_one", [False, True])
def test_prompts_and_tokens_have_the_same_weights(
    gpu: Device, precision: str, scheme: str | None, is_one: bool
) -> None:
    model = FeedForward(96, 44, bias=True, is_one=is_one).eval()
    prompt, token = floats(1, 11, 96), floats(1, 1, 96)
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = torch.export.export(model, (prompt,), dynamic_shapes=({1: rows},))
    quantize = {} if scheme is None else {"quantize": scheme}
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", **quantize)
    program = VulkanProgram(module.program, gpu, precision=PrecisionChoice.of(precision))
    found = [program(x) for x in (prompt, token)]
    assert ["pointwise_2_1" in shaders_in(program, x) for x in (prompt, token)] == [True, False]
    held = [constants_of(program, x) for x in (prompt, token)]
    program.close()
    assert held[0] == held[1]
    bits = {"int8_weights": 8, "int4_weights": 4, None: 32 if precision == "fp32" else 16}[scheme]
    assert sorted(storage.nbytes for storage in held[0])[-1] == 96 * 88 * bits // 8
    if scheme is None and precision == "fp32":
        for x, result in zip((prompt, token), found, strict=True):
            assert error_of(result, model, x) <= LOSS
            model.float()


def test_one_program_for_all_sizes(gpu: Device) -> None:
    """Lowerings are recorded for sizes that are open."""
    model = FeedForward(68, 44, norm="rms").eval()
    program = program_of(model, floats(9, 68), gpu)
    for rows in (9, 11, 3, 1, 17, 4, 5, 2):
        x = floats(rows, 68, seed=rows)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=2e-6)
        assert ("pointwise_2_1" in shaders_in(program, x)) == (rows > MOST_ROWS)
    program.close()


def test_a_switch_leaves_it_out(gpu: Device) -> None:
    model, x = FeedForward(68, 44, norm="rms"), floats(1, 68)
    gpu.info = replace(gpu.info, switches=gpu.info.switches | {"no-gated-products"})
    found, shaders = run(model, x, gpu)
    assert shaders == ["product_rows_normalized", "pointwise_2_1", "product_rows"]
    assert error_of(found, model, x) <= LOSS


@pytest.mark.parametrize("rows", [1, 9])
def test_what_a_profile_says(gpu: Device, rows: int) -> None:
    model, x = FeedForward(68, 44), floats(rows, 68)
    program = program_of(model, x, gpu)
    steps = [step.operation for step in program.profile([x]) if isinstance(step.operation, Dispatch)]
    program.close()
    texts = [[node.text.partition(" ")[0] for node in step.source.nodes] for step in steps]
    layers, gating = ["aten::linear"] * 2, ["aten::mul", "aten::silu"]
    last = ["aten::add", "aten::linear"]
    assert [sorted(each) for each in texts] == ([[*layers, *gating], last] if rows == 1 else [layers, gating, last])
    assert steps[0].label == ("aten::linear 1x44" if rows == 1 else "aten::linear 9x88")
    assert steps[0].call.flops >= 2 * rows * 68 * 88


@pytest.mark.parametrize("scheme", ["", "int4"])
@pytest.mark.parametrize("norm", ["", "rms"])
def test_chained(device: Device, monkeypatch: pytest.MonkeyPatch, scheme: str, norm: str) -> None:
    """Twins that wait for a counter, and read their first weights before."""
    if device.info.limits.max_push_constants_size < CHAIN_END:
        pytest.skip(f"{device.info.name} has push constants of {device.info.limits.max_push_constants_size} bytes")
    switches = frozenset({"emulated-chains", "no-texels", "shared-products"})
    monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    monkeypatch.setattr(device, "chains", True)
    assert chained_workgroups(device.info)
    seen: list[str] = []

    def noted(dispatch: Dispatch, most: int) -> bool:
        if may_chain(dispatch, most):
            seen.append(dispatch.shader)
        return may_chain(dispatch, most)

    monkeypatch.setattr(executable_module, "may_chain", noted)
    model, x = nn.Sequential(*(FeedForward(96, 44, norm=norm) for _ in range(2))).eval(), floats(2, 96)
    exported = torch.export.export(model, (x,))
    quantize = {"quantize": f"{scheme}_weights"} if scheme else {}
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", **quantize)
    program = VulkanProgram(module.program, device)
    found = [program(x) for _ in range(3)]
    program.close()
    kernels = [("product_rows", "_quantized" if scheme else ""), ("product_row_units", "")]  # by what the device has
    assert seen[:2] in [[f"{name}{'_normalized' if norm else ''}{end}", f"{name}{end}"] for name, end in kernels]
    assert device.chains and all(torch.equal(found[0], other) for other in found[1:])
    monkeypatch.setattr(device, "info", replace(device.info, switches=frozenset()))
    torch.testing.assert_close(found[0], VulkanProgram(module.program, device)(x), rtol=1e-5, atol=1e-5)
