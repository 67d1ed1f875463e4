"""Functions of complex tensors, taken apart into real ones and compared with torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from applied import Applied
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import verify_graph
from mobopt.runtimes.results import Results
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.compile.host_function import HostFunction
from mobopt.runtimes.vulkan.decompositions.registry import load_decompositions
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported
from mobopt.runtimes.vulkan.program import VulkanProgram

RELATIVE = 4e-6
"""How far a part may be from torch's, of the largest absolute value."""

load_lowerings()
load_decompositions()


def check(computer: Device | None, function: Callable[..., Any], *args: Tensor, relative: float = RELATIVE) -> None:
    """Trace a function, see that every operator has real parts that the device computes, compute these, by torch's
    kernels where there is no ``computer``, and compare with torch; inputs stay as they are."""
    module = function if isinstance(function, nn.Module) else Applied(function)
    with torch.no_grad():
        expected = _listed(module(*(arg.clone() for arg in args)))
        traced = torch.jit.trace(module, args, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    kept = [arg.clone() for arg in args]
    program = program_from_script_module(traced)
    found = _by_torch(program, args) if computer is None else _by_device(program, args, computer)
    for number, (result, reference) in enumerate(zip(found, expected, strict=True)):
        assert_near(result, reference, relative, f"result {number}")
    assert all(torch.equal(arg, copy) for arg, copy in zip(args, kept, strict=True))


def _listed(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _by_torch(program: Any, args: Sequence[Tensor]) -> list[Tensor]:
    segment = specialize(program, "forward", list(args))
    graph = segment.graph
    decompose(graph)
    verify_graph(graph)
    nodes = list(graph.block.nodes)
    reasons = {f"{node.qualified_op}: {reason}" for node in nodes if (reason := why_unsupported(node)) is not None}
    assert not reasons
    outputs = segment.computed_outputs()
    computed = dict(zip(outputs, HostFunction(nodes, segment.inputs, outputs)(*args), strict=True))
    return _listed(Results(segment, computed, list(args)).deliver()[0])


def _by_device(program: Any, args: Sequence[Tensor], device: Device) -> list[Tensor]:
    runtime = VulkanProgram(program, device, fallback="error")
    try:
        return _listed(runtime.run("forward", list(args)))
    finally:
        runtime.close()


def assert_near(found: Tensor, expected: Tensor, relative: float = RELATIVE, what: str = "") -> None:
    """Equal dtype and sizes, and each part within ``relative`` of the largest absolute value; what isn't finite is
    equal."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    if not (expected.is_complex() or expected.is_floating_point()):
        assert torch.equal(found, expected), f"{what}: {found} is not {expected}"
        return
    ours, theirs = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (found, expected))
    finite = theirs[theirs.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=relative * scale, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )
