"""A ScriptModule as a source of models."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from mobopt.deprecations import of_torchscript_unsaid
from mobopt.errors import InputError, MissingMethodError
from mobopt.frontends.source import Source, bundled_for, interpreted
from mobopt.frontends.torchscript import in_floats, read_frozen, saved_module
from mobopt.ir.nests import map_leaves


class ScriptModuleSource(Source):
    """A ScriptModule that a user holds; its own code is run, as the user runs it."""

    def __init__(self, module: torch.jit.ScriptModule, preserved: Sequence[str] = ()) -> None:
        """Read a module; see :func:`mobopt.frontends.torchscript.read_frozen`."""
        self._module = module
        self.name = module.original_name
        held = read_frozen(module, preserved)
        self.program = in_floats(held)
        self.quantized = None if held is self.program else held

    def caller(self, method: str = "forward", is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The module itself in evaluation mode, or a copy if it has state, whose views of each other stay views; of a
        quantised one what it became when it was read, as a sum halfway between two steps may be rounded to either."""
        if self.quantized is not None:
            return interpreted(self.program.clone(), method, is_bounded)
        module = self._module
        if self.program.attributes:
            with of_torchscript_unsaid():
                module = torch.jit.load(io.BytesIO(saved_module(module)))  # type: ignore[no-untyped-call]
        return lambda inputs: _run_in_evaluation(module, method, inputs)

    def example_calls(self, method: str = "forward") -> list[Sequence[Any]]:
        """Those of the module."""
        return list(getattr(self._module, bundled_for(method), list)())

    def example_shapes(self) -> list[Any] | None:
        """Those that torch remembers."""
        return dict(self._module._c._retrieve_traced_inputs().items()).get("forward")


def _run_in_evaluation(module: torch.jit.ScriptModule, method: str, inputs: Sequence[Any]) -> Any:
    """What a module's method returns in evaluation mode; its own mode comes back."""
    modes = [(part, part.training) for part in module.modules() if hasattr(part, "training")]
    module.eval()
    try:
        with torch.no_grad():
            # torch's interpreter may run code that an earlier call compiled, with gradients.
            return map_leaves(getattr(module, method)(*inputs), torch.Tensor, torch.Tensor.detach)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"the model can't be run on the example inputs: {reason}") from None
    finally:
        for part, training in modes:
            part.training = training


def names_to_preserve(module: torch.jit.ScriptModule, preserved: Iterable[str | bytes]) -> list[str]:
    """The methods and attributes to keep beside ``forward``: those asked for, and what bundled inputs need.

    Raises:
        MissingMethodError: one does not exist; in torch's words.
    """
    names = [str(name) for name in preserved]
    bundled = _bundled_input_names(module, names)
    if all(hasattr(module, name) for name in bundled):
        names = list(dict.fromkeys([*names, *bundled]))
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise MissingMethodError(
            f"The following methods to preserve do not exist in script_module: {', '.join(missing)}"
        )
    return names


def _bundled_input_names(module: torch.jit.ScriptModule, preserved: Collection[str]) -> list[str]:
    """What ``torch.utils.bundled_inputs`` has added to a module."""
    names: list[str] = []
    if hasattr(module, "get_all_bundled_inputs"):
        names += ["get_all_bundled_inputs", "get_num_bundled_inputs"]
    if hasattr(module, "get_bundled_inputs_functions_and_info"):
        names.append("get_bundled_inputs_functions_and_info")
        for function in module.get_bundled_inputs_functions_and_info():
            names += [] if function in preserved else [function]
            names += [f"get_all_bundled_inputs_for_{function}", f"_bundled_inputs_deflated_{function}"]
    return names
