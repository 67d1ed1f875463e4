"""From a file of a model to a bundle for mobile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mobopt.bundle import write_lite, write_torchscript
from mobopt.errors import InputError, MoboptError
from mobopt.files import check_writable
from mobopt.frontends.open_source import source_of
from mobopt.frontends.quantized_source import source_for
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.optimizer import checked_calibration, optimize
from mobopt.options import Settings
from mobopt.passes.expand_quantized import expansion_remark
from mobopt.passes.manager import PassRun
from mobopt.passes.note_kinds import PLACES_DIFFER, QUANTIZED, READS_UNWRITTEN, RUNS_ON_CPU, WITH_ITS_OPERANDS
from mobopt.passes.notes import Note
from mobopt.passes.pipelines import PassPipeline
from mobopt.runtimes.bounds import DeclaredBounds
from mobopt.samples.agreement import Agreement, agreement_of
from mobopt.samples.example_inputs import ChosenInputs, ExampleInputs, choose_inputs
from mobopt.samples.unknown_sizes import by_size_text, unknown_text
from mobopt.tools.graph_dump import GraphDump
from mobopt.tools.lacks import Lack, find_lacks

DEFAULT_BYTECODE_VERSION = 8
_TORCHSCRIPT, _LITE = ".pt", ".ptl"
_LACKS_SHOWN = 20
_REMEDY = "; give inputs, to other methods with --input METHOD:FILE"


@dataclass(frozen=True)
class Conversion:
    """What a conversion did."""

    output: Path
    size: int
    """Of the file, in bytes."""
    runs: tuple[PassRun, ...]
    operators_before: Counter[str]
    operators_after: Counter[str]
    inputs: str
    """The inputs that the result was compared on, in words."""
    relative_difference: float | None
    """On the inputs, of the output's scale, before weights are rounded; None if it was not compared."""
    rounding_difference: float | None
    """The same with rounded weights; None if they are not."""
    lacks: tuple[Lack, ...]
    """What the target lacks; empty unless the file was written by force."""
    extra_files: tuple[str, ...]
    """Names of extra files of the source, which the result has too."""
    is_ill_conditioned: bool
    """Whether the difference is large because single precision is: float32's roundings make as large ones."""
    unknown: str
    """What no example tells of sizes, in words; empty if nothing is unknown."""
    by_size: str
    """What runs on the CPU since inputs may have several sizes, in words; empty if nothing does."""
    remark: str
    """What became of quantised layers, in words; empty if there are none."""
    seconds: float

    @property
    def notes(self) -> tuple[Note, ...]:
        """What all passes said, in order."""
        return tuple(note for run in self.runs for note in run.result.notes)

    @property
    def on_cpu(self) -> tuple[Note, ...]:
        """Nodes that run on the CPU of the device, and why."""
        return tuple(note for note in self.notes if note.kind is RUNS_ON_CPU)

    @property
    def beside(self) -> int:
        """How many light nodes stay on the CPU because their operands were made there."""
        return sum(note.kind is WITH_ITS_OPERANDS for note in self.notes)

    @property
    def fixed(self) -> tuple[Note, ...]:
        """Rewrites that are right for inputs of the example's sizes only."""
        return tuple(note for note in self.notes if note.parameters.get("fixes_sizes"))

    @property
    def quantized(self) -> tuple[Note, ...]:
        """Layers whose weights were rounded."""
        return tuple(note for note in self.notes if note.kind is QUANTIZED)

    @property
    def unwritten(self) -> tuple[Note, ...]:
        """Convolutions that read what lies in memory beyond the last channel of an input."""
        return tuple(note for note in self.notes if note.kind is READS_UNWRITTEN)

    @property
    def misplaced(self) -> tuple[Note, ...]:
        """What depends on where elements lie in memory, which may be elsewhere on the phone."""
        return tuple(note for note in self.notes if note.kind is PLACES_DIFFER)


class ConversionRefusedError(MoboptError):
    """The conversion ran, and its result is not to be trusted, so nothing was written.

    Attributes:
        lacks: what the target lacks or computes wrongly, if that is why.
    """

    def __init__(self, message: str, lacks: Sequence[Lack] = ()) -> None:
        super().__init__(message)
        self.lacks = tuple(lacks)


