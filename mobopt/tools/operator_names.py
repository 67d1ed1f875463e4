"""Names of the operators that a bundle asks of a runtime, as PyTorch's selective build takes them."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import IO

import torch

from mobopt.bundle import read_bundle
from mobopt.bundle.lite_writer import tables_from_graph
from mobopt.ir import Program

_BYTECODE_VERSION = 8


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


def operator_names(program: Program) -> list[str]:
    """Names of the operators in the tables of a Program's bytecode, each once, sorted."""
    slots = {name: number for number, name in enumerate(program.attributes)}
    tables = [tables_from_graph(graph, slots, _BYTECODE_VERSION) for graph in program.methods.values()]
    operators = {(name, overload) for table in tables for name, overload, *_ in table.operators}
    return sorted(f"{name}.{overload}" if overload else name for name, overload in operators)


def selective_build_yaml(names: Iterable[str]) -> str:
    """The YAML list that PyTorch's build reads from ``SELECTED_OP_LIST``."""
    return "".join(f"- {name}\n" for name in names)
