"""Every case tried on genuine Vulkan kernels: made right for each release, and left alone where it is right."""

from itertools import product

import pytest
import torch
from device_check import run_on_devices
from sampling import sampled
from vulkan_cases import Case, cases

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.targets import Target, judge
from mobopt.options import Settings
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import PassRun, run_passes
from mobopt.passes.note_kinds import RUNS_ON_CPU
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import compare
from mobopt.tools.lacks import find_lacks, is_judged

CASES = cases()
NEWER = {"1.13": ("1.13", "2.0", "2.1", "2.2", "2.6"), "2.1": ("2.1", "2.6"), "2.6": ("2.6",)}
_TOLERANCE = 2e-6
"""Of the output's scale; the rewrites change the order of sums, and of a few roundings."""


def _program(case: Case) -> tuple[Program, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    module = case.make().eval()
    x = torch.randn(case.sizes)
    with torch.no_grad():
        expected = module(x)
        scripted = torch.jit.trace(module, (x,))
    return program_from_script_module(scripted), x, expected


def _optimised(program: Program, x: torch.Tensor, runtime: str) -> list[PassRun]:
    return run_passes(program, pipeline_for(Settings("vulkan", runtime), Examples({"forward": (x,)})), check=True)


@pytest.mark.parametrize(("name", "runtime"), sampled(product(CASES, NEWER), one_in=3))
def test_every_case_is_right(name: str, runtime: str) -> None:
    program, x, expected = _program(CASES[name])
    _optimised(program, x, runtime)
    assert not find_lacks(program, Settings("vulkan", runtime), Examples({"forward": (x,)}))
    for release in NEWER[runtime]:
        target = Target("vulkan", release)
        result, places = run_on_devices(program, target, [x])
        assert compare(result, expected).relative <= _TOLERANCE
        _check_gpu_nodes(program, x, target, places)


@pytest.mark.parametrize(("name", "runtime"), sampled(product(CASES, ["1.13", "2.6"]), one_in=3))
def test_safe_rewrites_are_right_for_other_sizes(name: str, runtime: str) -> None:
    """What was made with one example computes other heights, widths and batches, unless the notes say it does not."""
    case = CASES[name]
    program, x, expected = _program(case)
    runs = _optimised(program, x, runtime)
    untouched, _, _ = _program(case)
    assert compare(Interpreter(program).run("forward", [x]), expected).relative <= _TOLERANCE
    is_fixed = any(note.parameters.get("fixes_sizes") for run in runs for note in run.result.notes)
    for sizes in [] if is_fixed else _other_sizes(case.sizes):
        other = torch.randn(sizes)
        try:
            expected = Interpreter(untouched).run("forward", [other])
        except InputError:
            continue  # the model itself is made for one size
        assert compare(Interpreter(program).run("forward", [other]), expected).relative <= _TOLERANCE


def _other_sizes(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(sizes) == 4:
        return [(*sizes[:2], 11, 9), (3, *sizes[1:])]
    return [(sizes[0] + 2, *sizes[1:])] if len(sizes) > 1 else []


def _check_gpu_nodes(program: Program, x: torch.Tensor, target: Target, places: dict[str, set[str]]) -> None:
    """Whatever runs on the GPU is right there, also on releases that are newer than the file was made for."""
    record_facts(program, Examples({"forward": (x,)}))
    for node in program.methods["forward"].walk():
        if is_judged(node) and places.get(node.qualified_op) == {"vulkan"} and not node.op.startswith("aten::to"):
            finding = judge(node, target, program.attributes)
            assert finding.verdict == "native", f"{node!r} on {target}: {finding.why}"


_RIGHT = [(name, "1.13") for name, case in CASES.items() if case.v1_13 == "ok"]
_RIGHT += [(name, "2.6") for name, case in CASES.items() if case.v2_6 == "ok"]


@pytest.mark.parametrize(("name", "runtime"), _RIGHT)
def test_what_is_right_is_left_alone(name: str, runtime: str) -> None:
    """No rewrite and nothing on the CPU where the genuine kernels are right."""
    program, x, _ = _program(CASES[name])
    runs = _optimised(program, x, runtime)
    legalised = [note for run in runs if run.name == "legalize" for note in run.result.notes]
    # Tracing makes tensors without dimensions of numbers, which scripted models have as numbers.
    legalised = [note for note in legalised if note.parameters.get("rewrite") != "operate_with_number"]
    on_cpu = [note for run in runs for note in run.result.notes if note.kind is RUNS_ON_CPU]
    assert not legalised and not on_cpu
