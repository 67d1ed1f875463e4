"""``python -m wild.onnx_tools RESULTS.jsonl``: published networks as ONNX files that other tools have been at.

Each network is exported by torch's older exporter with every size open, as most files that people have (by the newer
one where that can't), and then changed by ``onnxruntime``'s own tools (its optimiser, its converter to halves, its
quantisers). mobopt runs each file on the Vulkan device, beside onnxruntime on the CPU; the plain one with other sizes,
too. ``onnxruntime`` is no requirement of mobopt's: install it beside.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.optimizer import optimize_model
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mobopt.errors import MoboptError
from wild import NETS
from wild.attempt import (
    FAULT,
    REFUSED,
    RIGHT,
    TOLERANCE,
    TORCH_CANT,
    WRONG,
    error_of,
    for_device,
    in_own_process,
    message_of,
    results_of,
)
from wild.net import batch_of
from wild.running import chosen, found_before, import_packages, run_all

OPEN = "open"
TOOL_CANT = "the tool can't"
_OPSET = 17
_BATCH = 2
_MORE_ITEMS, _MORE_PIXELS, _MORE_TOKENS = 2, 32, 3
_FARTHER, _ROUNDING = 1.6, 2e-3
"""How much farther from floats than onnxruntime's a result in steps or halves may be: inputs that lie between two
steps are rounded to either, and what comes after them is another run of the same model."""

Tool = Callable[[Path, Path, Sequence[Tensor]], None]
"""Makes a file of a file; it may run that on inputs."""


class _Once(CalibrationDataReader):
    """One call."""

    def __init__(self, file: Path, inputs: Sequence[Tensor]) -> None:
        names = [item.name for item in onnxruntime.InferenceSession(str(file)).get_inputs()]
        self._calls = iter([{name: x.numpy() for name, x in zip(names, inputs, strict=True)}])

    def get_next(self) -> Any:
        return next(self._calls, None)


def _optimized(source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options)


def _fused(source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    optimize_model(str(source), model_type="bert", num_heads=0, hidden_size=0, opt_level=0).save_model_to_file(
        str(target)
    )


def _halved(keeps_io: bool, source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    onnx.save(convert_float_to_float16(onnx.load(str(source)), keep_io_types=keeps_io), str(target))


def _rounded_dynamically(per_channel: bool, source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    kind = QuantType.QUInt8 if per_channel else QuantType.QInt8
    quantize_dynamic(str(source), str(target), weight_type=kind, per_channel=per_channel, reduce_range=True)


def _rounded(form: QuantFormat, kind: QuantType, source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    extra = {"UseQDQContribOps": kind == QuantType.QUInt16}
    quantize_static(
        str(source),
        str(target),
        _Once(source, inputs),
        quant_format=form,
        activation_type=kind,
        weight_type=QuantType.QInt8 if form == QuantFormat.QDQ else QuantType.QUInt8,
        reduce_range=True,  # sums of the others are clamped by CPUs without VNNI
        extra_options=extra,
    )


def _of_few_bits(source: Path, target: Path, inputs: Sequence[Tensor]) -> None:
    settings = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False)
    quantizer = MatMulNBitsQuantizer(onnx.load(str(source)), algo_config=settings)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


EXACT: Mapping[str, Tool] = {"optimized": _optimized, "fused": _fused, "4 bits": _of_few_bits}
"""Tools whose files onnxruntime computes in float32."""
ROUNDING: Mapping[str, Tool] = {
    "halves": partial(_halved, True),
    "halves, inputs too": partial(_halved, False),
    "dynamic": partial(_rounded_dynamically, False),
    "dynamic, per channel": partial(_rounded_dynamically, True),
    "QDQ": partial(_rounded, QuantFormat.QDQ, QuantType.QUInt8),
    "QDQ, int8": partial(_rounded, QuantFormat.QDQ, QuantType.QInt8),
    "QDQ, 16 bits": partial(_rounded, QuantFormat.QDQ, QuantType.QUInt16),
    "QOperator": partial(_rounded, QuantFormat.QOperator, QuantType.QUInt8),
}
"""The others."""


def main() -> None:
    """One line of JSON for each network, in the order in which they end."""
    options = _arguments()
    done = {case["net"] for case in found_before(options.results)}
    names = [name for name in chosen(options.nets) if name not in done and NETS[name].is_here]
    import_packages(names)

    def attempt(name: str) -> dict[str, Any]:
        return {"net": name, **in_own_process(partial(_judged, name, options.form), options.timeout)}

    run_all(names, attempt, _shown, options.results, options.workers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wild.onnx_tools", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("nets", nargs="*", help="patterns of names, such as 'timm.*'")
    parser.add_argument("--form", action="append", choices=(OPEN, *EXACT, *ROUNDING), help="all, if not given")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600.0)
    return parser.parse_args()


def _shown(found: Mapping[str, Any]) -> str:
    others = {form: each["state"] for form, each in found.get("forms", {}).items() if each["state"] != RIGHT}
    return f"{found['net']} {found['state']} {', '.join(f'{form}: {state}' for form, state in others.items())}"


def _judged(name: str, forms: Sequence[str] | None) -> dict[str, Any]:
    module, inputs = NETS[name].build()
    inputs = batch_of(inputs, _BATCH)
    with TemporaryDirectory() as folder:
        file, changed = Path(folder) / "net.onnx", Path(folder) / "changed.onnx"
        try:
            with redirect_stdout(StringIO()):  # exporters print graphs
                _export(module, inputs, file)
            floats = _by_onnxruntime(file, inputs)
        except Exception as error:
            return {"state": TORCH_CANT, "message": message_of(error)}
        found = {}
        for form in forms or (OPEN, *EXACT, *ROUNDING):
            if form == OPEN:
                found[form] = _guarded(partial(_plain, file, inputs))
                continue
            try:
                (EXACT | ROUNDING)[form](file, changed, inputs)
                expected = _by_onnxruntime(changed, inputs)
            except Exception as error:
                found[form] = {"state": TOOL_CANT, "message": message_of(error)}
                continue
            found[form] = _guarded(partial(_beside, changed, form, inputs, expected, floats))
    is_right = all(each["state"] in (RIGHT, TOOL_CANT) for each in found.values())
    return {"state": RIGHT if is_right else WRONG, "forms": found}


def _export(module: nn.Module, inputs: Sequence[Tensor], file: Path) -> None:
    """By torch's older exporter, with every size open but for the channels of images; by the newer one, with all sizes
    as they are, where that can't."""
    names = [f"input{number}" for number in range(len(inputs))]
    axes = {
        name: {dim: f"{name}_{dim}" for dim in range(x.dim()) if dim != 1 or x.dim() < 4}
        for name, x in zip(names, inputs, strict=True)
    }
    settings: dict[str, Any] = {"verbose": False, "input_names": names, "opset_version": _OPSET}
    with sdpa_kernel(SDPBackend.MATH):
        try:
            model, arguments = copy.deepcopy(module), tuple(x.clone() for x in inputs)
            torch.onnx.export(model, arguments, file, dynamo=False, dynamic_axes=axes, **settings)
        except Exception:  # of many kinds
            model, arguments = copy.deepcopy(module), tuple(x.clone() for x in inputs)
            torch.onnx.export(model, arguments, file, dynamo=True, **(settings | {"opset_version": None}))


