"""Quantised tensors become floats that are rounded as they are: ``(integer - zero point) * scale``.

What torch's quantised layers compute in integers is computed in floats, and rounded to the steps of the result, so
results are those of torch but where a sum lies between two steps. Weights stay integers
(:data:`mobopt.ops.quantized.DEQUANTIZE`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mobopt.errors import UnsupportedError
from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.schemas import schema_of
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import QuantizedConv2dContext, QuantizedLinearContext
from mobopt.ops.quantized import DEQUANTIZE, block_counts, is_weight, weight_of
from mobopt.ops.quantized_contexts import QuantizedConvolution, QuantizedLayer
from mobopt.ops.records import Trait, record_of
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import EXPANDED_QUANTIZED
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node

_UNSIGNED, _SIGNED = (0, 255), (-128, 127)
_BOUNDS = {12: _SIGNED, 13: _UNSIGNED}
"""Of the integers of ``qint8`` and ``quint8``, by number; source: ``c10/core/ScalarType.h``."""
_KEEPS_STEPS = frozenset({Trait.VIEW, Trait.MOVES_ELEMENTS, Trait.PADDING, Trait.IDENTITY, Trait.DROPOUT})
"""Of operators whose results have the elements of their first argument, and zeros."""
_ROUNDS_AGAIN = frozenset({Trait.POOLING, Trait.RESAMPLING})
"""Of operators that compute, and give the steps of their first argument."""
_REDUCED = 127
"""What 255 is where ``reduce_range`` is asked for, and heeded."""
_LEAST_SCALE = 0.1
"""Of a tensor of zeros; source: ``ChooseQuantizationParams`` in ``QuantUtils.h`` of PyTorch."""


EXPANDED_OPERATORS = "expanded_operators"
"""In a Program's metadata: how many operators on quantised tensors became float arithmetic when it was read."""


