"""Finds vectors that are divided by their length, so that one kernel computes them."""

from __future__ import annotations

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead
from mobopt.ir.schemas import argument_names
from mobopt.ops.l2_normalize import L2_NORMALIZE
from mobopt.runtimes.vulkan.compile.normalizations import known_number
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

_LEAST = 1e-18
"""Of a bound above zero: its square is a float32 that is not subnormal."""
_NORMS = ("aten::linalg_vector_norm", "aten::norm")
_CLAMPS = ("aten::clamp_min", "aten::clamp")


def find_euclidean_norms(graph: Graph) -> None:
    """Put one operator in the place of a quotient by a Euclidean norm, and of the constants that multiply it.

    Given:
        %n : Float(4, 1) = aten::linalg_vector_norm(%x, 2, [1], True, None)
        %c : Float(4, 1) = aten::clamp_min(%n, 1e-12)
        %e : Float(4, 8) = aten::expand(%c, [4, 8], False)
        %q : Float(4, 8) = aten::div.Tensor(%x, %e)
        %y : Float(4, 8) = aten::mul.Tensor(%q, %weight)
    Result:
        %y : Float(4, 8) = mobopt::l2_normalize(%x, 1, 1e-12, %weight)

    It is ``torch.nn.functional.normalize`` in float32, where nothing else reads the steps.
    """
    for node in list(graph.block.nodes):
        if node.block is not None and node.qualified_op == "aten::div.Tensor":
            _replace(node)


def scaled_by(node: Node, factor: Value) -> Value | None:
    """What multiplies a normalised tensor, beside what does; None if it isn't known to fit."""
    sizes = node.args[0].sizes
    if factor.elements is None or factor.dtype != torch.float32 or factor.rank > len(sizes):
        return None
    if any(size not in (1, whole) for size, whole in zip(reversed(factor.sizes), reversed(sizes), strict=False)):
        return None
    weight = node["weight"]
    if weight is None:
        return factor
    return None if weight.elements is None else Value.of_elements(weight.elements * factor.elements)


def _replace(quotient: Node) -> None:
    x, divisor = quotient.args[:2]
    if not isinstance(divisor, Value) or x.dtype != torch.float32 or x.sizes != quotient.output.sizes:
        return
    found = _norm_of(divisor, quotient)
    if found is None or found[0].args[0] is not x:
        return
    norm, least = found
    if x.sizes[_dim_of(norm) or 0] == 1:  # whose length is its magnitude, without a square
        return
    args = (x, _dim_of(norm), least, None)
    made = Node.call(L2_NORMALIZE, args, [Value("", quotient.output.type)], quotient.origin)
    if why_unsupported(made) is not None:
        made.destroy()
        return
    make_instead(made, quotient)
    destroy_unread(quotient)
    product: Node | None = made
    while product is not None:
        product = _product_after(product)


def _norm_of(divisor: Value, reader: Node) -> tuple[Node, float] | None:
    """The norm behind a divisor, and what that is at least."""
    step = made_only_for(divisor, reader)
    if step is not None and step.op in ("aten::expand", "aten::expand_as"):
        step = made_only_for(step.args[0], step)
    least = 0.0
    if step is not None and (step.op in _CLAMPS or step.op == "aten::maximum"):
        bound = _bound_of(step)
        if bound is None:
            return None
        value, least = bound
        step = made_only_for(value, step)
    if step is None or step.op not in _NORMS or _dim_of(step) is None:
        return None
    return (step, least) if least == 0 or least >= _LEAST else None


def _bound_of(step: Node) -> tuple[Value, float] | None:
    """What a node makes at least a number, and the number, if that is all it does."""
    if step.op == "aten::maximum":
        first, second = step.args
        value, bound = (second, first) if known_number(second) is None else (first, second)
    else:
        value, bound = step.args[:2]
        if "max" in argument_names(step.qualified_op) and step["max"] is not None:
            return None
    number = known_number(bound)
    return None if number is None or number < 0 or value.sizes != step.output.sizes else (value, number)


def _dim_of(norm: Node) -> int | None:
    """The only dimension of a Euclidean norm that keeps it."""
    names = argument_names(norm.qualified_op)
    order = norm["ord" if "ord" in names else "p"]
    if "dim" not in names or (order is not None and known_number(order) != 2) or not norm["keepdim"]:
        return None
    dims = norm["dim"]
    typed = norm["dtype"] if "dtype" in names else None
    return dims[0] if dims is not None and len(dims) == 1 and typed is None else None


def _product_after(made: Node) -> Node | None:
    """The same with the constant that alone multiplies it."""
    reader = made.output.uses[0][0] if len(made.output.uses) == 1 else None
    if reader is None or reader.op != "aten::mul" or len(reader.args) != 2 or reader.output.sizes != made.output.sizes:
        return None
    other = reader.args[1] if reader.args[0] is made.output else reader.args[0]
    number = known_number(other)
    factor = (
        other if isinstance(other, Value) else None if number is None else Value.of_elements(torch.tensor([number]))
    )
    weight = None if factor is None else scaled_by(made, factor)
    if weight is None:
        return None
    args = (*made.args[:3], weight)
    product = Node.call(L2_NORMALIZE, args, [Value("", reader.output.type)], made.origin | reader.origin)
    make_instead(product, reader)
    destroy_unread(reader)
    return product
