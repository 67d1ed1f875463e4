"""Example inputs of a model: given, bundled with it, of shapes that it declares or that tracing remembered, or guessed
from its first layers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from mobopt.errors import EndlessError, InputError, MoboptError
from mobopt.frontends.source import Source, bundled_for
from mobopt.ir import Node, Program, Value
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import TENSOR
from mobopt.ops.quantized_contexts import QuantizedConvolution, QuantizedLayer
from mobopt.ops.records import Like, Trait, record_of
from mobopt.ops.schemas import schema_of
from mobopt.ops.unpacked_calls import unpacked_call
from mobopt.passes.facts import Examples
from mobopt.runtimes.bounds import DeclaredBounds, InputBounds, Range
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.inputs import SEED

_LOG = logging.getLogger("mobopt.samples")
GIVEN, BUNDLED, GUESSED, NONE = "given", "bundled with the model", "guessed", "none"
DECLARED, TRACED = "of the shapes declared", "of the shapes traced"
ASSUMED = "assumed"
"""Good to compare results on, and no ground to believe that inputs have these sizes, or this many dimensions."""

ExampleInputs = Sequence[Any] | Mapping[str, Sequence[Any]]
"""Arguments of ``forward``, or arguments by the name of the method."""

_QUANTIZES = "aten::quantize_per_tensor"
_FORWARD = "forward"
_Finder = tuple[str, Callable[[], Iterator[Sequence[Any]]]]
_USUAL_SIZES = (224, 32, 28, 64, 96, 128, 160, 227, 256, 299, 112, 84)
_IMAGE_SIZES = (*_USUAL_SIZES, *(size for size in range(64, 0, -1) if size not in _USUAL_SIZES))
"""Edges of images that models are made for, the likeliest first, then every small one."""
_SEQUENCE_SIZES = (16, 64, 128, 1)
_STEPS = 7
"""Length of a guessed sequence of features."""


@dataclass(frozen=True)
class ChosenInputs:
    """Arguments of ``forward``, or None, where they come from, and arguments of other methods."""

    arguments: tuple[Any, ...] | None
    origin: str
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Given, or bundled with the model."""
    bounds: DeclaredBounds = field(default_factory=dict)
    """Sizes that inputs may have beside these, if anybody said so."""
    calibration: Sequence[Sequence[Any]] = ()
    """Of further calls of ``forward``, which tell how large numbers get."""

    @cached_property
    def examples(self) -> Examples:
        """As passes take them."""
        if self.arguments is None or self.origin == ASSUMED:
            return Examples(self.others, bounds=self.bounds, calibration=self.calibration)
        arguments = {_FORWARD: self.arguments, **self.others}
        is_random = self.origin in (DECLARED, TRACED, GUESSED)
        return Examples(arguments, is_random and self.origin != DECLARED, self.bounds, self.calibration, is_random)

    @property
    def by_method(self) -> dict[str, tuple[Any, ...]]:
        """Arguments of every method that has some."""
        return {**({} if self.arguments is None else {_FORWARD: self.arguments}), **self.others}

    def of(self, methods: Collection[str]) -> ChosenInputs:
        """Those of some methods alone."""
        others = {name: arguments for name, arguments in self.others.items() if name in methods}
        return replace(self, arguments=self.arguments if _FORWARD in methods else None, others=others)

    def __str__(self) -> str:
        texts = [] if self.arguments is None else [f"{_shapes_text(self.arguments)} ({self.origin})"]
        texts += [f"{method}: {_shapes_text(arguments)}" for method, arguments in self.others.items()]
        return "; ".join(texts) or "no inputs"


