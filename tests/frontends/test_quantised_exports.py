"""Exports of quantised models: PT2E's operators, torchao's, and weights that are tensors of a subclass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from sampling import sampled
from torch import Tensor, nn

import mobopt
from mobopt.errors import UnsupportedError
from mobopt.ops.quantized import DEQUANTIZE

PT2E = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)


class Calling(nn.Module):
    """A function of a tensor and of stored ones."""

    def __init__(self, function: Callable[..., Any], *stored: Tensor) -> None:
        super().__init__()
        self.function = function
        self.count = len(stored)
        for number, tensor in enumerate(stored):
            self.register_buffer(f"stored{number}", tensor)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *(getattr(self, f"stored{number}") for number in range(self.count)))


def _agrees(module: nn.Module, x: Tensor, atol: float = 1e-5, dynamic_shapes: Any = None) -> Any:
    """Optimise for both runtimes, and compare; returns the module of mobopt's own runtime."""
    exported = torch.export.export(module.eval(), (x,), dynamic_shapes=dynamic_shapes)
    expected = module(x)
    for runtime in ("2.6", "mobopt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimised = mobopt.optimize_for_mobile(exported, backend="vulkan", runtime=runtime)
        torch.testing.assert_close(optimised(x), expected, rtol=0, atol=atol)
    return optimised


def _ops(module: Any) -> list[str]:
    return [node.qualified_op for node in module.program.methods["forward"].block.nodes]


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "per tensor": (
        lambda x: PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, 0.031, -7, *INT8), 0.031, -7, *INT8),
        (),
    ),
    "per tensor by tensors": (
        lambda x, s, z: PT2E.dequantize_per_tensor.tensor(
            PT2E.quantize_per_tensor.tensor(x, s, z, 0, 255, torch.uint8), s, z, 0, 255, torch.uint8
        ),
        (torch.tensor([0.017]), torch.tensor([128])),
    ),
    "bounds of fewer bits": (
        lambda x: PT2E.dequantize_per_tensor(PT2E.quantize_per_tensor(x, 0.3, 1, -8, 7, torch.int8), 0.3, 1, *INT8),
        (),
    ),
    "per channel": (
        lambda x, s, z: PT2E.dequantize_per_channel(PT2E.quantize_per_channel(x, s, z, 1, *INT8), s, z, 1, *INT8),
        (torch.rand(5) * 0.02 + 0.01, torch.tensor([-3, 0, 5, 100, -128])),
    ),
    "chosen": (
        lambda x: PT2E.dequantize_per_tensor.tensor(
            PT2E.quantize_per_tensor.tensor(x, *PT2E.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8), *INT8),
            *PT2E.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8),
            *INT8,
        ),
        (),
    ),
    "chosen symmetrically": (
        lambda x: PT2E.dequantize_per_tensor.tensor(
            PT2E.quantize_per_tensor.tensor(
                x, *PT2E.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8), -127, 127, torch.int8
            ),
            *PT2E.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8),
            -127,
            127,
            torch.int8,
        ),
        (),
    ),
    "per token": (lambda x: _by_tokens(x, PT2E.choose_qparams_per_token), ()),
    "per token, asymmetric": (lambda x: _by_tokens(x, PT2E.choose_qparams_per_token_asymmetric), ()),
    "the integers": (lambda x: (PT2E.quantize_per_tensor(x, 0.05, 3, *INT8), x.relu()), ()),
    "half": (
        lambda x: PT2E.dequantize_per_tensor(
            PT2E.quantize_per_tensor(x, 0.031, -7, *INT8), 0.031, -7, *INT8, out_dtype=torch.float16
        ).float(),
        (),
    ),
}


