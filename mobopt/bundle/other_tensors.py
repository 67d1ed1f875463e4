"""Tensors in files that are no dense ones of numbers: named with the module that holds them, and the way out."""

from __future__ import annotations

from collections.abc import Sequence

_QUANTISED = "mobopt converts models of floating-point numbers"
_UNQUANTISED = (
    "script or trace the model as it is before torch.ao.quantization.convert or quantize_dynamic, and save that"
)
_KINDS = {
    "_rebuild_qtensor": ("quantised", f"{_QUANTISED}: {_UNQUANTISED}"),
    "_rebuild_sparse_tensor": ("sparse", "mobopt reads dense tensors: call to_dense() on it before the model is saved"),
}
_LANGUAGE = "__torch__."
_CLASSES = f"{_LANGUAGE}torch.classes."
_QUANTISED_CLASSES = (f"{_CLASSES}quantized.", f"{_CLASSES}rnn.")


def is_other(module: str, name: str) -> bool:
    """Whether a global of a pickle is a function that rebuilds a tensor that nothing may hold."""
    return module == "torch._utils" and name == "_rebuild_sparse_tensor"


def refusal_of_tensor(function: str, holders: Sequence[tuple[str, str]], attribute: str) -> str:
    """Why a tensor is not read.

    Args:
        function: the name of what rebuilds it.
        holders: attribute and class of each object around it, from the model inwards.
        attribute: the name that it has in the innermost; empty if it has none.
    """
    kind, way_out = _KINDS[function]
    return f"{_holder(holders, attribute)} holds a tensor that is {kind}; {way_out}"


def refusal_of_class(class_name: str, holders: Sequence[tuple[str, str]]) -> str:
    """Why an object of packed weights is not read; empty where it is not of quantised ones."""
    if not class_name.startswith(_QUANTISED_CLASSES):
        return ""
    what = class_name.rpartition(".")[2]
    return f"{_holder(holders, '')} holds quantised weights ({what}); {_QUANTISED}: {_UNQUANTISED}"


def way_out_of_operator(name: str) -> str:
    """What a user does about a model that calls an operator on quantised tensors; empty if it is none."""
    is_quantised = name.startswith(("quantized::", "quantized_decomposed::"))
    return f"; {_QUANTISED}: {_UNQUANTISED}" if is_quantised else ""


def _holder(holders: Sequence[tuple[str, str]], attribute: str) -> str:
    """The outermost quantised layer, or else the module of the attribute."""
    if not holders or holders[0][1].startswith(_CLASSES):
        return "a constant of its code"
    layers = [index for index, (_, kind) in enumerate(holders) if ".quantized." in kind]
    depth = layers[0] if layers else len(holders) - 1
    path = ".".join(name for name, _ in holders[1 : depth + 1])
    kind = holders[depth][1].removeprefix(_LANGUAGE)
    tail = "" if layers or not attribute else f", attribute {attribute!r},"
    return f"{f'the module {path}' if path else 'the model'} ({kind}){tail}"
