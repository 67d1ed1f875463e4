"""The two sides of a comparison: a model, where it runs and through which passes, and runs of it that show values."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.frontends.source import Source
from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.straight_line import cut_out
from mobopt.options import SINGLE, PrecisionChoice
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import PassPipeline
from mobopt.runtimes.cpu.double import in_double
from mobopt.runtimes.cpu.precision import in_halves
from mobopt.runtimes.half_ranges import HALVES
from mobopt.runtimes.line_run import Change, LineEvaluation, LineRun
from mobopt.samples.example_inputs import ChosenInputs
from mobopt.samples.inputs import SEED
from mobopt.tools.layer_matching import Place

CPU, VULKAN = "cpu", "vulkan"
"""The reference interpreter's kernels, and the best Vulkan device."""
Keep = Callable[[Place, torch.Tensor], None]
"""Is told of the values that are wanted."""


@dataclass(frozen=True)
class Side:
    """A model and how it is run.

    Attributes:
        name: of the model.
        program: what is run.
        device: ``"cpu"``, ``"vulkan"`` for the best device, or a device's number or a part of its name.
        passes: the passes that made the program, in words; empty without.
        precision: of a device.
    """

    name: str
    program: Program
    device: str
    passes: str = ""
    precision: PrecisionChoice = SINGLE

    @staticmethod
    def of(source: Source, device: str, passes: PassPipeline | None, inputs: ChosenInputs) -> Side:
        """A model, after the passes if there are some.

        Raises:
            MoboptError: a pass can't take the model.
        """
        if passes is None:
            return Side(source.name, source.program, device)
        program = source.program.clone()
        run_passes(program, passes.with_examples(inputs.examples))
        settings = passes.settings
        words = f"{settings.backend}:{settings.runtime}" if settings is not None else f"{len(passes)} passes"
        return Side(source.name, program, device, words)


