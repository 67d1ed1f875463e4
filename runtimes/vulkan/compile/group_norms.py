"""Finds group normalisations that were written as instance normalisations of a view, as ``torch.onnx`` writes them."""

from __future__ import annotations

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, make_instead
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.views import is_reshape

_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def find_group_norms(graph: Graph) -> None:
    """Put a group norm in the place of an instance norm of groups of channels, and of what scales and moves its result.

    Given:
        %g : Float(1, 2, 24) = aten::reshape(%x, [1, 2, -1])
        %n : Float(1, 2, 24) = aten::instance_norm(%g, None, None, None, None, True, 0.0, 1e-05, False)
        %r : Float(1, 8, 2, 3) = aten::reshape(%n, [1, 8, 2, 3])
        %m : Float(1, 8, 2, 3) = aten::mul.Tensor(%r, %weight)
        %y : Float(1, 8, 2, 3) = aten::add.Tensor(%m, %bias, 1)
    Result:
        %y : Float(1, 8, 2, 3) = aten::group_norm(%x, 2, %weight, %bias, 1e-05, False)

    ``weight`` and ``bias`` are constants of one number for each channel; either may be missing.
    """
    for node in list(graph.block.nodes):
        if node.block is not None and node.op == "aten::instance_norm":
            _replace(node)


def _replace(norm: Node) -> None:
    groups: Value = norm.args[0]
    before, after = groups.producer, _only_reader(norm.output)
    if before is None or after is None or not (is_reshape(before) and is_reshape(after)):
        return
    source: Value = before.args[0]
    if any(norm[name] is not None for name in _STATISTICS) or not _is_in_groups(source, groups):
        return
    if after.output.type != source.type or source.dtype != torch.float32:
        return
    last, weight = _with_constant(after, "aten::mul.Tensor")
    last, bias = _with_constant(last, "aten::add.Tensor")
    args = (source, groups.sizes[1], weight, bias, norm["eps"], norm["cudnn_enabled"])
    made = Node.call("aten::group_norm", args, [Value("", source.type)], norm.origin | last.origin)
    if why_unsupported(made) is not None:
        made.destroy()
        return
    make_instead(made, last)
    destroy_unread(last)


def _is_in_groups(source: Value, groups: Value) -> bool:
    """Whether each channel of a view has all of some channels of ``source``."""
    if source.rank < 3 or groups.rank < 3 or groups.sizes[1] == 0:
        return False
    return groups.sizes[0] == source.sizes[0] and source.sizes[1] % groups.sizes[1] == 0


def _only_reader(value: Value) -> Node | None:
    return value.uses[0][0] if len(value.uses) == 1 else None


def _with_constant(made: Node, operator: str) -> tuple[Node, Value | None]:
    """What an operator makes of a result and a constant for each channel, and these numbers; else the result itself."""
    reader, like = _only_reader(made.output), made.output
    if reader is None or reader.qualified_op != operator or reader.output.type != like.type:
        return made, None
    other = reader.args[1] if reader.args[0] is like else reader.args[0]
    if not isinstance(other, Value) or other.elements is None or other.dtype != torch.float32:
        return made, None
    sizes = (*[1] * (like.rank - other.rank), *other.sizes)
    is_scaled = operator == "aten::add.Tensor" and reader["alpha"] != 1
    if is_scaled or sizes != (1, like.sizes[1], *[1] * (like.rank - 2)):
        return made, None
    return reader, Value.of_elements(other.elements.reshape(-1))
