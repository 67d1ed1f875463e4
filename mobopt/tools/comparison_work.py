"""The work of a comparison: values of two runs are matched, computed batch by batch, and reduced to errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.errors import InputError, MoboptError
from mobopt.ir import Graph
from mobopt.ir.nests import leaves_of
from mobopt.ops.effects import random_operators
from mobopt.tools.comparison_results import Layer, Output, verdict_of
from mobopt.tools.comparison_sides import Runner, part_between
from mobopt.tools.differences import Difference, difference, rank_changes
from mobopt.tools.layer_matching import Match, Place, inputs_alike, made_by, match

BATCH_BYTES = 2**28
"""Of values of one side that are kept at a time."""


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a call returned, in order."""
    return list(leaves_of(result, torch.Tensor))


@dataclass
class Sample:
    """A part of the other side's line, and values of the reference that it is run on."""

    part: Graph
    inputs: list[torch.Tensor]
    expected: torch.Tensor
    before: Graph | None
    """What the reference makes the same value of, from the same values; None if it takes others."""


@dataclass
class Draft:
    """A layer that is being compared."""

    place: Place
    partner: Match
    part: Graph
    """What makes it from known values."""
    given: tuple[Place, ...] | None
    """The reference's places of what the part is given; None if some are not known."""
    waits: int = 0
    total: Difference | None = None
    own: Difference | None = None
    float32: Difference | None = None


