"""Nets for text, tables, points and series."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class BERT(nn.Module):
    """Token and position embeddings, attention with an additive mask, and a pooled first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(50, 12), nn.Embedding(16, 12), nn.Embedding(2, 12)
        self.norm, self.norm1, self.norm2 = nn.LayerNorm(12, 1e-12), nn.LayerNorm(12), nn.LayerNorm(12)
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))
        self.up, self.down, self.pooler = nn.Linear(12, 24), nn.Linear(24, 12), nn.Linear(12, 12)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), x.size(1), 3, 4).permute(0, 2, 1, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1]).unsqueeze(0)
        x = self.norm(self.words(ids) + self.places(places) + self.kinds(torch.zeros_like(ids)))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        scores = torch.matmul(self._heads(self.query(x)), self._heads(self.key(x)).transpose(-1, -2)) / math.sqrt(4)
        y = torch.matmul(F.softmax(scores + bias, dim=-1), self._heads(self.value(x)))
        y = y.permute(0, 2, 1, 3).contiguous()
        x = self.norm1(self.out(y.view(y.size(0), y.size(1), 12)) + x)
        x = self.norm2(self.down(F.gelu(self.up(x))) + x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class GPT(nn.Module):
    """One product for query, key and value, a causal mask, and the embedding as output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 12), nn.Parameter(torch.randn(1, 16, 12))
        self.norm1, self.norm2, self.norm = (nn.LayerNorm(12) for _ in range(3))
        self.words.weight.data *= 0.1
        self.attention, self.out = nn.Linear(12, 36), nn.Linear(12, 12)
        self.mlp = nn.Sequential(nn.Linear(12, 48), nn.GELU(approximate="tanh"), nn.Linear(48, 12))
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, ids: Tensor) -> Tensor:
        n, t = ids.size()
        x = self.words(ids) + self.places[:, :t, :]
        q, k, v = self.attention(self.norm1(x)).split(12, dim=2)
        q, k, v = (item.view(n, t, 2, 6).transpose(1, 2) for item in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(6))
        scores = F.softmax(scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).contiguous().view(n, t, 12))
        x = x + self.mlp(self.norm2(x))
        return (self.norm(x)[:, -1, :] @ self.words.weight.t()).log_softmax(-1)


class Llama(nn.Module):
    """RMS norm, rotary places, grouped heads and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(16))
        self.q, self.k, self.v = nn.Linear(16, 16, False), nn.Linear(16, 8, False), nn.Linear(16, 8, False)
        self.gate, self.up, self.down = nn.Linear(16, 20, False), nn.Linear(16, 20, False), nn.Linear(20, 16, False)
        angle = torch.outer(torch.arange(9).float(), 1.0 / 100 ** (torch.arange(0, 4, 2).float() / 4))
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1))

    def _norm(self, x: Tensor) -> Tensor:
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def _rotate(self, x: Tensor) -> Tensor:
        turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
        return x * self.cos[: x.size(2)] + turned * self.sin[: x.size(2)]

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        y = self._norm(x)
        q = self._rotate(self.q(y).view(n, t, 4, 4).transpose(1, 2))
        k = self._rotate(self.k(y).view(n, t, 2, 4).transpose(1, 2))
        v = self.v(y).view(n, t, 2, 4).transpose(1, 2)
        k, v = (item[:, :, None].expand(n, 2, 2, t, 4).reshape(n, 4, t, 4) for item in (k, v))
        mask = torch.full((t, t), float("-inf")).triu(1)
        x = x + (F.softmax(q @ k.transpose(2, 3) / 2 + mask, dim=-1) @ v).transpose(1, 2).reshape(n, t, 16)
        y = self._norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class TextCNN(nn.Module):
    """Windows of words of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 9)
        self.convs = nn.ModuleList(nn.Conv2d(1, 5, (k, 9)) for k in (2, 3, 4))
        self.head = nn.Linear(15, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).unsqueeze(1)
        maps = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        return self.head(torch.cat([F.max_pool1d(y, y.size(2)).squeeze(2) for y in maps], 1))


class Seq2Seq(nn.Module):
    """A decoder that goes step by step with attention to the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(6, 8, batch_first=True), nn.GRUCell(14, 8)
        self.score, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.encoder(x)
        hidden, token = last[0], torch.zeros(x.size(0), 6)
        found = []
        for _ in range(3):
            weights = F.softmax(torch.bmm(states, self.score(hidden).unsqueeze(2)).squeeze(2), dim=1)
            context = torch.bmm(weights.unsqueeze(1), states).squeeze(1)
            hidden = self.cell(torch.cat([token, context], 1), hidden)
            token = self.out(hidden)
            found.append(token)
        return torch.stack(found, 1)


