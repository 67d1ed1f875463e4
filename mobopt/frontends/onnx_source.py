"""An ONNX model as a source of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mobopt.errors import BundleError, InputError, MoboptError, UnsupportedError
from mobopt.frontends.onnx.model import DeclaredInput, read_onnx
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.runtimes.cpu import Interpreter

_MOST_ELEMENTS = 1 << 26
"""Of an input that is made from what a model declares."""
_OPEN_SIZES, _OPEN_EDGE = (1, 8), 64
"""Sizes that a call decides: the first dimension, and others; the edges of images."""


class OnnxSource(Source):
    """An ONNX file, or an ``onnx.ModelProto``; nothing of it runs but by mobopt's own interpreter."""

    def __init__(
        self,
        model: Path | Any,
        preserved: Sequence[str] = (),
        example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Read a model; see :func:`mobopt.frontends.onnx.model.read_onnx`.

        Args:
            model: the path of a file, or an ``onnx.ModelProto``.
            preserved: names of methods besides ``forward``: none.
            example_inputs: arguments of ``forward``, alone or by the method's name. Where a branch that sizes decide
                has to be taken for granted, it is theirs; that of small inputs if there are none.

        Raises:
            InputError: a method is to be preserved; an ONNX model has ``forward`` alone.
        """
        if preserved:
            raise InputError(f"an ONNX model has one method, forward; there is no {preserved[0]!r} to preserve")
        self.name = model.name if isinstance(model, Path) else model.graph.name or "ONNX model"
        given = example_inputs.get("forward") if isinstance(example_inputs, Mapping) else example_inputs
        try:
            read = read_onnx(model, partial(_ended, given))
        except (BundleError, UnsupportedError) as error:
            raise type(error)(f"{self.name}: {error}") from None
        self.program = read.program
        self.inputs = read.inputs
        self.outputs = read.outputs
        sizes = [item.sizes for item in self.inputs]
        self.declares_sizes = all(item is not None and all(isinstance(size, int) for size in item) for item in sizes)
        self._original = read.program.clone()

    def caller(self, method: str = "forward", is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The reference interpreter on the model as it was read, before any pass."""
        interpreter = Interpreter(self._original).bounded() if is_bounded else Interpreter(self._original)

        def call(inputs: Sequence[Any]) -> Any:
            try:
                return interpreter.run(method, bind_arguments(self._original, method, inputs, {}))
            except (InputError, UnsupportedError) as error:
                raise InputError(f"the model can't be run on the example inputs: {error}") from None

        return call

    def example_calls(self, method: str = "forward") -> list[Sequence[Any]]:
        """None: ONNX models carry no inputs."""
        return []

    def example_shapes(self) -> list[Any] | None:
        """Tensors without elements, of the sizes declared; sizes that calls decide are small."""
        return _shapes_of(self.inputs)


def _ended(given: Sequence[Any] | None, program: Program, declared: Sequence[DeclaredInput]) -> str:
    """The error in which a program ends, if any; without inputs on zeros of the sizes declared, if all are."""
    if given is None:
        shapes = _shapes_of(declared)
        if shapes is None:
            return ""
        given = [torch.zeros_like(shape, device="cpu") for shape in shapes]
    try:
        Interpreter(program).bounded().run("forward", bind_arguments(program, "forward", given, {}))
    except MoboptError as error:
        return str(error)
    return ""


def _shapes_of(inputs: Sequence[DeclaredInput]) -> list[Any] | None:
    shapes = [_shape_of(item) for item in inputs]
    return None if any(shape is None for shape in shapes) else shapes


def _shape_of(item: DeclaredInput) -> torch.Tensor | None:
    if item.sizes is None:
        return None
    names: dict[str | None, int] = {}
    sizes = []
    for dim, size in enumerate(item.sizes):
        guess = _OPEN_EDGE if dim > 1 and len(item.sizes) > 3 else _OPEN_SIZES[min(dim, 1)]
        sizes.append(size if isinstance(size, int) else names.setdefault(size, guess))
    meta = torch.empty(sizes, dtype=item.dtype, device="meta")
    return meta if meta.numel() <= _MOST_ELEMENTS else None
