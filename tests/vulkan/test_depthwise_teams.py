"""Large depthwise filters whose rows are divided among invocations: odd sizes, beside torch; and which are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import device_info, known_device
from harness import assert_close
from products import check_product
from test_chains import emulating  # noqa: F401  (a fixture)
from test_planar_inputs import floats, scripted, with_switches
from torch import nn

from mobopt.ir import Value
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, contiguous_strides
from mobopt.runtimes.vulkan.kernels import convolution_kernels, gpu_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.convolution_kernels import _divided, _Walk
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.gpu_kernels import DepthwiseDivision
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

# input, filter, stride, padding, dilation
CASES = [
    ((1, 24, 13, 11), (24, 1, 7, 7), (1, 1), (3, 3), (1, 1)),
    ((2, 13, 17, 19), (13, 1, 7, 7), (2, 2), (3, 3), (1, 1)),
    ((1, 8, 9, 9), (8, 1, 9, 5), (1, 1), (4, 2), (1, 1)),
    ((1, 5, 21, 20), (5, 1, 7, 7), (1, 1), (6, 6), (2, 2)),
    ((3, 7, 5, 31), (7, 1, 3, 11), (1, 3), (0, 5), (1, 1)),
]
LOCAL_SIZE, TEAMS = 16, 19
"""Numbers of specialization constants."""


@pytest.fixture
def constants(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The specialization constants of all dispatches of ``depthwise.comp``, on a device with kernels as a GPU has."""
    found: list[Sequence[int]] = []
    dispatch = Plan.dispatch

    def noting(plan: Plan, shader: str, bindings: object, groups: object, numbers: Sequence[int], *rest, **named):
        if shader == "depthwise":
            found.append(numbers)
        dispatch(plan, shader, bindings, groups, numbers, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Plan, "dispatch", noting)
    monkeypatch.setattr(gpu_kernels, "_SOME", 1 << 20)
    monkeypatch.setattr(gpu_kernels, "_MANY", 1 << 20)
    with_switches(device, monkeypatch, "shared-products", "no-texels")
    return found


def forced(monkeypatch: pytest.MonkeyPatch, *division: int) -> None:
    monkeypatch.setattr(convolution_kernels, "_divided", lambda *_: DepthwiseDivision(*division))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, (*case[0], *case[1]))))
def test_each_row_of_a_filter(device, constants, case) -> None:
    source, weight, bias = floats(*case[0]), floats(*case[1]), floats(case[1][0])
    check_product(device, "aten::conv2d", source, weight, bias, *map(list, case[2:]), case[0][1], constants=(1, 2))
    (numbers,) = constants
    assert numbers[TEAMS] == min(case[1][2], 8) and numbers[LOCAL_SIZE] % numbers[TEAMS] == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, (*case[0], *case[1]))))
@pytest.mark.parametrize(
    "division", [(1, 4), (1, 2, 2), (1, 7, 3), (1, 1, 4), pytest.param((2, 3), marks=pytest.mark.sweep)], ids=str
)
def test_blocks(device, constants, monkeypatch, division, case) -> None:
    forced(monkeypatch, *division)
    source, weight, bias = floats(*case[0]), floats(*case[1]), floats(case[1][0])
    check_product(device, "aten::conv2d", source, weight, bias, *map(list, case[2:]), case[0][1], constants=(1, 2))
    assert len(constants) == 1


@pytest.mark.parametrize("teams", [2, 3, 5])
@pytest.mark.parametrize("wide", [1, 4])
def test_several_rows_of_a_filter(device, constants, monkeypatch, wide: int, teams: int) -> None:
    """Some teams have a row less than others; each finishes some of the pixels, or none."""
    forced(monkeypatch, 1, wide, teams)
    source, weight, residual = floats(2, 13, 9, 11), floats(13, 1, 7, 7), floats(2, 13, 9, 11)
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.float32, (2, 13, 9, 11)))
    expected = torch.relu(torch.conv2d(source, weight, None, 1, 3, 1, 13)) + residual
    check_product(device, "aten::conv2d", source, weight, None, [1, 1], [3, 3], [1, 1], 13, constants=(1,),
                  epilogue=steps, residual=residual, expected=expected)  # fmt: skip
    assert [numbers[TEAMS] for numbers in constants] == [teams]


@torch.no_grad()
def test_halves(device, constants) -> None:
    first = nn.Conv2d(12, 12, 7, padding=3, groups=12)
    model, x = nn.Sequential(first, nn.ReLU(), nn.Conv2d(12, 9, 1)).eval(), floats(1, 12, 13, 11)
    for parameter in model.parameters():
        parameter.data = floats(*parameter.shape) / parameter[0].numel() ** 0.5
    found, expected = VulkanProgram(scripted(model), device, precision=PrecisionChoice("fp16"))(x), model(x)
    assert constants and constants[0][TEAMS] == 7
    assert float((found - expected).abs().max()) <= 2e-3 * float(expected.abs().max())


@torch.no_grad()
def test_dispatches_that_wait_by_a_counter(emulating, constants) -> None:  # noqa: F811
    model = nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.ReLU(), nn.Conv2d(8, 8, 7, padding=3, groups=8))
    switches = emulating.info.switches | {"emulated-chains"}
    emulating.info = replace(emulating.info, switches=switches)
    runner = VulkanProgram(scripted(model.eval()), emulating)
    for seed in range(3):
        x = floats(2, 8, 11, 9) + seed
        assert_close(runner(x), model(x))
    assert emulating.chains and [numbers[TEAMS] for numbers in constants] == [7, 7]


def division(
    info: DeviceInfo, sizes: tuple[int, ...], taps: tuple[int, int] = (7, 7), group: int = 1
) -> DepthwiseDivision:
    walk = _Walk(taps, (1, 1), (taps[0] // 2, taps[1] // 2), (1, 1), group)
    storage = Storage(64, StorageKind.TEMPORARY, elements=torch.float32)
    return _divided(info, walk, DeviceTensor(storage, torch.float32, sizes, contiguous_strides(sizes)))


def test_which_are_divided() -> None:
    h200 = known_device("nvidia_h200")
    assert division(h200, (1, 192, 28, 28)) == (1, 4, 7)
    assert division(h200, (8, 96, 56, 56)) == (2, 2, 1)
    assert division(h200, (1, 40, 14, 14), (25, 3)) == (1, 4, 8)
    assert division(h200, (1, 40, 14, 14), group=2) == (1, 4, 1)
    assert division(device_info("cpu"), (1, 40, 14, 14)) == (1, 1, 1)
    few = replace(h200.limits, max_compute_work_group_invocations=128)
    assert division(replace(h200, limits=few), (1, 40, 14, 14)) == (1, 4, 4)
