"""Which layer of a model a device computes differently from run to run, or wrongly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mobopt.ir import Program
from mobopt.ir.literals import bytes_of
from mobopt.tools.comparison_results import AGREES, WRONG, Layer
from mobopt.tools.comparison_sides import CPU, CpuRunner, DeviceRunner, Runner, Side
from mobopt.tools.comparison_work import ComparisonWork
from mobopt.tools.layer_matching import Place, made_by

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.engine.device import Device

_TRIED = 3
"""Layers over the tolerance that are run alone one by one, before all are."""


def first_unsteady(program: Program, device: Device, method: str, arguments: Sequence[Any], runs: int) -> str:
    """The first layer whose value is another in some of several runs.

    Args:
        program: the model.
        device: as it is now: its switches count, and whether its memory is poisoned.
        method: the method's name.
        arguments: its arguments.
        runs: how often to run; each shows all values that fusions leave.

    Returns:
        The layer in words; empty if all are the same, as seeing them changes when what is computed.
    """
    runner = _device_runner(program, device, method)
    runner.survey(arguments)
    made = [item for item in made_by(runner.lines) if item.value.name in runner.made(item.line)]
    wanted = {item.place for item in made}
    seen: dict[Place, bytes] = {}
    unsteady: set[Place] = set()

    def keep(place: Place, tensor: torch.Tensor) -> None:
        digest = hashlib.blake2b(bytes_of(tensor)).digest()
        if seen.setdefault(place, digest) != digest:
            unsteady.add(place)

    for _ in range(runs):
        runner.run(arguments, wanted, keep)
        if unsteady:
            break
    for item in made:
        if item.place in unsteady:
            return _words(str(item.node.op), item.node.source, item.value.sizes)
    return ""


def first_wrong(
    program: Program,
    device: Device,
    method: str,
    arguments: Sequence[Any],
    tolerance: float,
    show: Callable[[str], None],
) -> str:
    """The first layer that is wrong by itself, else the first that is over the tolerance; empty if none is.

    Args:
        program: the model.
        device: as for :func:`first_unsteady`.
        method: the method's name.
        arguments: its arguments.
        tolerance: the error that is let pass.
        show: is told each step.
    """
    runners: tuple[Runner, Runner] = (
        CpuRunner(Side(CPU, program, CPU), method),
        _device_runner(program, device, method),
    )
    work = ComparisonWork(runners, arguments, tolerance, None, show)
    over = [
        (place, layer)
        for place, layer in zip(work.places, work.layers(alone=False), strict=True)
        if layer.total.error > tolerance
    ]
    for place, layer in over[:_TRIED]:
        if work.is_wrong_alone(place):
            return _layer_words(layer)
    layers = work.layers()  # a wrong one may be hidden, or come after many that magnify small errors
    found = next((layer for layer in layers if layer.verdict == WRONG), None)
    found = found or next((layer for layer in layers if layer.verdict != AGREES), None)
    return "" if found is None else _layer_words(found)


def _layer_words(layer: Layer) -> str:
    return _words(layer.title, ", ".join(layer.source), layer.sizes)


def _device_runner(program: Program, device: Device, method: str) -> DeviceRunner:
    return DeviceRunner(Side("the model", program, str(device.info.index)), method)


def _words(operator: str, source: str, sizes: Sequence[int]) -> str:
    return f"{operator} {'x'.join(map(str, sizes))}" + (f" at {source}" if source else "")
