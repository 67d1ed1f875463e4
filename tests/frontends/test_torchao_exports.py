"""Layers as torchao writes them: which become one layer, and which stay as they are; beside what exports compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao_operators import torchao_operators

import mobopt
from mobopt.errors import UnsupportedError
from mobopt.ops.quantized import DEQUANTIZE
from mobopt.runtimes.vulkan.engine.device import Device

AO = torchao_operators()
INNER, COLUMNS = 67, 19
BYTES = (torch.int8, -128, 127)


class Layer(nn.Module):
    """A linear layer of stored integers, as a function computes it."""

    def __init__(self, function: Callable[..., Tensor], scales: int = COLUMNS, has_bias: bool = True) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.function = function
        self.register_buffer("qdata", torch.randint(-128, 128, (COLUMNS, INNER), dtype=torch.int8, generator=generator))
        self.register_buffer("scale", torch.rand(scales, 1, generator=generator) * 0.01 + 0.001)
        self.register_buffer("bias", torch.randn(COLUMNS, generator=generator) if has_bias else None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(x, self.qdata, self.scale).reshape(*x.shape[:-1], COLUMNS)
        return y if self.bias is None else y.add_(self.bias)


def weight_only(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return torch.mm(x.reshape(-1, INNER), qdata.t().to(x.dtype)) * scale.to(x.dtype).flatten()


def linear_weight_only(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return nn.functional.linear(x, qdata.to(x.dtype)) * scale.flatten()


def rounded(x: Tensor, blocks: list[int]) -> tuple[Tensor, Tensor]:
    step, point = AO.choose_qparams_affine(  # type: ignore[attr-defined]
        x, "SYMMETRIC", blocks, *BYTES, 1.1920928955078125e-07, torch.float32, torch.int8, True
    )
    return AO.quantize_affine(x, blocks, step, point, *BYTES), step  # type: ignore[attr-defined]


def shifted_product(rows: Tensor, turned: Tensor, shift: int = 128, taken: int = 128) -> Tensor:
    sums = torch._int_mm((rows.to(torch.int32) + shift).to(torch.uint8), turned)
    return sums.sub_(turned.sum(0, keepdim=True, dtype=torch.int32) * taken)


def dynamic(
    x: Tensor,
    qdata: Tensor,
    scale: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = shifted_product,
    of_tokens: bool = True,
) -> Tensor:
    whole, step = rounded(x, [*[1] * (x.dim() - 1), INNER] if of_tokens else list(x.shape))
    sums = product(whole.reshape(-1, INNER), qdata.t())
    return (sums.to(torch.float32) * step.reshape(-1, 1)).to(torch.float32) * scale.flatten()


def of_whole(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return dynamic(x, qdata, scale, of_tokens=False)


def without_shift(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return dynamic(x, qdata, scale, torch._int_mm)


def groups(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    """Inputs from their least to their greatest, by token, as ``Int8DynamicActivationIntxWeightConfig`` has them."""
    blocks = [*[1] * (x.dim() - 1), INNER]
    step, point = AO.choose_qparams_affine(x, "ASYMMETRIC", blocks, *BYTES, None, None, torch.int8)  # type: ignore[attr-defined]
    whole = AO.quantize_affine(x, blocks, step, point, *BYTES)  # type: ignore[attr-defined]
    floats = AO.dequantize_affine(whole, blocks, step, point, *BYTES)  # type: ignore[attr-defined]
    weight = AO.dequantize_affine(qdata, [1, INNER], scale, None, *BYTES)  # type: ignore[attr-defined]
    return nn.functional.linear(floats, weight)


def ops(module: Any) -> list[str]:
    return [node.qualified_op for node in module.program.methods["forward"].walk()]


def optimised(module: nn.Module, x: Tensor, decomposes: bool = False, runtime: str = "mobopt", **options: Any) -> Any:
    exported = torch.export.export(module.eval(), (x,), **options)
    exported = exported.run_decompositions() if decomposes else exported
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mobopt.optimize_for_mobile(exported, backend="vulkan", runtime=runtime)


LAYERS = [weight_only, linear_weight_only, dynamic, of_whole, without_shift]


@pytest.mark.parametrize("decomposes", [False, True])
@pytest.mark.parametrize("sizes", [(2, 5, INNER), (1, 3, INNER), (7, INNER)], ids=str)
@pytest.mark.parametrize("function", LAYERS, ids=lambda function: function.__name__)
def test_a_layer_is_one_operator(
    device: Device, function: Callable[..., Tensor], sizes: tuple[int, ...], decomposes: bool
) -> None:
    module, x = Layer(function), torch.randn(*sizes)
    found = optimised(module, x, decomposes)
    assert ops(found).count("aten::linear") == 1 and ops(found).count(DEQUANTIZE) == 1
    assert not {"aten::_int_mm", "aten::mm", "aten::matmul", "aten::sub_.Tensor"} & {*ops(found)}
    linear = next(node for node in found.program.methods["forward"].walk() if node.op == "aten::linear")
    assert linear.inputs[2].constant.shape == (COLUMNS,)
    torch.testing.assert_close(found(x), module(x), rtol=0, atol=2e-5)


@pytest.mark.parametrize("scales", [1, COLUMNS])
@pytest.mark.parametrize("function", LAYERS, ids=lambda function: function.__name__)
def test_scales_and_files_for_phones(device: Device, function: Callable[..., Tensor], scales: int) -> None:
    module, x = Layer(function, scales, has_bias=scales > 1), torch.randn(3, INNER)
    for runtime in ("mobopt", "2.6"):
        torch.testing.assert_close(optimised(module, x, runtime=runtime)(x), module(x), rtol=0, atol=2e-5)


@pytest.mark.parametrize("function", [weight_only, dynamic, groups], ids=lambda function: function.__name__)
def test_open_sizes(device: Device, function: Callable[..., Tensor]) -> None:
    module = Layer(function)
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=9), 1: torch.export.Dim("tokens", min=2, max=30)}}
    found = optimised(module, torch.randn(3, 5, INNER), dynamic_shapes=shapes)
    assert DEQUANTIZE in ops(found) and "aten::_int_mm" not in ops(found)
    for sizes in ((3, 5), (2, 11), (7, 3)):
        x = torch.randn(*sizes, INNER)
        torch.testing.assert_close(found(x), module(x), rtol=0, atol=2e-5)


def test_what_is_found_of_tokens_is_used_beside_them(device: Device) -> None:
    """The steps have one dimension less, as torchao hands them out, and no view of them is made."""
    module, x = Layer(groups), torch.randn(2, 5, INNER)
    found = optimised(module, x)
    assert "aten::reshape" not in ops(found)[: ops(found).index("aten::linear")]
    torch.testing.assert_close(found(x), module(x), rtol=0, atol=2e-5)


def another_shift(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return dynamic(x, qdata, scale, lambda rows, turned: shifted_product(rows, turned, taken=127))


def small_shift(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    """Bytes without a sign wrap round."""
    return dynamic(x, qdata, scale, lambda rows, turned: shifted_product(rows, turned, 100, 100))


def of_other_sums(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    other = qdata.flip(0).t()

    def product(rows: Tensor, turned: Tensor) -> Tensor:
        sums = torch._int_mm((rows.to(torch.int32) + 128).to(torch.uint8), turned)
        return sums - other.sum(0, keepdim=True, dtype=torch.int32) * 128

    return dynamic(x, qdata, scale, product)


def computed_scale(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return torch.mm(x.reshape(-1, INNER), qdata.t().to(x.dtype)) * (scale.flatten() * x.reshape(-1)[0])


def scaled_rows(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    """As many rows as columns, of which each has a scale."""
    return torch.mm(x.reshape(-1, INNER), qdata.t().to(x.dtype)) * scale


def of_more_dimensions(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    return torch.mm(x.reshape(-1, INNER), qdata.t().to(x.dtype)) * scale.reshape(1, 1, -1)


def changed_rows(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    """Rows are written to between the product and its scales."""
    rows = x.reshape(-1, INNER) * 1.5
    sums = torch.mm(rows, qdata.t().to(x.dtype))
    rows.view(-1).add_(1.0)
    return sums * scale.flatten() + rows.sum()


def changed_steps(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    whole, step = rounded(x, [1, INNER])
    sums = shifted_product(whole, qdata.t()).to(torch.float32) * step
    step.mul_(2.0)
    return sums * scale.flatten() + step.sum()


def of_other_steps(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    whole, step = rounded(x, [1, INNER])
    return shifted_product(whole, qdata.t()).to(torch.float32) * step.flip(0) * scale.flatten()


def changed_roundings(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    """What was rounded is written to before it is clamped, so it isn't whole any more."""
    step = x.abs().amax(1, keepdim=True) / 127
    whole = torch.round(x * torch.reciprocal(step))
    whole.mul_(0.4)
    sums = torch._int_mm(torch.clamp(whole, -128, 127).to(torch.int8), qdata.t())
    return sums.to(torch.float32) * step * scale.flatten()


