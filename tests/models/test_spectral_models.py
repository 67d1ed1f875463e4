"""Models that compute with complex numbers: traced and exported, natively, beside eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt.frontends.open_source import source_of
from mobopt.passes.manager import run_passes
from mobopt.passes.number_operands import NumberOperands
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class MelClassifier(nn.Module):
    """A logarithmic mel spectrogram into a small convolutional net."""

    mels: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("mels", _triangles(40, 201))
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        power = torch.stft(x, 400, 160, window=self.window, return_complex=True).abs() ** 2
        y = torch.clamp(self.mels @ power, min=1e-10).log10()
        y = torch.maximum(y, y.amax() - 8.0)
        return self.head(self.body(((y + 4.0) / 4.0).unsqueeze(1)).mean((2, 3)))


def _triangles(count: int, frequencies: int) -> Tensor:
    """Triangles whose corners lie evenly on the mel scale."""
    corners = 700 * (10 ** (torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), count + 2) / 2595) - 1)
    places = torch.linspace(0, 8000, frequencies)
    rising = (places - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - places) / (corners[2:] - corners[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


class FourierBlock(nn.Module):
    """FNet (J. Lee-Thorp et al., 2021): transforms over features and places in the place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return self.norms[1](x + self.feed(x))


class RotaryAttention(nn.Module):
    """Queries and keys that are turned by complex numbers, as published with Llama."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(32).float(), 1e4 ** -(torch.arange(4) / 4))
        self.register_buffer("frequencies", torch.polar(torch.ones_like(angles), angles))
        self.query, self.key, self.value = (nn.Linear(24, 24, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        batch, count, _ = x.shape
        turned = self.frequencies[:count].view(1, count, 1, 4)
        q, k = (self._turned(layer(x).view(batch, count, 3, 8), turned) for layer in (self.query, self.key))
        v = self.value(x).view(batch, count, 3, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def _turned(self, x: Tensor, turned: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turned).flatten(3).transpose(1, 2)


class VocoderHead(nn.Module):
    """The head of Vocos (H. Siuzdak, 2023): magnitudes and phases of a spectrogram, and the signal of it."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 256 + 2)
        self.register_buffer("window", torch.hann_window(256))

    def forward(self, x: Tensor) -> Tensor:
        magnitude, phase = self.out(x).transpose(1, 2).chunk(2, dim=1)
        magnitude = torch.clip(torch.exp(magnitude), max=1e2)
        spectrum = magnitude * (torch.cos(phase) + 1j * torch.sin(phase))
        return torch.istft(spectrum, 256, 64, 256, self.window, center=True)


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "mel classifier": (MelClassifier, (2, 4003)),
    "fourier block": (FourierBlock, (2, 17, 24)),
    "rotary attention": (RotaryAttention, (2, 11, 24)),
    "vocoder head": (VocoderHead, (1, 23, 16)),
}


def _runs(name: str, is_exported: bool, device: Device) -> None:
    kind, sizes = MODELS[name]
    model, x = kind().eval(), torch.randn(sizes)
    with torch.no_grad():
        expected = model(x)
        traced = torch.export.export(model, (x,)) if is_exported else torch.jit.trace(model, (x,))  # type: ignore[no-untyped-call]
    source = source_of(traced).program
    run_passes(source, [NumberOperands()])
    program = VulkanProgram(source, device, fallback="error")
    found = program(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    program.close()


def test_a_spectral_model(device: Device) -> None:
    _runs("fourier block", False, device)


@pytest.mark.sweep
@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_spectral_models(name: str, is_exported: bool, device: Device) -> None:
    _runs(name, is_exported, device)
