"""Convolutions whose packed weights are over the limit of images, in parts of their channels."""

from __future__ import annotations

from mobopt.ir import Value
from mobopt.passes.legalizations.building import weight_of
from mobopt.passes.legalizations.parts import cut, even_bounds, in_blocks
from mobopt.passes.legalizations.site import Refused, Site, legalizes

_FOUR = 4


@legalizes("weight_in_parts", level="safe")
def weight_in_parts(site: Site) -> Value:
    """A convolution for each part of the output and input channels: the former are joined, the latter summed.

    Packed, a weight is an image of kernel width times inputs by kernel height times outputs in fours.
    """
    x, weight, bias = site.arg("input"), weight_of(site), site.const("bias")
    is_transposed = "transpose" in site.node.op
    if not is_transposed and site.const("groups") > 1:
        raise Refused("each channel has a kernel of its own, with more elements than an image is wide")
    kernels = weight.transpose(0, 1) if is_transposed else weight
    outputs, inputs, height, width = kernels.shape
    if max(height, _FOUR * width) > site.weight_limit:
        raise Refused("its kernel alone is wider or higher than an image")

    def part(rows: range, channels: range) -> Value:
        own = kernels[rows.start : rows.stop, channels.start : channels.stop]
        own = (own.transpose(0, 1) if is_transposed else own).contiguous()
        has_bias = bias is not None and channels.start == 0
        own_bias = bias[rows.start : rows.stop].clone() if has_bias else None
        region = cut(site, x, 1, channels.start, channels.stop)
        result: Value = site.op(site.node.qualified_op, region, own, own_bias, *site.node.inputs[3:])
        return result

    outer = even_bounds(outputs, site.weight_limit // height * _FOUR)
    inner = even_bounds(inputs, site.weight_limit // width // _FOUR * _FOUR)
    return in_blocks(site, [x], outer, inner, 1, part)
