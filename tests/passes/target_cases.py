"""What the tests of Metal's and the CPU's rows share: verdicts on a call, and a call legalised for a target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from layer_cases import Call, Layer, program_of_call
from pass_harness import assert_close

from mobopt.ir import Node, Program
from mobopt.ops.effects import reads_metadata
from mobopt.ops.targets import Finding, Target, judge
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.legalize import Legalize
from mobopt.passes.manager import run_passes
from mobopt.passes.notes import Note
from mobopt.runtimes.cpu import Interpreter


def findings(program: Program, inputs: Sequence[torch.Tensor], target: Target) -> list[tuple[Node, Finding]]:
    """Each operator that computes with tensors, and what a target does with it."""
    record_facts(program, Examples({"forward": inputs}))
    nodes = [node for node in program.methods["forward"].walk() if not node.op.startswith("prim::")]
    tensors = [node for node in nodes if not reads_metadata(node) and any(str(v.type) == "Tensor" for v in node.inputs)]
    lists = [node for node in nodes if node.op in ("aten::cat", "aten::einsum")]
    return [(node, judge(node, target, program.attributes)) for node in dict.fromkeys((*tensors, *lists))]


def finding_on(call: Call | torch.nn.Module, inputs: Sequence[torch.Tensor], target: Target, op: str) -> Finding:
    """The verdict on the last node of a call that is this operator."""
    found = [item for node, item in findings(program_of_call(call, inputs), inputs, target) if node.qualified_op == op]
    assert found, f"no {op} in the program"
    return found[-1]


def legalized_for(
    target: Target, call: Call | torch.nn.Module, inputs: Sequence[torch.Tensor], level: str = "full"
) -> tuple[Program, list[Note]]:
    """A call, legalised with all checks; it must still give what eager gives, and the pass must find nothing more."""
    program = program_of_call(call, inputs)
    with torch.no_grad():
        expected = (call if isinstance(call, torch.nn.Module) else Layer(call))(*inputs)
    item = Legalize(target, level, Examples({"forward": inputs}))
    (run,) = run_passes(program, [item], check=True)
    (again,) = run_passes(program, [item], check=True)
    assert not again.result.changed, "the pass finds more to do when it is run again"
    assert_close(Interpreter(program).run("forward", list(inputs)), expected)
    return program, run.result.notes


def is_native(program: Program, inputs: Sequence[torch.Tensor], target: Target) -> bool:
    """Whether the target has every operator of a program."""
    return all(finding.verdict == "native" for _, finding in findings(program, inputs, target))
