"""A model made ready to be measured on a device: as mobopt's own runtime would run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mobopt.frontends.open_source import whole_source_of
from mobopt.frontends.source import Source
from mobopt.ir import Program
from mobopt.options import OWN_RUNTIME
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import PassPipeline
from mobopt.samples.example_inputs import ChosenInputs, ExampleInputs, choose_inputs
from mobopt.tools.comparison import arguments_of
from mobopt.tools.optimized_files import is_optimized


@dataclass(frozen=True)
class MeasuredModel:
    """What is measured.

    Attributes:
        source: the model as it was read.
        program: what runs: the model optimised for mobopt's own runtime; a file that was optimised for another, as it
            is.
        method: which of its methods.
        args: arguments of the method.
        inputs: what they are and where they come from.
    """

    source: Source
    program: Program
    method: str
    args: list[Any]
    inputs: ChosenInputs

    @property
    def name(self) -> str:
        """Of the model."""
        return self.source.name

    @property
    def inputs_text(self) -> str:
        """The inputs in words."""
        return str(self.inputs.of([self.method]))


def read_measured(
    path: Path,
    method: str,
    given: ExampleInputs | None,
    show: Callable[[str], None] = lambda step: None,
) -> MeasuredModel:
    """Read a model and make it ready.

    Args:
        path: a model, or a file that is optimised for any backend.
        method: the method that is measured.
        given: its arguments by method; without them, those bundled with the model, of shapes traced or declared, or
            guessed.
        show: is told each step.

    Raises:
        MoboptError: the model can't be read or optimised, or no inputs are known that it takes.
    """
    source = whole_source_of(path, given)
    inputs = choose_inputs(source, given)
    args = arguments_of((source, source), method, inputs)
    program = source.program
    if not is_optimized(path):
        show(f"optimising {source.name}")
        program = program.clone()
        run_passes(program, PassPipeline.default("vulkan", runtime=OWN_RUNTIME).with_examples(inputs.examples))
    return MeasuredModel(source, program, method, args, inputs)