def _by_tokens(x: Tensor, choose: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
    scale, zero = choose(x, torch.int8)
    return PT2E.dequantize_per_token(PT2E.quantize_per_token(x, scale, zero, *INT8), scale, zero, *INT8, torch.float32)


@pytest.mark.parametrize("name", sampled(CASES, one_in=2))
def test_operators_of_pt2e(name: str) -> None:
    function, stored = CASES[name]
    _agrees(Calling(function, *stored), torch.randn(3, 5, 7) * 2)


def test_open_sizes() -> None:
    function, stored = CASES["per channel"]
    dims = ({0: torch.export.Dim("batch", max=9), 2: torch.export.Dim("length", max=31)},)
    optimised = _agrees(Calling(function, *stored), torch.randn(3, 5, 7), dynamic_shapes=dims)
    x = torch.randn(2, 5, 13)
    torch.testing.assert_close(optimised(x), Calling(function, *stored)(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_weights_stay_integers(has_zeros: bool) -> None:
    weight = torch.randint(-127, 128, (37, 64), dtype=torch.int8)
    scale, zero = torch.rand(37) * 0.01 + 0.001, torch.randint(-5, 5, (37,))
    module = Calling(
        lambda x, w, s, z: nn.functional.linear(
            x, PT2E.dequantize_per_channel(w, s, z if has_zeros else None, 0, -127, 127, torch.int8)
        ),
        *(weight, scale, zero),
    )
    optimised = _agrees(module, torch.randn(3, 64))
    assert DEQUANTIZE in _ops(optimised)
    report = optimised.plan_report(torch.randn(3, 64))
    assert report.dispatches <= 2 and not report.fallbacks, str(report)


def test_groups_of_four_bits_take_half_a_byte() -> None:
    weight = torch.randint(-8, 8, (24, 64), dtype=torch.int8)
    scale, zero = torch.rand(24, 2) * 0.1, torch.zeros(24, 2, dtype=torch.int64)
    module = Calling(
        lambda x, w, s, z: nn.functional.linear(
            x, PT2E.dequantize_per_channel_group(w, s, z, -8, 7, torch.int8, 32, torch.float32)
        ),
        *(weight, scale, zero),
    )
    optimised = _agrees(module, torch.randn(3, 64), atol=1e-4)
    (node,) = [node for node in optimised.program.methods["forward"].block.nodes if node.qualified_op == DEQUANTIZE]
    assert node.inputs[0].constant.shape == (24, 32) and node.inputs[0].attribute == "stored0"


def test_a_buffer_that_changes_is_no_weight() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randint(-100, 100, (32, 64), dtype=torch.int8))

        def forward(self, x: Tensor) -> Tensor:
            self.w.add_(1)
            return x @ PT2E.dequantize_per_tensor(self.w, 0.1, 0, *INT8).t()

    module, x = Counting().eval(), torch.randn(2, 64)
    exported = torch.export.export(module, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimised = mobopt.optimize_for_mobile(exported, backend="vulkan", runtime="mobopt")
    for _ in range(3):
        torch.testing.assert_close(optimised(x), module(x), rtol=0, atol=1e-3)


class Rows(Tensor):
    """A matrix as int8 with a scale for each row: a subclass as torchao's are."""

    qdata: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, qdata: Tensor, scale: Tensor) -> Rows:
        return Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=torch.float32)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, qdata: Tensor, scale: Tensor) -> None:
        self.qdata, self.scale = qdata, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["qdata", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Rows:
        return Rows(inner["qdata"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Rows(args[0].qdata, args[0].scale)
        raise NotImplementedError(str(function))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight, *bias = args
            floats = PT2E.dequantize_per_channel(weight.qdata, weight.scale, None, 0, -127, 127, torch.int8)
            return nn.functional.linear(x, floats, *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def _of_rows(refuses: bool = False) -> nn.Module:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if not refuses or float(x.sum()) > 0 else -x)

    layer = Branching(64, 37).eval()
    packed = Rows(torch.randint(-127, 128, (37, 64), dtype=torch.int8), torch.rand(37) * 0.01)
    layer.weight = nn.Parameter(packed, requires_grad=False)
    return layer


def test_weights_of_a_subclass() -> None:
    layer, x = _of_rows(), torch.randn(3, 64)
    optimised = mobopt.optimize_for_mobile(layer, backend="vulkan", runtime="mobopt", example_inputs=[x])
    torch.testing.assert_close(optimised(x), layer(x), rtol=0, atol=1e-5)
    (node,) = [node for node in optimised.program.methods["forward"].block.nodes if node.qualified_op == DEQUANTIZE]
    assert node.inputs[0].constant.dtype == torch.int8 and node.inputs[0].attribute == "weight.qdata"


def test_what_can_not_be_exported_is_an_error_and_no_crash() -> None:
    """torch ends the process where such a trace is saved."""
    with pytest.raises(UnsupportedError, match="tensors of a subclass"):
        mobopt.optimize_for_mobile(_of_rows(refuses=True), backend="vulkan", example_inputs=[torch.randn(3, 64)])


def test_a_file_is_read_without_the_library(tmp_path: Path) -> None:
    function, stored = CASES["per channel"]
    module, x = Calling(function, *stored).eval(), torch.randn(3, 5, 7)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "model.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimised = mobopt.optimize_for_mobile(tmp_path / "model.pt2", backend="vulkan", runtime="mobopt")
    torch.testing.assert_close(optimised(x), module(x), rtol=0, atol=1e-5)
