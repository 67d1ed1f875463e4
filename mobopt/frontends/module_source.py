"""An nn.Module with example inputs as a source of models: exported by torch.export, or else traced."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mobopt.errors import ArgumentTypeError, InputError, UnsupportedError
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.source import Source

_LOG = logging.getLogger("mobopt.frontends")
_FORWARD = "forward"
_LONGEST_REASON = 300


class ModuleSource(Source):
    """A module that a user holds; its own Python code is run, as the user runs it.

    Attributes:
        fallback: why the module was traced and not exported; empty if it was exported.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        preserved: Sequence[str] = (),
        example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        dynamic_shapes: Any = None,
    ) -> None:
        """Make a graph of a module, in evaluation mode; the module is not changed.

        Args:
            module: the module.
            preserved: as for other sources; a module that is no ScriptModule has ``forward`` only.
            example_inputs: arguments of ``forward``, alone or by the method's name.
            dynamic_shapes: sizes that may change, as ``torch.export.export`` takes them.

        Raises:
            ArgumentTypeError: there are no example inputs.
            InputError: the module can't be run on them, or methods besides ``forward`` are asked for.
            UnsupportedError: it can neither be exported nor traced, or uses what a Program can't hold.
        """
        self.name = type(module).__name__
        self.fallback = ""
        self._module = module
        self._arguments = _arguments_of(module, preserved, example_inputs)
        with _evaluating(module):
            self._check_runs()
            self._graph = self._exported(dynamic_shapes)
        self.program = self._graph.program

    def caller(self, method: str = _FORWARD, is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The module itself in evaluation mode, or a copy if it has state; its graph if it can't be copied."""
        graph = self._graph
        if not isinstance(graph, ExportedProgramSource):
            return graph.caller(method, is_bounded)
        module = self._module
        if self.program.attributes:
            try:
                module = copy.deepcopy(module)
            except (RuntimeError, TypeError) as error:
                _LOG.warning("%s can't be copied, so its graph is compared with: %s", self.name, error)
                return graph.caller(method, is_bounded)

        def call(inputs: Sequence[Any]) -> Any:
            with _evaluating(module), torch.no_grad():
                return graph.arranged(_run(module, graph, inputs))

        return call

    def example_calls(self, method: str = _FORWARD) -> list[Sequence[Any]]:
        """The example inputs."""
        return [self._arguments] if method == _FORWARD else []

    def example_shapes(self) -> list[Any] | None:
        """None: there are whole inputs."""
        return None

    def _check_runs(self) -> None:
        try:
            with torch.no_grad():
                copy.deepcopy(self._module)(*copy.deepcopy(self._arguments))
        except Exception as error:  # it is the user's code
            raise InputError(f"the model can't be run on the example inputs: {_reason(error)}") from error

    def _exported(self, dynamic_shapes: Any) -> Source:
        try:
            # With gradients, layers take no fused paths for inference, which few runtimes have.
            with torch.enable_grad():
                program = torch.export.export(
                    self._module, self._arguments, dynamic_shapes=dynamic_shapes, strict=False
                )
            return ExportedProgramSource(program, name=self.name)
        except Exception as error:  # torch raises what it meets, from assertions to errors of its own
            if dynamic_shapes is not None:
                raise UnsupportedError(f"torch.export can't take {self.name}: {_reason(error)}") from error
            self.fallback = _reason(error)
            return self._traced()

    def _traced(self) -> Source:
        if any(map(is_traceable_wrapper_subclass, self._module.parameters())):  # saving the trace would end the process
            raise UnsupportedError(
                f"{self.name} can't be exported ({self.fallback}), nor traced, as its weights are tensors of a "
                "subclass; change what the message names"
            )
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                traced = torch.jit.trace(self._module, self._arguments, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
        except Exception as error:  # it is the user's code
            raise UnsupportedError(
                f"{self.name} can't be exported ({self.fallback}), nor traced ({_reason(error)}); change what the "
                "messages name, or script the module"
            ) from error
        warnings.warn(
            f"torch.export can't take {self.name}, so it was traced: what it decided for the example inputs is part of "
            f"the result. The reason: {self.fallback}",
            stacklevel=6,
        )
        return ScriptModuleSource(traced)


def check_examples(model: object, given: object) -> None:
    """Refuse an nn.Module without example inputs, in torch's words and with the way out.

    Raises:
        ArgumentTypeError: there are none.
    """
    if given is None and isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(
            f"Got {type(model)}, but ScriptModule is expected. Give example_inputs, arguments of forward, and the "
            "nn.Module is exported"
        )


def _arguments_of(
    module: torch.nn.Module, preserved: Sequence[str], given: Sequence[Any] | Mapping[str, Sequence[Any]] | None
) -> tuple[Any, ...]:
    """Arguments of ``forward``.

    Raises:
        ArgumentTypeError: there are none.
        InputError: other methods are asked for.
    """
    check_examples(module, given)
    by_method: Mapping[str, Any] = given if isinstance(given, Mapping) else {_FORWARD: given}
    others = sorted({*by_method, *preserved} - {_FORWARD})
    if others or _FORWARD not in by_method:
        raise InputError(
            f"an nn.Module has the method forward only, and {', '.join(others) or 'no example of it'} is given; script "
            "the module to keep other methods"
        )
    arguments = by_method[_FORWARD]
    if isinstance(arguments, (str, torch.Tensor)) or not isinstance(arguments, Sequence):
        raise ArgumentTypeError(f"example_inputs is a {type(arguments).__name__}; give a list or tuple of arguments")
    return tuple(arguments)


def _run(module: torch.nn.Module, graph: ExportedProgramSource, inputs: Sequence[Any]) -> Any:
    try:
        positional, keywords = graph.call_form(inputs)
        return module(*positional, **keywords)
    except Exception as error:  # it is the user's code
        raise InputError(f"the model can't be run on the example inputs: {_reason(error)}") from error


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """A module in evaluation mode for a while."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _reason(error: BaseException) -> str:
    """What an error says first, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
