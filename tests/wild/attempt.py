"""One net from one source on the Vulkan device, in a process of its own."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mobopt.errors import InputError, MoboptError
from mobopt.module import MobileModule
from mobopt.optimizer import optimize_for_mobile
from mobopt.options import Precision
from wild import NETS
from wild.net import batch_of
from wild.open_sizes import SMALLEST, exported, other_inputs

OPEN = "open"
SOURCES = ("export", "core", "trace", "onnx", "script", OPEN)
RIGHT, WRONG, REFUSED, TORCH_CANT, FAULT, TIMEOUT, CRASHED, ABSENT = (
    "right", "wrong", "refused", "torch can't", "fault", "timeout", "crashed", "not run",
)  # fmt: skip
STATES = {
    RIGHT: "within 1e-4 of eager's scale",
    WRONG: "farther than that; the message says how far both are from float64",
    REFUSED: "mobopt says by name what it can't take",
    TORCH_CANT: "torch's own exporter can't make this source of it, or its CPU can't run it in halves",
    FAULT: "an error that nobody foresaw",
    TIMEOUT: "it took longer than it may",
    CRASHED: "its process ended by itself",
    ABSENT: "its package is not installed",
}
TOLERANCE = 1e-4
_FARTHER = 1.5
"""Times eager's own distance from float64 that a net of halves may be from it."""
_MESSAGE = 400
_GRACE = 5.0
_STARTS = Lock()


@dataclass(frozen=True)
class Case:
    """A net, by its key in :data:`wild.NETS`, what mobopt is given of it, and how it is computed besides in fp32."""

    net: str
    source: str
    precisions: tuple[Precision, ...] = ()
    batch: int = 1
    dtype: str = "float32"
    """Of the net itself, and of its inputs."""


def attempt(case: Case, seconds: float) -> dict[str, Any]:
    """What became of a case, as plain data: ``state``, and ``error``, ``on_cpu``, ``seconds``, ``message`` if known.

    ``errors`` has those of other precisions, or why there is none; no state tells of them, as nets differ in what
    halves do to them.

    Args:
        case: what to try.
        seconds: of wall time that it may take.
    """
    if not NETS[case.net].is_here:
        return {"net": case.net, "source": case.source, "state": ABSENT}
    return {
        "net": case.net,
        "source": case.source,
        "dtype": case.dtype,
        **in_own_process(partial(_guarded, case), seconds),
    }


