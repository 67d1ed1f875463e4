"""What a source of models is: whatever conversions and audits ask of a model before it is converted.

A kind of source is one subclass in a file of its own: a ScriptModule (``script_module_source``), a file
(``file_source``). :func:`mobopt.frontends.open_source.source_of` chooses one; nothing else knows what the model was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from mobopt.errors import InputError, UnsupportedError
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.runtimes.cpu import Interpreter

BUNDLED_INPUTS = "get_all_bundled_inputs"
"""Method by which ``torch.utils.bundled_inputs`` gives the inputs of ``forward``."""
HELPER_METHODS = (
    BUNDLED_INPUTS,
    "get_num_bundled_inputs",
    "get_bundled_inputs_functions",
    "_generate_bundled_inputs",
    "__",
)
"""How methods begin that are not the model's own: those of bundled inputs, and of loading."""


class Source(ABC):
    """A model before conversion.

    Attributes:
        name: for reports.
        program: the model with constants, in evaluation mode, and floats for quantised tensors.
        quantized: the same with its quantised tensors; None if it has none.
        declares_sizes: whether the shapes of its examples are those that it says it takes, and no others.
    """

    name: str
    program: Program
    quantized: Program | None = None
    declares_sizes: bool = False

    @abstractmethod
    def caller(self, method: str = "forward", is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """What runs a method of the model as it is, on the CPU, with a state of its own.

        It raises InputError if the model can't be run on the inputs, and may change them. With ``is_bounded`` also if
        loops of a file go round for long: for inputs that nobody gave.
        """

    @abstractmethod
    def example_calls(self, method: str = "forward") -> list[Sequence[Any]]:
        """Arguments of a method that came with the model."""

    @abstractmethod
    def example_shapes(self) -> list[Any] | None:
        """Arguments of ``forward`` of which only shapes and dtypes are known; None without such."""

    def extra_files(self) -> dict[str, bytes]:
        """Files by name that came with the model, and stay with what is made of it."""
        return {}


def bundled_for(method: str) -> str:
    """The method that gives the inputs of another, as ``torch.utils.bundled_inputs`` names it."""
    return BUNDLED_INPUTS if method == "forward" else f"{BUNDLED_INPUTS}_for_{method}"


def interpreted(program: Program, method: str, is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
    """A method by the reference interpreter, which refuses inputs as a source's own caller does."""
    interpreter = Interpreter(program).bounded() if is_bounded else Interpreter(program)

    def call(inputs: Sequence[Any]) -> Any:
        try:
            return interpreter.run(method, bind_arguments(program, method, inputs, {}))
        except (InputError, UnsupportedError) as error:
            raise InputError(f"the model can't be run on the example inputs: {error}") from None

    return call
