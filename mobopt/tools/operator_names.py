"""Names of the operators that a bundle asks of a runtime, as PyTorch's selective build takes them."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import IO

import torch

from mobopt.bundle import operator_names, read_bundle


def export_opnames(model: torch.jit.ScriptModule | str | PathLike[str] | IO[bytes]) -> list[str]:
    """Names of a model's operators with overloads, each once, sorted: what ``torch.jit.export_opnames`` gives.

    Args:
        model: a module, or a bundle's path or file object.

    Raises:
        BundleError: the bundle can't be read.
    """
    if isinstance(model, torch.jit.ScriptModule):
        names: list[str] = torch.jit.export_opnames(model)  # type: ignore[no-untyped-call]
        return names
    return operator_names(read_bundle(model))


def selective_build_yaml(names: Iterable[str]) -> str:
    """The YAML list that PyTorch's build reads from ``SELECTED_OP_LIST``."""
    return "".join(f"- {name}\n" for name in names)
