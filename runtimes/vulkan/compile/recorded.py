"""Lowerings of all sizes at once: what is lowered once, with symbols for sizes, is appended for others by replaying it.

A :class:`Recording` plan keeps what lowerings do: the calls of steps, which are functions marked as
:func:`mobopt.runtimes.vulkan.kernels.plan.replayable`, with tensors whose sizes are expressions. What lowerings and the
passes before them asked of sizes became guards, as in :mod:`mobopt.runtimes.symbolic`; what the steps themselves decide
(kernels, tiles, workgroups) they decide anew for each size. So a :class:`LoweredTemplate` gives the Stream that
:func:`mobopt.runtimes.vulkan.compile.build.build_stream` would give, for all sizes that meet its guards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from mobopt.ir import Node, Origin, Value
from mobopt.ir.dimensions import Expression
from mobopt.ir.guards import Guards, UndecidedError
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.template import Template
from mobopt.runtimes.vulkan.compile.build import Built
from mobopt.runtimes.vulkan.compile.integer_ranges import Interval
from mobopt.runtimes.vulkan.compile.replay_code import ReplayWriter, UnrecordableError
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.limits import LimitError
from mobopt.runtimes.vulkan.engine.stream import LoweredCall
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan, constant_tensor, open_constant_tensor
from mobopt.runtimes.vulkan.lowerings.pointwise import expression_of

_LOG = logging.getLogger("mobopt.vulkan")

MAX_RECORDINGS = 4
"""Of one template, for the same integers; sizes that meet the guards of none are lowered each by itself."""


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A call of a step, or of a method of the plan, in the place of operations."""

    function: Callable[..., None]
    args: tuple[Any, ...]
    named: Mapping[str, Any]


