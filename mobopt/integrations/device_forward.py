"""``forward`` of an nn.Module on a Vulkan device, and as eager PyTorch where the device could give something else."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mobopt.errors import DeviceError, InputError, MoboptError
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.ir import Node, Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.schemas import argument_names
from mobopt.ops.aliases import Aliases
from mobopt.ops.records import Trait, record_of
from mobopt.optimizer import optimize
from mobopt.options import Settings
from mobopt.runtimes.memories import version_of
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.program import VulkanProgram

_LOG = logging.getLogger("mobopt.integrations")
_FORWARD = "forward"
_MOST_PROGRAMS = 8
"""For kinds of input that one graph can't serve; beyond them, calls are eager."""
_RATE = "dropout_p"
_SETTINGS = Settings("vulkan", runtime="mobopt")


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights as they are in a call; they are kept, so that no other tensor gets the identity of one.

    Attributes:
        tensors: all of them.
        key: identity, memory and version of each.
    """

    tensors: Sequence[torch.Tensor] = ()
    key: tuple[tuple[int, int, int | None], ...] = ()


@dataclass(frozen=True)
class _Compiled:
    """A program for one kind of input.

    Attributes:
        form: how many arguments are positional, and the names of the others.
        program: the model as it was exported, with the rules of its inputs.
        runtime: computes it.
        result: the nest of what the module returns.
    """

    form: tuple[int, frozenset[str]]
    program: Program
    runtime: VulkanProgram
    result: Any


class EagerError(MoboptError):
    """A call must be eager; the message says why."""


class DeviceForward:
    """Calls ``forward`` of a module on a device. Safe to call from several threads.

    What the device can't compute as PyTorch does runs as eager: gradients, training, autocast, inputs on other devices,
    models that change buffers or inputs, random numbers, and what torch.export can't take. The reason is logged, once.
    Weights are looked at in each call by memory and version: a changed one makes new programs. Changes by ``.data``
    have no version, and are not seen.
    What one module returns, the next finds on the device, if nobody has written to it: see
    :class:`mobopt.runtimes.vulkan.mirrors.Mirrors`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: int | str | None = None,
        dynamic_shapes: Any = None,
        differentiates: bool = True,
        name: str | None = None,
    ) -> None:
        """Open the device; programs are made by the calls.

        Args:
            module: the module; it stays the caller's.
            device: as for :func:`mobopt.load`.
            dynamic_shapes: sizes that may change, as ``torch.export.export`` takes them.
            differentiates: whether a call in which weights need gradients is eager.
            name: what the log calls the module; its class's name if not given.

        Raises:
            DeviceError: there is no such device.
        """
        self._module = module
        self._device: Device = open_device(device)
        self._dynamic_shapes = dynamic_shapes
        self._differentiates = differentiates
        self._name = name or type(module).__name__
        self._programs: list[_Compiled] = []
        self._refused: dict[Hashable, str] = {}
        self._weights = _Weights()
        self._said: set[str] = set()
        self._lock = threading.RLock()

    @property
    def reasons(self) -> frozenset[str]:
        """Why calls were eager."""
        return frozenset(self._said)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        try:
            weights = self._check(args, kwargs)
            compiled, bound = self._compiled(args, kwargs, weights)
            result = compiled.runtime.run(_FORWARD, bound)
            return pytree.tree_unflatten(pytree.tree_leaves(result), compiled.result)
        except DeviceError:
            raise
        except MoboptError as error:
            self._say(str(error))
        return self._module(*args, **kwargs)

    def _check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Weights:
        """Refuse calls that only eager PyTorch computes; returns what the weights are now.

        Raises:
            EagerError: it is one.
        """
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        weights = _weights_of(self._module)
        if torch.is_grad_enabled():
            needing = [*tensors, *(weights if self._differentiates else ())]
            if any(tensor.requires_grad for tensor in needing):
                raise EagerError("gradients are asked for; call it under torch.no_grad()")
        if torch.is_autocast_enabled("cpu"):
            raise EagerError("autocast is on")
        key = tuple((id(item), item.data_ptr(), version_of(item)) for item in weights)
        for tensor in tensors if key == self._weights.key else (*tensors, *weights):
            _check_plain(tensor)
        return _Weights(weights, key)

    def _compiled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], weights: _Weights
    ) -> tuple[_Compiled, list[Any]]:
        """The program of a call, and its arguments."""
        form = len(args), frozenset(kwargs)
        with self._lock:
            self._forget_unless(weights)
            for compiled in self._programs:
                if compiled.form == form:
                    try:
                        return compiled, bind_arguments(compiled.program, _FORWARD, args, kwargs)
                    except InputError:
                        continue
            key = _kind_of((args, kwargs))
            if key in self._refused:
                raise EagerError(self._refused[key])
            if len(self._programs) == _MOST_PROGRAMS:
                raise EagerError(f"over {_MOST_PROGRAMS} kinds of input came; give dynamic_shapes")
            try:
                made = self._made(form, args, kwargs)
                bound = bind_arguments(made.program, _FORWARD, args, kwargs)
            except DeviceError:
                raise
            except MoboptError as error:
                self._refused[key] = str(error)
                raise
            self._programs.append(made)
            return made, bound

    def _forget_unless(self, weights: _Weights) -> None:
        """Forget the programs if a weight has changed."""
        if weights.key != self._weights.key:
            for compiled in self._programs:
                compiled.runtime.close()
            self._programs, self._refused, self._weights = [], {}, weights

    def _made(self, form: tuple[int, frozenset[str]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Compiled:
        source = ExportedProgramSource(self._exported(args, kwargs))
        _check_effects(source)
        bound = bind_arguments(source.program, _FORWARD, args, kwargs)
        optimized = optimize(source, _SETTINGS, bound)
        runtime = VulkanProgram(optimized.program, self._device, mirrors=True)
        return _Compiled(form, source.program, runtime, source.result_structure)

    def _exported(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
        reason = ""
        for shapes in (self._dynamic_shapes, None) if self._dynamic_shapes is not None else (None,):
            try:
                with warnings.catch_warnings(), torch.enable_grad():
                    warnings.simplefilter("ignore")
                    return torch.export.export(self._module, args, kwargs, dynamic_shapes=shapes, strict=False)
            except Exception as error:  # torch raises what it meets, from assertions to errors of its own
                lines = str(error).strip().splitlines()
                reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        raise EagerError(f"torch.export can't take it: {reason}")

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("%s runs as eager PyTorch: %s", self._name, reason)


def _weights_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers, some of them twice: torch's own lists take ten times as long, and this is done in each
    call.

    Raises:
        EagerError: a part is in training mode.
    """
    found: list[torch.Tensor] = []
    parts = [module]
    while parts:
        part = parts.pop()
        if part.training:
            raise EagerError("the module is in training mode; call eval()")
        found += [item for item in part._parameters.values() if item is not None]
        found += [item for item in part._buffers.values() if item is not None]
        parts += [item for item in part._modules.values() if item is not None]
    return found


def _check_plain(tensor: torch.Tensor) -> None:
    """Refuse what is no ordinary tensor of the CPU.

    Raises:
        EagerError: it is none.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise EagerError(f"there is a tensor of the class {type(tensor).__name__}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        raise EagerError(f"there is a tensor on {tensor.device}, of {tensor.layout}; plain ones of the CPU are taken")


def _check_effects(source: ExportedProgramSource) -> None:
    """Refuse models that do more than compute a result from their inputs.

    Raises:
        EagerError: naming what it does.
    """
    program = source.program
    if program.attributes:
        raise EagerError(f"it changes its buffer {', '.join(program.attributes)}")
    graph = program.methods[_FORWARD]
    aliases = Aliases(graph)
    for value in graph.inputs[1:]:
        if aliases.writers(value):
            raise EagerError(f"it changes its input {value.name} in place")
    for node in graph.walk():
        if _draws(node):
            raise EagerError(f"{node.op} draws random numbers ({node.source})")


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers where nothing is trained."""
    traits = record_of(node.qualified_op).traits
    if Trait.RANDOM not in traits or not traits.isdisjoint({Trait.DROPOUT, Trait.RECURRENT}):
        return False
    names = argument_names(node.qualified_op)
    rate = node.inputs[names.index(_RATE)] if _RATE in names else None
    return rate is None or not rate.is_constant or rate.constant != 0


def _kind_of(arguments: Any) -> Hashable:
    """What a program depends on of its arguments."""
    leaves, structure = pytree.tree_flatten(arguments)
    kinds = [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
    return str(structure), tuple(kinds)
