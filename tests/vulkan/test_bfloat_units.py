"""Products and attention of bfloat16 by matrix units, emulated where the device has none: odd sizes, beside float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import test_fragment_products as fragments
import test_matrix_attention as attention
import test_matrix_units as through_memory
import test_normalized_products as normalized
import test_scaled_halves as scaled
import torch
from device_infos import device_info, known_device
from test_image_rows import CASES, halves_of
from test_normalized_products import Layer
from test_planar_inputs import only_units, scripted, shaders  # noqa: F401  (fixtures)

from mobopt.ir import Node, Value
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import convolution_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.attention_matrix import MatrixAttentionBlock
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.matrix_kernels import BLOCKS, multiplies
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan, constant_tensor
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Opcode

load_lowerings()

BF16 = PrecisionChoice("bf16")
LOSS = 1.2e-2
"""Of three layers, over the scale of their result; each rounding is at most 3.9e-3 of its element."""
each_matrix_block = pytest.mark.parametrize("block", [BLOCKS[0], BLOCKS[-2]], ids=["two teams", "eight teams"])


def some(cases: Sequence[Any], *numbers: int) -> list[Any]:
    """Cases, of which all but some are for sweeps: what they are about is the same for halves of either type."""
    marks = [() if number in numbers else pytest.mark.sweep for number in range(len(cases))]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks, strict=True)
    ]


@pytest.fixture(autouse=True)
def bfloats(units: Device) -> None:
    """Skips where a device has units, but none for bfloat16."""
    if "matrix_units" in units.info.features and not multiplies(units.info, torch.bfloat16):
        pytest.skip("the device's matrix units don't multiply bfloat16")


def numbers(*sizes: int) -> torch.Tensor:
    """Seeded numbers of bfloat16."""
    return through_memory.halves(*sizes, dtype=torch.bfloat16)


def check_convolution(device: Device, case: Sequence[Any]) -> None:
    """The sizes of an image and of filters, and how they walk."""
    source, weight, bias = numbers(*case[0]), numbers(*case[1]), numbers(case[1][0])
    walk = *map(list, case[2:5]), *(case[5:] or (1,))
    through_memory.check(device, "aten::conv2d", source, weight, bias, *walk, constants=(1, 2))


@each_matrix_block
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("case", "run"), some([*zip(through_memory.CONVOLUTIONS, (8, 4, 4, 8, 8), strict=True)], 0, 1))
def test_convolution_through_shared_memory(units, monkeypatch, block, case, run: int, parts: int) -> None:
    through_memory.force(monkeypatch, units, block, run, parts)
    check_convolution(units, case)


@each_matrix_block
@pytest.mark.parametrize(("sizes", "run"), some(through_memory.BATCHES, 0, 3))
def test_batches(units, monkeypatch, block, sizes: Sequence[int], run: int) -> None:
    through_memory.force(monkeypatch, units, block, run)
    batch, rows, inner, columns = sizes
    through_memory.check(units, "aten::bmm", numbers(batch, rows, inner), numbers(batch, inner, columns))


@fragments.each_block
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("case", some([(case,) for case in fragments.CONVOLUTIONS], 0, 4))
def test_convolution_from_registers(units, monkeypatch, block: FragmentKernel, case, parts: int) -> None:
    seen = fragments.forced(monkeypatch, units, replace(block, parts=parts))
    check_convolution(units, case)
    assert seen


@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_epilogue(units, monkeypatch, parts: int, from_registers: bool) -> None:
    if from_registers:
        fragments.forced(monkeypatch, units, replace(fragments.SMALL[0], parts=parts))
    else:
        through_memory.force(monkeypatch, units, BLOCKS[0], 8, parts)
    args = numbers(1, 40, 5, 7), numbers(23, 40, 3, 3), None, [1, 1], [1, 1]
    steps = Epilogue(Activation(Opcode.RELU), Value.of_tensor(torch.bfloat16, (1, 23, 5, 7)))
    residual = numbers(1, 23, 5, 7)
    through_memory.check(units, "aten::conv2d", *args, constants=(1,), epilogue=steps, residual=residual)


def check_normalized(device: Device, sizes: tuple[int, int, int], offset: float, shader: str) -> None:
    """What is normalised are integers that bfloat16 holds, so that it loses nothing before, however far its mean is."""
    rows, inner, columns = sizes
    model = Layer(inner, columns)
    with torch.no_grad():
        model.first.weight.copy_(torch.eye(inner))
        model.first.bias.zero_()
    x = torch.randint(-9, 10, (rows, inner), generator=torch.Generator().manual_seed(inner)).float()
    normalized.check(device, model, x, torch.tensor(offset), shader, "bf16", LOSS)


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("sizes", [(19, 30, 17), (67, 104, 64)])
def test_normalized_through_shared_memory(units, monkeypatch, sizes, offset: float) -> None:
    normalized.force(monkeypatch, units, BLOCKS[0])
    check_normalized(units, sizes, offset, "product_matrix_bfloat_normalized")


@fragments.each_block
@pytest.mark.parametrize(("sizes", "offset"), [((67, 104, 64), 0.0), ((19, 24, 24), 100.0), ((40, 264, 72), 100.0)])
def test_normalized_from_registers(units, monkeypatch, block, sizes, offset: float) -> None:
    fragments.normalizing(monkeypatch, units, block)
    check_normalized(units, sizes, offset, "product_fragments_bfloat_normalized")


SCALED = [(False, *case) for case in scaled.CASES] + [(True, *case) for case in scaled.CASES if case[1] % 8 == 0]


@pytest.mark.parametrize(
    ("from_registers", "batch", "channels", "columns", "stride", "own"), some(SCALED, 0, 2, len(SCALED) - 1)
)
def test_scaled_inputs(
    units, monkeypatch, shaders, from_registers, batch, channels, columns, stride, own  # noqa: F811
) -> None:  # fmt: skip
    """The scaled image is rounded to bfloat16, ties to even."""
    if from_registers:
        fragments.forced(monkeypatch, units, fragments.SMALL[0])
    else:
        scaled.force(monkeypatch, units, BLOCKS[0])
    model = scaled.Scaled(channels, columns, stride).eval()
    with torch.no_grad():
        model.layer.weight.copy_(numbers(*model.layer.weight.shape))
    x, factor = (
        scaled.grid(batch, channels, 11, 7),
        scaled.grid(*([batch] if own else []), channels, 1, 1),
    )
    found = VulkanProgram(scripted(model), units, precision=BF16)(x, factor)
    (layer,) = [shader for shader in shaders if shader.startswith("product_") and shader != "product_sum"]
    assert layer.startswith(f"product_{'fragments' if from_registers else 'matrix'}_bfloat_scaled")
    exact = model.exact(x, factor, torch.bfloat16)
    assert not torch.equal(exact, model.exact(x, factor, torch.float32))
    scaled.agrees(found, exact.detach())


IMAGES = [*product(("", "no-fragments"), (False, True), CASES[:5])]


@torch.no_grad()
@pytest.mark.parametrize(("switch", "is_copied", "case"), some(IMAGES, 0, 6, 13))
def test_images(only_units, monkeypatch, shaders, switch: str, is_copied: bool, case) -> None:  # noqa: F811
    """Planes, or rows of pixels, of an image of the caller's, which is rounded to bfloat16."""
    monkeypatch.setattr(convolution_kernels, "reads_planes", lambda *_: not is_copied)
    info = only_units.info
    monkeypatch.setattr(only_units, "info", replace(info, switches=info.switches | {switch}))
    model, x = halves_of(case)
    found = VulkanProgram(scripted(model), only_units, precision=BF16)(x)
    kind = "product_matrix_bfloat" if switch else "product_fragments_bfloat"
    assert shaders[int(is_copied)].startswith(kind if is_copied else f"{kind}_planar")
    expected = model(x.bfloat16().float())
    assert float((found - expected).abs().max()) <= 8e-3 * float(expected.abs().max())


