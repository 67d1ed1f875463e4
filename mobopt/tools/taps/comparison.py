"""What a phone made of the taps of a file, beside what the CPU makes of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import read_bundle
from mobopt.errors import InputError
from mobopt.ir import Node, Program, Value
from mobopt.ir.arguments import argument_name
from mobopt.samples.agreement import RELATIVE_TOLERANCE
from mobopt.samples.example_inputs import choose_inputs_of_bundle
from mobopt.tools.comparison_results import Comparison, Layer, Output, verdict_of
from mobopt.tools.differences import Difference, difference, rank_changes
from mobopt.tools.taps.dump import read_dump
from mobopt.tools.taps.graph import tapped_values
from mobopt.tools.taps.observation import run_forced, run_watched
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
    taps = {tap.key: tap for tap in table.taps}
    found, unknown = read_dump(Path(dump), taps)
    arguments = _arguments(program, table, found)
    show("running on the CPU")
    work = _Work(program, table, arguments, found, tolerance, float64, Path(dump).name)
    layers = [
        layer
        for key, tap in taps.items()
        if key in found and _kind(key) not in (INPUT, OUTPUT)
        for layer in [work.layer(tap)]
    ]
    outputs = [
        work.output(number, tap)
        for number, tap in enumerate(tap for tap in table.taps if _kind(tap.key) == OUTPUT)
        if tap.key in found
    ]
    if not layers and not outputs:
        raise InputError(f"the dump {dump} has the inputs alone; save all that the method {table.tapped} returns")
    missing = [key for key in taps if key not in found]
    return Comparison(
        f"{path.name} on CPU{' in float64' if float64 else ''}",
        Path(dump).name,
        ", ".join(key for key in taps if _kind(key) == INPUT and key in found) or "those that the file holds",
        table.method,
        tolerance,
        tuple(layers),
        tuple(outputs),
        tuple(f"{name}, which is no tap of the file" for name in unknown),
        len(missing),
        tuple(_remarks(table, missing)),
        time.perf_counter() - started,
    )


def _kind(key: str) -> str:
    return key.split(".")[0]


def _remarks(table: TapTable, missing: list[str]) -> list[str]:
    remarks = [f"not in the dump: {', '.join(missing)}"] if missing else []
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


@dataclass(frozen=True)
class _Place:
    """A tapped value and those tapped ones that it is computed from."""

    value: Value
    before: tuple[str, ...]


class _Work:
    """The references, and what is found of each tap."""

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
        self.places = _places(program, table)
        known = {tap.key: tap for tap in table.taps if tap.key in self.places and tap.key in found}
        forced = {
            self.places[key].value: found[key]
            for key, tap in known.items()
            if tap.form != STATISTICS and _kind(key) not in (INPUT, OUTPUT)
        }
        result, own = run_forced(program, method, arguments, forced)
        self.own = {key: own.get(self.places[key].value, result.get(key)) for key in known}
        self.errors = {
            tap.key: self._difference(tap, self.reference[tap.key]).error for tap in table.taps if tap.key in found
        }

    def layer(self, tap: Tap) -> Layer:
        """What is found of a tapped value."""
        total = self._difference(tap, self.reference[tap.key])
        place = self.places.get(tap.key)
        errors = [self.errors[key] for key in (() if place is None else place.before) if key in self.errors]
        worst = max(errors, default=0.0)
        own = self._own(tap, place)
        single = None if self.single is None else self._apart(tap, self.reference[tap.key], self.single[tap.key])
        growth = total.error / worst if 0 < worst < math.inf and total.error < math.inf else None
        is_whole = [item.key for item in self.table.taps if item.origin[-1:] == tap.origin[-1:]][-1:] == [tap.key]
        steps = tap.origin if is_whole and tap.origin else (tap.node,)  # several nodes may be steps to one value
        operators = tuple(text.partition(" %")[0] for text in steps)
        verdict = verdict_of(total, own, single, worst, growth, self.tolerance)
        return Layer(
            operators, tap.key, tap.source, tap.sizes, tap.dtype, 0, "tap", total, own, growth, single, verdict
        )

    def output(self, number: int, tap: Tap) -> Output:
        """What is found of a result."""
        reference, mine = self.reference[tap.key], self.found[tap.key]
        single = None if self.single is None else difference(reference, self.single[tap.key])
        return Output(number, tap.sizes, self._difference(tap, reference), single, rank_changes(reference, mine))

    def _own(self, tap: Tap, place: _Place | None) -> Difference | None:
        """The error that the layer makes of right or wrong values; None if those before it were not seen whole."""
        made = self.own.get(tap.key)
        if place is None or made is None:
            return None
        forms = {item.key: item.form for item in self.table.taps}
        hidden = [key for key in place.before if key not in self.found or forms[key] == STATISTICS]
        if any(self.errors.get(key, math.inf) > self.tolerance for key in hidden):
            return None
        return self._difference(tap, made)

    def _difference(self, tap: Tap, reference: torch.Tensor) -> Difference:
        return self._apart(tap, reference, self.found[tap.key])

    def _apart(self, tap: Tap, reference: torch.Tensor, other: torch.Tensor) -> Difference:
        if reference.shape != other.shape:
            raise InputError(
                f"{tap.key} has the sizes {list(other.shape)} in {self.dump}, and {list(reference.shape)} on the CPU: "
                "it was saved by another file, or on other inputs"
            )
        return statistics_difference(reference, other) if tap.form == STATISTICS else difference(reference, other)


def _places(program: Program, table: TapTable) -> dict[str, _Place]:
    """Where the taps lie in the graph, by their keys."""
    values = tapped_values(program.methods[table.tapped])
    keys: dict[Value, str] = {}
    for key, value in values.items():
        if _kind(key) not in (INPUT, OUTPUT):
            keys.setdefault(value, key)
    return {key: _Place(value, tuple(sorted(_before(value, keys)))) for key, value in values.items()}


def _before(value: Value, keys: Mapping[Value, str]) -> set[str]:
    """The nearest tapped values that a value is computed from."""
    found: set[str] = set()
    seen: set[Node] = set()
    waiting = [value.producer]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        inner = [item for block in node.blocks for step in (*block.walk(), block.returns) for item in step.inputs]
        for item in (*node.inputs, *inner):
            if item in keys:
                found.add(keys[item])
            else:
                waiting.append(item.producer)
    return found
