"""What operators make: dtype and sizes of results, from those of the operands, where sizes may be expressions.

:func:`infer` asks the rule of an operator. Rules are functions of the schema's arguments, in order, that are
registered by ``shape_rule`` and its kin, one module for each family. They are written as for integers; on
symbols, comparisons are decided by the symbols' guards (:mod:`mobopt.ir.guards`). Where there is no rule, and for
arguments that a rule is not sure of (others than models use, or that torch refuses), the answer is None: then torch's
meta kernels tell, which need numbers, import hundreds of modules at their first use, and raise torch's own errors.

Strides are no part of it. In a program of functional operators they matter to ``aten::view`` alone, which is taken for
``aten::reshape`` here; whoever keeps strides asks :func:`makes_new` whether a result is new, and :func:`order_of` and
:func:`strides_of` how it lies.
"""

from mobopt.ops.shapes import (  # noqa: F401 - each registers its own
    convolutions,
    creation,
    indexing,
    joining,
    normalizations,
    packed,
    padding,
    pointwise,
    pooling,
    products,
    quantized,
    recurrent,
    reductions,
    resizing,
    views,
)
from mobopt.ops.shapes.rules import (
    NoRuleError,
    has_rule,
    infer,
    makes_new,
    operators_with_rules,
    order_of,
    strides_of,
)

__all__ = [
    "NoRuleError",
    "has_rule",
    "infer",
    "makes_new",
    "operators_with_rules",
    "order_of",
    "strides_of",
]
