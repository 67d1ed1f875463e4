"""What torch says of functions that mobopt calls for its callers, who can do nothing about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def of_torchscript_unsaid() -> Iterator[None]:
    """Keep to itself that ``torch.jit`` is deprecated, which torch tells everybody by a FutureWarning since 2.15."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\W*torch\.jit\.\w+\W* is deprecated")
        yield
