"""ONNX files: torch.onnx and onnxscript translate the ExportedProgram; the file is checked, and run where it can be."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from mobopt.errors import InputError, UnsupportedError
from mobopt.exporters.exported_program import ones_are_sizes, read_again
from mobopt.exporters.missing_operators import with_known_operators
from mobopt.exporters.targets import Call, NotRunError, Order, Target, Written
from mobopt.ir import Program
from mobopt.ops.state import changed_attributes
from mobopt.options import FORMATS

_LOG = logging.getLogger("mobopt.exporters")
OPSETS = range(18, 24)
"""Those that torch.onnx writes."""
_MOST_BYTES = 2_000_000_000
"""Of a file without other files beside it: a limit of protobuf."""
_LACKS = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")


class OnnxFile(Target):
    """An ``.onnx`` file of one method."""

    name = FORMATS[".onnx"]
    draws_as_torch = False

    def write(self, order: Order, path: Path) -> Written:
        """Translate, check and infer shapes."""
        _check(order)
        exported = order.exported()
        program = read_again(exported)
        _check_results(program)
        names = _output_names(order.plain.program, order.method, program)
        model = _translated(with_known_operators(program), order.opset, names)
        model.save(path, external_data=False)
        _verify(path)
        call, runner = _runner(path, program)
        remarks = (exported.remark,) if exported.remark else ()
        return Written(lambda method: call, runner, (order.method,), exported.sizes, remarks)


def _check(order: Order) -> None:
    """Refuse what no ONNX file can hold, before any work."""
    if importlib.util.find_spec("onnxscript") is None:
        raise UnsupportedError(
            "ONNX is written by torch.onnx with the package onnxscript, which is missing: pip install mobopt[onnx]"
        )
    if order.opset not in OPSETS:
        raise InputError(f"opset {order.opset} can't be written; {OPSETS[0]} to {OPSETS[-1]} can")
    program = order.plain.program
    if changed := sorted(changed_attributes(program)):
        raise UnsupportedError(
            f"the model keeps {', '.join(changed)} between calls, and ONNX has no state; migrate to .pt2 or .pt instead"
        )
    tensors = [item.value for item in program.attributes.values() if isinstance(item.value, torch.Tensor)]
    if (size := sum(tensor.nbytes for tensor in tensors)) > _MOST_BYTES:
        raise UnsupportedError(
            f"the model has {size:,} bytes of weights, and one ONNX file holds {_MOST_BYTES:,}; migrate to .pt2 instead"
        )


def _check_results(program: torch.export.ExportedProgram) -> None:
    constants = [item.arg.value for item in _outputs(program) if isinstance(item.arg, ConstantArgument)]
    if constants:
        raise UnsupportedError(
            f"the method returns {constants[0]!r}, which is no tensor, and ONNX has no other results; migrate to .pt2 "
            "or .pt instead"
        )


def _translated(program: torch.export.ExportedProgram, opset: int, names: Sequence[str]) -> Any:
    try:
        with torch.no_grad(), ones_are_sizes(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                program, dynamo=True, opset_version=opset, output_names=list(names), verbose=False, external_data=False
            )
    except Exception as error:
        _LOG.debug("torch.onnx failed", exc_info=True)
        causes = _causes(error)
        lacking = sorted({name for cause in causes for name in _LACKS.findall(cause)})
        if lacking:
            raise UnsupportedError(f"ONNX lacks {', '.join(lacking)}; migrate to .pt2 or .pt instead") from error
        lines = causes[-1].strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"torch.onnx can't translate the model: {lines[0]}") from error


def _causes(error: BaseException | None) -> list[str]:
    """Messages of an error and of what led to it, the first one last."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return texts


def _output_names(program: Program, method: str, exported: torch.export.ExportedProgram) -> list[str]:
    """Names of the tensors that are returned, as the model calls them where it does."""
    (result,) = program.methods[method].outputs
    producer = result.producer
    values = list(producer.inputs) if producer is not None and producer.op == "prim::TupleConstruct" else [result]
    count = len(_outputs(exported))
    plain = ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
    if len(values) != count:
        return plain
    taken = {node.name for node in exported.graph.nodes if node.op == "placeholder"}
    names = [re.sub(r"(\.\d+)+$", "", value.name) for value in values]
    good = all(re.fullmatch(r"[A-Za-z]\w*", name) and name not in taken for name in names)
    return names if good and len(set(names)) == len(names) else plain


def _outputs(program: torch.export.ExportedProgram) -> list[Any]:
    return [item for item in program.graph_signature.output_specs if item.kind == OutputKind.USER_OUTPUT]


def _verify(path: Path) -> None:
    """Have onnx check the file, with shape inference.

    Raises:
        UnsupportedError: it finds fault.
    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UnsupportedError(f"torch.onnx made a file that onnx.checker refuses: {reason}") from error


def _runner(path: Path, program: torch.export.ExportedProgram) -> tuple[Call, str]:
    """What runs the file, and what it is called: onnxruntime where it is installed, else onnx's own evaluator."""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names, runner = [item.name for item in session.get_inputs()], "onnxruntime"
    else:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(path))
        names, runner = list(session.input_names), "onnx.reference"

    def call(arguments: list[Any]) -> Any:
        given = _named_inputs(program, arguments)
        try:
            results = session.run(None, {name: given[name] for name in names})
        except Exception as error:  # either raises what its kernels raise
            _LOG.debug("%s failed", runner, exc_info=True)
            remedy = "" if runner == "onnxruntime" else "; onnxruntime runs it instead where it is installed"
            raise NotRunError(f"{runner} fails on it ({type(error).__name__}: {error}){remedy}") from error
        return _restored(program, results)

    return call, runner


def _named_inputs(program: torch.export.ExportedProgram, arguments: list[Any]) -> dict[str, Any]:
    leaves = pytree.tree_leaves(arguments)
    specs = [item for item in program.graph_signature.input_specs if item.kind == InputKind.USER_INPUT]
    return {
        spec.arg.name: leaf.detach().numpy()
        for spec, leaf in zip(specs, leaves, strict=True)
        if isinstance(spec.arg, TensorArgument)
    }


def _restored(program: torch.export.ExportedProgram, results: Sequence[Any]) -> Any:
    """The nest that the method returns, of the file's results."""
    tensors = iter(results)
    leaves: list[Any] = []
    for spec in _outputs(program):
        tensor = torch.from_numpy(next(tensors))
        leaves.append(tensor if isinstance(spec.arg, TensorArgument) else tensor.item())
    return pytree.tree_unflatten(leaves, program.call_spec.out_spec)
