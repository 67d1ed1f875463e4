"""How far off each pointwise function of mobopt's runtime is on a device: ``python -m mobopt.tools.accuracy [DEVICE]``.

Every exponent of float32 with both signs and many mantissas, what lies beside the places where a function changes its
form, and the special values, against float64. The result goes to standard output as JSON; ``docs/accuracy.md`` is made
from such files (see :mod:`mobopt.tools.accuracy_page`).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch

from mobopt.deprecations import of_torchscript_unsaid
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import OWN_RUNTIME, Settings
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.tools.accuracy_functions import Compute, Domain, Function, functions

SMALLEST = 2.0**-126
"""Below are the subnormals, which devices may take for zero."""

DENSE = 2000
"""Mantissas of each exponent and sign in the published table."""

_LARGEST = torch.finfo(torch.float32).max
_SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 2.5, -1.5)
_SEAMS = (
    *(0.25, math.sqrt(0.5), 0.375, 0.41421356, 0.5, 0.625, 0.75, 1.0, math.sqrt(2), 2.0, 2.4142135, 3.0, 6.0, 8.0),
    *(9.0, 13.0, 15.0, 18.0, 20.0, 87.3365, 88.0, 88.7228, 89.416, 92.3, 103.97, 126.0, 127.0, 128.0, 149.0),
    *(4096.0, 6400.0, 32768.0, 2.0**24, 1e10, 1.8446743e19, 4e37, 1.7014118e38, _LARGEST),
    *(count * math.pi / 2 for count in (1, 2, 3, 4, 7, 100, 4074, 4075, 10001, 1_000_003)),
)
_AROUND = 20
"""Neighbours on each side of a seam."""


@dataclass(frozen=True)
class Accuracy:
    """What was measured of one function."""

    ulp: float
    """The largest error, in units in the last place, of normal arguments; subnormal results may be zero."""
    at: tuple[float, ...]
    """The arguments where it is."""
    found: float
    wanted: float
    subnormals: bool
    """Whether subnormal arguments and results are within the bar as well; devices may flush them to zero."""
    special: tuple[str, ...]
    """Zeros, infinities and NaN of other results or signs than torch's."""


def measure(device: Device, function: Function, mantissas: int = DENSE) -> Accuracy:
    """Measure one function on a device.

    Args:
        device: where it runs; a CPU fallback is an error.
        function: what is measured.
        mantissas: how many of each exponent and sign.

    Raises:
        UnsupportedError: the device has no kernel for it.
    """
    arguments = samples(function.domain, mantissas)
    specials = special_arguments(len(arguments))
    count = specials[0].numel()
    found = run(device, function.compute, [torch.cat(pair) for pair in zip(specials, arguments, strict=True)])
    special = _special_differences(function, specials, found[:count])
    found, wanted = found[count:].double(), _reference(function, arguments)
    wide = [argument.double() for argument in arguments]
    scale = wanted.abs() if function.scale is None else function.scale(*wide)
    error = _errors(found, wanted, scale)
    tiny = (scale.abs() < SMALLEST * (2.0**24 if function.small_terms else 1.0)) & (wanted != 0)
    normal = torch.stack([argument.abs() >= SMALLEST for argument in wide]).all(0)
    flushed = torch.where(tiny, (error - SMALLEST / _unit(scale)).clamp(min=0.0), error)
    worst = int(torch.where(normal, flushed, -1.0).argmax())
    return Accuracy(
        float(flushed[worst]),
        tuple(float(argument[worst]) for argument in arguments),
        float(found[worst]),
        float(wanted[worst]),
        not bool((error[tiny | ~normal] > max(function.bar, 1.0)).any()),
        special,
    )


