"""Random programs of views and writes: tensors that share memory in every way that torch has, changed through each
other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

_MOST_ELEMENTS = 512


@dataclass(frozen=True)
class Step:
    """A statement: ``v3 = v1...`` or ``v1...`` alone, which writes."""

    text: str
    source: int
    apply: Callable[[torch.Tensor], torch.Tensor]
    is_view: bool


@dataclass
class ViewProgram:
    """Statements on ``v0``, which is computed from the input; gives every tensor."""

    input: torch.Tensor
    steps: list[Step] = field(default_factory=list)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the statements."""
        values = [x + 1]
        for step in self.steps:
            result = step.apply(values[step.source])
            if step.is_view:
                values.append(result)
        return tuple(values)

    def __repr__(self) -> str:
        """The statements, for an example that fails."""
        lines, count = [f"v0 = x + 1  # {list(self.input.shape)} {self.input.dtype}"], 0
        for step in self.steps:
            count += step.is_view
            lines.append(f"v{count} = v{step.source}{step.text}" if step.is_view else f"v{step.source}{step.text}")
        return "\n".join(lines)


Statement = tuple[str, Callable[[torch.Tensor], torch.Tensor]]


def _dim(rng: Random, x: torch.Tensor) -> int:
    return rng.randint(-x.dim(), x.dim() - 1)


def _place(rng: Random, x: torch.Tensor, dim: int, beyond: int) -> int:
    """A place of a dimension, from either end, and up to ``beyond`` outside."""
    return int(rng.randint(-x.size(dim) - beyond, max(x.size(dim) - 1 + beyond, 0)))


def _slices(rng: Random, x: torch.Tensor) -> tuple[slice, ...]:
    def one(dim: int) -> slice:
        ends = [rng.choice([None, _place(rng, x, dim, 3)]) for _ in range(2)]
        return slice(*ends, rng.choice([None, 1, 2, 3]))

    return tuple(one(dim) for dim in range(rng.randint(1, x.dim())))


def _sliced(rng: Random, x: torch.Tensor) -> Statement:
    at = _slices(rng, x)
    return f"[{_text(at)}]", lambda v: v[at]


def _selected(rng: Random, x: torch.Tensor) -> Statement:
    dim = _dim(rng, x)
    place = _place(rng, x, dim, 0)
    return f".select({dim}, {place})", lambda v: v.select(dim, place)


def _transposed(rng: Random, x: torch.Tensor) -> Statement:
    dims = _dim(rng, x), _dim(rng, x)
    return f".transpose{dims}", lambda v: v.transpose(*dims)


def _permuted(rng: Random, x: torch.Tensor) -> Statement:
    dims = rng.sample(range(x.dim()), x.dim())
    return f".permute({dims})", lambda v: v.permute(dims)


def _unsqueezed(rng: Random, x: torch.Tensor) -> Statement:
    dim = rng.randint(-x.dim() - 1, x.dim())
    return f".unsqueeze({dim})", lambda v: v.unsqueeze(dim)


def _squeezed(rng: Random, x: torch.Tensor) -> Statement:
    return ".squeeze()", torch.squeeze


def _expanded(rng: Random, x: torch.Tensor) -> Statement:
    sizes = [3, *x.shape]
    return f".expand({sizes})", lambda v: v.expand(sizes)


def _diagonal(rng: Random, x: torch.Tensor) -> Statement:
    offset, first, second = rng.randint(-2, 2), _dim(rng, x), _dim(rng, x)
    return f".diagonal({offset}, {first}, {second})", lambda v: v.diagonal(offset, first, second)


def _narrowed(rng: Random, x: torch.Tensor) -> Statement:
    dim = _dim(rng, x)
    start = rng.randint(0, x.size(dim))
    length = rng.randint(0, x.size(dim) - start)
    return f".narrow({dim}, {start}, {length})", lambda v: v.narrow(dim, start, length)


def _part(rng: Random, x: torch.Tensor) -> Statement:
    dim, size, number = _dim(rng, x), rng.randint(1, 4), rng.randint(0, 2)
    return f".split({size}, {dim})[{number}]", lambda v: v.split(size, dim)[number]


def _unbound(rng: Random, x: torch.Tensor) -> Statement:
    dim = _dim(rng, x)
    place = _place(rng, x, dim, 0)
    return f".unbind({dim})[{place}]", lambda v: v.unbind(dim)[place]


def _windows(rng: Random, x: torch.Tensor) -> Statement:
    dim, size, step = _dim(rng, x), rng.randint(1, 3), rng.randint(1, 3)
    return f".unfold({dim}, {size}, {step})", lambda v: v.unfold(dim, size, step)


def _flat(rng: Random, x: torch.Tensor) -> Statement:
    name = rng.choice(["reshape", "view"])
    return f".{name}(-1)", lambda v: getattr(v, name)(-1)


def _copied(rng: Random, x: torch.Tensor) -> Statement:
    name = rng.choice(["clone", "contiguous", "detach", "abs"])
    return f".{name}()", lambda v: getattr(v, name)()


