"""A model run again and again on a device, under conditions that must not matter: the same bits, and the right ones.

Memory full of NaN, other shapes of workgroups, several threads, pauses, other sizes in between: what differs then is a
race, a read of what nobody wrote, or a driver that computes wrongly.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from mobopt.errors import InputError, MoboptError
from mobopt.frontends.open_source import whole_source_of
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.literals import bytes_of
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ops.state import changed_attributes
from mobopt.runtimes.bounds import bounds_of
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.example_inputs import ExampleInputs, choose_inputs
from mobopt.samples.inputs import SEED
from mobopt.tools.comparison import tolerance_of
from mobopt.tools.differences import difference

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.engine.device import Device

SAME, DIFFERS, WRONG, FAILED, REFUSED = "same", "differs", "wrong", "failed", "refused"
VERDICTS = {
    SAME: "every run gave the same bits, within the tolerance of the CPU's result",
    DIFFERS: "runs gave different results: a race, or a read of memory that nobody wrote, or a bad driver",
    WRONG: "every run gave the same bits, and they are wrong",
    FAILED: "a run ended in an error",
    REFUSED: "the model does not take such inputs; nothing was run",
}
VARIANTS = ("workgroups-32", "workgroups-64", "workgroups-256", "second-product", "shared-products", "no-texels")
"""Switches that choose other kernels, or other shapes of workgroups."""
_LOOKS = 8
"""Runs in which the first layer that differs is looked for."""
_FEWEST, _SHARE = 3, 10
"""Runs of a condition that needs few: at least, and as a part of all."""
_LARGEST_GROWTH = 4
"""How much larger than the example a size within declared bounds is tried."""


@dataclass(frozen=True)
class Spot:
    """Where two results are different."""

    output: int
    index: tuple[int, ...]
    """Of the first element."""
    values: tuple[float, float]
    """What the first run made there, and what another one."""
    elements: int
    """How many differ."""
    of: int


@dataclass(frozen=True)
class Condition:
    """Runs under one condition.

    Attributes:
        name: in words.
        runs: how many there were.
        wanted: how many there would be with more time; 0 if the time was what was asked for.
        distinct: how many different results they gave, bit by bit.
        error: of the worst of them, from the CPU's, over the largest magnitude of an output.
        verdict: see :data:`VERDICTS`.
        spot: where results are different, if they are.
        layer: the first layer that is different from run to run, or wrong; empty if nothing is, or it was not found.
        message: the error, if one was raised.
        seconds: what the runs took.
    """

    name: str
    runs: int
    wanted: int
    distinct: int
    error: float
    verdict: str
    spot: Spot | None
    layer: str
    message: str
    seconds: float


@dataclass(frozen=True)
class Stress:
    """Whether a device computed the same, and the right, under every condition.

    Attributes:
        model: its name.
        device: in words.
        driver: as it calls itself.
        quirks: names of what is known of the driver.
        switches: what is chosen otherwise on the device.
        inputs: in words.
        tolerance: the error that was let pass, over the largest magnitude of an output.
        conditions: in the order of the runs.
        seconds: that all of it took.
    """

    model: str
    device: str
    driver: str
    quirks: tuple[str, ...]
    switches: tuple[str, ...]
    inputs: str
    tolerance: float
    conditions: tuple[Condition, ...]
    seconds: float

    @property
    def passes(self) -> bool:
        """Whether nothing differs, and nothing failed."""
        return all(item.verdict in (SAME, REFUSED) for item in self.conditions)

    @property
    def cut(self) -> tuple[str, ...]:
        """Names of the conditions that had time for fewer runs than were wanted."""
        return tuple(item.name for item in self.conditions if item.verdict != FAILED and item.runs < item.wanted)


def stress(
    model: object,
    *,
    device: int | str | None = None,
    method: str = "forward",
    example_inputs: ExampleInputs | None = None,
    replays: int = 100,
    seconds: float = 60.0,
    threads: int = 2,
    minutes: float = 0.0,
    pause: float = 0.0,
    sizes: Sequence[Sequence[Any]] = (),
    variants: Sequence[str] = VARIANTS,
    tolerance: float | None = None,
    show: Callable[[str], None] = lambda step: None,
) -> Stress:
    """Run a model many times on a device, and compare the results bit by bit, and with the CPU's.

    Args:
        model: a model or an optimised file, as :func:`mobopt.compare` takes them.
        device: a number or a part of a name; None for the best.
        method: the method that is run.
        example_inputs: its arguments, or arguments of several methods by name.
        replays: runs of the conditions that need many: plain, with NaN in memory, in threads.
        seconds: for all runs of all conditions, beside what the first of each prepares; a condition whose share is over
            ends after three runs or more. As long again layers that differ are looked for. 0: no bound.
        threads: how many call at once; less than 2 leaves that condition out.
        minutes: of a long run, beside the others.
        pause: seconds before each call of the long run, or of ten calls without one: devices save power in between.
        sizes: arguments of other sizes, each a list; beside them, those within the bounds that the model was exported
            with.
        variants: switches that choose other kernels (:data:`mobopt.runtimes.vulkan.engine.quirks.SWITCHES`).
        tolerance: the error that is let pass, over the largest magnitude of an output; without it 1e-4, and 1e-2 and
            8e-2 of weights in float16 and bfloat16.
        show: is told each step.

    Returns:
        What came of each condition; ``passes`` says whether nothing differs.

    Raises:
        InputError: an argument can't be used, or no inputs are known.
        DeviceError: there is no such device.
    """
    from mobopt.runtimes.vulkan.engine.devices import open_device
    from mobopt.runtimes.vulkan.engine.quirks import SWITCHES, quirks_of

    if replays < 2:
        raise InputError(f"replays={replays}: give at least 2 replays, for one has nothing to differ from")
    limits = {"seconds": seconds, "threads": threads, "minutes": minutes, "pause": pause}
    for name, value in limits.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name}={value}: give a number that is not negative, nor infinite")
    unknown = [name for name in variants if name not in SWITCHES]
    if unknown:
        raise InputError(f"there is no variant {unknown[0]!r}; choose of {', '.join(SWITCHES)}")
    started = time.perf_counter()
    show("reading")
    source = whole_source_of(model, example_inputs)
    tolerance = tolerance_of(tolerance, [source])
    chosen = choose_inputs(source, example_inputs)
    arguments = chosen.by_method.get(method)
    if method not in source.program.methods or arguments is None:
        raise InputError(
            f"no inputs are known that {source.name} takes in {method}; give them with --input x.npy or "
            f"--random 1,3,224,224; its methods are {', '.join(source.program.methods)}"
        )
    opened = open_device(device)
    work = _Work(opened, source.program, method, list(arguments), replays, tolerance, show)
    every_size = [*sizes, *_bounded(source.program, method, arguments)]
    conditions = list(work.conditions(seconds or math.inf, threads, minutes, pause, every_size, variants))
    info = opened.info
    known = quirks_of(info.driver_id, info.vendor_id, info.driver_version)
    return Stress(
        source.name,
        str(info),
        info.driver,
        tuple(quirk.name for quirk in known),
        tuple(sorted(info.switches)),
        str(chosen.of([method])),
        tolerance,
        tuple(conditions),
        time.perf_counter() - started,
    )


def _bounded(program: Program, method: str, arguments: Sequence[Any]) -> Iterator[list[Any]]:
    """Arguments with the least, the middle and the largest sizes that a model was exported for."""
    declared = bounds_of(program).get(method)
    if declared is None:
        return
    generator = torch.Generator().manual_seed(SEED)
    for part in (0.0, 0.5, 1.0):
        ranges = iter(declared)

        def resized(tensor: torch.Tensor, part: float = part, ranges: Any = ranges) -> torch.Tensor:
            sizes = list(tensor.shape)
            for dim, bounds in enumerate(next(ranges, ())):
                if bounds is not None:
                    most = max(min(bounds[1], _LARGEST_GROWTH * sizes[dim]), bounds[0])
                    sizes[dim] = bounds[0] + round(part * (most - bounds[0]))
            if tensor.dtype.is_floating_point:
                return torch.randn(sizes, generator=generator).to(tensor.dtype)
            return torch.zeros(sizes, dtype=tensor.dtype)  # indices of anything

        yield [map_leaves(argument, torch.Tensor, resized) for argument in arguments]


@dataclass
class _Seen:
    """Results of one condition: each different one once."""

    results: dict[bytes, list[torch.Tensor]]
    runs: int = 0

    def add(self, result: Any) -> None:
        """Count a result."""
        tensors = [tensor.detach().clone() for tensor in leaves_of(result, torch.Tensor)]
        self.results.setdefault(_digest(tensors), tensors)
        self.runs += 1


class _Pace:
    """How many of the runs that are wanted there is time for, and how far they are."""

    def __init__(self, seconds_a_run: float, show: Callable[[str], None]) -> None:
        self._seconds_a_run, self._show = seconds_a_run, show
        self._name = ""
        self.wanted = 0
        """Runs of this condition."""

    def begin(self, name: str) -> None:
        """Another condition."""
        self._name, self.wanted = name, 0
        self._show(name)

    def runs(self, wanted: int, pause: float = 0.0) -> Iterator[int]:
        """The numbers of the runs, as many as are wanted in their share of the time, three at least.

        What the first run takes does not count, for it prepares. Pauses do not either.
        """
        self.wanted = wanted
        share = wanted * (self._seconds_a_run + pause)
        end = math.inf
        for number in range(wanted):
            if number >= _FEWEST and time.monotonic() >= end:
                return
            self._show(f"{self._name}: {number + 1} of {wanted}")
            yield number
            if number == 0:
                end = time.monotonic() + share


class _Work:
    """The conditions, one after the other."""

    def __init__(
        self,
        device: Device,
        program: Program,
        method: str,
        arguments: list[Any],
        replays: int,
        tolerance: float,
        show: Callable[[str], None],
    ) -> None:
        self.device, self.program, self.method, self.arguments = device, program, method, arguments
        self.replays, self.tolerance, self.show = replays, tolerance, show
        self.expected = self._reference(arguments)
        self.first: list[torch.Tensor] | None = None
        """What the device makes of the example, before all conditions."""
        self.pace = _Pace(math.inf, show)
        self.search_seconds = math.inf
        """Left for looking for layers."""

    def conditions(
        self,
        seconds: float,
        threads: int,
        minutes: float,
        pause: float,
        sizes: Sequence[Sequence[Any]],
        variants: Sequence[str],
    ) -> Iterator[Condition]:
        """Run them."""
        few = max(_FEWEST, self.replays // _SHARE)
        runs = self.replays * (2 + (threads > 1)) + few * (2 * len(sizes) + len(variants))
        self.pace, self.search_seconds = _Pace(seconds / runs, self.show), seconds
        yield self._condition("replays", self._repeated(self.replays))
        with self._assumed(poisons=True):
            yield self._condition("NaN in memory before each", self._repeated(self.replays))
        if threads > 1:
            yield self._condition(f"{threads} threads", self._threaded(threads, self.replays))
        for other in sizes:
            yield from self._sizes(list(other), few)
        usual = self.device.info.switches
        for name in variants:
            switches = frozenset({*(item for item in usual if "workgroups" not in item), name})
            with self._assumed(switches, poisons=True):  # else what a kernel left out may be there from before
                yield self._condition(name, self._repeated(few), is_variant=True)
        if minutes:
            words = f"{minutes:g} minutes" + (f", pauses of {pause:g} s" if pause else "")
            yield self._condition(words, self._lasting(60 * minutes, pause))
        elif pause:
            yield self._condition(f"pauses of {pause:g} s", self._repeated(few, pause))

    def _sizes(self, arguments: list[Any], runs: int) -> Iterator[Condition]:
        """Other sizes, and the example's afterwards."""
        words = ", ".join("x".join(map(str, tensor.shape)) or "number" for tensor in leaves_of(arguments, torch.Tensor))
        name = f"sizes {words}"
        try:
            expected = self._reference(bind_arguments(self.program, self.method, arguments, {}))
        except MoboptError as error:
            yield Condition(name, 0, 0, 0, 0.0, REFUSED, None, "", str(error), 0.0)
            return

        def run(see: Callable[[Any], None]) -> None:
            with self._calls() as call:
                for _ in self.pace.runs(runs):
                    see(call(arguments))

        yield self._condition(name, run, expected=expected)

        def back(see: Callable[[Any], None]) -> None:
            with self._calls() as call:
                for _ in self.pace.runs(runs):
                    call(arguments)
                    see(call(self.arguments))

        yield self._condition(f"after {name}", back)

    def _condition(
        self,
        name: str,
        run: Callable[[Callable[[Any], None]], None],
        *,
        is_variant: bool = False,
        expected: list[torch.Tensor] | None = None,
    ) -> Condition:
        """Run, and say what came of it.

        Args:
            name: in words.
            run: calls the model, and gives each result to what it is given.
            is_variant: whether other kernels compute it, whose bits may be others.
            expected: by the CPU, if not for the example.
        """
        self.pace.begin(name)
        started, message = time.perf_counter(), ""
        seen = _Seen({})
        is_example = expected is None
        if self.first is not None and is_example and not is_variant:
            seen.results[_digest(self.first)] = self.first
        try:
            run(seen.add)
        except MoboptError as error:
            message = str(error)
        seconds = time.perf_counter() - started
        results = list(seen.results.values())
        if self.first is None and results:
            self.first = results[0]
        right = self.expected if expected is None else expected
        worst = max((_error(right, result) for result in results), default=0.0)
        verdict = FAILED if message else DIFFERS if len(results) > 1 else WRONG if worst > self.tolerance else SAME
        layer = self._layer(verdict) if is_example else ""
        spot = _spot(results[0], results[1]) if len(results) > 1 else None
        return Condition(name, seen.runs, self.pace.wanted, len(results), worst, verdict, spot, layer, message, seconds)

    # Runs.

    def _repeated(self, runs: int, pause: float = 0.0) -> Callable[[Callable[[Any], None]], None]:
        """So many calls."""

        def run(see: Callable[[Any], None]) -> None:
            with self._calls() as call:
                for _ in self.pace.runs(runs, pause):
                    time.sleep(pause)
                    see(call(self.arguments))

        return run

    def _lasting(self, seconds: float, pause: float) -> Callable[[Callable[[Any], None]], None]:
        """Calls for so long, two at least."""

        def run(see: Callable[[Any], None]) -> None:
            end = time.monotonic() + seconds
            with self._calls() as call:
                for number in itertools.count():
                    if number >= 2 and time.monotonic() >= end:
                        return
                    time.sleep(pause)
                    see(call(self.arguments))

        return run

    def _threaded(self, threads: int, runs: int) -> Callable[[Callable[[Any], None]], None]:
        """Calls of one program from several threads."""

        def run(see: Callable[[Any], None]) -> None:
            numbers, turn = self.pace.runs(runs), threading.Lock()

            def call_on(_: int) -> None:
                while True:
                    with turn:
                        if next(numbers, None) is None:
                            return
                    result = call(self.arguments)
                    with turn:
                        see(result)

            with self._calls() as call, ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(call_on, range(threads)):
                    pass

        return run

    @contextmanager
    def _calls(self) -> Iterator[Callable[[list[Any]], Any]]:
        """What calls the model on the device; one with state begins anew each time."""
        from mobopt.runtimes.vulkan.program import VulkanProgram

        def once(arguments: list[Any]) -> Any:
            program = VulkanProgram(self.program, self.device)
            try:
                return copy.deepcopy(program.run(self.method, self._seeded(arguments)))
            finally:
                program.close()

        if changed_attributes(self.program):
            yield once
            return
        program = VulkanProgram(self.program, self.device)
        try:
            yield lambda arguments: program.run(self.method, self._seeded(arguments))
        finally:
            program.close()

    def _seeded(self, arguments: list[Any]) -> list[Any]:
        torch.manual_seed(SEED)
        return bind_arguments(self.program, self.method, copy.deepcopy(arguments), {})

    def _reference(self, arguments: list[Any]) -> list[torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            result = Interpreter(self.program).run(self.method, self._seeded(arguments))
        return [tensor.detach().clone() for tensor in leaves_of(result, torch.Tensor)]

    @contextmanager
    def _assumed(self, switches: frozenset[str] | None = None, poisons: bool = False) -> Iterator[None]:
        """A device with other switches, or whose memory is filled before each use."""
        device, info = self.device, self.device.info
        device.poisons = poisons
        if switches is not None:
            device.info = replace(info, switches=switches)
        try:
            yield
        finally:
            device.info, device.poisons = info, False

    # The layer.

    def _layer(self, verdict: str) -> str:
        """The first layer that is different from run to run, or wrong."""
        if verdict not in (DIFFERS, WRONG):
            return ""
        from mobopt.tools.stress_layers import first_unsteady, first_wrong

        if self.search_seconds <= 0:
            return "not looked for, as the time is over; --seconds gives more"
        started = time.monotonic()
        try:
            self.show("looking for the layer")
            if verdict == DIFFERS:
                found = first_unsteady(self.program, self.device, self.method, self._seeded(self.arguments), _LOOKS)
                if found:
                    return found
            arguments = self._seeded(self.arguments)
            return first_wrong(self.program, self.device, self.method, arguments, self.tolerance, self.show)
        except MoboptError as error:
            return f"not found: {error}"
        finally:
            self.search_seconds -= time.monotonic() - started


def _digest(tensors: Sequence[torch.Tensor]) -> bytes:
    """The same for the same bits."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        found.update(bytes_of(tensor))
    return found.digest()


def _error(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return math.inf
    return max((difference(left, right).error for left, right in zip(expected, found, strict=True)), default=0.0)


def _spot(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> Spot | None:
    for number, (left, right) in enumerate(zip(one, two, strict=False)):
        if left.shape != right.shape or _digest([left]) == _digest([right]):
            continue
        apart = (left != right) & ~(left.isnan() & right.isnan())
        places = apart.reshape(-1).nonzero()
        first = int(places[0]) if len(places) else 0
        index = tuple(int(item) for item in torch.unravel_index(torch.tensor(first), left.shape)) if left.dim() else ()
        values = [complex(item.reshape(-1)[first].item()).real for item in (left, right)]
        return Spot(number, index, (values[0], values[1]), len(places), left.numel())
    return None
