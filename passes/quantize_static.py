"""Convolutional nets compute with integers throughout: weights are rounded once, and tensors in between to steps that
example inputs tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.ir import Graph, InsertionPoint, Node, Program, Value
from mobopt.ir.facts import TensorFacts
from mobopt.ir.nests import map_leaves
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.affine_tensor import QUINT8
from mobopt.ops.targets import Target, judge
from mobopt.ops.targets.verdicts import QUANTIZED
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.note_kinds import STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.quantize_weights import QuantizeWeights, layer_name, layers_with_weights, note_rounding
from mobopt.passes.quantized_forms import Qnnpack, QuantizedForm, Vulkan
from mobopt.passes.rewriting import argument, insert_node, replace_node, tensor_key
from mobopt.runtimes.cpu import Interpreter

_LEAST_SCALE = 2.0**-20
"""Of tensors that were zero in all examples."""
_KEEP_STEPS = frozenset(
    f"aten::{name}"
    for name in (
        *("max_pool2d", "adaptive_avg_pool2d", "flatten", "reshape", "view", "permute", "transpose", "contiguous"),
        *("relu", "hardtanh", "clamp"),
    )
)
"""Operators that torch has for quantised tensors, and whose results have the steps of their input."""


_READ_SIZES = ("aten::size", "aten::dim", "aten::numel", "aten::len")
"""Operators to which a quantised tensor is as its floats are; others ask for a dtype, or for elements."""


@dataclass(frozen=True)
class Seen:
    """What the examples showed of a tensor."""

    least: float
    greatest: float
    sizes: tuple[int, ...]

    @property
    def is_finite(self) -> bool:
        """Whether all numbers were."""
        return math.isfinite(self.greatest - self.least)

    def steps(self, floor: float = -math.inf) -> tuple[float, int]:
        """Scale and zero point of uint8 for numbers from ``floor`` on; zero is one of the steps."""
        least, greatest = max(min(self.least, 0.0), floor), max(self.greatest, 0.0)
        scale = max((greatest - least) / 255, _LEAST_SCALE)
        return scale, min(max(round(-least / scale), 0), 255)


class _Observer(Interpreter):
    """Runs a program and keeps the range of each float32 tensor."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.seen: dict[Value, Seen] = {}

    def watch(self, method: str, arguments: Sequence[Any]) -> None:
        """Run a method on copies of arguments, which it may change.

        Raises:
            InputError: it can't be run on them.
        """
        self.run(method, map_leaves(list(arguments), torch.Tensor, torch.Tensor.clone))

    def bind(self, values: Sequence[Value], results: Sequence[Any], environment: dict[Value, Any]) -> None:
        """Look at what values are."""
        for value, result in zip(values, results, strict=True):
            if isinstance(result, torch.Tensor) and result.dtype == torch.float32 and result.numel():
                low, high = (float(bound) for bound in torch.aminmax(result.detach()))
                known = self.seen.get(value, Seen(low, high, ()))
                self.seen[value] = Seen(min(low, known.least), max(high, known.greatest), tuple(result.shape))
        super().bind(values, results, environment)


