"""Inputs for a model: from ``.npy`` files, or random from a description; in brackets, a list of them; plain numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy
import torch

from mobopt.errors import InputError
from mobopt.runtimes.bounds import DeclaredBounds, Range
from mobopt.runtimes.cpu.memory_check import available_bytes

_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_INTEGERS_BELOW = 10
_MADE_BYTES = {True: 4, False: 8}
"""Of an element when it is made, of a dtype that is floating or not."""
_MOST_DIMENSIONS = 255
SEED = 0


_PLAIN = "="
"""Before an argument that is no tensor."""
_METHOD = re.compile(r"([A-Za-z_]\w*):(.+)", re.DOTALL)
"""``encode:x.npy`` and ``encode:1,3,32,32``, for inputs of another method than ``forward``."""


@dataclass(frozen=True)
class InputOptions:
    """What ``--input`` and ``--random`` ask for, by method, in order; one of the two is empty."""

    paths: Mapping[str, Sequence[str]]
    shapes: Mapping[str, Sequence[str]]

    @classmethod
    def parse(cls, inputs: Sequence[str], shapes: Sequence[str]) -> InputOptions:
        """Tell names of methods from paths (a file of that name is a path) and from shapes.

        Raises:
            InputError: both options are given.
        """
        if inputs and shapes:
            raise InputError("give --input or --random, not both")
        paths = _by_method((text, None if Path(text).exists() else _METHOD.fullmatch(text)) for text in inputs)
        return cls(paths, _by_method((text, _METHOD.fullmatch(text)) for text in shapes))

    @property
    def files(self) -> list[Path]:
        """Every file that is read."""
        return [path for texts in self.paths.values() for path in files_of(texts)]

    def tensors(self) -> dict[str, list[Any]] | None:
        """Arguments by method; None if none are asked for.

        Raises:
            InputError: a file or a shape can't be read.
        """
        read = {method: read_inputs(paths) for method, paths in self.paths.items()}
        return read or {method: random_inputs(texts) for method, texts in self.shapes.items()} or None


def _by_method(options: Iterable[tuple[str, re.Match[str] | None]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, named in options:
        method, value = (named[1], named[2]) if named else ("forward", text)
        found.setdefault(method, []).append(value)
    return found


def files_of(paths: Iterable[str]) -> list[Path]:
    """Every file of what :func:`read_inputs` takes."""
    files = (path for text in paths for path in (_items(text) or [text]) if not path.startswith(_PLAIN))
    return [Path(_file_and_dtype(path)[0]) for path in files]


def _items(text: str) -> list[str] | None:
    """Those of a list such as ``[3,320,320;3,240,320]``; None if it is no list."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    return [item.strip() for item in text[1:-1].split(";") if item.strip()]


def _made(text: str, make: Callable[[str], torch.Tensor]) -> Any:
    if text.startswith(_PLAIN):
        return _plain(text.removeprefix(_PLAIN))
    items = _items(text)
    return make(text) if items is None else [_made(item, make) for item in items]