class ComparisonWork:
    """A comparison on the way."""

    def __init__(
        self,
        runners: tuple[Runner, Runner],
        args: Sequence[Any],
        tolerance: float,
        baseline: Runner | None,
        show: Callable[[str], None],
    ) -> None:
        self.runners, self.args, self.tolerance, self.baseline = runners, args, tolerance, baseline
        self._show = show
        self.results: list[Any] = []
        for runner in runners:
            show(f"running on {runner.where}")
            self.results.append(_surveyed(runner, args, is_second=bool(self.results)))
        _check_results(*map(tensors_of, self.results))
        self._plain = None if baseline is None else baseline.survey(args)
        lines = runners[0].lines, runners[1].lines
        self._matches = match(*lines)
        self._inputs = inputs_alike(*lines)
        self.is_of_other_model = bool(self._matches) and not any(
            item.how == "origin" for item in self._matches.values()
        )
        there = {(number, name) for number in range(len(lines[0])) for name in runners[0].made(number)}
        self.places = [
            item.place
            for item in made_by(lines[1])
            if item.value.name in runners[1].made(item.line)
            and item.place in self._matches
            and self._matches[item.place].reference in there
        ]
        self.unseen = len(there) - len(self.places)
        self._errors: dict[Place, float] = {}
        self._inner: set[Place] = set()
        """What is made on the way to matched values."""
        if not self.places and made_by(lines[1]):
            raise InputError(
                "the models can't be compared layer by layer: they have no layer in common; give two forms of one model"
            )

    def outputs(self) -> list[Output]:
        """What both return."""
        theirs, ours = (tensors_of(result) for result in self.results)
        plain = [None] * len(ours) if self._plain is None else tensors_of(self._plain)
        return [
            Output(
                number,
                tuple(other.shape),
                difference(reference, other),
                None if single is None else difference(reference, single),
                rank_changes(reference, other),
            )
            for number, (reference, other, single) in enumerate(zip(theirs, ours, plain, strict=True))
        ]

    def unmatched(self) -> Iterator[str]:
        """What the other side makes and the reference is not known to make."""
        lines = self.runners[1].lines
        for item in made_by(lines):
            made = self.runners[1].made(item.line)
            if item.value.name in made and item.place not in self._matches and item.place not in self._inner:
                sizes = "x".join(map(str, item.value.sizes))
                yield f"{item.node.op} {sizes}" + (f" at {item.node.source}" if item.node.source else "")

    def layers(self, *, alone: bool = True) -> list[Layer]:
        """All of them, batch by batch; without ``alone``, none is run by itself.

        Where two files have no origins in common, a layer may be given another one's partner: it differs then, and all
        that reads it agrees. Such have no partner, and what reads them is compared anew.
        """
        while True:
            drafts = self._compared(alone)
            strangers = self._strangers(drafts)
            if not strangers:
                return [self._layer(draft) for draft in drafts]
            self.places = [place for place in self.places if place not in strangers]
            for place in strangers:
                del self._matches[place]
            self._errors.clear()

    def _strangers(self, drafts: Sequence[Draft]) -> set[Place]:
        """Layers that were not matched by origin and differ, whose readers all agree."""
        errors: dict[Place, list[float]] = {}
        for draft in drafts:
            for value in draft.part.inputs:
                errors.setdefault((draft.place[0], value.name), []).append(self._errors.get(draft.place, math.inf))
        return {
            draft.place
            for draft in drafts
            if draft.partner.how != "origin"
            and self._errors.get(draft.place, math.inf) > self.tolerance
            and max(errors.get(draft.place, [math.inf])) <= self.tolerance
        }

    def _compared(self, alone: bool) -> list[Draft]:
        drafts = [self.draft(place) for place in self.places]
        self._inner.clear()
        for draft in drafts:
            inner = (value.name for node in draft.part.block.nodes for value in node.outputs)
            self._inner.update((draft.place[0], name) for name in inner)
        done = 0
        for batch in _batches(drafts, self.runners[1].lines):
            self._show(f"comparing layers {done + 1} to {done + len(batch)} of {len(drafts)}")
            self._compare(batch, alone)
            done += len(batch)
        return drafts

    def sample(self, place: Place, known: Container[str]) -> Sample | None:
        """What makes a value from known ones, with the reference's values; None if these are not all known."""
        draft = self.draft(place, known)
        if draft.given is None:
            return None
        needed = {draft.partner.reference, *draft.given}
        held: dict[Place, torch.Tensor] = {}
        self.runners[0].run(self.args, needed, held.__setitem__)
        inputs = [held[given].to(value.dtype) for given, value in zip(draft.given, draft.part.inputs, strict=True)]
        number, name = draft.partner.reference
        names = [other for _, other in draft.given]
        before = part_between(self.runners[0].lines[number], name, names)
        is_same = sorted(value.name for value in before.inputs) == sorted(names)
        return Sample(draft.part, inputs, held[draft.partner.reference], before if is_same else None)

    def alone(self, sample: Sample) -> Difference | None:
        """How far the part alone is from the reference; None if it can't be run."""
        return self._alone(sample.part, sample.inputs, sample.expected)

    def is_wrong_alone(self, place: Place) -> bool:
        """Whether a layer is over the tolerance even on the reference's values before it."""
        sample = self.sample(place, {name for line, name in self.places if line == place[0] and name != place[1]})
        own = None if sample is None else self.alone(sample)
        return own is not None and own.error > self.tolerance

    def draft(self, place: Place, known: Container[str] | None = None) -> Draft:
        """A layer: what makes a value from known ones, by default from all that are matched."""
        number, name = place
        if known is None:
            known = {other for line, other in self.places if line == number and other != name}
        part = part_between(self.runners[1].lines[number], name, known)
        given = [self._reference_of((number, value.name)) for value in part.inputs]
        return Draft(place, self._matches[place], part, None if None in given else tuple(given))  # type: ignore[arg-type]

    def _reference_of(self, place: Place) -> Place | None:
        if place in self._inputs:
            return self._inputs[place]
        partner = self._matches.get(place)
        return None if partner is None else partner.reference

    def _compare(self, batch: Sequence[Draft], alone: bool) -> None:
        """Compute the values of some layers on both sides, and reduce them as they come."""
        kept: dict[Place, torch.Tensor] = {}
        self.runners[1].run(self.args, {draft.place for draft in batch}, kept.__setitem__)
        plain: dict[Place, torch.Tensor] = {}
        if self.baseline is not None:
            wanted = {draft.partner.reference for draft in batch}
            self.baseline.run(self.args, wanted, plain.__setitem__)
        readers: dict[Place, list[Draft]] = {}
        for draft in batch:
            if not alone:
                draft.given = None
            needed = {draft.partner.reference, *(draft.given or ())}
            draft.waits = len(needed)
            for place in needed:
                readers.setdefault(place, []).append(draft)
        held: dict[Place, torch.Tensor] = {}
        left = Counter({place: len(drafts) for place, drafts in readers.items()})

        def arrive(place: Place, tensor: torch.Tensor) -> None:
            held[place] = tensor
            for draft in readers[place]:
                draft.waits -= 1
                if draft.waits == 0:
                    self._reduce(draft, held, kept, plain)
                    for needed in {draft.partner.reference, *(draft.given or ())}:
                        left[needed] -= 1
                        if not left[needed]:
                            del held[needed]

        self.runners[0].run(self.args, readers.keys(), arrive)

    def _reduce(
        self,
        draft: Draft,
        held: Mapping[Place, torch.Tensor],
        kept: dict[Place, torch.Tensor],
        plain: Mapping[Place, torch.Tensor],
    ) -> None:
        reference = held[draft.partner.reference]
        mine = kept.pop(draft.place, None)
        if mine is not None and mine.shape == reference.shape:
            draft.total = difference(reference, mine)
            self._errors[draft.place] = draft.total.error
        if draft.partner.reference in plain:
            draft.float32 = difference(reference, plain[draft.partner.reference])
        if draft.given is not None:
            draft.own = self._alone(draft.part, [held[place] for place in draft.given], reference)

    def _alone(self, part: Graph, given: Sequence[torch.Tensor], reference: torch.Tensor) -> Difference | None:
        if random_operators(part.block.nodes):
            return None  # it would draw other numbers than in its place
        inputs = [tensor.to(value.dtype).contiguous() for tensor, value in zip(given, part.inputs, strict=True)]
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                (alone,) = self.runners[1].part(part, inputs)
        except MoboptError:
            return None
        return difference(reference, alone) if alone.shape == reference.shape else None

    def _layer(self, draft: Draft) -> Layer:
        number, name = draft.place
        nodes = list(draft.part.block.nodes)
        value = draft.part.outputs[0]
        assert value.producer is not None
        origin = value.producer.origin.nodes
        assert draft.total is not None
        before = [self._errors.get((number, item.name)) for item in draft.part.inputs]
        worst = max((error for error in before if error is not None), default=0.0)
        growth = draft.total.error / worst if 0 < worst < math.inf and draft.total.error < math.inf else None
        return Layer(
            tuple(node.op for node in nodes),
            origin[-1].text if origin else name,
            tuple(dict.fromkeys(line for node in nodes for line in node.origin.lines)),
            value.sizes,
            str(value.dtype).removeprefix("torch."),
            draft.partner.turn,
            draft.partner.how,
            draft.total,
            draft.own,
            growth,
            draft.float32,
            verdict_of(draft.total, draft.own, draft.float32, worst, growth, self.tolerance),
        )


