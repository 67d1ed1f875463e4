"""Which cases of a large family the default run takes; ``-m sweep`` has the others."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(
    cases: Iterable[Any],
    one_in: int,
    key: Callable[[Any], str] | None = None,
    others: pytest.MarkDecorator = pytest.mark.sweep,
) -> list[Any]:
    """Parameters of a test, of which a fixed sample of about one in so many is run by default.

    Args:
        cases: one value each, or a tuple of several.
        one_in: 2 or more.
        key: name of a case, by which it is chosen; by default its ``repr``, which must not depend on the machine.
        others: what marks those that aren't.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if chosen else others,
            id=None if key is None else key(case),
        )
        for case in cases
        for chosen in [zlib.crc32((repr(case) if key is None else key(case)).encode()) % one_in == 0]
    ]
