"""Encoder, vision transformer, decoder and U-Net, one call each: none may import what only torch's meta kernels need.

``test_start.py`` runs it in a process of its own.
"""

import sys

import sizes
import torch
from torch import nn

from mobopt.optimizer import optimize_for_mobile


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 5)
        self.layers = nn.Sequential(sizes.EncoderLayer(16, 2), sizes.EncoderLayer(16, 2))
        self.token, self.places = nn.Parameter(torch.rand(1, 1, 16)), nn.Parameter(torch.rand(1, 10, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.layers(torch.cat([self.token, x], 1) + self.places)[:, 0])


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.inputs, self.head = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 11)
        self.gate = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        n, length, width = x.shape
        q, k, v = self.inputs(x).chunk(3, -1)
        q, k, v = q * 0.5, torch.tanh(k), v + 1.0
        q = q.view(n, length, 2, 8).transpose(1, 2)
        k = k.view(n, length, 2, 8).transpose(1, 2)
        v = v.view(n, length, 2, 8).transpose(1, 2)
        past = torch.ones(length, length, dtype=torch.bool).tril()
        x = x + ((q @ k.transpose(-2, -1)).masked_fill(~past, -1e9).softmax(-1) @ v).transpose(1, 2).reshape(
            n, length, width
        )
        a, b = self.gate(x).chunk(2, -1)
        return self.head(a * torch.sigmoid(b))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        low, gate = torch.relu(self.down(x)).chunk(2, 1)
        low = torch.cat([low, torch.sigmoid(gate) * low], 1)
        wide = nn.functional.interpolate(low, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(torch.cat([x, self.up(low) + wide[:, :4]], 1))


class Recurrent(nn.Module):
    """Layers whose sequences come batch first, in both directions, and a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.others = nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True), nn.GRU(12, 7)
        self.cell = nn.GRUCell(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.others(self.layers(x)[0].transpose(0, 1))[0]
        state = torch.zeros(x.size(0), 3)
        for step in y.unbind(0):
            state = self.cell(step, state)
        return state


def main() -> None:
    torch.manual_seed(0)
    calls: list[tuple[nn.Module, torch.Tensor]] = [
        (sizes.EncoderLayer(16, 2), torch.rand(1, 7, 16)),
        (Transformer(), torch.rand(1, 3, 12, 12)),
        (Decoder(), torch.randint(0, 11, (1, 7))),
        (UNet(), torch.rand(1, 3, 8, 8)),
        (Recurrent(), torch.rand(2, 4, 5)),
    ]
    for model, x in calls:
        script = torch.jit.script(model.eval())
        module = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x])
        expected, result = model(x), module(x)
        imported = {"sympy", "torch._dynamo"} & sys.modules.keys()
        assert not imported, (type(model), imported)
        assert (result - expected).abs().max() < 1e-5
    print(f"{len(calls)} networks")


if __name__ == "__main__":
    main()
