"""Steps of latent diffusion: a U-Net with the structure of Stable Diffusion's, at a reduced width.

Residual blocks take the embedding of the time step, spatial transformers attend to the text, and each level down is
joined on the way up. The latent stays on the GPU between steps.

    python examples/diffusion_unet.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt import optimize_for_mobile


class ResidualBlock(nn.Module):
    """Two convolutions; the embedding of the time step is added between them."""

    def __init__(self, inputs: int, outputs: int, embedded: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedded, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H, W)."""
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(embedding))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """To itself, or to the text."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(source, width, bias=False)
        self.value, self.out = nn.Linear(source, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """(N, T, width) attends to (N, S, source)."""
        query, key, value = (
            y.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(source), self.value(source))
        )
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class GatedLayer(nn.Module):
    """GEGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width * 8), nn.Linear(width * 4, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the same."""
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * F.gelu(gate))


class SpatialTransformer(nn.Module):
    """Every place of an image attends to all places, and to the text."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm, self.into = nn.GroupNorm(8, width, eps=1e-6), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width, heads), Attention(width, text, heads)
        self.layer, self.out = GatedLayer(width), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """(N, width, H, W) to the same."""
        rows = x.shape[2]
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](y)
        y = y + self.own(normed, normed)
        y = y + self.cross(self.norms[1](y), text)
        y = y + self.layer(self.norms[2](y))
        return x + self.out(y.transpose(1, 2).unflatten(2, (rows, -1)))


class Level(nn.Module):
    """A residual block with a transformer."""

    def __init__(self, inputs: int, outputs: int, embedded: int, text: int, heads: int) -> None:
        super().__init__()
        self.block = ResidualBlock(inputs, outputs, embedded)
        self.transformer = SpatialTransformer(outputs, text, heads)

    def forward(self, x: Tensor, embedding: Tensor, text: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H, W)."""
        return self.transformer(self.block(x, embedding), text)


class UNet(nn.Module):
    """A noisy latent (N, 4, H, W), time steps (N) and text (N, T, text) to the noise (N, 4, H, W)."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        embedded = width * 4
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, embedded), nn.SiLU(), nn.Linear(embedded, embedded))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(
            [Level(width, width, embedded, text, heads), Level(width, width * 2, embedded, text, heads)]
        )
        self.shrink = nn.ModuleList(nn.Conv2d(size, size, 3, stride=2, padding=1) for size in (width, width * 2))
        self.middle = nn.ModuleList(
            [Level(width * 2, width * 2, embedded, text, heads), ResidualBlock(width * 2, width * 2, embedded)]
        )
        self.enlarge = nn.ModuleList(nn.Conv2d(width * 2, width * 2, 3, padding=1) for _ in range(2))
        self.up = nn.ModuleList(
            [Level(width * 4, width * 2, embedded, text, heads), Level(width * 3, width, embedded, text, heads)]
        )
        self.norm, self.out = nn.GroupNorm(8, width), nn.Conv2d(width, 4, 3, padding=1)

    def embedding(self, steps: Tensor) -> Tensor:
        """Sines and cosines of the time step, through two layers."""
        half = self.width // 2
        rates = 10000.0 ** (-torch.arange(half) / half)
        angles = steps[:, None].float() * rates
        return self.time(torch.cat([angles.cos(), angles.sin()], dim=1))

    def forward(self, latent: Tensor, steps: Tensor, text: Tensor) -> Tensor:
        """The noise in a latent."""
        embedding = self.embedding(steps)
        x, skips = self.stem(latent), []
        for level, shrink in zip(self.down, self.shrink, strict=True):
            x = level(x, embedding, text)
            skips.append(x)
            x = shrink(x)
        x = self.middle[1](self.middle[0](x, embedding, text), embedding)
        for level, enlarge in zip(self.up, self.enlarge, strict=True):
            skip = skips.pop()
            x = enlarge(F.interpolate(x, size=skip.shape[2:], mode="nearest"))
            x = level(torch.cat([x, skip], dim=1), embedding, text)
        return self.out(F.silu(self.norm(x)))


class Step(nn.Module):
    """One step of DDIM from the share of signal ``now`` to ``then``, both of shape (N)."""

    def __init__(self, unet: UNet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, latent: Tensor, steps: Tensor, now: Tensor, then: Tensor, text: Tensor) -> Tensor:
        """The less noisy latent."""
        noise = self.unet(latent, steps, text)
        now, then = now[:, None, None, None], then[:, None, None, None]
        clean = (latent - (1 - now).sqrt() * noise) / now.sqrt()
        return then.sqrt() * clean + (1 - then).sqrt() * noise


def main(small: bool = False, count: int = 4) -> None:
    """Take the noise out of a random latent on the device and in eager PyTorch."""
    torch.manual_seed(0)
    width, text_width, heads, size = (8, 12, 2, 10) if small else (64, 768, 8, 32)
    model = Step(UNet(width, text_width, heads)).eval()
    latent, text = torch.randn(1, 4, size, size), torch.randn(1, 7 if small else 77, text_width)
    shares = torch.linspace(0.1, 0.99, count + 1)
    calls = [
        (torch.tensor([999 - number * 999 // count]), shares[number, None], shares[number + 1, None])
        for number in range(count)
    ]
    device = optimize_for_mobile(model, backend="vulkan", runtime="mobopt", example_inputs=[latent, *calls[0], text])

    device_latent = latent
    for call in calls:
        device_latent = device.run_on_device(device_latent, *call, text)  # nothing but the step crosses the bus
        with torch.no_grad():
            latent = model(latent, *call, text)
    difference = (device_latent.tensor() - latent).abs().max() / latent.abs().max()
    assert difference < 1e-4

    print(
        f"{count} steps on a latent of {tuple(latent.shape)}; largest difference from eager {difference:.1e} of scale"
    )
    print(f"{device.runtime.device.info}: {device.plan_report(latent, *call, text)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    main(parser.parse_args().small)