class Runner(ABC):
    """Runs a method on one device, again and again from the same state, and shows values.

    Attributes:
        where: the device in words.
        lines: of the last run, in order.
        fallbacks: what a device left to the CPU.
    """

    where: str
    lines: Sequence[Graph]
    fallbacks: tuple[str, ...] = ()

    @abstractmethod
    def run(self, args: Sequence[Any], wanted: Container[Place], keep: Keep) -> Any:
        """What the method returns.

        Args:
            args: its arguments; they are copied.
            wanted: what to show. Inputs of lines can be shown too.
            keep: is told of it.
        """

    @abstractmethod
    def made(self, line: int) -> Collection[str]:
        """Names of the values that exist in a line, for fusions swallow some."""

    @abstractmethod
    def part(self, line: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a part of a line gives by itself, in this runner's way."""

    def survey(self, args: Sequence[Any]) -> Any:
        """Run once to learn the lines; gives what the method returns."""
        return self.run(args, (), lambda place, tensor: None)


class CpuRunner(Runner):
    """Torch's kernels on the CPU, node by node; of halves, every result is rounded, as a phone's GPU may."""

    def __init__(self, side: Side, method: str, is_double: bool = False) -> None:
        """With ``is_double``, in float64.

        Raises:
            InputError: halves are asked for of some nodes only.
        """
        precision = side.precision.precision
        if side.precision.fp32_nodes:
            raise InputError(f"the CPU in {precision} rounds every result; leave out fp32_nodes, or choose a device")
        self.where = "CPU in float64" if is_double else f"CPU in {precision}" if side.precision.is_half else "CPU"
        change: Change | None = in_double if is_double else None
        if side.precision.is_half:
            change = partial(in_halves, half=HALVES[precision])
        self._run = LineRun(side.program, method, change)
        self._evaluation = LineEvaluation(change)
        self._change: Change = change or (lambda value: value)

    @property
    def lines(self) -> Sequence[Graph]:  # type: ignore[override]
        """Of the last run, in order."""
        return self._run.lines

    def run(self, args: Sequence[Any], wanted: Container[Place], keep: Keep) -> Any:
        """See :meth:`Runner.run`; a value is shown as soon as it is made."""

        def show(line: int, value: Value, tensor: torch.Tensor) -> None:
            if (line, value.name) in wanted:
                keep((line, value.name), tensor)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self._run.run(copy.deepcopy(list(args)), show)

    def made(self, line: int) -> Collection[str]:
        """All of them."""
        return {value.name for node in self.lines[line].block.nodes for value in node.outputs}

    def part(self, line: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :meth:`Runner.part`."""
        values = self._evaluation.outputs(line, self._change(list(inputs)))
        return [values[value] for value in line.outputs]


class DeviceRunner(Runner):
    """A Vulkan device, with the plans that calls without an observer have."""

    def __init__(
        self,
        side: Side,
        method: str,
        split: Callable[[Graph], Container[str]] = lambda line: (),
        refuse: Callable[[Node], str | None] = lambda node: None,
        stays_single: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        """Open the device.

        Args:
            side: what is run.
            method: the method's name.
            split: names of the values that no fusion may swallow.
            refuse: why a node is to run on the CPU, if it is.
            stays_single: whether a node is to keep float32, beside those that the side's precision names.

        Raises:
            DeviceError: there is no such device.
        """
        from mobopt.runtimes.vulkan.engine.devices import open_device

        self.device = open_device(None if side.device == VULKAN else side.device)
        self.where = f"{self.device.info}{f', {side.precision.precision}' if side.precision.is_half else ''}"
        self.lines: list[Graph] = []
        self._side, self._method = side, method
        self._split, self._refuse, self._stays_single = split, refuse, stays_single
        self._made: list[frozenset[str]] = []

    def run(self, args: Sequence[Any], wanted: Container[Place], keep: Keep) -> Any:
        """See :meth:`Runner.run`; values are shown when their line is computed."""
        from mobopt.runtimes.vulkan.observed import ObservedProgram

        names = {name for _, name in wanted} if isinstance(wanted, Collection) else ()
        program = ObservedProgram(
            self._side.program,
            self.device,
            wanted=names,
            split=self._split,
            refuse=self._refuse,
            precision=self._side.precision,
            stays_single=self._stays_single,
        )

        def show(line: int, value: Value, tensor: torch.Tensor) -> None:
            if (line, value.name) in wanted:
                keep((line, value.name), tensor)

        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                result = program.observe(self._method, copy.deepcopy(list(args)), show)
            self.lines, self._made = list(program.lines), list(program.made)
            self.fallbacks = tuple(program.fallbacks)
            return result
        finally:
            program.close()

    def made(self, line: int) -> Collection[str]:
        """What fusions leave."""
        return self._made[line]

    def part(self, line: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See :meth:`Runner.part`."""
        from mobopt.runtimes.vulkan.observed import run_line

        return run_line(self.device, line, inputs, self._side.precision, self._stays_single)


def runner_of(side: Side, method: str, *, is_double: bool = False, is_fused: bool = True) -> Runner:
    """What runs a side.

    Args:
        side: the model and the device.
        method: the method's name.
        is_double: whether in float64, on the CPU.
        is_fused: whether a device may fuse operators, as it does; else each makes its own value.

    Raises:
        DeviceError: there is no such device.
        InputError: there is no such method; float64 is asked for on a device, or with halves; halves of some nodes only
            on the CPU.
    """
    if method not in side.program.methods:
        methods = ", ".join(side.program.methods)
        raise InputError(f"{side.name} has no method {method!r}; its methods are {methods}; choose with --method")
    if is_double and side.precision.is_half:
        raise InputError(f"the reference is computed in float64 or in {side.precision.precision}; leave out one")
    if side.device == CPU:
        return CpuRunner(side, method, is_double)
    if is_double:
        raise InputError("float64 is what the CPU computes; leave out the reference's device, or give cpu")
    return DeviceRunner(side, method, (lambda line: ()) if is_fused else every_value)


def every_value(line: Graph) -> set[str]:
    """Names of all values of a line."""
    return {value.name for node in line.block.nodes for value in node.outputs}


def part_between(line: Graph, name: str, known: Container[str]) -> Graph:
    """What makes the value of a name from known ones; see :func:`cut_out`."""
    value = next(value for node in line.block.nodes for value in node.outputs if value.name == name)
    return cut_out([value], known)
