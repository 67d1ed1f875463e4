"""Random compositions of operators: tensors of every dtype, edges among their elements, views, writes, and scalars.

A program is source of one method; each statement is drawn from the templates of ``composed_statements`` and kept if
eager mode takes it. How far rounding alone may carry its results is seen by computing it again with noise after each
statement.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from composed_statements import SCRIPTED, STATEMENTS, UNSCRIPTED, WRITES
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MAX_ELEMENTS = 300
"""Of a tensor; a statement that makes a larger one is taken back."""
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_DTYPES = [torch.float32] * 6 + [torch.float16, torch.bfloat16, torch.int64, torch.int64, torch.int32, torch.bool]
_RARE = [torch.int16, torch.int8, torch.uint8, torch.float64, torch.complex64]
_ROUNDING = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float64: 2.0**-22}
"""Relative size of the noise; of other dtypes 2**-22, for float64 may have been made of float32."""
_count = itertools.count()


@dataclass
class Composition:
    """A method's statements, what it gives, and inputs to call it with."""

    inputs: dict[str, Tensor]
    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        """The class."""
        body = "".join(f"        {line}\n" for line in self.lines)
        parameters = ", ".join(self.inputs)
        returned = f"[{', '.join(self.results)}]"
        return f"class Composed(nn.Module):\n    def forward(self, {parameters}):\n{body}        return {returned}\n"

    def module(self) -> nn.Module:
        """The module, whose source torch finds again to script it."""
        name = f"<composition {next(_count)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"__name__": __name__, "torch": torch, "nn": nn, "F": nn.functional}
        exec(compile(self.source, name, "exec"), space)
        module: nn.Module = space["Composed"]().eval()
        return module

    def arguments(self) -> list[Tensor]:
        """Copies of the inputs, for the module may change them."""
        return [value.clone() for value in self.inputs.values()]

    def __repr__(self) -> str:
        """The program, for an example that fails."""
        inputs = "".join(f"# {name} = {value!r}\n" for name, value in self.inputs.items())
        return f"{inputs}{self.source}"