class Recording(Plan):
    """A plan that computes nothing: its stream's operations are :class:`RecordedStep`."""

    def perform(self, step: Callable[..., None], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note a step."""
        self.stream.operations.append(RecordedStep(step, tuple(args), dict(named)))  # type: ignore[arg-type]

    def enter(self, operator: str, sizes: Sequence[int], source: Origin, call: LoweredCall) -> None:
        """Note that another call begins."""
        super().enter(operator, sizes, source, call)
        self.perform(Plan.enter, (operator, tuple(sizes), source, call), {})

    def dispatch(self, *args: Any, **named: Any) -> None:
        """Note a dispatch of a lowering that is no step."""
        self.perform(Plan.dispatch, args, named)


class LoweringGuards(Guards):
    """Guards of a recording. Its expressions are no keys: what is kept by keys would be found again by other
    recordings, and what was asked of sizes to make it would be asked no more."""

    def hash_of(self, expression: Expression) -> int:
        """Refuse.

        Raises:
            UndecidedError: always.
        """
        raise UndecidedError(f"{expression} can't be a key")


class LoweredTemplate:
    """A lowered Segment whose sizes are open."""

    def __init__(
        self, template: Template, guards: Guards, segment: Segment, built: Built, constants: Sequence[Storage]
    ) -> None:
        """Take what was recorded.

        Args:
            template: of the segment.
            guards: with all that was asked of sizes.
            segment: of the template, with the symbols of ``guards`` as sizes, lowered.
            built: what it was lowered to, by a :class:`Recording`.
            constants: what stands in it for the constants that depend on sizes.

        Raises:
            UnrecordableError: something in it can't be made again.
        """
        self._template = template
        self._guards = guards
        if built.fallbacks or guards.are_pinned:
            raise UnrecordableError("nodes run on the host" if built.fallbacks else "it holds for one size alone")
        places = {value: number for number, value in enumerate(segment.graph.outputs)}
        self._inputs = built.inputs
        self._outputs = [places[value] for value in built.outputs]
        self._assumed = [(segment.inputs.index(value), limits) for value, limits in built.assumed.items()]
        self._chained_workgroups = built.stream.chained_workgroups
        self._code_ahead_bytes = built.stream.code_ahead_bytes
        self._doorbell_bytes = built.stream.doorbell_bytes
        writer = ReplayWriter(built.stream.flag, constants)
        for operation in built.stream.operations:
            if not isinstance(operation, RecordedStep):
                raise UnrecordableError(f"{operation} is no step")
            if operation.function is Plan.enter:
                writer.enter(*operation.args)
            else:
                writer.call(operation.function, operation.args, operation.named)
        for name in ("inputs", "outputs"):
            writer.extend(name, getattr(built.stream, name))
        self._replay = writer.function()
        self._numbers = guards.compile(writer.expressions)

    def built(
        self, values: Sequence[int], device: DeviceInfo, constants: ConstantStore
    ) -> tuple[Segment, Built] | None:
        """What sizes give, with an outline of their Segment: its inputs and outputs without what makes them.

        Args:
            values: of the template's symbols.
            device: as for the recording.
            constants: the same.

        Returns:
            None where sizes don't meet the guards.

        Raises:
            LimitError: a dispatch exceeds a limit of the device.
        """
        if not self._guards.hold(values):
            return None
        open_constants = self._template.open_constants(values)
        if open_constants is None:
            return None
        plan = Plan(device, constants)
        self._replay(plan, self._numbers(*values), [constant_tensor(elements).storage for elements in open_constants])
        plan.stream.chained_workgroups = self._chained_workgroups
        plan.stream.code_ahead_bytes = self._code_ahead_bytes
        plan.stream.doorbell_bytes = self._doorbell_bytes
        segment = self._template.outline(values)
        outputs = tuple([segment.graph.outputs[number] for number in self._outputs])
        assumed = {segment.inputs[number]: limits for number, limits in self._assumed}
        return segment, Built(plan.stream, self._inputs, outputs, (), assumed)


Build = Callable[[Segment, Mapping[Value, Interval], Callable[..., Plan]], Built]
"""Lowers a segment, with the classes of its integers, by a plan that is made so."""


def record(template: Template, values: Sequence[int], integers: Sequence[Interval], build: Build) -> LoweredTemplate:
    """Lower a template for sizes, and for all that meet the same guards.

    Args:
        template: of segments; constants that depend on sizes are there for pointwise operators and concatenations
            alone, which ask for no element of them.
        values: of its symbols.
        integers: the classes of the int64 inputs, in order.
        build: what lowers.

    Raises:
        UnrecordableError: it can't be recorded.
        UndecidedError: the same.
    """
    guards = LoweringGuards()
    segment, depending = template.symbolic(values, guards)
    if not set(depending).isdisjoint(segment.graph.outputs):
        raise UnrecordableError("a constant that depends on sizes is returned")
    for node in segment.graph.block.nodes:
        if not set(depending).isdisjoint(node.inputs) and not _asks_for_no_element(node):
            raise UnrecordableError(f"{node.qualified_op} of a constant that depends on sizes")
        if not has_trait(node.qualified_op, Trait.VIEW):
            for argument in node.args:  # one number for all sizes: lowerings ask what is a number
                if isinstance(argument, Expression):
                    int(argument)
    wide = [value for value in segment.inputs if value.dtype == torch.int64]
    constants = {value: open_constant_tensor(value) for value in depending}
    built = build(segment, dict(zip(wide, integers, strict=True)), partial(Recording, _tensors=dict(constants)))
    return LoweredTemplate(template, guards, segment, built, [tensor.storage for tensor in constants.values()])


def _asks_for_no_element(node: Node) -> bool:
    return expression_of(node.qualified_op) is not None or has_trait(node.qualified_op, Trait.CONCATENATION)


@dataclass(eq=False)
class _Recordings:
    """Of one template, for the same integers."""

    lowered: list[LoweredTemplate] = field(default_factory=list)
    attempts: int = 0


class LoweredTemplates:
    """Lowered templates of a model, which are recorded when a template makes its first Segment."""

    def __init__(self, constants: ConstantStore) -> None:
        """Start with none.

        Args:
            constants: where packed weights are kept.
        """
        self._constants = constants
        self._recordings: WeakKeyDictionary[Template, dict[Any, _Recordings]] = WeakKeyDictionary()

    def forget(self) -> None:
        """Begin anew, for another device or with other fallbacks."""
        self._recordings.clear()

    def built(
        self,
        template: Template,
        values: Sequence[int],
        integers: tuple[Interval, ...],
        device: DeviceInfo,
        build: Build,
    ) -> tuple[Segment, Built] | None:
        """What a template is lowered to for values of its symbols; None if it must be lowered for them by itself.

        Args:
            template: of segments.
            values: of its symbols.
            integers: the classes of the int64 inputs, in order.
            device: what is lowered for, always the same until :meth:`forget`.
            build: what lowers.
        """
        known = self._recordings.setdefault(template, {}).setdefault(integers, _Recordings())
        try:
            for lowered in known.lowered:
                found = lowered.built(values, device, self._constants)
                if found is not None:
                    return found
            made = _recorded(known, template, values, integers, build)
            return None if made is None else made.built(values, device, self._constants)
        except LimitError:  # which operator it is, and where it can run instead, lowering it by itself tells
            return None


def _recorded(
    known: _Recordings, template: Template, values: Sequence[int], integers: Sequence[Interval], build: Build
) -> LoweredTemplate | None:
    """One more recording, if there may be one."""
    if known.attempts >= MAX_RECORDINGS:
        return None
    known.attempts += 1
    try:
        lowered = record(template, values, integers, build)
    except Exception as error:  # lowerings are written for numbers, and refuse expressions in their own ways
        _LOG.debug("lowerings can't be recorded for all sizes: %s", error)
        known.attempts = MAX_RECORDINGS
        return None
    known.lowered.append(lowered)
    return lowered
