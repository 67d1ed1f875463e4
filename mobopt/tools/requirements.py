"""What a bundle needs: the releases of PyTorch whose runtime reads it, and why.

Sources: ``caffe2/serialize/versions.h`` and ``torch/csrc/jit/mobile/import.cpp`` for what a release reads,
``aten/src/ATen/native/vulkan/ops/Register.cpp``, ``aten/src/ATen/native/metal/MetalPrepackOpRegister.cpp`` and
``aten/src/ATen/native/xnnpack/RegisterOpContextClass.cpp`` for what it registers; the rows of
:mod:`mobopt.ops.targets` for its other operators. Releases before 1.9 are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import BundleInfo, read_bundle
from mobopt.bundle.info import describe_program
from mobopt.bundle.open_file import open_model_file
from mobopt.bundle.unpickler import CUSTOM_CLASSES
from mobopt.ir import Node, Program
from mobopt.ops.contexts import GruPackedContext, PackedContext
from mobopt.ops.former import LAST_RELEASE
from mobopt.ops.quantized import DEQUANTIZE
from mobopt.ops.quantized_contexts import QUANTIZED_CLASSES, QuantizedLayer
from mobopt.ops.targets import RELEASES, Target, judge, rows_for
from mobopt.ops.targets.table import release_key
from mobopt.stand_in import is_in_torch

OLDEST = "1.9"
"""The oldest release that is looked at."""

ARCHIVE_READ_SINCE = {
    1: "1.9",
    2: "1.9",
    3: "1.9",
    4: "1.9",
    5: "1.9",
    6: "1.10",
    7: "1.11",
    8: "1.11",
    9: "1.11",
    10: "1.12",
}
"""The oldest release that reads an archive of a version."""

BYTECODE_READ = {
    3: ("1.9", "1.11"),
    4: ("1.9", ""),
    5: ("1.9", ""),
    6: ("1.10", ""),
    7: ("1.10", ""),
    8: ("1.11", ""),
    9: ("1.12", ""),
}
"""Oldest and newest release that read a bytecode version; empty: up to now."""

_VULKAN = "the Vulkan backend"
_METAL = "the Metal backend"
_XNNPACK = "XNNPACK, which builds have by default until 2.12"
_QUANTIZED = "kernels of quantised layers, QNNPACK or FBGEMM"

REGISTERED: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(
        (
            *(
                f"vulkan_prepack::{verb}_{kind}_context"
                for verb in ("create", "run")
                for kind in ("conv2d", "tconv2d", "linear", "gru", "lstm")
            ),
        ),
        ("1.13", "", _VULKAN),
    ),
    **dict.fromkeys(
        ("vulkan_prepack::conv2d_clamp_prepack", "vulkan_prepack::conv2d_clamp_run"), (OLDEST, "", _VULKAN)
    ),
    **dict.fromkeys(
        (
            f"vulkan_prepack::{kind}_{step}"
            for kind in ("conv2d_transpose_clamp", "linear", "gru")
            for step in ("prepack", "run")
        ),
        (OLDEST, "1.12", _VULKAN),
    ),
    **dict.fromkeys((f"vulkan_prepack::{verb}_batchnorm_context" for verb in ("create", "run")), ("2.0", "", _VULKAN)),
    **dict.fromkeys((f"vulkan_prepack::{verb}_qconv2d_context" for verb in ("create", "run")), ("2.1", "", _VULKAN)),
    **dict.fromkeys((f"vulkan_quantized::{name}" for name in ("add", "sub", "mul", "div")), ("2.1", "", _VULKAN)),
    **dict.fromkeys((f"vulkan_prepack::{verb}_layernorm_context" for verb in ("create", "run")), ("2.2", "", _VULKAN)),
    "vulkan_prepack::run_qlinear_context": ("2.2", "", _VULKAN),
    **dict.fromkeys((f"vulkan_prepack::{verb}_conv1d_context" for verb in ("create", "run")), ("2.6", "", _VULKAN)),
    "vulkan_prepack::create_qtconv2d_context": ("2.6", "", _VULKAN),
    **dict.fromkeys(
        (f"metal_prepack::{kind}_{step}" for kind in ("conv2d", "linear") for step in ("prepack", "run")),
        (OLDEST, "", _METAL),
    ),
    "metal::copy_to_host": (OLDEST, "", _METAL),
    **dict.fromkeys(
        (
            f"prepacked::{kind}_clamp_{step}"
            for kind in ("conv2d", "conv2d_transpose", "linear")
            for step in ("prepack", "run")
        ),
        (OLDEST, "", _XNNPACK),
    ),
}
"""Oldest and newest release that register an operator of a backend (empty: up to now), and what it belongs to."""

CLASSES: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(
        (f"vulkan.{name}PackedContext" for name in ("Conv2d", "Linear", "Gru", "Lstm")), ("1.13", "", _VULKAN)
    ),
    "vulkan.Conv2dOpContext": (OLDEST, "", _VULKAN),
    **dict.fromkeys(
        (f"vulkan.{name}OpContext" for name in ("TransposeConv2d", "Linear", "Gru")), (OLDEST, "1.12", _VULKAN)
    ),
    "vulkan.BatchNormPackedContext": ("2.0", "", _VULKAN),
    "vulkan.LayernormPackedContext": ("2.2", "", _VULKAN),
    "vulkan.Conv1dPackedContext": ("2.6", "", _VULKAN),
    **dict.fromkeys((f"metal.{name}OpContext" for name in ("Conv2d", "Linear")), (OLDEST, "", _METAL)),
    **dict.fromkeys(
        (f"xnnpack.{name}OpContext" for name in ("Conv2d", "TransposeConv2d", "Linear")), (OLDEST, "", _XNNPACK)
    ),
    **dict.fromkeys((name.removeprefix(CUSTOM_CLASSES) for name in QUANTIZED_CLASSES), (OLDEST, "", _QUANTIZED)),
}
"""The same for classes of packed weights, by name below ``__torch__.torch.classes``."""

_BACKENDS = (("vulkan", _VULKAN), ("metal", _METAL), ("xnnpack", _XNNPACK))


@dataclass(frozen=True)
class Need:
    """One thing that a bundle needs.

    Attributes:
        what: an operator, a class, or a version.
        since: the oldest release that has it; None if no release does.
        until: the newest release that has it; empty if it is still there.
        why: what it belongs to, for a reader.
    """

    what: str
    since: str | None
    until: str
    why: str

    def __str__(self) -> str:
        if self.since is None:
            return f"{self.what}: no release ({self.why})"
        ends = f" to {self.until}" if self.until else ""
        return f"{self.what}: PyTorch {self.since}{ends} ({self.why})"


@dataclass(frozen=True)
class Needs:
    """What a bundle needs of a runtime.

    Attributes:
        oldest: the oldest release of PyTorch whose runtime, built with the backend, reads it; None if none does.
        newest: the newest one; empty if there is no end.
        decisive: those needs that decide ``oldest`` and ``newest``.
        needs: all of them.
        loaders: for each loader that finds its records, the oldest release whose loader opens the file.
        backend: ``vulkan``, ``metal``, ``xnnpack`` or ``cpu``.
        transfers: which of ``to the device`` and ``to the CPU`` the graph does itself.
        opens_here: whether the installed torch opens it.
        notes: what else a caller must know.
    """

    oldest: str | None
    newest: str
    decisive: tuple[Need, ...]
    needs: tuple[Need, ...]
    loaders: dict[str, str | None]
    backend: str
    transfers: tuple[str, ...]
    opens_here: bool
    notes: tuple[str, ...]


def inspect_bundle(path: Path) -> tuple[BundleInfo, Needs]:
    """What a bundle holds, and what it needs.

    Raises:
        BundleError: the file can't be read.
    """
    archive, program = open_model_file(path), read_bundle(path)
    info = describe_program(archive, program)
    return info, needs_of(program, info.kinds)


def needs_of(program: Program, kinds: Iterable[str]) -> Needs:
    """What a Program that was read from a file needs.

    Args:
        program: its ``metadata`` says the versions.
        kinds: which forms the file holds: ``torchscript``, ``lite``.
    """
    kinds = tuple(kinds)
    archive = _archive_need(program.metadata["archive_version"])
    content = [archive, *_operator_needs(program), *_class_needs(program), *_state_needs(program)]
    bytecode = program.metadata.get("bytecode_version")
    lite = [] if bytecode is None else [_bytecode_need(bytecode)]
    every = (*content, *(lite if "lite" in kinds else ()))
    oldest, newest = _oldest(every), _newest(every)
    if oldest and newest and release_key(oldest) > release_key(newest):
        oldest = None
    decisive = tuple(
        need for need in every if need.since is None or (need.since == oldest and oldest != OLDEST) or need.until
    )
    per_loader = {kind: _oldest([*content, *lite] if kind == "lite" else content) for kind in kinds}
    backend = next((name for name, why in _BACKENDS if any(need.why == why for need in every)), "cpu")
    transfers = _transfers(program)
    if backend == "cpu" and "to the device" in transfers:
        backend = "vulkan"
    opens_here = _opens_here(program)
    notes = (*_notes(program, backend, transfers), *_note_of_age(oldest))
    return Needs(oldest, newest, decisive, every, per_loader, backend, transfers, opens_here, notes)


def _oldest(needs: Iterable[Need]) -> str | None:
    releases = [need.since for need in needs]
    known = [release for release in releases if release is not None]
    return None if len(known) < len(releases) else max(known, key=release_key, default=OLDEST)


def _newest(needs: Iterable[Need]) -> str:
    return min((need.until for need in needs if need.until), key=release_key, default="")


def _archive_need(version: int) -> Need:
    return Need(f"archive version {version}", ARCHIVE_READ_SINCE[version], "", "the file format")


def _bytecode_need(version: int) -> Need:
    return Need(f"bytecode version {version}", *BYTECODE_READ[version], "the lite interpreter's format")


def _nodes(program: Program) -> Iterator[Node]:
    for graph in program.methods.values():
        yield from graph.walk()


def _operator_needs(program: Program) -> Iterator[Need]:
    """Needs of operators: each backend's, and of PyTorch's own those that some release lacks."""
    found: dict[str, Need] = {}
    for node in _nodes(program):
        if node.op in REGISTERED:
            found[node.op] = Need(node.op, *REGISTERED[node.op])
        elif node.qualified_op in rows_for("cpu"):
            need = _cpu_need(node, program)
            known = found.get(node.qualified_op)
            if need is not None and (known is None or _is_later(need, known)):
                found[node.qualified_op] = need
        elif node.qualified_op == DEQUANTIZE:
            found[node.op] = Need(node.op, None, "", "weights of few bits are for mobopt's own runtime")
        elif not node.op.startswith(("prim::", "aten::", "quantized::", "metal::")):
            found[node.op] = Need(node.op, None, "", "no release of PyTorch registers it; the app must bring it")
    for name in program.metadata.get("former_operators", ()):
        found[name] = Need(name, OLDEST, LAST_RELEASE, "later releases have dropped the operator")
    yield from (found[name] for name in sorted(found))


def _is_later(need: Need, other: Need) -> bool:
    if other.since is None or need.since is None:
        return other.since is not None
    return release_key(need.since) > release_key(other.since)


def _cpu_need(node: Node, program: Program) -> Need | None:
    """The oldest release whose CPU build has an operator, if that is not the oldest of all."""
    why, came = "", ""
    for release in RELEASES:
        finding = judge(node, Target("cpu", release), attributes=program.attributes)
        if finding.is_good:
            return Need(node.qualified_op, release, "", why) if why else None
        why, came = finding.why, finding.row.came if finding.row is not None else ""
    return Need(node.qualified_op, came or None, "", why)


def _contexts(program: Program) -> Iterator[PackedContext]:
    values: list[Any] = [item.value for item in program.attributes.values()]
    values += [value.constant for node in _nodes(program) for value in node.inputs if value.is_constant]
    yield from (value for value in values if isinstance(value, PackedContext))


def _class_needs(program: Program) -> Iterator[Need]:
    for name in sorted({context.qualified_name.removeprefix(CUSTOM_CLASSES) for context in _contexts(program)}):
        yield Need(f"class {name}", *CLASSES[name])


def _state_needs(program: Program) -> Iterator[Need]:
    """Packed states that no release can load: genuine builds write each gate of a recurrent layer apart."""
    for context in _contexts(program):
        if isinstance(context, GruPackedContext) and len(context.params) != 4 * context.num_layers:
            kind = context.qualified_name.rpartition(".")[2]
            why = f"{len(context.params)} weights of {context.num_layers} layers; its loader takes 4 for each layer"
            yield Need(f"state of {kind}", None, "", why)
            return


def _transfers(program: Program) -> tuple[str, ...]:
    """Moves between devices that the graphs do themselves."""
    found: set[str] = set()
    for node in _nodes(program):
        devices = [value.constant for value in node.inputs if value.is_constant]
        kinds = {device.type for device in devices if isinstance(device, torch.device)}
        if node.op == "metal::copy_to_host" or (node.op == "aten::to" and "cpu" in kinds):
            found.add("to the CPU")
        elif node.op == "aten::to" and kinds & {"vulkan", "metal"}:
            found.add("to the device")
    return tuple(sorted(found, reverse=True))


def _opens_here(program: Program) -> bool:
    """Whether the installed torch has every operator and class."""
    has_others = any(not isinstance(context, QuantizedLayer) for context in _contexts(program))
    names = {node.op for node in _nodes(program)} | set(program.metadata.get("former_operators", ()))
    return all(map(is_in_torch, names)) and not has_others


def _notes(program: Program, backend: str, transfers: tuple[str, ...]) -> Iterator[str]:
    if backend == "vulkan" and "to the device" not in transfers:
        yield (
            "the graph does not move its inputs to the GPU: on Android, Java does so up to 2.0 only; from 2.1 on the "
            "caller must give Vulkan tensors"
        )
    if backend == "metal" and "to the CPU" not in transfers:
        yield "the caller must give Metal tensors and move the result to the CPU, as iOS apps do"
    flag = program.attributes.get("requires_backend_transfers")
    if flag is not None and flag.value is True and transfers:
        yield "requires_backend_transfers is True though the graph has transfers: Java of 2.0 moves inputs once more"


def _note_of_age(oldest: str | None) -> Iterator[str]:
    if oldest is not None and release_key(oldest) < release_key(RELEASES[0]):
        yield (
            f"PyTorch {oldest} is what the file's form and the operators of its backend need; which of PyTorch's own "
            f"operators releases before {RELEASES[0]} lack is not known here"
        )
