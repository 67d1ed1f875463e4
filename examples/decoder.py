"""Generate text with a decoder whose cache of keys and values stays on the GPU.

The decoder has the shape of Llama: root mean square norms, rotary positions, grouped queries, gated layers. Its cache
lies in buffers, which each call writes to, so that a token costs one call of one position, and nothing but the token
and the next scores crosses the bus.

    python examples/decoder.py
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt import optimize_for_mobile


@dataclass(frozen=True)
class Sizes:
    """Of a decoder."""

    vocabulary: int = 4096
    width: int = 512
    layers: int = 8
    heads: int = 8
    groups: int = 4
    positions: int = 128


SMALL = Sizes(vocabulary=97, width=24, layers=2, heads=4, groups=2, positions=80)


class Attention(nn.Module):
    """Queries of one position to all keys so far; the cache is a buffer that each call writes one position of."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.groups, self.size = sizes.heads, sizes.groups, sizes.width // sizes.heads
        self.queries = nn.Linear(sizes.width, sizes.width, bias=False)
        self.keys = nn.Linear(sizes.width, self.groups * self.size, bias=False)
        self.values = nn.Linear(sizes.width, self.groups * self.size, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.register_buffer("key_cache", torch.zeros(1, self.groups, sizes.positions, self.size))
        self.register_buffer("value_cache", torch.zeros(1, self.groups, sizes.positions, self.size))
        rates = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(sizes.positions), torch.cat([rates, rates]))
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def rotated(self, x: Tensor, position: Tensor) -> Tensor:
        """Rotary positions."""
        one, two = x.chunk(2, dim=-1)
        cosine, sine = self.cosines.index_select(0, position), self.sines.index_select(0, position)
        return x * cosine + torch.cat([-two, one], dim=-1) * sine

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """(1, 1, width) at one position, an int64 tensor (1)."""
        query = self.rotated(self.queries(x).view(1, 1, self.heads, self.size).transpose(1, 2), position)
        key = self.rotated(self.keys(x).view(1, 1, self.groups, self.size).transpose(1, 2), position)
        value = self.values(x).view(1, 1, self.groups, self.size).transpose(1, 2)
        self.key_cache.index_copy_(2, position, key)
        self.value_cache.index_copy_(2, position, value)
        keys = self.key_cache.repeat_interleave(self.heads // self.groups, dim=1)
        values = self.value_cache.repeat_interleave(self.heads // self.groups, dim=1)
        seen = torch.arange(keys.shape[2]) <= position
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen.view(1, 1, 1, -1))
        return self.out(y.transpose(1, 2).reshape(1, 1, -1))


class Block(nn.Module):
    """Attention, and a gated layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(sizes.width, eps=1e-5), nn.RMSNorm(sizes.width, eps=1e-5)
        self.attention = Attention(sizes)
        hidden = sizes.width * 8 // 3
        self.gate, self.up = nn.Linear(sizes.width, hidden, bias=False), nn.Linear(sizes.width, hidden, bias=False)
        self.down = nn.Linear(hidden, sizes.width, bias=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """(1, 1, width) to the same."""
        x = x + self.attention(self.before(x), position)
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A token and its position to the next token and its score."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """An int64 token (1, 1) and position (1) to the likeliest next token (1, 1) and all scores (1, vocabulary)."""
        x = self.embedding(token)
        for block in self.blocks:
            x = block(x, position)
        scores = self.head(self.norm(x)[:, -1])
        return scores.argmax(-1, keepdim=True), scores


def main(small: bool = False, count: int = 64) -> None:
    """Generate tokens on the device and in eager PyTorch."""
    torch.manual_seed(2)  # with it the tokens differ, and no two are nearly as likely: only the right cache gives them
    model = Decoder(SMALL if small else Sizes()).eval().requires_grad_(False)
    prompt = [3, 14, 15, 92]
    start = (torch.tensor([[prompt[0]]]), torch.tensor([0]))
    device = optimize_for_mobile(copy.deepcopy(model), backend="vulkan", runtime="mobopt", example_inputs=start)

    token = device_token = None
    found, expected = list(prompt), list(prompt)
    for position in range(len(prompt) + count - 1):
        place = torch.tensor([position])
        if position < len(prompt):
            token = device_token = torch.tensor([[prompt[position]]])
        device_token, scores = device.run_on_device(device_token, place)  # what it gave goes in again as it is
        token, eager_scores = model(token, place)
        if position >= len(prompt) - 1:
            found.append(int(device_token.tensor()))
            expected.append(int(token))
    assert found == expected, f"the device generated {found}, eager PyTorch {expected}"

    print(f"generated {count} tokens after {prompt}, equal to eager PyTorch's: {found[len(prompt) :][:8]} ...")
    print(f"largest difference of the last scores: {(scores.tensor() - eager_scores).abs().max():.1e}")
    print(f"{device.runtime.device.info}: {device.plan_report(token, place)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    main(parser.parse_args().small)
