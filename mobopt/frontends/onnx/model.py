"""Reads an ONNX model: the file, what it declares, and the Program that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError

from mobopt.bundle.builder import Allowance
from mobopt.errors import BundleError, MoboptError, UnsupportedError
from mobopt.frontends.onnx import families  # noqa: F401 - registers translations
from mobopt.frontends.onnx.control import list_value
from mobopt.frontends.onnx.elements import TensorReader, packed_bits
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.frontends.onnx.operands import (
    AnyOperand,
    Operand,
    OptionalOperand,
    SequenceOperand,
    carrier,
)
from mobopt.frontends.onnx.registry import Branches
from mobopt.frontends.onnx.translator import Translator, as_carried, declared_sizes, type_of, versions_of
from mobopt.ir import Program, Value
from mobopt.ir.types import TENSOR, ListType, OptionalType, TupleType, Type
from mobopt.passes.common_subexpression_elimination import CommonSubexpressionElimination
from mobopt.passes.dead_code_elimination import DeadCodeElimination

OLDEST_OPSET = 7
_MOST_BYTES = 1 << 31
_MOST_INPUTS = 10_000
_MOST_ATTEMPTS = 64
"""How often a model is translated, with other branches each time."""


@dataclass(frozen=True)
class DeclaredInput:
    """What a model says of an input.

    Attributes:
        name: as the model has it.
        dtype: of its elements.
        sizes: numbers; names or None where a call decides them. None if the number of dimensions is open too.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxModel:
    """A model as it was read.

    Attributes:
        program: one method, ``forward``, that takes the inputs in order and gives the output, or a tuple of them.
        inputs: tensors that a call must give.
        outputs: names, as the model has them.
    """

    program: Program
    inputs: tuple[DeclaredInput, ...]
    outputs: tuple[str, ...]


Trial = Callable[[Program, Sequence[DeclaredInput]], str]
"""Runs a program of these inputs, and gives the error in which it ended, if any."""


def read_onnx(model: Path | Any, trial: Trial | None = None) -> OnnxModel:
    """Read a model.

    Args:
        model: the path of a file, whose external data lies beside it, or an ``onnx.ModelProto``.
        trial: tells where a branch that sizes decide, and that has to be taken for granted, is the wrong one.

    Raises:
        BundleError: it is damaged or hostile, or its graph breaks ONNX's rules.
        UnsupportedError: an operator, an opset or a type of it is not translated.
    """
    proto = parse_onnx(model) if isinstance(model, Path) else model
    if not proto.HasField("graph") or not proto.graph.output:
        raise BundleError("the ONNX model has no graph, or its graph returns nothing; export it anew")
    versions = versions_of(proto.opset_import)
    _check_versions(versions)
    functions = {
        ("" if item.domain == "ai.onnx" else item.domain, item.name, item.overload): item for item in proto.functions
    }
    reader = TensorReader(model.parent if isinstance(model, Path) else None)
    inputs = _inputs(proto.graph)
    names = tuple(item.name for item in proto.graph.output)

    def attempt(branches: Branches) -> Program:
        emit = Emitter(Allowance(proto.ByteSize()))
        translator = Translator(emit, reader, versions, functions, proto.ir_version, branches)
        program = Program(class_name="__torch__.OnnxModel")
        graph = emit.builder.graph
        graph.add_input("self", program.self_type)
        given = {item.name: _parameter(item, emit) for item in inputs}
        outputs = translator.graph(proto.graph, given, {})
        graph.return_values(_returned(outputs, names, emit))
        program.methods["forward"] = graph
        return program

    def tried(program: Program) -> str:
        return trial(program, [_declared(item) for item in inputs]) if trial else ""

    program = _translated(attempt, tried)
    CommonSubexpressionElimination().run(program)
    DeadCodeElimination().run(program)
    program.number_nodes()
    declared = tuple(_declared(item) for item in inputs)
    program.metadata["onnx"] = {"inputs": [item.name for item in declared], "outputs": list(names)}
    return OnnxModel(program, declared, names)


def _translated(attempt: Callable[[Branches], Program], trial: Callable[[Program], str]) -> Program:
    """The program that keeps all branches, or else one in which branches that give tensors of different ranks are
    taken for granted: those of the example inputs, and the first ones before the others.

    So ``torch.onnx`` writes ``squeeze`` of a size that a call decides: the first branch squeezes. What comes after it
    is mostly for one of the two ranks.

    Raises:
        BundleError, UnsupportedError: that of the program with all branches.
    """
    waiting: list[dict[tuple[str, ...], bool]] = [{}]
    first: MoboptError | None = None
    found: Program | None = None
    for _ in range(_MOST_ATTEMPTS):
        branches = Branches(waiting.pop())
        try:
            program = attempt(branches)
        except (BundleError, UnsupportedError) as error:
            first = first or error
            if isinstance(error, UnsupportedError) and branches.undecided:
                key = branches.undecided[0]
                waiting += [{**branches.taken, key: outcome} for outcome in (False, True)]
        else:
            found = found or program
            ended = trial(program) if branches.errors else ""
            wrong = next((key for text, key in branches.errors.items() if text in ended), None)
            if wrong is None:
                return program
            waiting.append(_with_other_branches(branches.taken, wrong))
        if not waiting:
            break
    if found is not None:
        return found
    assert first is not None
    raise first


