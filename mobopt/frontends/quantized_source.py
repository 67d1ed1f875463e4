"""A quantised model as the target of a conversion computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mobopt.frontends.source import Source, interpreted
from mobopt.frontends.torchscript import in_floats
from mobopt.ir import Program
from mobopt.passes.expand_quantized import is_for_qnnpack


def source_for(source: Source, backend: str, is_for_phones: bool) -> Source:
    """A source whose program is what a conversion begins with, and is compared with.

    For phones that is what QNNPACK computes: on the CPU its own integers, on GPUs floats that are rounded as there. The
    same source where nothing is quantised, or for mobopt's own runtime.

    Args:
        source: the model as it was read.
        backend: of the conversion.
        is_for_phones: whether it is for a release of PyTorch Mobile.

    Raises:
        UnsupportedError: what the model does with quantised tensors has no form in floats.
    """
    if source.quantized is None or not is_for_phones:
        return source
    if backend == "cpu" and is_for_qnnpack(source.quantized):
        return _OnPhone(source, source.quantized)
    return _OnPhone(source, in_floats(source.quantized, heeds_reduced_range=False))


class _OnPhone(Source):
    """A model with another program, which is what it is run as."""

    def __init__(self, source: Source, program: Program) -> None:
        self._source = source
        self.name, self.program, self.declares_sizes = source.name, program, source.declares_sizes

    def caller(self, method: str = "forward", is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The reference interpreter on the program."""
        return interpreted(self.program.clone(), method, is_bounded)

    def example_calls(self, method: str = "forward") -> list[Sequence[Any]]:
        """Those of the model."""
        return self._source.example_calls(method)

    def example_shapes(self) -> list[Any] | None:
        """Those of the model."""
        return self._source.example_shapes()

    def extra_files(self) -> dict[str, bytes]:
        """Those of the model."""
        return self._source.extra_files()
