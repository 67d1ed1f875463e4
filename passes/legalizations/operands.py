"""Operators of two tensors: operands that kernels can't repeat, numbers in tensors, and choices by constant masks."""

from __future__ import annotations

import math

import torch

from mobopt.ir import Value
from mobopt.passes.legalizations.building import plus, reshaped, size_of, times, weight_of
from mobopt.passes.legalizations.pointwise import divided, scaled, shifted
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("operate_with_number", level="safe")
def operate_with_number(site: Site) -> Value:
    """The form of the operator that takes a number, or a quotient of a tensor of size 1."""
    left, right, op = site.arg("self"), site.arg("other"), site.node.op
    is_second = right.is_constant and right.constant.dim() == 0
    x, constant = (left, right.constant) if is_second else (right, left.constant)
    if constant.dtype not in (torch.float32, torch.int64) and site.facts(x).known_dtype != "float32":
        raise Refused(f"a {constant.dtype} number may change the dtype of its result")
    number = constant.item()
    if is_second:
        result: Value = site.op(f"{op}.Scalar", x, number, *site.node.inputs[2:])
        return result
    if op == "aten::div":
        return divided(site, torch.full((1,), float(number)), x)
    if op == "aten::mul":
        return scaled(site, x, number)
    factor = site.const("alpha") * (1 if op == "aten::add" else -1)
    return shifted(site, x if factor == 1 else scaled(site, x, factor), number)


@legalizes("multiply_by_reciprocal", level="safe")
def multiply_by_reciprocal(site: Site) -> Value:
    """A product with the reciprocal of the constant."""
    divisor = weight_of(site, "other")
    if bool((divisor == 0).any()):
        raise Refused("the divisor has zeros")
    return times(site, site.arg("self"), (1.0 / divisor.double()).float())


@legalizes("divide_channels_as_samples", level="safe")
def divide_channels_as_samples(site: Site) -> Value:
    """A quotient of as many samples of one channel."""
    operands = [site.arg(name) for name in ("self", "other")]
    images = [math.prod(site.sizes(value)[:-2]) for value in operands]
    whole = next((value for value in operands if site.sizes(value) == site.sizes(site.node.output)), None)
    if whole is None or len({count for count in images if count != 1}) > 1:
        raise Refused("its operands are repeated along channels or samples")
    quotient = site.op("aten::div.Tensor", *(_as_samples(site, value) for value in operands))
    rank = site.rank(whole)
    return reshaped(site, quotient, [*(size_of(site, whole, dim) for dim in range(rank - 1)), -1])


def _as_samples(site: Site, x: Value) -> Value:
    """A view where every channel is a sample of its own."""
    rank = site.rank(x)
    return x if rank < 3 else reshaped(site, x, [-1, 1, size_of(site, x, rank - 2), size_of(site, x, rank - 1)])


@legalizes("swap_operands", level="safe")
def swap_operands(site: Site) -> Value:
    """The same with the larger operand first."""
    left, right = site.arg("self"), site.arg("other")
    if site.node.op == "aten::mul":
        return times(site, right, left)
    alpha = site.const("alpha")
    return plus(site, right if alpha == 1 else scaled(site, right, alpha), left)


@legalizes("spread_channels", level="safe")
def spread_channels(site: Site) -> Value:
    """The same after repeating channels of the operand that has one."""
    channels = (1, 1, 1, *site.sizes(site.node.output))[-3]
    return _with_operands(site, [_with_channels(site, site.arg(name), channels) for name in ("self", "other")])


def _with_channels(site: Site, x: Value, channels: int) -> Value | torch.Tensor:
    sizes = site.sizes(x)
    if (1, 1, 1, *sizes)[-3] == channels:
        return x
    if x.is_constant:
        whole = x.constant.reshape((1,) * (3 - len(sizes)) + sizes)
        return whole.expand(*whole.shape[:-3], int(channels), *whole.shape[-2:]).contiguous()  # type: ignore[no-any-return]
    target = [-1] * max(len(sizes), 3)
    target[-3] = channels
    if len(sizes) == 1:
        target[-2] = 1
    result: Value = site.op("aten::expand", x, target)
    return result


@legalizes("expand_operands", level="full")
def expand_operands(site: Site) -> Value:
    """The same after repeating operands to the size of the result."""
    sizes = site.sizes(site.node.output)
    operands: list[Value | torch.Tensor] = []
    for name in ("self", "other"):
        x = site.arg(name)
        if site.sizes(x) == sizes:
            operands.append(x)
        elif x.is_constant:
            operands.append(x.constant.expand([int(size) for size in sizes]).contiguous())
        else:
            operands.append(site.op("aten::expand", x, sizes))
    return _with_operands(site, operands)


def _with_operands(site: Site, operands: list[Value | torch.Tensor]) -> Value:
    result: Value = site.op(site.node.qualified_op, *operands, *site.node.inputs[2:])
    return result


@legalizes("fill_by_constants", level="safe")
def fill_by_constants(site: Site) -> Value:
    """A product with zeros and ones and a sum with the value; for finite elements."""
    mask, value = weight_of(site, "mask"), float(site.const("value"))
    return _chosen(site, ~mask, site.arg("self"), torch.tensor(value))


@legalizes("choose_by_constants", level="safe")
def choose_by_constants(site: Site) -> Value:
    """Products with zeros and ones, added; for finite elements."""
    condition = weight_of(site, "condition")
    parts = [_known_or_value(site, site.arg(name)) for name in ("self", "other")]
    return _chosen(site, condition, *parts)


def _known_or_value(site: Site, value: Value) -> Value | torch.Tensor:
    if not value.is_constant:
        return value
    constant = value.constant
    return constant.float() if isinstance(constant, torch.Tensor) else torch.tensor(float(constant))


def _chosen(site: Site, condition: torch.Tensor, left: Value | torch.Tensor, right: Value | torch.Tensor) -> Value:
    """``left`` where a constant condition holds, else ``right``."""
    if site.facts(site.node.output).known_dtype != "float32" or condition.dtype != torch.bool or condition.dim() == 0:
        raise Refused("it does not choose between tensors of float32")
    parts: list[Value | torch.Tensor] = []
    operands = ((left, condition, right), (right, ~condition, left))
    for x, mask, other in operands:
        if isinstance(x, torch.Tensor):
            parts.append(torch.where(mask, x, torch.zeros(())))
        elif isinstance(other, torch.Tensor) and bool(torch.isinf(other).all()):
            parts.append(x)  # what is added to the rest of it is infinite
        else:
            parts.append(times(site, x, mask.float()))
    first, second = sorted(parts, key=lambda part: isinstance(part, torch.Tensor))
    if isinstance(first, torch.Tensor):
        raise Refused("it is a constant")
    return plus(site, first, second)
