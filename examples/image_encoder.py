"""The image encoder of Segment Anything: a vision transformer with attention in windows and relative positions.

The structure is that of the published ViT: most blocks attend within windows (padded at the edges), some to the whole
image, all with positions relative in rows and columns that are added to the scores; a neck makes the image embedding.

    python examples/image_encoder.py
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt import optimize_for_mobile


@dataclass(frozen=True)
class Sizes:
    """Of an encoder; ViT-B has 1024 pixels, a width of 768, 12 blocks and heads, and windows of 14."""

    pixels: int = 256
    patch: int = 16
    width: int = 192
    blocks: int = 6
    heads: int = 6
    window: int = 7
    whole: tuple[int, ...] = (2, 5)
    """Blocks that attend to the whole image."""
    neck: int = 128


SMALL = Sizes(pixels=40, patch=8, width=12, blocks=2, heads=2, window=3, whole=(1,), neck=7)


class Norm2d(nn.Module):
    """Layer norm over channels of (N, C, H, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to the same."""
        centred = x - x.mean(1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(1, keepdim=True) + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Attention(nn.Module):
    """Attention in a square of ``side`` places, with decomposed relative positions."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, width * 3), nn.Linear(width, width)
        self.rel_pos_h = nn.Parameter(torch.randn(2 * side - 1, width // heads) * 0.1)
        self.rel_pos_w = nn.Parameter(torch.randn(2 * side - 1, width // heads) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, width) to the same."""
        count, rows, columns, _ = x.shape
        qkv = self.qkv(x).reshape(count, rows * columns, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.reshape(3, count * self.heads, rows * columns, -1).unbind(0)
        scores = (query * self.scale) @ key.transpose(-2, -1)
        places = torch.arange(rows)
        distance = places[:, None] - places[None, :] + (rows - 1)
        square = query.reshape(count * self.heads, rows, columns, -1)
        by_row = torch.einsum("bhwc,hkc->bhwk", square, self.rel_pos_h[distance])
        by_column = torch.einsum("bhwc,wkc->bhwk", square, self.rel_pos_w[distance])
        scores = scores.view(-1, rows, columns, rows, columns) + by_row[..., None] + by_column[..., None, :]
        y = scores.view(-1, rows * columns, rows * columns).softmax(-1) @ value
        y = y.view(count, self.heads, rows, columns, -1).permute(0, 2, 3, 1, 4).reshape(count, rows, columns, -1)
        return self.proj(y)


class Block(nn.Module):
    """Attention in windows (0: in the whole image), and two layers."""

    def __init__(self, sizes: Sizes, window: int) -> None:
        super().__init__()
        self.window, width = window, sizes.width
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, sizes.heads, window or sizes.pixels // sizes.patch)
        self.mlp = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))

    def in_windows(self, x: Tensor) -> Tensor:
        """Attention in each window of a padded image."""
        count, rows, columns, width = x.shape
        size = self.window
        x = F.pad(x, (0, 0, 0, -columns % size, 0, -rows % size))
        high, wide = x.shape[1] // size, x.shape[2] // size
        windows = x.view(count, high, size, wide, size, width).permute(0, 1, 3, 2, 4, 5)
        y = self.attn(windows.reshape(-1, size, size, width))
        y = y.view(count, high, wide, size, size, width).permute(0, 1, 3, 2, 4, 5)
        return y.reshape(count, high * size, wide * size, width)[:, :rows, :columns]

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, width) to the same."""
        y = self.norm1(x)
        x = x + (self.in_windows(y) if self.window else self.attn(y))
        return x + self.mlp(self.norm2(x))


class ImageEncoder(nn.Module):
    """An image (N, 3, pixels, pixels) to its embedding (N, neck, pixels / patch, pixels / patch)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        places = sizes.pixels // sizes.patch
        self.patch_embed = nn.Conv2d(3, sizes.width, sizes.patch, sizes.patch)
        self.pos_embed = nn.Parameter(torch.randn(1, places, places, sizes.width) * 0.1)
        self.blocks = nn.ModuleList(
            Block(sizes, 0 if number in sizes.whole else sizes.window) for number in range(sizes.blocks)
        )
        self.neck = nn.Sequential(
            nn.Conv2d(sizes.width, sizes.neck, 1, bias=False),
            Norm2d(sizes.neck),
            nn.Conv2d(sizes.neck, sizes.neck, 3, padding=1, bias=False),
            Norm2d(sizes.neck),
        )

    def forward(self, image: Tensor) -> Tensor:
        """The embedding."""
        x = self.patch_embed(image).permute(0, 2, 3, 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.neck(x.permute(0, 3, 1, 2))


def main(small: bool = False) -> None:
    """Embed a random image on the device and in eager PyTorch."""
    torch.manual_seed(0)
    sizes = SMALL if small else Sizes()
    model = ImageEncoder(sizes).eval()
    image = torch.randn(1, 3, sizes.pixels, sizes.pixels)
    device = optimize_for_mobile(model, backend="vulkan", runtime="mobopt", example_inputs=[image])
    found = device(image)
    with torch.no_grad():
        expected = model(image)
    difference = (found - expected).abs().max() / expected.abs().max()
    assert difference < 1e-4

    print(f"embedding of {tuple(found.shape)}; largest difference from eager {difference:.1e} of scale")
    print(f"{device.runtime.device.info}: {device.plan_report(image)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    main(parser.parse_args().small)