def run(device: Device, compute: Compute, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a function of tensors gives on a device, through mobopt's own runtime.

    Raises:
        UnsupportedError: the device has no kernel for it.
    """
    with of_torchscript_unsaid():
        traced = torch.jit.trace(_Calls(compute), tuple(arguments), check_trace=False)  # type: ignore[no-untyped-call]
    program = program_from_script_module(traced)
    run_passes(program, pipeline_for(Settings("vulkan", OWN_RUNTIME)))
    runner = VulkanProgram(program, device, fallback="error")
    try:
        result = runner(*arguments)
    finally:
        runner.close()
    assert isinstance(result, torch.Tensor)
    return result


class _Calls(torch.nn.Module):
    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self._compute = compute

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self._compute(*arguments)


def special_arguments(count: int) -> list[torch.Tensor]:
    """Zeros, infinities, NaN and small numbers in every combination."""
    return [torch.tensor(column) for column in zip(*product(_SPECIAL, repeat=count), strict=True)]


def samples(domain: Domain, mantissas: int) -> list[torch.Tensor]:
    """Arguments of a domain, subnormals included; the same in every call."""
    generator = torch.Generator().manual_seed(mantissas)
    if domain == Domain.ONE:
        return [_floats(mantissas, generator)]
    count = 128 * mantissas
    if domain == Domain.POWERS:
        return _powers(count, generator)
    if domain == Domain.ZETA:
        return _zetas(count, generator)
    first, second = (_of_exponents(torch.randint(0, 255, (count,), generator=generator), generator) for _ in range(2))
    near = second.abs().log2().floor() + torch.randint(-12, 13, (count,), generator=generator)
    close = _of_exponents(near.clamp(-126, 127).long() + 127, generator)
    whole = (second * torch.randint(1, 5000, (count,), generator=generator)).clamp(-_LARGEST, _LARGEST)
    if domain == Domain.NEAR:
        return [torch.cat((close, whole)), second.repeat(2)]
    return [torch.cat((first, close, whole)), second.repeat(3)]


def _floats(mantissas: int, generator: torch.Generator) -> torch.Tensor:
    exponents = torch.arange(255).repeat_interleave(mantissas)
    seams = torch.tensor(_SEAMS).view(torch.int32)[:, None] + torch.arange(-_AROUND, _AROUND + 1, dtype=torch.int32)
    largest = torch.tensor(_LARGEST).view(torch.int32)
    beside = seams.flatten().clamp(max=int(largest)).view(torch.float32)
    bounds = (torch.arange(255)[:, None] * 2**23 + torch.tensor([0, 1, 2**23 - 1])).flatten()
    found = [_of_exponents(exponents, generator).abs(), bounds.to(torch.int32).view(torch.float32), beside]
    positive = torch.cat(found)
    return torch.cat((positive, -positive))


def _of_exponents(biased: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers of the given exponent bits, with random mantissas and signs."""
    mantissa = torch.randint(0, 2**23, biased.shape, generator=generator)
    sign = torch.randint(0, 2, biased.shape, generator=generator) * -(2**31)
    return (sign + biased * 2**23 + mantissa).to(torch.int32).view(torch.float32)


def _powers(count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Bases of every size and near one, with powers from zero to infinity; bases of both signs with whole exponents."""
    bases = _of_exponents(torch.randint(0, 255, (count,), generator=generator), generator).abs()
    places = torch.randint(1, 23, (count,), generator=generator)
    beside_one = 1 + torch.randn(count, generator=generator) * 2.0**-places
    positive = torch.cat((bases, beside_one.abs()))
    logarithms = torch.rand(2 * count, generator=generator) * 300 - 150
    exponents = (logarithms / positive.double().log2()).float().nan_to_num(1.0)
    signed = _of_exponents(torch.randint(97, 158, (count,), generator=generator), generator)
    whole = torch.randint(-40, 41, (count,), generator=generator).float()
    return [torch.cat((positive, signed)), torch.cat((exponents, whole))]


def _zetas(count: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Exponents above one, and numbers from 2^-20 to 2^20."""
    exponents = 1 + torch.exp2(torch.rand(count, generator=generator) * 9 - 6)
    return [exponents, torch.exp2(torch.rand(count, generator=generator) * 40 - 20)]


def _reference(function: Function, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
    return function.reference(*(argument.double() for argument in arguments)).double()


def _errors(found: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Differences in units in the last place of ``scale``. Infinity is right from where float32 rounds to it."""
    error = (found.clamp(-(2.0**128), 2.0**128) - wanted.clamp(-(2.0**128), 2.0**128)).abs() / _unit(scale)
    both_nan = found.isnan() & wanted.isnan()
    return torch.where(both_nan, 0.0, error).nan_to_num(nan=math.inf)


def _unit(scale: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.frexp(scale.clamp(min=SMALLEST, max=_LARGEST)).exponent.double() - 24)


def _special_differences(function: Function, arguments: Sequence[torch.Tensor], found: torch.Tensor) -> tuple[str, ...]:
    wanted = _reference(function, arguments)
    found = found.double()
    infinite_or_zero = (wanted == 0) | ~wanted.isfinite()
    same = (found == wanted) | (found.isnan() & wanted.isnan()) | ~infinite_or_zero
    if function.zero_signs:
        same &= (found.signbit() == wanted.signbit()) | (wanted != 0)
    return tuple(
        f"{function.name}({', '.join(f'{float(argument[place]):g}' for argument in arguments)}) is "
        f"{float(found[place]):g}, not {float(wanted[place]):g}"
        for place in (~same).nonzero().flatten().tolist()
    )


def main() -> None:
    """Measure every function, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", help="a number or a part of a name of `mobopt devices`")
    parser.add_argument("--mantissas", type=int, default=DENSE)
    parser.add_argument("--function", action="append", help="its name; by default all of them")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    device = open_device(arguments.device)
    rows = {}
    for function in functions():
        if arguments.function is None or function.name in arguments.function:
            row = rows[function.name] = measure(device, function, arguments.mantissas)
            sys.stderr.write(f"{function.name}: {row.ulp:.3g} ulp at {row.at}\n")
    driver = {"device": device.info.name, "driver": device.info.driver, "mantissas": arguments.mantissas}
    content = {**driver, "functions": {name: asdict(row) for name, row in rows.items()}}
    json.dump(content, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
