"""Operators of core ATen, which ``ExportedProgram.run_decompositions`` leaves, as the layers that they are parts of.

Passes and kernels know layers: a batch norm that is folded into a convolution, a softmax inside of attention.
"""

from __future__ import annotations

from collections.abc import Callable

from mobopt.frontends.exported.core_patterns import Made, composed, items_of
from mobopt.ir import Graph, Node, Program, Value
from mobopt.ops.effects import written_inputs
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.facts import forget_facts
from mobopt.passes.rewriting import argument, producer_of

_Rule = Callable[[Graph, Node], "Made | None"]
"""The operator that gives a node's first result, with its inputs: values, or plain ones for constants."""


def recompose(program: Program) -> None:
    """Put layers in the place of operators of core ATen whose other results nobody reads.

    Given:
        %y, %mean, %rstd = aten::native_layer_norm(%x, [8], %w, %b, 1e-05)
        %s = aten::_softmax(%x, -1, False)
        %p, %i = aten::max_pool2d_with_indices(%x, [2, 2], [2, 2], [0, 0], [1, 1], False)
    Result:
        %y = aten::layer_norm(%x, [8], %w, %b, 1e-05, False)
        %s = aten::softmax.int(%x, -1, None)
        %p = aten::max_pool2d(%x, [2, 2], [2, 2], [0, 0], [1, 1], False)

    So it is with norms of batches and groups, and adaptive pools; and a softmax whose rows are zeros where all scores
    are ``-inf``, as attention has it, is ``aten::_safe_softmax`` again.

    Facts of tensors tell dtypes and ranks, as the file has them; they are forgotten then, as a run tells more.
    """
    changed = False
    for graph in program.methods.values():
        is_functional = not any(written_inputs(node) for node in graph.walk())
        for node in list(graph.walk()):
            layer = _recomposed(graph, node, is_functional)
            while layer is not None:  # it may be the last step of another one
                changed = True
                layer = _recomposed(graph, layer, is_functional)
    forget_facts(program)
    if changed:
        DeadCodeElimination().run(program)


def _recomposed(graph: Graph, node: Node, is_functional: bool) -> Node | None:
    """What was put in a node's place, if anything was; of several steps only where no tensor is written to."""
    if not node.outputs or any(value.uses for value in node.outputs[1:]):
        return None
    rule = _RULES.get(node.qualified_op, composed if is_functional else None)
    made = None if rule is None else rule(graph, node)
    if made is None:
        return None
    qualified, inputs = made
    op, _, overload = qualified.partition(".")
    values = [item if isinstance(item, Value) else graph.constant(item) for item in inputs]
    old = node.outputs[0]
    new = graph.create(op, values, [old.type], overload=overload, names=[old.name], origin=node.origin)
    old.replace_all_uses_with(new.insert_before(node).output)
    node.destroy()
    new.output.name = old.name
    return new


def _layer_norm(graph: Graph, node: Node) -> Made:
    return "aten::layer_norm", [*node.inputs, False]


def _group_norm(graph: Graph, node: Node) -> Made:
    x, weight, bias, _, _, _, groups, eps = node.inputs
    return "aten::group_norm", [x, groups, weight, bias, eps, False]


def _batch_norm(graph: Graph, node: Node) -> Made:
    *tensors, momentum, eps = node.inputs
    return "aten::batch_norm", [*tensors, False, momentum, eps, False]


def _batch_norm_that_may_train(graph: Graph, node: Node) -> Made | None:
    training = argument(node, "training")
    is_known = training.is_constant and not training.constant
    return ("aten::batch_norm", [*node.inputs, False]) if is_known else None


def _instance_norm(graph: Graph, node: Node) -> Made | None:
    """Of one item, which has those of all items for channels."""
    x, weight, bias, training, momentum, eps = node.inputs
    view = producer_of(x, "aten::view")
    sizes = items_of(view.inputs[1]) if view is not None else []
    if sizes[:1] != [1] or not training.is_constant or not training.constant:
        return None
    return "aten::instance_norm", [x, weight, bias, None, None, True, momentum, eps, False]


def _softmax(graph: Graph, node: Node) -> Made | None:
    x, dim, widens = node.inputs
    if not widens.is_constant or widens.constant:
        return None
    return f"{node.op.replace('::_', '::')}.int", [x, dim, None]


def _same_inputs(op: str) -> _Rule:
    return lambda graph, node: (op, node.inputs)


_RULES: dict[str, _Rule] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_group_norm": _group_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "aten::_native_batch_norm_legit.no_stats": _instance_norm,
    "aten::native_batch_norm": _batch_norm_that_may_train,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::max_pool2d_with_indices": _same_inputs("aten::max_pool2d"),
    "aten::max_pool3d_with_indices": _same_inputs("aten::max_pool3d"),
    "aten::_adaptive_avg_pool2d": _same_inputs("aten::adaptive_avg_pool2d"),
    "aten::_adaptive_avg_pool3d": _same_inputs("aten::adaptive_avg_pool3d"),
}
