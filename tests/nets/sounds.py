"""Nets for speech, music and key words."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Conformer(nn.Module):
    """A gated depthwise convolution over time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(10)
        self.first, self.last = nn.Conv1d(10, 20, 1), nn.Conv1d(10, 10, 1)
        self.depthwise, self.batch = nn.Conv1d(10, 10, 5, padding=2, groups=10), nn.BatchNorm1d(10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.first(self.norm(x).transpose(1, 2)), dim=1)
        return x + self.last(F.silu(self.batch(self.depthwise(y)))).transpose(1, 2) * 0.5


class DeepSpeech(nn.Module):
    """Convolutions over time and frequency, then a recurrent layer in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, (5, 3), (2, 1), (2, 1)), nn.BatchNorm2d(4), nn.Hardtanh(0.0, 20.0))
        self.recurrent = nn.LSTM(4 * 5, 6, bidirectional=True)
        self.head = nn.Linear(12, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = y.view(y.size(0), y.size(1) * y.size(2), y.size(3)).transpose(1, 2).transpose(0, 1).contiguous()
        y, _ = self.recurrent(y)
        return F.log_softmax(self.head(y), dim=-1)


class CRNN(nn.Module):
    """Text lines: heights pooled away, then a recurrent layer over the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, 1, 1),
            nn.ReLU(True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 9, 3, 1, 1),
            nn.BatchNorm2d(9),
            nn.ReLU(True),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.Conv2d(9, 9, 2),
        )
        self.recurrent, self.head = nn.GRU(9, 5, bidirectional=True), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).squeeze(2).permute(2, 0, 1)
        y, _ = self.recurrent(y)
        t, n, h = y.size()
        return self.head(y.view(t * n, h)).view(t, n, -1)


class KeyWords(nn.Module):
    """Depthwise separable convolutions over coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 10, (10, 4), (2, 2), (5, 1)), nn.BatchNorm2d(10), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(10, 10, 3, 1, 1, groups=10, bias=False),
            nn.BatchNorm2d(10),
            nn.ReLU(),
            nn.Conv2d(10, 12, 1),
            nn.ReLU(),
        )
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.stem(x))
        return self.head(F.avg_pool2d(y, (y.size(2), y.size(3))).squeeze())


class LogMel(nn.Module):
    """A spectrogram by convolution with windows of sines, in decibels, normalised."""

    def __init__(self) -> None:
        super().__init__()
        angle = 2 * torch.pi * torch.outer(torch.arange(9.0), torch.arange(16.0)) / 16
        window = torch.hann_window(16)
        self.register_buffer("basis", torch.cat([angle.cos() * window, -angle.sin() * window])[:, None])
        self.register_buffer("mel", torch.rand(5, 9))

    def forward(self, wave: Tensor) -> Tensor:
        y = F.conv1d(F.pad(wave.unsqueeze(1), (8, 8), mode="reflect"), self.basis, stride=4)
        power = y[:, :9] ** 2 + y[:, 9:] ** 2
        mel = 10.0 * torch.log10(torch.clamp(torch.matmul(self.mel, power), min=1e-6))
        return (mel - mel.mean(dim=2, keepdim=True)) / (mel.std(dim=2, keepdim=True) + 1e-5)


class Demucs(nn.Module):
    """Gated 1-d convolutions down, and transposed ones up, with the skipped signal cut to size."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.gate = nn.Conv1d(1, 6, 8, 4), nn.Conv1d(6, 12, 1)
        self.back, self.up = nn.Conv1d(6, 12, 3, padding=1), nn.ConvTranspose1d(6, 1, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        scale = x.std(dim=-1, keepdim=True)
        skip = F.glu(self.gate(F.relu(self.down(x / (1e-3 + scale)))), dim=1)
        y = self.up(F.glu(self.back(skip + skip[..., : skip.shape[-1]]), dim=1))
        return F.pad(y, (0, x.shape[-1] - y.shape[-1])) * scale


class WaveNet(nn.Module):
    """Products of tanh and sigmoid, whose skips are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 5, 1)
        self.filters = nn.ModuleList(nn.Conv1d(5, 5, 2, dilation=d) for d in (1, 2, 4))
        self.gates = nn.ModuleList(nn.Conv1d(5, 5, 2, dilation=d) for d in (1, 2, 4))
        self.skip, self.last = nn.Conv1d(5, 7, 1), nn.Conv1d(7, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total = torch.zeros(1)
        for one, two in zip(self.filters, self.gates):  # noqa: B905
            y = torch.tanh(one(x)) * torch.sigmoid(two(x))
            x = y + x[:, :, -y.size(2) :]
            total = self.skip(y)[:, :, -9:] + total
        return self.last(F.relu(total))


class SpeakerEmbedding(nn.Module):
    """Mean and deviation over time, weighted by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Conv1d(8, 10, 5, dilation=2), nn.ReLU(), nn.BatchNorm1d(10))
        self.attention = nn.Sequential(nn.Conv1d(10, 4, 1), nn.Tanh(), nn.Conv1d(4, 10, 1), nn.Softmax(dim=2))
        self.head = nn.Linear(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.frames(x)
        weights = self.attention(y)
        mean = torch.sum(y * weights, dim=2)
        deviation = torch.sqrt((torch.sum((y**2) * weights, dim=2) - mean**2).clamp(min=1e-5))
        return self.head(torch.cat([mean, deviation], dim=1))


SOUNDS = {
    "Conformer": (Conformer, lambda: [torch.randn(1, 13, 10)]),
    "DeepSpeech": (DeepSpeech, lambda: [torch.randn(1, 1, 10, 7)]),
    "CRNN": (CRNN, lambda: [torch.rand(1, 1, 8, 22)]),
    "KeyWords": (KeyWords, lambda: [torch.randn(1, 1, 21, 10)]),
    "LogMel": (LogMel, lambda: [torch.randn(1, 80)]),
    "Demucs": (Demucs, lambda: [torch.randn(1, 1, 50)]),
    "WaveNet": (WaveNet, lambda: [torch.randn(1, 1, 19)]),
    "SpeakerEmbedding": (SpeakerEmbedding, lambda: [torch.randn(1, 8, 17)]),
}
