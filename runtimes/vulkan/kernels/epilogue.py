"""What a convolution or matrix product does to its sums before it stores them: activation, residual, activation.

The compiler's ``fusion.py`` folds pointwise nodes into the product that feeds them; the shaders' half is
``shaders/glsl/epilogue.glsl``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, pairwise

import torch

from mobopt.ir import Node, Value
from mobopt.ops.contexts import Conv2dPackedContext, VulkanConv2dOpContext
from mobopt.ops.records import Trait, record_of
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation, activation_of, clamp

PRODUCT = "mobopt::product"
"""A convolution or matrix product with what was folded into its epilogue, as nodes of its body in order; if its weight
is of few bits, what makes floats of it comes first, and so does what scales its input."""
EPILOGUE = "epilogue"
"""The attribute that tells the first of them, while it is lowered, what the others do."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """``after(before(sum + bias) + residual)``; the residual has the sizes of the result, or is a row that is known
    (of a linear layer or a matrix product), or the channels of each image (of a convolution), or there is none.

    Where vec4s of columns of gates and of what passes them take turns, it is ``before(gate + bias) * (passing + bias)``
    of half as many columns, and nothing else.

    Where the steps stand for operators on halves, ``rounding`` is the dtype to which each of them rounds what it gives
    to the next one; None where they are one operator, or on float32.
    """

    before: Activation = IDENTITY
    residual: Value | None = None
    after: Activation = IDENTITY
    rounding: torch.dtype | None = None
    is_gated: bool = False

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        is_plain = self.before.is_identity and self.residual is None and self.after.is_identity
        return is_plain and not self.is_gated

    def sizes_of(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Of what is stored, of sums of some sizes."""
        return (*sizes[:-1], sizes[-1] // 2) if self.is_gated else tuple(sizes)

    def followed_by(self, node: Node, source: Value) -> Epilogue | None:
        """This epilogue and then a node, which reads ``source`` as what was computed; None if there is no room."""
        if self.is_gated:
            return None
        activation = activation_of(node)
        if activation is None:
            others = [operand for operand in added_operands(node, rows=True) if operand is not source]
            has_room = self.residual is None and self.after.is_identity
            return replace(self, residual=others[0]) if others and has_room else None
        before, after = self.before.followed_by(activation), self.after.followed_by(activation)
        if self.residual is None and self.after.is_identity and before is not None:
            return replace(self, before=before)
        return None if after is None else replace(self, after=after)


def parts_of(node: Node) -> list[Node]:
    """The product and what was folded into its epilogue; a node that was not folded by itself."""
    if node.op != PRODUCT:
        return [node]
    return list(dropwhile(lambda part: not _is_product(part), node.blocks[0].nodes))


def is_folded(node: Node, product: Node) -> bool:
    """Whether a node that makes an input of a product was folded into it: it is computed nowhere else then."""
    return node.block is not None and node.block is product.block and node.block.node is not None


def _is_product(node: Node) -> bool:
    return not record_of(node.qualified_op).traits.isdisjoint((Trait.PRODUCT, Trait.CONVOLUTION))


def epilogue_of(call: Node) -> Epilogue:
    """What a product does to its sums: as the node says that is lowered with what was folded into it, else by its own
    packed context."""
    found = call.attributes.get(EPILOGUE)
    return found if isinstance(found, Epilogue) else _own_epilogue(call)


def folded_epilogue(parts: Sequence[Node]) -> Epilogue | None:
    """What the nodes that follow a product do to its sums; None if it can't do that."""
    epilogue: Epilogue | None = _own_epilogue(parts[0])
    dtype = parts[0].output.dtype
    if dtype != torch.float32:
        epilogue = Epilogue(rounding=dtype) if epilogue is not None and epilogue.is_identity else None
    gate = None if epilogue is None else gate_of(parts)
    if epilogue is not None and gate is not None:
        return replace(epilogue, before=gate, is_gated=True) if epilogue.is_identity else None
    for part, following in pairwise(parts):
        epilogue = None if epilogue is None else epilogue.followed_by(following, part.output)
    return epilogue


def gate_of(parts: Sequence[Node]) -> Activation | None:
    """What a product with what was folded into it does to its gates; None if it has none, as only they multiply."""
    if all(part.qualified_op != "aten::mul.Tensor" for part in parts):
        return None
    return next(found for part in parts if (found := activation_of(part)) is not None)


def _own_epilogue(call: Node) -> Epilogue:
    for argument in call.args:
        if isinstance(argument, (Conv2dPackedContext, VulkanConv2dOpContext)):
            return Epilogue(clamp(argument.output_min, argument.output_max))
    return Epilogue()


def added_operands(node: Node, *, rows: bool = False) -> list[Value]:
    """The operands of a plain sum of two different tensors of one kind, last first; none for any other node. With
    ``rows`` one of them may be a row that is known, which is added to each row of the other, or channels, which are
    added to each pixel."""
    if node.qualified_op not in ("aten::add.Tensor", "aten::add_.Tensor") or node["alpha"] != 1:
        return []
    left, right = node.args[:2]
    if not isinstance(right, Value) or left.dtype != right.dtype or left is right:
        return []
    is_alike = left.sizes == right.sizes
    return [right, left] if is_alike or (rows and (_repeats(left, right) or _repeats(right, left))) else []


def _repeats(part: Value, tensor: Value) -> bool:
    is_row = part.elements is not None and tensor.rank > 1 and part.sizes == tensor.sizes[-1:]
    return is_row or are_channels_of(part, tensor)


def are_channels_of(part: Value, tensor: Value) -> bool:
    """Whether one tensor has an element for each channel of another's images, as what a step of a diffusion model is
    told of the time, or of all images."""
    if part.rank != 4 or tensor.rank != 4 or part.sizes == tensor.sizes:
        return False
    return part.sizes[1:] == (tensor.sizes[1], 1, 1) and part.sizes[0] in (1, tensor.sizes[0])
