"""What an ONNX model says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mobopt.errors import BundleError
from mobopt.tools.model_description import ModelDescription


def describe_onnx(file: Path) -> ModelDescription:
    """Describe the model in a file.

    Raises:
        BundleError: it is damaged.
    """
    from mobopt.frontends.onnx.model import parse_onnx

    try:
        model = parse_onnx(file)
    except BundleError as error:
        raise BundleError(f"{file.name}: {error}") from None
    held = {item.name for item in model.graph.initializer}
    counts = Counter(_operators(model.graph.node))
    for function in model.functions:
        counts.update(_operators(function.node))
    return ModelDescription(
        f"ONNX, IR {model.ir_version}",
        f"{model.producer_name} {model.producer_version}".strip(),
        tuple(f"{item.domain or 'ai.onnx'} {item.version}" for item in model.opset_import),
        tuple(_text(item) for item in model.graph.input if item.name not in held),
        tuple(_text(item) for item in model.graph.output),
        dict(counts),
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
