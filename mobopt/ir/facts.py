"""What is known of a tensor of a Program before it runs, as a part of its Value.

The text form has it behind the type: ``%y : Tensor float32[1, 3, 8, 8]``. Sizes are those of the example inputs;
words say where others are to be expected.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import torch

from mobopt.errors import GraphError
from mobopt.ir.types import TensorType

SIZES, RANK, NOTHING = "sizes", "rank", "nothing"
_STRIDED, _VARYING, _UNSEEN = "strided", "varying", "unseen"
_WORDS = {RANK: "several", NOTHING: "several ranks"}


class UnknownFactError(Exception):
    """A condition asks for something that only a run tells; whoever evaluates conditions catches it."""


@dataclass(frozen=True)
class TensorFacts:
    """Sizes and dtype of a tensor, as far as they are known.

    Attributes:
        known_dtype: name of the dtype, such as ``float32``.
        seen_sizes: of each dimension, where it was seen first; what operators make of it follows from them.
        lasting: what of these is so wherever it was seen: ``sizes``, ``rank``, or ``nothing``.
        is_constant: whether the elements are known when the file is written.
        is_contiguous: whether an input was row-major.
        is_seen: whether a run came to it; without one, nothing is known, and nothing is to be believed.
        varies: whether its sizes depend on more than the sizes of inputs; then they are not known.

    Reading one that is not known raises :class:`UnknownFactError`; ``known_dtype``, ``known_sizes`` and ``known_rank``
    give None then.
    """

    known_dtype: str | None = None
    seen_sizes: tuple[int, ...] | None = None
    lasting: str = SIZES
    is_constant: bool = False
    is_contiguous: bool = True
    is_seen: bool = True
    varies: bool = False

    @property
    def known_sizes(self) -> tuple[int, ...] | None:
        """Size of each dimension."""
        return self.seen_sizes if self.lasting == SIZES else None

    @property
    def known_rank(self) -> int | None:
        """Number of dimensions."""
        return None if self.seen_sizes is None or self.lasting == NOTHING else len(self.seen_sizes)

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        if self.known_dtype is None:
            raise UnknownFactError("dtype")
        return self.known_dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each dimension."""
        if self.known_sizes is None:
            raise UnknownFactError("sizes")
        return self.known_sizes

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        if self.known_rank is None:
            raise UnknownFactError("number of dimensions")
        return self.known_rank

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def nchw(self) -> tuple[int, ...]:
        """The last four sizes, with ones before them where there are fewer."""
        return (1, 1, 1, 1, *self.sizes)[-4:]

    @property
    def seen_type(self) -> TensorType | None:
        """Dtype and sizes where it was seen first; None if no run tells them."""
        if self.known_dtype is None or self.seen_sizes is None:
            return None
        return TensorType(getattr(torch, self.known_dtype), self.seen_sizes)

    def merged(self, later: TensorFacts) -> TensorFacts:
        """What holds for both, for a value that is computed several times (in a loop)."""
        if self.known_sizes is not None and self.known_sizes == later.known_sizes:
            lasting = SIZES
        else:
            lasting = RANK if self.known_rank is not None and self.known_rank == later.known_rank else NOTHING
        return TensorFacts(
            self.known_dtype if self.known_dtype == later.known_dtype else None,
            self.seen_sizes,
            lasting,
            self.is_constant and later.is_constant,
            self.is_contiguous and later.is_contiguous,
            self.is_seen and later.is_seen,
            self.varies or later.varies,
        )

    def varying(self, has_rank: bool) -> TensorFacts:
        """The same of a tensor whose sizes the run does not tell, and whose number of dimensions it may."""
        lasting = RANK if has_rank and self.known_rank is not None else NOTHING
        return replace(self, lasting=lasting, varies=True)

    def __str__(self) -> str:
        sizes = "varying" if self.varies else "?" if self.known_sizes is None else ", ".join(map(str, self.known_sizes))
        return f"{self.known_dtype or '?'}[{sizes}]"

    @property
    def text(self) -> str:
        """All of it, as the text of graphs has it; empty if nothing is known."""
        if self == UNKNOWN:
            return ""
        sizes = "?" if self.seen_sizes is None else ", ".join(map(str, self.seen_sizes))
        words = [_WORDS.get(self.lasting, "")]
        words += [_VARYING] * self.varies + [_STRIDED] * (not self.is_contiguous) + [_UNSEEN] * (not self.is_seen)
        return " ".join([f"{self.known_dtype or '?'}[{sizes}]", *filter(None, words)])


UNKNOWN = TensorFacts()
"""Of tensors that nobody has looked at."""
UNSEEN = TensorFacts(is_seen=False)
"""Of tensors that no run came to."""
_TEXT = re.compile(r"(?P<dtype>\w+|\?)\[(?P<sizes>[\d, ]*|\?)\](?P<words>(?: [a-z]+)*)")


def parse_facts(text: str) -> TensorFacts:
    """Read what :attr:`TensorFacts.text` writes.

    Raises:
        GraphError: it is something else.
    """
    match = _TEXT.fullmatch(text)
    words = match["words"] if match else ""
    rest = re.sub(f" ({_WORDS[NOTHING]}|{_WORDS[RANK]}|{_VARYING}|{_STRIDED}|{_UNSEEN})", "", words)
    if (
        match is None
        or rest
        or not (match["dtype"] == "?" or isinstance(getattr(torch, match["dtype"], None), torch.dtype))
    ):
        raise GraphError(f"can't read {text!r}: what is known of a tensor is written as float32[1, 3]")
    lasting = next((kind for kind in (NOTHING, RANK) if f" {_WORDS[kind]}" in words), SIZES)
    return TensorFacts(
        None if match["dtype"] == "?" else match["dtype"],
        None if match["sizes"] == "?" else tuple(int(size) for size in match["sizes"].split(",") if size.strip()),
        lasting,
        is_contiguous=_STRIDED not in words,
        is_seen=_UNSEEN not in words,
        varies=_VARYING in words,
    )


def facts_of_tensor(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a tensor that was seen in a run."""
    return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape))


def facts_of_constant(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a weight or another constant."""
    return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape), is_constant=True)


def name_of(dtype: torch.dtype) -> str:
    """``float32``"""
    return str(dtype).removeprefix("torch.")