def _with_other_branches(taken: Mapping[tuple[str, ...], bool], wrong: tuple[str, ...]) -> dict[tuple[str, ...], bool]:
    """With the other branch of a node, and of those after it: layers are mostly alike."""
    keys = list(taken)
    place = keys.index(wrong)
    return {key: taken[key] != (number >= place) for number, key in enumerate(keys)}


def parse_onnx(file: Path) -> Any:
    """The message in a file.

    Raises:
        BundleError: it is damaged, or too large for a message.
    """
    if file.stat().st_size >= _MOST_BYTES:
        raise BundleError(
            "the file has over 2 GiB, more than a protobuf message may; keep weights in external data "
            "(onnx.save_model(..., save_as_external_data=True))"
        )
    try:
        return onnx.ModelProto.FromString(file.read_bytes())
    except DecodeError:
        raise BundleError(
            "the file is no ONNX model, or it is damaged or cut short; copy it again, or export it anew"
        ) from None


def _check_versions(versions: dict[str, int]) -> None:
    newest = onnx.defs.onnx_opset_version()
    version = versions.get("")
    if version is not None and not OLDEST_OPSET <= version <= newest:
        raise BundleError(
            f"the ONNX model is of opset {version}, and mobopt reads {OLDEST_OPSET} to {newest}; convert it with "
            "onnx.version_converter, or export it anew"
        )


def _inputs(graph: Any) -> list[Any]:
    """Inputs that a call gives: those that are initialisers too are constants."""
    held = {item.name for item in graph.initializer} | {item.values.name for item in graph.sparse_initializer}
    inputs = [item for item in graph.input if item.name not in held]
    names = [item.name for item in inputs]
    if len(names) > _MOST_INPUTS:
        raise BundleError(f"the ONNX model has {len(names)} inputs, more than the {_MOST_INPUTS} that mobopt reads")
    for name in names:
        if names.count(name) > 1 or not name:
            raise BundleError(
                f"the ONNX model has {names.count(name)} inputs named {name!r}; give each a name of its own"
            )
    listed = [item.name for item in graph.initializer]
    doubles = {name for name in listed if listed.count(name) > 1} if len(set(listed)) < len(listed) else set()
    if doubles:
        raise BundleError(
            f"the ONNX model has several initialisers named {min(doubles)!r}; give each a name of its own"
        )
    return inputs


def _parameter(item: Any, emit: Emitter) -> AnyOperand:
    """The operand of an input."""
    place = f"the input {item.name!r}"
    operand, kind = _operand_of(item.type, place)
    value = emit.builder.graph.add_input(item.name, kind)
    if isinstance(operand, Operand):
        operand.value = as_carried(value, operand, emit)
    elif operand is not None:
        operand.value = value
    return operand


def _operand_of(kind: Any, place: str) -> tuple[AnyOperand, Type]:
    dtype, sizes = type_of(kind, place)
    if dtype is None:
        raise BundleError(f"{place} has no type that mobopt knows; inputs are tensors, sequences and optionals of them")
    match kind.WhichOneof("value"):
        case "sequence_type":
            return SequenceOperand(dtype, None, None, sizes), ListType(TENSOR)
        case "optional_type":
            inner, inner_type = _operand_of(kind.optional_type.elem_type, place)
            if not isinstance(inner, (Operand, SequenceOperand)):
                raise BundleError(f"{place} is an optional of an optional")
            return OptionalOperand(Value("", TENSOR), inner), OptionalType(inner_type)
    bits = packed_bits(kind.tensor_type.elem_type) if kind.WhichOneof("value") == "tensor_type" else 0
    return Operand(dtype, sizes, bits=bits), TENSOR


def _returned(outputs: Sequence[AnyOperand], names: Sequence[str], emit: Emitter) -> Value:
    """What ``forward`` returns: the output, or a tuple of all."""
    values = []
    for operand, name in zip(outputs, names, strict=True):
        value = _output(operand, emit)
        if value.producer is not None and not value.is_constant:
            value.name = emit.builder.graph.unique_name(name)
        values.append(value)
    if len(values) == 1:
        return values[0]
    kinds = tuple(value.type for value in values)
    return emit.builder.node("prim::TupleConstruct", values, [TupleType(kinds)])[0]


def _output(operand: AnyOperand, emit: Emitter) -> Value:
    match operand:
        case Operand():
            result = operand.tensor(emit)
            if carrier(operand.dtype) != operand.dtype:
                result = emit("to.dtype", result, operand.dtype)
            return emit.value(result)
        case SequenceOperand():
            return emit.value(list_value(emit, operand))
        case OptionalOperand():
            return operand.value
    return emit.value(None)


def _declared(item: Any) -> DeclaredInput:
    kind = item.type
    dtype, _ = type_of(kind, item.name)
    sizes: tuple[int | str | None, ...] | None = None
    if kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.HasField("shape"):
        shape = kind.tensor_type.shape
        known = zip(shape.dim, declared_sizes(shape), strict=True)
        sizes = tuple(dim.dim_param or None if size is None else size for dim, size in known)
    return DeclaredInput(item.name, dtype or torch.float32, sizes)
