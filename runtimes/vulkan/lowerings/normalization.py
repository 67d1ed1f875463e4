"""Batch, layer, group and instance normalisation: one dispatch, or statistics by a reduction and a pointwise one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Value
from mobopt.ops.l2_normalize import L2_NORMALIZE
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation
from mobopt.runtimes.vulkan.kernels.channel_groups import append_normalized_channels
from mobopt.runtimes.vulkan.kernels.combine import moments, reduce
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dim, view_strides
from mobopt.runtimes.vulkan.kernels.normalization_kernel import normalize
from mobopt.runtimes.vulkan.kernels.operand_rows import row_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan, replayable
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term
from mobopt.runtimes.vulkan.kernels.result_finish import finish_of, finished
from mobopt.runtimes.vulkan.kernels.views import reshaped
from mobopt.runtimes.vulkan.lowerings.checks import check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import After, Before, Combination, Norm, Opcode, Spread


def along(tensor: DeviceTensor, rank: int, dim: int) -> DeviceTensor:
    """A vector as a view that varies along one dimension of ``rank``."""
    sizes = [tensor.numel if d == dim else 1 for d in range(rank)]
    strides = [tensor.strides[0] if d == dim else 0 for d in range(rank)]
    return tensor.view(sizes, strides)


def scaled(builder: ProgramBuilder, value: Term, weight: DeviceTensor | None, bias: DeviceTensor | None) -> Term:
    """``value * weight + bias``, either of which may be missing."""
    if weight is not None and bias is not None:
        return builder.step(Opcode.MULADD, value, builder.tensor(weight), builder.tensor(bias))
    if weight is not None:
        return builder.step(Opcode.MUL, value, builder.tensor(weight))
    return value if bias is None else builder.step(Opcode.ADD, value, builder.tensor(bias))


def _own_result(plan: Plan, builder: ProgramBuilder, value: Term, call: Node) -> DeviceTensor:
    """A builder's value as the first result of a call."""
    target = plan.own_result(call.outputs[0])
    compute_into(plan, builder, value, target, fresh=True)
    return target


def _optional(plan: Plan, ref: Value | None) -> DeviceTensor | None:
    return None if ref is None else plan.tensor(ref)


def normalized(
    plan: Plan,
    tensor: DeviceTensor,
    dims: Sequence[int],
    weight: DeviceTensor | None,
    bias: DeviceTensor | None,
    eps: float,
    target: DeviceTensor,
    finish: Activation = IDENTITY,
) -> tuple[DeviceTensor, DeviceTensor]:
    """Normalise over ``dims``; writes ``target`` (of the tensor's sizes, with a storage of its own), finished, and
    returns mean and reciprocal deviation."""
    mean, reciprocal = moments(plan, tensor, dims, 0, Spread.RECIPROCAL_DEVIATION, eps)
    if append_normalized_channels(plan, tensor, target, dims, (mean, reciprocal), (weight, bias), finish):
        return mean, reciprocal
    builder = ProgramBuilder()
    centered = builder.step(Opcode.SUB, builder.tensor(tensor), builder.tensor(mean))
    value = builder.step(Opcode.MUL, centered, builder.tensor(reciprocal))
    value = finished(builder, scaled(builder, value, weight, bias), finish)
    compute_into(plan, builder, value, target, fresh=True)
    return mean, reciprocal


@replayable
def _normalize(
    plan: Plan,
    tensor: DeviceTensor,
    dims: Sequence[int],
    weight: DeviceTensor | None,
    bias: DeviceTensor | None,
    eps: float,
    target: DeviceTensor,
    finish: Activation,
) -> None:
    """The same without statistics: one dispatch, unless that would leave the device idle."""
    if not normalize(plan, tensor, target, dims, weight, bias, eps, finish=finish):
        normalized(plan, tensor, dims, weight, bias, eps, target, finish)


def _in_rows(plan: Plan, tensor: DeviceTensor, dims: Sequence[int], output: Value) -> DeviceTensor:
    """Where a norm's result lies: of rows that lie so, in rows, as a product or a rotation that reads it wants it."""
    in_rows = len(dims) == 1 and tensor.strides[-1] == 1
    return plan.own_result(output, strides=row_strides(output.sizes) if in_rows else None)


