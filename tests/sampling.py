"""Which cases of a large family the default run takes; ``-m sweep`` has the others."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], one_in: int) -> list[Any]:
    """Parameters of a test, of which a fixed sample of about one in so many is run by default.

    Args:
        cases: one value each, or a tuple of several.
        one_in: 2 or more.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if chosen else pytest.mark.sweep)
        for case in cases
        for chosen in [zlib.crc32(repr(case).encode()) % one_in == 0]
    ]
