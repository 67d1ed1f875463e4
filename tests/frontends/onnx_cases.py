"""The node cases of onnx.backend.test, run through mobopt's ONNX source and judged."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy
import onnx
import onnx.backend.test.case.node as node_package
import torch

from mobopt.errors import MoboptError
from mobopt.frontends.onnx.elements import TensorReader
from mobopt.frontends.onnx_source import OnnxSource
from mobopt.ir import Program
from mobopt.ops.effects import is_random
from mobopt.runtimes.cpu import Interpreter

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


class Verdict(Enum):
    """What became of a case."""

    NATIVE = "native"
    """Right, and every operator ran on the device."""
    READ = "native, sizes read"
    """The same, after the host has read elements that decide a size or a number."""
    CPU = "cpu"
    """Right, with operators that ran on the CPU."""
    RIGHT = "right"
    """Right on the reference interpreter; no device was asked."""
    REFUSED = "refused"
    """One of mobopt's own errors when it was read."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Outcome:
    """A verdict, and why."""

    verdict: Verdict
    reason: str = ""


def case_modules() -> list[str]:
    """Names of the modules that hold the cases, by operator."""
    return sorted(item.name for item in pkgutil.iter_modules(node_package.__path__))


def cases_of(modules: Iterable[str]) -> list[Any]:
    """The cases of modules, which importing them makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            importlib.import_module(f"{node_package.__name__}.{name}")
    return list(node_package._NodeTestCases)


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


def judge(case: Any, device: Any = None) -> Outcome:
    """Read a case's model, run it, on a device if one is given, and compare."""
    try:
        program = OnnxSource(case.model).program
    except MoboptError as error:
        return Outcome(Verdict.REFUSED, str(error))
    has_values = not any(is_random(node) for node in program.methods["forward"].walk())
    verdict, reasons = Verdict.RIGHT, []
    for inputs, expected in case.data_sets:
        given = [as_torch(value) for value in inputs]
        try:
            if device is None:
                found = Interpreter(program).run("forward", given)
            else:
                found, verdict, reasons = _on_device(program, given, device)
        except Exception as error:
            return Outcome(Verdict.WRONG, f"{type(error).__name__}: {str(error)[:200]}")
        results = list(found) if isinstance(found, tuple) else [found]
        wrong = difference(results, list(expected), case.rtol, case.atol, has_values)
        if wrong:
            return Outcome(Verdict.WRONG, wrong)
    return Outcome(verdict, "; ".join(reasons))


def _on_device(program: Program, given: Sequence[Any], device: Any) -> tuple[Any, Verdict, list[str]]:
    from mobopt.runtimes.vulkan.program import VulkanProgram

    runtime = VulkanProgram(program, device)
    try:
        found, report = runtime.run("forward", list(given)), runtime.plan_report(list(given))
    finally:
        runtime.close()
    reasons = list(dict.fromkeys(f"{fallback.op}: {fallback.reason}" for fallback in report.fallbacks))
    verdict = Verdict.CPU if reasons else Verdict.READ if report.looks else Verdict.NATIVE
    return found, verdict, reasons


def judged(cases: Iterable[Any], device: Any = None) -> Iterator[tuple[str, Outcome]]:
    """Names and outcomes of cases."""
    for case in cases:
        yield case.name, judge(case, device)


def main() -> None:
    """Judge all cases on the best device, and print counts and every reason."""
    from mobopt.runtimes.vulkan.engine.device import open_device

    torch.set_num_threads(1)
    outcomes = dict(judged(cases_of(case_modules()), open_device(None)))
    counts = Counter(outcome.verdict.value for outcome in outcomes.values())
    print(dict(counts))
    for verdict in (Verdict.WRONG, Verdict.REFUSED, Verdict.CPU):
        reasons: dict[str, list[str]] = {}
        for name, outcome in outcomes.items():
            if outcome.verdict is verdict:
                reasons.setdefault(outcome.reason, []).append(name)
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            print(f"{verdict.value}: {len(names)}: {reason} ({', '.join(names[:3])})")


if __name__ == "__main__":
    main()