class Writer:
    """Draws one program; ``values`` are those of the statements so far in eager mode."""

    def __init__(self, seed: int, is_scripted: bool) -> None:
        self.rng = Random(seed)
        self.edges = self.rng.random() < 0.3
        self.values = {f"x{number}": self._tensor() for number in range(self.rng.randint(1, 3))}
        self.composition = Composition({name: value.clone() for name, value in self.values.items()})
        self.templates = [*STATEMENTS, *WRITES, *WRITES]
        if is_scripted:
            self.templates = [item for item in self.templates if not any(word in item for word in UNSCRIPTED)]
            self.templates += SCRIPTED * 3

    def _tensor(self) -> Tensor:
        rng = self.rng
        dtype = rng.choice(_RARE if rng.random() < 0.15 else _DTYPES)
        sizes = [rng.choice([1, 2, 3, 5, 7]) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 4]))]
        if rng.random() < 0.03 and sizes:
            sizes[rng.randrange(len(sizes))] = 0
        count = torch.Size(sizes).numel()
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        if dtype == torch.bool:
            flat = torch.rand(count, generator=generator) < 0.5
        elif dtype in INTEGERS:
            low = 0 if dtype == torch.uint8 else -5
            flat = torch.randint(low, 7, (count,), generator=generator).to(dtype)
        else:
            flat = torch.randn(count, generator=generator, dtype=torch.float64).mul(2).to(dtype)
        if self.edges and count:
            for edge in self._edges(dtype):
                flat[rng.randrange(count)] = edge
        return flat.reshape(sizes)

    def _edges(self, dtype: torch.dtype) -> list[Any]:
        if dtype == torch.bool or dtype.is_complex:
            return []
        if dtype in INTEGERS:
            info = torch.iinfo(dtype)
            pool: list[Any] = [info.min, info.max, info.max - 1, 0, 1, *([-1] if info.min else [])]
            pool += [2**31, -(2**31) - 1, 2**32 + 1, 2**53 + 1] if dtype == torch.int64 else []
        else:
            # Not the largest: in long chains torch's kernels keep in double what overflows elsewhere.
            pool = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), torch.finfo(dtype).tiny, 1.0, -1.0, 0.5]
        return self.rng.choices(pool, k=3)

    def _filled(self, template: str) -> str:
        """The template with variables, dimensions and numbers; ``a`` and ``b`` are the first two variables."""
        rng = self.rng
        names = list(self.values)
        a, b, c = (rng.choice(names[-4:] + names) for _ in range(3))
        rank = self.values[a].dim()
        dtype = rng.choice(_RARE[:4] if rng.random() < 0.2 else _DTYPES)
        numbers = [rng.randint(-4, 5) for _ in range(3)]
        return template.format(
            a=a,
            b=b,
            c=c,
            d=rng.randint(-rank, rank - 1) if rank else 0,
            e=rng.randint(-rank, rank - 1) if rank else 0,
            i=numbers[0],
            j=numbers[1],
            k=numbers[2],
            n=rng.randint(1, 4),
            m=rng.randint(1, 3),
            f=rng.choice([0.5, -1.5, 2.0, 0.1, 3.0, -0.0, 1e-3]),
            t=f"torch.{str(dtype)[6:]}",
            y=rng.choice([True, False]),
            sizes=tuple(self.values[a].shape),
            order=tuple(rng.sample(range(rank), rank)),
        )

    def write(self) -> None:
        """Draw a statement, and keep it if torch takes it."""
        template = self.rng.choice(self.templates)
        lines = self._filled(template).split("\n")
        makes_value = not template.startswith("!")
        name = f"v{len(self.values)}"
        lines = [line.removeprefix("!").replace("NEW", name) for line in lines]
        if makes_value and "NEW" not in template:
            lines[0] = f"{name} = {lines[0]}"
        if self._is_accepted(lines, name if makes_value else None):
            made = executed(lines, self.values)
            self.values = {key: value for key, value in made.items() if isinstance(value, Tensor)}
            self.composition.lines += lines

    def _is_accepted(self, lines: list[str], made: str | None) -> bool:
        """Whether torch takes a statement, tried on copies: what it makes is a small tensor, what it writes does not
        depend on the order in which elements are written."""
        values, again = copy.deepcopy(self.values), copy.deepcopy(self.values)
        target = re.search(r"\b[xv]\d+\b", lines[0])
        try:
            names = executed(lines, values)
            if made is not None:
                value = names.get(made)
                return isinstance(value, Tensor) and value.numel() <= MAX_ELEMENTS and value.dim() <= 5
            if any(map(_overlaps_itself, values.values())):
                return False
            if target is None or (
                target[0] in self.composition.inputs and values[target[0]].dim() != again[target[0]].dim()
            ):
                return False
            alone = [lines[0][: target.end()] + re.sub(r"\b([xv]\d+)\b", r"\1.clone()", lines[0][target.end() :])]
            executed(alone, again)
        except _REFUSALS:
            return False
        return _equal(again[target[0]], values[target[0]])


_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError, AttributeError)


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and not bool(distances(left, right).any())


