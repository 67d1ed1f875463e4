"""TorchScript in: a ``torch.jit.ScriptModule``, or a file of one, becomes a Program whose weights are constants.

Both go one road: torch saves the module as it saves any, into memory, and mobopt's own reader reads what it reads from
files. So a module and its file become the same Program, and nothing but torch's writer looks at a module.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Sequence

import torch

from mobopt.bundle import read_bundle
from mobopt.bundle.container import BundleFile
from mobopt.errors import BundleError, InputError, UnsupportedError
from mobopt.frontends.python_functions import without_python_functions
from mobopt.frontends.traced_numbers import traced_numbers
from mobopt.ir import Program
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import BOOL
from mobopt.ops.contexts import QuantizedContext
from mobopt.ops.quantized_contexts import QuantizedLayer
from mobopt.passes.expand_quantized import EXPANDED_OPERATORS, ExpandQuantized, has_quantized
from mobopt.passes.freeze import Freeze
from mobopt.passes.number_operands import NumberOperands
from mobopt.passes.rewriting import tensor_key

_FORWARD = "forward"
_CALLS_PYTHON = "Python function call"
_WHY_UNSAVED = {
    _CALLS_PYTHON: "it calls Python, which no mobile runtime can; trace or script what it does",
    "ConstantMKLDNNTensor": "torch.jit.optimize_for_inference made it for this computer's processor; convert the "
    "module that it was made from",
    "mkldnn": "torch.jit.optimize_for_inference made it for this computer's processor; convert the module that it was "
    "made from",
}
"""Remedies, by words of torch's errors."""


def program_from_script_module(module: torch.jit.ScriptModule, preserved_methods: Sequence[str] = ()) -> Program:
    """Translate a scripted, traced or frozen module.

    Args:
        module: the module, in training or evaluation mode; it is not changed.
        preserved_methods: names of the methods to keep beside ``forward``, and of attributes to keep.

    Returns:
        A Program with ``forward``, if the module has it, and the preserved methods. Parameters and buffers are
        constants of the graphs, on the CPU; attributes that the methods assign to or change in place, and preserved
        ones, stay attributes. Quantised tensors become floats that are rounded alike.

    Raises:
        InputError: there is no method to translate, or a preserved name does not exist.
        UnsupportedError: the module uses what a Program can't hold; the message names the place.
    """
    return in_floats(read_frozen(module, preserved_methods))


def read_frozen(module: torch.jit.ScriptModule, preserved_methods: Sequence[str] = ()) -> Program:
    """The same with its quantised tensors.

    Raises:
        InputError: as :func:`program_from_script_module`.
        UnsupportedError: likewise.
    """
    program = read_script_module(module, preserved_methods)
    # as torch's interpreter does before it folds or runs a graph
    NumberOperands(numbers=traced_numbers(module)).run(program)
    return frozen(program, preserved_methods)


def read_script_module(module: torch.jit.ScriptModule, preserved_methods: Iterable[str] = ()) -> Program:
    """A module as it is, in evaluation mode, with attributes.

    Raises:
        UnsupportedError: torch can't save it, or it uses what a Program can't hold.
    """
    try:
        return read_model(io.BytesIO(saved_module(module)), preserved_methods, libraries=None)
    except BundleError as error:
        text = re.sub(r"^the file:? ?", "", str(error))
        raise UnsupportedError(f"can't convert the module: {text}") from None


def saved_module(module: torch.jit.ScriptModule) -> bytes:
    """What torch saves of a module.

    Raises:
        UnsupportedError: torch can't save it.
    """
    try:
        try:
            return bytes(module.save_to_buffer())
        except RuntimeError as error:
            if _CALLS_PYTHON not in str(error):
                raise
            return bytes(without_python_functions(module).save_to_buffer())
    except RuntimeError as error:
        text = str(error).strip()
        remedy = next((remedy for words, remedy in _WHY_UNSAVED.items() if words in text), "")
        raise UnsupportedError(f"can't convert the module: {remedy or text.splitlines()[0]}") from None


def read_model(
    file: BundleFile, preserved_methods: Iterable[str] | None = (), libraries: Collection[str] | None = ()
) -> Program:
    """The model of a file before conversion, as it is, in evaluation mode: nothing is folded, weights are attributes.

    Args:
        file: a ``.pt`` or ``.ptl`` file; its source is read if it has some.
        preserved_methods: methods to read beside ``forward``; None for all.
        libraries: as for :func:`mobopt.bundle.read_bundle`.

    Raises:
        BundleError: the file is damaged, hostile, or of a form that is not read.
    """
    methods = None if preserved_methods is None else {_FORWARD, *preserved_methods}
    program = read_bundle(file, prefer="code", methods=methods, libraries=libraries)
    for name, attribute in program.attributes.items():
        if name.rpartition(".")[2] == "training" and attribute.type == BOOL:
            attribute.value = False
        for tensor in leaves_of(attribute.value, torch.Tensor):
            tensor.requires_grad_(False)
    return program


def frozen(program: Program, preserved: Sequence[str] = ()) -> Program:
    """A copy with ``forward`` and the preserved methods only, in which what no method changes is constant.

    Raises:
        InputError: there is no method to keep, or a preserved name does not exist.
        UnsupportedError: a preserved name is a submodule.
    """
    attributes = [name for name in preserved if name not in program.methods]
    for name in attributes:
        if name not in program.attributes:
            if any(other.startswith(f"{name}.") for other in program.attributes):
                raise UnsupportedError(
                    f"{name!r} is a submodule: preserve its methods' results through a method of the root"
                )
            raise InputError(f"the module has no method or attribute {name!r} to preserve")
    names = [name for name in dict.fromkeys([_FORWARD, *preserved]) if name in program.methods]
    if not names:
        raise InputError("the module has no method 'forward'; name a method to convert in preserved_methods")
    result = program.clone()
    result.methods = {name: result.methods[name] for name in names}
    defaults = program.metadata.get("defaults", {})
    known = {name: defaults[name] for name in names if name in defaults}
    rules = {name: rule for name, rule in program.metadata.get("input_rules", {}).items() if name in names}
    result.metadata = {**({"defaults": known} if known else {}), **({"input_rules": rules} if rules else {})}
    result.metadata["names"] = {
        tensor_key(item.value): (name, item.is_buffer)
        for name, item in reversed(program.attributes.items())  # the first name of a tensor with several counts
        if isinstance(item.value, torch.Tensor) and item.value.numel()
    }
    result.class_name = re.sub(r"\.___torch_mangle_\d+", "", result.class_name)
    Freeze(tuple(attributes)).run(result)
    return result


def in_floats(program: Program, heeds_reduced_range: bool = True) -> Program:
    """What a frozen Program computes, without quantised tensors; itself if it has none.

    Args:
        program: of :func:`frozen`; it is not changed.
        heeds_reduced_range: see :class:`~mobopt.passes.expand_quantized.ExpandQuantized`.

    Raises:
        UnsupportedError: what it does with quantised tensors is not known.
    """
    if not has_quantized(program):
        return program
    result = program.clone()
    result.metadata[EXPANDED_OPERATORS] = len(ExpandQuantized(heeds_reduced_range).run(result).notes)
    kept = (
        name
        for name, item in result.attributes.items()
        if not isinstance(item.value, (QuantizedLayer, QuantizedContext))
    )
    Freeze(tuple(kept)).run(result)  # drops the packed weights
    return result