def _by_onnxruntime(file: Path, inputs: Sequence[Tensor]) -> list[Tensor]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options)
    given = {
        item.name: x.numpy().astype(numpy.float16) if item.type == "tensor(float16)" else x.numpy()
        for item, x in zip(session.get_inputs(), inputs, strict=True)
    }
    return [torch.as_tensor(result) for result in session.run(None, given)]


def _guarded(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return function()
    except MoboptError as error:
        return {"state": REFUSED, "message": message_of(error)}
    except Exception as error:
        return {"state": FAULT, "message": message_of(error)}


def _plain(file: Path, inputs: Sequence[Tensor]) -> dict[str, Any]:
    """The exported file, with the example's sizes and with others; onnxruntime can't run all of those."""
    optimized = for_device(file, inputs)
    errors = {}
    for number, given in enumerate((inputs, *_of_other_sizes(inputs))):
        try:
            expected = _by_onnxruntime(file, given)
        except Exception:
            if number == 0:
                raise
            continue
        errors[str([list(x.shape) for x in given])] = error_of(results_of(optimized, given), expected)
    report = optimized.plan_report(*inputs)
    return {
        "state": RIGHT if max(errors.values()) <= TOLERANCE else WRONG,
        "errors": errors,
        "dispatches": report.dispatches,
        "on_cpu": [str(fallback) for fallback in report.fallbacks],
    }


def _of_other_sizes(inputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """More items; taller, wider, and larger images in all, or longer sequences."""
    has_images = any(x.dim() >= 4 for x in inputs)
    for dims in ([0], [2], [3], [0, 2, 3]) if has_images else ([0], [1]):
        generator = torch.Generator().manual_seed(len(dims) + dims[0])
        yield [_grown(x, dims, generator) for x in inputs]


def _grown(x: Tensor, dims: Sequence[int], generator: torch.Generator) -> Tensor:
    more = [_MORE_ITEMS, *[_MORE_PIXELS if x.dim() >= 4 else _MORE_TOKENS] * (x.dim() - 1)]
    sizes = [size + (more[dim] if dim in dims else 0) for dim, size in enumerate(x.shape)]
    if x.is_floating_point():
        return torch.randn(sizes, generator=generator, dtype=x.dtype)
    if x.dtype == torch.bool:
        return torch.ones(sizes, dtype=torch.bool)
    return torch.randint(int(x.min()), int(x.max()) + 1, sizes, generator=generator, dtype=x.dtype)


def _beside(
    file: Path, form: str, inputs: Sequence[Tensor], expected: Sequence[Tensor], floats: Sequence[Tensor]
) -> dict[str, Any]:
    """A changed file beside onnxruntime's results of it, and beside those of the plain one."""
    halves = form == "halves, inputs too"
    given = [x.half() if halves and x.is_floating_point() else x for x in inputs]
    optimized = for_device(file, given)
    found, theirs, plain = ([x.float() for x in each] for each in (results_of(optimized, given), expected, floats))
    apart, own, other = error_of(found, theirs), error_of(found, plain), error_of(theirs, plain)
    is_right = apart <= TOLERANCE if form in EXACT else own <= _FARTHER * other + _ROUNDING
    report = optimized.plan_report(*given)
    return {
        "state": RIGHT if is_right else WRONG,
        "error": apart,
        "error_beside_floats": own,
        "onnxruntime_beside_floats": other,
        "dispatches": report.dispatches,
        "on_cpu": [str(fallback) for fallback in report.fallbacks],
    }


if __name__ == "__main__":
    main()
