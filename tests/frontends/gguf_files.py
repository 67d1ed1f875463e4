"""GGUF files as bytes, by the specification (``docs/gguf.md`` of ggml), and a Llama whose weights are in one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

F32, F16, Q4_0, Q8_0, BF16 = 0, 1, 2, 8, 30
_FORMATS = {"u32": (4, "<I"), "f32": (6, "<f"), "u64": (10, "<Q"), "i16": (3, "<h")}


def text(value: str) -> bytes:
    """A string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(item: Any) -> bytes:
    """A value with its type: a string, a bool, a list of strings or lists, or (format, number)."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    if isinstance(item, tuple):
        number, form = _FORMATS[item[0]]
        return struct.pack("<I", number) + struct.pack(form, item[1])
    elements = [value(element) for element in item]
    return struct.pack("<I", 9) + elements[0][:4] + struct.pack("<Q", len(item)) + b"".join(e[4:] for e in elements)


def q8_0(weight: torch.Tensor) -> tuple[bytes, torch.Tensor]:
    """A matrix in blocks of 32 integers of 8 bits, and what these stand for."""
    blocks = weight.reshape(-1, 32)
    scales = (blocks.abs().amax(1, keepdim=True) / 127).half()
    integers = (blocks / scales.float().clamp(min=1e-9)).round().clamp(-128, 127).to(torch.int8)
    raw = torch.cat([scales.view(torch.uint8), integers.view(torch.uint8)], 1)
    return raw.numpy().tobytes(), (integers * scales.float()).reshape(weight.shape)


def q4_0(weight: torch.Tensor) -> tuple[bytes, torch.Tensor]:
    """A matrix in blocks of 32 integers of 4 bits, and what these stand for."""
    blocks = weight.reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scales = (largest / -8).half()
    step = torch.where(scales == 0, 1, scales).float()
    integers = (blocks / step).round().clamp(-8, 7) + 8
    halves = integers.to(torch.uint8)
    raw = torch.cat([scales.view(torch.uint8), halves[:, :16] | halves[:, 16:] << 4], 1)
    return raw.numpy().tobytes(), ((integers - 8) * scales.float()).reshape(weight.shape)


def encoded(weight: torch.Tensor, kind: int) -> tuple[bytes, torch.Tensor]:
    """A tensor's bytes, and what they stand for."""
    if kind in (Q4_0, Q8_0):
        return (q4_0 if kind == Q4_0 else q8_0)(weight)
    floats = weight.to({F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[kind])
    return floats.reshape(-1).view(torch.uint8).numpy().tobytes(), floats.float()


def gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]],
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A file; tensors are (sizes as torch has them, kind, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (sizes, kind, raw) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes[::-1], kind, len(data))
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data


class Attention(nn.Module):
    """Grouped heads with rotation, causal."""

    def __init__(self, width: int, heads: int, groups: int, pairs: bool, bias: bool) -> None:
        super().__init__()
        self.size, self.heads, self.groups, self.pairs = width // heads, heads, groups, pairs
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * self.size, bias=bias) for _ in range(2))
        self.o_proj = nn.Linear(width, width, bias=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """By positions, halves or pairs of a head's elements."""
        half = self.size // 2
        angles = torch.arange(x.shape[2])[:, None] * 10000.0 ** -(torch.arange(half) / half)
        first, second = (x[..., ::2], x[..., 1::2]) if self.pairs else (x[..., :half], x[..., half:])
        parts = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.stack(parts, -1).flatten(-2) if self.pairs else torch.cat(parts, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (count, self.size)).transpose(1, 2)
            for layer, count in ((self.q_proj, self.heads), (self.k_proj, self.groups), (self.v_proj, self.groups))
        )
        k, v = (item.repeat_interleave(self.heads // self.groups, 1) for item in (self.rotated(k), v))
        y = nn.functional.scaled_dot_product_attention(self.rotated(q), k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Gate(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, *attention: Any) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, *attention), Gate(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, *layer: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, *layer) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Llama(nn.Module):
    """A small Llama with the names that transformers gives its parts."""

    def __init__(self, pairs: bool = False, bias: bool = False, is_tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.model = Body(97, 64, 2, 96, 4, 2, pairs, bias)
        self.lm_head = nn.Linear(64, 97, bias=False)
        if is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(tokens))


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def name_in_file(name: str) -> str:
    """What a GGUF file calls a parameter."""
    for own, other in _NAMES.items():
        name = name.replace(own, other)
    return name


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of heads whose halves rotate, as neighbours, which llama.cpp rotates."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def llama_file(model: Llama, kind: int, architecture: str = "llama", drop: str = "") -> tuple[bytes, nn.Module]:
    """A file with the weights of a model that rotates halves, matrices of a kind; the model gets what they become."""
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            this = kind if parameter.dim() == 2 else F32
            raw, exact = encoded(parameter.detach(), this)
            parameter.copy_(exact)
            heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            if architecture == "llama" and heads:
                rows = paired(torch.arange(parameter.shape[0]), heads)
                size = len(raw) // len(rows)
                raw = b"".join(raw[row * size : (row + 1) * size] for row in rows.tolist())
            if name_in_file(name) != drop:
                tensors[name_in_file(name)] = tuple(parameter.shape), this, raw
    tensors["rope_freqs.weight"] = (8,), F32, bytes(32)
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.attention.head_count": ("u32", 4),
        f"{architecture}.attention.head_count_kv": ("u32", 2),
        "tokenizer.ggml.tokens": ["a", "b\u00e9", ""],
        "general.sampling": [["x", "y"], ["z"]],
        "general.flag": True,
        "general.rate": ("f32", 0.5),
    }
    return gguf(metadata, tensors), model
