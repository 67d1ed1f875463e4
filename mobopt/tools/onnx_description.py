"""What is in an ONNX model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mobopt.errors import BundleError, MoboptError
from mobopt.frontends.open_source import is_onnx, source_of


@dataclass(frozen=True)
class OnnxInfo:
    """What an ONNX model says of itself, and what becomes of it.

    Attributes:
        size: of the file, in bytes; external data lies in others.
        ir_version: of the format.
        producer: the program that wrote it, with its version.
        opsets: ``ai.onnx 17`` and so on.
        inputs: ``x: float[batch, 3]``; those that are initialisers too are left out.
        outputs: the same.
        operators: how often each stands in it, also in functions and nested graphs.
        nodes: of the translation; zero if there is none.
        refusal: why it is not translated; empty if it is.
    """

    size: int
    ir_version: int
    producer: str
    opsets: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: dict[str, int]
    nodes: int
    refusal: str


def describe_onnx(file: Path) -> OnnxInfo | None:
    """What is in a file; None if it is no ONNX model.

    Raises:
        BundleError: it is damaged.
    """
    if not is_onnx(file):
        return None
    from mobopt.frontends.onnx.model import parse_onnx

    try:
        model = parse_onnx(file)
    except BundleError as error:
        raise BundleError(f"{file.name}: {error}") from None
    nodes, refusal = 0, ""
    try:
        nodes = sum(1 for graph in source_of(file).program.methods.values() for _ in graph.walk())
    except MoboptError as error:
        refusal = str(error)
    held = {item.name for item in model.graph.initializer}
    counts = Counter(_operators(model.graph.node))
    for function in model.functions:
        counts.update(_operators(function.node))
    return OnnxInfo(
        file.stat().st_size,
        model.ir_version,
        f"{model.producer_name} {model.producer_version}".strip(),
        tuple(f"{item.domain or 'ai.onnx'} {item.version}" for item in model.opset_import),
        tuple(_text(item) for item in model.graph.input if item.name not in held),
        tuple(_text(item) for item in model.graph.output),
        dict(counts),
        nodes,
        refusal,
    )


def _operators(nodes: Sequence[Any]) -> Iterator[str]:
    """Names of the operators of nodes, and of what is nested in them."""
    left = [nodes]
    while left:
        for node in left.pop():
            yield f"{node.domain or 'ai.onnx'}::{node.op_type}"
            left += [item.g.node for item in node.attribute if item.HasField("g")]


def _text(item: Any) -> str:
    """A value's name and type."""
    from mobopt.frontends.onnx.elements import type_name
    from mobopt.frontends.onnx.translator import declared_sizes

    kind = item.type.WhichOneof("value") or "no type"
    if kind != "tensor_type":
        return f"{item.name}: {kind.removesuffix('_type')}"
    tensor = item.type.tensor_type
    if not tensor.HasField("shape"):
        return f"{item.name}: {type_name(tensor.elem_type)}"
    known = zip(tensor.shape.dim, declared_sizes(tensor.shape), strict=True)
    sizes = [dim.dim_param or "?" if size is None else str(size) for dim, size in known]
    return f"{item.name}: {type_name(tensor.elem_type)}[{', '.join(sizes)}]"
