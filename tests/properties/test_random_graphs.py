"""Random modules mean the same on every road: optimised, written in each format, read back, in stock torch."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_graphs import RandomModule, random_modules
from torch.jit.mobile import _load_for_lite_interpreter

from mobopt import MobileModule, optimize_for_mobile
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, parse_graph, print_graph, verify
from mobopt.options import Settings
from mobopt.passes.facts import Examples
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import compare

# Sizes of some random programs and nets depend on more than their inputs.
pytestmark = pytest.mark.filterwarnings("ignore:.* operators? runs? on the phone's CPU")

VARIANTS: dict[str, dict[str, Any]] = {
    "cpu": {"backend": "cpu"},
    "xnnpack": {"backend": "cpu", "xnnpack": True},
    "vulkan": {"backend": "vulkan"},
    "metal": {"backend": "metal"},
}
TOLERANCE = 1e-5
"""Of the output's scale."""
BYTECODE_VERSIONS = (4, 5, 6, 7, 8)


def leaves(value: Any) -> list[torch.Tensor]:
    """Tensors of a nest, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def assert_same(found: Any, expected: Any, what: str) -> None:
    """Structure is the same, and numbers are within the tolerance."""
    agreement = compare(found, expected)
    assert agreement.agrees and agreement.relative <= TOLERANCE, f"{what}: {agreement}"


def is_well_conditioned(item: RandomModule, expected: Any) -> bool:
    """Whether eager itself is right to a tenth of the tolerance, by a run in float64, and its output is finite."""
    with torch.no_grad():
        exact = copy.deepcopy(item.module()).double()(*[value.double() for value in item.inputs])
    pairs = list(zip(leaves(expected), leaves(exact), strict=True))
    return all(
        bool(right.isfinite().all()) and float((left - right).abs().max()) <= 0.1 * TOLERANCE * float(right.abs().max())
        for left, right in pairs
    )


def script(item: RandomModule) -> torch.jit.ScriptModule:
    """The module in TorchScript."""
    if item.how == "script":
        return torch.jit.script(item.module())
    with torch.no_grad():
        return torch.jit.trace(item.module(), tuple(item.arguments()), check_trace=False)  # type: ignore[no-any-return, no-untyped-call]


def check_text(program: Program) -> None:
    """Each method's text can be read and printed again."""
    for graph in program.methods.values():
        text = print_graph(graph)
        constants = {
            value.name: value.constant
            for node in [*graph.walk(), graph.block.returns]
            for value in (*node.inputs, *(item for block in node.blocks for item in block.outputs))
            if value.is_constant
        }
        assert print_graph(parse_graph(text, constants)) == text


def written(write: Callable[..., None], module: MobileModule, *options: Any) -> io.BytesIO:
    """A file, at its beginning."""
    file = io.BytesIO()
    write(module.program, file, *options)
    file.seek(0)
    return file


def check_variant(item: RandomModule, variant: str, expected: Any, versions: tuple[int, ...], given: bool) -> None:
    """One variant's road; with ``given``, the inputs' sizes are known to the passes."""
    program = program_from_script_module(script(item))
    examples = Examples({"forward": tuple(item.arguments())}) if given else Examples()
    run_passes(program, pipeline_for(Settings(**VARIANTS[variant]), examples), check=True)
    verify(program)
    check_text(program)
    assert_same(Interpreter(program).run("forward", item.arguments()), expected, f"{variant} passes")
    module = optimize_for_mobile(script(item), **VARIANTS[variant], example_inputs=item.arguments() if given else None)
    roads: list[tuple[str, Any]] = [("pt", lambda: written(write_torchscript, module))]
    roads += [(f"ptl {version}", lambda v=version: written(write_lite, module, v)) for version in versions]
    for name, file in roads:
        read = read_bundle(file())
        assert_same(Interpreter(read).run("forward", item.arguments()), expected, f"{variant} {name}")
        check_text(read)
        if variant == "cpu":
            assert_same(torch.jit.load(file())(*item.arguments()), expected, f"torch.jit.load of {name}")  # type: ignore[no-untyped-call]
            if name != "pt":
                lite = _load_for_lite_interpreter(file())  # type: ignore[no-untyped-call]
                assert_same(lite(*item.arguments()), expected, f"lite loader of {name}")


def eager(item: RandomModule) -> Any:
    """What eager mode gives."""
    with torch.no_grad():
        return item.module()(*item.arguments())


def check(
    item: RandomModule, versions: tuple[int, ...], given: bool, variants: Sequence[str] = tuple(VARIANTS)
) -> None:
    """All roads of one module."""
    expected = copy.deepcopy(eager(item))
    for variant in variants:
        # Without examples the files for GPUs are for a likely kind of image, which these inputs need not be.
        is_for_gpu = VARIANTS[variant]["backend"] != "cpu"
        check_variant(item, variant, expected, versions, given or is_for_gpu)


_SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}


@settings(max_examples=8, derandomize=True, **_SETTINGS)
@given(item=random_modules(), version=st.sampled_from(BYTECODE_VERSIONS), given=st.booleans())
def test_random_modules(item: RandomModule, version: int, given: bool) -> None:
    assume(is_well_conditioned(item, eager(item)))
    check(item, (version,), given)


@pytest.mark.sweep
@settings(max_examples=150, **_SETTINGS)
@given(item=random_modules(statements=24), given=st.booleans())
def test_many_random_modules(item: RandomModule, given: bool) -> None:
    assume(is_well_conditioned(item, eager(item)))
    check(item, BYTECODE_VERSIONS, given)


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() < 3:
            raise ValueError("too flat")
        return torch.nn.functional.adaptive_avg_pool2d(x, 1)


@pytest.mark.parametrize("version", BYTECODE_VERSIONS)
def test_exceptions_have_all_their_arguments(version: int) -> None:
    """Mobile runtimes fill no default in for the class of an exception."""
    module = optimize_for_mobile(torch.jit.script(Raises()))
    assert_same(
        Interpreter(read_bundle(written(write_lite, module, version))).run("forward", [torch.ones(1, 2, 3)]),
        torch.ones(1, 1, 1),
        "",
    )
    lite = _load_for_lite_interpreter(written(write_lite, module, version))
    with pytest.raises(torch.jit.Error, match="too flat"):
        lite(torch.ones(2, 2))