class PointNet(nn.Module):
    """A learnt rotation of points, and the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU())
        self.turn = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 9))
        self.conv1, self.conv2, self.norm = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 13, 1), nn.BatchNorm1d(13)
        self.head = nn.Conv1d(21, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        turn = self.turn(torch.max(self.small(x), 2, keepdim=True)[0].view(-1, 8))
        turn = (turn + torch.eye(3).flatten().view(1, 9).repeat(x.size(0), 1)).view(-1, 3, 3)
        x = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        points = F.relu(self.conv1(x))
        whole = torch.max(self.norm(self.conv2(points)), 2, keepdim=True)[0].repeat(1, 1, x.size(2))
        return F.log_softmax(self.head(torch.cat([points, whole], 1)).transpose(2, 1), dim=-1)


class WideDeep(nn.Module):
    """Embedded categories beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(7, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(5)
        self.deep = nn.Sequential(nn.Linear(17, 11), nn.SELU(), nn.Dropout(), nn.Linear(11, 1))
        self.wide = nn.Linear(5, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        numbers = self.norm(numbers)
        embedded = torch.cat([table(kinds[:, index]) for index, table in enumerate(self.tables)], 1)
        return torch.sigmoid(self.deep(torch.cat([embedded, numbers], 1)) + self.wide(numbers)).squeeze(1)


class TCN(nn.Module):
    """Causal dilated convolutions: padding before only, or cut off behind."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(5 if d == 1 else 6, 6, 3, padding=2 * d, dilation=d) for d in (1, 2, 4))
        self.short = nn.Conv1d(5, 6, 1)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.short(x)
        for conv, dilation in zip(self.convs, (1, 2, 4)):  # noqa: B905
            x = F.relu(conv(x)[:, :, : -2 * dilation].contiguous())
        return self.head(F.relu(x + y)[:, :, -1])


class FiLM(nn.Module):
    """Maps scaled and shifted by what another input says."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6, affine=False)
        self.film = nn.Linear(4, 12)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = torch.chunk(self.film(condition), 2, dim=-1)
        y = self.norm(self.conv(x))
        return F.relu((1 + scale[:, :, None, None]) * y + shift[:, :, None, None])


class StreamingLSTM(nn.Module):
    """One step: the states go in and come out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(7, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, memory = self.cell(x, (hidden, memory))
        return F.softmax(self.head(hidden), dim=-1), hidden, memory


class Gates(nn.Module):
    """A step of a gated cell in the author's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(5, 18), nn.Linear(6, 18, bias=False)

    def forward(self, sequence: Tensor, h: Tensor) -> Tensor:
        for step in range(sequence.size(1)):
            gates = self.x(sequence[:, step])
            state = self.h(h)
            update = torch.sigmoid(gates[:, :6] + state[:, :6])
            reset = torch.sigmoid(gates[:, 6:12] + state[:, 6:12])
            new = torch.tanh(gates[:, 12:] + reset * state[:, 12:])
            h = torch.lerp(new, h, update)
        return h


def _ids(*sizes: int, most: int) -> Tensor:
    return torch.randint(0, most, sizes)


SEQUENCES = {
    "BERT": (BERT, lambda: [_ids(1, 9, most=50), torch.tensor([[1] * 7 + [0] * 2])]),
    "GPT": (GPT, lambda: [_ids(1, 7, most=40)]),
    "Llama": (Llama, lambda: [torch.randn(1, 7, 16)]),
    "TextCNN": (TextCNN, lambda: [_ids(1, 11, most=30)]),
    "Seq2Seq": (Seq2Seq, lambda: [torch.randn(1, 5, 6)]),
    "PointNet": (PointNet, lambda: [torch.randn(1, 3, 23)]),
    "WideDeep": (WideDeep, lambda: [torch.randn(3, 5), _ids(3, 3, most=7)]),
    "TCN": (TCN, lambda: [torch.randn(1, 5, 17)]),
    "FiLM": (FiLM, lambda: [torch.randn(1, 2, 7, 11), torch.randn(1, 4)]),
    "StreamingLSTM": (StreamingLSTM, lambda: [torch.randn(1, 7), torch.randn(1, 9), torch.randn(1, 9)]),
    "Gates": (Gates, lambda: [torch.randn(1, 4, 5), torch.zeros(1, 6)]),
}
