"""What a phone made of the taps of a file, beside what the CPU makes of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import read_bundle
from mobopt.errors import InputError
from mobopt.ir import Program
from mobopt.ir.arguments import argument_name
from mobopt.samples.agreement import RELATIVE_TOLERANCE
from mobopt.samples.example_inputs import choose_inputs_of_bundle
from mobopt.tools.comparison_results import Comparison, Layer, Output, verdict_of
from mobopt.tools.differences import Difference, difference, rank_changes
from mobopt.tools.taps.dump import read_dump
from mobopt.tools.taps.observation import Instance, run_forced, run_watched
from mobopt.tools.taps.places import kind_of, places_of
from mobopt.tools.taps.statistics import NAMES, statistics_difference
from mobopt.tools.taps.table import INPUT, OUTPUT, STATISTICS, Tap, TapTable, table_of


def compare_dump(
    file: str | os.PathLike[str],
    dump: str | os.PathLike[str],
    *,
    tolerance: float | None = None,
    float64: bool = False,
    show: Callable[[str], None] = lambda step: None,
) -> Comparison:
    """Compare what a phone saved of a tapped file's values with what the CPU makes of them.

    A layer's own error is what the CPU makes of the *phone's* values before it, beside the phone's value: a layer that
    was given wrong values is told from one that is wrong.

    Args:
        file: the file that :func:`mobopt.tap` wrote.
        dump: what the phone saved: an ``.npz`` file, or a folder of ``.npy`` files. It is compared on the inputs in it.
        tolerance: the error that is let pass, over the largest magnitude of the CPU's value; without it 1e-4.
        float64: whether the reference is computed in float64.
        show: is told each step.

    Returns:
        The CPU's values beside the phone's, layer by layer.

    Raises:
        InputError: the file has no taps, or the dump can't be read, or is not of this file.
        BundleError: the file can't be read.
    """
    tolerance = RELATIVE_TOLERANCE if tolerance is None else tolerance
    if not 0 <= tolerance < math.inf:
        raise InputError(f"the tolerance is {tolerance}; give a number from 0 on, such as 1e-3")
    started = time.perf_counter()
    path = Path(file)
    show("reading")
    program = read_bundle(path, prefer="code")
    table = table_of(program.metadata.get("extra_files", {}), path.name)
    if table.tapped not in program.methods:
        raise InputError(f"{path.name} has no method {table.tapped!r}; make the file again with mobopt tap")
    found, unknown = read_dump(Path(dump), table)
    arguments = _arguments(program, table, found)
    show("running on the CPU")
    work = _Work(program, table, arguments, found, tolerance, float64, Path(dump).name)
    layers = [work.layer(*item) for item in work.in_between()]
    outputs = [
        work.output(number, tap)
        for number, tap in enumerate(tap for tap in table.taps if kind_of(tap.key) == OUTPUT)
        if tap.key in found
    ]
    if not layers and not outputs:
        raise InputError(f"the dump {dump} has the inputs alone; save all that the method {table.tapped} returns")
    missing = [key for key in work.reference if key not in found]
    return Comparison(
        f"{path.name} on CPU{' in float64' if float64 else ''}",
        Path(dump).name,
        ", ".join(key for key in found if kind_of(key) == INPUT) or "those that the file holds",
        table.method,
        tolerance,
        tuple(layers),
        tuple(outputs),
        (*(f"{name}, which is no tap of the file" for name in unknown), *work.elsewhere()),
        len(missing),
        tuple(_remarks(table, missing)),
        time.perf_counter() - started,
    )


def _remarks(table: TapTable, missing: list[str]) -> list[str]:
    remarks = [f"not in the dump: {', '.join(missing)}"] if missing else []
    if any(name not in table.by_key for name in missing):
        remarks.append("what stands in a branch or a loop is also missing where the phone went another way")
    if any(tap.form == STATISTICS for tap in table.taps):
        remarks.append(
            f"of large values there are {', '.join(NAMES)} and a sample: a few wrong elements may not be seen"
        )
    return remarks


def _arguments(program: Program, table: TapTable, found: Mapping[str, torch.Tensor]) -> list[Any]:
    """What the phone ran on: the inputs that it saved, else those that the file holds."""
    names = [argument_name(value.name) for value in program.methods[table.tapped].inputs[1:]]
    bundled = choose_inputs_of_bundle(program).by_method.get(table.tapped, (None,) * len(names))
    arguments = []
    for name, value in zip(names, bundled, strict=True):
        saved = found.get(f"{INPUT}.{name}")
        if saved is None and value is None:
            raise InputError(
                f"neither the dump nor the file has the input {name!r}; save all that {table.tapped} returns"
            )
        arguments.append(
            value if saved is None else saved.to(value.dtype) if isinstance(value, torch.Tensor) else saved
        )
    return arguments


class _Work:
    """The references, and what is found of each tap. What stands in a loop has a name for each turn."""

    def __init__(
        self,
        program: Program,
        table: TapTable,
        arguments: list[Any],
        found: Mapping[str, torch.Tensor],
        tolerance: float,
        is_double: bool,
        dump: str,
    ) -> None:
        self.table, self.found, self.tolerance, self.dump = table, found, tolerance, dump
        method = table.tapped
        self.reference = run_watched(program, method, arguments, lambda value, result: result, is_double)
        self.single = run_watched(program, method, arguments, lambda value, result: result) if is_double else None
        self.places = places_of(program.methods[method])
        self._keys = {place.value: key for key, place in self.places.items() if self._is_in_between(key)}
        forced = {
            instance: found[name]
            for name in found
            if (instance := self._instance(name)) is not None and self._tap(name).form != STATISTICS
        }
        self._result, own = run_forced(program, method, arguments, self._keys, forced)
        made = {self._name(instance): tensor for instance, tensor in own.items()}
        self._order = {name: number for number, name in enumerate(made)}
        """Of what the run makes that goes on with the phone's values: it goes the phone's way."""
        self._turns: dict[str, list[str]] = {}
        for name in made:
            self._turns.setdefault(self._tap(name).key, []).append(name)
        self._own = {
            name: self._result[name] if self._tap(name).form == STATISTICS else tensor for name, tensor in made.items()
        }
        self.errors = {
            name: self._difference(name, self.reference[name]).error for name in found if self._is_common(name)
        }

    def in_between(self) -> Iterator[tuple[str, Tap]]:
        """What of the dump is neither an input nor an output and can be compared, in the order in which it is made."""
        last = len(self._order)
        for name in sorted(self.found, key=lambda name: self._order.get(name, last)):
            if name in self.errors and self._is_in_between(name):
                yield name, self._tap(name)

    def elsewhere(self) -> Iterator[str]:
        """What the phone made in branches and turns that the CPU does not come to, or of other sizes there."""
        for name in self.found:
            if name not in self.errors:
                yield f"{name}, for which there is nothing on the CPU: a branch or a loop went another way on the phone"

    def layer(self, name: str, tap: Tap) -> Layer:
        """What is found of a tapped value."""
        total = self._difference(name, self.reference[name])
        before = self._before(name, tap)
        worst = max((self.errors[item] for item in before if item in self.errors), default=0.0)
        own = self._own_error(name, before)
        single = None if self.single is None else self._apart(name, self.reference[name], self.single[name])
        growth = total.error / worst if 0 < worst < math.inf and total.error < math.inf else None
        is_whole = [item.key for item in self.table.taps if item.origin[-1:] == tap.origin[-1:]][-1:] == [tap.key]
        steps = tap.origin if is_whole and tap.origin else (tap.node,)  # several nodes may be steps to one value
        operators = tuple(text.partition(" %")[0] for text in steps)
        verdict = verdict_of(total, own, single, worst, growth, self.tolerance)
        turn = int(name.rpartition(".")[2]) if tap.repeats else 0
        sizes = self._sizes(name, tap)
        return Layer(operators, name, tap.source, sizes, tap.dtype, turn, "tap", total, own, growth, single, verdict)

    def output(self, number: int, tap: Tap) -> Output:
        """What is found of a result."""
        reference, mine = self.reference[tap.key], self.found[tap.key]
        single = None if self.single is None else difference(reference, self.single[tap.key])
        sizes = self._sizes(tap.key, tap)
        return Output(number, sizes, self._difference(tap.key, reference), single, rank_changes(reference, mine))

    def _sizes(self, name: str, tap: Tap) -> tuple[int, ...]:
        """What the phone saved, which may be of other inputs than the example; of statistics, the example's."""
        if tap.form == STATISTICS and tap.sizes is not None:
            return tap.sizes
        return tuple(self.found[name].shape)

    # Names.

    def _tap(self, name: str) -> Tap:
        tap = self.table.find(name)
        assert tap is not None
        return tap

    @staticmethod
    def _is_in_between(name: str) -> bool:
        return kind_of(name) not in (INPUT, OUTPUT)

    def _instance(self, name: str) -> Instance | None:
        """The value of a name, and which time it is made; None of inputs and outputs."""
        tap = self._tap(name)
        if tap.key not in self.places or not self._is_in_between(name):
            return None
        return self.places[tap.key].value, int(name.rpartition(".")[2]) if tap.repeats else 0

    def _name(self, instance: Instance) -> str:
        key = self._keys[instance[0]]
        return f"{key}.{instance[1]}" if self.table.by_key[key].repeats else key

    def _is_common(self, name: str) -> bool:
        """Whether the CPU makes it too; what stands in branches and loops, and of the same sizes."""
        if not self._tap(name).repeats:
            return True
        return name in self.reference and self.reference[name].shape == self.found[name].shape

    # Errors.

    def _before(self, name: str, tap: Tap) -> list[str]:
        """What the value is computed from, as far as it was made before it."""
        keys = self.places[tap.key].before if tap.key in self.places else ()
        at = self._order.get(name, len(self._order))
        return [item for key in keys for item in self._turns.get(key, ()) if self._order[item] < at]

    def _own_error(self, name: str, before: Sequence[str]) -> Difference | None:
        """The error that the layer makes of right or wrong values; None if those before it were not seen whole."""
        if name not in self._own:
            return None
        hidden = [item for item in before if item not in self.found or self._tap(item).form == STATISTICS]
        if any(self.errors.get(item, math.inf) > self.tolerance for item in hidden):
            return None
        made = self._own[name]
        return self._difference(name, made) if made.shape == self.found[name].shape else None

    def _difference(self, name: str, reference: torch.Tensor) -> Difference:
        return self._apart(name, reference, self.found[name])

    def _apart(self, name: str, reference: torch.Tensor, other: torch.Tensor) -> Difference:
        if reference.shape != other.shape:
            raise InputError(
                f"{name} has the sizes {list(other.shape)} in {self.dump}, and {list(reference.shape)} on the CPU: "
                "it was saved by another file, or on other inputs"
            )
        is_summary = self._tap(name).form == STATISTICS
        return statistics_difference(reference, other) if is_summary else difference(reference, other)
