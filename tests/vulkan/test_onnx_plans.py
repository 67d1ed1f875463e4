"""What torch's two ONNX exporters write takes as few dispatches as the module itself, and is right."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import mobopt
from mobopt.bundle import read_bundle
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class Decoder(nn.Module):
    """A layer of a decoder, whose keys and values grow from call to call; pairs of heads share them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(31, 32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, width) for width in (32, 16, 16, 32))

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.table(token)
        y = self.norm(x)
        query, key, value = (
            layer(y).view(1, -1, heads, 8).transpose(1, 2)
            for layer, heads in ((self.query, 4), (self.key, 2), (self.value, 2))
        )
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        length = keys.shape[2]
        whole = [each[:, :, None].expand(1, 2, 2, length, 8).reshape(1, 4, length, 8) for each in (keys, values)]
        seen = F.scaled_dot_product_attention(query, whole[0], whole[1])
        return x + self.out(seen.transpose(1, 2).reshape(1, -1, 32)), keys, values


class Windows(nn.Module):
    """Attention by cosines in windows, which a roll moves (Z. Liu et al., "Swin Transformer V2", 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.roll(self.norm(x), (-1, -2), (1, 2)).view(1, 2, 4, 3, 4, 32)
        qkv = self.qkv(y.permute(0, 1, 3, 2, 4, 5).reshape(6, 16, 32)).view(6, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        query, key = F.normalize(qkv[0], dim=-1), F.normalize(qkv[1], dim=-1)
        y = torch.softmax(query @ key.transpose(-2, -1) * 3.0, -1) @ qkv[2]
        y = self.out(y.transpose(1, 2).reshape(6, 16, 32))
        y = y.view(1, 2, 3, 4, 4, 32).permute(0, 1, 3, 2, 4, 5).reshape(1, 8, 12, 32)
        return x + torch.roll(y, (1, 2), (1, 2))


class Patches(nn.Module):
    """How vision transformers begin."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 32, 4, stride=4), nn.LayerNorm(32)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 16, 32))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return self.norm(torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.positions)


NETS: dict[str, tuple[type[nn.Module], tuple[tuple[int, ...], ...]]] = {
    "decoder": (Decoder, ((1, 1), (1, 2, 13, 8), (1, 2, 13, 8))),
    "windows": (Windows, ((1, 8, 12, 32),)),
    "patches": (Patches, ((1, 3, 12, 20),)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("by_dynamo", [True, False])
@torch.no_grad()
def test_plans_are_as_short(units: Device, tmp_path: Path, name: str, by_dynamo: bool) -> None:
    torch.manual_seed(0)
    kind, shapes = NETS[name]
    net = kind().eval()
    args = tuple(torch.randint(31, shape) if len(shape) == 2 else torch.randn(shape) for shape in shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, args, str(tmp_path / "net.onnx"), dynamo=by_dynamo, verbose=False)
    counts = []
    for model in (torch.export.export(net, args), tmp_path / "net.onnx"):
        mobopt.optimize_for_mobile(model, backend="vulkan", runtime="mobopt").save(tmp_path / "net.pt")
        program = VulkanProgram(read_bundle(tmp_path / "net.pt"), units)
        torch.testing.assert_close(program.run("forward", args), net(*args), rtol=1e-5, atol=1e-5)
        counts.append(program.plan_report(args).dispatches)
    assert counts[1] == counts[0]
