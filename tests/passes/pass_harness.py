"""What the tests of passes share: programs from text, one pass with its claims checked, and numbers against eager."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Attribute, Program, parse_graph, print_graph
from mobopt.passes.manager import Pass, run_passes
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter


def program_of(
    text: str, constants: Mapping[str, Any] | None = None, attributes: Mapping[str, Any] | None = None
) -> Program:
    """A program whose ``forward`` is a graph's text; ``attributes`` are (type, value) by name."""
    graph = parse_graph(textwrap.dedent(text).lstrip("\n"), constants)
    table = {name: Attribute(kind, value) for name, (kind, value) in (attributes or {}).items()}
    return Program(methods={"forward": graph}, attributes=table)


def apply(item: Pass, program: Program) -> tuple[str, list[str]]:
    """Run one pass twice with all checks; the text of ``forward`` after it, without the constants, and the notes.

    The second run must find nothing to do.
    """
    (run,) = run_passes(program, [item], check=True)
    (again,) = run_passes(program, [item], check=True)
    assert not again.result.changed, "the pass finds more to do when it is run again"
    return body_of(program), [str(note) for note in run.result.notes]


def body_of(program: Program, method: str = "forward") -> str:
    """The lines of a method after its head and its constants, without what is known of tensors."""
    lines = print_graph(program.methods[method], facts=False).splitlines()
    start = next(index for index, line in enumerate(lines) if line.rstrip().endswith("):"))
    return "\n".join(line[2:] for line in lines[start + 1 :] if "prim::Constant" not in line) + "\n"


def expect(text: str) -> str:
    """An expected body, unindented."""
    return textwrap.dedent(text).lstrip("\n")


def operators(program: Program, method: str = "forward") -> list[str]:
    """Operators of a method in order, without constants."""
    return [node.op for node in program.methods[method].walk()]


def optimise(
    module: torch.nn.Module, inputs: Sequence[Any], pipeline: Sequence[Pass], how: str = "script"
) -> tuple[Program, list[Note]]:
    """A module through the front end and a pipeline, with all checks; its results must be those of eager."""
    module.eval()
    with torch.no_grad():
        expected = module(*inputs)
        scripted = torch.jit.script(module) if how == "script" else torch.jit.trace(module, tuple(inputs))  # type: ignore[no-untyped-call]
    program = program_from_script_module(scripted)
    runs = run_passes(program, pipeline, check=True)
    assert_close(Interpreter(program).run("forward", list(inputs)), expected)
    return program, [note for run in runs for note in run.result.notes]


def assert_close(actual: Any, expected: Any) -> None:
    """Nests of tensors agree within 1e-4 of the output's scale."""
    if isinstance(expected, torch.Tensor):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype
        scale = float(expected.detach().abs().max()) if expected.numel() else 0.0
        torch.testing.assert_close(actual, expected, rtol=0, atol=max(1e-4 * scale, 1e-12))
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_close(actual[key], value)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_close(left, right)
    else:
        assert actual == expected


def randomize_norms(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Batch-norm statistics and weights that are not those of a fresh module."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: torch.Tensor | None, low: float, high: float) -> None:
        if tensor is not None:
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    for item in module.modules():
        if isinstance(item, torch.nn.modules.batchnorm._BatchNorm):
            fill(item.weight, 0.5, 1.5)
            fill(item.bias, -0.5, 0.5)
            fill(item.running_mean, -0.5, 0.5)
            fill(item.running_var, 0.2, 2.0)
    return module
