"""Two layers of a few rows in one dispatch: as text, beside the CPU on odd sizes, and where it isn't worth it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise

import pytest
import torch
from device_infos import known_device, lavapipe
from steps import stepped
from straight_lines import line_of
from test_recorded import Checked
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_row_layers import fold_row_layers
from mobopt.runtimes.vulkan.compile.fusion_scaling import fold_scalings
from mobopt.runtimes.vulkan.engine import executable as executable_module
from mobopt.runtimes.vulkan.engine.chains import may_chain
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import row_layers as row_layers_module
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS
from mobopt.runtimes.vulkan.kernels.row_layers import (
    NO_ROW_LAYERS,
    RowLayersKernel,
    RowLayersShape,
    Sharing,
    most_joined_rows,
    row_layers_kernels,
)
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.lowerings.row_layers import ROW_LAYERS
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.push_constants import CHAIN_END

load_lowerings()

H200 = known_device("nvidia_h200")
SHADER = "product_row_layers"
Activate = Callable[[Tensor], Tensor]


@pytest.fixture
def gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device with the kernels of GPUs, without matrix units, and with the costs of none in particular."""
    info = replace(device.info, kind="discrete", vendor_id=0, switches=frozenset({"no-matrix-units"}))
    monkeypatch.setattr(device, "info", info)
    return device


def floats(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


# As text.

TENSORS = {
    "w0": floats(6, 13), "b0": floats(6), "w1": floats(22, 6), "b1": floats(22), "wide": floats(4096, 13),
    "narrow": floats(22, 4096), "k0": floats(6, 13, 1, 1), "k1": floats(13, 6, 1, 1), "taps": floats(6, 13, 3, 3),
}  # fmt: skip
X, H, Y = "Float(3, 13)", "Float(3, 6)", "Float(3, 22)"
IMAGE, SQUEEZED, GATE = "Float(1, 13, 5, 7)", "Float(1, 13, 1, 1)", "Float(1, 6, 1, 1)"
CONV = "[1, 1], [0, 0], [1, 1], 1)"


def folded(
    *lines: str,
    returned: str = "%y",
    given: str = f"%x : {X}, %u : {Y}, %i : {IMAGE}",
    device: DeviceInfo = H200,
    apart: str = "",
) -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    fold_epilogues(graph)
    fold_scalings(graph)
    fold_row_layers(graph, device, is_apart=lambda node: node.qualified_op == apart)
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.block.nodes]


FIRST = f"%z : {H} = aten::linear(%x, %w0, %b0)"
RELU = f"%h : {H} = aten::relu(%z)"
SECOND = f"%y : {Y} = aten::linear(%h, %w1, %b1)"


