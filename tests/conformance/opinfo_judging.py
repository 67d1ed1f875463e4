"""Runs one call of an operator on the Vulkan runtime beside eager, and says how it went."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from opinfo_samples import Sample
from torch.utils import _pytree

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.effects import is_random
from mobopt.passes.manager import run_passes
from mobopt.passes.number_operands import NumberOperands
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.plan_report import PlanReport
from mobopt.runtimes.vulkan.program import VulkanProgram


class Verdict(IntEnum):
    """What became of a call, from best to worst."""

    NATIVE = 0
    """Every operator of it ran on the device, and the result is right."""
    HOST = 1
    """Right, but something of it ran on the CPU."""
    UNTRACEABLE = 2
    """torch.jit.trace raises, or what it made differs from the call in torch itself."""
    REFUSED = 3
    """One of mobopt's own errors."""
    WRONG = 4
    """Another dtype, shape or value than eager's."""
    CRASHED = 5
    """An error that is none of mobopt's own."""


@dataclass(frozen=True)
class Outcome:
    """A verdict, and why."""

    verdict: Verdict
    reason: str = ""


# How far an element may be from eager's, by the result's dtype: so large a part of its own size and of the largest
# finite element (at least 1). A few roundings; integers and booleans are equal.
TOLERANCES = {
    torch.float64: 1e-5,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex32: 2e-3,
    torch.complex64: 1e-5,
    torch.complex128: 1e-5,
}


# Operators of which torch leaves open, by its documentation, which of equal elements their places mean.
_OPEN_TIES = {"sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode"}

# Operators whose vectors may have any sign, and more where values are equal or there are more vectors than values.
_OPEN_VECTORS = {"svd", "linalg_svd", "linalg_eigh"}


class _OfTensors(torch.nn.Module):
    """A sample as a module that returns a tuple of tensors."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self._function = lambda *tensors: sample.function(*tensors, *sample.constants)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = _pytree.tree_leaves(self._function(*tensors))
        if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            kinds = sorted({type(leaf).__name__ for leaf in leaves})
            raise TypeError(f"a trace gives tensors alone, not {', '.join(kinds)}")
        return tuple(leaves)


def judge(sample: Sample, device: Device) -> Outcome:
    """Trace a call, run it on a device, and compare dtype, shape and values with eager's."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = _OfTensors(sample)
        try:
            expected = module(*_copies(sample.tensors))
            traced = torch.jit.trace(module, _copies(sample.tensors), check_trace=False, strict=False)
            again = traced(*_copies(sample.tensors))
        except Exception as error:
            return Outcome(Verdict.UNTRACEABLE, f"torch.jit.trace: {_first_line(error)}")
        try:
            program = program_from_script_module(traced)
            run_passes(program, [NumberOperands()])  # as torch's full interpreter does; a file doesn't tell
            has_values = not _draws(program)
            if difference(again, expected, has_values) is not None:
                return Outcome(Verdict.UNTRACEABLE, "what torch.jit.trace made computes something else in torch itself")
            found, report = _run(program, sample.tensors, device)
        except MoboptError as error:
            return Outcome(Verdict.REFUSED, _first_line(error))
        except Exception as error:
            return Outcome(Verdict.CRASHED, f"{type(error).__name__}: {_first_line(error)}")
        if _operators(program) & _OPEN_TIES:
            found = _with_ties_as_in(expected, found, sample.tensors[0])
        if _operators(program) & _OPEN_VECTORS:
            found = _with_vectors_as_in(expected, found, sample.tensors[0])
        wrong = difference(found, expected, has_values)
        if wrong is not None and not (has_values and _is_as_near(sample, found, expected)):
            return Outcome(Verdict.WRONG, wrong)
    reasons = [f"{fallback.op}: {fallback.reason}" for fallback in report.fallbacks]
    if report.looks:
        reasons.append("elements decide a size or a number, so the CPU reads them")
    return Outcome(Verdict.HOST, "; ".join(dict.fromkeys(reasons))) if reasons else Outcome(Verdict.NATIVE)


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], has_values: bool = True) -> str | None:
    """None if two results agree, else how they don't; of random ones (without ``has_values``) dtypes and shapes are
    compared."""
    if len(found) != len(expected):
        return f"{len(found)} tensors instead of {len(expected)}"
    for ours, theirs in zip(found, expected, strict=True):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
        if has_values and (wrong := _values_differ(ours, theirs)):
            return wrong
    return None


def _run(
    program: Program, tensors: Sequence[torch.Tensor], device: Device
) -> tuple[tuple[torch.Tensor, ...], PlanReport]:
    runtime = VulkanProgram(program, device)
    try:
        return runtime.run("forward", list(tensors)), runtime.plan_report(list(tensors))
    finally:
        runtime.close()


