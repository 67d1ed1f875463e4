"""Half precision where the CPU has no kernels for it."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Value
from mobopt.ops.effects import listed_items, written_inputs
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_SINGLE, _HALF = 6, 5
"""Numbers of ``float32`` and ``float16``; source: ``c10/core/ScalarType.h``."""
_HALF_NAME = "float16"


@legalizes("in_single_precision", level="safe")
def in_single_precision(site: Site) -> tuple[Value, ...]:
    """The same in single precision, its results rounded to half, which is what kernels for half precision do."""
    if written := written_inputs(site.node):
        return (_in_place(site, written[0]),)
    kinds = [site.facts(output).known_dtype for output in site.node.outputs]
    if None in kinds:
        raise Refused("the dtypes of its results are not known; give example inputs")
    operands = [_widened(site, value) for value in site.node.inputs]
    made = site.op(site.node.qualified_op, *operands, outputs=len(kinds))
    results = made if isinstance(made, tuple) else (made,)
    return tuple(
        site.op("aten::to.dtype", result, _HALF) if kind == _HALF_NAME else result
        for result, kind in zip(results, kinds, strict=True)
    )


def _in_place(site: Site, written: Value) -> Value:
    """Of an operator that changes its operand: its result is copied there, which rounds it."""
    op, dot, overload = site.node.qualified_op.partition(".")
    made = site.op(f"{op.removesuffix('_')}{dot}{overload}", *(_widened(site, value) for value in site.node.inputs))
    result: Value = site.op("aten::copy_", written, made)
    return result


def _widened(site: Site, value: Value) -> Any:
    """An operand with floats in the place of its halves; ``value`` itself, if it has none."""
    if value.is_constant:
        return _widened_constant(value)
    items = listed_items(value)
    if items is not None:
        return [_widened(site, item) for item in items]
    if site.facts(value).known_dtype == _HALF_NAME:
        return site.op("aten::to.dtype", value, _SINGLE)
    return value


def _widened_constant(value: Value) -> Any:
    constant = value.constant
    if isinstance(constant, torch.Tensor) and constant.dtype == torch.float16:
        return constant.float()
    if isinstance(constant, list) and any(isinstance(item, torch.Tensor) for item in constant):
        return [item.float() if item.dtype == torch.float16 else item for item in constant]
    return value
