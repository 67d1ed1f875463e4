"""From a TorchScript file to a bundle for mobile."""

from __future__ import annotations

import time
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mobopt.bundle import write_lite, write_torchscript
from mobopt.errors import BundleError, InputError
from mobopt.ir import Program
from mobopt.optimizer import check_agreement, optimize
from mobopt.options import DEFAULT_RUNTIME, parse_backend, parse_optimizations, parse_runtime
from mobopt.passes.manager import Note, PassRun
from mobopt.tools.files import check_writable

DEFAULT_BYTECODE_VERSION = 8
_TORCHSCRIPT, _LITE = ".pt", ".ptl"


@dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    output: Path
    size: int
    """Of the file, in bytes."""
    runs: tuple[PassRun, ...]
    operators_before: Counter[str]
    operators_after: Counter[str]
    relative_difference: float | None
    """On the example inputs, of the output's scale; None without such inputs."""
    seconds: float

    @property
    def notes(self) -> tuple[Note, ...]:
        """What all passes said, in order."""
        return tuple(note for run in self.runs for note in run.result.notes)


def convert_file(
    source: Path,
    output: Path,
    *,
    backend: str = "vulkan",
    blocklist: Sequence[str] = (),
    preserved_methods: Sequence[str] = (),
    runtime: str = DEFAULT_RUNTIME,
    bytecode_version: int = DEFAULT_BYTECODE_VERSION,
    example_inputs: Sequence[torch.Tensor] | None = None,
    show: Callable[[str], None] = lambda step: None,
) -> Conversion:
    """Optimise a scripted or traced model and write it.

    Args:
        source: a file of ``torch.jit.save``.
        output: the bundle; its ending chooses the form: ``.ptl`` (lite interpreter) or ``.pt`` (TorchScript).
        backend: ``vulkan`` or ``cpu``.
        blocklist: names of optimisations to leave out.
        preserved_methods: names of methods and attributes to keep beside ``forward``.
        runtime: the oldest PyTorch Mobile release that must read the bundle.
        bytecode_version: of a lite bundle, 4 to 8.
        example_inputs: if given, the result is compared with the source on them before anything is written.
        show: is told each step.

    Raises:
        MoboptError: the source, an option or the output path can't be used.
        PassError: the result differs from the source on the example inputs.
    """
    started = time.perf_counter()
    backend, blocked, runtime = parse_backend(backend), parse_optimizations(blocklist), parse_runtime(runtime)
    _check_ending(output)
    check_writable(output)
    show(f"reading {source.name}")
    module = read_script_module(source)
    _check_preserved(module, preserved_methods)
    show("running the passes")
    optimized = optimize(module, backend, blocked, preserved_methods, runtime)
    difference = None
    if example_inputs is not None:
        show("comparing with the original")
        difference = check_agreement(module, optimized.program, example_inputs)
    show(f"writing {output.name}")
    if output.suffix == _LITE:
        write_lite(optimized.program, output, bytecode_version=bytecode_version)
    else:
        write_torchscript(optimized.program, output)
    return Conversion(
        output,
        output.stat().st_size,
        optimized.runs,
        count_operators(optimized.original),
        count_operators(optimized.program),
        difference,
        time.perf_counter() - started,
    )


def read_script_module(path: Path) -> torch.jit.ScriptModule:
    """Load a file of ``torch.jit.save``.

    Raises:
        BundleError: it is not one, is damaged, or is a Vulkan bundle.
    """
    _check_archive(path)
    try:
        module: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "vulkan" in str(error):
            raise BundleError(f"{path} is optimised already; convert the model that it was made from") from None
        reason = next((line for line in str(error).splitlines() if line.strip()), "unknown reason").rstrip(": ")
        raise BundleError(f"{path} can't be loaded as TorchScript ({reason}); save it with torch.jit.save") from None
    return module


def count_operators(program: Program) -> Counter[str]:
    """How often each operator stands in a Program, constants and prim:: apart."""
    return Counter(
        node.qualified_op
        for graph in program.methods.values()
        for node in graph.walk()
        if not node.op.startswith("prim::")
    )


def _check_archive(path: Path) -> None:
    """Refuse what torch would meet with an obscure message."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise BundleError(
            f"{path} is not a readable zip archive ({error}); convert takes a model saved with torch.jit.save"
        ) from None
    if not any(name.startswith("code/") for name in names):
        raise BundleError(
            f"{path} is {_kind(names)}, without TorchScript code; script or trace the model and save it with "
            "torch.jit.save"
        )


def _kind(names: Collection[str]) -> str:
    if "bytecode.pkl" in names:
        return "a lite bundle"
    return "a pickled checkpoint" if "data.pkl" in names else "no model"


def _check_ending(output: Path) -> None:
    if output.suffix not in (_TORCHSCRIPT, _LITE):
        raise InputError(
            f"the output {output} ends in {output.suffix or 'nothing'!r}; name it .ptl for the lite interpreter "
            "or .pt for TorchScript"
        )


def _check_preserved(module: torch.jit.ScriptModule, names: Sequence[str]) -> None:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise InputError(f"the model has no method or attribute {', '.join(missing)}; leave it out of --preserve")
