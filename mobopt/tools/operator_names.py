"""Names of the operators that a bundle asks of a runtime, as PyTorch's selective build takes them.

Sources: ``torch::jit::export_opnames`` (``torch/csrc/jit/serialization/export_module.cpp``) for the names,
``torchgen/selective_build/`` for the forms of the YAML.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from os import PathLike
from typing import IO

import torch

from mobopt.bundle import read_bundle
from mobopt.bundle.lite_writer import tables_from_graph
from mobopt.bundle.open_file import open_model_file
from mobopt.errors import BundleError
from mobopt.ir import Program
from mobopt.module import MobileModule
from mobopt.ops.quantized_contexts import QuantizedLayer

_BYTECODE_VERSION = 8
YAML_FORMS = ("list", "dict")
"""Forms of YAML: a plain list (``SELECTED_OP_LIST``), and the dictionary of ``selected_operators.yaml``."""


def export_opnames(model: torch.jit.ScriptModule | str | PathLike[str] | IO[bytes]) -> list[str]:
    """Names of a model's operators with overloads, each once, sorted, as a selective build of PyTorch takes them.

    A lite file's own operator tables answer for it, and ``torch.jit.export_opnames`` for a module. Of a TorchScript
    file these are all operators that its methods call, also in branches that are never taken, for its loader looks up
    each of them: what ``torch.jit.export_opnames`` gives for the loaded file, and what torch drops of it before it
    makes bytecode.

    Args:
        model: a module, or a bundle's path or file object, which must be seekable.

    Returns:
        Names such as ``aten::add.Tensor``.

    Raises:
        BundleError: the bundle can't be read, or its source does not tell, as that of quantised layers.
    """
    if isinstance(model, MobileModule):
        return operator_names(model.program)
    if isinstance(model, torch.jit.ScriptModule):
        return _names_of(model)
    file = open_model_file(model)
    if file.has_bytecode:
        return sorted({entry.qualified_name for entry in file.operators()})
    if not isinstance(model, (str, os.PathLike)):
        model.seek(0)
    program = read_bundle(model)
    if any(isinstance(item.value, QuantizedLayer) for item in program.attributes.values()):
        raise BundleError(
            f"{file.name}: its quantised layers restore themselves by code, whose operators are not read; ask for "
            "those of the file that _save_for_lite_interpreter makes of the model"
        )
    return operator_names(program)


def operator_names(program: Program) -> list[str]:
    """Names of the operators in the tables of a Program's bytecode, each once, sorted."""
    slots = {name: number for number, name in enumerate(program.attributes)}
    tables = [tables_from_graph(graph, slots, _BYTECODE_VERSION) for graph in program.methods.values()]
    operators = {(name, overload) for table in tables for name, overload, *_ in table.operators}
    return sorted(f"{name}.{overload}" if overload else name for name, overload in operators)


def selective_build_yaml(names: Iterable[str], form: str = "list") -> str:
    """YAML for a selective build of PyTorch.

    Args:
        names: of the operators, with overloads.
        form: ``list`` is what CMake's ``SELECTED_OP_LIST`` names; ``dict`` is ``selected_operators.yaml`` of
            ``--op-selection-yaml-path``, where each operator is called by the model and not for training.

    Raises:
        ValueError: an unknown form.
    """
    if form not in YAML_FORMS:
        raise ValueError(f"form is {form!r}; it is one of {', '.join(YAML_FORMS)}")
    if form == "list":
        return "".join(f"- {name}\n" for name in names) or "[]\n"
    flags = ("include_all_overloads: false", "is_root_operator: true", "is_used_for_training: false")
    lines = ["include_all_operators: false", "operators:"]
    for name in names:
        lines += [f"  {name}:", *(f"    {flag}" for flag in flags)]
    return "\n".join(lines) + "\n" if len(lines) > 2 else f"{lines[0]}\noperators: {{}}\n"


def _names_of(module: torch.jit.ScriptModule) -> list[str]:
    names: list[str] = torch.jit.export_opnames(module)  # type: ignore[no-untyped-call]
    return names