def test_the_text() -> None:
    graph = folded(FIRST, RELU, SECOND, given=f"%x : {X}")
    assert print_graph(graph, digests=False) == textwrap.dedent(
        """\
        graph(%x : Float(3, 13)):
          %w0 : Float(6, 13) = prim::Constant[value=<Tensor float32 [6, 13]>]()
          %b0 : Float(6) = prim::Constant[value=<Tensor float32 [6]>]()
          %w1 : Float(22, 6) = prim::Constant[value=<Tensor float32 [22, 6]>]()
          %b1 : Float(22) = prim::Constant[value=<Tensor float32 [22]>]()
          %y : Float(3, 22) = mobopt::row_layers()
            block0():
              %z : Float(3, 6) = aten::linear(%x, %w0, %b0)
              %h : Float(3, 6) = aten::relu(%z)
              %0 : Float(3, 22) = aten::linear(%h, %w1, %b1)
              -> (%0)
          return (%y)
        """
    )
    assert print_graph(parse_graph(print_graph(graph), TENSORS)) == print_graph(graph)
    (whole,) = graph.block.nodes
    dissolve(whole)
    verify_graph(graph)
    assert operators(graph) == ["aten::linear", "aten::relu", "aten::linear"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([FIRST, RELU, SECOND], ["linear", "relu", "linear"]),
        ([f"%h : {H} = aten::linear(%x, %w0, None)", f"%y : {Y} = aten::linear(%h, %w1, None)"], ["linear", "linear"]),
        (
            [FIRST, RELU, f"%s : {Y} = aten::linear(%h, %w1, %b1)", f"%t : {Y} = aten::add.Tensor(%s, %u, 1)",
             f"%y : {Y} = aten::sigmoid(%t)"],
            ["linear", "relu", "linear", "add", "sigmoid"],
        ),
        (
            [f"%p : {SQUEEZED} = aten::mean.dim(%i, [2, 3], True, None)",
             f"%c : {GATE} = aten::conv2d(%p, %k0, %b0, {CONV}", f"%h : {GATE} = aten::silu(%c)",
             f"%s : {SQUEEZED} = aten::conv2d(%h, %k1, None, {CONV}", f"%g : {SQUEEZED} = aten::hardsigmoid(%s)",
             f"%y : {IMAGE} = aten::mul.Tensor(%g, %i)"],
            ["conv2d", "silu", "conv2d", "hardsigmoid"],
        ),
    ],
)  # fmt: skip
def test_what_is_folded(lines: list[str], expected: list[str]) -> None:
    graph = folded(*lines)
    (whole,) = [node for node in graph.block.nodes if node.op == ROW_LAYERS]
    found = [part.op.removeprefix("aten::") for part in whole.blocks[0].nodes]
    assert found == expected
    assert PRODUCT not in operators(graph)


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([FIRST, RELU, SECOND, f"%e : {H} = aten::exp(%h)"], "%y, %e"),  # it has two readers
        ([FIRST, RELU, SECOND], "%y, %h"),
        ([FIRST, f"%h : {H} = aten::exp(%z)", SECOND], "%y"),  # no epilogue knows it
        (["%z : Float(3, 4096) = aten::linear(%x, %wide, None)", f"%y : {Y} = aten::linear(%z, %narrow, %b1)"], "%y"),
        ([f"%c : Float(1, 6, 3, 5) = aten::conv2d(%i, %taps, None, {CONV}",
          f"%y : Float(1, 13, 3, 5) = aten::conv2d(%c, %k1, None, {CONV}"], "%y"),
        ([f"%c : Float(1, 6, 5, 7) = aten::conv2d(%i, %k0, None, {CONV}",  # many rows
          f"%y : {IMAGE} = aten::conv2d(%c, %k1, None, {CONV}"], "%y"),
        ([f"%z : {H} = aten::linear(%x, %v6, None)", f"%y : {Y} = aten::linear(%z, %w1, None)"], "%y"),  # computed
        ([FIRST, f"%h : {H} = aten::add.Tensor(%z, %v, 1)", SECOND], "%y"),
    ],
)  # fmt: skip
def test_what_is_not(lines: list[str], returned: str) -> None:
    given = f"%x : {X}, %u : {Y}, %i : {IMAGE}, %v : {H}, %v6 : Float(6, 13)"
    assert ROW_LAYERS not in operators(folded(*lines, returned=returned, given=given))


def test_where_it_is_not() -> None:
    assert ROW_LAYERS in operators(folded(FIRST, RELU, SECOND))
    assert ROW_LAYERS not in operators(folded(FIRST, RELU, SECOND, device=lavapipe("22.3.6")))
    assert ROW_LAYERS not in operators(folded(FIRST, RELU, SECOND, apart="aten::relu"))
    switched = replace(H200, switches=frozenset({NO_ROW_LAYERS}))
    assert ROW_LAYERS not in operators(folded(FIRST, RELU, SECOND, device=switched))
    few = replace(H200, limits=replace(H200.limits, max_storage_buffers=6))
    assert ROW_LAYERS not in operators(folded(FIRST, RELU, SECOND, device=few))


# Costs.


@pytest.mark.parametrize(("inner", "middle", "are_halves", "does"), [
    (96, 4, False, True), (672, 28, False, True), (1152, 48, True, True), (1280, 48, False, False),
    (960, 240, False, False), (960, 240, True, False), (960, 1280, True, False),
])  # fmt: skip
def test_what_pays(inner: int, middle: int, are_halves: bool, does: bool) -> None:
    assert bool(most_joined_rows(H200, inner, middle, inner, are_halves)) == does


def test_wide_second_layers_keep_their_own_kernel() -> None:
    assert not most_joined_rows(H200, 16, 1024, 1000, are_halves=False)
    assert most_joined_rows(H200, 64, 32, 1000, are_halves=False)
    assert not most_joined_rows(H200, 64, 64, 200_000, are_halves=False)


