"""Products of a few rows by weights of 4 bits with matrix units, emulated where the device has none: odd sizes,
beside float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_gated_products as gated
import test_quantized as quantized_layers
import torch
from device_infos import known_device
from torch import Tensor, nn

import mobopt
from mobopt.module import MobileModule
from mobopt.ops.quantized import Quantized, quantized
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.gpu_kernels import GpuKernel, choose_gpu_kernel
from mobopt.runtimes.vulkan.kernels.plan import constant_tensor
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.kernels.row_kernels import MOST_ROWS
from mobopt.runtimes.vulkan.kernels.unit_row_kernels import BLOCKS, UnitRowKernel
from mobopt.runtimes.vulkan.kernels.unit_row_weights import unit_row_weights
from mobopt.runtimes.vulkan.program import VulkanProgram

H200 = replace(known_device("nvidia_h200"), driver_id=4)
SHAPE = ProductShape(1, 512, 2816, 2816, is_plain=True, bits=4, fits_fragments=True)
QUANTIZED = [form for form in gated.FORMS if "int4" in form]
floats = gated.floats


def are_units(shaders: list[str]) -> bool:
    """Whether all but copies are."""
    names = [name for name in shaders if not name.startswith("pointwise")]
    return bool(names) and all(name.startswith("product_row_units") for name in names)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 67, 37), (2, 131, 41), (3, 100, 7), (4, 257, 129), (1, 1, 5)]
)
@pytest.mark.parametrize("group", [32, 0, *(pytest.param(group, marks=pytest.mark.sweep) for group in (64, 128))])
def test_layers(units: Device, rows: int, inner: int, columns: int, group: int) -> None:
    weight = quantized(floats(columns, inner), 4, (1, group or inner))
    given = floats(rows, inner, seed=2), weight, floats(columns, seed=3)
    assert are_units(quantized_layers.check(units, "aten::linear", *given))


@pytest.mark.parametrize("group", [32, 67])
def test_zero_points(units: Device, group: int) -> None:
    weight = quantized_layers.asymmetrical(4, 13, 67, group)
    assert are_units(quantized_layers.check(units, "aten::linear", floats(3, 67), weight, floats(13)))


@pytest.mark.parametrize("magnitude", [1e-26, 1e-20, 1e-3, 1e4, 1e20, 1e34])
def test_magnitudes(units: Device, magnitude: float) -> None:
    """Also in one row, and among 32 neighbours."""
    x = floats(3, 131) * magnitude
    x[1] *= 1e-3
    x[2, ::2] *= 1e-3
    weight = quantized(floats(20, 131), 4, (1, 32))
    for row in x:
        assert are_units(quantized_layers.check(units, "aten::linear", row[None], weight, None))


@pytest.mark.parametrize("form", QUANTIZED)
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_row(units: Device, form: str, number: float) -> None:
    """An infinity becomes one, or NaN, as integers are counted from the least there is."""
    x = floats(3, 131)
    x[1, 40] = number
    weight = gated.FORMS[form](20, 131, 2)
    assert isinstance(weight, Quantized)
    found = run_layer(units, x, weight)
    assert not found[1].isfinite().any()
    torch.testing.assert_close(found[::2], x[::2] @ weight.floats().t(), rtol=1e-5, atol=1e-5)


def run_layer(units: Device, x: Tensor, weight: Quantized) -> Tensor:
    segment, _, _ = quantized_layers.segment_of("aten::linear", x, weight, None)
    stream = gated.build_stream(segment, units.info, gated.ConstantStore()).stream
    executable = gated.Executable(units, stream)
    (found,) = executable.run([x])
    executable.close()
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("form", QUANTIZED)
@pytest.mark.parametrize(("sizes", "columns"), gated.SIZES)
def test_gates(units: Device, form: str, sizes: tuple[int, ...], columns: int) -> None:
    gate, passing = (gated.FORMS[form](columns, sizes[-1], seed) for seed in (2, 3))
    biases = floats(columns, seed=4), floats(columns, seed=5)
    assert are_units([gated.check(units, floats(*sizes), gate, passing, biases).shader])


def forced(monkeypatch: pytest.MonkeyPatch, units: Device, block: UnitRowKernel, rows: int) -> list[UnitRowKernel]:
    """Have products that these kernels can compute computed by a block; which ones were is what the list gets."""
    seen: list[UnitRowKernel] = []

    def choose(info: DeviceInfo, shape: ProductShape) -> object:
        kernel = choose_gpu_kernel(info, shape)
        if isinstance(kernel, UnitRowKernel):
            kernel = replace(kernel, rows=rows, tiles=block.tiles, teams=block.teams, steps=block.steps)
            if not kernel.fits(info):
                pytest.skip("larger than this device's workgroups")
            seen.append(kernel)
        return kernel

    monkeypatch.setattr(product_kernels, "choose_gpu_kernel", choose)
    return seen


@pytest.mark.parametrize("form", ["int4", pytest.param("int4 offsets", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.tiles}-{block.teams}-{block.steps}")
@pytest.mark.parametrize("rows", [1, pytest.param(MOST_ROWS, marks=pytest.mark.sweep)])
def test_every_block(
    units: Device, monkeypatch: pytest.MonkeyPatch, form: str, block: UnitRowKernel, rows: int
) -> None:
    seen = forced(monkeypatch, units, block, rows)
    columns = 4 * 37  # no block is full
    gated.check(units, floats(rows, 331), *(gated.FORMS[form](columns, 331, seed) for seed in (2, 3)))
    assert len(seen) == 1


@pytest.mark.parametrize("norm", ["", "rms", "layer"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_models(units: Device, norm: str, rows: int, offset: float) -> None:
    """Norms, gates, residuals; rows whose means are far from zero are made halves twice."""
    torch.manual_seed(1)
    model, x = gated.FeedForward(96, 44, norm=norm, bias=True).eval(), floats(1, rows, 96) + offset
    found, shaders = run_model(units, model, x)
    exact = optimized(model, x)(x)
    assert (found - exact).abs().max() <= 2e-6 * max(1.0, offset / 10 if norm == "layer" else 1.0) * exact.abs().max()
    suffix = "" if "matrix_units" in units.info.features else "_emulated"
    assert shaders == [
        f"product_row_units{'_normalized' if norm else ''}{suffix}",
        f"product_row_units{suffix}",
    ]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rows_of_halves(units: Device, precision: str) -> None:
    model, x = nn.Sequential(nn.Linear(96, 132), nn.ReLU(), nn.Linear(132, 8)).eval(), floats(2, 96)
    found, shaders = run_model(units, model, x, precision)
    exact, _ = run_model(units, model, x)
    assert (found - exact).abs().max() <= (2e-3 if precision == "fp16" else 2e-2) * exact.abs().max()
    assert are_units(shaders)


def optimized(model: nn.Module, x: Tensor) -> MobileModule:
    exported = torch.export.export(model, (x,))
    return mobopt.optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize="int4_weights")


def run_model(units: Device, model: nn.Module, x: Tensor, precision: str = "fp32") -> tuple[Tensor, list[str]]:
    program = VulkanProgram(optimized(model, x).program, units, precision=gated.PrecisionChoice.of(precision))
    found = program(x)
    shaders = gated.shaders_in(program, x)
    program.close()
    assert isinstance(found, Tensor)
    return found, shaders


# What is chosen.


def chosen(device: DeviceInfo = H200, **sizes: object) -> GpuKernel:
    return choose_gpu_kernel(device, replace(SHAPE, **sizes))  # type: ignore[arg-type]


def test_which_products_they_compute() -> None:
    kernel = chosen()
    assert isinstance(kernel, UnitRowKernel) and kernel.inner == 512 and kernel.shader == "product_row_units"
    assert isinstance(chosen(rows=MOST_ROWS, is_normalized=True), UnitRowKernel)
    for other in ({"bits": 8}, {"rows": MOST_ROWS + 1}, {"is_plain": False}, {"fits_fragments": False}, {"inner": 0}):
        assert not isinstance(chosen(**other), UnitRowKernel)
    assert not isinstance(chosen(inner=4096), UnitRowKernel)  # rows that shared memory doesn't hold
    assert not isinstance(chosen(replace(H200, switches=frozenset({"no-fragments"}))), UnitRowKernel)
    assert not isinstance(chosen(replace(H200, features=H200.features - {ORDERED_FRAGMENTS})), UnitRowKernel)


@pytest.mark.parametrize(
    ("inner", "columns", "block"),
    [
        (5632, 2048, (1, 16, 2)),
        (2048, 2048, (1, 16, 2)),
        (2048, 2560, (1, 16, 2)),
        (2048, 11264, (3, 16, 1)),
        (2048, 32000, (4, 8, 1)),
    ],
)
def test_blocks_that_were_the_fastest(inner: int, columns: int, block: tuple[int, int, int]) -> None:
    kernel = chosen(inner=inner // 4, columns=columns // 4, group_columns=columns // 4)
    assert isinstance(kernel, UnitRowKernel) and (kernel.tiles, kernel.teams, kernel.steps) == block


def test_the_second_best_is_another_block() -> None:
    second = chosen(replace(H200, switches=frozenset({"second-product"})))
    assert isinstance(second, UnitRowKernel) and second != chosen()


# Weights.


def test_the_order_of_weights() -> None:
    """Of a matrix whose integers are told apart by several pairs of columns and lines."""
    lines, columns = 68, 24
    integers = torch.randint(0, 16, (lines, columns), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    blocks = (integers ^ 8).reshape(lines // 4, 4, columns // 4, 4).transpose(1, 2).reshape(-1)
    stored = constant_tensor((blocks[::2] | blocks[1::2] << 4).view(torch.int32)).storage
    words = unit_row_weights(stored, lines, columns).data
    assert words is not None
    words = words.reshape(2, 2, 32, 2, 2)  # tiles, blocks, invocations, eights, upper or lower columns
    for line, column in ((0, 0), (1, 0), (67, 23), (66, 8), (35, 7), (63, 15), (12, 17)):
        lane, pair, second = column % 8 * 4 + line % 32 // 8, line % 8 // 2, line % 2
        word = int(words[column // 16, line // 64, lane, line % 64 // 32, column % 16 // 8])
        assert word >> 4 * pair + 16 * second & 15 == integers[line, column]