def not_rounded(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
    whole = torch.clamp(x.reshape(-1, INNER) * 40, -128, 127).to(torch.int8)
    return (torch._int_mm(whole, qdata.t()).to(torch.float32) * 0.025) * scale.flatten()


@pytest.mark.parametrize(
    "function",
    [
        *(another_shift, small_shift, of_other_sums, computed_scale, scaled_rows, of_more_dimensions, not_rounded),
        *(changed_rows, changed_steps, changed_roundings, of_other_steps),
    ],
    ids=lambda function: function.__name__,
)
def test_what_is_no_layer_stays(device: Device, function: Callable[..., Tensor]) -> None:
    module, x = Layer(function), torch.randn(COLUMNS, INNER)
    found = optimised(module, x)
    assert DEQUANTIZE not in ops(found)
    torch.testing.assert_close(found(x), module(x), rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize(
    ("turn", "is_turned"),
    [
        (lambda matrix: matrix.permute(0, 1), False),
        (lambda matrix: matrix.transpose(-1, -1), False),
        (lambda matrix: matrix.permute(1, 0), True),
        (lambda matrix: matrix.transpose(-2, 1), True),
        (lambda matrix: matrix.t().permute(1, 0), False),
    ],
)
def test_how_a_square_matrix_lies(device: Device, turn: Callable[[Tensor], Tensor], is_turned: bool) -> None:
    """Its sizes don't tell whether it was turned."""

    def product(x: Tensor, qdata: Tensor, scale: Tensor) -> Tensor:
        return torch.mm(x, turn(qdata).to(x.dtype)) * scale.flatten()

    module = Layer(product, has_bias=False)
    generator = torch.Generator().manual_seed(4)
    module.qdata = torch.randint(-128, 128, (37, 37), dtype=torch.int8, generator=generator)
    module.scale = torch.rand(37, 1, generator=generator) * 0.01
    module.forward = lambda x: product(x, module.qdata, module.scale)  # type: ignore[method-assign]
    x = torch.randn(3, 37)
    found = optimised(module, x)
    assert (DEQUANTIZE in ops(found)) == is_turned
    torch.testing.assert_close(found(x), module(x), rtol=0, atol=2e-5)


class SumsToo(nn.Module):
    """The sums are results as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(weight_only)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole, step = rounded(x, [1, INNER])
        sums = shifted_product(whole, self.layer.qdata.t())
        return sums, (sums.to(torch.float32) * step.reshape(-1, 1)) * self.layer.scale.flatten()


def test_sums_that_are_results_stay_exact(device: Device) -> None:
    module, x = SumsToo(), torch.randn(4, INNER)
    found, expected = optimised(module, x)(x), module(x)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=2e-5)


def test_biases_that_are_none(device: Device) -> None:
    """Another number of elements, and columns that a view has moved."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(weight_only, has_bias=False)
            self.register_buffer("columns", torch.randn(1, COLUMNS))
            self.register_buffer("rows", torch.randn(COLUMNS))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = weight_only(x, self.layer.qdata, self.layer.scale)
            return y + self.columns, y.reshape(COLUMNS, -1).t().reshape(-1, COLUMNS) + self.rows

    module, x = Other(), torch.randn(4, INNER)
    for found, expected in zip(optimised(module, x)(x), module(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class NarrowFloats(nn.Module):
    """As ``Float8WeightOnlyConfig`` has it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("qdata", torch.randn(COLUMNS, INNER).to(dtype))
        self.register_buffer("scale", torch.rand(COLUMNS, 1) + 0.5)
        self.bias = nn.Parameter(torch.randn(COLUMNS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.qdata.t().to(x.dtype) * self.scale.t()) + self.bias


@pytest.mark.parametrize("decomposes", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_weights_of_eight_bit_floats(device: Device, dtype: torch.dtype, decomposes: bool) -> None:
    module, x = NarrowFloats(dtype), torch.randn(2, 5, INNER)
    for runtime in ("mobopt", "2.6"):
        torch.testing.assert_close(optimised(module, x, decomposes, runtime)(x), module(x), rtol=0, atol=5e-5)


def test_other_eight_bit_floats_are_refused() -> None:
    class Cast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.float8_e4m3fn).to(torch.float32)

    with pytest.raises(UnsupportedError, match=r"computed as torch\.float8_e4m3fn, .* round weights only"):
        optimised(Cast(), torch.randn(3, 4))