@pytest.mark.parametrize("name", ["arm_mali_g78", "qualcomm_adreno_650", "apple_m1_moltenvk", "nvidia_h200"])
@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
def test_kernels_fit(name: str, rows: int) -> None:
    device, shape = known_device(name), RowLayersShape.of(rows, 1152, 48, 1152)
    found = [*row_layers_kernels(device, shape)]
    assert found and all(kernel.fits(device, shape) and kernel.rows >= rows for kernel in found)
    for each in (share for kernel in found for share in (kernel.first, kernel.second)):
        assert each.teams.bit_count() == each.steps.bit_count() == 1
    assert all(
        each.columns * each.teams <= kernel.invocations for kernel in found for each in (kernel.first, kernel.second)
    )


# Results.


class Layers(nn.Module):
    """Linear layers of odd sizes."""

    def __init__(self, sizes: tuple[int, int, int], activate: Activate = functional.relu, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(sum(sizes))
        inner, middle, columns = sizes
        self.first, self.second = nn.Linear(inner, middle, bias), nn.Linear(middle, columns, bias)
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.second(self.activate(self.first(x))))


class Excitation(nn.Module):
    """A squeeze-and-excitation of a convolution."""

    def __init__(
        self, channels: int, squeezed: int, activate: Activate = functional.silu, scale: Activate = torch.sigmoid
    ) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.before = nn.Conv2d(3, channels, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.after = nn.Conv2d(channels, 11, 1)
        self.activate, self.scale = activate, scale

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.before(x))
        gate = self.scale(self.excite(self.activate(self.squeeze(x.mean([2, 3], keepdim=True)))))
        return self.after(gate * x)


class ExcitationInSteps(Excitation):
    """The same of a mean that is rounded, as in quantised models."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.before(x))
        mean = stepped(x.mean([2, 3], keepdim=True), 0.01)
        return self.after(self.scale(self.excite(self.activate(self.squeeze(mean)))) * x)


def program_of(model: nn.Module, x: Tensor, device: Device, precision: str = "fp32") -> VulkanProgram:
    with torch.no_grad():
        traced = program_from_script_module(torch.jit.trace(model.eval(), x))
    return VulkanProgram(traced, device, precision=PrecisionChoice.of(precision))


def dispatches(program: VulkanProgram, x: Tensor) -> list[Dispatch]:
    steps = [step.operation for step in program.profile([x])]
    return [step for step in steps if isinstance(step, Dispatch)]


def run(model: nn.Module, x: Tensor, device: Device, precision: str = "fp32") -> tuple[Tensor, list[str]]:
    program = program_of(model, x, device, precision)
    result = program(x)
    shaders = [step.shader for step in dispatches(program, x)]
    program.close()
    assert isinstance(result, Tensor)
    return result, shaders


def check(model: nn.Module, x: Tensor, device: Device) -> list[str]:
    found, shaders = run(model, x, device)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=2e-6)
    assert SHADER in shaders and not any(name.startswith("product_rows") for name in shaders)
    return shaders


@pytest.mark.parametrize("lead", [(), (1,), (2,), (1, 3), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("sizes", [(13, 7, 37), (131, 29, 67), (4, 1, 1), (1, 2, 3), (257, 53, 301)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers(gpu: Device, lead: tuple[int, ...], sizes: tuple[int, int, int], bias: bool) -> None:
    shaders = check(Layers(sizes, bias=bias), floats(*lead, sizes[0]), gpu)
    assert len(shaders) <= 3  # rows that don't start on vec4s are copied, and so is a result that has them


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize(("channels", "squeezed"), [(13, 3), (40, 10), (67, 5)])
def test_squeeze_and_excitation(gpu: Device, batch: int, channels: int, squeezed: int) -> None:
    shaders = check(Excitation(channels, squeezed), floats(batch, 3, 7, 5), gpu)
    assert shaders.count(SHADER) == shaders.count("reduce") == 1
    assert sum("scaled" in name for name in shaders) == 1


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("channels", "squeezed"), [(13, 3), (67, 5)])
def test_a_mean_in_steps(gpu: Device, batch: int, channels: int, squeezed: int) -> None:
    shaders = check(ExcitationInSteps(channels, squeezed), floats(batch, 3, 7, 5), gpu)
    assert shaders.count(SHADER) == shaders.count("reduce") == 1


def test_rows_in_steps(gpu: Device) -> None:
    """Whose rounding nothing else reads, or the caller, too."""

    class Both(nn.Module):
        def __init__(self, is_read: bool) -> None:
            super().__init__()
            self.layers, self.is_read = Layers((37, 9, 19)), is_read

        def forward(self, x: Tensor) -> Tensor:
            x = stepped(x, 0.05)
            y = self.layers(x)
            return torch.cat([x, y], 1) if self.is_read else y

    for is_read in (False, True):
        check(Both(is_read), floats(3, 37), gpu)


ACTIVATIONS: dict[str, Activate] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": functional.mish,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.25),
    "clamp": lambda x: torch.clamp(x, -0.25, 0.5),
    "none": lambda x: x,
    "two": lambda x: torch.sigmoid(functional.silu(x)),
    "in steps": lambda x: stepped(functional.silu(stepped(x, 0.05)), 0.03),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(gpu: Device, name: str) -> None:
    """Of both layers: those that aren't zero at zero must not make pad lanes count."""
    check(Layers((37, 9, 19), ACTIVATIONS[name]), floats(2, 37), gpu)
    check(Excitation(13, 5, ACTIVATIONS[name], ACTIVATIONS[name]), floats(1, 3, 4, 5), gpu)


