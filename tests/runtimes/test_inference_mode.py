"""``torch.inference_mode()``, in which many call models: torch counts no writes to tensors that are made in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.runtimes.memories import version_of


class Spectrum(nn.Module):
    """Constants are computed when a plan is made: a window, places, a mask."""

    def forward(self, x: Tensor) -> Tensor:
        lines = torch.stft(x, 16, 8, window=torch.hann_window(16), return_complex=True).abs()
        mask = torch.ones(lines.shape[-1], lines.shape[-1], dtype=torch.bool).tril()
        places = torch.arange(lines.shape[-1]) * 2 % lines.shape[-1]
        scores = functional.scaled_dot_product_attention(*(lines.mT,) * 3, attn_mask=mask)
        return scores[:, places].mT * 0.5 + torch.linspace(0.0, 1.0, scores.shape[1])


class Counting(nn.Module):
    """With a state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 1))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).mean((0, 2, 3))
        self.seen += y
        return y * 2 + self.seen


_RANDOM = torch.Generator().manual_seed(0)
MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "spectrum": (Spectrum, (2, 200)),
    "state": (Counting, (2, 3, 11, 13)),
}


def _made(name: str) -> tuple[nn.Module, Tensor]:
    kind, sizes = MODELS[name]
    torch.manual_seed(0)
    return kind().eval(), torch.randn(sizes, generator=_RANDOM)


@pytest.mark.parametrize("options", [{}, {"precision": "fp16"}, {"quantize": "int8_weights"}], ids=str)
@pytest.mark.parametrize("runtime", ["mobopt", "2.6"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("whole", [False, True], ids=["calls", "conversion too"])
def test_models(name: str, runtime: str, options: dict[str, Any], whole: bool) -> None:
    if options and runtime != "mobopt":
        pytest.skip("of mobopt's own runtime")
    model, x = _made(name)
    twin, _ = _made(name)
    given = torch.export.export(model, (x,))
    with torch.inference_mode(whole):
        module = optimize_for_mobile(given, backend="vulkan", runtime=runtime, **options)
    bound = 2e-2 if options else 1e-5
    for _ in range(2):  # the second call goes by the plan of the first
        with torch.inference_mode():
            found = module(x)
        wanted = twin(x).detach()
        torch.testing.assert_close(found.clone(), wanted, rtol=bound, atol=bound * float(wanted.abs().max()))
    torch.testing.assert_close(module(x).clone(), twin(x).detach(), rtol=bound, atol=bound * 10)


def test_weights_that_are_made_there() -> None:
    with torch.inference_mode():
        model, x = _made("spectrum")
        convolution = nn.Conv1d(9, 4, 3).eval()
        both = nn.Sequential(model, convolution).eval()
        module = optimize_for_mobile(both, example_inputs=(x,), backend="vulkan", runtime="mobopt")
        assert convolution.weight.is_inference()
        torch.testing.assert_close(module(x), both(x), rtol=1e-5, atol=1e-5)


def test_versions() -> None:
    x = torch.zeros(3)
    before = version_of(x)
    x += 1
    assert before is not None and version_of(x) == before + 1
    with torch.inference_mode():
        assert version_of(torch.zeros(3)) is None and version_of(x) == before + 1