def _with_ties_as_in(
    expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Results with torch's places, where those that were found mean equal elements of ``x``, each place once."""
    return tuple(
        theirs if ours.dtype == torch.int64 == theirs.dtype and _mean_the_same(ours, theirs, x) else ours
        for ours, theirs in zip(found, expected, strict=True)
    )


def _mean_the_same(ours: torch.Tensor, theirs: torch.Tensor, x: torch.Tensor) -> bool:
    if ours.shape != theirs.shape or not ours.numel() or x.numel() == 0:
        return False
    for dim in range(x.dim()) if ours.dim() else [0]:
        lines = x if ours.dim() else x.flatten()
        ours_here, theirs_here = (
            places if places.dim() == lines.dim() else places.unsqueeze(dim) for places in (ours, theirs)
        )
        others = [size for d, size in enumerate(lines.shape) if d != dim]
        if (
            ours_here.dim() == lines.dim()
            and [size for d, size in enumerate(ours_here.shape) if d != dim] == others
            and 0 <= int(ours_here.min()) <= int(ours_here.max()) < lines.shape[dim]
            and torch.equal(lines.gather(dim, ours_here), lines.gather(dim, theirs_here))
            and bool((ours_here.sort(dim).values.diff(dim=dim) > 0).all())
        ):
            return True
    return False


def _with_vectors_as_in(
    expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Results with torch's vectors, where those that were found are orthogonal and make ``x`` too."""
    if len(found) == 2:  # eigenvalues and vectors, of the lower triangle or the upper one
        found = (found[1], found[0], found[1].mT)
        made = _with_vectors_as_in((expected[1], expected[0], expected[1].mT), found, _made_of(*expected))
        return made[1], made[0]
    if [part.shape for part in found] != [part.shape for part in expected] or len(found) != 3 or not x.numel():
        return tuple(found)
    left, values, right = found
    count, tolerance = values.shape[-1], 1e-4 * max(1.0, float(x.abs().max()))
    for rows in (right, right.mT):  # the older form gives columns
        made = (
            left[..., :count] * values.unsqueeze(-2) @ rows[..., :count, :] if rows.shape[-1] == x.shape[-1] else None
        )
        is_made = made is not None and made.shape == x.shape and torch.allclose(made, x, rtol=0, atol=tolerance)
        if is_made and all(map(_is_orthogonal, (left, rows.mT))):
            return expected[0], values, expected[2]
    return tuple(found)


def _made_of(values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """The symmetric matrix, one triangle of which was given."""
    return vectors * values.unsqueeze(-2) @ vectors.mT


def _is_orthogonal(columns: torch.Tensor) -> bool:
    products = columns.mT @ columns
    return torch.allclose(products, torch.eye(products.shape[-1]).expand_as(products), rtol=0, atol=1e-4)


def _operators(program: Program) -> set[str]:
    return {node.op.removeprefix("aten::") for node in program.methods["forward"].walk()}


def _draws(program: Program) -> bool:
    return any(is_random(node) for node in program.methods["forward"].walk())


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach().clone() for tensor in tensors)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in twice the precision, real and imaginary parts apart."""
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()


def _values_differ(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    if theirs.layout != torch.strided or theirs.numel() == 0:
        return None
    tolerance = TOLERANCES.get(theirs.dtype)
    if tolerance is None:
        far = ours != theirs
    else:
        ours, theirs = _wide(ours), _wide(theirs)
        sizes = theirs[theirs.isfinite()].abs()
        scale = max(1.0, float(sizes.max())) if sizes.numel() else 1.0
        near = (ours - theirs).abs() <= tolerance * (scale + theirs.abs())
        far = ~(near | (ours == theirs) | (ours.isnan() & theirs.isnan()))
    if not far.any():
        return None
    where = tuple(far.nonzero()[0].tolist())
    count = f"{int(far.sum())} of {far.numel()}"
    return f"{ours[where].item()!r} instead of {theirs[where].item()!r} at {list(where)} ({count})"


def _is_as_near(sample: Sample, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether the results are no further from those in float64 than twice what eager's are: some calls lose digits by
    themselves, such as interpolation at places far from zero."""
    if len(found) != len(expected) or any(
        ours.shape != theirs.shape or ours.dtype != theirs.dtype for ours, theirs in zip(found, expected, strict=True)
    ):
        return False
    widened = sample.in_float64()
    try:
        exact = _OfTensors(widened)(*widened.tensors)
        errors = [
            (_largest_error(ours, right), _largest_error(theirs, right))
            for ours, theirs, right in zip(found, expected, exact, strict=True)
        ]
    except Exception:  # an operator that float64 has no kernel for
        return False
    return all(ours <= 2 * theirs for ours, theirs in errors)


def _largest_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Infinite where only one is NaN; what is the same, also NaN or infinite, has none."""
    found, right = _wide(found), _wide(right)
    same = (found == right) | (found.isnan() & right.isnan())
    error = torch.where(same, 0.0, (found - right).abs()).nan_to_num(nan=torch.inf)
    return float(error.max()) if error.numel() else 0.0


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
