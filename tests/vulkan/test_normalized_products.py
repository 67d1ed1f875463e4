"""Linear layers that normalise the rows of their input: as text, and beside float64 on odd sizes and far means."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from device_infos import known_device, lavapipe
from test_matrix_units import LLVMPIPE_TURNS, emulated_turns
from torch import Tensor, nn

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_normalization import fold_normalizations
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import gpu_kernels, product_kernels, product_normalizing
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import BLOCKS, SPLIT_BLOCKS, MatrixKernel
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.product_normalizing import RowNormalization, can_normalize, may_normalize, pays
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import RowKernel
from mobopt.runtimes.vulkan.lowerings import matmul
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

KNOWN = known_device("nvidia_h200")
H200 = replace(KNOWN, features=KNOWN.features - {ORDERED_FRAGMENTS})
"""Whose kernels all read by way of shared memory."""
LOSS = 1e-6
"""Of results of three layers, whose sums' magnitudes are several times as large; where there is an offset, halves and
floats lose digits of what it is added to, before anything is normalised."""

X, Y = "Float(2, 19, 24)", "Float(2, 19, 40)"
TENSORS = {"g": torch.randn(24), "w": torch.randn(40, 24), "b": torch.randn(40), "v": torch.randn(19, 24)}
NORM = f"%n : {X} = aten::layer_norm(%x, [24], %g, None, 1e-05, True)"
LINEAR = f"%y : {Y} = aten::linear(%n, %w, %b)"


def folded(*lines: str, returned: str = "%y", device: DeviceInfo = H200) -> Graph:
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n".replace(",)", ")")
        for name, value in TENSORS.items()
    )
    text = f"graph(%x : {X}, %s : Float(24)):\n{constants}" + "".join(f"  {line}\n" for line in lines)
    graph = parse_graph(f"{text}  return ({returned})\n", TENSORS)
    fold_epilogues(graph)
    fold_normalizations(graph, device)
    verify_graph(graph)
    return graph


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([NORM, LINEAR], ["layer_norm", "linear"]),
        ([f"%n : {X} = aten::rms_norm(%x, [24], %g, None)", LINEAR], ["rms_norm", "linear"]),
        (
            [NORM, f"%z : {Y} = aten::linear(%n, %w, None)", f"%y : {Y} = aten::relu(%z)"],
            ["layer_norm", "linear", "relu"],
        ),
    ],
)
def test_what_is_folded(lines: list[str], expected: list[str]) -> None:
    graph = folded(*lines)
    (whole,) = graph.block.nodes
    assert whole.op == PRODUCT
    assert [node.op.removeprefix("aten::") for node in whole.blocks[0].nodes] == expected
    assert parts_of(whole)[0].op == "aten::linear"
    assert print_graph(parse_graph(print_graph(graph), TENSORS)) == print_graph(graph)
    dissolve(whole)
    verify_graph(graph)
    assert len(list(graph.block.nodes)) == len(lines)


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([NORM, LINEAR], "%y, %n"),  # it is read elsewhere too
        ([f"%n : {X} = aten::layer_norm(%x, [24], %s, None, 1e-05, True)", LINEAR], "%y"),  # gains are no constants
        ([f"%n : {X} = aten::layer_norm(%x, [19, 24], %v, None, 1e-05, True)", LINEAR], "%y"),  # no rows
        ([f"%n : {X} = aten::relu(%x)", LINEAR], "%y"),
    ],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    assert all(node.op != PRODUCT for node in folded(*lines, returned=returned).block.nodes)


def test_what_devices_do() -> None:
    """Few rows anywhere but on CPUs; more where there are matrix units."""
    plain = replace(H200, matrix_shapes=())
    assert may_normalize(H200, 197, 384) and not may_normalize(plain, 197, 384) and may_normalize(plain, 1, 384)
    assert not may_normalize(H200, 197, 8192) and not may_normalize(H200, 197, 0)
    assert not may_normalize(replace(H200, switches=frozenset({"no-normalized-products"})), 197, 384)
    assert not may_normalize(lavapipe("22.3.6"), 1, 384)


@pytest.mark.parametrize("half_run", [0, 8])
def test_what_is_chosen(half_run: int) -> None:
    runs = {"half_run": half_run} if half_run else {"float_run": 8}
    shape = ProductShape(197, 96, 384, 384, is_plain=True, is_normalized=True, **runs)
    kernel = choose_gpu_kernel(H200, shape)
    assert isinstance(kernel, MatrixKernel) and kernel.parts == 1 and kernel.normalized
    few = choose_gpu_kernel(H200, replace(shape, rows=1))
    assert isinstance(few, RowKernel) and few.normalized
    assert pays(H200, 197, 384, 1536, bool(half_run)) and pays(H200, 1, 768, 3072, bool(half_run))


def test_what_does_not_pay() -> None:
    """In halves, the blocks that suit many rows best run out of registers."""
    assert not pays(H200, 512, 768, 2304, True) and not pays(H200, 512, 768, 3072, True)
    assert pays(H200, 784, 192, 768, True)


def test_few_rows_of_floats_where_units_take_halves_only() -> None:
    """Floats are split on some GPUs only; the kernel for few rows is there for all."""
    plan = Plan(replace(H200, name="NVIDIA GeForce RTX 4090"))
    source, weight = plan.empty((1, 384)), torch.ones(384, 64)
    rows = RowNormalization(None, None, 1e-5, True)
    assert can_normalize(plan, source, 1, rows, weight) and not can_normalize(plan, source, 197, rows, weight)
    assert can_normalize(Plan(H200), source, 197, rows, weight)


def floats(*sizes: int) -> Tensor:
    """Seeded numbers of all 24 bits."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


class Layer(nn.Module):
    """A layer of a transformer's feed-forward part; what it normalises was computed, so it may lie as halves."""

    def __init__(self, inner: int, columns: int, is_rms: bool = False, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(inner, inner)
        self.norm: nn.Module = nn.RMSNorm(inner) if is_rms else nn.LayerNorm(inner)
        self.up, self.down = nn.Linear(inner, columns, bias=bias), nn.Linear(columns, inner)
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        x = self.first(x) + offset
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


def force(monkeypatch: pytest.MonkeyPatch, units: Device, block: MatrixKernel) -> None:
    """Have products of normalised rows computed by a block."""
    emulated = "matrix_units" not in units.info.features
    lanes = 32 if emulated else units.info.subgroup_size

    def choose(info: DeviceInfo, shape: ProductShape) -> object:
        if not shape.is_normalized or (shape.half_run == 0) != block.split:
            return choose_gpu_kernel(info, shape)
        narrow = (shape.half_run or shape.float_run) < 8
        kernel = replace(block, lanes=lanes, narrow=narrow, emulated=emulated, normalized=True)
        if not kernel.fits(info):
            pytest.skip("the block needs more shared memory, or more invocations")
        if emulated and (9 if block.split else 2) * emulated_turns(kernel, shape) > LLVMPIPE_TURNS:
            pytest.skip("llvmpipe would end the loops that stand for matrix units")
        return kernel

    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)
    monkeypatch.setattr(matmul, "pays", lambda *sizes: True)


def check(units: Device, model: Layer, x: Tensor, offset: Tensor, shader: str, precision: str, bound: float) -> None:
    """Run, see which kernel did it, and compare with float64."""
    with torch.no_grad():
        program = program_from_script_module(torch.jit.trace(model, (x, offset)))
        runner = VulkanProgram(program, units, precision=PrecisionChoice.of(precision))
        found = runner(x, offset)
        again = runner.profile([x, offset])
        shaders = [step.operation.shader for step in again if isinstance(step.operation, Dispatch)]
        assert sum(name.startswith(shader) for name in shaders) == 1, shaders
        assert not any(name.startswith("normalize") for name in shaders)
        runner.close()
        exact = model.double()(x.double(), offset.double())
        model.float()
    assert float((found.double() - exact).abs().max() / exact.abs().max()) <= bound


SIZES = [(1, 24, 40), (19, 30, 17), (67, 104, 64), (131, 7, 12)]


