"""From a model, or a file that only PyTorch Mobile opens, to a file of a format that lives on."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mobopt.errors import InputError, MoboptError
from mobopt.exporters.exported_program import Sizes
from mobopt.exporters.formats import target_of
from mobopt.exporters.plain import plain_model
from mobopt.exporters.targets import DEFAULT_DELEGATE, DEFAULT_OPSET, NotRunError, Order, Written
from mobopt.files import check_writable, whole_file
from mobopt.frontends.open_source import whole_source_of
from mobopt.frontends.source import Source
from mobopt.ops.effects import random_operators
from mobopt.passes.note_kinds import TRANSFER_REMOVED, UNPACKED
from mobopt.passes.notes import Note
from mobopt.samples.agreement import Agreement, agreement_of_calls
from mobopt.samples.example_inputs import GIVEN, ChosenInputs, ExampleInputs, choose_inputs
from mobopt.tools.conversion import count_operators

_FORWARD = "forward"


@dataclass(frozen=True)
class Migration:
    """What a migration did."""

    output: Path
    format: str
    """In words."""
    size: int
    """Of the file, in bytes."""
    methods: tuple[str, ...]
    """Those that the file holds."""
    left_out: tuple[str, ...]
    """Methods and extra files of the source that it does not hold."""
    notes: tuple[Note, ...]
    """What was changed, by node."""
    operators_before: Counter[str]
    operators_after: Counter[str]
    sizes: dict[str, str]
    """Of the inputs by name; free ones are symbols."""
    remarks: tuple[str, ...]
    """What a user should know of the file."""
    inputs: str
    """The inputs that both files were run on, in words."""
    runner: str
    """What ran the new file."""
    relative_difference: float | None
    """On the inputs, of the output's scale; None if it was not compared."""
    is_ill_conditioned: bool
    """Whether the difference is large because single precision is."""
    drawn: tuple[str, ...]
    """The operators whose random numbers the format draws in another way: sizes and dtypes were compared alone."""
    seconds: float

    @property
    def unpacked(self) -> Counter[str]:
        """How many packed layers became each plain operator."""
        return Counter(str(note.parameters["operator"]) for note in self.notes if note.kind is UNPACKED)

    @property
    def transfers(self) -> int:
        """How many transfers between devices were removed."""
        return sum(note.kind is TRANSFER_REMOVED for note in self.notes)


class MigrationRefusedError(MoboptError):
    """The migration ran, and its result is not to be trusted, so nothing was written."""


def migrate(
    model: object,
    output: str | os.PathLike[str],
    *,
    method: str = _FORWARD,
    example_inputs: ExampleInputs | None = None,
    sizes: Sizes = "auto",
    opset: int = DEFAULT_OPSET,
    delegate: str = DEFAULT_DELEGATE,
    force: bool = False,
    show: Callable[[str], None] = lambda step: None,
) -> Migration:
    """Write a model in another format, run both, and compare.

    Args:
        model: a scripted or traced module, or the path of a ``.pt`` or ``.ptl`` file, plain or optimised for any
            backend. The file is never changed.
        output: the new file, whose ending chooses the format: ``.pt`` (TorchScript that stock torch loads, with all
            methods), ``.pt2`` (ExportedProgram), ``.onnx`` or ``.pte`` (ExecuTorch), of one
            method.
        method: the method that formats of one method hold.
        example_inputs: arguments of ``forward``, or of several methods by name; without them, those bundled with the
            model, of shapes traced or declared, or guessed.
        sizes: for formats that fix sizes: ``"auto"`` keeps free what can be, ``"fixed"`` takes those of the example;
            or free ranges by input and dimension, ``{"x": {0: (1, 64)}}``, where None is no upper end.
        opset: of an ONNX file, 18 to 23.
        delegate: of an ExecuTorch file: ``"xnnpack"``, ``"vulkan"`` or ``"portable"``.
        force: write even if the new file gives other results, or none could be compared.
        show: is told each step.

    Returns:
        What was changed, removed and left out, and the largest difference.

    Raises:
        MigrationRefusedError: the new file gives other results, or there are no inputs to compare on.
        MoboptError: the model, an option or the output path can't be used, or the format can't hold the model.
    """
    started = time.perf_counter()
    path = Path(output)
    target = target_of(path)
    check_writable(path, [Path(model)] if isinstance(model, (str, os.PathLike)) else [])
    show("reading the model")
    source = whole_source_of(model, example_inputs)
    if method not in source.program.methods:
        raise InputError(f"the model has no method {method!r}; its methods are {', '.join(source.program.methods)}")
    inputs = choose_inputs(source, example_inputs)
    show("unpacking")
    plain = plain_model(source.program)
    kept = source.extra_files()
    order = Order(plain, method, inputs.by_method.get(method), sizes, kept, opset, delegate)
    show(f"writing {path.name}")
    with tempfile.TemporaryDirectory(prefix="mobopt-migrate-") as folder:
        draft = Path(folder) / path.name
        written = target.write(order, draft)
        show(f"running {path.name}, and comparing")
        agreement = _agreement(source, written, inputs, force)
        drawn = () if target.draws_as_torch else random_operators(source.program.methods[method].walk())
        if drawn and agreement is not None and math.isfinite(agreement.absolute):
            agreement = Agreement(0.0, 0.0)  # what is drawn differs, sizes and dtypes agree
        if not force:
            _refuse(agreement, inputs, written)
        size = draft.stat().st_size
        with draft.open("rb") as new, whole_file(path) as file:
            shutil.copyfileobj(new, file)
    left_out = [f"method {name}" for name in source.program.methods if name not in written.methods]
    if target.needs_inputs:
        left_out += [f"extra file {name}" for name in kept]
    return Migration(
        path,
        target.name,
        size,
        written.methods,
        tuple(left_out),
        plain.notes,
        count_operators(source.program),
        count_operators(plain.program),
        written.sizes,
        written.remarks,
        str(inputs.of(written.methods)),
        written.runner,
        None if agreement is None or drawn else agreement.relative,
        agreement is not None and agreement.is_rounding,
        drawn,
        time.perf_counter() - started,
    )


def _agreement(source: Source, written: Written, inputs: ChosenInputs, force: bool) -> Agreement | None:
    """How well the new file agrees with the model, where least; None if there is nothing to run, or nothing runs it."""
    try:
        found = [
            agreement_of_calls(source, method, arguments, written.call(method), is_bounded=inputs.origin != GIVEN)
            for method, arguments in inputs.by_method.items()
            if method in written.methods
        ]
    except NotRunError as error:
        if force:
            return None
        raise MigrationRefusedError(
            f"the new file could not be compared with the model: {error}. So nothing was written; write it without a "
            "comparison with --force"
        ) from error
    return max(found, key=lambda item: item.relative, default=None)


def _refuse(agreement: Agreement | None, inputs: ChosenInputs, written: Written) -> None:
    """Raise what speaks against writing the file."""
    if agreement is None:
        raise MigrationRefusedError(
            "the new file could not be compared with the model, since no inputs that the model takes are known, so "
            "nothing was written. Give example inputs with --input x.npy or --random 1,3,224,224, or write it "
            "without a comparison with --force"
        )
    if not agreement.agrees:
        raise MigrationRefusedError(
            f"the new file, run by {written.runner}, differs from the model by {agreement.relative:.1e} of the "
            f"output's scale, on {inputs.of(written.methods)}, so nothing was written. Try another format, or write it "
            "all the same with --force"
        )
