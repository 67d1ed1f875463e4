"""The cases that were tried on PyTorch's own Vulkan kernels (1.13.1 and 2.6), as modules with inputs.

``KNOWN`` says for each what those kernels did: ``ok``, ``wrong`` (other numbers, silently) or ``error``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from applied import Applied
from torch import nn

X = (1, 4, 5, 6)


@dataclass(frozen=True)
class Case:
    """A small model, and what genuine runtimes of 1.13.1 and 2.6 do with its untouched form."""

    make: Callable[[], nn.Module]
    sizes: tuple[int, ...]
    v1_13: str
    v2_6: str


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return norm


_OK, _WRONG, _ERROR = "ok", "wrong", "error"

_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str, str]] = {
    "conv groups=2": (lambda: nn.Conv2d(4, 6, 3, groups=2), X, _WRONG, _WRONG),
    "conv groups=2 to 4ch": (lambda: nn.Conv2d(4, 4, 3, groups=2), X, _WRONG, _WRONG),
    "conv depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), X, _OK, _OK),
    "conv depthwise mult2": (lambda: nn.Conv2d(4, 8, 3, groups=4), X, _WRONG, _WRONG),
    "conv dilation2": (lambda: nn.Conv2d(4, 5, 3, dilation=2, padding=2), X, _WRONG, _WRONG),
    "conv nobias": (lambda: nn.Conv2d(4, 5, 3, bias=False), X, _OK, _OK),
    "conv batch2": (lambda: nn.Conv2d(4, 5, 3), (2, 4, 5, 6), _WRONG, _WRONG),
    "conv padding_mode reflect": (lambda: nn.Conv2d(4, 5, 3, padding=1, padding_mode="reflect"), X, _OK, _OK),
    "conv padding=same str": (lambda: nn.Conv2d(4, 5, 3, padding="same"), X, _ERROR, _ERROR),
    "conv 3x5 stride(2,1)": (lambda: nn.Conv2d(4, 5, (3, 5), stride=(2, 1)), X, _OK, _OK),
    "conv1d": (lambda: nn.Conv1d(4, 5, 3), (1, 4, 9), _ERROR, _OK),
    "conv1d batch2 pad1": (lambda: nn.Conv1d(4, 5, 3, padding=1), (2, 4, 9), _ERROR, _OK),
    "tconv s2 k2": (lambda: nn.ConvTranspose2d(4, 5, 2, stride=2), X, _OK, _ERROR),
    "tconv s2 k3 outpad1": (lambda: nn.ConvTranspose2d(4, 5, 3, stride=2, output_padding=1), X, _OK, _ERROR),
    "tconv groups2": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), X, _ERROR, _ERROR),
    "tconv dilation2": (lambda: nn.ConvTranspose2d(4, 5, 3, dilation=2), X, _ERROR, _ERROR),
    "linear 2d": (lambda: nn.Linear(6, 5), (3, 6), _WRONG, _OK),
    "linear nobias": (lambda: nn.Linear(6, 5, bias=False), (3, 6), _OK, _OK),
    "linear 3d": (lambda: nn.Linear(6, 5), (2, 3, 6), _WRONG, _OK),
    "linear 1d": (lambda: nn.Linear(6, 5), (6,), _ERROR, _OK),
    "bn 4d": (lambda: _norm(4), X, _OK, _OK),
    "bn 6ch": (lambda: _norm(6), (1, 6, 5, 7), _ERROR, _OK),
    "groupnorm": (lambda: nn.GroupNorm(2, 4), X, _ERROR, _ERROR),
    "layernorm last": (lambda: nn.LayerNorm(6), (5, 6), _ERROR, _OK),
    "layernorm last 4d": (lambda: nn.LayerNorm(6), X, _ERROR, _OK),
    "avgpool pad": (lambda: nn.AvgPool2d(3, 2, 1), X, _OK, _OK),
    "avgpool ceil": (lambda: nn.AvgPool2d(2, 2, ceil_mode=True), X, _WRONG, _WRONG),
    "avgpool nocountpad": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), X, _WRONG, _WRONG),
    "maxpool pad": (lambda: nn.MaxPool2d(3, 2, 1), X, _WRONG, _WRONG),
    "maxpool ceil": (lambda: nn.MaxPool2d(2, 2, ceil_mode=True), X, _WRONG, _WRONG),
    "maxpool dil": (lambda: nn.MaxPool2d(2, 1, dilation=2), X, _OK, _OK),
    "adaptive 1": (lambda: nn.AdaptiveAvgPool2d(1), X, _OK, _OK),
    "adaptive 3": (lambda: nn.AdaptiveAvgPool2d(3), X, _OK, _OK),
    "hardswish": (nn.Hardswish, X, _OK, _ERROR),
    "hardsigmoid": (nn.Hardsigmoid, X, _OK, _ERROR),
    "leaky": (lambda: nn.LeakyReLU(0.1), X, _OK, _OK),
    "prelu": (lambda: nn.PReLU(4), X, _ERROR, _ERROR),
    "elu": (nn.ELU, X, _ERROR, _ERROR),
    "gelu": (nn.GELU, X, _ERROR, _ERROR),
    "gelu tanh": (lambda: nn.GELU("tanh"), X, _ERROR, _OK),
    "silu": (nn.SiLU, X, _ERROR, _ERROR),
    "softmax4d": (lambda: nn.Softmax(1), X, _WRONG, _OK),  # of elements above 88
    "softmax2d": (lambda: nn.Softmax(-1), (3, 6), _ERROR, _OK),
    "logsoftmax2d": (lambda: nn.LogSoftmax(-1), (3, 6), _ERROR, _WRONG),  # of small probabilities
    "relu6": (nn.ReLU6, X, _OK, _OK),
    "dropout": (lambda: nn.Dropout(0.5), X, _OK, _OK),
    "pixelshuffle": (lambda: nn.PixelShuffle(2), X, _ERROR, _ERROR),
    "up nearest": (lambda: nn.Upsample(scale_factor=2.0), X, _OK, _OK),
    "up bilinear": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), X, _ERROR, _OK),
    "zeropad": (lambda: nn.ZeroPad2d(1), X, _ERROR, _ERROR),
    "reflpad": (lambda: nn.ReflectionPad2d(1), X, _OK, _OK),
    "reppad": (lambda: nn.ReplicationPad2d(1), X, _OK, _OK),
    "flatten": (nn.Flatten, X, _OK, _OK),
}

_Function = Callable[[torch.Tensor], torch.Tensor]
_FUNCTIONS: dict[str, tuple[_Function, str, str]] = {
    "embedding": (lambda x: nn.functional.embedding(x[0, 0].abs().long(), x[0, 1]), _ERROR, _ERROR),
    "x.mean([2,3])": (lambda x: x.mean([2, 3]), _OK, _OK),
    "x.mean([2,3],True)": (lambda x: x.mean([2, 3], True), _OK, _OK),
    "x.sum(1)": (lambda x: x.sum(1), _ERROR, _OK),
    "torch.cat([x,x],0)": (lambda x: torch.cat([x, x], 0), _ERROR, _OK),
    "torch.cat([x,x],1)": (lambda x: torch.cat([x, x], 1), _OK, _OK),
    "torch.cat([x,x],2)": (lambda x: torch.cat([x, x], 2), _OK, _OK),
    "torch.cat([x,x],3)": (lambda x: torch.cat([x, x], 3), _ERROR, _OK),
    "x.permute(0,2,3,1)": (lambda x: x.permute(0, 2, 3, 1), _OK, _OK),
    "x.transpose(1,2)": (lambda x: x.transpose(1, 2), _ERROR, _OK),
    "x[:,1:3]": (lambda x: x[:, 1:3], _OK, _OK),
    "x[:,1]": (lambda x: x[:, 1], _ERROR, _OK),
    "torch.chunk(x,2,1)[0]": (lambda x: torch.chunk(x, 2, 1)[0], _OK, _OK),
    "torch.split(x,2,1)[1]": (lambda x: torch.split(x, 2, 1)[1], _OK, _OK),
    "torch.stack([x[0],x[0]],0)": (lambda x: torch.stack([x[0], x[0]], 0), _ERROR, _OK),
    "x[0].unsqueeze(0)": (lambda x: x[0].unsqueeze(0), _ERROR, _OK),
    "x.squeeze(0)": (lambda x: x.squeeze(0), _ERROR, _ERROR),
    "x.reshape(1,-1)": (lambda x: x.reshape(1, -1), _OK, _OK),
    "x.view(2,2,-1)": (lambda x: x.view(2, 2, -1), _OK, _OK),
    "x*2+x/3-1": (lambda x: x * 2 + x / 3 - 1, _OK, _OK),
    "x-x*0.5": (lambda x: x - x * 0.5, _OK, _OK),
    "x.abs().pow(2.0)": (lambda x: x.abs().pow(2.0), _ERROR, _OK),
    "torch.sqrt(x.abs())": (lambda x: torch.sqrt(x.abs()), _ERROR, _ERROR),
    "torch.exp(x)": (torch.exp, _ERROR, _ERROR),
    "1.0-x": (lambda x: 1.0 - x, _ERROR, _ERROR),
    "x/(x*x+1.0)": (lambda x: x / (x * x + 1.0), _OK, _OK),
    "torch.clamp(x,-0.5,0.5)": (lambda x: torch.clamp(x, -0.5, 0.5), _OK, _OK),
    "x.clamp_min(0.0)": (lambda x: x.clamp_min(0.0), _ERROR, _ERROR),
    "-x": (lambda x: -x, _ERROR, _ERROR),
    "torch.max(x,x*0.5)": (lambda x: torch.max(x, x * 0.5), _ERROR, _ERROR),
    "(x>0).float()": (lambda x: (x > 0).float(), _ERROR, _ERROR),
    "x[:,:1].expand(1,4,5,6)": (lambda x: x[:, :1].expand(1, 4, 5, 6), _ERROR, _OK),
    "x*x.mean([2,3],True)": (lambda x: x * x.mean([2, 3], True), _OK, _OK),
    "torch.matmul(x[0,0],x[0,0].t())": (lambda x: torch.matmul(x[0, 0], x[0, 0].t()), _ERROR, _ERROR),
    "torch.bmm(x[0],x[0].transpose(1,2))": (lambda x: torch.bmm(x[0], x[0].transpose(1, 2)), _ERROR, _OK),
    "x.permute(0,2,3,1).contiguous()": (lambda x: x.permute(0, 2, 3, 1).contiguous(), _OK, _OK),
    "torch.flip(x,[3])": (lambda x: torch.flip(x, [3]), _ERROR, _OK),
    "x.tile(1,2,1,1)": (lambda x: x.tile(1, 2, 1, 1), _ERROR, _OK),
    "x.var([2,3])": (lambda x: x.var([2, 3]), _ERROR, _OK),
    "x.argmax(1)": (lambda x: x.argmax(1), _ERROR, _ERROR),
    "x+torch.zeros_like(x)": (lambda x: x + torch.zeros_like(x), _ERROR, _OK),
    "torch.relu(x).add_(1.0)": (lambda x: torch.relu(x).add_(1.0), _OK, _OK),
    "x.clone()": (lambda x: x.clone(), _OK, _OK),
    "x.float()": (lambda x: x.float(), _OK, _OK),
    "x.half().float()": (lambda x: x.half().float(), _ERROR, _WRONG),
}


def cases() -> dict[str, Case]:
    """Every case by its name in the table."""
    found = {name: Case(make, sizes, old, new) for name, (make, sizes, old, new) in _LAYERS.items()}
    for name, (function, old, new) in _FUNCTIONS.items():
        found[name] = Case(lambda function=function: Applied(function), X, old, new)  # type: ignore[misc]
    return found