def _plain(text: str) -> bool | int | float | torch.Tensor | None:
    """``16000``, ``0.5``, ``true``, ``false`` or ``none``; ``16000:int64`` is a tensor without dimensions."""
    number, _, dtype_name = text.partition(":")
    named = {"true": True, "false": False, "none": None}
    if dtype_name in _DTYPES and number.lower() != "none":
        value = _plain(number)
        try:
            return torch.tensor(value, dtype=getattr(torch, dtype_name))
        except (RuntimeError, ValueError, OverflowError):
            raise InputError(f"can't make {_PLAIN + text!r}: {dtype_name} has no such number; use another") from None
    if text.lower() in named:
        return named[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    raise InputError(
        f"can't read the argument {_PLAIN + text!r}; write =16000, =0.5, =true, =false or =none, and =16000:int64 for "
        "a tensor without dimensions"
    )


_BOUND = re.compile(r"(?:(?P<method>[A-Za-z_]\w*):)?(?:(?P<tensor>\d+)\.)?(?P<dim>\d+)=(?P<least>\d+)\.\.(?P<most>\d+)")


def read_bounds(texts: Iterable[str]) -> DeclaredBounds:
    """Read ranges of sizes: ``0=1..16`` is dimension 0 of the first tensor of ``forward``, ``1.2=32..512`` dimension 2
    of its second, ``encode:0=1..4`` that of another method.

    Raises:
        InputError: a text is none of these, or says something of a dimension again.
    """
    found: dict[str, list[list[Range | None]]] = {}
    for text in texts:
        match = _BOUND.fullmatch(text)
        if match is None:
            raise InputError(
                f"can't read the bound {text!r}; write the dimension and its sizes, such as 0=1..16, 1.2=32..512 of "
                "the second input, or encode:0=1..4 of another method"
            )
        tensors = found.setdefault(match["method"] or "forward", [])
        number, dim = int(match["tensor"] or 0), int(match["dim"])
        if max(number, dim) > _MOST_DIMENSIONS:
            raise InputError(f"the bound {text!r} is of an input or a dimension beyond {_MOST_DIMENSIONS}")
        tensors += [[] for _ in range(number + 1 - len(tensors))]
        sizes = tensors[number]
        sizes += [None] * (dim + 1 - len(sizes))
        if sizes[dim] is not None:
            raise InputError(f"there is another bound of the same dimension as {text!r}; give one")
        sizes[dim] = int(match["least"]), int(match["most"])
    return found


def read_inputs(paths: Sequence[str]) -> list[Any]:
    """Read one tensor from each ``.npy`` file, a list of them from ``[a.npy;b.npy]``, a number, a truth value or None
    from ``=16000``, ``=0.5``, ``=true`` and ``=none``, and a tensor without dimensions from ``=16000:int64``.

    ``x.npy:bfloat16`` converts what is in the file: NumPy has no bfloat16.

    Raises:
        InputError: a file can't be read or is not a plain array of numbers.
    """
    return [_made(path, _read_as) for path in paths]


def array_of(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """A tensor for a ``.npy`` file; of bfloat16, which NumPy hasn't, as float32."""
    plain = tensor.detach()
    array: numpy.ndarray[Any, Any] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def _read_as(text: str) -> torch.Tensor:
    path, dtype = _file_and_dtype(text)
    tensor = _read(path)
    return tensor if dtype is None else tensor.to(dtype)


def _file_and_dtype(text: str) -> tuple[str, torch.dtype | None]:
    """The parts of ``x.npy:bfloat16``."""
    path, _, dtype_name = text.rpartition(":")
    if not path or dtype_name not in _DTYPES or Path(text).exists():
        return text, None
    dtype: torch.dtype = getattr(torch, dtype_name)
    return path, dtype


def read_calls(folder: Path) -> list[list[torch.Tensor]]:
    """Read the arguments of a call from each file of a folder, in the order of their names: the only one from a
    ``.npy`` file, and those of an ``.npz`` file in the order in which it holds them.

    Raises:
        InputError: a file can't be read or holds no plain arrays of numbers, or there is none.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz"))
    if not files:
        raise InputError(
            f"{folder} holds no .npy or .npz files; write one for each call, with numpy.save or numpy.savez"
        )
    return [_read_several(path) if path.suffix == ".npz" else [_read(str(path))] for path in files]


def _read_several(path: Path) -> list[torch.Tensor]:
    try:
        with numpy.load(path, allow_pickle=False) as held:
            return [torch.from_numpy(numpy.ascontiguousarray(held[name])) for name in held.files]
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise InputError(
            f"the input {path} is not an .npz file of numbers: {error}; write it with numpy.savez"
        ) from None


def _read(path: str) -> torch.Tensor:
    try:
        array = numpy.load(path, allow_pickle=False)
        if not isinstance(array, numpy.ndarray):
            raise ValueError("it holds several arrays")
        return torch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape))
    except OSError as error:
        raise InputError(f"can't read the input {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, EOFError) as error:
        raise InputError(f"the input {path} is not a .npy file of numbers: {error}; write it with numpy.save") from None


def random_inputs(descriptions: Sequence[str], seed: int = SEED) -> list[Any]:
    """Make one random tensor for each description, such as ``1,3,224,224`` or ``1,16:int64``, and a list of them for
    ``[3,320,320;3,240,320]``; numbers as :func:`read_inputs` does.

    Floating-point tensors are normally distributed, integers are in 0..9.

    Raises:
        InputError: a description can't be read.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_made(description, lambda text: _random(text, generator)) for description in descriptions]


def _random(description: str, generator: torch.Generator) -> torch.Tensor:
    sizes_text, _, dtype_name = description.partition(":")
    dtype_name = dtype_name or "float32"
    try:
        sizes = [int(size) for size in sizes_text.split(",") if size.strip()]
    except ValueError:
        sizes = [-1]
    if any(size < 0 for size in sizes):
        raise InputError(f"can't read the shape {description!r}; write sizes with commas, such as 1,3,224,224")
    if dtype_name not in _DTYPES:
        raise InputError(f"can't make {description!r}: the dtype is one of {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, dtype_name)
    high = 2 if dtype == torch.bool else _INTEGERS_BELOW
    available, made = available_bytes(), math.prod(sizes) * _MADE_BYTES[dtype.is_floating_point]
    try:
        if available is not None and made > available:  # some systems would promise it, and kill the process later
            raise MemoryError
        if dtype.is_floating_point:
            return torch.randn(sizes, generator=generator).to(dtype)
        return torch.randint(high, sizes, generator=generator).to(dtype)
    except (RuntimeError, MemoryError):
        raise InputError(
            f"can't make {description!r}: it has {math.prod(sizes):,} elements; use smaller sizes"
        ) from None
