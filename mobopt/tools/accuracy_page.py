"""The page ``docs/accuracy.md``, from what was measured on each driver.

``python -m mobopt.tools.accuracy DEVICE > docs/accuracy/DRIVER.json`` measures one, and
``python -m mobopt.tools.accuracy_page docs/accuracy/*.json > docs/accuracy.md`` makes the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mobopt.tools.accuracy import Accuracy
from mobopt.tools.accuracy_functions import MOVES, ON_INTEGERS, Function, functions

_HEAD = """# How exact pointwise functions are

Made from the files in `docs/accuracy` by `python -m mobopt.tools.accuracy_page docs/accuracy/*.json >
docs/accuracy.md`; `python -m mobopt.tools.accuracy DEVICE > docs/accuracy/DRIVER.json` makes such a file on a device.

mobopt's own runtime computes these functions by polynomials and argument reductions of its own (`shaders/glsl`), since
what Vulkan asks of a driver's built-ins is little, and undefined for large arguments. The table has the largest
difference from float64, in units in the last place (ulp) of float32, with the arguments where it is. A unit is that of
the result; for sums whose terms may cancel (`alpha`, `addcmul`, `addcdiv`, `lerp`), that of the larger term.

Measured are both signs of every exponent of float32, from the smallest normal number to the largest, each with many
mantissas, 20 neighbours on both sides of every place where a function changes its form or overflows, and of multiples
of pi / 2; functions of two arguments at pairs of any sizes, pairs of like sizes, and pairs whose quotient is close to a
whole number. Zeros with their signs, infinities and NaN are as in torch, in every combination of arguments.

*Subnormal* numbers (below 1.2e-38) are what a device makes of them: *kept* says that subnormal arguments and results
are within the bar too, *flushed* that some are zero. Logarithms, remainders and functions that are their argument near
zero (`sin`, `tanh`, `expm1`, ...) keep subnormal arguments on every device.
"""


def accuracy_page(files: Sequence[Path]) -> str:
    """The whole page in Markdown.

    Args:
        files: what :mod:`mobopt.tools.accuracy` printed, one for each driver.
    """
    drivers = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return "\n".join([_HEAD, *_table(drivers), *_rest()])


def _table(drivers: Sequence[dict[str, Any]]) -> Iterator[str]:
    for driver in drivers:
        yield f"- {driver['device']}: {driver['driver']}, {driver['mantissas']} mantissas of each exponent."
    yield ""
    names = [_short(driver["device"]) for driver in drivers]
    yield "| function | operators | bar, ulp | " + " | ".join(f"{name} | subnormals" for name in names) + " |"
    yield "|" + "---|" * (3 + 2 * len(names))
    for function in functions():
        found = [cell for driver in drivers for cell in _cells(driver["functions"].get(function.name))]
        operators = " ".join(f"`{name}`" for name in function.operators)
        yield f"| {function.name} | {operators} | {_bar(function)} | {' | '.join(found)} |"
    yield ""


def _short(device: str) -> str:
    return device.partition(" (")[0]


def _bar(function: Function) -> str:
    return "exact" if function.bar == 0 else "rounded" if function.bar < 1 else f"{function.bar:g}"


def _cells(row: dict[str, Any] | None) -> tuple[str, str]:
    """The largest error with its arguments, and what becomes of subnormal numbers."""
    if row is None:
        return "not measured", ""
    found = Accuracy(**row)
    if found.special:
        return "; ".join(found.special), ""
    subnormals = "kept" if found.subnormals else "flushed"
    if found.ulp == 0:
        return "exact", subnormals
    arguments = ", ".join(f"{argument:.9g}" for argument in found.at)
    return f"{found.ulp:.2f} at {arguments}", subnormals


def _rest() -> Iterator[str]:
    yield "Operators that only choose among numbers, and have no error: " + _listed(MOVES) + "."
    yield ""
    yield "Operators on integers and booleans alone: " + _listed(ON_INTEGERS) + "."
    yield ""


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    sys.stdout.write(accuracy_page([Path(name) for name in sys.argv[1:]]))
