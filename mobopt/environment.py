"""The environment variables that mobopt reads: a misspelt one is said rather than passed over."""

from __future__ import annotations

import difflib
import logging
import os
from functools import cache

from mobopt.errors import InputError

_LOGGER = logging.getLogger("mobopt")
_PREFIX = "MOBOPT_"
VARIABLES = {
    "MOBOPT_DEVICE": "the Vulkan device to use: a number or a part of a name",
    "MOBOPT_CACHE_DIR": "where compiled pipelines are kept between processes",
    "MOBOPT_QUIRKS": "what kernels do otherwise for a driver: names of docs/debugging.md, or none",
    "MOBOPT_VALIDATION": "1: the Khronos validation layer watches every call",
    "MOBOPT_GLSL_COMPILER": "what builds shaders: slangpy or glslc",
}
"""What each is for."""


def is_on(name: str) -> bool:
    """Whether a variable is ``1``; ``0`` and none are off.

    Raises:
        InputError: it is anything else.
    """
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise InputError(f"{name}={value}: it is 1 (on) or 0 (off)")
    return value == "1"


def warn_of_unknown() -> None:
    """Log, once in a process, each variable with mobopt's prefix that it doesn't read."""
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in VARIABLES:
            _warn_of(name)


@cache
def _warn_of(name: str) -> None:
    known = [variable.removeprefix(_PREFIX) for variable in VARIABLES]
    close = difflib.get_close_matches(name.removeprefix(_PREFIX), known, 1)
    meant = f"did you mean {_PREFIX}{close[0]}?" if close else f"it reads {', '.join(VARIABLES)}"
    _LOGGER.warning("the environment variable %s means nothing to mobopt; %s", name, meant)
