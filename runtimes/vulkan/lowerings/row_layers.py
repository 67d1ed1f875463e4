"""Two layers of a few rows, the second of which alone reads what the first one makes, in one dispatch.
``compile/fusion_row_layers.py`` makes one node of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Value
from mobopt.ops.contexts import LinearPackedContext
from mobopt.ops.fake_quantize import FAKE_QUANTIZE
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation, activation_of
from mobopt.runtimes.vulkan.kernels.convolution_parameters import CONVOLUTIONS, convolution_of
from mobopt.runtimes.vulkan.kernels.epilogue import Epilogue, folded_epilogue
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.operand_rows import row_strides, rows_of_batches
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.row_layers import RowLayersOperands, append_row_layers
from mobopt.runtimes.vulkan.kernels.weight_packing import bias_vector, matrix_weights
from mobopt.runtimes.vulkan.lowerings.registry import lowers, why_unsupported

ROW_LAYERS = "mobopt::row_layers"
"""Its body has a rounding, if there is one, a layer, what that does to its sums, and the same of the layer that reads
it."""


@dataclass(frozen=True, eq=False)
class RowLayer:
    """A linear layer, or a convolution by single pixels, of constants, in float32."""

    source: Value
    matrix: torch.Tensor
    """(inner, columns)"""
    bias: torch.Tensor | None
    of_images: bool
    """Whether columns are the dimension after the batch, else they are the last one."""

    @property
    def rows(self) -> int:
        """How many there are: asked of sizes that may be open."""
        sizes = self.source.sizes
        return math.prod((sizes[0], *sizes[2:]) if self.of_images else sizes[:-1])


def row_layer_of(call: Node) -> RowLayer | None:
    """The layer that a call is; None if it is none."""
    found = _convolution_layer(call) if call.qualified_op in CONVOLUTIONS else _linear_layer(call)
    if found is None or why_unsupported(call) is not None:
        return None
    tensors = (found.matrix,) if found.bias is None else (found.matrix, found.bias)
    is_single = found.source.dtype == call.output.dtype == torch.float32
    return found if is_single and all(tensor.dtype == torch.float32 for tensor in tensors) else None


def _linear_layer(call: Node) -> RowLayer | None:
    if call.qualified_op == "vulkan_prepack::run_linear_context":
        context = call.args[1]
        assert isinstance(context, LinearPackedContext)
        return RowLayer(call.args[0], context.weight, context.bias, of_images=False)
    if call.qualified_op != "aten::linear":
        return None
    weight, bias = call["weight"].elements, call["bias"]
    if weight is None or weight.dim() != 2 or (bias is not None and bias.elements is None):
        return None
    return RowLayer(call["input"], weight.t(), None if bias is None else bias.elements, of_images=False)


def _convolution_layer(call: Node) -> RowLayer | None:
    wanted = convolution_of(call)
    weight, bias = wanted.weight.elements, wanted.bias
    if weight is None or (bias is not None and bias.elements is None) or wanted.transposed or wanted.groups != 1:
        return None
    is_plain = all(number == 1 for number in (*wanted.taps, *wanted.stride)) and not any(wanted.padding)
    if wanted.input.rank != wanted.weight.rank or not is_plain:
        return None
    matrix = weight.reshape(weight.shape[0], weight.shape[1]).t()
    return RowLayer(wanted.input, matrix, None if bias is None else bias.elements, of_images=True)


@dataclass(frozen=True, eq=False)
class RowLayers:
    """Two layers, with what their dispatch takes but for what they read."""

    given: Activation
    """What becomes of the source before."""
    first: RowLayer
    source: Value
    operands: RowLayersOperands
    between: Epilogue
    epilogue: Epilogue
    middle: int
    """Elements of a row between them."""
    result: DeviceTensor
    """As the second one's node makes it."""


def rounding_of(node: Node) -> Activation | None:
    """The rounding that a node is, before layers; None if it is none."""
    return activation_of(node) if node.qualified_op == FAKE_QUANTIZE else None


def row_layers_of(plan: Plan, parts: Sequence[Node], output: Value) -> RowLayers:
    """The layers of a fused node's parts, and where its output goes."""
    given, source = rounding_of(parts[0]), parts[0].args[0]
    parts = parts if given is None else parts[1:]
    place = max(number for number, part in enumerate(parts) if row_layer_of(part) is not None)
    first, second = row_layer_of(parts[0]), row_layer_of(parts[place])
    between, epilogue = folded_epilogue(parts[:place]), folded_epilogue(parts[place:])
    assert first is not None and second is not None and between is not None and epilogue is not None
    sizes = _columns_last(output.sizes) if second.of_images else output.sizes
    result = plan.own_result(output, sizes, row_strides(sizes))
    residual = None if epilogue.residual is None else _rows(plan, epilogue.residual, second.of_images, output.sizes)
    factors = [matrix_weights(plan, layer.matrix, _sizes(layer)) for layer in (first, second)]
    biases = [None if layer.bias is None else bias_vector(plan, layer.bias) for layer in (first, second)]
    target = rows_of_batches(plan, _with_rows(result), 0)
    operands = RowLayersOperands(factors[0], biases[0], factors[1], biases[1], residual, target)
    if second.of_images:
        result = result.view(output.sizes, (result.strides[0], result.strides[-1], *result.strides[1:-1]))
    return RowLayers(given or IDENTITY, first, source, operands, between, epilogue, _sizes(first)[1], result)


@lowers(ROW_LAYERS, exact=True)
def row_layers(plan: Plan, node: Node) -> DeviceTensor:
    """One dispatch."""
    layers = row_layers_of(plan, list(node.blocks[0].nodes), node.output)
    source, steps = _rows(plan, layers.source, layers.first.of_images), (layers.between, layers.epilogue)
    append_row_layers(plan, source, layers.operands, *steps, middle=layers.middle, given=layers.given)
    return layers.result


def _sizes(layer: RowLayer) -> tuple[int, int]:
    inner, columns = layer.matrix.shape
    return inner, columns


def _columns_last(numbers: Sequence[int]) -> tuple[int, ...]:
    """Sizes or strides of images with those of channels at the end."""
    return (numbers[0], *numbers[2:], numbers[1])


def _rows(plan: Plan, value: Value, of_images: bool, sizes: Sequence[int] | None = None) -> DeviceTensor:
    """A tensor, perhaps expanded to other sizes, or a copy of it, as (1, rows, columns)."""
    tensor = plan.tensor(value) if sizes is None else expanded(plan.tensor(value), sizes)
    if of_images:
        tensor = tensor.view(_columns_last(tensor.sizes), _columns_last(tensor.strides))
    return rows_of_batches(plan, _with_rows(tensor), 0)


def _with_rows(tensor: DeviceTensor) -> DeviceTensor:
    """A vector as a matrix of one row, other tensors as they are."""
    return tensor.view((1, *tensor.sizes), (0, *tensor.strides)) if tensor.rank == 1 else tensor
