"""What eager refuses is refused by mobopt's own runtime, by name: kernels would give integers, cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.errors import InputError
from mobopt.ops.records import is_refused

INTEGERS = (torch.uint8, torch.int32, torch.int64, torch.bool)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "aten::gelu": (nn.GELU, (3, 5)),
    "aten::silu": (nn.SiLU, (3, 5)),
    "aten::softmax": (lambda: nn.Softmax(1), (3, 5)),
    "aten::batch_norm": (lambda: nn.BatchNorm2d(3).eval(), (2, 3, 5, 7)),
    "aten::layer_norm": (lambda: nn.LayerNorm(7), (5, 7)),
    "aten::adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d(2), (1, 3, 5, 7)),
    "vulkan_prepack::run_conv2d_context": (lambda: nn.Conv2d(3, 5, 3), (1, 3, 5, 7)),
    "vulkan_prepack::run_linear_context": (lambda: nn.Linear(7, 5), (3, 7)),
    "aten::conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 5, 2), (1, 3, 5, 7)),
}


def numbers(sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 9, sizes, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("op", MODULES)
def test_integers_for_floats(op: str) -> None:
    make, sizes = MODULES[op]
    torch.manual_seed(0)
    module = make().eval()
    ours = optimize_for_mobile(torch.jit.script(module), backend="vulkan", runtime="mobopt")
    for dtype in INTEGERS:
        x = numbers(sizes, dtype)
        with pytest.raises(Exception):  # noqa: B017 - of several types
            module(x)
        with pytest.raises(InputError, match=rf"{op}.* takes no {str(dtype)[6:]} here, .*x\.float\(\), x\.npy:float32"):
            ours(x)
    x = numbers(sizes, torch.float32)
    torch.testing.assert_close(ours(x), module(x), rtol=1e-4, atol=1e-5)


def test_the_first_layer_is_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Hardswish())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.adaptive_avg_pool2d(self.stem(x), 1)

    ours = optimize_for_mobile(torch.jit.script(Net().eval()), backend="vulkan", runtime="mobopt")
    with pytest.raises(InputError, match=r"conv2d.* stem\.0, .* takes no uint8"):
        ours(numbers((1, 3, 9, 9), torch.uint8))


def test_what_eager_converts_is_computed() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            relu = functional.relu(x)
            return torch.softmax(x, 1, dtype=torch.float32), torch.sigmoid(x), functional.gelu(x.float()), relu, x @ x.T

    x, net = numbers((3, 5), torch.int32), Net()
    ours = optimize_for_mobile(torch.jit.trace(net, x), backend="vulkan", runtime="mobopt")
    for got, want in zip(ours(x), net(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "op, dtype, refused",
    [
        ("aten::relu", torch.bool, True),
        ("aten::relu", torch.int64, False),
        ("aten::celu_", torch.int64, True),
        ("aten::upsample_bilinear2d.vec", torch.uint8, False),
        ("aten::upsample_bilinear2d.vec", torch.int32, True),
        ("aten::gelu", torch.complex64, False),
        ("aten::gelu", torch.bfloat16, False),
        ("aten::add.Tensor", torch.bool, False),
    ],
)
def test_kinds(op: str, dtype: torch.dtype, refused: bool) -> None:
    assert is_refused(op, [], [dtype]) == refused


def test_float64_beside_float32_is_told_of() -> None:
    ours = optimize_for_mobile(torch.jit.script(nn.Conv2d(3, 5, 3).eval()), backend="vulkan", runtime="mobopt")
    with pytest.raises(InputError, match=r"in float64, as NumPy makes them, give it in float32 \(x\.float\(\)"):
        ours(numbers((1, 3, 9, 9), torch.float64))


@pytest.mark.parametrize("call", [torch.max, torch.min, lambda x: x.max(1)[0], lambda x: x.min(-1)[1]])
def test_extremes_of_nothing(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x)

    traced = torch.jit.trace(Net(), torch.rand(3, 5))
    ours = optimize_for_mobile(traced, backend="vulkan", runtime="mobopt")
    torch.testing.assert_close(ours(torch.ones(7, 2)), traced(torch.ones(7, 2)))
    with pytest.raises(InputError, match="there is no extreme"):
        ours(torch.ones(3, 0))


def test_as_many_values_as_keys() -> None:
    """Torch's CPU reads values that aren't there."""
    q, k, v = torch.rand(1, 2, 5, 4), torch.rand(1, 2, 6, 4), torch.rand(1, 2, 6, 4)

    class Net(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v)

    ours = optimize_for_mobile(torch.jit.trace(Net(), (q, k, v)), backend="vulkan", runtime="mobopt")
    torch.testing.assert_close(ours(q, k, v), Net()(q, k, v), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="there are 6 keys and 5 values"):
        ours(q, k, v[:, :, :5])