def test_a_residual(gpu: Device) -> None:
    class Residual(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.second(self.activate(self.first(x))) + x)

    assert check(Residual((44, 7, 44)), floats(3, 44), gpu) == [SHADER]


class Pixels(nn.Module):
    """Convolutions in one dimension, or two, by single pixels of few."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = kind(13, 6, 1), kind(6, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.hardswish(self.first(x)))


@pytest.mark.parametrize(
    ("kind", "sizes"), [(nn.Conv1d, (2, 13, 1)), (nn.Conv1d, (2, 13, 2)), (nn.Conv2d, (1, 13, 2, 2)),
                        (nn.Conv2d, (2, 13, 1, 2)), (nn.Conv2d, (3, 13, 1, 1))],
)  # fmt: skip
def test_convolutions(gpu: Device, kind: type[nn.Module], sizes: tuple[int, ...]) -> None:
    check(Pixels(kind), floats(*sizes), gpu)


def test_more_layers_than_two(gpu: Device) -> None:
    """They are paired from the first on."""
    torch.manual_seed(1)
    sizes = (36, 31, 19, 15, 12)
    layers = [(nn.Linear(inner, columns), nn.GELU()) for inner, columns in pairwise(sizes)]
    assert check(nn.Sequential(*chain.from_iterable(layers)), floats(1, 36), gpu) == [SHADER] * 2


def test_what_is_not_finite_stays_in_its_row(gpu: Device) -> None:
    model, x = Layers((37, 9, 19)), floats(3, 37)
    x[1, 36] = torch.inf
    program = program_of(model, x, gpu)
    found = program(x)
    program.close()
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=2e-6, equal_nan=True)


def _kernels() -> list[RowLayersKernel]:
    shape = RowLayersShape.of(1, 331, 27, 75)
    small = RowLayersKernel(1, 32, Sharing(7, 2, 1), Sharing(4, 2, 1))
    odd = RowLayersKernel(1, 128, Sharing(7, 16, 2), Sharing(8, 16, 1))
    one = RowLayersKernel(1, 64, Sharing(7, 1, 4), Sharing(32, 1, 2))
    return [small, odd, one, *row_layers_kernels(H200, shape)]


@pytest.mark.parametrize("kernel", _kernels(), ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_every_kernel(gpu: Device, monkeypatch: pytest.MonkeyPatch, kernel: RowLayersKernel, rows: int) -> None:
    kernel, shape = replace(kernel, rows=1 if rows == 1 else 4), RowLayersShape.of(rows, 331, 27, 75)
    if not kernel.fits(gpu.info, shape):
        pytest.skip("larger than this device's workgroups")
    monkeypatch.setattr(row_layers_module, "_choose", lambda *args: (kernel, 0.0))
    check(Layers((331, 27, 75), torch.sigmoid), floats(rows, 331), gpu)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("rows", [1, 4])
def test_what_lies_as_halves(gpu: Device, precision: str, rows: int) -> None:
    tolerance = 2e-3 if precision == "fp16" else 2e-2
    layers, x = Layers((136, 53, 67), functional.silu), floats(rows, 136)
    excitation, image = Excitation(40, 11), floats(rows, 3, 7, 6)
    for model, given in ((layers, x), (excitation, image)):
        found, shaders = run(model, given, gpu, precision)
        with torch.no_grad():
            exact = model(given)
        assert (found - exact).abs().max() <= tolerance * exact.abs().max()
        assert shaders.count(SHADER) == 1
    program = program_of(layers, x, gpu, precision)
    (step,) = [step for step in dispatches(program, x) if step.shader == SHADER]
    program.close()
    halves = torch.float16 if precision == "fp16" else torch.bfloat16
    assert [step.bindings[place].storage.elements for place in (1, 5)] == [halves] * 2


def test_layers_of_a_model_in_halves(gpu: Device) -> None:
    """What lies between them is a little more exact than the model's own halves."""
    model, x = Layers((24, 8, 20)).half(), floats(2, 24).half()
    found, shaders = run(model, x, gpu)
    assert shaders.count(SHADER) == 1
    assert found.dtype == torch.float16
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=2e-3, atol=1e-3)


