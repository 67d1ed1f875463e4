"""One token of Llama-shaped decoders of seeded weights, in float32 and with weights of few bits.

With CUDA, beside torch in half precision.

Usage: python tests/benchmarks/quantised.py [--large]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from mobopt import optimize_for_mobile

SCHEMES = ((None, None), ("int8_weights", None), ("int4_weights", 32), ("int4_weights", 128))
VOCABULARY = 32000


class Block(nn.Module):
    """Attention of one token to itself, and a gated layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        scores = (self.query(y) * self.key(y)).sum(-1, keepdim=True).tanh()
        x = x + self.out(self.value(y) * scores)
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def decoder(width: int, inner: int, layers: int) -> nn.Module:
    """A decoder whose last layer has the table's weights."""
    torch.manual_seed(0)
    table, head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, *(Block(width, inner) for _ in range(layers)), nn.RMSNorm(width), head)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return model.eval()


def median(call: Callable[[], object], count: int = 200) -> float:
    """Milliseconds of a call."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e3


def half_precision(model: nn.Module, token: torch.Tensor) -> float:
    """Milliseconds of torch in half precision, as a CUDA graph."""
    model, token = model.half().cuda(), token.cuda()
    for _ in range(3):
        model(token)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(token)
    return median(lambda: (graph.replay(), torch.cuda.synchronize()))


@torch.no_grad()
def main() -> None:
    """Print a line for each scheme."""
    model = decoder(2048, 5632, 22) if "--large" in sys.argv else decoder(768, 2048, 12)
    floats = sum(4 * item.numel() for item in model.parameters())
    token = torch.tensor([[17]])
    expected, exported = model(token), torch.export.export(model, (token,))
    print(f"{floats / 4e6:.0f} million parameters, {floats / 1e6:.0f} MB in float32")
    for scheme, group in SCHEMES:
        module = optimize_for_mobile(
            exported, backend="vulkan", runtime="mobopt", quantize=scheme, quantize_group=group
        )
        error = (module(token) - expected).norm() / expected.norm()
        memory = module.plan_report(token).memory
        assert memory is not None
        print(
            f"{scheme or 'float32'} {group or ''}: {median(lambda call=module: call(token)):.2f} ms, "
            f"peak {memory.peak_bytes / 1e6:.0f} MB ({memory.peak_bytes / floats:.0%}), error {error:.3f}"
        )
    if torch.cuda.is_available():
        print(f"torch, fp16, CUDA graph: {half_precision(model, token):.2f} ms")


if __name__ == "__main__":
    main()
