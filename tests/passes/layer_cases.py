"""What the tests of rewrites for layers share: one call of an operator, legalised for a release, and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pass_harness import assert_close

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Node, Program
from mobopt.ops.targets import Finding, Target, judge
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter

Call = Callable[..., Any]


class Layer(torch.nn.Module):
    """A module that calls a function, for tracing."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call it."""
        return self.call(*inputs)


def program_of_call(call: Call | torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Program:
    """A call, traced if it is not a script, as legalisation finds it; tensors that it closes over are constants."""
    module = call if isinstance(call, torch.nn.Module) else Layer(call)
    with torch.no_grad():
        if not isinstance(module.eval(), torch.jit.ScriptModule):
            module = torch.jit.trace(module, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
    program = program_from_script_module(module)
    run_passes(program, [SIMPLIFY, Canonicalize(), SIMPLIFY], check=True)
    return program


def findings(program: Program, inputs: Sequence[torch.Tensor], runtime: str) -> list[tuple[Node, Finding]]:
    """Each operator of a program and what a release's Vulkan runtime does with it."""
    record_facts(program, Examples({"forward": inputs}))
    target = Target("vulkan", runtime)
    nodes = [node for node in program.methods["forward"].walk() if not node.op.startswith("prim::")]
    return [(node, judge(node, target, program.attributes)) for node in nodes]


def verdict_of(call: Call | torch.nn.Module, inputs: Sequence[torch.Tensor], runtime: str, op: str) -> Finding:
    """The verdict on the one node of a call that is this operator."""
    found = [finding for node, finding in findings(program_of_call(call, inputs), inputs, runtime) if node.op == op]
    assert found, f"no {op} in the program"
    return found[-1]


def legalized(
    call: Call | torch.nn.Module, inputs: Sequence[torch.Tensor], runtime: str, level: str = "full"
) -> tuple[Program, list[Note]]:
    """A call, legalised with all checks; it must still give what eager gives, and the pass must find nothing more."""
    program = program_of_call(call, inputs)
    with torch.no_grad():
        expected = (call if isinstance(call, torch.nn.Module) else Layer(call))(*inputs)
    item = Legalize(Target("vulkan", runtime), level, Examples({"forward": inputs}))
    (run,) = run_passes(program, [item], check=True)
    (again,) = run_passes(program, [item], check=True)
    assert not again.result.changed, "the pass finds more to do when it is run again"
    assert_close(Interpreter(program).run("forward", list(inputs)), expected)
    return program, run.result.notes


def operators_of(program: Program) -> list[str]:
    """Operators on tensors in order, without those that read sizes."""
    skipped = {"aten::size"}
    nodes = program.methods["forward"].walk()
    return [node.op for node in nodes if not node.op.startswith("prim::") and node.op not in skipped]