@lowers("aten::layer_norm", "aten::native_layer_norm", check=check_floating)
def layer_norm(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Layer normalisation over the last dimensions."""
    tensor = plan.tensor(call.args[0])
    weight, bias = _optional(plan, call["weight"]), _optional(plan, call["bias"])
    first = tensor.rank - len(call["normalized_shape"])
    dims = range(first, tensor.rank)
    target = _in_rows(plan, tensor, dims, call.outputs[0])
    if call.qualified_op == "aten::layer_norm":
        _normalize(plan, tensor, dims, weight, bias, call["eps"], target, finish_of(call))
        return target
    return (target, *normalized(plan, tensor, dims, weight, bias, call["eps"], target))


@lowers("aten::group_norm", "aten::native_group_norm", check=check_floating)
def group_norm(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Group normalisation."""
    tensor = plan.tensor(call.args[0])
    groups = call["num_groups"] if call.qualified_op == "aten::group_norm" else call["group"]
    weight, bias = _optional(plan, call["weight"]), _optional(plan, call["bias"])
    target = plan.own_result(call.outputs[0])
    split = _in_groups(tensor, groups, weight, bias, target)
    if call.qualified_op == "aten::group_norm":
        finish = finish_of(call)
        _normalize(plan, split.source, split.dims, split.weight, split.bias, call["eps"], split.target, finish)
        return target
    statistics = normalized(plan, split.source, split.dims, split.weight, split.bias, call["eps"], split.target)
    return (target, *(reshaped(plan, statistic, (tensor.sizes[0], groups)) for statistic in statistics))


@dataclass(frozen=True)
class _Groups:
    """Tensors of a group normalisation with a dimension of groups, and the dimensions that are normalised over."""

    source: DeviceTensor
    target: DeviceTensor
    weight: DeviceTensor | None
    bias: DeviceTensor | None
    dims: range


def _in_groups(
    tensor: DeviceTensor, groups: int, weight: DeviceTensor | None, bias: DeviceTensor | None, target: DeviceTensor
) -> _Groups:
    batch, channels, *space = tensor.sizes
    split = (batch, groups, channels // max(groups, 1), *space)
    source, result = (_with_sizes(each, split) for each in (tensor, target))
    rank = len(split)
    vectors = [None if v is None else _grouped(v, groups, rank) for v in (weight, bias)]
    return _Groups(source, result, vectors[0], vectors[1], range(2, rank))


def _with_sizes(tensor: DeviceTensor, sizes: Sequence[int]) -> DeviceTensor:
    """A view that splits one dimension, which strides can always say."""
    strides = view_strides(tensor.sizes, tensor.strides, sizes)
    assert strides is not None
    return tensor.view(sizes, strides)


def _grouped(vector: DeviceTensor, groups: int, rank: int) -> DeviceTensor:
    """A vector over channels as a view over (1, groups, channels of a group, 1...)."""
    inner = vector.numel // groups
    step = vector.strides[0]
    return vector.view((1, groups, inner, *[1] * (rank - 3)), (0, inner * step, step, *[0] * (rank - 3)))


@lowers("aten::instance_norm", check=check_floating)
def instance_norm(plan: Plan, call: Node) -> DeviceTensor:
    """Instance normalisation, with statistics of the input or, if the call says so, running ones."""
    tensor = plan.tensor(call.args[0])
    weight, bias = _optional(plan, call["weight"]), _optional(plan, call["bias"])
    if not call["use_input_stats"]:
        return batch_normalized(plan, tensor, call)
    target = plan.own_result(call.outputs[0])
    split = _in_groups(tensor, tensor.sizes[1], weight, bias, target)
    finish = finish_of(call)
    _normalize(plan, split.source, split.dims, split.weight, split.bias, call["eps"], split.target, finish)
    return target


def _check_evaluation(call: Node) -> str | None:
    """Batch statistics update the running ones, which the device doesn't keep."""
    training = call.qualified_op != "aten::_native_batch_norm_legit_no_training" and call["training"]
    if training:
        return "batch normalisation in training mode changes its statistics; call eval() first"
    if call["running_mean"] is None or call["running_var"] is None:
        return "batch normalisation without running statistics"
    return check_floating(call)


@lowers("aten::batch_norm", check=_check_evaluation)
def batch_norm(plan: Plan, call: Node) -> DeviceTensor:
    """Batch normalisation with running statistics."""
    return batch_normalized(plan, plan.tensor(call.args[0]), call)


@lowers(
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_batch_norm_impl_index",
    check=_check_evaluation,
)
def native_batch_norm(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Batch normalisation with running statistics; the statistics that a backward pass would want are empty."""
    result = batch_normalized(plan, plan.tensor(call.args[0]), call)
    return (result, *(plan.empty(output.sizes, output.dtype) for output in call.outputs[1:]))


def batch_normalized(plan: Plan, tensor: DeviceTensor, call: Node) -> DeviceTensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias``; a multiplication and an addition if all of them are
    constants."""
    mean, variance = call["running_mean"], call["running_var"]
    vectors = [call["weight"], call["bias"], mean, variance]
    if all(ref is None or ref.elements is not None for ref in vectors):
        return _with_constant_statistics(plan, tensor, call)
    weight, bias, center, width = (None if ref is None else along(plan.tensor(ref), tensor.rank, 1) for ref in vectors)
    assert center is not None and width is not None
    builder = ProgramBuilder()
    shifted = builder.step(Opcode.ADD, builder.tensor(width), builder.scalar(call["eps"], Kind.FLOAT))
    centered = builder.step(Opcode.SUB, builder.tensor(tensor), builder.tensor(center))
    value = builder.step(Opcode.MUL, centered, builder.step(Opcode.RSQRT, shifted))
    return _own_result(plan, builder, scaled(builder, value, weight, bias), call)


def _with_constant_statistics(plan: Plan, tensor: DeviceTensor, call: Node) -> DeviceTensor:
    weight, bias, mean, variance = (
        None if call[name] is None else call[name].elements
        for name in ("weight", "bias", "running_mean", "running_var")
    )
    assert mean is not None and variance is not None
    statistics = mean.double(), variance.double()
    sources = [each for each in (weight, bias, mean, variance) if each is not None]
    eps = call["eps"]
    present = (weight is not None, bias is not None)

    def factor() -> torch.Tensor:
        scale = torch.rsqrt(statistics[1] + eps)
        return scale.float() if weight is None else torch.mul(scale, weight.double()).float()

    def shift() -> torch.Tensor:
        moved = -statistics[0] * factor().double()
        return moved.float() if bias is None else torch.add(moved, bias.double()).float()

    vectors = [
        along(plan.packed(sources, ("batch_norm", name, eps, present), pack), tensor.rank, 1)
        for name, pack in (("factor", factor), ("shift", shift))
    ]
    builder = ProgramBuilder()
    value = scaled(builder, builder.tensor(tensor), vectors[0], vectors[1])
    return _own_result(plan, builder, value, call)


@lowers("aten::rms_norm", check=check_floating)
def rms_norm(plan: Plan, call: Node) -> DeviceTensor:
    """Division by the root of the mean square over the last dimensions."""
    tensor = plan.tensor(call.args[0])
    dims = range(tensor.rank - len(call["normalized_shape"]), tensor.rank)
    weight = _optional(plan, call["weight"])
    eps = torch.finfo(tensor.dtype).eps if call["eps"] is None else call["eps"]
    target = _in_rows(plan, tensor, dims, call.output)
    finish = finish_of(call)
    if normalize(plan, tensor, target, dims, weight, None, eps, norm=Norm.ROOT_MEAN_SQUARE, finish=finish):
        return target
    count = math.prod(tensor.sizes[d] for d in dims)
    square = reduce(
        plan,
        tensor,
        dims,
        tensor.dtype,
        Combination.ADD,
        Before.SQUARED,
        After.SCALED,
        divisor=count,
    )
    builder = ProgramBuilder()
    root = builder.step(Opcode.RSQRT, builder.step(Opcode.ADD, builder.tensor(square), builder.scalar(eps, Kind.FLOAT)))
    value = builder.step(Opcode.MUL, builder.tensor(tensor), root)
    value = finished(builder, scaled(builder, value, weight, None), finish)
    compute_into(plan, builder, value, target, fresh=True)
    return target


@lowers(L2_NORMALIZE, check=check_floating)
def l2_normalize(plan: Plan, call: Node) -> DeviceTensor:
    """Division by the Euclidean norm along a dimension."""
    tensor, weight = plan.tensor(call.args[0]), _optional(plan, call["weight"])
    dim = normalized_dim(call["dim"], tensor.rank)
    in_rows = dim == tensor.rank - 1  # as attention and products of what is alike by its angle want it
    target = plan.own_result(call.output, strides=row_strides(call.output.sizes) if in_rows else None)
    _to_length_one(plan, tensor, dim, call["eps"], weight, target)
    return target


@replayable
def _to_length_one(
    plan: Plan, tensor: DeviceTensor, dim: int, eps: float, weight: DeviceTensor | None, target: DeviceTensor
) -> None:
    """One dispatch, unless that would leave the device idle."""
    least = eps * eps
    if normalize(plan, tensor, target, (dim,), weight, None, least, norm=Norm.EUCLIDEAN):
        return
    square = reduce(plan, tensor, (dim,), tensor.dtype, Combination.ADD, Before.SQUARED)
    builder = ProgramBuilder()
    bounded = builder.step(Opcode.MAX, builder.tensor(square), builder.scalar(least, Kind.FLOAT))
    value = builder.step(Opcode.MUL, builder.tensor(tensor), builder.step(Opcode.RSQRT, bounded))
    compute_into(plan, builder, scaled(builder, value, weight, None), target, fresh=True)
