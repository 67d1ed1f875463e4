"""Views of what attention gives, which may lie otherwise in memory than where the model was exported."""

from __future__ import annotations

from mobopt.ir import Program, Value
from mobopt.ops.aliases import Aliases
from mobopt.ops.records import Trait, has_trait

_ATTENTION = "scaled_dot_product"
"""In the names of all its operators."""


def let_views_copy(program: Program) -> None:
    """Make reshapes of the views of attention's results, unless somebody writes to that memory.

    PyTorch's attention on CPUs mostly has heads beside each other in memory, so ``torch.export`` leaves out the
    ``contiguous()`` that makes them lie so before a view. Other releases, other masks and other kernels, and products
    in its place, leave them one after the other, of which ``aten::view`` is an error then.

    Given:
        %a = aten::scaled_dot_product_attention(%q, %k, %v, %mask, 0., False, None, False)
        %t = aten::transpose.int(%a, 1, 2)
        %y = aten::view(%t, [1, -1, 32])
    Result:
        %y = aten::reshape(%t, [1, -1, 32])
    """
    for graph in program.methods.values():
        found = [node.outputs[0] for node in graph.walk() if _ATTENTION in node.op]
        if not found:
            continue
        aliases = Aliases(graph)
        for value in found:
            if not aliases.writers(value):
                _become_reshapes(value)


def _become_reshapes(value: Value) -> None:
    for user, _ in value.uses:
        if user.qualified_op == "aten::view":
            user.op = "aten::reshape"
        elif has_trait(user.qualified_op, Trait.VIEW) and user.op != "aten::contiguous" and len(user.outputs) == 1:
            _become_reshapes(user.output)
