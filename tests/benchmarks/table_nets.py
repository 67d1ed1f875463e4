"""The networks of the tables in docs/performance.md, with seeded weights, and an input of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_zoo import ZOO
from sizes import EncoderLayer
from torchvision_operators import torchvision_with_operators


class VisionTransformer(nn.Module):
    """A ViT for images of 224 x 224 in patches of 16 (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class PromptLayer(nn.Module):
    """A layer of GPT-2 (Radford et al., 2019), which also gives keys and values for a cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, length, width = x.shape
        packed = self.qkv(self.before(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = packed[0], packed[1], packed[2]
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x)), approximate="tanh")), key, value


class Prompt(nn.Module):
    """A prompt in GPT-2's shape: logits of the next token, and what a cache keeps."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12, vocabulary: int = 50_257) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PromptLayer(width, heads) for _ in range(depth))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        cached: list[Tensor] = []
        for layer in self.layers:
            x, key, value = layer(x)
            cached += [key, value]
        return self.head(self.last(x[:, -1])), cached


def encoder() -> nn.Module:
    """Six layers of 384."""
    return nn.Sequential(*(EncoderLayer(384, 6) for _ in range(6)))


def convnext() -> nn.Module:
    """ConvNeXt-tiny (Liu et al., 2022), whose scales of layers are ones, as those of trained nets nearly are."""
    model = torchvision_with_operators().models.convnext_tiny(weights=None)
    for name, parameter in model.named_parameters():
        if name.endswith("layer_scale"):
            nn.init.ones_(parameter)
    return model


MORE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "encoder_6x384": (encoder, (1, 128, 384)),
    "vit_small": (lambda: VisionTransformer(384, 6, 12), (1, 3, 224, 224)),
    "convnext_tiny": (convnext, (1, 3, 224, 224)),
    "gpt2_prompt": (Prompt, (1, 512, 768)),
}
NAMES = (*ZOO, *MORE)


def built(name: str) -> tuple[nn.Module, Tensor]:
    """A network and its input; ``name@8`` has a batch of 8.

    Raises:
        SystemExit: there is no such network.
    """
    name, _, batch = name.partition("@")
    if name not in NAMES:
        raise SystemExit(f"there is no network {name!r}; choose of {', '.join(NAMES)}")
    count = int(batch or 1)
    if name in ZOO:
        return ZOO[name].build(), ZOO[name].example(count, 224, 224)
    make, sizes = MORE[name]
    torch.manual_seed(0)
    x = torch.randn((count * sizes[0], *sizes[1:]), generator=torch.Generator().manual_seed(1))
    return make().eval(), x
