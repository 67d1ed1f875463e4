"""What is known about a tensor before a model runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch


class UnknownFactError(Exception):
    """A condition asks for something that only a run tells; whoever evaluates conditions catches it."""


@dataclass(frozen=True)
class TensorFacts:
    """Sizes and dtype of a tensor, as far as they are known.

    Attributes:
        dtype: name of the dtype, such as ``float32``.
        sizes: of each dimension.
        is_constant: whether the elements are known when the file is written.
        is_contiguous: whether it was row-major wherever it was seen.
        is_seen: whether a run came to it; without one, nothing is known, and nothing is to be believed.
        varies: whether its sizes depend on more than the sizes of inputs; then they are not known.

    Reading one that is not known raises :class:`UnknownFactError`; ``known_dtype``, ``known_sizes`` and ``known_rank``
    give None then.
    """

    known_dtype: str | None = None
    known_sizes: tuple[int, ...] | None = None
    is_constant: bool = False
    is_contiguous: bool = True
    is_seen: bool = True
    varies: bool = False
    rank_seen: int | None = None
    """Number of dimensions where the sizes are not known."""

    @property
    def known_rank(self) -> int | None:
        """Number of dimensions."""
        return self.rank_seen if self.known_sizes is None else len(self.known_sizes)

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

    def merged(self, other: TensorFacts) -> TensorFacts:
        """What holds for both, for a value that is computed several times (in a loop)."""
        return TensorFacts(
            self.known_dtype if self.known_dtype == other.known_dtype else None,
            self.known_sizes if self.known_sizes == other.known_sizes else None,
            self.is_constant and other.is_constant,
            self.is_contiguous and other.is_contiguous,
            self.is_seen and other.is_seen,
            self.varies or other.varies,
            self.known_rank if self.known_rank == other.known_rank else None,
        )

    def varying(self, has_rank: bool) -> TensorFacts:
        """The same of a tensor whose sizes the run does not tell, and whose number of dimensions it may."""
        rank = self.known_rank if has_rank else None
        return replace(self, known_sizes=None, varies=True, rank_seen=rank)

    def __str__(self) -> str:
        sizes = "varying" if self.varies else "?" if self.known_sizes is None else ", ".join(map(str, self.known_sizes))
        return f"{self.known_dtype or '?'}[{sizes}]"


def facts_of_tensor(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a tensor that was seen in a run."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorFacts(dtype, tuple(tensor.shape), is_contiguous=_is_contiguous(tensor))


def facts_of_constant(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a weight or another constant."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorFacts(dtype, tuple(tensor.shape), is_constant=True, is_contiguous=_is_contiguous(tensor))


def _is_contiguous(tensor: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or tensor.is_contiguous()
