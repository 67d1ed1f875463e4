"""``torch.compile(model, backend="mobopt")``: the graphs that Dynamo finds run on a Vulkan device.

Dynamo guards what a graph rests on and breaks where it can't follow; each graph comes here with weights among its
inputs, which become constants again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from mobopt.errors import InputError
from mobopt.integrations.device_forward import DeviceForward

_STATIC = "_dynamo_static_input_type"
"""What Dynamo notes on weights and buffers of modules."""
_OPTIONS = ("device",)
_MOST_MODULES = 16
"""Modules of one code that share a graph; the one that came first is forgotten for the next."""


def compile_graph(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A backend of ``torch.compile``, for inference.

    What Dynamo itself leaves to eager PyTorch never comes here: frames with ``nn.LSTM``, ``GRU`` or ``RNN`` do only if
    ``torch._dynamo.config.allow_rnn`` is True.

    Args:
        graph: what Dynamo found.
        example_inputs: of the graph.
        options: ``device``: a number or name of a Vulkan device.
        mode: there is none, but torch hands on what its caller gives.

    Returns:
        A function of the graph's inputs. Programs are made by its calls.

    Raises:
        InputError: there is no such option, or a mode is given.
    """
    if mode is not None:
        raise InputError(
            f"the mode {mode!r} of torch.compile is Inductor's; leave it out: the backend mobopt has one mode, which "
            "records all of a graph ahead"
        )
    unknown = sorted(set(options or {}) - set(_OPTIONS))
    if unknown:
        raise InputError(f"the backend mobopt has no option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}")
    return _Graph(graph, (options or {}).get("device"))


@dataclass(frozen=True)
class _Module:
    """A graph with the weights of one module."""

    weights: tuple[Any, ...]
    numbers: tuple[float, ...]
    forward: DeviceForward


class _Graph:
    """A graph of Dynamo, and the modules that it is called for."""

    def __init__(self, graph: fx.GraphModule, device: int | str | None) -> None:
        self._graph = graph
        self._device = device
        self._name = _name_of(graph)
        self._modules: list[_Module] = []
        self._lock = threading.Lock()
        places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("example_value") for node in places]
        self._weights = [index for index, node in enumerate(places) if _STATIC in (node.meta.get("tensor_dict") or {})]
        self._numbers = [
            index
            for index, (node, value) in enumerate(zip(places, values, strict=True))
            if node.meta.get("tensor_dict") is None and _is_number(value)
        ]
        self._sizes = _places_of_sizes(values, {*self._weights, *self._numbers})
        left_out = {*self._weights, *self._numbers, *self._sizes}
        self._given = [index for index in range(len(places)) if index not in left_out]
        self._dynamic = {index: _dynamic_dimensions(values[index]) for index in self._given}
        results: Any = graph.graph.output_node().args[0]
        self._dynamic_results = [set(_dynamic_dimensions(node.meta.get("example_value")) or ()) for node in results]

    def __call__(self, *args: Any) -> Any:
        """What the graph returns."""
        weights = tuple(args[index] for index in self._weights)
        numbers = tuple(float(args[index]) for index in self._numbers)
        with self._lock:
            forward = self._forward(weights, numbers)
        results = forward(*(args[index] for index in self._given))
        for result, dims in zip(results, self._dynamic_results, strict=True):
            if dims:  # for the graph that takes it, as torch's own backends do
                result._dynamo_propagated_dynamic_indices = dims
        return results

    def _forward(self, weights: tuple[Any, ...], numbers: tuple[float, ...]) -> DeviceForward:
        for module in self._modules:
            is_same = all(one is other for one, other in zip(module.weights, weights, strict=True))
            if is_same and module.numbers == numbers:
                return module.forward
        made = self._module(weights, numbers).eval()
        shapes = tuple(self._dynamic[index] for index in self._given)
        forward = DeviceForward(made, self._device, shapes if any(shapes) else None, name=self._name)
        self._modules = [*self._modules[-_MOST_MODULES + 1 :], _Module(weights, numbers, forward)]
        return forward

    def _module(self, weights: tuple[Any, ...], numbers: tuple[float, ...]) -> fx.GraphModule:
        """The graph with weights of its own, and sizes that it finds in its inputs."""
        graph = fx.Graph()
        held: dict[str, Any] = {}
        copies: dict[fx.Node, Any] = {}
        places = [node for node in self._graph.graph.nodes if node.op == "placeholder"]
        inputs = {index: graph.placeholder(f"input_{index}") for index in self._given}
        constants = {
            index: torch.tensor(number, dtype=torch.float64)
            for index, number in zip(self._numbers, numbers, strict=True)
        }
        for index, value in [*zip(self._weights, weights, strict=True), *constants.items()]:
            name = f"weight_{index}_{_own_name(places[index])}"
            held[name] = value
            copies[places[index]] = graph.get_attr(name)
        copies.update({places[index]: node for index, node in inputs.items()})
        for index, (owner, dim) in self._sizes.items():
            copies[places[index]] = graph.call_method("size", (inputs[owner], dim))
        values = dict(zip((places[index] for index in self._numbers), numbers, strict=True))
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "call_method" and node.target == "item" and node.args[0] in values:
                copies[node] = values[node.args[0]]
                continue
            if node.op == "output":
                graph.output(fx.map_arg(node.args[0], lambda item: copies[item]))
                continue
            if node.op in ("get_attr", "call_module"):
                held[str(node.target)] = _attribute(self._graph, str(node.target))
            copies[node] = graph.node_copy(node, lambda item: copies[item])
        return fx.GraphModule(_holder(held), graph)


def _name_of(graph: fx.GraphModule) -> str:
    """What the log calls a graph: where in the user's source it begins."""
    for node in graph.graph.nodes:
        places = re.findall(r'File "(.*)", line (\d+)', node.stack_trace or "")
        if places:
            return "the graph that begins at {}:{}".format(*places[-1])
    return "a graph"


def _own_name(place: fx.Node) -> str:
    """What the user's module calls a weight, as far as Dynamo's name for it tells: ``n`` of ``l_self_buffers_n_``."""
    return re.sub(r"(^|_)(l_self|modules|parameters|buffers)(?=_)", "", place.name).strip("_")


def _holder(held: dict[str, Any]) -> torch.nn.Module:
    """A module with these parameters, buffers and parts, by dotted names."""
    root = torch.nn.Module()
    for name, value in held.items():
        *path, last = name.split(".")
        owner = root
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            owner.register_buffer(last, value)
        else:
            setattr(owner, last, value)
    return root


def _attribute(module: torch.nn.Module, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _is_number(value: Any) -> bool:
    """Whether a tensor stands for a Python float, which Dynamo makes of numbers that may change."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype == torch.float64


def _places_of_sizes(values: Sequence[Any], left_out: set[int]) -> dict[int, tuple[int, int]]:
    """The input and dimension whose size an input is, by the index of that."""
    sizes: dict[str, tuple[int, int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and index not in left_out:
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    sizes.setdefault(str(size.node.expr), (index, dim))
    found = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.SymInt) and str(value.node.expr) in sizes:
            found[index] = sizes[str(value.node.expr)]
    return found


def _dynamic_dimensions(value: Any) -> dict[int, Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    return {
        dim: torch.export.Dim.AUTO for dim, size in enumerate(value.shape) if isinstance(size, torch.SymInt)
    } or None