def in_own_process(function: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What a function gives, with the seconds and the memory that it took; ``state`` if it comes to no end."""
    context = multiprocessing.get_context("fork")  # the child has torch and the packages already
    with _STARTS:  # a child that began meanwhile would hold the end of this pipe open, too
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(function, there))
        process.start()
        there.close()
    found = _received(here, seconds)
    if found["state"] == TIMEOUT:
        process.kill()
    process.join(_GRACE)
    if process.is_alive():
        process.kill()
        process.join()
    return found


def _received(here: Connection, seconds: float) -> dict[str, Any]:
    if not here.poll(seconds):
        return {"state": TIMEOUT, "message": f"it took longer than {seconds:g} s"}
    try:
        return dict(json.loads(here.recv_bytes()))
    except EOFError:
        return {"state": CRASHED}


def _child(function: Callable[[], dict[str, Any]], there: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    found = function()
    found["seconds"] = round(time.perf_counter() - started, 1)
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    there.send_bytes(json.dumps(found).encode())
    there.close()
    os._exit(0)  # what drivers do at the end of a process is no part of the case


def _guarded(case: Case) -> dict[str, Any]:
    module, inputs = NETS[case.net].build()
    inputs = batch_of(inputs, max(case.batch, SMALLEST) if case.source == OPEN else case.batch)
    dtype = getattr(torch, case.dtype)
    if dtype != torch.float32:
        module, inputs = module.to(dtype), [x.to(dtype) if x.dtype == torch.float32 else x for x in inputs]
    with TemporaryDirectory() as folder:
        try:
            with redirect_stdout(StringIO()):  # exporters print graphs
                source = _source(case.source, module, inputs, Path(folder))
        except Exception as error:
            return {"state": TORCH_CANT, "message": message_of(error)}
        try:
            if dtype != torch.float32:
                return _compared_in_halves(module, source, inputs)
            return _compared(module, source, inputs, case.precisions)
        except MoboptError as error:
            return {"state": REFUSED, "message": message_of(error)}
        except Exception as error:
            return {"state": FAULT, "message": message_of(error)}


def _source(kind: str, module: nn.Module, inputs: Sequence[Tensor], folder: Path) -> Any:
    """Of a copy: exporters leave fake tensors in the caches of some modules, and some nets write into inputs."""
    module = copy.deepcopy(module)
    arguments = tuple(x.clone() for x in inputs)
    if kind == "export":
        return torch.export.export(module, arguments)
    if kind == "core":
        return torch.export.export(module, arguments).run_decompositions()
    if kind == OPEN:
        return exported(module, arguments)
    if kind == "trace":
        return torch.jit.trace(module, arguments, check_trace=False, strict=False)
    if kind == "script":
        return torch.jit.script(module)
    file = folder / "model.onnx"
    try:
        with sdpa_kernel(SDPBackend.MATH):  # whose strides are those of torch.onnx's decompositions
            torch.onnx.export(module, arguments, file, dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError:  # the older exporter takes some nets that the newer one can't
        torch.onnx.export(module, arguments, file, dynamo=False, verbose=False)
    return file


def _compared(
    module: nn.Module, source: Any, inputs: Sequence[Tensor], precisions: Sequence[Precision]
) -> dict[str, Any]:
    expected = results_of(module, inputs)
    optimized = for_device(source, inputs)
    found = results_of(optimized, inputs)
    report = optimized.plan_report(*inputs)
    error = error_of(found, expected)
    data = {
        "state": RIGHT if error <= TOLERANCE else WRONG,
        "error": error,
        "on_cpu": [str(fallback) for fallback in report.fallbacks],
        "dispatches": report.dispatches,
        "errors": {precision: _error_in(precision, source, inputs, expected) for precision in precisions},
    }
    if error > TOLERANCE:
        data["message"] = _beside_doubles(module, inputs, found, expected)
    elif isinstance(source, torch.export.ExportedProgram):
        data |= _with_other_sizes(module, optimized, other_inputs(source, inputs))
    for name, call in (("ms", lambda: optimized(*inputs)), ("eager_ms", lambda: module(*inputs))):
        started = time.perf_counter()
        with torch.no_grad():
            call()
        data[name] = round((time.perf_counter() - started) * 1000, 1)
    return data


def _compared_in_halves(module: nn.Module, source: Any, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """A net of halves beside itself in float64; it may be as far from that as eager, which rounds at each operator."""
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    try:
        exact = results_of(copy.deepcopy(module).double(), doubles)
        eager = error_of(results_of(module, inputs), exact)
    except RuntimeError as error:
        return {"state": TORCH_CANT, "message": message_of(error)}
    optimized = for_device(source, inputs)
    error = error_of(results_of(optimized, inputs), exact)
    report = optimized.plan_report(*inputs)
    return {
        "state": RIGHT if error <= _FARTHER * eager else WRONG,
        "error": error,
        "eager_error": eager,
        "on_cpu": [str(fallback) for fallback in report.fallbacks],
        "dispatches": report.dispatches,
        "message": f"against float64 the error is {error:.1e}, that of eager {eager:.1e}",
    }


def _with_other_sizes(module: nn.Module, optimized: MobileModule, others: Iterable[Sequence[Tensor]]) -> dict[str, Any]:
    """``others``, the error of each, by the sizes of inputs; eager can't run all that its export says it can."""
    errors = {}
    for inputs in others:
        try:
            expected = results_of(module, inputs)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            continue
        with suppress(InputError):  # what the export has guards against
            errors[str([list(x.shape) for x in inputs])] = error_of(results_of(optimized, inputs), expected)
    wrong = {sizes: error for sizes, error in errors.items() if error > TOLERANCE}
    return {"others": errors} | ({"state": WRONG, "message": f"with other sizes: {wrong}"} if wrong else {})


def _error_in(precision: Precision, source: Any, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float | str:
    try:
        return error_of(results_of(for_device(source, inputs, precision), inputs), expected)
    except MoboptError as error:
        return message_of(error)


def for_device(source: Any, inputs: Sequence[Tensor], precision: Precision = "fp32") -> MobileModule:
    """A model for mobopt's own runtime."""
    return optimize_for_mobile(
        source, backend="vulkan", runtime="mobopt", example_inputs=list(inputs), precision=precision
    )


def _beside_doubles(module: nn.Module, inputs: Sequence[Tensor], found: list[Tensor], expected: list[Tensor]) -> str:
    """How far both results are from eager's in float64: a net may enlarge any rounding."""
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    exact = results_of(copy.deepcopy(module).double(), doubles)
    return f"against float64 the error is {error_of(found, exact):.0e}, that of eager {error_of(expected, exact):.0e}"


def results_of(call: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """With the same random numbers each time: vilt draws the order of its patches."""
    torch.manual_seed(0)
    with torch.no_grad():
        return tensors_of(call(*(x.clone() for x in inputs)))


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of nested results, in order."""
    if isinstance(result, Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


def error_of(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference over the scale of the tensor that it is in; infinite where they don't match at all."""
    if [x.shape for x in found] != [x.shape for x in expected]:
        return float("inf")
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(float(theirs.abs().max()), 1e-6) if theirs.numel() else 1.0
        difference = float((ours.double() - theirs.double()).abs().max()) if theirs.numel() else 0.0
        worst = max(worst, difference / scale if difference == difference else float("inf"))
    return worst


def message_of(error: Exception) -> str:
    """The kind of an error, and how its text begins, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)}"[:_MESSAGE]
