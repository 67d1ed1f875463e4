"""Products whose lanes hand their rows around, on sizes that divide nothing, also where no driver chooses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import device_info, lavapipe
from products import check_product
from sampling import sampled

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import convolution_kernels, product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.device_costs import cpu_costs, cpu_rows
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.product_kernels import broadcasts_lanes, choose_product_kernel, tile_kernels
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.shaders.enumerations import Opcode

TILES = ((16, 2), (16, 1), (8, 2), (8, 1))
ForceTile = Callable[[tuple[int, int]], None]


@pytest.fixture
def force(device: Device, monkeypatch: pytest.MonkeyPatch) -> ForceTile:
    """Lets a tile be the only kernel there is."""
    if not broadcasts_lanes(device.info):
        pytest.skip("workgroups of eight invocations are not one subgroup here")
    costs = cpu_costs(device.info)

    def only(tile: tuple[int, int]) -> None:
        forced = replace(costs, tiles=(), broadcast_tiles=(tile,))
        monkeypatch.setattr(product_kernels, "cpu_costs", lambda info: forced)

    return only


@pytest.fixture
def force_plain(device: Device, monkeypatch: pytest.MonkeyPatch) -> ForceTile:
    """The same of tiles that broadcast nothing."""
    costs = cpu_costs(device.info)

    def only(tile: tuple[int, int]) -> None:
        forced = replace(costs, tiles=(tile,), broadcast_tiles=())
        monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: False)
        monkeypatch.setattr(product_kernels, "cpu_costs", lambda info: forced)

    return only


_SIZES = [(1, 3, 5), (7, 37, 36), (8, 10, 33), (13, 64, 67), (49, 21, 130), (197, 5, 12)]


@pytest.mark.parametrize(("tile", "sizes"), sampled([(tile, sizes) for tile in TILES for sizes in _SIZES], 2))
def test_linear(device: Device, force: ForceTile, tile: tuple[int, int], sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    force(tile)
    operands = (torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns))
    check_product(device, "aten::linear", *operands, constants=(1, 2))


_CONVOLUTIONS = [
    ((2, 3, 7, 9), (13, 3, 3, 3), {"padding": [1, 1]}),
    ((1, 10, 9, 11), (37, 10, 3, 3), {"stride": [2, 2], "padding": [1, 2], "dilation": [1, 2]}),
    ((1, 8, 5, 5), (70, 8, 1, 1), {}),
    ((2, 32, 4, 5), (64, 16, 2, 3), {"padding": [1, 0], "groups": 2}),
    ((1, 48, 3, 7), (256, 12, 1, 1), {"groups": 4}),
]


def takes(tile: tuple[int, int], filters: tuple[int, ...], groups: int) -> bool:
    """Whether the columns of a workgroup are of one group."""
    return groups == 1 or filters[0] // groups % (4 * 8 * tile[1]) == 0


_CASES = [(tile, case) for tile in TILES for case in _CONVOLUTIONS if takes(tile, case[1], case[2].get("groups", 1))]


@pytest.mark.parametrize(("tile", "case"), sampled(_CASES, 2))
def test_convolution(device: Device, force: ForceTile, tile: tuple[int, int], case: tuple[Any, ...]) -> None:
    source, filters, options = case
    force(tile)
    operands = (torch.randn(source), torch.randn(filters), torch.randn(filters[0]))
    check_product(device, "aten::conv2d", *operands, constants=(1, 2), **options)


@pytest.mark.parametrize("tile", [(4, 1), (16, 1), (7, 4)])
@pytest.mark.parametrize("inner", [5, 12, 37])
def test_plain_tiles(device: Device, force_plain: ForceTile, tile: tuple[int, int], inner: int) -> None:
    """One step and two in a turn of the loop."""
    force_plain(tile)
    check_product(device, "aten::linear", torch.randn(19, inner), torch.randn(23, inner), None, constants=(1,))
    weight = torch.randn(26, inner, 3, 2)
    check_product(device, "aten::conv2d", torch.randn(2, inner, 5, 7), weight, None, 2, 1, constants=(1,))


@pytest.mark.parametrize("rolls", [False, True])
def test_stores_in_a_loop_or_not(device: Device, monkeypatch: pytest.MonkeyPatch, rolls: bool) -> None:
    """Each driver has one of the two; both store what they should, with a residual, and nothing beyond the edges."""
    if not device.info.is_cpu:
        pytest.skip("only kernels of CPU drivers have both")
    costs = replace(cpu_costs(device.info), rolls_stores=rolls)
    for kernels in (product_kernels, convolution_kernels):
        monkeypatch.setattr(kernels, "cpu_costs", lambda info: costs)
    for filters, groups in (((37, 11, 3, 3), 1), ((11, 1, 3, 3), 11), ((8, 11, 1, 1), 1)):
        x, weight = torch.randn(2, 11, 5, 7), torch.randn(filters)
        options = {"padding": [filters[2] // 2] * 2, "groups": groups}
        residual = torch.randn_like(torch.conv2d(x, weight, **options))
        value = Value.of_tensor(residual.dtype, tuple(residual.shape))
        check_product(
            device,
            "aten::conv2d",
            *(x, weight, None),
            constants=(1,),
            epilogue=Epilogue(residual=value, after=Activation(Opcode.RELU)),
            expected=torch.relu(torch.conv2d(x, weight, **options) + residual),
            residual=residual,
            **options,
        )


def test_turns() -> None:
    """A turn of two steps never reaches into the next tap, and large tiles have none."""
    costs = cpu_costs(lavapipe("22.3.6"))
    for inner, taps, steps in ((18, 9, 2), (27, 9, 1), (36, 9, 2), (7, 1, 1), (8, 1, 2)):
        for kernel in tile_kernels(ProductShape(49, inner, 64, 64, taps=taps), costs, broadcasts=True):
            assert kernel.turn == (steps if kernel.broadcasts or kernel.rows * kernel.columns <= 16 else 1)


def test_batches(device: Device, force: ForceTile) -> None:
    force((8, 2))
    check_product(device, "aten::bmm", torch.randn(3, 11, 9), torch.randn(3, 9, 70))


def test_residuals_and_activations(device: Device, force: ForceTile) -> None:
    force((16, 1))
    x, weight, bias = torch.randn(2, 6, 5, 7), torch.randn(37, 6, 3, 3), torch.randn(37)
    sums = torch.conv2d(x, weight, bias, padding=1)
    residual = torch.randn_like(sums)
    value = Value.of_tensor(residual.dtype, tuple(residual.shape))
    check_product(
        device,
        "aten::conv2d",
        *(x, weight, bias),
        constants=(1, 2),
        padding=[1, 1],
        epilogue=Epilogue(Activation(Opcode.SIGMOID), value, Activation(Opcode.RELU)),
        expected=torch.relu(sums.sigmoid() + residual),
        residual=residual,
    )


def test_a_long_sum_is_divided(device: Device, force: ForceTile) -> None:
    force((8, 1))
    a, b = torch.randn(5, 40001), torch.randn(40001, 9)
    check_product(device, "aten::mm", a, b)


def test_costs_are_those_of_the_release() -> None:
    rows = {release: cpu_costs(lavapipe(release)).name for release in ("22.3.6", "24.3.4", "25.0.7-2", "26.1.0")}
    assert rows == {
        "22.3.6": "lavapipe of Mesa 22",
        "24.3.4": "lavapipe of Mesa 22",
        "25.0.7-2": "lavapipe of Mesa 25",
        "26.1.0": "lavapipe of Mesa 25",
    }
    assert cpu_costs(replace(lavapipe("25.0.7"), driver_id=10)) == cpu_costs(device_info("cpu")) == cpu_rows()[-1]
    assert lavapipe("25.0.7").driver_release == (25, 0, 7) and device_info("cpu").driver_release == ()


def test_who_broadcasts() -> None:
    wide, grouped = ProductShape(197, 96, 96, 96), ProductShape(197, 4, 12, 4)
    assert choose_product_kernel(lavapipe("25.0.7"), wide, texels=True).shader == "product_broadcast"
    assert choose_product_kernel(lavapipe("22.3.6"), wide, texels=True).shader == "product_broadcast"
    assert choose_product_kernel(lavapipe("25.0.7"), grouped, texels=True).shader == "product_tiles_texels"
    assert choose_product_kernel(lavapipe("25.0.7"), wide, texels=False).shader == "product_tiles"
    for lacking in (
        replace(lavapipe("25.0.7"), subgroup_size=4),
        replace(lavapipe("25.0.7"), features=frozenset({"texel_formats"})),
    ):
        assert choose_product_kernel(lacking, wide, texels=True).shader == "product_tiles_texels"
