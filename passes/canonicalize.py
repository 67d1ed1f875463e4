"""One spelling for each operation, so that later passes know few forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.passes.manager import GraphPass
from mobopt.passes.note_kinds import STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import argument, insert_node, is_constant_tensor, only_user, replace_node

_Rule = Callable[[Graph, Node, NoteBook], bool]


class Canonicalize(GraphPass):
    """Spell convolutions and linear layers in one way.

    Given:
        %y = aten::_convolution(%x, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, ...)
        %z = aten::addmm(%b, %x, %t, 1, 1)          # %t a constant matrix; or matmul, or matmul and add
        %r = aten::relu6(%x)
        %p = aten::conv2d(%x, %w, %b, [1, 1], "same", [1, 1], 1)
    Result:
        %y = aten::conv2d(%x, %w, %b, [1, 1], [0, 0], [1, 1], 1)
        %z = aten::linear(%x, transpose of %t, %b)
        %r = aten::hardtanh(%x, 0., 6.)
        %p = aten::conv2d(%x, %w, %b, [1, 1], [1, 1], [1, 1], 1)

    ``"same"`` with an odd total of padding becomes a padding of one more element behind, then a symmetric convolution.
    """

    name = "canonicalize"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite node by node."""
        return _rewrite(graph, notes, _RULES)


class NameConvolutions(GraphPass):
    """Of that spelling only what traces hide: a convolution by its number of dimensions, and whether it is transposed.

    Given:
        %y = aten::_convolution(%x, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, ...)
    Result:
        %y = aten::conv2d(%x, %w, %b, [1, 1], [0, 0], [1, 1], 1)
    """

    name = "name_convolutions"

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Rewrite node by node."""
        return _rewrite(graph, notes, _CONVOLUTIONS)


def _rewrite(graph: Graph, notes: NoteBook, rules: Mapping[str, _Rule]) -> bool:
    changed = False
    for node in graph.walk():
        rule = rules.get(node.op)
        if rule is not None and node.block is not None:
            changed |= rule(graph, node, notes)
    return changed


def _convolution(graph: Graph, node: Node, notes: NoteBook) -> bool:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    arguments = {name: argument(node, name) for name in names}
    for name, value in arguments.items():
        if not value.is_constant:
            notes.add(STAYS, node, reason=f"its {name} is not constant")
            return False
    rank = len(arguments["stride"].constant)
    if rank not in (1, 2, 3):
        notes.add(STAYS, node, reason=f"it has {rank} spatial dimensions")
        return False
    operands = list(node.inputs[:3])
    if arguments["transposed"].constant:
        order = ["stride", "padding", "output_padding", "groups", "dilation"]
        op, overload = f"aten::conv_transpose{rank}d", "" if rank == 1 else "input"
    else:
        order = ["stride", "padding", "dilation", "groups"]
        op, overload = f"aten::conv{rank}d", ""
    replace_node(graph, node, op, operands + [arguments[name] for name in order], overload=overload)
    return True


def _string_padding(graph: Graph, node: Node, notes: NoteBook) -> bool:
    if node.op != "aten::_convolution_mode" and node.overload != "padding":
        return False
    x, weight, _, stride, padding, dilation, _ = node.inputs
    if not (is_constant_tensor(weight) and padding.is_constant and dilation.is_constant and stride.is_constant):
        notes.add(STAYS, node, reason="its weight, stride, padding or dilation is not constant")
        return False
    rank = weight.constant.dim() - 2
    amounts = [0] * rank
    if padding.constant == "same":
        kernel = weight.constant.shape[2:]
        spread = list(dilation.constant) * (rank if len(dilation.constant) == 1 else 1)
        totals = [step * (size - 1) for step, size in zip(spread, kernel, strict=True)]
        amounts = [total // 2 for total in totals]
        behind = [total % 2 for total in totals]
        if any(behind):
            x = _pad_behind(graph, node, x, behind)
    inputs = [x, *node.inputs[1:4], graph.constant(amounts, name="padding"), *node.inputs[5:]]
    replace_node(graph, node, f"aten::conv{rank}d", inputs)
    return True


def _pad_behind(graph: Graph, node: Node, x: Value, behind: list[int]) -> Value:
    widths = [width for amount in reversed(behind) for width in (0, amount)]
    inputs = [x, graph.constant(widths, name="pad"), graph.constant(0)]
    return insert_node(graph, node, "aten::constant_pad_nd", inputs, name="padded")


def _addmm(graph: Graph, node: Node, notes: NoteBook) -> bool:
    bias, x, matrix, beta, alpha = node.inputs
    if not (_is_one(beta) and _is_one(alpha)) or not _is_matrix(matrix) or not _is_bias_of(bias, matrix):
        reason = "it is not a linear layer with constant weight and bias and factors of 1"
        notes.add(STAYS, node, reason=reason)
        return False
    replace_node(graph, node, "aten::linear", [x, _transposed(graph, matrix), bias])
    return True


def _matmul(graph: Graph, node: Node, notes: NoteBook) -> bool:
    x, matrix = node.inputs
    if not _is_matrix(matrix):
        return False
    no_bias = graph.constant(None)
    addition = only_user(node.output)
    runs_with_it = addition is not None and addition.block is node.block
    bias = _added_bias(addition, node.output) if addition is not None and runs_with_it else None
    linear = replace_node(graph, node, "aten::linear", [x, _transposed(graph, matrix), no_bias])
    if addition is not None and bias is not None and _is_bias_of(bias, matrix):
        linear.replace_input(2, bias)
        addition.output.replace_all_uses_with(linear.output)
        addition.destroy()
    return True


def _added_bias(node: Node, product: Value) -> Value | None:
    """The other operand of an addition without factor."""
    if node.op not in ("aten::add", "aten::add_") or node.overload != "Tensor" or not _is_one(node.inputs[2]):
        return None
    left, right = node.inputs[:2]
    if node.op == "aten::add_" and left is not product:
        return None
    return right if left is product else left


def _relu6(graph: Graph, node: Node, notes: NoteBook) -> bool:
    op = node.op.replace("relu6", "hardtanh")
    replace_node(graph, node, op, [node.inputs[0], graph.constant(0.0), graph.constant(6.0)])
    return True


def _is_one(value: Value) -> bool:
    return value.is_constant and value.constant == 1


def _is_matrix(value: Value) -> bool:
    return is_constant_tensor(value) and value.constant.dim() == 2


def _is_bias_of(bias: Value, matrix: Value) -> bool:
    """Whether a value is one constant for each column."""
    return is_constant_tensor(bias) and tuple(bias.constant.shape) == (matrix.constant.shape[1],)


def _transposed(graph: Graph, matrix: Value) -> Value:
    """The matrix as ``aten::linear`` takes it, which is (out, in)."""
    known: torch.Tensor = matrix.constant
    return graph.constant(known.t(), name=matrix.name)


_CONVOLUTIONS: dict[str, _Rule] = {"aten::_convolution": _convolution, "aten::convolution": _convolution}
_RULES: dict[str, _Rule] = {
    **_CONVOLUTIONS,
    "aten::_convolution_mode": _string_padding,
    "aten::conv1d": _string_padding,
    "aten::conv2d": _string_padding,
    "aten::conv3d": _string_padding,
    "aten::addmm": _addmm,
    "aten::matmul": _matmul,
    "aten::mm": _matmul,
    "aten::relu6": _relu6,
    "aten::relu6_": _relu6,
}
