"""What a bundle holds, as data: for ``mobopt inspect`` and for reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.container import BundleFile
from mobopt.bundle.model_file import ModelFile
from mobopt.bundle.open_file import open_model_file
from mobopt.bundle.reader import read_bundle
from mobopt.ir import Graph, Program
from mobopt.ir.arguments import argument_name
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import PackedContext


@dataclass(frozen=True)
class MethodInfo:
    """A method: its name and its signature in TorchScript's notation."""

    name: str
    schema: str


@dataclass(frozen=True)
class ContextInfo:
    """A packed context: where it is, and the weight that it holds."""

    name: str
    """Name of the attribute, or ``constant N`` of a method."""
    class_name: str
    weight_shape: tuple[int, ...]
    """Sizes of the first tensor of its state."""
    bytes: int
    """Size of all its tensors."""


@dataclass(frozen=True)
class RecordInfo:
    """A record of the archive and its size in bytes, unpacked and as stored."""

    name: str
    size: int
    stored_size: int


@dataclass(frozen=True)
class BundleInfo:
    """Everything that is told about a bundle.

    Attributes:
        file: its name.
        size: its size in bytes.
        kinds: ``torchscript`` and ``lite``, as far as it holds what that loader needs.
        loaders: the functions that open it, for a reader.
        archive_version: number in its version record.
        bytecode_version: version of its bytecode, None without.
        class_name: class of the module.
        methods: its methods.
        operators: how often each operator stands in the code.
        contexts: packed contexts.
        tensor_bytes: size of all tensors, each storage once.
        attributes: the plain attributes, such as ``requires_backend_transfers``.
        records: all records in the file's order.
        extra_files: sizes of the extra files by name.
    """

    file: str
    size: int
    kinds: tuple[str, ...]
    loaders: tuple[str, ...]
    archive_version: int
    bytecode_version: int | None
    class_name: str
    methods: tuple[MethodInfo, ...]
    operators: dict[str, int]
    contexts: tuple[ContextInfo, ...]
    tensor_bytes: int
    attributes: dict[str, Any]
    records: tuple[RecordInfo, ...]
    extra_files: dict[str, int] = field(default_factory=dict)


_LOADERS = {
    "torchscript": "torch.jit.load; Module.load on Android",
    "lite": "torch.jit.mobile._load_for_lite_interpreter; LiteModuleLoader.load on Android",
}


def describe_bundle(file: BundleFile) -> BundleInfo:
    """Describe a bundle.

    Args:
        file: a path, or an open binary file that can be read twice.

    Raises:
        BundleError: the file can't be read.
    """
    archive = open_model_file(file)
    if not isinstance(file, (str, os.PathLike)):
        file.seek(0)
    return describe_program(archive, read_bundle(file))


def describe_program(archive: ModelFile, program: Program) -> BundleInfo:
    """Describe a bundle that has been read.

    Args:
        archive: the file.
        program: what was read from it.
    """
    kinds = archive.kinds
    bytecode_version = program.metadata["bytecode_version"]
    return BundleInfo(
        file=archive.name,
        size=archive.size,
        kinds=kinds,
        loaders=tuple(_LOADERS[kind] for kind in kinds),
        archive_version=program.metadata["archive_version"],
        bytecode_version=bytecode_version,
        class_name=program.class_name,
        methods=tuple(MethodInfo(name, _schema(name, graph)) for name, graph in program.methods.items()),
        operators=count_operators(program),
        contexts=tuple(_contexts(program)),
        tensor_bytes=tensor_bytes(program),
        attributes={name: item.value for name, item in program.attributes.items() if _is_plain(item.value)},
        records=tuple(RecordInfo(item.name, item.size, item.stored_size) for item in archive.records.values()),
        extra_files={name: len(content) for name, content in program.metadata["extra_files"].items()},
    )


def count_operators(program: Program) -> dict[str, int]:
    """How often each operator stands in a program, by name with overload, sorted by name."""
    counts = Counter(node.qualified_op for graph in program.methods.values() for node in graph.walk())
    return dict(sorted(counts.items()))


def _schema(name: str, graph: Graph) -> str:
    arguments = ", ".join(f"{value.type} {argument_name(value.name)}" for value in graph.inputs[1:])
    return f"{name}({arguments}) -> {', '.join(str(value.type) for value in graph.outputs)}"


def _contexts(program: Program) -> Iterator[ContextInfo]:
    for name, item in program.attributes.items():
        if isinstance(item.value, PackedContext):
            yield _context(name, item.value)
    seen: dict[int, PackedContext] = {}
    for method, graph in program.methods.items():
        for node in graph.walk():
            for value in node.inputs:
                if value.is_constant and isinstance(value.constant, PackedContext) and id(value.constant) not in seen:
                    seen[id(value.constant)] = value.constant
                    yield _context(f"constant {len(seen) - 1} of {method}", value.constant)


def _context(name: str, context: PackedContext) -> ContextInfo:
    tensors = list(_tensors(context))
    shape = next((tuple(item.shape) for item in _tensors(getattr(context, "weight", tensors))), ())
    short = context.qualified_name.removeprefix("__torch__.torch.classes.")
    return ContextInfo(name, short, shape, sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def tensor_bytes(program: Program) -> int:
    """Size of all tensors of a program, each storage once."""
    values: list[Any] = [item.value for item in program.attributes.values()]
    for graph in program.methods.values():
        values += [value.constant for node in graph.walk() for value in node.inputs if value.is_constant]
    storages = {}
    for tensor in _tensors(values):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor inside a value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, PackedContext):
        yield from _tensors(value.state())
    elif isinstance(value, AffineTensor):
        yield from (value.integers, value.scales, value.zero_points)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