_VIEWS = [
    *(_sliced, _sliced, _selected, _transposed, _permuted, _unsqueezed, _squeezed, _expanded, _diagonal),
    *(_narrowed, _part, _unbound, _windows, _flat, _copied),
]


def _number(rng: Random) -> int:
    return rng.randint(-5, 5)


def _values(rng: Random, x: torch.Tensor) -> torch.Tensor:
    """Numbers that broadcast to the sizes of a tensor."""
    sizes = [size if rng.random() < 0.5 else 1 for size in x.shape][rng.randint(0, x.dim()) :]
    start = _number(rng)
    count = torch.Size(sizes).numel()
    return torch.arange(start, start + count).reshape(sizes).to(x.dtype)


def _added(rng: Random, x: torch.Tensor) -> Statement:
    name, values = rng.choice(["add_", "sub_", "mul_", "copy_"]), _values(rng, x)
    return f".{name}({_text(values)})", lambda v: getattr(v, name)(values)


def _filled(rng: Random, x: torch.Tensor) -> Statement:
    number = _number(rng)
    return f".fill_({number})", lambda v: v.fill_(number)


def _applied(rng: Random, x: torch.Tensor) -> Statement:
    name = rng.choice(["zero_", "relu_", "neg_", "abs_", "square_"])
    return f".{name}()", lambda v: getattr(v, name)()


def _assigned(rng: Random, x: torch.Tensor) -> Statement:
    at = _slices(rng, x)
    values = _values(rng, x[at])

    def assign(v: torch.Tensor) -> torch.Tensor:
        v[at] = values
        return v

    return f"[{_text(at)}] = {_text(values)}", assign


def _put(rng: Random, x: torch.Tensor) -> Statement:
    places = torch.tensor([_place(rng, x, 0, 0)])
    accumulate, number = rng.random() < 0.5, torch.tensor(_number(rng), dtype=x.dtype)
    text = f".index_put_(({_text(places)},), {_text(number)}, {accumulate})"
    return text, lambda v: v.index_put_((places,), number, accumulate)


def _masked(rng: Random, x: torch.Tensor) -> Statement:
    mask, number = _values(rng, x) % 2 == 0, _number(rng)
    return f".masked_fill_({_text(mask)}, {number})", lambda v: v.masked_fill_(mask, number)


def _index_filled(rng: Random, x: torch.Tensor) -> Statement:
    dim, number = _dim(rng, x), _number(rng)
    places = torch.tensor([_place(rng, x, dim, 0) % x.size(dim)])
    return f".index_fill_({dim}, {_text(places)}, {number})", lambda v: v.index_fill_(dim, places, number)


def _index_added(rng: Random, x: torch.Tensor) -> Statement:
    dim = _dim(rng, x)
    places = torch.tensor([_place(rng, x, dim, 0) % x.size(dim) for _ in range(2)])
    values = torch.ones_like(x.index_select(dim, places))
    return f".index_add_({dim}, {_text(places)}, ones)", lambda v: v.index_add_(dim, places, values)


_WRITES = [_added, _added, _filled, _applied, _assigned, _assigned, _put, _masked, _index_filled, _index_added]


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor({value.tolist()})"
    if isinstance(value, slice):
        return ":".join("" if part is None else str(part) for part in (value.start, value.stop, value.step))
    return ", ".join(map(_text, value))


def random_views(seed: int) -> ViewProgram:
    """A program of up to ten statements that eager accepts."""
    rng = Random(seed)
    sizes = [rng.choice([1, 2, 3, 5]) for _ in range(rng.randint(1, 4))]
    dtype = rng.choice([torch.float32, torch.int64, torch.int32])
    x = torch.arange(torch.Size(sizes).numel()).reshape(sizes).to(dtype) - 3
    program = ViewProgram(x)
    for _ in range(rng.randint(2, 10)):
        _add_statement(rng, program)
    return program


def _add_statement(rng: Random, program: ViewProgram) -> None:
    """Append a statement; none if torch refuses what was drawn."""
    values = program(program.input)
    source = rng.randint(0, len(values) - 1)
    is_view = rng.random() < 0.5
    make = rng.choice(_VIEWS if is_view else _WRITES)
    if not is_view and (values[source].numel() == 0 or _overlaps_itself(values[source])):
        return
    try:
        text, apply = make(rng, values[source])
        result = apply(values[source])
    except (RuntimeError, IndexError, ValueError):
        return
    if result.numel() <= _MOST_ELEMENTS and result.dim() <= 6:
        program.steps.append(Step(text, source, apply, is_view))


def _overlaps_itself(x: torch.Tensor) -> bool:
    """Whether elements lie in one place, as those of an expanded tensor: torch refuses to write there, or warns."""
    places = torch.arange(x.untyped_storage().nbytes() // x.element_size())
    lie = places.as_strided(tuple(x.shape), x.stride(), x.storage_offset())
    return lie.unique().numel() < x.numel()
