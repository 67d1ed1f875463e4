"""Calls of single operators, as PyTorch's operator database (OpInfo) makes them: what traces of its samples call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))

from opinfo_samples import Sample, dtypes_of, in_place_samples_of, operators, samples_of

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Node
from mobopt.ir.nests import map_leaves
from mobopt.runtimes.cpu.interpreter import Interpreter

DTYPES = (torch.float32, torch.int64, torch.bool)


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator."""

    op: str
    """Qualified name."""
    args: list[Any]
    """As they were before the call."""
    text: str
    """The sample that it comes from."""


def calls_of(name: str, count: int) -> Iterator[OperatorCall]:
    """The calls that the samples of an OpInfo make, by its name, ``count`` samples for each dtype."""
    for dtype in dtypes_of(name):
        if dtype in DTYPES:
            for sample in (*samples_of(name, dtype, count), *in_place_samples_of(name, dtype, 1)):
                yield from _calls_of_sample(sample, f"{name}({sample.text})")


def names() -> list[str]:
    """The names of all OpInfos."""
    return sorted(operators())


class _Recording(Interpreter):
    """An interpreter that keeps the calls of operators."""

    calls: list[tuple[str, list[Any]]]

    def operator(self, node: Node, args: list[Any]) -> Any:
        self.calls.append((node.qualified_op, copied(args)))
        return super().operator(node, args)


def copied(args: list[Any]) -> list[Any]:
    """Arguments with copies of their tensors, of the same strides."""
    return map_leaves(args, torch.Tensor, lambda tensor: tensor.detach().clone())  # type: ignore[no-any-return]


class _OfTensors(torch.nn.Module):
    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self._function = sample.function

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = _pytree.tree_leaves(self._function(*tensors))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _calls_of_sample(sample: Sample, text: str) -> Iterator[OperatorCall]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(_OfTensors(sample), sample.tensors, check_trace=False, strict=False)
            interpreter = _Recording(program_from_script_module(traced))
            interpreter.calls = []
            interpreter.run("forward", list(sample.tensors))
        except Exception:
            return  # what no trace can hold is no call of a model
        for op, args in interpreter.calls:
            yield OperatorCall(op, args, text)