@pytest.mark.parametrize("offset", [0.0, 5.0, 3000.0])
@pytest.mark.parametrize("is_rms", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_floats(units: Device, monkeypatch, sizes: tuple[int, int, int], is_rms: bool, offset: float) -> None:
    """Means far from zero lose nothing: what is added to them costs digits of the sum itself alone."""
    rows, inner, columns = sizes
    force(monkeypatch, units, replace(SPLIT_BLOCKS[0], split=True))
    model = Layer(inner, columns, is_rms)
    loss = LOSS * max(1.0, 0.0 if is_rms else offset)
    shader = "product_matrix_split_normalized"
    check(units, model, floats(rows, inner), torch.tensor(offset), shader, "fp32", loss)


@pytest.mark.parametrize("bias", [False, True])
def test_far_means_of_single_rows(units: Device, monkeypatch, bias: bool) -> None:
    """All rows of a block are computed once more; integers lose nothing in the sums."""
    force(monkeypatch, units, replace(SPLIT_BLOCKS[0], split=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(40), nn.Linear(40, 24, bias=bias)).eval()
    x = torch.randint(-9, 10, (2, 37, 40), generator=torch.Generator().manual_seed(0)).float()
    x[0, 3] += 2.0**20
    x[1, 7] = 17.0
    x[1, 8] = 0.0
    x[1, 9] *= 1e-12
    x[1, 10] *= 1e12
    with torch.no_grad():
        runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), units)
        found = runner(x)
        exact = model.double()(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=3e-6)
    runner.close()


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("rows", [2, 37])
def test_special_numbers(units: Device, monkeypatch, rows: int, number: float) -> None:
    """They spoil their own row alone, as torch has it."""
    force(monkeypatch, units, replace(SPLIT_BLOCKS[0], split=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 20)).eval()
    x = floats(rows, 24)
    x[1, 5] = number
    with torch.no_grad():
        runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), units)
        torch.testing.assert_close(runner(x), model(x), rtol=1e-5, atol=2e-6, equal_nan=True)
    runner.close()


DEFAULT = BLOCKS[0], BLOCKS[-2]


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block in DEFAULT else pytest.mark.sweep) for block in BLOCKS]
)
@pytest.mark.parametrize(("sizes", "offset"), [((67, 104, 64), 0.0), ((19, 30, 17), 0.0), ((40, 264, 72), 20.0)])
def test_halves(units: Device, monkeypatch, block: MatrixKernel, sizes: tuple[int, int, int], offset: float) -> None:
    rows, inner, columns = sizes
    force(monkeypatch, units, block)
    model = Layer(inner, columns)
    bound = 1.5e-3 * max(1.0, offset / 2)  # halves of what has an offset have lost digits before
    check(units, model, floats(rows, inner), torch.tensor(offset), "product_matrix_normalized", "fp16", bound)


@pytest.mark.sweep
@pytest.mark.parametrize("block", SPLIT_BLOCKS)
@pytest.mark.parametrize(("sizes", "offset"), [((67, 104, 64), 0.0), ((40, 264, 72), 20.0)])
def test_split_blocks(units: Device, monkeypatch, block: MatrixKernel, sizes: tuple[int, int, int], offset) -> None:
    rows, inner, columns = sizes
    force(monkeypatch, units, replace(block, split=True))
    model = Layer(inner, columns)
    bound = LOSS * max(1.0, offset)
    check(units, model, floats(rows, inner), torch.tensor(offset), "product_matrix_split_normalized", "fp32", bound)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(("inner", "offset"), [(24, 0.0), (30, 7.0), (1000, 0.0), (1000, 100.0)])
