"""Modules that PyTorch's kernels or earlier files got wrong: what each needs is told beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from applied import Applied
from torch import Tensor, nn
from varying_cases import CASES


@dataclass(frozen=True)
class Probe:
    """A module with the call to try, what else the conversion sees, and the method that is called."""

    module: nn.Module
    inputs: Sequence[Any]
    example: Sequence[Any] | None = None
    method: str = "forward"


class _Defaults(nn.Module):
    """Arguments that examples leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.larger = nn.ConvTranspose2d(4, 5, 3, 2)

    def forward(self, x: Tensor, scale: float = 2.0, m: Tensor | None = None) -> Tensor:
        y = self.larger(x) * scale
        return y if m is None else y + m


class _ImageOfBranch(nn.Module):
    """An input that a condition chooses."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3)

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        y = x
        if flag:
            y = x.flip(3)
        return self.first(y)


class _Narrow(nn.Module):
    """RegNet-Y's stage, and DeepLab's branches of dilated convolutions."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(channels, channels, 3, padding=1, groups=channels // width)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 8, 1), nn.ReLU())
        self.excite = nn.Sequential(nn.Conv2d(8, channels, 1), nn.Sigmoid())
        self.branches = nn.ModuleList(
            nn.Conv2d(channels, 16, 3, padding=dilation, dilation=dilation) for dilation in (12, 24, 36)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.grouped(x))
        y = y * self.excite(self.squeeze(y))
        return torch.cat([branch(y) for branch in self.branches], 1)


class _Steps(nn.Module):
    """A recurrent layer, all of whose results are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.layer(x)  # type: ignore[no-any-return]


def _quantized(module: nn.Module, x: Tensor) -> nn.Module:
    """A net that torch has quantised for phones, statically."""
    engine, torch.backends.quantized.engine = torch.backends.quantized.engine, "qnnpack"
    wrapped = torch.ao.quantization.QuantWrapper(module.eval())
    wrapped.qconfig = torch.ao.quantization.get_default_qconfig("qnnpack")  # type: ignore[assignment]
    prepared = torch.ao.quantization.prepare(wrapped)
    prepared(x)
    made = torch.ao.quantization.convert(prepared)
    torch.backends.quantized.engine = engine
    return made  # type: ignore[no-any-return]


def _quantized_dynamically(*layers: nn.Module) -> nn.Module:
    """Layers whose weights torch has quantised for phones, and whose inputs are quantised in each call."""
    engine, torch.backends.quantized.engine = torch.backends.quantized.engine, "qnnpack"
    made = torch.ao.quantization.quantize_dynamic(nn.Sequential(*layers).eval(), {nn.Linear}, torch.qint8)
    torch.backends.quantized.engine = engine
    return made


def _rows(*sizes: int) -> Tensor:
    return torch.randn(sizes)


_WIDE: dict[str, Callable[[], Probe]] = {
    "25088 columns": lambda: Probe(nn.Linear(25088, 24), [_rows(1, 25088)]),
    "30522 words": lambda: Probe(nn.Linear(64, 30522), [_rows(7, 64)]),
    "3000 rows": lambda: Probe(nn.Sequential(nn.Linear(37, 64), nn.ReLU(), nn.Linear(64, 5)), [_rows(3000, 37)]),
    "16000 samples": lambda: Probe(
        nn.Sequential(nn.Conv1d(1, 8, 9, 4, 4), nn.ReLU(), nn.Conv1d(8, 5, 3)), [_rows(1, 1, 16000)]
    ),
    "5000 wide": lambda: Probe(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2)), [_rows(1, 3, 9, 5000)]
    ),
}
"""Over the limit of images."""

_VALUES: dict[str, Callable[[], Probe]] = {
    "softmax": lambda: Probe(Applied(lambda x: x.softmax(1)), [_rows(1, 5, 7, 3) * 200]),
    "softmax of rows": lambda: Probe(Applied(lambda x: x.softmax(-1)), [_rows(5, 7) * 200]),
    "softmax above its example": lambda: Probe(
        Applied(lambda x: x.softmax(-1)), [_rows(1, 3, 5, 7) * 200], [_rows(1, 3, 5, 7)]
    ),
    "log_softmax": lambda: Probe(Applied(lambda x: x.log_softmax(1)), [_rows(1, 5, 7, 3)]),
    "log_softmax of large": lambda: Probe(Applied(lambda x: x.log_softmax(-1)), [_rows(1, 5, 7, 3) * 200]),
    "attention": lambda: Probe(
        Applied(lambda x: (x @ x.transpose(-2, -1)).softmax(-1) @ x), [_rows(1, 4, 16, 16) * 8], [_rows(1, 4, 16, 16)]
    ),
    "scripted defaults": lambda: Probe(_Defaults(), [_rows(1, 4, 5, 7)]),
    "half": lambda: Probe(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)).half(), [_rows(1, 3, 9, 7).half()]),
    "half of groups": lambda: Probe(
        nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)).half(),
        [_rows(1, 4, 9, 7).half()],
    ),
    "half steps": lambda: Probe(_Steps().half(), [_rows(1, 3, 5).half()]),
    "half functions": lambda: Probe(
        Applied(lambda x: torch.topk(torch.log(x.exp() + 1) * torch.rsqrt(x.abs() + 1), 3, -1)[0].cumsum(-1)),
        [_rows(2, 7).half()],
    ),
    "half einsum": lambda: Probe(Applied(lambda x: torch.einsum("bij,bkj->bik", x, x.relu())), [_rows(2, 5, 7).half()]),
    "half linear": lambda: Probe(nn.Sequential(nn.Linear(12, 7), nn.Softmax(-1)).half(), [_rows(3, 12).half()]),
}
"""Values and dtypes that kernels differ in, and arguments that have defaults."""


def _quantized_probe(module: nn.Module, x: Tensor) -> Probe:
    return Probe(_quantized(module, x), [x])


_QUANTIZED: dict[str, Callable[[], Probe]] = {
    "convolutions": lambda: _quantized_probe(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 3, 2, 1)), _rows(1, 3, 9, 7)
    ),
    "depthwise": lambda: _quantized_probe(
        nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)), _rows(1, 4, 9, 7)
    ),
    "linear": lambda: _quantized_probe(nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)), _rows(3, 12)),
    "dynamic": lambda: Probe(_quantized_dynamically(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)), [_rows(3, 12)]),
    "classifier": lambda: _quantized_probe(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 35, 5)), _rows(1, 3, 9, 7)
    ),
}
"""Torch's own quantised layers, which stay on the CPU, and become floats that are rounded alike on the GPU."""


def probes() -> dict[str, Probe]:
    """All, with seeded weights and inputs."""
    torch.manual_seed(3)
    found = {
        f"varying {name}": Probe(kind(), call, example, method) for name, (kind, example, method, call) in CASES.items()
    }
    for channels in (1, 3, 5, 6, 7):
        image = _rows(1, channels, 9, 7) * 5
        found[f"image {channels}"] = Probe(nn.Conv2d(channels, 8, 3), [image])
        found[f"image {channels} of branch"] = Probe(_ImageOfBranch(channels), [image, True], [image, False])
    found |= {f"wide {name}": make() for name, make in _WIDE.items()}
    found |= {f"values {name}": make() for name, make in _VALUES.items()}
    found |= {f"quantized {name}": make() for name, make in _QUANTIZED.items()}
    found |= {f"narrow {width}": Probe(_Narrow(24, width), [_rows(1, 24, 14, 14)]) for width in (1, 4, 8, 12)}
    return found