def convert_file(
    source: Path | Source,
    output: Path,
    settings: Settings,
    *,
    preserved_methods: Sequence[str] = (),
    bytecode_version: int = DEFAULT_BYTECODE_VERSION,
    example_inputs: ExampleInputs | None = None,
    bounds: DeclaredBounds | None = None,
    calibration_inputs: Sequence[Sequence[Any]] = (),
    passes: PassPipeline | None = None,
    dump_ir: Path | None = None,
    force: bool = False,
    show: Callable[[str], None] = lambda step: None,
) -> Conversion:
    """Optimise a scripted or traced model, compare it with the original, and write it.

    Args:
        source: a file of ``torch.jit.save`` or ``torch.export.save``, or a model that is open already.
        output: the bundle; its ending chooses the form: ``.ptl`` (lite interpreter) or ``.pt`` (TorchScript).
        settings: backend, runtime and so on.
        preserved_methods: names of methods and attributes to keep beside ``forward``.
        bytecode_version: of a lite bundle, 4 to 8.
        example_inputs: what to compare on, of ``forward`` or of several methods by name; without them, bundled inputs,
            for ``forward`` also inputs of shapes traced or declared, or guessed ones.
        bounds: the sizes that inputs may have, for all of which the result must be right; see ``optimize_for_mobile``.
        calibration_inputs: arguments of further calls, to learn how large numbers get; see ``optimize_for_mobile``.
        passes: the passes to run, in place of those that the settings choose.
        dump_ir: a folder for the text of the model, and of what each pass that changes something leaves; it is made
            if it is missing.
        force: write even if the target lacks something, or the result differs, or nothing could be compared.
        show: is told each step.

    Raises:
        MoboptError: the source, an option or the output path can't be used.
        ConversionRefusedError: the target lacks something, or the result differs from the source, or there are no
            inputs to compare on; nothing was written.
    """
    started = time.perf_counter()
    _check_ending(output)
    check_writable(output, [source] if isinstance(source, Path) else [])
    show(f"reading {source.name}")
    model = source_for(source_of(source, preserved_methods, example_inputs), settings.backend, settings.is_for_phones)
    show("running the passes")
    dump = None if dump_ir is None else GraphDump(dump_ir, model.program)
    calibration = checked_calibration(calibration_inputs, settings)
    optimized = optimize(model, settings, example_inputs, passes, dump, bounds, calibration)
    lacks = find_lacks(optimized.program, settings, optimized.inputs.examples)
    inputs = optimized.inputs if optimized.inputs.by_method else choose_inputs(model)
    show("comparing with the original")
    agreement = agreement_of(model, optimized.unrounded(), inputs) if inputs.by_method else None
    is_rounded = optimized.is_rounded and agreement is not None
    rounding = agreement_of(model, optimized.program, inputs).relative if is_rounded else None
    if not force:
        _refuse(settings, lacks, inputs, agreement)
    show(f"writing {output.name}")
    kept = model.extra_files()
    if output.suffix == _LITE:
        write_lite(optimized.program, output, bytecode_version=bytecode_version, extra_files=kept)
    else:
        write_torchscript(optimized.program, output, extra_files=kept)
    return Conversion(
        output,
        output.stat().st_size,
        optimized.runs,
        count_operators(optimized.original),
        count_operators(optimized.program),
        str(inputs),
        None if agreement is None else agreement.relative,
        rounding,
        tuple(lacks),
        tuple(kept),
        agreement is not None and agreement.is_rounding,
        unknown_text(optimized.original, optimized.notes, optimized.inputs, _REMEDY) if settings.asks_for_sizes else "",
        by_size_text(optimized.program, optimized.notes),
        expansion_remark(optimized.original),
        time.perf_counter() - started,
    )


def _refuse(settings: Settings, lacks: Sequence[Lack], inputs: ChosenInputs, agreement: Agreement | None) -> None:
    """Raise what speaks against writing the file."""
    if lacks:
        lines = "".join(f"\n  {lack}" for lack in lacks[:_LACKS_SHOWN])
        if len(lacks) > _LACKS_SHOWN:
            lines += f"\n  and {len(lacks) - _LACKS_SHOWN} more; mobopt audit lists them all"
        raise ConversionRefusedError(
            f"PyTorch {settings.runtime} lacks or computes wrongly, on {settings.backend}:{lines}\n"
            "Nothing was written. Try another --runtime or --legalize full, change the model, or write it all the "
            "same with --force",
            lacks,
        )
    if agreement is None:
        raise ConversionRefusedError(
            "the result could not be compared with the model, since no inputs that the model takes are known, so "
            "nothing was written. Give example inputs with --input x.npy or --random 1,3,224,224, or write it "
            "without a comparison with --force"
        )
    if not agreement.agrees:
        raise ConversionRefusedError(
            f"the result differs from the model by {agreement.relative:.1e} of the output's scale, on {inputs}, so "
            "nothing was written. Leave optimisations out with --blocklist, one by one, to find the guilty one, or "
            "write it all the same with --force"
        )


def count_operators(program: Program) -> Counter[str]:
    """How often each operator stands in a Program, constants and prim:: apart."""
    return Counter(
        node.qualified_op
        for graph in program.methods.values()
        for node in graph.walk()
        if not node.op.startswith("prim::")
    )


def _check_ending(output: Path) -> None:
    if output.suffix not in (_TORCHSCRIPT, _LITE):
        raise InputError(
            f"the output {output} ends in {output.suffix or 'nothing'!r}; name it .ptl for the lite interpreter "
            "or .pt for TorchScript"
        )