@pytest.mark.parametrize("is_rms", [False, True])
def test_few_rows(device: Device, monkeypatch, rows: int, inner: int, offset: float, is_rms: bool) -> None:
    """On every GPU."""
    monkeypatch.setattr(device, "info", replace(device.info, switches=device.info.switches | {"shared-products"}))
    monkeypatch.setattr(gpu_kernels, "matrix_kernels", lambda *given: iter(()))
    monkeypatch.setattr(product_normalizing, "units_lanes", lambda *given: 0)
    bound = LOSS * max(1.0, 0.0 if is_rms else offset)
    model = Layer(inner, 22, is_rms)
    check(device, model, floats(rows, inner), torch.tensor(offset), "product_rows_normalized", "fp32", bound)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_two_dispatches_where_that_is_faster(units: Device, monkeypatch, precision: str) -> None:
    monkeypatch.setattr(matmul, "pays", lambda *sizes: False)
    model = Layer(40, 24).eval()
    x, offset = floats(37, 40), torch.tensor(0.0)
    with torch.no_grad():
        program = program_from_script_module(torch.jit.trace(model, (x, offset)))
        runner = VulkanProgram(program, units, precision=PrecisionChoice.of(precision))
        found = runner(x, offset)
        steps = [step.operation for step in runner.profile([x, offset])]
        assert sum(isinstance(step, Dispatch) and step.shader.startswith("normalize") for step in steps) == 1
        exact = model.double()(x.double(), offset.double())
    bound = {"fp32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}[precision]
    assert float((found.double() - exact).abs().max() / exact.abs().max()) <= bound
    runner.close()


@pytest.mark.parametrize("scheme", ["int8_weights", "int4_weights"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("is_rms", "offset"), [(True, 0.0), (False, 0.0), (False, 100.0)])
def test_weights_of_few_bits(device: Device, monkeypatch, scheme: str, rows: int, is_rms: bool, offset: float) -> None:
    """Beside the same integers in float64; gains are not in them."""
    model = Layer(64, 48, is_rms).eval()
    x, added = floats(rows, 64), torch.tensor(offset)
    with torch.no_grad():
        exported = torch.export.export(model, (x, added))
        module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize=scheme)
        expected = module(x, added)
        monkeypatch.setattr(device, "info", replace(device.info, switches=device.info.switches | {"shared-products"}))
        monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
        runner = VulkanProgram(module.program, device)
        found = runner(x, added)
        steps = [step.operation for step in runner.profile([x, added])]
        runner.close()
    names = [step.shader for step in steps if isinstance(step, Dispatch)]
    kernels = {"product_rows_normalized_quantized", "product_row_units_normalized"}  # by what the device has
    assert len(kernels.intersection(names)) == 1, names
    assert not any(name.startswith("normalize") for name in names)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, offset / 10))


@pytest.mark.parametrize("is_with_units", [False, True])
def test_one_program_for_all_sizes(device: Device, monkeypatch, is_with_units: bool) -> None:
    """Lowerings are recorded for sizes that are open; few rows and many are different kernels."""
    switch = "emulated-matrix-units" if is_with_units else "shared-products"
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete", switches=frozenset({switch})))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 20)).eval()
    runner = VulkanProgram(program_from_script_module(torch.jit.trace(model, floats(9, 24))), device)
    for rows in (9, 11, 3, 1, 17, 4, 5):
        x = floats(rows, 24)
        with torch.no_grad():
            torch.testing.assert_close(runner(x), model(x), rtol=1e-5, atol=2e-6)
        shaders = [step.operation.shader for step in runner.profile([x]) if isinstance(step.operation, Dispatch)]
        assert any(name.startswith("product_rows_normalized") for name in shaders) == (rows <= 4 and not is_with_units)
    runner.close()


@pytest.mark.parametrize(
    ("sizes", "are_halves", "expected"),
    [
        ((197, 384, 1536), True, True),  # ViT-small
        ((197, 768, 3072), True, False),  # ViT-base
        ((197, 768, 3072), False, False),
        ((577, 768, 3072), True, False),
        ((1214, 768, 3072), True, False),
        ((4096, 320, 1280), True, False),
    ],
)
def test_many_rows_are_normalised_apart(sizes: tuple[int, int, int], are_halves: bool, expected: bool) -> None:
    """As was faster on an H200 with its own driver."""
    assert pays(replace(KNOWN, driver_id=4), *sizes, are_halves) == expected


def test_blocks_of_many_rows() -> None:
    """Those of whose workgroups all fit at once, as was faster on an H200: 37 us for 53, and 56 for 97."""
    device = replace(KNOWN, driver_id=4)
    halves = ProductShape(1214, 192, 768, 768, half_run=8, fits_fragments=True, is_plain=True)
    kernel = choose_gpu_kernel(device, halves)
    assert isinstance(kernel, FragmentKernel) and (kernel.rows, kernel.columns, kernel.teams) == (64, 16, 1)
    floats = ProductShape(577, 192, 768, 768, float_run=8, fits_fragments=True, is_plain=True)
    assert isinstance(choose_gpu_kernel(device, floats), MatrixKernel)