def with_bounds(program: Program, inputs: ChosenInputs, bounds: DeclaredBounds) -> ChosenInputs:
    """Inputs with the sizes that they may have besides.

    Args:
        program: the model.
        inputs: what decides about sizes.
        bounds: by method, for each tensor of its arguments, of each dimension the range; what is missing at the end of
            a list is not bounded.

    Raises:
        InputError: a range has no size in it, or there is no such method, input or dimension; or no inputs are known.
    """
    InputBounds(bounds)
    completed = {}
    for method, declared in bounds.items():
        if method not in program.methods:
            raise InputError(
                f"bounds are given for the method {method!r}, and the methods are {', '.join(program.methods)}"
            )
        if method not in inputs.examples.arguments:
            raise InputError(f"bounds are given for {method}, and no inputs of it are known; give example inputs")
        tensors = list(leaves_of(list(inputs.examples.arguments[method]), torch.Tensor))
        if len(declared) > len(tensors):
            raise InputError(f"bounds are given for input {len(declared) - 1} of {method}, and it has {len(tensors)}")
        rows: list[list[Range | None]] = [list(ranges) for ranges in declared]
        rows += [[] for _ in tensors[len(rows) :]]
        for number, (row, tensor) in enumerate(zip(rows, tensors, strict=True)):
            if len(row) > tensor.dim():
                raise InputError(
                    f"bounds are given for dimension {len(row) - 1} of input {number} of {method}, which has "
                    f"{tensor.dim()} dimensions, numbered from 0"
                )
            row += [None] * (tensor.dim() - len(row))
        completed[method] = rows
    InputBounds(completed).check_all(inputs.examples.arguments)
    return replace(inputs, bounds=completed)


def given_inputs(program: Program, given: ExampleInputs) -> ChosenInputs:
    """Inputs that a caller gives, completed with defaults.

    Raises:
        InputError: there is no such method, or it can't be run on them.
    """
    by_method = given if isinstance(given, Mapping) else {_FORWARD: given}
    bound = {method: _checked(program, method, arguments) for method, arguments in by_method.items()}
    return ChosenInputs(bound.pop(_FORWARD, None), GIVEN if _FORWARD in by_method else NONE, bound)


