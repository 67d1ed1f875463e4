"""Sums, products, extremes, norms and moments over dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from mobopt.ir import Node
from mobopt.ir.schemas import argument_names
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.combine import extreme_indices, extremes, moments, reduce, running
from mobopt.runtimes.vulkan.kernels.copies import copied, strided_copy
from mobopt.runtimes.vulkan.kernels.geometry import normalized_dims
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.pointwise_kernel import compute
from mobopt.runtimes.vulkan.kernels.pointwise_program import Kind, ProgramBuilder, Term, kind_of
from mobopt.runtimes.vulkan.kernels.views import without_dims
from mobopt.runtimes.vulkan.lowerings.checks import check_dtypes, check_floating
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.shaders.enumerations import After, Before, Combination, Opcode, Spread


def converted(
    plan: Plan, tensor: DeviceTensor, dtype: torch.dtype, elements: torch.dtype | None = None
) -> DeviceTensor:
    """The tensor with elements of another form (``elements``, if that isn't what stands for the dtype), or itself if
    they have it."""
    if kind_of(tensor.dtype) == kind_of(dtype) or not (tensor.is_floating or dtype.is_floating_point):
        return tensor
    target = plan.empty(tensor.sizes, dtype, elements=elements)
    strided_copy(plan, tensor, target, fresh=True)
    return target


def _long_elements(plan: Plan, call: Node) -> torch.dtype | None:
    """The type of the elements of a call's results if they have 64 bits; None if they are what stands for its dtype."""
    return torch.int64 if call.output in plan.long else None


def _dims(call: Node, tensor: DeviceTensor) -> tuple[int, ...]:
    return normalized_dims(call["dim"] if "dim" in argument_names(call.qualified_op) else None, tensor.rank)


def _finished(tensor: DeviceTensor, dims: Sequence[int], rank: int) -> DeviceTensor:
    """Without the reduced dimensions, unless the result keeps them."""
    return tensor if tensor.rank == rank else without_dims(tensor, dims)


def _simple(plan: Plan, call: Node, combination: Combination, *, mean: bool = False) -> DeviceTensor:
    dtype, elements = call.output.dtype, _long_elements(plan, call)
    tensor = converted(plan, plan.tensor(call.args[0]), dtype, elements)
    dims = _dims(call, tensor)
    after, count = (After.SCALED, math.prod(tensor.sizes[d] for d in dims)) if mean else (After.FINISHED, 1)
    result = reduce(plan, tensor, dims, dtype, combination, after=after, divisor=count, elements=elements)
    return _finished(result, dims, call.output.rank)


@lowers("aten::sum", "aten::sum.dim_IntList", check=check_dtypes, long=True)
def sum_(plan: Plan, call: Node) -> DeviceTensor:
    """Sum; bools and integers are counted in int32, or int64 where they must be."""
    return _simple(plan, call, Combination.ADD)


@lowers("aten::mean", "aten::mean.dim", check=check_dtypes, long=True)
def mean_(plan: Plan, call: Node) -> DeviceTensor:
    """Mean."""
    return _simple(plan, call, Combination.ADD, mean=True)


@lowers("aten::prod", "aten::prod.dim_int", check=check_dtypes, long=True)
def prod(plan: Plan, call: Node) -> DeviceTensor:
    """Product."""
    return _simple(plan, call, Combination.MULTIPLY)


@lowers("aten::amax", "aten::max", check=check_dtypes, exact=True, long=True)
def largest(plan: Plan, call: Node) -> DeviceTensor:
    """Largest element; NaN if there is one."""
    return _simple(plan, call, Combination.LARGEST)


@lowers("aten::amin", "aten::min", check=check_dtypes, exact=True, long=True)
def smallest(plan: Plan, call: Node) -> DeviceTensor:
    """Smallest element; NaN if there is one."""
    return _simple(plan, call, Combination.SMALLEST)


@lowers("aten::aminmax", check=check_floating, exact=True)
def bounds(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Smallest and largest element; NaN if there is one."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    return tuple(_finished(found, dims, call.outputs[0].rank) for found in extremes(plan, tensor, dims))


@lowers(
    "aten::any",
    "aten::any.dim",
    "aten::any.dims",
    "aten::all",
    "aten::all.dim",
    "aten::all.dims",
    check=check_dtypes,
    long=True,
)
def truth(plan: Plan, call: Node) -> DeviceTensor:
    """Whether any, or all, of the elements are not zero."""
    tensor = _not_zero(plan, plan.tensor(call.args[0]))
    dims = _dims(call, tensor)
    combination = Combination.LARGEST if call.qualified_op.startswith("aten::any") else Combination.SMALLEST
    if math.prod(tensor.sizes[d] for d in dims) == 0:
        # The neutral element of the kernel isn't a bool.
        combination = Combination.ADD if combination == Combination.LARGEST else Combination.MULTIPLY
    result = reduce(plan, tensor, dims, torch.bool, combination)
    result = result if call.output.dtype == torch.bool else copied(plan, result)
    return _retyped(_finished(result, dims, call.output.rank), call.output.dtype)


def _retyped(tensor: DeviceTensor, dtype: torch.dtype) -> DeviceTensor:
    return replace(tensor, dtype=dtype)


def _not_zero(plan: Plan, tensor: DeviceTensor) -> DeviceTensor:
    builder = ProgramBuilder()
    truth_value = builder.converted(builder.tensor(tensor), Kind.BOOL)
    return compute(plan, builder, truth_value, tensor.sizes, torch.bool)


@lowers("aten::argmax", "aten::argmin", check=check_dtypes, long=True)
def index_of_extreme(plan: Plan, call: Node) -> DeviceTensor:
    """Index of the first largest or smallest element."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    _, indices = extreme_indices(plan, tensor, dims, smallest=call.qualified_op == "aten::argmin")
    return _finished(indices, dims, call.output.rank)


@lowers("aten::max.dim", "aten::min.dim", check=check_dtypes, exact=True, long=True)
def extreme_along(plan: Plan, call: Node) -> tuple[DeviceTensor, ...]:
    """Values and indices of the first largest or smallest elements of a dimension."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    found = extreme_indices(plan, tensor, dims, smallest=call.qualified_op == "aten::min.dim")
    return tuple(_finished(result, dims, call.outputs[0].rank) for result in found)


_MOMENTS = tuple(f"aten::{name}{overload}" for name in ("var", "std") for overload in ("", ".dim", ".correction"))
_MOMENT_PAIRS = tuple(
    f"aten::{name}{overload}" for name in ("var_mean", "std_mean") for overload in ("", ".dim", ".correction")
)


@lowers(*_MOMENTS, *_MOMENT_PAIRS, check=check_floating)
def variance(plan: Plan, call: Node) -> DeviceTensor | tuple[DeviceTensor, ...]:
    """Variance or standard deviation, alone or with the mean."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    names = argument_names(call.qualified_op)
    correction = call["correction"] if "correction" in names else float(call["unbiased"])
    kind = Spread.DEVIATION if call.qualified_op.startswith("aten::std") else Spread.VARIANCE
    mean, spread = moments(plan, tensor, dims, 1 if correction is None else correction, kind)
    rank = call.outputs[0].rank
    if len(call.outputs) == 1:
        return _finished(spread, dims, rank)
    return _finished(spread, dims, rank), _finished(mean, dims, rank)


@lowers(
    "aten::norm.Scalar",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dim_dtype",
    "aten::norm.ScalarOpt_dtype",
    "aten::linalg_vector_norm",
    check=check_floating,
)
def norm(plan: Plan, call: Node) -> DeviceTensor:
    """The p-norm over dimensions."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    given = call.args[1]
    order = 2.0 if given is None else float(given)
    if order == 0:
        counted = converted(plan, _not_zero(plan, tensor), call.output.dtype)
        return _finished(reduce(plan, counted, dims, call.output.dtype, Combination.ADD), dims, call.output.rank)
    if all(tensor.sizes[dim] == 1 for dim in dims):  # then torch raises nothing to powers, which may overflow
        alone = ProgramBuilder()
        magnitude = alone.step(Opcode.ABS, alone.tensor(tensor))
        return _finished(compute(plan, alone, magnitude, tensor.sizes, call.output.dtype), dims, call.output.rank)
    recipes = {
        1.0: (Combination.ADD, Before.ABSOLUTE, After.FINISHED),
        2.0: (Combination.ADD, Before.SQUARED, After.ROOT),
        math.inf: (Combination.LARGEST, Before.ABSOLUTE, After.FINISHED),
        -math.inf: (Combination.SMALLEST, Before.ABSOLUTE, After.FINISHED),
    }
    combination, before, after = recipes.get(order, (Combination.ADD, Before.RAISED, After.POWER))
    result = reduce(plan, tensor, dims, call.output.dtype, combination, before, after, order, 1 / order)
    return _finished(result, dims, call.output.rank)


@lowers("aten::logsumexp", check=check_floating)
def logsumexp(plan: Plan, call: Node) -> DeviceTensor:
    """log(sum(exp(x))), shifted by the largest element so that nothing overflows."""
    tensor = plan.tensor(call.args[0])
    dims = _dims(call, tensor)
    top = reduce(plan, tensor, dims, tensor.dtype, Combination.LARGEST)
    shifted = ProgramBuilder()
    powers = shifted.step(Opcode.EXP, shifted.step(Opcode.SUB, shifted.tensor(tensor), _finite(shifted, top)))
    total = reduce(
        plan, compute(plan, shifted, powers, tensor.sizes, tensor.dtype), dims, tensor.dtype, Combination.ADD
    )
    final = ProgramBuilder()
    result = final.step(Opcode.ADD, final.step(Opcode.LOG, final.tensor(total)), _finite(final, top))
    return _finished(compute(plan, final, result, total.sizes, tensor.dtype), dims, call.output.rank)


def _finite(builder: ProgramBuilder, tensor: DeviceTensor) -> Term:
    """The element, or 0 where it is infinite: subtracting an infinity would give NaN."""
    value = builder.tensor(tensor)
    infinite = builder.step(Opcode.IS_INF, value, kind=Kind.BOOL)
    return builder.step(Opcode.SELECT, infinite, builder.scalar(0, Kind.FLOAT), value)


@lowers("aten::cumsum", "aten::cumprod", check=check_dtypes, long=True)
def cumulative(plan: Plan, call: Node) -> DeviceTensor:
    """Running sums or products."""
    dtype, elements = call.output.dtype, _long_elements(plan, call)
    tensor = converted(plan, plan.tensor(call.args[0]), dtype, elements)
    dims = normalized_dims(call["dim"], tensor.rank)
    return running(plan, tensor, dims, dtype, product=call.qualified_op == "aten::cumprod", elements=elements)