_OF_HALVES = ("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
"""What QNNPACK, which computes on phones, has no kernels of; source: ``qlinear_prepack.cpp`` of PyTorch."""


@dataclass(frozen=True)
class Steps:
    """What the values of a quantised tensor are multiples of, and the integers that stand for them."""

    scale: float
    zero: int
    bounds: tuple[int, int] = _UNSIGNED


@dataclass(frozen=True)
class ExpandQuantized(Pass):
    """Put floats in the place of quantised tensors.

    Given:
        %q : Tensor = aten::quantize_per_tensor(%x, 0.02, 128, 13)
        %r : Tensor = quantized::conv2d(%q, %packed, 0.05, 120)
        %y : Tensor = aten::dequantize(%r)
    Result:
        %steps : Tensor = aten::mul(%x, 50.)
        %whole : Tensor = aten::round(%steps)
        %kept : Tensor = aten::clamp(%whole, -128, 127)
        %q : Tensor = aten::mul(%kept, 0.02)
        %weight : Tensor = mobopt::dequantize(%integers, %scales, None, [1, 3, 3, 3], 8, 3)
        %sum : Tensor = aten::conv2d(%q, %weight, %bias, [1, 1], [0, 0], [1, 1], 1)
        and the same roundings of it, for %r and %y
    """

    name = "expand_quantized"
    heeds_reduced_range: bool = True
    """Whether ``reduce_range`` of dynamic layers counts, as on FBGEMM; QNNPACK, which phones have, ignores it."""

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite every method that has quantised tensors.

        Raises:
            UnsupportedError: an operator on quantised tensors is not known, or a scale is computed.
        """
        changed = False
        for graph in program.methods.values():
            expansion = _Expansion(program, graph, notes, self.heeds_reduced_range)
            expansion.rewrite(graph.block)
            changed |= expansion.has_changed
        return changed


def expansion_remark(program: Program) -> str:
    """What a user should know of a quantised model that became floats; empty if it did not."""
    count = program.metadata.get(EXPANDED_OPERATORS, 0)
    if not count:
        return ""
    return f"the model is quantised: {count} of its operators became float arithmetic that is rounded alike"


def has_quantized(program: Program) -> bool:
    """Whether a method has quantised tensors."""
    return any(_is_quantized(node) for graph in program.methods.values() for node in graph.walk())


def is_for_qnnpack(program: Program) -> bool:
    """Whether phones' own kernels compute all that a quantised model asks for."""
    return not any(node.op in _OF_HALVES for graph in program.methods.values() for node in graph.walk())


def _is_quantized(node: Node) -> bool:
    """Whether an operator makes quantised tensors, or computes with quantised weights."""
    return node.op == "aten::quantize_per_tensor" or node.op.startswith(("quantized::", "vulkan_quantized::"))


_Context = TypeVar("_Context", QuantizedConv2dContext, QuantizedLinearContext)


class QuantizedCall:
    """A node that is rewritten: its arguments by name, and operators before it."""

    def __init__(self, expansion: _Expansion, node: Node) -> None:
        self.steps = expansion.steps
        self.heeds_reduced_range = expansion.heeds_reduced_range
        self._expansion = expansion
        self.node = node
        names = [item.name for item in schema_of(node.qualified_op).arguments]
        self.given = dict(zip(names, node.inputs, strict=False))

    def emit(self, operator: str, *operands: Any) -> Value:
        """Append an operator before the node, of values and plain Python values; the rest takes its defaults."""
        name, _, overload = operator.partition(".")
        arguments = schema_of(operator).arguments
        given = [self._value(item) for item in operands]
        given += [self._value(item.default) for item in arguments[len(operands) :]]
        return insert_node(self._expansion.graph, self.node, name, given, overload=overload)

    def constant(self, number: Any) -> Value:
        """A plain Python value."""
        return self._value(number)

    def _value(self, item: Any) -> Value:
        return item if isinstance(item, Value) else self._expansion.graph.constant(item)

    def number(self, name: str) -> Any:
        """A constant argument.

        Raises:
            UnsupportedError: it is computed.
        """
        value = self.given[name]
        if not value.is_constant:
            raise self.error(f"{name!r} is computed")
        return value.constant.item() if isinstance(value.constant, torch.Tensor) else value.constant

    def layer(self, name: str) -> QuantizedLayer:
        """The packed weights of an argument, as phones' CPUs have them.

        Raises:
            UnsupportedError: they are computed.
        """
        held = self._held(name)
        if not isinstance(held, QuantizedLayer):
            raise self.error("its weights are computed")
        return held

    def context(self, kind: type[_Context]) -> _Context:
        """The packed weights of the last argument, as phones' GPUs have them.

        Raises:
            UnsupportedError: they are computed, or floats.
        """
        held = self._held("vk_context")
        if not isinstance(held, kind):
            raise self.error("its weights are computed, or not quantised")
        return held

    def _held(self, name: str) -> object:
        value = self.given[name]
        if value.producer is not None and value.producer.op == "prim::GetAttr":
            return self._expansion.program.attributes[value.producer.attributes["name"]].value
        return value.constant if value.is_constant else None

    def weight(self, stored: AffineTensor | torch.Tensor) -> Value:
        """The floats of a stored tensor, which stays integers if it is large."""
        if isinstance(stored, torch.Tensor):
            return self._value(stored.half().float())
        integers = stored.integers.contiguous()
        if not is_weight(integers):
            return self._value(stored.floats())
        counts = block_counts(integers.shape, stored.block_size)
        scales, zeros = (item.float().reshape(counts) for item in (stored.scales, stored.zero_points))
        return self.emit(DEQUANTIZE, *weight_of(integers, scales, zeros, stored.block_size).arguments)

    def rounded(self, x: Value, steps: Steps) -> Value:
        """A tensor of the multiples that are nearest, half to even."""
        low, high = (bound - steps.zero for bound in steps.bounds)
        x = self.emit("aten::round", self.emit("aten::mul.Scalar", x, 1.0 / steps.scale))
        result = self.emit("aten::mul.Scalar", self.emit("aten::clamp", x, low, high), steps.scale)
        self.steps[result] = steps
        return result

    def to_result(self, x: Value) -> Value:
        """A tensor in the steps that the node asks for, by the names of its schema."""
        names = list(self.given)
        scale, zero = (next(name for name in names if part in name) for part in ("scale", "zero_point"))
        scale = next(name for name in ("output_scale", "Y_scale_i", scale) if name in names)
        return self.rounded(x, Steps(float(self.number(scale)), int(self.number(zero))))

    def error(self, reason: str) -> UnsupportedError:
        """An error about the node."""
        return _error(self.node, reason)


def _error(node: Node, reason: str) -> UnsupportedError:
    place = f" at {node.source}" if node.source else ""
    return UnsupportedError(f"{node.op}{place} computes on quantised tensors, and {reason}")


Rule = Callable[[QuantizedCall], "Value | None"]
RULES: dict[str, Rule] = {}
"""What becomes of an operator, by its name without overload; a rule that gives None has changed the node itself."""


def _expands(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


class _Expansion:
    """Rewrites one method.

    Attributes:
        program: whose attributes hold the packed weights.
        graph: of the method.
        heeds_reduced_range: see :class:`ExpandQuantized`.
        steps: of the floats that stand for quantised tensors.
        has_changed: whether there were any.
    """

    def __init__(self, program: Program, graph: Graph, notes: NoteBook, heeds_reduced_range: bool) -> None:
        self.program, self.graph, self._notes = program, graph, notes
        self.heeds_reduced_range = heeds_reduced_range
        self.steps: dict[Value, Steps] = {}
        self.has_changed = False

    def rewrite(self, block: Block) -> None:
        """Rewrite a block in its order.

        Raises:
            UnsupportedError: see :class:`ExpandQuantized`.
        """
        for node in list(block.nodes):
            self._enter(node)
            for inner in node.blocks:
                self.rewrite(inner)
            if node.blocks:
                self._leave(node)
            elif node.op in RULES and (_is_quantized(node) or self._steps_of(node)):
                self._apply(node, RULES[node.op])
            elif node.op.startswith("quantized::"):
                raise _error(node, "is not known")
            elif self._steps_of(node):
                self._keep(node)
        if any(value in self.steps for value in block.returns.inputs) and block is self.graph.block:
            raise UnsupportedError("the model returns a quantised tensor; let it return what dequantize() makes of it")

    def _steps_of(self, node: Node) -> Steps | None:
        """Of the first input that has some."""
        return next((self.steps[value] for value in node.inputs if value in self.steps), None)

    def _apply(self, node: Node, rule: Rule) -> None:
        result = rule(QuantizedCall(self, node))
        self._notes.add(EXPANDED_QUANTIZED, node)
        self.has_changed = True
        if result is not None:
            result.name, node.output.name = node.output.name, result.name
            node.output.replace_all_uses_with(result)
            node.destroy()

    def _keep(self, node: Node) -> None:
        """A node that computes with the floats as it did with the quantised tensor."""
        traits, steps = record_of(node.qualified_op).traits, self._steps_of(node)
        if Trait.READS_METADATA_ONLY in traits:
            return
        if traits & _ROUNDS_AGAIN and Trait.MOVES_ELEMENTS not in traits:
            self._apply(node, _round_again)
        elif traits & _KEEPS_STEPS or node.op in ("prim::ListConstruct", "prim::ListUnpack"):
            assert steps is not None
            self.steps.update(dict.fromkeys(node.outputs, steps))
        else:
            raise _error(node, "is not known to compute on them")

    def _enter(self, node: Node) -> None:
        """What a loop is given has the same steps inside."""
        if node.op == "prim::Loop":
            for inner, value in zip(node.blocks[0].parameters[1:], node.inputs[2:], strict=True):
                if value in self.steps:
                    self.steps[inner] = self.steps[value]

    def _leave(self, node: Node) -> None:
        """What branches and turns give must have the same steps whichever is taken."""
        first = 1 if node.op == "prim::Loop" else 0
        for place, output in enumerate(node.outputs):
            given = [block.returns.inputs[first + place] for block in node.blocks]
            given += node.inputs[2 + place : 3 + place] if first else []
            found = {self.steps.get(value) for value in given}
            if len(found) > 1:
                raise _error(node, "its branches or turns give tensors of different scales")
            (steps,) = found
            if steps is not None:
                self.steps[output] = steps


def _round_again(call: QuantizedCall) -> Value:
    node = call.node
    (steps,) = {call.steps[value] for value in node.inputs if value in call.steps}
    return call.rounded(call.emit(node.qualified_op, *node.inputs), steps)


@_expands("aten::quantize_per_tensor")
def _quantize(call: QuantizedCall) -> Value:
    number = call.number("dtype")
    if number not in _BOUNDS:
        raise call.error("only quint8 and qint8 are known")
    steps = Steps(float(call.number("scale")), int(call.number("zero_point")), _BOUNDS[number])
    return call.rounded(call.node.inputs[0], steps)


@_expands("aten::dequantize")
def _dequantize(call: QuantizedCall) -> Value:
    return call.emit("aten::clone", call.node.inputs[0])


@_expands("aten::q_scale")
def _q_scale(call: QuantizedCall) -> Value:
    return call.constant(call.steps[call.node.inputs[0]].scale)


@_expands("aten::q_zero_point")
def _q_zero_point(call: QuantizedCall) -> Value:
    return call.constant(call.steps[call.node.inputs[0]].zero)


@_expands("aten::relu", "aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d", "aten::adaptive_max_pool2d")
def _of_elements(call: QuantizedCall) -> Value:
    """Zero has steps of its own, and the greatest of some elements is one of them."""
    node = call.node
    result = call.emit(node.qualified_op, *node.inputs)
    call.steps[result] = call.steps[node.inputs[0]]
    return result


@_expands("quantized::max_pool1d", "quantized::max_pool2d")
def _max_pool(call: QuantizedCall) -> Value:
    result = call.emit(call.node.op.replace("quantized", "aten"), *call.node.inputs)
    call.steps[result] = call.steps[call.node.inputs[0]]
    return result


@_expands("aten::mean", "aten::leaky_relu", "aten::elu", "aten::hardswish", "aten::interpolate")
def _computed(call: QuantizedCall) -> Value:
    return _round_again(call)


@_expands("aten::sigmoid", "aten::hardsigmoid")
def _sigmoid(call: QuantizedCall) -> Value:
    return call.rounded(call.emit(call.node.qualified_op, *call.node.inputs), Steps(1 / 256, 0))


@_expands("aten::tanh")
def _tanh(call: QuantizedCall) -> Value:
    return call.rounded(call.emit(call.node.qualified_op, *call.node.inputs), Steps(2 / 256, 128))


def _in_steps(call: QuantizedCall, bound: Any, steps: Steps) -> float | None:
    """A bound as a quantised tensor has it."""
    if bound is None:
        return None
    low, high = (item - steps.zero for item in steps.bounds)
    return float(min(max(round(bound / steps.scale), low), high) * steps.scale)


@_expands("aten::hardtanh", "aten::clamp", "quantized::relu6")
def _clamp(call: QuantizedCall) -> Value:
    x, *_ = call.node.inputs
    names = ("min_val", "max_val") if "min_val" in call.given else ("min", "max")
    bounds = [call.number(name) for name in names] if "relu6" not in call.node.op else [0.0, 6.0]
    steps = call.steps[x]
    result = call.emit("aten::clamp", x, *(_in_steps(call, bound, steps) for bound in bounds))
    call.steps[result] = steps
    return result


def _with_activation(call: QuantizedCall, x: Value) -> Value:
    """What the node asks for after its layer."""
    return call.emit("aten::relu", x) if "_relu" in call.node.op else x


@_expands("quantized::add", "quantized::add_relu", "quantized::mul", "quantized::mul_relu")
def _pointwise(call: QuantizedCall) -> Value:
    if "scale" not in call.given:
        raise call.error("only sums and products of two quantised tensors are known")
    name = call.node.op.removeprefix("quantized::").removesuffix("_relu")
    made = call.emit(f"aten::{name}.Tensor", call.given["qa"], call.given["qb"])
    return call.to_result(_with_activation(call, made))


@_expands("quantized::cat", "quantized::cat_relu")
def _cat(call: QuantizedCall) -> Value:
    made = _with_activation(call, call.emit("aten::cat", call.given["qx"], call.given["dim"]))
    if call.number("scale") is None:
        return call.rounded(made, call.steps[call.given["qx"]])
    return call.to_result(made)


@_expands("quantized::linear", "quantized::linear_relu")
def _linear(call: QuantizedCall) -> Value:
    layer = call.layer("W_prepack")
    made = call.emit("aten::linear", call.given["X"], call.weight(layer.weight), layer.bias)
    return call.to_result(_with_activation(call, made))


@_expands(
    *(f"quantized::conv{rank}d{relu}" for rank in (1, 2, 3) for relu in ("", "_relu")),
    *(f"quantized::conv_transpose{rank}d" for rank in (1, 2, 3)),
)
def _convolution(call: QuantizedCall) -> Value:
    layer = call.layer("packed_weight" if "packed_weight" in call.given else "weight")
    assert isinstance(layer, QuantizedConvolution)
    rank = int(call.node.op.removeprefix("quantized::conv").removeprefix("_transpose")[0])
    assert isinstance(layer.weight, AffineTensor)
    stored, sizes = layer.weight, [layer.stride, layer.padding, layer.dilation, layer.output_padding]
    if len(layer.stride) > rank:  # of one dimension, packed as of two
        stored = AffineTensor(stored.integers.squeeze(2), stored.scales, stored.zero_points, stored.axis)
        sizes = [items[-rank:] for items in sizes]
    x, weight, (stride, padding, dilation, output_padding) = call.given["qx"], call.weight(stored), sizes
    if layer.transposed:
        name = f"aten::conv_transpose{rank}d" + ("" if rank == 1 else ".input")
        made = call.emit(name, x, weight, layer.bias, stride, padding, output_padding, layer.groups, dilation)
    else:
        made = call.emit(f"aten::conv{rank}d", x, weight, layer.bias, stride, padding, dilation, layer.groups)
    return call.to_result(_with_activation(call, made))


@_expands("vulkan_prepack::run_qconv2d_context")
def _convolution_on_gpu(call: QuantizedCall) -> Value:
    layer = call.context(QuantizedConv2dContext)
    x, weight, between = call.given["X"], call.weight(layer.weight), (layer.stride, layer.padding)
    if layer.transposed:
        after = (layer.output_padding, layer.groups, layer.dilation)
        made = call.emit("aten::conv_transpose2d.input", x, weight, layer.bias, *between, *after)
    else:
        made = call.emit("aten::conv2d", x, weight, layer.bias, *between, layer.dilation, layer.groups)
    if (layer.output_min, layer.output_max) != (None, None):
        made = call.emit("aten::clamp", made, layer.output_min, layer.output_max)
    return call.to_result(made)


@_expands("vulkan_prepack::run_qlinear_context")
def _linear_on_gpu(call: QuantizedCall) -> Value:
    layer = call.context(QuantizedLinearContext)
    made = call.emit("aten::linear", call.given["X"], call.weight(layer.weight.transposed()), layer.bias)
    return call.to_result(made)


@_expands(*(f"vulkan_quantized::{name}" for name in ("add", "sub", "mul", "div")))
def _arithmetic_on_gpu(call: QuantizedCall) -> Value:
    name = call.node.op.removeprefix("vulkan_quantized::")
    return call.to_result(call.emit(f"aten::{name}.Tensor", call.given["qa"], call.given["qb"]))


@_expands(*(f"quantized::batch_norm{rank}d{relu}" for rank in (1, 2, 3) for relu in ("", "_relu")))
def _batch_norm(call: QuantizedCall) -> Value:
    given = [call.given[name] for name in ("qx", "weight", "bias", "mean", "var")]
    made = call.emit("aten::batch_norm", *given, False, 0.1, call.given["eps"], False)
    return call.to_result(_with_activation(call, made))


@_expands("quantized::layer_norm")
def _layer_norm(call: QuantizedCall) -> Value:
    given = [call.given[name] for name in ("input", "normalized_shape", "weight", "bias", "eps")]
    return call.to_result(call.emit("aten::layer_norm", *given))


@_expands("quantized::group_norm")
def _group_norm(call: QuantizedCall) -> Value:
    given = [call.given[name] for name in ("input", "num_groups", "weight", "bias", "eps")]
    return call.to_result(call.emit("aten::group_norm", *given))


@_expands("quantized::instance_norm")
def _instance_norm(call: QuantizedCall) -> Value:
    x, weight, bias, eps = (call.given[name] for name in ("input", "weight", "bias", "eps"))
    return call.to_result(call.emit("aten::instance_norm", x, weight, bias, None, None, True, 0.1, eps, False))


@_expands("quantized::hardswish", "quantized::sigmoid")
def _function(call: QuantizedCall) -> Value:
    return call.to_result(call.emit(call.node.op.replace("quantized", "aten"), call.node.inputs[0]))


@_expands("quantized::leaky_relu")
def _leaky_relu(call: QuantizedCall) -> Value:
    return call.to_result(call.emit("aten::leaky_relu", call.given["qx"], call.given["negative_slope"]))


@_expands("quantized::elu")
def _elu(call: QuantizedCall) -> Value:
    given = [call.given[name] for name in ("self", "alpha", "scale", "input_scale")]
    steps = Steps(float(call.number("output_scale")), int(call.number("output_zero_point")))
    return call.rounded(call.emit("aten::elu", *given), steps)


@_expands("quantized::celu")
def _celu(call: QuantizedCall) -> Value:
    return call.to_result(call.emit("aten::celu", call.given["self"], call.given["alpha"]))


@_expands("quantized::prelu")
def _prelu(call: QuantizedCall) -> Value:
    return call.to_result(call.emit("aten::prelu", call.given["qx"], call.given["weight"]))


@_expands("quantized::softmax")
def _softmax(call: QuantizedCall) -> Value:
    return call.to_result(call.emit("aten::softmax.int", call.given["qx"], call.given["dim"]))


@_expands("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
def _dynamic_linear(call: QuantizedCall) -> Value:
    layer = call.layer("W_prepack")
    highest = _REDUCED if call.heeds_reduced_range and call.number("reduce_range") else _UNSIGNED[1]
    x, is_batch = _without_batch(call.given["X"])
    x = _rounded_by_its_range(call, x, highest)
    made = _with_activation(call, call.emit("aten::linear", x, call.weight(layer.weight), layer.bias))
    return call.emit("aten::unsqueeze", made, 0) if is_batch else made


def _without_batch(x: Value) -> tuple[Value, bool]:
    """What a tensor is of which a batch of one was made, as QNNPACK wants for vectors, and whether it is that."""
    node = x.producer
    if node is None or node.op != "aten::unsqueeze" or node.inputs[1].constant != 0:
        return x, False
    return node.inputs[0], True


@_expands("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
def _linear_of_halves(call: QuantizedCall) -> Value:
    layer = call.layer("W_prepack")
    return _with_activation(call, call.emit("aten::linear", call.given["X"], call.weight(layer.weight), layer.bias))


def _rounded_by_its_range(call: QuantizedCall, x: Value, highest: int) -> Value:
    """A tensor in steps from its least to its greatest element; source: ``ChooseQuantizationParams``."""
    emit = call.emit
    least = emit("aten::clamp", emit("aten::min", x), None, 0.0)
    greatest = emit("aten::clamp", emit("aten::max", x), 0.0, None)
    step = emit("aten::div.Scalar", emit("aten::sub.Tensor", greatest, least), float(highest))
    step = emit("aten::where.ScalarOther", emit("aten::gt.Scalar", step, 0.0), step, _LEAST_SCALE)
    below, above = emit("aten::div.Tensor", least, step), emit("aten::div.Tensor", greatest, step)
    is_below = emit("aten::le.Tensor", emit("aten::neg", below), emit("aten::add.Scalar", above, highest))
    zero = emit("aten::where.self", is_below, emit("aten::neg", below), emit("aten::rsub.Scalar", above, highest))
    zero = emit("aten::round", emit("aten::clamp", zero, 0.0, float(highest)))
    whole = emit("aten::add.Tensor", emit("aten::round", emit("aten::div.Tensor", x, step)), zero)
    whole = emit("aten::clamp", whole, 0.0, float(highest))
    return emit("aten::mul.Tensor", emit("aten::sub.Tensor", whole, zero), step)
