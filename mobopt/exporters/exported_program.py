"""A method of a plain model as an ExportedProgram, the form that torch.export makes and ``.pt2`` files hold."""

from __future__ import annotations

import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import _config

from mobopt.errors import InputError, MoboptError, UnsupportedError
from mobopt.exporters.tracing import Tracer, constant_numbers
from mobopt.ir import Program
from mobopt.ir.arguments import argument_name
from mobopt.ir.nests import map_leaves
from mobopt.ops.state import changed_attributes

_LOG = logging.getLogger("mobopt.exporters")
LEAST_TORCH = "2.9"
"""Older ones refuse free sizes that are 1, or write another layout."""
_LINES = 4
"""Of torch's message, which goes on with its own source."""


Range = tuple[int, int | None]
Sizes = Literal["auto", "fixed"] | Mapping[str, Mapping[int, Range]]
"""Which sizes of inputs stay free: all that torch can keep so, none, or by input and dimension, from least to most."""


@dataclass(frozen=True)
class Exported:
    """A method as an ExportedProgram."""

    program: ExportedProgram
    remark: str = ""
    """Why sizes are fixed that were to stay free; empty if they are not."""

    @property
    def sizes(self) -> dict[str, str]:
        """Sizes of each tensor that is an input, by its name: numbers, and symbols for those that are free."""
        inputs = set(self.program.graph_signature.user_inputs)
        nodes = [node for node in self.program.graph.nodes if node.op == "placeholder" and node.name in inputs]
        values = {node.name: node.meta["val"] for node in nodes}
        return {
            name: f"[{', '.join(map(str, value.shape))}]"
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }


def exported_program(program: Program, method: str, args: Sequence[Any], sizes: Sizes = "auto") -> Exported:
    """Export a method.

    Args:
        program: in its plain form.
        method: the method's name.
        args: all of its arguments; of tensors, only sizes and dtypes matter.
        sizes: which sizes stay free. With ``auto``, those that the model's own arithmetic, or an operator of torch,
            fixes become numbers; if torch can't export it with free sizes at all, all do, and a remark says so.

    Raises:
        InputError: an input or a dimension that ``sizes`` names is not there, or can't be free.
        UnsupportedError: the model keeps state, branches or calls operators that torch.export can't express, or the
            installed PyTorch is too old.
    """
    if torch.__version__ < LEAST_TORCH:
        raise UnsupportedError(
            f"writing .pt2, .onnx and .pte takes torch.export of PyTorch {LEAST_TORCH} or newer, and "
            f"{torch.__version__} is installed; install a newer one, or write .pt"
        )
    names = input_names(program, method)
    if sizes == "fixed":
        return Exported(_export(program, method, args, None))
    if sizes != "auto":
        return Exported(_export(program, method, args, _chosen(sizes, names, args)))
    free = tuple(_free(item) for item in args)
    reasons: list[UnsupportedError] = []
    # Torch refuses some branches where dimensions that are 1 in the example stay free.
    for dynamic, ones in ((free, True), (free, False), (None, False)):
        try:
            remark = f"all sizes are fixed: {reasons[-1]}" if dynamic is None else ""
            return Exported(_export(program, method, args, dynamic, ones), remark)
        except UnsupportedError as error:
            _LOG.info("sizes can't be free: %s", error)
            reasons.append(error)
    raise reasons[-1]


