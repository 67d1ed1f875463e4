"""What a conversion says of tensors whose sizes no example tells."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.ir import Program
from mobopt.ir.guards import LARGEST_SIZE, Symbol
from mobopt.ops.effects import holds_tensors
from mobopt.passes.note_kinds import RUNS_ON_CPU
from mobopt.passes.notes import Note
from mobopt.samples.example_inputs import ChosenInputs

_BUNDLED = "_bundled_inputs"
"""Part of the names of methods that torch adds for inputs; they compute nothing on the GPU."""


def unknown_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Nodes that run on the CPU because sizes decide what the GPU computes right, and none are known."""
    return tuple(note for note in notes if note.kind is RUNS_ON_CPU and note.parameters["is_unknown"])


def by_size_text(program: Program, notes: Sequence[Note]) -> str:
    """What runs on the CPU since inputs may have several sizes, in a sentence without an end; empty if nothing does.

    Args:
        program: after the passes.
        notes: what these said.
    """
    count = sum(note.kind is RUNS_ON_CPU and note.parameters["is_by_size"] for note in notes)
    if not count:
        return ""
    what = "1 operator runs" if count == 1 else f"{count} operators run"
    why = "the GPU is right for only some of the sizes that inputs may have"
    return f"{what} on the phone's CPU, because {why} ({declared_text(program)})"


def declared_text(program: Program) -> str:
    """Which sizes inputs may have, where facts of the program say that they vary; empty if none does."""
    return ", ".join(_range_text(item) for item in program.size_symbols.symbols.values())


def _range_text(item: Symbol) -> str:
    most = "any size" if item.upper >= LARGEST_SIZE else str(item.upper)
    return f"{item.name}, {item.origin}: {item.lower} to {most}"


def methods_without_examples(program: Program, inputs: ChosenInputs) -> list[str]:
    """Methods that take tensors and were not run."""
    known = inputs.examples.arguments
    return [
        name
        for name, graph in program.methods.items()
        if name not in known and _BUNDLED not in name and any(holds_tensors(value.type) for value in graph.inputs[1:])
    ]


def unknown_text(program: Program, notes: Sequence[Note], inputs: ChosenInputs, remedy: str) -> str:
    """What is not known, in a sentence; empty if all is.

    Args:
        program: before the passes.
        notes: what these said.
        inputs: what decided about sizes.
        remedy: how the caller gives inputs, which ends the sentence where they would help.
    """
    if not inputs.examples.arguments:
        return (
            "no inputs are known that the model takes, and what a phone's GPU computes right depends on their sizes: "
            "what it computes right for some only runs on the phone's CPU with Vulkan, and may be wrong with Metal"
            f"{remedy}"
        )
    count, methods = len(unknown_notes(notes)), methods_without_examples(program, inputs)
    if not count:
        return ""
    what = "1 operator runs" if count == 1 else f"{count} operators run"
    if methods:
        why = f"no example input tells the sizes of its tensors, in {', '.join(methods)}{remedy}"
    else:
        why = (
            "the sizes of its tensors depend on more than those of inputs: on elements, on turns of a loop, or on "
            "an attribute that calls assign"
        )
    return f"{what} on the phone's CPU, because {why}"