def _batches(drafts: Sequence[Draft], lines: Sequence[Graph]) -> Iterator[list[Draft]]:
    """Layers in order, as many at a time as may be kept."""
    batch: list[Draft] = []
    size = 0
    for draft in drafts:
        value = draft.part.outputs[0]
        nbytes = value.numel * value.dtype.itemsize
        if batch and size + nbytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(draft)
        size += nbytes
    if batch:
        yield batch


def _surveyed(runner: Runner, args: Sequence[Any], is_second: bool) -> Any:
    """What a side returns.

    Raises:
        InputError: it can't be run.
    """
    try:
        return runner.survey(args)
    except InputError as error:
        if not is_second:
            raise
        raise InputError(f"the second model can't be run on the inputs of the first: {error}") from None


def _check_results(theirs: Sequence[torch.Tensor], ours: Sequence[torch.Tensor]) -> None:
    """Refuse what can't be compared.

    Raises:
        InputError: there are no results, or they are of other forms.
    """
    shapes = [[list(tensor.shape) for tensor in tensors] for tensors in (theirs, ours)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the models can't be compared: the first returns {_shapes(theirs)}, the second {_shapes(ours)}; give two "
            "forms of one model, or another --method"
        )
    if not ours:
        raise InputError("the model can't be compared: it returns no tensor; choose another --method")


def _shapes(tensors: Sequence[torch.Tensor]) -> str:
    shapes = ", ".join("x".join(map(str, tensor.shape)) or "a number" for tensor in tensors)
    return f"{len(tensors)} tensors ({shapes})" if len(tensors) != 1 else f"one tensor ({shapes})"