def read_again(exported: Exported) -> ExportedProgram:
    """The program as its file has it: sizes that torch fixed are numbers there, and symbols of one value here."""
    buffer = io.BytesIO()
    save(exported.program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


def save(program: ExportedProgram, file: Path | io.BytesIO) -> None:
    """As ``torch.export.save``, which warns of weights that are parts of one memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # what is written is read again and compared
        torch.export.save(program, file)


def _free(item: Any) -> Any:
    """Every dimension of every tensor, in the nest of an argument."""
    if isinstance(item, torch.Tensor):
        return dict.fromkeys(range(item.dim()), Dim.AUTO)
    if isinstance(item, (list, tuple)):
        return [_free(inner) for inner in item]
    return {key: _free(inner) for key, inner in item.items()} if isinstance(item, dict) else None


def _chosen(sizes: Mapping[str, Mapping[int, Range]], names: Sequence[str], args: Sequence[Any]) -> tuple[Any, ...]:
    for name, ranges in sizes.items():
        if name not in names:
            raise InputError(f"there is no input {name!r} whose sizes could be free; the inputs are {', '.join(names)}")
        tensor = args[names.index(name)]
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"the input {name!r} is no tensor, so it has no sizes that could be free")
        if wrong := [dim for dim in ranges if not 0 <= dim < tensor.dim()]:
            raise InputError(f"the input {name!r} has {tensor.dim()} dimensions; {wrong[0]} is none of them, from 0")
    return tuple(
        {dim: Dim(f"{name}_{dim}", min=low, max=high) for dim, (low, high) in sizes[name].items()}
        if name in sizes
        else None
        for name in names
    )


def _export(
    program: Program, method: str, args: Sequence[Any], dynamic: tuple[Any, ...] | None, ones: bool = True
) -> ExportedProgram:
    module = MethodModule(program, method)
    # Torch remembers at the tensors themselves which sizes were to be free.
    given = tuple(map_leaves(list(args), torch.Tensor, lambda tensor: tensor.detach().clone()))
    try:
        with torch.no_grad(), fx_traceback.preserve_node_meta(), ones_are_sizes() if ones else nullcontext():
            return torch.export.export(module, given, dynamic_shapes=dynamic, strict=False)
    except MoboptError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:_LINES]) or type(error).__name__
        _LOG.debug("torch.export failed", exc_info=True)
        if "Constraints violated" in reason:
            raise InputError(f"these sizes can't be free: {reason}") from None
        raise UnsupportedError(f"torch.export can't express the model: {reason}") from error


def ones_are_sizes() -> AbstractContextManager[Any]:
    """Let dimensions that are 1 in the example stay free too, where torch knows how."""
    config: Any = _config
    return config.patch(backed_size_oblivious=True) if hasattr(config, "backed_size_oblivious") else nullcontext()


class _Holder(torch.nn.Module):
    """A module that only holds tensors, as the dotted names of the model's weights have it."""


class MethodModule(_Holder):
    """One method of a Program as an ``nn.Module`` for torch.export: the Program's weights by name, and its inputs'
    names."""

    def __init__(self, program: Program, method: str) -> None:
        super().__init__()
        self._program = program
        self._method = method
        self._state = changed_attributes(program)
        self._constants = constant_numbers(program)
        self._places: dict[str, tuple[torch.nn.Module, str]] = {}
        for name, item in program.attributes.items():
            if isinstance(item.value, torch.Tensor):
                self._keep(name, item.value, item.is_parameter and name not in self._state)
            elif name in self._state:
                raise UnsupportedError(
                    f"the model keeps {name!r} between calls, which is no tensor ({item.type}); an ExportedProgram "
                    "has state in tensors only. Migrate to .pt instead"
                )
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in input_names(program, method)
        ]
        self.forward = self._make_forward(inspect.Signature(parameters))

    def _keep(self, name: str, tensor: torch.Tensor, is_parameter: bool) -> None:
        *path, last = name.split(".")
        owner: torch.nn.Module = self
        for part in path:
            inner = getattr(owner, part, None) if part not in owner._parameters else None
            if not isinstance(inner, torch.nn.Module):
                inner = _Holder()
                owner.add_module(part, inner)
            owner = inner
        if is_parameter and (tensor.is_floating_point() or tensor.is_complex()):
            owner.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
        else:
            owner.register_buffer(last, tensor.clone() if name in self._state else tensor)
        self._places[name] = owner, last

    def _make_forward(self, signature: inspect.Signature) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            tensors = {name: getattr(*place) for name, place in self._places.items()}
            state = {name: tensors[name] for name in self._state}
            tracer = Tracer(self._program, tensors, state, self._constants)
            result = tracer.evaluate(self._method, list(bound.arguments.values()))
            for name, value in tracer.state.items():
                if value is not state[name]:
                    _assign(name, state[name], value)
            return _plain(result)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        return forward


def _plain(result: Any) -> Any:
    """A result whose named tuples are tuples, which every reader knows."""
    if isinstance(result, (list, tuple)):
        items = [_plain(item) for item in result]
        return items if isinstance(result, list) else tuple(items)
    return {key: _plain(item) for key, item in result.items()} if isinstance(result, dict) else result


def _assign(name: str, buffer: torch.Tensor, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.shape != buffer.shape or value.dtype != buffer.dtype:
        raise UnsupportedError(
            f"the model changes the shape or dtype of {name!r}, which it keeps between calls; an ExportedProgram has "
            "buffers of one shape only. Migrate to .pt instead"
        )
    buffer.copy_(value)


def input_names(program: Program, method: str) -> list[str]:
    """Names of a method's inputs, which are identifiers and told apart."""
    names: list[str] = []
    for value in program.methods[method].inputs[1:]:
        base = re.sub(r"\W", "_", argument_name(value.name)) or "input"
        base = f"_{base}" if base[0].isdigit() else base
        name, count = base, 0
        while name in names:
            count += 1
            name = f"{base}_{count}"
        names.append(name)
    return names
