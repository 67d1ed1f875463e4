"""What is known of a tensor of a Program before it runs, as a part of its Value.

The text form has it behind the type: ``%y : Tensor float32[1, 3, 8, 8]``. Sizes are those of the example inputs;
words say where others are to be expected. Where ranges of the inputs' sizes are declared, sizes that follow from them
are expressions of symbols (``float32[s0, 3, s1//2, 8]``), which :attr:`mobopt.ir.Program.size_symbols` holds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from mobopt.errors import GraphError
from mobopt.ir.dimensions import Dimension, Expression, symbol
from mobopt.ir.guards import LARGEST_SIZE, Guards, UnknownFactError
from mobopt.ir.types import TensorType, parse_type

SIZES, RANK, NOTHING = "sizes", "rank", "nothing"
_STRIDED, _VARYING, _UNSEEN = "strided", "varying", "unseen"
_WORDS = {RANK: "several", NOTHING: "several ranks"}


@dataclass(frozen=True, eq=False)
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
        symbolic_sizes: of each dimension, where some follow from sizes that were declared to vary.

    Reading one that is not known raises :class:`UnknownFactError`; ``known_dtype``, ``known_sizes`` and ``known_rank``
    give None then. A size of ``sizes`` may be an expression, which raises an :class:`UndecidedError` (an
    :class:`UnknownFactError`) wherever its value is needed and the declared ranges don't tell it.
    """

    known_dtype: str | None = None
    seen_sizes: tuple[int, ...] | None = None
    lasting: str = SIZES
    is_constant: bool = False
    is_contiguous: bool = True
    is_seen: bool = True
    varies: bool = False
    symbolic_sizes: tuple[Dimension, ...] | None = None

    def __eq__(self, other: object) -> bool:
        """Whether the same is known of both."""
        return isinstance(other, TensorFacts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        """Sizes are compared without a decision."""
        sizes = () if self.symbolic_sizes is None else self.symbolic_sizes
        keys = tuple(size.key if isinstance(size, Expression) else size for size in sizes)
        flags = self.is_constant, self.is_contiguous, self.is_seen, self.varies
        return self.known_dtype, self.seen_sizes, self.lasting, flags, keys

    @property
    def dimensions(self) -> tuple[Dimension, ...] | None:
        """Size of each dimension, for all inputs that were declared."""
        return self.symbolic_sizes or self.known_sizes

    @property
    def known_sizes(self) -> tuple[int, ...] | None:
        """Size of each dimension, where all are numbers."""
        return self.seen_sizes if self.lasting == SIZES and self.symbolic_sizes is None else None

    @property
    def largest_sizes(self) -> tuple[int, ...] | None:
        """The most that each size may be; of one that is declared without an upper bound, that of the example."""
        if self.symbolic_sizes is None or self.seen_sizes is None:
            return self.known_sizes
        pairs = zip(self.symbolic_sizes, self.seen_sizes, strict=True)
        return tuple(size.upper if isinstance(size, Expression) and _is_bounded(size) else seen for size, seen in pairs)

    @property
    def known_rank(self) -> int | None:
        """Number of dimensions."""
        return None if self.seen_sizes is None or self.lasting == NOTHING else len(self.seen_sizes)

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        if self.known_dtype is None:
            raise UnknownFactError("its dtype is not known")
        return self.known_dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each dimension; an expression takes a number's place."""
        if self.dimensions is None:
            raise UnknownFactError("its sizes are not known")
        return self.dimensions  # type: ignore[return-value]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        if self.known_rank is None:
            raise UnknownFactError("its number of dimensions is not known")
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
        return replace(self, lasting=lasting, varies=True, symbolic_sizes=None)

    @property
    def type(self) -> TensorType | None:
        """Dtype and sizes, for all declared inputs where these are known, else where it was seen first."""
        if self.known_dtype is None or self.symbolic_sizes is None:
            return self.seen_type
        return TensorType(getattr(torch, self.known_dtype), self.symbolic_sizes)

    def __str__(self) -> str:
        sizes = "varying" if self.varies else "?" if self.dimensions is None else ", ".join(map(str, self.dimensions))
        return f"{self.known_dtype or '?'}[{sizes}]"

    @property
    def text(self) -> str:
        """All of it, as the text of graphs has it; empty if nothing is known."""
        if self == UNKNOWN:
            return ""
        written = self.symbolic_sizes or self.seen_sizes
        sizes = "?" if written is None else ", ".join(map(str, written))
        words = [_WORDS.get(self.lasting, "")]
        words += [_VARYING] * self.varies + [_STRIDED] * (not self.is_contiguous) + [_UNSEEN] * (not self.is_seen)
        return " ".join([f"{self.known_dtype or '?'}[{sizes}]", *filter(None, words)])


def _is_bounded(size: Expression) -> bool:
    return all(symbol(size.decisions, name).upper < LARGEST_SIZE for name in size.symbols())


UNKNOWN = TensorFacts()
"""Of tensors that nobody has looked at."""
UNSEEN = TensorFacts(is_seen=False)
"""Of tensors that no run came to."""
FACTS_TEXT = r"(?:\w+|\?)\[[^\[\]]*\](?: [a-z]+)*"
"""A pattern of the text of facts."""
_TEXT = re.compile(r"(?P<dtype>\w+|\?)\[(?P<sizes>[\w ,()+*/%-]*|\?)\](?P<words>(?: [a-z]+)*)")


def parse_facts(text: str, guards: Guards | None = None) -> TensorFacts:
    """Read what :attr:`TensorFacts.text` writes.

    Args:
        text: such as ``float32[s0, 3] strided``.
        guards: the symbols of sizes, with examples, if there are any.

    Raises:
        GraphError: it is something else.
    """
    match = _TEXT.fullmatch(text)
    words = match["words"] if match else ""
    rest = re.sub(f" ({_WORDS[NOTHING]}|{_WORDS[RANK]}|{_VARYING}|{_STRIDED}|{_UNSEEN})", "", words)
    dtype = match["dtype"] if match else ""
    if match is None or rest or not (dtype == "?" or isinstance(getattr(torch, dtype, None), torch.dtype)):
        raise _unreadable(text)
    try:
        sizes = None if match["sizes"] == "?" else _parse_sizes(match["sizes"], guards or Guards())
    except GraphError as error:
        raise _unreadable(text) from error
    return facts_of_type(
        None if dtype == "?" else dtype,
        sizes,
        lasting=next((kind for kind in (NOTHING, RANK) if f" {_WORDS[kind]}" in words), SIZES),
        is_contiguous=_STRIDED not in words,
        is_seen=_UNSEEN not in words,
        varies=_VARYING in words,
    )


def _unreadable(text: str) -> GraphError:
    return GraphError(f"can't read {text!r}: what is known of a tensor is written as float32[1, 3]")


def _parse_sizes(text: str, guards: Guards) -> tuple[Dimension, ...]:
    kind = parse_type(f"Float({text})", guards)
    assert isinstance(kind, TensorType)
    if any(isinstance(size, int) and size < 0 for size in kind.sizes):
        raise GraphError(f"a size of [{text}] is negative")
    return kind.sizes


def facts_of_type(dtype: str | None, sizes: tuple[Dimension, ...] | None, **others: Any) -> TensorFacts:
    """What is known of a tensor of a dtype and sizes, of which some may have symbols with examples.

    Args:
        dtype: its name, if it is known.
        sizes: of each dimension, if they are known.
        others: what else is known, by the names of attributes of :class:`TensorFacts`.
    """
    found = [size for size in sizes or () if isinstance(size, Expression)]
    if sizes is None or not found:
        return TensorFacts(dtype, sizes, **others)  # type: ignore[arg-type]
    examples = found[0].decisions.examples
    seen = tuple(size.substitute(examples) if isinstance(size, Expression) else size for size in sizes)
    symbolic = sizes if others.get("lasting", SIZES) == SIZES else None
    return TensorFacts(dtype, seen, **others, symbolic_sizes=symbolic)  # type: ignore[arg-type]


def facts_of_tensor(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a tensor that was seen in a run."""
    return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape))


def facts_of_constant(tensor: torch.Tensor) -> TensorFacts:
    """Facts of a weight or another constant."""
    return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape), is_constant=True)


def name_of(dtype: torch.dtype) -> str:
    """``float32``"""
    return str(dtype).removeprefix("torch.")
