"""The node cases of onnx.backend.test, run through mobopt's ONNX backend and judged."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy
import onnx
import onnx.backend.test.case.node as node_package
import torch

from mobopt import onnx_backend
from mobopt.errors import MoboptError
from mobopt.frontends.onnx.elements import TensorReader
from mobopt.ops.effects import is_random

_VIEWED = {
    "bfloat16": (numpy.uint16, torch.bfloat16),
    "float8_e4m3fn": (numpy.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (numpy.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (numpy.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (numpy.uint8, torch.float8_e5m2fnuz),
}
"""Dtypes of NumPy that torch does not take, as what they are read."""
_OUTPUT_ROUNDING = 2.0
"""Units of rounding of the output's scale that a difference may have beside what the case allows."""


class Verdict(IntEnum):
    """What became of a case, from best to worst."""

    NATIVE = 0
    """Right, and every operator ran on the device."""
    READ = 1
    """The same, after the host has read elements that decide a size, a branch or a number."""
    HOST = 2
    """Right, with operators that ran on the CPU."""
    REFUSED = 3
    """One of mobopt's own errors."""
    WRONG = 4
    """Another dtype, shape or value than the case's."""
    CRASHED = 5
    """An error that is none of mobopt's own, or a process that died."""


@dataclass(frozen=True)
class Outcome:
    """A verdict, and why."""

    verdict: Verdict
    reason: str = ""
    dispatches: int = 0
    """Of a call; none if the result is known from sizes alone, or is an input."""


def case_modules() -> list[str]:
    """Names of the modules that hold the cases, by operator."""
    return sorted(item.name for item in pkgutil.iter_modules(node_package.__path__))


def cases_of(modules: Iterable[str]) -> list[Any]:
    """The cases of modules, which importing them makes, and those of modules that were imported before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(f"{node_package.__name__}.{name}")
    return list(node_package._NodeTestCases)


def operator_of(case_name: str, models: Mapping[str, Any]) -> str:
    """The operator that a case is about, with its domain if that is not ONNX's own.

    A case of an operator's definition (``..._expanded_ver18``) is about the operator that it defines.

    Args:
        case_name: of the case.
        models: of all cases, by their names.
    """
    node = models[case_name.partition("_expanded")[0]].graph.node[-1]
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def as_torch(value: Any) -> Any:
    """An input or an output of a case; sequences are lists, empty optionals None."""
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)):
        return [as_torch(item) for item in value]
    if isinstance(value, onnx.TensorProto):
        return TensorReader(None).read(value, "the case")
    array = numpy.asarray(value)
    if str(array.dtype) in _VIEWED:
        plain, dtype = _VIEWED[str(array.dtype)]
        return torch.from_numpy(array.view(plain).copy()).view(dtype).reshape(array.shape)
    return torch.from_numpy(numpy.ascontiguousarray(array).reshape(array.shape).copy())


def difference(found: Any, expected: Any, relative: float, absolute: float, has_values: bool = True) -> str:
    """How a result differs from what a case expects; empty if it does not."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return f"{type(found).__name__} instead of {len(expected)} tensors"
        parts = (difference(*pair, relative, absolute, has_values) for pair in zip(found, expected, strict=True))
        return next((part for part in parts if part), "")
    if expected is None or found is None:
        return "" if found is expected else f"{found} instead of {expected}"
    expected = as_torch(expected)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if not has_values or not expected.numel():
        return ""
    if expected.dtype.is_floating_point and expected.dtype.itemsize > 1:
        rounding = _OUTPUT_ROUNDING * torch.finfo(expected.dtype).eps
        finite = expected[expected.isfinite()].double().abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        near = torch.allclose(
            found.double(), expected.double(), max(relative, rounding), max(absolute, rounding * scale), equal_nan=True
        )
    elif expected.dtype.is_complex:
        near = torch.allclose(found, expected, relative, absolute, equal_nan=True)
    else:
        near = numpy.array_equal(found.double().numpy(), expected.double().numpy(), equal_nan=True)
    return "" if near else "other elements"


def judge(case: Any, device: str) -> Outcome:
    """Run a case on a device of the backend, and compare dtypes, shapes and elements."""
    try:
        prepared = onnx_backend.prepare(case.model, device)
        outcomes = [_of_call(prepared, inputs, outputs, case) for inputs, outputs in case.data_sets]
    except MoboptError as error:
        return Outcome(Verdict.REFUSED, str(error).split("\n", 1)[0])
    except Exception as error:
        return Outcome(Verdict.CRASHED, f"{type(error).__name__}: {str(error)[:200]}")
    return max(outcomes, key=lambda outcome: outcome.verdict)


def _of_call(prepared: onnx_backend.PreparedModel, inputs: Any, outputs: Any, case: Any) -> Outcome:
    given = [as_torch(value) for value in inputs]
    found = prepared.run(given)
    has_values = not any(is_random(node) for node in prepared.module.program.methods["forward"].walk())
    wrong = difference([as_torch(item) for item in found], list(outputs), case.rtol, case.atol, has_values)
    if wrong:
        return Outcome(Verdict.WRONG, wrong)
    if prepared.module.device == "cpu":
        return Outcome(Verdict.HOST, "no device was asked")
    report = prepared.module.runtime.plan_report(given)
    prepared.module.runtime.close()
    reasons = dict.fromkeys(f"{fallback.op}: {fallback.reason}" for fallback in report.fallbacks)
    if reasons:
        return Outcome(Verdict.HOST, "; ".join(reasons), report.dispatches)
    if report.looks:
        return Outcome(Verdict.READ, "elements decide a size, a branch or a number", report.dispatches)
    return Outcome(Verdict.NATIVE, "", report.dispatches)