def _checked(program: Program, method: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    if method not in program.methods:
        raise InputError(
            f"example inputs are given for the method {method!r}, and the methods are {', '.join(program.methods)}; "
            "name it among those to preserve"
        )
    subject = "the model" if method == _FORWARD else method
    try:
        bound = tuple(bind_arguments(program, method, arguments, {}))
        Interpreter(program).run(method, copy.deepcopy(list(bound)))
    except InputError as error:
        raise InputError(f"{subject} can't be run on the example inputs: {error}") from None
    return bound


def choose_inputs(source: Source, given: ExampleInputs | None = None) -> ChosenInputs:
    """Inputs of every method: those given, or the best that can be had.

    Raises:
        InputError: the model can't be run on inputs that are given.
    """
    finders = [
        (BUNDLED, lambda: iter(source.example_calls()[:1])),
        (DECLARED if source.declares_sizes else TRACED, lambda: _traced(source.example_shapes())),
        _guessing(source.program),
    ]
    return _completed(source.program, given, finders, source.example_calls)


def choose_inputs_of_bundle(program: Program, given: ExampleInputs | None = None) -> ChosenInputs:
    """The same for an optimised file."""

    def bundled(method: str = _FORWARD) -> list[Sequence[Any]]:
        name = bundled_for(method)
        return list(Interpreter(program).bounded().run(name, [])) if name in program.methods else []

    return _completed(program, given, [(BUNDLED, lambda: iter(bundled()[:1])), _guessing(program)], bundled)


def _completed(
    program: Program,
    given: ExampleInputs | None,
    finders: Sequence[_Finder],
    bundled: Callable[[str], list[Sequence[Any]]],
) -> ChosenInputs:
    """What is given; for ``forward`` else what the finders find, for other methods what is bundled.

    Nothing is guessed of other methods: a guess decides about sizes, and a model is compared on what ``forward`` takes.
    """
    known = ChosenInputs(None, NONE) if given is None else given_inputs(program, given)
    forward = known if known.arguments is not None else _first_that_runs(program, finders)
    others = dict(known.others)
    for method in program.methods:
        if method not in (_FORWARD, *others):
            with suppress(EndlessError):
                first = next(iter(bundled(method)), None)
                if first is not None and _runs(program, first, method):
                    others[method] = tuple(first)
    return ChosenInputs(forward.arguments, forward.origin, others)


def _guessing(program: Program) -> _Finder:
    return (GUESSED if _is_told(program) else ASSUMED, lambda: _guesses(program))


def _first_that_runs(program: Program, finders: Sequence[_Finder]) -> ChosenInputs:
    with suppress(EndlessError):  # the next guess would not end either
        for origin, find in finders:
            for arguments in find():
                if _runs(program, arguments):
                    return ChosenInputs(tuple(arguments), origin)
    return ChosenInputs(None, NONE)


def _runs(program: Program, arguments: Sequence[Any], method: str = _FORWARD) -> bool:
    graph = program.methods.get(method)
    if graph is None or len(graph.inputs) != len(arguments) + 1:
        return False
    try:
        Interpreter(program).bounded().run(method, copy.deepcopy(list(arguments)))
    except EndlessError as error:
        _LOG.warning("inputs of %s are not used: %s", ", ".join(map(_shape_text, arguments)), error)
        raise
    except MoboptError:
        return False
    return True


def _traced(remembered: list[Any] | None) -> Iterator[Sequence[Any]]:
    if remembered is not None:
        generator = torch.Generator().manual_seed(SEED)
        yield [_alike(value, generator) for value in remembered]


def _alike(value: Any, generator: torch.Generator) -> Any:
    """Random floating-point numbers of a tensor's shape; integers stay zeros, which are indices of anything."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.randn(value.shape, generator=generator).to(value.dtype)
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    return value


def _guesses(program: Program) -> Iterator[Sequence[Any]]:
    """Inputs that the first layers would take."""
    graph = program.methods.get("forward")
    if graph is None or any(value.type != TENSOR for value in graph.inputs[1:]):
        return
    generator, dtype = torch.Generator().manual_seed(SEED), _dtype_of_weights(program)
    kinds = [_kind_of(value, program) or [1, 3, "*", "*"] for value in graph.inputs[1:]]
    sizes = _IMAGE_SIZES if any("*" in kind for kind in kinds) else _SEQUENCE_SIZES
    for size in sizes:
        yield [_made(kind, size, dtype, generator) for kind in kinds]
    rows = [[1, _STEPS, *kind[1:]] if len(kind) == 2 and "ids" not in kind else kind for kind in kinds]
    if rows != kinds:  # a linear layer takes rows of any number
        yield [_made(kind, sizes[0], dtype, generator) for kind in rows]


def _is_told(program: Program) -> bool:
    """Whether a layer tells how many dimensions every input of ``forward`` has.

    Convolutions do; linear layers, normalisations, embeddings and recurrent layers take tensors of several ranks.
    """
    graph = program.methods.get("forward")
    return graph is not None and all("*" in _kind_of(value, program) for value in graph.inputs[1:])


def _kind_of(value: Value, program: Program) -> list[int | str]:
    """Sizes of an input as far as its first layer tells, nothing if there is none; ``*`` is the edge of an image,
    ``ids`` a row of indices."""
    seen: set[Value] = set()
    values = [value]
    while values:
        current = values.pop(0)
        if current in seen:
            continue
        seen.add(current)
        for node, index in current.uses:
            kind = _layer_input(node, index, program)
            if kind:
                return kind
            traits = record_of(node.qualified_op).traits
            if node.op == _QUANTIZES or not traits.isdisjoint({Trait.ELEMENTWISE, Trait.DROPOUT}):
                values += node.outputs
            branch = node.block.node if node.op == "prim::Return" and node.block is not None else None
            if branch is not None and branch.op == "prim::If":
                values.append(branch.outputs[index])
    return []


def _layer_input(node: Node, index: int, program: Program) -> list[int | str]:
    """What a layer, packed or not, says of its input number ``index``."""
    if node.op == "aten::embedding" and index == 1:
        return [1, "ids"]
    if index != 0 or node.op.startswith("prim::"):
        return []
    op, arguments = unpacked_call(node, program.attributes) or _plain_call(node, program)
    op = op.partition(".")[0]
    if op == "aten::layer_norm" and isinstance(arguments.get("normalized_shape"), list):
        shape = arguments["normalized_shape"]
        return [1, *([_STEPS] if len(shape) == 1 else []), *shape]
    if Trait.RECURRENT in record_of(op).traits:
        sizes = [tensor.shape for tensor in arguments.get("params") or () if isinstance(tensor, torch.Tensor)]
        return [1, _STEPS, sizes[0][1]] if sizes else []
    packed = next((item for item in arguments.values() if isinstance(item, QuantizedLayer)), None)
    if packed is not None:
        return _input_of_quantized(op, packed)
    weight = arguments.get("weight")
    if op.endswith("_cell"):
        weight = arguments.get("w_ih")
        op = "aten::linear"
    if not isinstance(weight, torch.Tensor):
        return []
    record = record_of(op)
    if record.channels == Like.TRANSPOSED_WEIGHT:
        return [1, weight.shape[0], *["*"] * (weight.dim() - 2)]
    if Trait.CONVOLUTION in record.traits and "groups" in arguments and weight.dim() > 2:
        return [1, weight.shape[1] * arguments["groups"], *["*"] * (weight.dim() - 2)]
    if op == "aten::linear":
        return [1, weight.shape[1]]
    if op == "aten::batch_norm":
        return [1, weight.shape[0], "*", "*"]
    return []


def _input_of_quantized(op: str, layer: QuantizedLayer) -> list[int | str]:
    """What a layer with packed weights of integers takes; one of one dimension is packed as of two."""
    sizes = (layer.weight if isinstance(layer.weight, torch.Tensor) else layer.weight.integers).shape
    if not isinstance(layer, QuantizedConvolution):
        return [1, sizes[1]]
    channels = sizes[0] if layer.transposed else sizes[1] * layer.groups
    return [1, channels, *["*"] * (1 if "1d" in op else len(layer.stride))]


def _plain_call(node: Node, program: Program) -> tuple[str, dict[str, Any]]:
    names = [argument.name for argument in schema_of(node.qualified_op).arguments]
    return node.op, {name: _stored(value, program) for name, value in zip(names, node.inputs, strict=True)}


def _stored(value: Value, program: Program) -> Any:
    if value.is_constant:
        return value.constant
    producer = value.producer
    if producer is not None and producer.op == "prim::ListConstruct":
        return [_stored(item, program) for item in producer.inputs]
    if producer is not None and producer.op == "prim::GetAttr":
        attribute = program.attributes.get(producer.attributes["name"])
        return attribute.value if attribute is not None else None
    return None


def _dtype_of_weights(program: Program) -> torch.dtype:
    """The one dtype that all weights have, which layers ask of their inputs; float32 if there is none."""
    nodes = (node for graph in program.methods.values() for node in graph.walk())
    values = [value.constant for node in nodes for value in node.inputs if value.is_constant]
    tensors = leaves_of([*values, *(item.value for item in program.attributes.values())], torch.Tensor)
    found = {tensor.dtype for tensor in tensors if tensor.dim() and tensor.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32


def _made(kind: list[int | str], size: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if "ids" in kind:
        return torch.zeros(1, min(size, _SEQUENCE_SIZES[0]), dtype=torch.int64)
    return torch.randn([size if item == "*" else int(item) for item in kind], generator=generator).to(dtype)


def _shapes_text(values: Sequence[Any]) -> str:
    return ", ".join(map(_shape_text, values))


def _shape_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__
