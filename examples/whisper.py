"""Speech to tokens: an encoder and a decoder of Whisper's shape, as two models that chain on the GPU.

The encoder runs once for thirty seconds of sound, and its result stays on the device; the decoder reads it for every
token, with as many tokens as there are so far. Weights are seeded; a real checkpoint's names fit the layers one to one.

    python examples/whisper.py
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
    """Of a model; the defaults are those of Whisper tiny."""

    bands: int = 80
    frames: int = 3000
    width: int = 384
    heads: int = 6
    layers: int = 4
    vocabulary: int = 51865
    positions: int = 448


SMALL = Sizes(bands=10, frames=58, width=24, heads=3, layers=2, vocabulary=101, positions=16)


class Attention(nn.Module):
    """Multi-head attention, to itself or to what the encoder made."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, causal: bool = False) -> Tensor:
        """(N, T, width) attends to (N, S, width)."""
        query, key, value = (
            y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)
            for y in (self.query(x), self.key(source), self.value(source))
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, cross attention in the decoder, and two layers."""

    def __init__(self, width: int, heads: int, crosses: bool) -> None:
        super().__init__()
        self.attn, self.attn_ln = Attention(width, heads), nn.LayerNorm(width)
        self.cross_attn = Attention(width, heads) if crosses else None
        self.cross_attn_ln = nn.LayerNorm(width) if crosses else None
        self.mlp = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        """(N, T, width) to the same."""
        y = self.attn_ln(x)
        x = x + self.attn(y, y, causal=source is not None)
        if source is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), source)
        return x + self.mlp(self.mlp_ln(x))


def sinusoids(length: int, width: int) -> Tensor:
    """Positions as sines and cosines of wavelengths from 2 pi to 10,000 * 2 pi."""
    rates = 10000.0 ** (-torch.arange(width // 2) / (width // 2 - 1))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Encoder(nn.Module):
    """A spectrogram (N, bands, frames) to (N, frames / 2, width)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(sizes.bands, sizes.width, 3, padding=1)
        self.conv2 = nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(sizes.frames // 2, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads, crosses=False) for _ in range(sizes.layers))
        self.ln_post = nn.LayerNorm(sizes.width)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """What the decoder attends to."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(spectrogram)))).transpose(1, 2) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class Decoder(nn.Module):
    """Tokens (N, T) and the encoder's result to scores of the next token (N, vocabulary)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        nn.init.normal_(self.token_embedding.weight, std=0.1)  # else what is heard drowns: a token follows itself
        self.positional_embedding = nn.Parameter(torch.randn(sizes.positions, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads, crosses=True) for _ in range(sizes.layers))
        self.ln = nn.LayerNorm(sizes.width)

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        """Scores after the last token."""
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, source)
        return F.linear(self.ln(x)[:, -1], self.token_embedding.weight)


def main(small: bool = False, count: int = 8) -> None:
    """Transcribe a random spectrogram on the device and in eager PyTorch."""
    torch.manual_seed(0)
    sizes = SMALL if small else Sizes()
    encoder, decoder = Encoder(sizes).eval(), Decoder(sizes).eval()
    spectrogram = torch.randn(1, sizes.bands, sizes.frames)
    tokens = torch.tensor([[sizes.vocabulary - 1, sizes.vocabulary - 2]])
    with torch.no_grad():
        heard = encoder(spectrogram)
    lengths = torch.export.Dim("length", min=2, max=sizes.positions)
    device_encoder = optimize_for_mobile(encoder, backend="vulkan", runtime="mobopt", example_inputs=[spectrogram])
    device_decoder = optimize_for_mobile(
        decoder,
        backend="vulkan",
        runtime="mobopt",
        example_inputs=[tokens, heard],
        dynamic_shapes=({1: lengths}, None),  # one model for every number of tokens
    )

    device_heard = device_encoder.run_on_device(spectrogram)  # stays on the device
    device_tokens = tokens
    for _ in range(count):
        scores = device_decoder.run_on_device(device_tokens, device_heard).tensor()
        device_tokens = torch.cat([device_tokens, scores.argmax(-1, keepdim=True)], dim=1)
        with torch.no_grad():
            eager_scores = decoder(tokens, heard)
        tokens = torch.cat([tokens, eager_scores.argmax(-1, keepdim=True)], dim=1)
    assert device_tokens.equal(tokens), f"the device wrote {device_tokens.tolist()}, eager PyTorch {tokens.tolist()}"
    difference = (device_heard.tensor() - heard).abs().max(), (scores - eager_scores).abs().max()
    assert max(difference) < 1e-3

    print(f"wrote {count} tokens, equal to eager PyTorch's: {tokens[0, 2:].tolist()}")
    print(f"largest difference: encoder {difference[0]:.1e}, scores {difference[1]:.1e}")
    print(f"encoder on {device_encoder.runtime.device.info}: {device_encoder.plan_report(spectrogram)}")
    print(f"decoder: {device_decoder.plan_report(tokens, heard)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    main(parser.parse_args().small)
