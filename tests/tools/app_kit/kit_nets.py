"""A model with every kind of argument and result that a kit must carry, and names that are hard to carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035 - TorchScript's spelling

import torch
from torch import Tensor, nn


class Pair(NamedTuple):
    """A named tuple."""

    boxes: Tensor
    scores: Tensor


class EveryKind(nn.Module):
    """A method for each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.embedding = nn.Conv2d(3, 4, 3), nn.Embedding(10, 4)

    def forward(self, image: Tensor, scale: float = 2.0, mask: Optional[Tensor] = None) -> Dict[str, Tensor]:  # noqa: UP006, UP045
        y = self.convolution(image) * scale
        if mask is not None:
            y = y + mask
        return {"boxes": y.mean([2, 3]), 'a"$b\\': (y > 0).sum().unsqueeze(0)}

    @torch.jit.export
    def encode(self, input_ids: Tensor) -> Tuple[Tensor, List[Tensor]]:  # noqa: UP006
        y = self.embedding(input_ids)
        return y, [y.sum(1), y.mean(1)]

    @torch.jit.export
    def pair(self, x: Tensor) -> Pair:
        return Pair(x * 2, x.sum(1))

    @torch.jit.export
    def mixed(
        self,
        xs: List[Tensor],  # noqa: UP006
        names: Dict[str, int],  # noqa: UP006
        module: int,
        text: str,
        flag: bool,
        sizes: List[int],  # noqa: UP006
        t: Tuple[Tensor, Optional[float]],  # noqa: UP006, UP045
    ) -> Tuple[  # noqa: UP006
        Optional[Tensor],  # noqa: UP045
        List[int],  # noqa: UP006
        float,
        str,
        Dict[int, List[Tensor]],  # noqa: UP006
        List[Tuple[Tensor, int]],  # noqa: UP006
        bool,
        List[float],  # noqa: UP006
    ]:
        given = t[1]
        number = 1.5 if given is None else given
        first = xs[0] if flag else None
        pairs = [(x, x.size(0)) for x in xs]
        return first, [len(names), module], number, text, {3: xs, 1: [t[0]]}, pairs, flag, [0.5, number]

    @torch.jit.export
    def mask(self, x: Tensor) -> Tensor:
        return x > 0

    @torch.jit.export
    def maybe(self, x: Tensor, flag: bool) -> Optional[Dict[str, Tensor]]:  # noqa: UP006, UP045
        if flag:
            return {"x": x}
        return None

    @torch.jit.export
    def half(self, x: Tensor) -> Tensor:
        return x.half()

    @torch.jit.export
    def nested(
        self,
        xs: List[List[int]],  # noqa: UP006
        d: Dict[str, List[Tensor]],  # noqa: UP006
        o: Optional[List[Tensor]],  # noqa: UP006, UP045
    ) -> List[List[int]]:  # noqa: UP006
        return xs

    @torch.jit.export
    def place(self, d: torch.device) -> torch.device:
        return d

    @torch.jit.export
    def nothing(self, x: Tensor) -> None:
        return None


def write_every_kind(path: Path) -> Path:
    """The model as a lite file."""
    torch.manual_seed(0)
    torch.jit.script(EveryKind().eval())._save_for_lite_interpreter(str(path))
    return path


def every_kind_examples() -> dict[str, list[Any]]:
    """Arguments of every method but ``place``."""
    generator = torch.Generator().manual_seed(1)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    return {
        "forward": [random(2, 3, 7, 5), 2.0, None],
        "encode": [torch.randint(0, 10, (1, 6), generator=generator)],
        "pair": [random(3, 5)],
        "mixed": [[random(2, 3), random(1)], {"a": 1, "b\\": -2}, 7, 'x"$y\n☃ ??/', True, [1, 2], (random(2), None)],
        "mask": [random(3)],
        "maybe": [random(2), True],
        "half": [random(4)],
        "nested": [[[1, 2], [3]], {"k": [random(2)]}, None],
        "nothing": [random(1)],
    }