def _overlaps_itself(x: Tensor) -> bool:
    """Whether elements lie in one place, as those of expanded and unfolded tensors: what writes there twice counts."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.numel() > 1 and torch.arange(span).as_strided(x.shape, x.stride()).unique().numel() < x.numel()


def executed(lines: list[str], values: dict[str, Tensor], after: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """The variables after some statements; those of ``values`` are changed in place."""
    space = {"torch": torch, "F": nn.functional, "self": SimpleNamespace(), **values}
    hidden = set(space) - set(values)
    with torch.no_grad(), _quiet():
        for statement in _statements(lines):
            known = set(space)
            exec(statement, space)
            if after is not None:
                after([value for name, value in space.items() if name not in known])
    return {name: value for name, value in space.items() if name not in hidden and name != "__builtins__"}


def _statements(lines: list[str]) -> Iterator[str]:
    """Whole statements: a line with those that are indented under it, and branches that belong to it."""
    statement: list[str] = []
    for line in lines:
        if statement and not line.startswith((" ", "else", "elif")):
            yield "\n".join(statement)
            statement = []
        statement.append(line)
    if statement:
        yield "\n".join(statement)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def composition(seed: int, is_scripted: bool) -> Composition:
    """The program of a seed, of up to thirty statements."""
    writer = Writer(seed, is_scripted)
    target = writer.rng.randint(3, 30)
    for _ in range(5 * target):
        if len(writer.composition.lines) >= target:
            break
        writer.write()
    made = [name for name in writer.values if name.startswith("v")]
    if not made:
        writer.composition.lines.append("v0 = x0 + 1" if writer.values["x0"].dtype != torch.bool else "v0 = ~x0")
        made = ["v0"]
    writer.composition.results = made[-12:]
    return writer.composition


def slack(program: Composition, seed: int) -> list[Tensor | None]:
    """For each result, how far noise of a rounding after each statement carries its elements, or how far eager mode's
    are from those in double precision: infinite where that decides an integer or a boolean, or whether an element is
    finite; None where it decides a size."""
    exact = [value.clone() for value in _noisy(program, None)]
    spread: list[Tensor | None] = [torch.zeros(value.shape, dtype=torch.float64) for value in exact]
    for number, value in enumerate(_in_double(program)):
        spread[number] = _apart(exact[number], value) if value.shape == exact[number].shape else None
    for turn in range(4):
        try:
            noisy = _noisy(program, torch.Generator().manual_seed(seed * 4 + turn))
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError, OverflowError):
            return [None] * len(exact)
        for number, (here, there) in enumerate(zip(exact, noisy, strict=True)):
            seen = spread[number]
            if seen is None or here.shape != there.shape:
                spread[number] = None
                continue
            spread[number] = torch.maximum(seen, distances(here, there))
    return spread


_DOUBLE = {"torch.float32": "torch.float64", "torch.complex64": "torch.complex128", ".float()": ".double()"}
_GELU = re.compile(r"F\.gelu\((\w+), approximate='tanh'\)")
"""Of halves it is computed in single precision too, where nothing is left of it at the far end."""


def _in_double(program: Composition) -> list[Tensor]:
    """The results with single precision's tensors in double; none if a statement takes no such tensors."""
    lines = _GELU.sub(r"F.gelu(\1.double(), approximate='tanh').to(\1.dtype)", "\n".join(program.lines))
    for single, double in _DOUBLE.items():
        lines = lines.replace(single, double)
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    values = {name: value.to(wide.get(value.dtype, value.dtype)) for name, value in program.inputs.items()}
    torch.set_default_dtype(torch.float64)
    try:
        with sdpa_kernel(SDPBackend.MATH):  # the other kernel's rows of NaN are zeros
            names = executed(lines.split("\n"), {name: value.clone() for name, value in values.items()})
    except _REFUSALS:
        return []
    finally:
        torch.set_default_dtype(torch.float32)
    return [names[name] for name in program.results]


def _apart(single: Tensor, double: Tensor) -> Tensor:
    """Distances; infinite between large numbers that have no digit in common, for something was divided by what
    rounding left of zero."""
    apart = distances(single, double)
    sizes = [value.double().abs() if not value.is_complex() else value.abs().double() for value in (single, double)]
    is_quotient = (torch.minimum(*sizes) > 2.0**22) & (apart > torch.maximum(*sizes) / 2)
    return apart.masked_fill(is_quotient, torch.inf)


def distances(left: Tensor, right: Tensor) -> Tensor:
    """Of each element, in float64: none where both are the same, also NaN, or where one is complex and not finite, of
    which torch's own kernels differ; infinite where one alone is finite, or where they are no floats and differ."""
    if not (left.is_floating_point() or left.is_complex()):
        return torch.where(left == right, 0.0, torch.inf).double()
    if left.is_complex():
        parts = [distances(part(left), part(right)) for part in (torch.real, torch.imag)]
        return torch.where(left.isfinite() & right.isfinite(), torch.maximum(*parts), 0.0)
    here, there = left.double(), right.double()
    same = (here == there) | (here.isnan() & there.isnan())
    return torch.where(same, 0.0, (here - there).abs().nan_to_num(nan=torch.inf))


def _noisy(program: Composition, generator: torch.Generator | None) -> list[Tensor]:
    def disturb(values: list[Any]) -> None:
        for value in values:
            if generator is not None and isinstance(value, Tensor) and not _overlaps_itself(value):
                _disturb(value, generator)

    names = executed(program.lines, dict(zip(program.inputs, program.arguments(), strict=True)), disturb)
    return [names[name] for name in program.results]


def _disturb(value: Tensor, generator: torch.Generator) -> None:
    if value.is_floating_point() or value.is_complex():
        size = _ROUNDING.get(value.dtype, 2.0**-22)
        factor = 1 + size * (torch.randint(0, 2, value.shape, generator=generator) * 2 - 1)
        value.mul_(factor.to(value.dtype) if value.dtype in _ROUNDING else factor)
    if value.is_complex():  # the sign of a zero is what a kernel left, and decides on which side of a cut a number is
        zeros = value.imag == 0
        value.imag.mul_(1 - 2 * (torch.randint(0, 2, value.shape, generator=generator) * zeros))
