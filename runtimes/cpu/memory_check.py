"""Calls whose results don't fit in the machine's memory are refused, where the system would kill the process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.ir import Node
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ops.records import Trait, has_trait

_MEMORY = Path("/proc/meminfo")
_LEAST = 2**30
"""Bytes of results below which nobody asks."""
_COPYING = (Trait.CONVOLUTION, Trait.PRODUCT)
"""Operators whose kernels may copy operands and results into an order of their own."""
_MOST_UNASKED = 2**30
"""Bytes of a result that a run may make which nobody asked for, if that is no more than a quarter of what there is."""


def check_memory(call: Node, args: Sequence[object]) -> None:
    """Refuse a call that needs more memory than there is.

    Raises:
        InputError: it does; on systems that don't tell what is available nothing is refused.
    """
    _check(call, args, [(value.sizes, value.dtype.itemsize) for value in call.outputs])


def check_operator(node: Node, kernel: Callable[..., Any], args: Sequence[Any], is_asked: bool) -> None:
    """The same for an operator of whose results nothing is known before it runs; torch's meta kernels foretell them.

    Args:
        node: the operator.
        kernel: computes it.
        args: its arguments.
        is_asked: whether a user gave the model's inputs; otherwise large results are refused, however much there is.

    Raises:
        InputError: the results do not fit, or nobody asked for results as large as that.
    """
    operands = sum(tensor.nbytes for tensor in leaves_of(list(args), torch.Tensor))
    if not operands or (is_asked and operands < _LEAST) or node.op.startswith("prim::"):
        return
    if any(has_trait(node.qualified_op, trait) for trait in (Trait.VIEW, Trait.WRITES, Trait.RANDOM)):
        return
    try:
        foretold = kernel(*map_leaves(list(args), torch.Tensor, lambda x: x.to("meta")))
    except Exception:  # values decide about the sizes, or the arguments are wrong, which the kernel itself says
        return
    made = [(tuple(value.shape), value.dtype.itemsize) for value in leaves_of(foretold, torch.Tensor)]
    if is_asked:
        _check(node, args, made)
        return
    needed, available = _bytes(made), available_bytes()
    if needed > _MOST_UNASKED or (available is not None and needed > max(available // 4, 1)):
        raise InputError(
            f"{node.qualified_op}{_place(node)} makes {_sizes(made)} of inputs that nobody gave, "
            f"{needed / 1e9:.1f} GB; give smaller ones"
        )


def check_dense(tensor: torch.Tensor) -> None:
    """Refuse to read all elements of a view that has more of them than there is memory, as an expanded tensor may.

    Raises:
        InputError: it has.
    """
    available, needed = available_bytes(), tensor.numel() * tensor.itemsize
    if available is not None and needed > max(available, _LEAST):
        raise InputError(
            f"a tensor of {list(tensor.shape)} takes {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are "
            "available; use a smaller model or smaller inputs"
        )


def _check(node: Node, args: Sequence[object], made: Sequence[tuple[Sequence[int], int]]) -> None:
    needed = _bytes(made)
    if needed < _LEAST or has_trait(node.qualified_op, Trait.VIEW):
        return
    if any(has_trait(node.qualified_op, trait) for trait in _COPYING):
        needed = 2 * needed + sum(tensor.nbytes for tensor in leaves_of(list(args), torch.Tensor))
    available = available_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"{node.qualified_op}{_place(node)} needs {needed / 1e9:.1f} GB of memory on the CPU to make "
            f"{_sizes(made)}, and {available / 1e9:.1f} GB are available; give smaller inputs"
        )


def _bytes(made: Sequence[tuple[Sequence[int], int]]) -> int:
    return sum(math.prod(sizes) * itemsize for sizes, itemsize in made)


def _sizes(made: Sequence[tuple[Sequence[int], int]]) -> str:
    return ", ".join(str(list(sizes)) for sizes, _ in made)


def _place(node: Node) -> str:
    return f" at {node.source}" if node.source else ""


def available_bytes() -> int | None:
    """Memory that processes can have without swapping, as Linux tells it; None elsewhere."""
    try:
        lines = _MEMORY.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None