@pytest.mark.sweep
@pytest.mark.parametrize("block", some(attention.BLOCKS, 0))
def test_attention(units: Any, monkeypatch, block: MatrixAttentionBlock) -> None:
    attention.force(monkeypatch, units, block)
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, count, 24).bfloat16() for count in (37, 53, 53)]
    attention.check(units, *tensors, scale=0.3)
    attention.check(units, *tensors, is_causal=True)
    attention.check(units, *tensors, attn_mask=torch.randn(1, 37, 53) > 0)


H200 = replace(known_device("nvidia_h200"), driver_id=4)


def test_which_devices_multiply_bfloat16() -> None:
    assert multiplies(H200, torch.bfloat16) and multiplies(H200, torch.float16)
    assert not multiplies(H200, torch.float32)
    for device in (
        replace(H200, bfloat_shapes=()),
        replace(H200, bfloat_shapes=((16, 8, 16),)),
        replace(H200, matrix_shapes=()),
        replace(H200, switches=frozenset({"no-matrix-units"})),
        replace(device_info("integrated"), matrix_shapes=H200.matrix_shapes, bfloat_shapes=H200.bfloat_shapes),
    ):
        assert not multiplies(device, torch.bfloat16)
    assert multiplies(replace(device_info("cpu"), switches=frozenset({"emulated-matrix-units"})), torch.bfloat16)


def shader_of_a_layer(info: DeviceInfo, source: torch.dtype = torch.bfloat16) -> str:
    """By what a linear layer is computed whose weights lie as bfloat16."""
    rows, inner, columns = 197, 384, 1536
    result, operand = (Value.of_tensor(torch.float32, (rows, size)) for size in (columns, inner))
    halved = {"halved": frozenset({result}), "half": torch.bfloat16, "halves_weights": True}
    plan = Plan(info, ConstantStore(), **halved)  # type: ignore[arg-type]
    plan.place(operand, constant_tensor(torch.ones(rows, inner, dtype=source)).of(torch.float32))
    weight = Value.of_elements(torch.ones(columns, inner))
    lower(plan, Node.call("aten::linear", (operand, weight, None), (result,)))
    (step,) = plan.stream.operations
    assert isinstance(step, Dispatch)
    return step.shader


def test_where_their_kernels_are_chosen() -> None:
    """As those of halves are; where units multiply halves of float16 only, numbers are split, as floats are."""
    assert shader_of_a_layer(H200) == "product_fragments_bfloat"
    assert shader_of_a_layer(replace(H200, switches=frozenset({"no-fragments"}))) == "product_matrix_bfloat"
    assert shader_of_a_layer(replace(H200, bfloat_shapes=())) == "product_matrix_split"
    assert shader_of_a_layer(H200, torch.float32) == "product_matrix_split"
    assert shader_of_a_layer(H200, torch.float16) == "product_matrix_split"
    assert shader_of_a_layer(replace(H200, switches=frozenset({"no-matrix-units"}))) == "product_shared"


def test_names_of_variants() -> None:
    """A block of split floats has no variant for bfloat16."""
    assert replace(BLOCKS[0], split=True, bfloats=True).shader == "product_matrix_split"
