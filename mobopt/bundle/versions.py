"""Archive versions: which one a program needs, and what older ones mean.

Source: ``caffe2/serialize/versions.h`` and ``torch/csrc/jit/operator_upgraders/``; tests check it against the installed
torch's ``_get_operator_version_map``.
"""

from __future__ import annotations

from mobopt.errors import BundleError
from mobopt.ir import Program

READABLE = range(1, 11)
"""Archive versions that are read."""

BASE = 3
"""The archive version of files whose operators have all kept their meaning."""
_DIVISIONS = tuple(
    f"aten::{name}.{overload}"
    for name in ("div", "div_")
    for overload in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")
)
BUMPED_AT: dict[str, int] = {
    **dict.fromkeys((*_DIVISIONS, "aten::div.out", "aten::div.out_mode"), 4),
    **dict.fromkeys(("aten::full", "aten::full.out"), 5),
    **dict.fromkeys(("aten::linspace", "aten::linspace.out"), 8),
    **dict.fromkeys(("aten::logspace", "aten::logspace.out"), 9),
    **dict.fromkeys(("aten::gelu", "aten::gelu.out"), 10),
}
"""Archive version since which an operator has its present meaning."""

_SAME_WHEN_COMPLETE = ("aten::linspace", "aten::logspace", "aten::gelu")
"""Operators that have only gained or lost defaults since."""


def needed_version(program: Program) -> int:
    """The least archive version in which every operator has its present meaning."""
    used = {node.qualified_op for graph in program.methods.values() for node in graph.walk()}
    return max([BASE, *(BUMPED_AT.get(name, 0) for name in used)])


def check_meaning(program: Program, version: int) -> None:
    """Refuse a program that an older archive version gives another meaning.

    Raises:
        BundleError: it calls an operator whose results have changed since.
    """
    for graph in program.methods.values():
        for node in graph.walk():
            if BUMPED_AT.get(node.qualified_op, 0) > version and node.op not in _SAME_WHEN_COMPLETE:
                raise BundleError(
                    f"{node.qualified_op} had another meaning in archives of version {version}; load the file with "
                    "torch.jit.load and save it again"
                )
