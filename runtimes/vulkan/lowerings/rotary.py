"""Rotary positions (J. Su et al., "RoFormer", 2021): ``x * cosines + turned(x) * sines``, where ``turned`` puts the
second half of the last dimension, negated, before the first. ``compile/fusion_rotary.py`` makes one node of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Value
from mobopt.ir.rewriting import made_only_for
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute_into
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder
from mobopt.runtimes.vulkan.kernels.views import sliced
from mobopt.runtimes.vulkan.lowerings.matmul import row_strides
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import Opcode

ROTARY = "mobopt::rotary"
"""The nodes of its body: a negation, a concatenation, two products and their sum, maybe in another order."""
_MUL = "aten::mul.Tensor"


@dataclass(frozen=True)
class Rotation:
    """What a sum computes."""

    nodes: tuple[Node, ...]
    """In order; the sum is the last."""
    source: Value
    cosines: Value
    sines: Value


def rotation_of(node: Node) -> Rotation | None:
    """What a sum is a rotation of; None if it is none."""
    if node.qualified_op != "aten::add.Tensor" or node["alpha"] != 1 or node.output.dtype != torch.float32:
        return None
    left, right = (made_only_for(value, node) for value in node.args[:2])
    for plain, turned in ((left, right), (right, left)):
        if plain is None or turned is None or plain is turned or {plain.qualified_op, turned.qualified_op} != {_MUL}:
            continue
        for joined, sines in (turned.args[:2], turned.args[1::-1]):
            steps = _turning(joined, turned)
            if steps is None:
                continue
            whole, neg, cat = steps
            others = [value for value in plain.args[:2] if value is not whole]
            if len(others) == 1 and _spreads(others[0], whole) and _spreads(sines, whole):
                return Rotation((neg, cat, plain, turned, node), whole, others[0], sines)
    return None


def _turning(joined: object, reader: Node) -> tuple[Value, Node, Node] | None:
    """What ``cat([-second, first], -1)`` turns, its negation, and itself."""
    cat = made_only_for(joined, reader)
    if cat is None or cat.qualified_op != "aten::cat" or len(cat["tensors"]) != 2:
        return None
    if cat["dim"] not in (-1, cat.output.rank - 1):
        return None
    negated, first = cat["tensors"]
    neg = made_only_for(negated, cat)
    if neg is None or neg.qualified_op != "aten::neg":
        return None
    one, two = _half_of(first), _half_of(neg.args[0])
    if one is None or two is None or one[0] is not two[0] or (one[1], two[1]) != (0, 1):
        return None
    return one[0], neg, cat


def _half_of(value: Value) -> tuple[Value, int] | None:
    """The tensor of which a value is a half of the last dimension, and which of them."""
    node = value.producer
    if node is None or not node.inputs:
        return None
    whole = node.inputs[0]
    if whole.sizes[:-1] != value.sizes[:-1] or whole.sizes[-1] != 2 * value.sizes[-1]:
        return None
    if len(node.outputs) == 2:  # of chunk or split, whose sizes tell that they are halves
        is_cut = node.qualified_op.startswith(("aten::chunk", "aten::split"))
        return (whole, node.outputs.index(value)) if is_cut else None
    if node.qualified_op != "aten::slice.Tensor" or node["step"] != 1 or node["dim"] not in (-1, whole.rank - 1):
        return None
    start = node["start"] or 0
    return whole, int((start + whole.sizes[-1] if start < 0 else start) > 0)


def _spreads(value: object, whole: Value) -> bool:
    """Whether a value is a float32 tensor that is broadcast to the sizes of ``whole`` but in the last dimension."""
    if not isinstance(value, Value) or value.dtype != torch.float32 or not 0 < value.rank <= whole.rank:
        return False
    return value.sizes[-1] == whole.sizes[-1]


@lowers(ROTARY, exact=True)
def rotary(plan: Plan, node: Node) -> DeviceTensor:
    """One dispatch over both halves of the last dimension, or, for many rows of several heads, whose strides are more
    than push constants hold, one for each half; rows of the result are dense."""
    found = rotation_of(node.blocks[0].nodes[-1])
    assert found is not None
    sizes = node.output.sizes
    tensors = [expanded(plan.tensor(value), sizes) for value in (found.source, found.cosines, found.sines)]
    target = plan.own_result(node.output, None, row_strides(sizes))
    if sum(size > 1 for size in sizes[:-1]) > 1:
        for is_second in (False, True):
            _rotate_half(plan, tensors, target, is_second)
        return target
    first, second = (_repeated(_half(tensors[0], is_second)) for is_second in (False, True))
    signs = plan.packed((), ("signs of halves",), lambda: torch.tensor([-1.0, 1.0])).view((2, 1), (1, 0))
    builder = ProgramBuilder()
    cosines, sines = (builder.tensor(_in_halves(tensor)) for tensor in tensors[1:])
    one, two = builder.tensor(first), builder.tensor(second)
    is_second_half = builder.step(Opcode.LT, builder.scalar(0.0, Kind.FLOAT), builder.tensor(signs), kind=Kind.BOOL)
    turned = builder.step(Opcode.SELECT, is_second_half, one, builder.step(Opcode.NEG, two))
    plain = builder.step(Opcode.MUL, builder.step(Opcode.SELECT, is_second_half, two, one), cosines)
    compute_into(plan, builder, builder.step(Opcode.MULADD, turned, sines, plain), _in_halves(target), fresh=True)
    return target


def _rotate_half(plan: Plan, tensors: Sequence[DeviceTensor], target: DeviceTensor, is_second: bool) -> None:
    builder = ProgramBuilder()
    own, other = (builder.tensor(_half(tensors[0], which)) for which in (is_second, not is_second))
    cosines, sines = (builder.tensor(_half(tensor, is_second)) for tensor in tensors[1:])
    turned = other if is_second else builder.step(Opcode.NEG, other)
    value = builder.step(Opcode.MULADD, turned, sines, builder.step(Opcode.MUL, own, cosines))
    compute_into(plan, builder, value, _half(target, is_second))


def _half(tensor: DeviceTensor, is_second: bool) -> DeviceTensor:
    half = tensor.sizes[-1] // 2
    return sliced(tensor, tensor.rank - 1, half if is_second else 0, half)


def _in_halves(tensor: DeviceTensor) -> DeviceTensor:
    """A view whose last dimension is two."""
    half, step = tensor.sizes[-1] // 2, tensor.strides[-1]
    return tensor.view((*tensor.sizes[:-1], 2, half), (*tensor.strides[:-1], half * step, step))


def _repeated(tensor: DeviceTensor) -> DeviceTensor:
    """A half, for both of them."""
    return tensor.view((*tensor.sizes[:-1], 2, tensor.sizes[-1]), (*tensor.strides[:-1], 0, tensor.strides[-1]))
