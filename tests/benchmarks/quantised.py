"""One token of Llama-shaped decoders of seeded weights, in float32 and with weights of few bits:
``python tests/benchmarks/quantised.py [--large] [--schemes float32,int8_weights,int4_weights:32]``.

Rotary positions, grouped queries, gated layers, and caches of keys and values that are state and stay on the device.
With CUDA, beside torch in half precision as a CUDA graph. ``--large`` has 1.03 billion parameters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.runtimes.vulkan.engine.array import DeviceArray

SCHEMES = "float32,int8_weights,int4_weights:32,int4_weights:128"
VOCABULARY, CACHED, HEAD = 32000, 512, 64


class Block(nn.Module):
    """Attention of one position to all before it, and a gated layer."""

    def __init__(self, width: int, inner: int, shared: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, width // shared, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.shared = shared
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, width // shared // HEAD, CACHED, HEAD))

    def forward(self, x: Tensor, place: Tensor, cosines: Tensor, sines: Tensor, seen: Tensor) -> Tensor:
        y = self.first(x)
        layers = self.query, self.key, self.value
        query, key, value = (layer(y).view(1, 1, -1, HEAD).transpose(1, 2) for layer in layers)
        query, key = (rotated(part, cosines, sines) for part in (query, key))
        self.keys.index_copy_(2, place, key)
        self.values.index_copy_(2, place, value)
        keys, values = (part.repeat_interleave(self.shared, 1) for part in (self.keys, self.values))
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Decoder(nn.Module):
    """A token and its place to the scores of the next one; the last layer has the table's weights."""

    def __init__(self, width: int, inner: int, layers: int, shared: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, inner, shared) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.table.weight
        angles = torch.outer(torch.arange(CACHED), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.register_buffer("places", torch.arange(CACHED))

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        x = self.table(token)
        turns = (table.index_select(0, place) for table in (self.cosines, self.sines))
        cosines, sines = turns
        seen = (self.places <= place).view(1, 1, 1, -1)
        for block in self.blocks:
            x = block(x, place, cosines, sines, seen)
        return self.head(self.norm(x))


def decoder(width: int, inner: int, layers: int, shared: int = 8) -> nn.Module:
    """With seeded weights."""
    torch.manual_seed(0)
    model = Decoder(width, inner, layers, shared)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return model.eval().requires_grad_(False)


def median(call: Callable[[], object], count: int = 200) -> float:
    """Milliseconds of a call."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e3


def half_precision(model: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Milliseconds of torch in half precision, as a CUDA graph."""
    model, inputs = model.half().cuda(), tuple(value.cuda() for value in inputs)
    for _ in range(3):
        model(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*inputs)
    return median(lambda: (graph.replay(), torch.cuda.synchronize()))


def in_a_row(call: Callable[[], DeviceArray], count: int = 200) -> float:
    """Milliseconds of each of several calls, the last of which somebody waits for, after calls for half a second: while
    a model was made ready, a GPU's clock has fallen."""
    start = time.perf_counter()
    while time.perf_counter() < start + 0.5:
        call().tensor()
    start = time.perf_counter()
    for _ in range(count):
        last = call()
    last.tensor()
    return (time.perf_counter() - start) / count * 1e3


def measure(
    exported: torch.export.ExportedProgram, name: str, inputs: tuple[Tensor, ...], expected: Tensor, floats: int
) -> None:
    """Print the line of one scheme, for a model whose float32 weights take ``floats`` bytes."""
    scheme, _, group = name.partition(":")
    quantize = None if scheme == "float32" else scheme
    module = optimize_for_mobile(
        exported, backend="vulkan", runtime="mobopt", quantize=quantize, quantize_group=int(group) if group else None
    )
    error = (module(*inputs) - expected).norm() / expected.norm()
    report = module.plan_report(*inputs)
    assert report.memory is not None
    peak = report.memory.peak_bytes
    print(
        f"{name}: {in_a_row(lambda: module.run_on_device(*inputs)):.2f} ms in a row, "
        f"{median(lambda: module(*inputs)):.2f} each by itself, {report.dispatches} dispatches, "
        f"peak {peak / 1e6:.0f} MB ({peak / floats:.0%}), error {error:.3f}",
        flush=True,
    )


@torch.no_grad()
def main() -> None:
    """Print a line for each scheme."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="22 layers of 2048")
    parser.add_argument("--schemes", default=SCHEMES, help="of quantize, each maybe with its group; or float32")
    options = parser.parse_args()
    model = decoder(2048, 5632, 22) if options.large else decoder(768, 2048, 12, 4)
    count = sum(item.numel() for item in model.parameters())
    inputs = torch.tensor([[17]]), torch.tensor([CACHED - 1])
    exported = torch.export.export(model, inputs)
    expected = model(*inputs)
    print(f"{count / 1e6:.0f} million parameters, {4 * count / 1e6:.0f} MB in float32", flush=True)
    for name in options.schemes.split(","):
        measure(exported, name, inputs, expected, 4 * count)
    if torch.cuda.is_available():
        print(f"torch, fp16, CUDA graph: {half_precision(model, inputs):.2f} ms")


if __name__ == "__main__":
    main()
