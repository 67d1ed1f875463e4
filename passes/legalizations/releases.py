"""Operators and overloads of newer releases, written with those of older ones."""

from __future__ import annotations

from mobopt.ir import Value
from mobopt.passes.legalizations.site import Refused, Site, legalizes


@legalizes("dims_one_by_one", level="safe")
def dims_one_by_one(site: Site) -> Value:
    """One dimension after the other."""
    x, dims = site.arg("self"), site.const("dim")
    if not dims:
        raise Refused("it names no dimensions")
    if any(dim < 0 for dim in dims) and any(dim >= 0 for dim in dims):
        rank = site.rank(x)
        dims = [dim % rank for dim in dims]
    # A dimension that goes leaves those in front of it, or counted from behind it, where they were.
    ordered = sorted(dims, reverse=dims[0] >= 0)
    rest = [] if site.node.op == "aten::squeeze" else [site.arg("keepdim")]
    for dim in ordered:
        x = site.op(f"{site.node.op}.dim", x, dim, *rest)
    return x


@legalizes("index_with_checks", level="safe")
def index_with_checks(site: Site) -> Value:
    """The same indexing with its bounds checked."""
    result: Value = site.op("aten::index.Tensor", *site.node.inputs)
    return result


@legalizes("batch_norm_with_one_result", level="safe")
def batch_norm_with_one_result(site: Site) -> tuple[Value, Value, Value]:
    """``batch_norm``, where only its first result is read."""
    if any(value.uses for value in site.node.outputs[1:]):
        raise Refused("its mean or deviation is used")
    names = ("input", "weight", "bias", "running_mean", "running_var")
    settings = [site.arg("momentum"), site.arg("eps"), False]
    normal = site.op("aten::batch_norm", *(site.arg(name) for name in names), False, *settings)
    return normal, normal, normal
