"""Calls whose results don't fit in the machine's memory are refused, where the system would kill the process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from mobopt.errors import InputError
from mobopt.ir import Node
from mobopt.ir.nests import leaves_of
from mobopt.ops.records import Trait, has_trait

_MEMORY = Path("/proc/meminfo")
_LEAST = 2**30
"""Bytes of results below which nobody asks."""
_COPYING = (Trait.CONVOLUTION, Trait.PRODUCT)
"""Operators whose kernels may copy operands and results into an order of their own."""


def check_memory(call: Node, args: Sequence[object]) -> None:
    """Refuse a call that needs more memory than there is.

    Raises:
        InputError: it does; on systems that don't tell what is available nothing is refused.
    """
    needed = sum(math.prod(value.sizes) * value.dtype.itemsize for value in call.outputs)
    if needed < _LEAST or has_trait(call.qualified_op, Trait.VIEW):
        return
    if any(has_trait(call.qualified_op, trait) for trait in _COPYING):
        needed = 2 * needed + sum(tensor.nbytes for tensor in leaves_of(list(args), torch.Tensor))
    available = available_bytes()
    if available is not None and needed > available:
        sizes = ", ".join(str(list(value.sizes)) for value in call.outputs)
        place = f" at {call.source}" if call.source else ""
        raise InputError(
            f"{call.qualified_op}{place} needs {needed / 1e9:.1f} GB of memory on the CPU to make {sizes}, and "
            f"{available / 1e9:.1f} GB are available; give smaller inputs"
        )


def available_bytes() -> int | None:
    """Memory that processes can have without swapping, as Linux tells it; None elsewhere."""
    try:
        lines = _MEMORY.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
