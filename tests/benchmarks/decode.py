"""A token of a GPT-2 shaped decoder of seeded weights, whose caches are state:
``python tests/benchmarks/decode.py [device] [--layers 12] [--width 768] [--cached 512]``. Rounds alternate between the
contestants, each of them some calls in a row whose results nobody looks at; medians count. CUDA graphs of PyTorch take
part where it has a GPU.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device

ROUNDS, HEAD, VOCABULARY = 9, 64, 50_257
Burst = Callable[[int], None]


class Layer(nn.Module):
    """Attention over a cache, and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = self.qkv(self.before(x)).view(1, 1, 3, -1, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        keys.index_copy_(2, place, key)
        values.index_copy_(2, place, value)
        found = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self.out(found.transpose(1, 2).reshape(1, 1, -1))
        return x + self.down(functional.gelu(self.up(self.between(x)), approximate="tanh"))


class Decoder(nn.Module):
    """A token and its place in, the next one's logits out."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for number in range(layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{number}", torch.randn(1, width // HEAD, length, HEAD))
        self.register_buffer("places", torch.arange(length))

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.tokens(token) + self.positions(place)
        mask = (self.places <= place).view(1, 1, 1, -1)
        for number, layer in enumerate(self.layers):
            x = layer(x, getattr(self, f"keys{number}"), getattr(self, f"values{number}"), place, mask)
        return self.head(self.last(x))


def on_vulkan(device: Device, model: nn.Module, token: torch.Tensor, place: torch.Tensor) -> dict[str, Burst]:
    """mobopt in both precisions, from arrays to arrays and from tensors to tensors; prints errors, and what one token
    takes of the device by its clock."""
    expected = copy.deepcopy(model)(token, place)
    exported = torch.export.export(model, (token, place))
    found: dict[str, Burst] = {}
    for precision in ("fp32", "fp16"):
        own = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", precision=precision)
        error = (own(token, place) - expected).abs().max() / expected.abs().max()
        profiles = [own.runtime.profile([token, place]) for _ in range(2 if device.info.is_cpu else 300)]
        busy = min(sum(step.duration_ns for step in steps) for steps in profiles) / 1e6
        print(f"{precision}: error {error:.1e} of scale, {len(profiles[0])} dispatches, device busy {busy:.3f} ms")
        arrays = [DeviceArray.from_tensor(device, tensor) for tensor in (token, place)]

        def in_arrays(count: int, own: nn.Module = own, arrays: list[DeviceArray] = arrays) -> None:
            for _ in range(count):
                result = own.run_on_device(*arrays)
            result.read()

        def in_tensors(count: int, own: nn.Module = own) -> None:
            for _ in range(count):
                own(token, place)

        found[f"mobopt, {precision}, arrays"] = in_arrays
        found[f"mobopt, {precision}, tensors"] = in_tensors
    return found


def on_cuda(model: nn.Module, token: torch.Tensor, place: torch.Tensor) -> dict[str, Burst]:
    """CUDA graphs in both precisions."""
    found: dict[str, Burst] = {}
    for name, dtype in (("float32", torch.float32), ("float16", torch.float16)):
        moved, operands = copy.deepcopy(model).to("cuda", dtype), (token.cuda(), place.cuda())
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                moved(*operands)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            moved(*operands)

        found[f"CUDA graph, {name}"] = partial(_replayed, graph, (moved, *operands))
    return found


def _replayed(graph: torch.cuda.CUDAGraph, kept: object, count: int) -> None:
    """Replay a graph, which reads memory that ``kept`` keeps."""
    for _ in range(count):
        graph.replay()
    torch.cuda.synchronize()


def on_cpu(model: nn.Module, token: torch.Tensor, place: torch.Tensor) -> Burst:
    """Eager mode."""
    own = copy.deepcopy(model)

    def burst(count: int) -> None:
        for _ in range(count):
            own(token, place)

    return burst


def times_of(contestants: Mapping[str, Burst], calls: int) -> dict[str, list[float]]:
    """Milliseconds of a call, for each round; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS + 1):
        for name, burst in contestants.items():
            start = time.perf_counter()
            burst(calls)
            if number:
                found[name].append((time.perf_counter() - start) / calls * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", help="as MOBOPT_DEVICE has it")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--cached", type=int, default=512)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = open_device(options.device)
    model = Decoder(options.layers, options.width, options.cached + 1).eval()
    token, place = torch.tensor([[5]]), torch.tensor([options.cached])
    with torch.no_grad():
        contestants = on_vulkan(device, model, token, place)
        contestants |= on_cuda(model, token, place) if torch.cuda.is_available() else {}
        if device.info.is_cpu:
            contestants["PyTorch, CPU"] = on_cpu(model, token, place)
        found = times_of(contestants, 3 if device.info.is_cpu else 100)
    print("\n| | ms a token, median | least | most |\n|---|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.3f} | {min(times):.3f} | {max(times):.3f} |")


if __name__ == "__main__":
    main()