def test_weights_of_few_bits_stay_as_they_are(gpu: Device) -> None:
    model, x = Layers((96, 32, 64)).eval(), floats(1, 96)
    exported = torch.export.export(model, (x,))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize="int8_weights")
    program = VulkanProgram(module.program, gpu)
    assert [step.shader for step in dispatches(program, x)] == ["product_rows_quantized"] * 2
    program.close()


def test_the_optimised_model(gpu: Device) -> None:
    """Whose layers have packed weights."""
    model, x = Excitation(40, 10).eval(), floats(2, 3, 7, 5)
    exported = torch.export.export(model, (x,))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt")
    program = VulkanProgram(module.program, gpu)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=2e-6)
    assert SHADER in [step.shader for step in dispatches(program, x)]
    program.close()


def test_one_program_for_all_sizes(gpu: Device) -> None:
    """Lowerings are recorded for sizes that are open."""
    layers, excitation = Layers((68, 11, 44)).eval(), Excitation(40, 10).eval()
    for model, sizes in ((layers, (68,)), (excitation, (3, 5, 6))):
        program = program_of(model, floats(9, *sizes), gpu)
        for rows in (9, 11, 3, 1, 17, 4, 5, 2):
            x = floats(rows, *sizes, seed=rows)
            with torch.no_grad():
                torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=2e-6)
            assert (SHADER in [step.shader for step in dispatches(program, x)]) == (rows <= MOST_ROWS)
        program.close()


def test_recordings_are_what_lowering_gives() -> None:
    for model, sizes in ((Layers((68, 11, 44)), (68,)), (Excitation(40, 10), (3, 5, 6))):
        traced = program_from_script_module(torch.jit.trace(model.eval(), floats(9, *sizes)))
        checked = Checked(traced, H200)
        for rows in (9, 11, 3, 4, 5, 2):
            checked.check([floats(rows, *sizes)])
        assert checked.hits >= 4


def test_a_switch_leaves_it_out(gpu: Device) -> None:
    model, x = Layers((36, 8, 20)), floats(1, 36)
    gpu.info = replace(gpu.info, switches=gpu.info.switches | {NO_ROW_LAYERS})
    found, shaders = run(model, x, gpu)
    assert shaders == ["product_rows"] * 2
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=2e-6)


def test_what_a_profile_says(gpu: Device) -> None:
    model, x = Layers((36, 8, 20)), floats(1, 36)
    program = program_of(model, x, gpu)
    (step,) = dispatches(program, x)
    program.close()
    assert sorted(node.text.partition(" ")[0] for node in step.source.nodes) == [
        *("aten::linear", "aten::linear", "aten::relu", "aten::sigmoid"),
    ]
    assert step.call.flops >= 2 * (36 * 8 + 8 * 20)


def test_chained(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins that wait for a counter, and read their first weights before."""
    if device.info.limits.max_push_constants_size < CHAIN_END:
        pytest.skip(f"{device.info.name} has push constants of {device.info.limits.max_push_constants_size} bytes")
    switches = frozenset({"emulated-chains", "no-texels", "shared-products"})
    monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    monkeypatch.setattr(device, "chains", True)
    seen: list[str] = []

    def noted(dispatch: Dispatch, most: int) -> bool:
        if may_chain(dispatch, most):
            seen.append(dispatch.shader)
        return may_chain(dispatch, most)

    monkeypatch.setattr(executable_module, "may_chain", noted)
    model, x = nn.Sequential(Layers((37, 9, 23)), Layers((23, 5, 131), functional.hardswish)).eval(), floats(3, 37)
    program = program_of(model, x, device)
    found = [program(x) for _ in range(3)]
    steps = [step for step in dispatches(program, x) if step.shader == SHADER]
    program.close()
    assert seen.count(SHADER) >= 2 and all(step.specialization[20] == 1 for step in steps)
    assert device.chains and all(torch.equal(found[0], other) for other in found[1:])
    with torch.no_grad():
        torch.testing.assert_close(found[0], model(x), rtol=1e-5, atol=2e-6)
