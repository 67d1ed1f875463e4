"""What a program of torch.export says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mobopt.frontends.exported.archive import ExportedArchive
from mobopt.frontends.exported.enums import dtype_of
from mobopt.frontends.exported.sizes import Sizes
from mobopt.ir.dimensions import Expression
from mobopt.ir.guards import LARGEST_SIZE
from mobopt.tools.model_description import ModelDescription

_USER_INPUTS, _USER_OUTPUT = ("user_input", "constant_input"), "user_output"


def describe_exported(file: Path) -> ModelDescription:
    """Describe the program in a file.

    Raises:
        BundleError: it is damaged, or of an older layout.
    """
    archive = ExportedArchive(file)
    try:
        return _described(archive)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise archive.error(f"has a damaged model record: {type(error).__name__}: {error}") from None


def _described(archive: ExportedArchive) -> ModelDescription:
    model = archive.model
    graph, signature = model["graph_module"]["graph"], model["graph_module"]["signature"]
    inputs = [next(iter(item.items())) for item in signature["input_specs"]]
    outputs = [next(iter(item.items())) for item in signature["output_specs"]]
    texts = _Texts(graph, Sizes(model.get("range_constraints") or {}))
    version = model["schema_version"]
    return ModelDescription(
        f"torch.export, schema {version['major']}.{version['minor']}",
        f"PyTorch {model.get('torch_version') or ''}".strip(),
        tuple(f"{name} {number}" for name, number in model["opset_version"].items()),
        tuple(texts.of_input(kind, content) for kind, content in inputs if kind in _USER_INPUTS),
        tuple(texts.of_value(content["arg"]) for kind, content in outputs if kind == _USER_OUTPUT),
        dict(Counter(_operators(graph))),
    )


def _operators(graph: Mapping[str, Any]) -> Iterator[str]:
    """Names of the operators of a graph, and of those nested in it."""
    left = [graph]
    while left:
        for node in left.pop()["nodes"]:
            yield str(node["target"]).removeprefix("torch.ops.")
            left += [item["arg"]["as_graph"]["graph"] for item in node["inputs"] if "as_graph" in item["arg"]]


class _Texts:
    """Names and types of values: ``x: float32[2, 3, s53 in 5..99]``."""

    def __init__(self, graph: Mapping[str, Any], sizes: Sizes) -> None:
        self._graph = graph
        self._sizes = sizes

    def of_input(self, kind: str, content: Mapping[str, Any]) -> str:
        """An input, or the value that one was fixed to."""
        if kind == "constant_input":
            ((tag, value),) = content["value"].items()
            return f"{content['name']}: always {None if tag == 'as_none' else value!r}"
        return self.of_value(content["arg"])

    def of_value(self, argument: Mapping[str, Any]) -> str:
        """A tensor with its sizes; the kind of anything else."""
        ((tag, content),) = argument.items()
        if tag != "as_tensor":
            name = next(iter(content.values())) if isinstance(content, dict) else content
            return f"{name}: {tag.removeprefix('as_')}"
        meta = self._graph["tensor_values"][content["name"]]
        dims = [self._size(size, content["name"]) for size in meta["sizes"]]
        dtype = str(dtype_of(meta["dtype"])).removeprefix("torch.")
        return f"{content['name']}: {dtype}[{', '.join(dims)}]"

    def _size(self, size: Mapping[str, Any], name: str) -> str:
        found = self._sizes.dimension(size, name)
        known = self._sizes.guards.symbols.get(str(found)) if isinstance(found, Expression) else None
        if known is None:
            return str(found)
        if known.upper == LARGEST_SIZE:
            return f"{found}" if known.lower == 0 else f"{found} from {known.lower}"
        return f"{found} in {known.lower}..{known.upper}"