@dataclass(frozen=True)
class QuantizeStatic(QuantizeWeights):
    """Let convolutions of images, linear layers, and sums, concatenations and pools between them compute with integers.

    Given:
        %c = aten::conv2d(%x, %w, %b, ...)
        %y = aten::relu(%c)
    Result:
        %q = aten::quantize_per_tensor(%x, 0.02, 128, 13)
        %r = quantized::conv2d(%q, %packed, 0.05, 0)
        %f = aten::dequantize(%r)
        %y = aten::contiguous(%f, 0)

    Steps of 8 bits go from the least to the greatest number that a tensor had in the examples. An activation that is
    zero below zero is what the least step makes of a layer's sums, so it needs no operator. What torch has no operator
    for computes with floats, between ``dequantize`` and the next layer's ``quantize_per_tensor``.

    With a target, a GPU, the operators are Vulkan's (``vulkan_prepack::run_qconv2d_context``), of which the target
    computes all right.
    """

    name = "quantize_static"
    examples: Examples = field(default_factory=Examples)
    target: Target | None = None

    @property
    def written_as(self) -> QuantizedForm:
        """The operators that stand for layers."""
        return Qnnpack() if self.target is None else Vulkan()

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite the methods that examples are given for.

        Raises:
            InputError: there are no examples, the model can't be run on one, or a pattern of what is to stay matches no
                layer.
        """
        if not self.examples.arguments or self.examples.are_random:
            raise InputError(
                "int8_static learns from example inputs how large numbers get; give some (--input, --random; "
                "example_inputs)"
            )
        layers = [node for graph in program.methods.values() for node in layers_with_weights(graph)]
        self._check_patterns(list(dict.fromkeys(map(layer_name, layers))))
        if self.target is not None:
            record_facts(program, self.examples)
        changed = False
        for method, arguments in self.examples.arguments.items():
            if method not in program.methods:
                continue
            observer = _Observer(program)
            observer.watch(method, arguments)
            for number, call in enumerate(self.examples.calibration if method == "forward" else ()):
                try:
                    observer.watch(method, call)
                except InputError as error:
                    raise InputError(f"call {number} of the calibration inputs: {error}") from None
            seen = {value: item for value, item in observer.seen.items() if item.is_finite}
            rewriting = _Rewriting(self, program.methods[method], notes, seen)
            changed |= rewriting.rewrite()
        return changed

    def refusal(self, node: Node) -> str:
        """Why a layer keeps its floats; empty if it does not."""
        if node.qualified_op not in self.written_as.layers:
            return "only convolutions of images and linear layers have kernels of integers"
        reason = self._unfit(node)
        if not reason and not argument(node, "bias").is_constant:
            return "its bias is not constant"
        if not reason and self.target is not None:
            finding = judge(node, self.target)
            return "" if finding.verdict == "native" else f"for {self.target} {finding.why}"
        return reason


class _Rewriting:
    """Of one method.

    Attributes:
        steps: of values, the quantised ones that stand for them.
    """

    def __init__(self, owner: QuantizeStatic, graph: Graph, notes: NoteBook, seen: Mapping[Value, Seen]) -> None:
        self._owner, self._graph, self._notes, self._seen = owner, graph, notes, seen
        self._target, self._form = owner.target, owner.written_as
        self._stands_for: dict[Value, Value] = {}
        self._replaced: list[Node] = []
        self._contexts: dict[str, Value] = {}
        self._layers = set(layers_with_weights(graph))

    def rewrite(self) -> bool:
        """Go through the nodes in their order; then floats are made where they are still read."""
        for node in list(self._graph.block.nodes):
            if node not in self._replaced:
                self._visit(node)
        for value, integers in self._stands_for.items():
            self._finish(value, integers)
        for node in reversed(self._replaced):
            if not any(output.is_used for output in node.outputs):
                node.destroy()
        if self._replaced and self._target is None:
            self._forget_layouts()
        return bool(self._replaced)

    def _forget_layouts(self) -> None:
        """QNNPACK's results lie channels_last: no view asks for strides as convolutions of floats leave them, and apps,
        which read a result's memory, get rows."""
        for node in list(self._graph.walk()):
            if node.qualified_op == "aten::view":
                replace_node(self._graph, node, "aten::reshape", node.inputs)
        readers = [self._graph.block.returns]
        while readers:
            reader = readers.pop()
            for place, value in enumerate(reader.inputs):
                if value.producer is not None and value.producer.op in _CONTAINERS:
                    readers.append(value.producer)
                elif value.type == TENSOR and not value.is_constant:
                    dense = [value, self._graph.constant(0)]  # torch.contiguous_format
                    reader.replace_input(place, insert_node(self._graph, reader, "aten::contiguous", dense))

    def _visit(self, node: Node) -> None:
        if node.qualified_op in self._form.layers:
            self._layer(node)
        elif node.qualified_op == "aten::add.Tensor":
            self._sum(node)
        elif node.qualified_op == "aten::cat":
            self._joined(node)
        elif node in self._layers:
            self._notes.add(STAYS, node, reason=self._owner.refusal(node))
        elif node.inputs and node.inputs[0] in self._stands_for and self._may_keep_steps(node):
            self._like(node)

    def _layer(self, node: Node) -> None:
        """A convolution or a linear layer, with the activation after it."""
        x = argument(node, "input")
        reason = self._owner.refusal(node)
        if not reason and not (x in self._seen and node.output in self._seen):
            reason = "the examples don't come to it, or bring it infinities or other than float32"
        if not reason and not self._takes(node, len(self._seen[x].sizes)):
            reason = f"kernels of integers take no input of {len(self._seen[x].sizes)} dimensions"
        if reason:
            self._notes.add(STAYS, node, reason=reason)
            return
        weight = argument(node, "weight")
        packed = self._packed(node, weight)
        integers = self._integers(x, node)
        self._made(
            node, self._form.layers[node.qualified_op], lambda steps: self._form.arguments(integers, packed, steps)
        )

    def _packed(self, node: Node, weight: Value) -> Value:
        """The packed weights of a layer; layers of one weight and the same settings share them."""
        stored = self._form.rounded(node)
        note_rounding(self._notes, node, weight.constant, stored)
        settings = [value.constant for value in node.inputs[1:]]
        key = repr([tensor_key(item) if isinstance(item, torch.Tensor) else item for item in settings])
        if key not in self._contexts:
            packed = self._graph.constant(self._form.packed(node, stored), name=f"{weight.name}.packed")
            packed.attribute = weight.attribute
            self._contexts[key] = packed
        return self._contexts[key]

    @staticmethod
    def _takes(node: Node, rank: int) -> bool:
        return rank > 1 if node.op == "aten::linear" else rank == 4

    def _sum(self, node: Node) -> None:
        left, right, alpha = node.inputs
        both = all(value in self._stands_for for value in (left, right)) and node.output in self._seen
        if both and alpha.is_constant and alpha.constant == 1 and self._seen[left].sizes == self._seen[right].sizes:
            operands = [self._stands_for[left], self._stands_for[right]]
            self._made(node, self._form.sum, lambda steps: [*operands, *steps])

    def _joined(self, node: Node) -> None:
        items, dim = node.inputs
        maker = items.producer
        cat = self._form.cat
        if maker is None or maker.op != "prim::ListConstruct" or node.output not in self._seen or cat is None:
            return
        if all(value in self._stands_for for value in maker.inputs):
            parts = [self._stands_for[value] for value in maker.inputs]
            listed = insert_node(self._graph, node, "prim::ListConstruct", parts, type=ListType(TENSOR))
            self._made(node, cat, lambda steps: [listed, dim, *steps])

    def _like(self, node: Node) -> None:
        """An operator whose result has the steps of its input, where the target computes that right."""
        inputs = [self._stands_for[node.inputs[0]], *node.inputs[1:]]
        made = insert_node(self._graph, node, node.op, inputs, overload=node.overload, name=node.output.name)
        made.facts = _in_integers(node.output)
        assert made.producer is not None
        if self._target is not None and judge(made.producer, self._target).verdict != "native":
            made.producer.destroy()
            return
        self._stands_for[node.output] = made
        self._replaced.append(node)

    def _may_keep_steps(self, node: Node) -> bool:
        """Whether there may be a kernel that gives the steps of its input."""
        if self._target is None:
            return node.op in _KEEP_STEPS and _has_kernel(node)
        is_tensor = [value.type for value in node.outputs] == [TENSOR]
        return is_tensor and not node.op.startswith("prim::") and judge(node, self._target).verdict == "native"

    def _made(self, node: Node, operator: str, arguments: Callable[[Sequence[Value]], list[Value]]) -> None:
        """Put an operator that rounds its result in a node's place, and in that of the activation after it."""
        last, floor = node, -math.inf
        activation = self._activation_after(node)
        if activation is not None:
            last, floor = activation, 0.0
        scale, zero = self._seen[last.output].steps(floor)
        steps = [self._graph.constant(scale), self._graph.constant(zero)]
        op, _, overload = operator.partition(".")
        made = insert_node(self._graph, node, op, arguments(steps), overload=overload, name=last.output.name)
        made.facts = _in_integers(last.output)
        self._stands_for[last.output] = made
        self._replaced += [node, last] if last is not node else [node]

    def _activation_after(self, node: Node) -> Node | None:
        """What alone reads a node's result, and makes zero of what is below zero."""
        users = [user for user, _ in node.output.uses]
        if len(users) != 1 or users[0].op not in _ACTIVATIONS or users[0].output not in self._seen:
            return None
        return users[0] if _ACTIVATIONS[users[0].op](users[0]) else None

    def _integers(self, x: Value, before: Node) -> Value:
        """A tensor's integers."""
        if x not in self._stands_for:
            scale, zero = self._seen[x].steps()
            numbers = [self._graph.constant(number) for number in (scale, zero, QUINT8)]
            made = insert_node(self._graph, before, "aten::quantize_per_tensor", [x, *numbers])
            made.facts = _in_integers(x)
            self._stands_for[x] = made
        return self._stands_for[x]

    def _finish(self, value: Value, integers: Value) -> None:
        """Floats for those who still read some; sizes are read of the integers."""
        made = integers.producer
        assert made is not None
        if made.op == "aten::quantize_per_tensor":
            return
        floats: Value | None = None
        for user, place in value.uses:
            if user in self._replaced:
                continue
            if user.op in _READ_SIZES:
                user.replace_input(place, integers)
                continue
            if floats is None:
                node = self._graph.create("aten::dequantize", [integers], [TENSOR], overload="self", origin=made.origin)
                InsertionPoint.after(made).insert(node)
                floats = node.output
                floats.facts = value.facts
            user.replace_input(place, floats)


_CONTAINERS = ("prim::TupleConstruct", "prim::ListConstruct", "prim::DictConstruct")


def _has_kernel(node: Node) -> bool:
    """Whether QNNPACK has one for what a node asks: its pools have windows of more than one pixel."""
    if node.op != "aten::max_pool2d":
        return True
    window = argument(node, "kernel_size")
    return window.is_constant and math.prod(window.constant) > 1


def _is_clamp_from_zero(node: Node) -> bool:
    least = node.inputs[1]
    return least.is_constant and least.constant == 0


_ACTIVATIONS: dict[str, Callable[[Node], bool]] = {
    "aten::relu": lambda node: True,
    "aten::relu6": lambda node: True,
    "aten::hardtanh": _is_clamp_from_zero,
    "aten::clamp": _is_clamp_from_zero,
}


def _in_integers(value: Value) -> TensorFacts:
    """What is known of the tensor of integers that stands for one of floats, as far as anything is."""
    facts = value.facts
    return replace(facts, known_dtype=QUANTIZED) if facts.known_dtype == "float32" else facts
