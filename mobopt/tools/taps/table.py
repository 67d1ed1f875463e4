"""What a tapped file says of itself: which values it returns, under which names, and where in the model they come from.

The table is an extra file of the archive, which :mod:`mobopt.tools.taps.comparison` reads. What comes from a file is
checked.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mobopt.errors import InputError

TABLE_FILE = "mobopt_taps.json"
"""Name of the extra file."""
_FORMAT = 3
ELEMENTS, STATISTICS = "elements", "statistics"
"""What is returned of a value: all of it, or numbers about it and a sample."""
INPUT, OUTPUT = "input", "output"
"""How the names of inputs and outputs among the taps begin; ``input.x``, ``output``, ``output.1``."""


@dataclass(frozen=True)
class Tap:
    """A value that a tapped method returns."""

    key: str
    """Its name in what the method returns."""
    node: str
    """What makes it: ``vulkan_prepack::run_conv2d_context %_1.2``."""
    origin: tuple[str, ...]
    """The nodes of the model that it stands for, in order; the value is that of the last."""
    source: tuple[str, ...]
    """Lines of the model's source."""
    sizes: tuple[int, ...] | None
    """On the example inputs; None if the example does not come to it."""
    dtype: str
    form: str
    """``elements`` or ``statistics``."""
    step: int = 1
    """Of the sample beside statistics: every so many elements, in row-major order."""
    repeats: bool = False
    """Whether it stands in a branch or a loop, and is returned as often as it is made: as ``KEY.0``, ``KEY.1``."""

    @property
    def inside(self) -> tuple[str, ...]:
        """Nodes of the model that have no value of their own, for a fusion or a fold made them a part of this one."""
        return self.origin[:-1]

    @property
    def length(self) -> int:
        """Elements that are returned on inputs of the example's sizes."""
        return 0 if self.sizes is None else math.prod(self.sizes)


@dataclass(frozen=True)
class TapTable:
    """All taps of a file."""

    method: str
    """The method that was tapped."""
    tapped: str
    """The method that returns its values too."""
    example: str
    """The method without arguments that runs it on inputs that the file holds; empty if there is none."""
    taps: tuple[Tap, ...]

    @cached_property
    def by_key(self) -> dict[str, Tap]:
        """The taps by their keys."""
        return {tap.key: tap for tap in self.taps}

    def find(self, name: str) -> Tap | None:
        """The tap that a name in what the method returns is of; None if it is of none."""
        tap = self.by_key.get(name)
        if tap is not None and not tap.repeats:
            return tap
        key, _, turn = name.rpartition(".")
        tap = self.by_key.get(key)
        return tap if tap is not None and tap.repeats and turn.isdecimal() else None

    def to_json(self) -> bytes:
        """As the file holds it."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=1).encode()


def table_of(extra_files: Mapping[str, bytes | str], name: str) -> TapTable:
    """The table of a file.

    Args:
        extra_files: of the file.
        name: of the file, for messages.

    Raises:
        InputError: it has none, or one that can't be read.
    """
    content = extra_files.get(TABLE_FILE)
    if content is None:
        raise InputError(f"{name} has no taps; make a file that has some with mobopt tap {name} -o tapped.ptl")
    try:
        return _parsed(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{name}: {TABLE_FILE} can't be read ({error}); make the file again with mobopt tap") from None


def _parsed(data: Mapping[str, Any]) -> TapTable:
    if data["format"] != _FORMAT:
        raise ValueError(f"its format is {data['format']!r}, and this mobopt reads {_FORMAT}")
    taps = []
    for item in data["taps"]:
        form, step = _text(item["form"]), item["step"]
        if form not in (ELEMENTS, STATISTICS) or not isinstance(step, int) or step < 1:
            raise ValueError(f"{item['key']!r} has the form {form!r} and the step {step!r}")
        sizes = None if item["sizes"] is None else tuple(item["sizes"])
        if sizes is not None and not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"{item['key']!r} has the sizes {item['sizes']!r}")
        names, origin, source = (_text(item["key"]), _text(item["node"])), item["origin"], item["source"]
        repeats = bool(item["repeats"])
        taps.append(Tap(*names, _texts(origin), _texts(source), sizes, _text(item["dtype"]), form, step, repeats))
    return TapTable(_text(data["method"]), _text(data["tapped"]), _text(data["example"]), tuple(taps))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(_text, values))
