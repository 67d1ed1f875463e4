"""Rewrites of a straight line that leave less to do: copies that nobody can tell from their source, dtypes that
tensors have anyway, batch normalisation as one multiply-add, matrices that are rows of a tensor for a linear layer
only. They run before any fusion."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, make_instead, replace_call
from mobopt.ir.schemas import argument_names, schema_of
from mobopt.ir.types import OptionalType, TensorType
from mobopt.ops.records import Trait, has_trait, record_of
from mobopt.runtimes.cpu.kernels import scalar_type

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def simplify(graph: Graph) -> None:
    """Take out copies and dtypes that say nothing, and make batch normalisation arithmetic."""
    for node in list(graph.block.nodes):
        _leave_out_dtype(node)
    for node in list(graph.block.nodes):
        _leave_out_zero(node)
    for node in graph.block.nodes:
        _make_arithmetic(node)
    for node in graph.block.nodes:
        _remove_copy(graph, node)
    for node in list(graph.block.nodes):
        _leave_rows(node)


def _leave_out_dtype(node: Node) -> None:
    """Leave out a dtype that a tensor has anyway, which traces and ONNX's means and softmaxes name: what looks for
    layers in steps then need not know it.

    Given:
        %m : Float(2, 1) = aten::mean.dim(%x, [-1], True, 6)
    Result:
        %m : Float(2, 1) = aten::mean.dim(%x, [-1], True, None)
    """
    names = argument_names(node.qualified_op)
    x = node.args[0] if node.args else None
    if "dtype" not in names or not isinstance(x, Value) or len(node.outputs) != 1:
        return
    place = names.index("dtype")
    given = node.args[place]
    is_optional = isinstance(schema_of(node.qualified_op).arguments[place].type, OptionalType)
    if given is None or not is_optional or x.dtype not in _FLOATS:
        return
    if scalar_type(given) == x.dtype == node.output.dtype:
        replace_call(node, node.qualified_op, (*node.args[:place], None, *node.args[place + 1 :]))


def _leave_out_zero(node: Node) -> None:
    """Add no zero to integers: places of one token are ``arange(1)``, and where it stands is added to them.

    Given:
        %p : Long(1) = aten::add.Tensor(%arange, %place, 1)
    Result:
        %p : Long(1) = aten::reshape(%place, [1])
    """
    if node.qualified_op != "aten::add.Tensor" or node.output.dtype.is_floating_point or node.output.dtype.is_complex:
        return
    first, second, alpha = node.args
    zero, x = (first, second) if _is_zero(first) and alpha == 1 else (second, first)
    if not _is_zero(zero) or x.dtype != node.output.dtype:
        return
    if x.sizes == node.output.sizes:
        replace_call(node, "aten::alias", (x,))
    else:
        replace_call(node, "aten::reshape", (x, list(node.output.sizes)))


def _is_zero(value: Value) -> bool:
    """Whether it is one number that is known, and zero."""
    return value.elements is not None and value.elements.numel() == 1 and not value.elements.any()


def _leave_rows(node: Node) -> None:
    """Let a linear layer take a tensor as it is, where a matrix was made of it, and a tensor of the result again.

    Given:
        %m : Float(14, 64) = aten::view(%x, [-1, 64])
        %n : Float(14, 96) = aten::linear(%m, %w, %b)
        %y : Float(2, 7, 96) = aten::view(%n, [2, 7, 96])
    Result:
        %y : Float(2, 7, 96) = aten::linear(%x, %w, %b)

    A tensor of other rows, such as heads side by side, is viewed as those of the result.
    """
    if node.block is None or node.op not in ("aten::linear", "vulkan_prepack::run_linear_context"):
        return
    matrix: Value = node.args[0]
    before, readers = matrix.producer, [user for user, _ in node.output.uses]
    if before is None or len(readers) != 1 or not (_is_view(before) and _is_view(readers[0])):
        return
    (after,), source = readers, before.args[0]
    rows = (*after.output.sizes[:-1], matrix.sizes[-1])
    if after.output.sizes[-1:] != node.output.sizes[-1:] or rows == matrix.sizes:
        return
    if source.sizes != rows:
        source, whole = Value.of_tensor(matrix.dtype, rows), source
        Node.call("aten::reshape", (whole, list(rows)), [source], before.origin).insert_before(node)
    layer = Node.call(node.qualified_op, (source, *node.args[1:]), [Value("", after.output.type)], node.origin)
    make_instead(layer, after)
    destroy_unread(after)


def _is_view(node: Node) -> bool:
    return node.op in ("aten::view", "aten::reshape")


def _remove_copy(graph: Graph, node: Node) -> None:
    """Let the readers of a copy read its source, unless the caller is to be given both, or an input for its own."""
    source = _copied(node)
    if source is None:
        shown = _shown(node)
        if shown is not None and not _is_returned(graph, node.output):
            _let_read(node, shown)
        return
    if _is_returned(graph, node.output) and (source.producer is None or _is_returned(graph, source)):
        return
    node.output.replace_all_uses_with(source)
    node.destroy()


def _is_returned(graph: Graph, value: Value) -> bool:
    return any(user is graph.block.returns for user, _ in value.uses)


def _let_read(view: Node, source: Value) -> None:
    """Let the readers of a view read its source; if nothing makes that, they stand for the view, too."""
    if source.producer is None:
        for reader, _ in view.output.uses:
            reader.origin |= view.origin
    view.output.replace_all_uses_with(source)
    destroy_unread(view)


def _shown(node: Node) -> Value | None:
    """What a view, or a view of a view, shows as it is, all of it."""
    is_ordered = has_trait(node.qualified_op, Trait.KEEPS_ORDER)
    if not (is_ordered or node.qualified_op in ("aten::slice.Tensor", "aten::expand")) or node.output.numel == 0:
        return None
    source: Value = node.args[0]
    before = source.producer
    is_other = is_ordered and source.sizes != node.output.sizes
    if is_other and before is not None and has_trait(before.qualified_op, Trait.KEEPS_ORDER):
        source = before.args[0]
    return source if (source.sizes, source.dtype) == (node.output.sizes, node.output.dtype) else None


def _copied(node: Node) -> Value | None:
    """The tensor whose elements the only output has, or None if there is no such."""
    traits = record_of(node.qualified_op).traits
    if Trait.CONCATENATION in traits:
        parts = node["tensors"]
        parts = [part for part in parts if part.numel > 0] if len(parts) > 1 else parts
        is_same = len(parts) == 1 and (parts[0].dtype, parts[0].sizes) == (node.output.dtype, node.output.sizes)
        return parts[0] if is_same else None
    if Trait.PADDING in traits:
        return node.args[0] if not any(node["pad"]) else None
    same = (Trait.IDENTITY in traits and node.args[0].dtype == node.output.dtype) or (
        Trait.DROPOUT in traits and not node["train"]
    )
    return node.args[0] if same or _is_times_one(node) else None


def _is_times_one(node: Node) -> bool:
    """Whether a tensor is multiplied with, or divided by, the number one and stays what it is, as by factors of
    diffusers that a model leaves at one."""
    if node.qualified_op not in ("aten::mul.Scalar", "aten::div.Scalar") or node.args[1] != 1:
        return False
    return (node.args[0].dtype, node.args[0].sizes) == (node.output.dtype, node.output.sizes)


def _make_arithmetic(node: Node) -> None:
    """``shift + x * factor`` in place of a batch normalisation whose statistics are constants.

    As by torch's CPU kernels, halves are computed in float32 and rounded once.
    """
    if node.op != "aten::batch_norm" or node["training"] or node.output.dtype not in _FLOATS:
        return
    kind = node.output.dtype
    names = ("weight", "bias", "running_mean", "running_var")
    values = [node[name] for name in names]
    if None in values[2:] or any(value is not None and value.elements is None for value in values):
        return
    weight, bias, mean, variance = (None if value is None else value.constant.detach().double() for value in values)
    assert mean is not None and variance is not None
    factor = (variance + node["eps"]).rsqrt()
    factor = factor if weight is None else factor * weight
    moved = -(mean * factor)
    x: Value = node.args[0]
    shape = [-1, *[1] * (x.rank - 2)]
    shift, scale = (
        Value.of_elements(vector.float().reshape(shape)) for vector in (moved if bias is None else bias + moved, factor)
    )
    if kind == torch.float32:
        replace_call(node, "aten::addcmul", (shift, x, scale, 1))
        return
    wide = _inserted("aten::to.dtype", (x, torch.float32, False, False, None), node)
    result = _inserted("aten::addcmul", (shift, wide, scale, 1), node)
    replace_call(node, "aten::to.dtype", (result, kind, False, False, None))


def _inserted(operator: str, args: tuple[Any, ...], node: Node) -> Value:
    """What an operator makes in float32 of a tensor of the sizes of what ``node`` makes; it comes before the node."""
    kind = TensorType(torch.float32, node.output.sizes)
    made = Node.call(operator, args, [Value("", kind)], node.origin)
    made.insert_before(node)
    return made.output
