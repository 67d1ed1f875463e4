"""Comparison of our output with what genuine PyTorch builds made of the same nets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import torch
from pass_harness import assert_close

from mobopt.bundle import read_bundle
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, Value
from mobopt.ir.types import TENSOR
from mobopt.ops.contexts import PackedContext
from mobopt.options import Settings
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

GOLDEN = Path(__file__).parents[1] / "golden"
NETS = ("convbnrelu6", "layernorm", "lstm", "mixed", "mlp", "mobilenetv2")


def genuine(release: str, net: str, name: str) -> Program:
    """A bundle that a genuine build wrote."""
    return read_bundle(GOLDEN / release / net / name)


def ours(release: str, net: str, settings: Settings) -> Program:
    """Our pipeline's output for the same net, with all checks; its numbers must be the genuine build's."""
    folder = GOLDEN / release / net
    program = program_from_script_module(torch.jit.load(str(folder / "model.pt")))
    run_passes(program, pipeline_for(settings), check=True)
    result = Interpreter(program).run("forward", _arrays(folder, "input"))
    assert_close(result if isinstance(result, tuple) else (result,), tuple(_arrays(folder, "expected")))
    return program


def _arrays(folder: Path, name: str) -> list[torch.Tensor]:
    return [torch.from_numpy(numpy.load(path)) for path in sorted(folder.glob(f"{name}_*.npy"))]


def tensor_operators(program: Program) -> Counter[str]:
    """How often ``forward`` has each operator that makes a tensor, without transfers between devices."""
    nodes = program.methods["forward"].walk()
    return Counter(
        node.qualified_op
        for node in nodes
        if not node.op.startswith("prim::")
        and any(value.type == TENSOR for value in node.outputs)
        and node.qualified_op != "aten::to.prim_Device"
    )


def contexts(program: Program) -> list[PackedContext]:
    """The packed contexts that ``forward`` reads, in order, whether they are attributes or constants."""
    found = [_known(program, value) for node in program.methods["forward"].walk() for value in node.inputs]
    return [item for item in found if isinstance(item, PackedContext)]


def _known(program: Program, value: Value) -> Any:
    if value.is_constant:
        return value.constant
    node = value.producer
    if node is not None and node.op == "prim::GetAttr":
        return program.attributes[node.attributes["name"]].value
    return None


def assert_equal_contexts(found: list[PackedContext], expected: list[PackedContext]) -> None:
    """Classes and states are equal field by field: types, numbers, sizes and strides.

    Weights may differ by the rounding of folding a normalisation in another precision.
    """
    assert [type(item) for item in found] == [type(item) for item in expected]
    for left, right in zip(found, expected, strict=True):
        assert_equal_states(left.state(), right.state())


def assert_equal_states(found: Any, expected: Any) -> None:
    """One field of two states, or a list of fields."""
    assert type(found) is type(expected)
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            assert_equal_states(left, right)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)
    else:
        assert found == expected
