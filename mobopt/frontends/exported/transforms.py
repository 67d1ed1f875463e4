"""What ``torch.vmap`` does in exported programs, as the operators that it comes to.

``torch.export`` writes down the steps of functorch, such as ``_add_batch_dim``, and not what they come to: masks of
transformers are made so. Each stretch of steps is traced by itself, with the sizes that it was exported with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from mobopt.errors import UnsupportedError

_INTO, _OUT_OF = "_vmap_increment_nesting", "_vmap_decrement_nesting"


def without_transforms(exported: ExportedProgram) -> ExportedProgram:
    """The program with plain operators in place of steps of ``torch.vmap``; itself if it has none.

    Raises:
        UnsupportedError: torch can't trace what they do, or they are steps of something else.
    """
    if not any(_has_transforms(module) for module in exported.graph_module.modules()):
        return exported
    plain = copy.copy(exported)
    plain._graph_module = copy.deepcopy(exported.graph_module)
    for module in filter(_has_transforms, list(plain.graph_module.modules())):
        for stretch in list(_stretches(module.graph)):
            try:
                _replace(module, stretch)
            except Exception as error:  # tracing raises whatever the operators do
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise UnsupportedError(
                    f"torch can't trace what torch.vmap does in the exported program: {reason}"
                ) from error
        module.recompile()
    return plain


def _has_transforms(module: Any) -> bool:
    return isinstance(module, fx.GraphModule) and any(map(_is_transform, module.graph.nodes))


def _is_transform(node: fx.Node) -> bool:
    return node.op == "call_function" and str(getattr(node.target, "__module__", "")).startswith("torch._functorch")


def _stretches(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """Nodes from the first step of a ``vmap`` to its last, with all that stand between them."""
    stretch: list[fx.Node] = []
    depth = 0
    for node in graph.nodes:
        if _is_transform(node) or stretch:
            stretch.append(node)
        name = getattr(node.target, "__name__", "")
        if not _is_transform(node) or name not in (_INTO, _OUT_OF):
            continue
        depth += 1 if name == _INTO else -1
        if depth == 0:
            yield stretch
            stretch = []
    if stretch:
        raise UnsupportedError("the exported program has steps of functorch that are none of torch.vmap")


def _replace(module: fx.GraphModule, stretch: Sequence[fx.Node]) -> None:
    graph, inside = module.graph, set(stretch)
    inputs = list(dict.fromkeys(part for node in stretch for part in node.all_input_nodes if part not in inside))
    inputs = [node for node in inputs if node.op != "get_attr"]
    outputs = [node for node in stretch if any(user not in inside for user in node.users)]
    traced = _traced(module, stretch, inputs, outputs)
    known: dict[fx.Node, Any] = dict(
        zip((node for node in traced.nodes if node.op == "placeholder"), inputs, strict=True)
    )
    with graph.inserting_before(stretch[0]):
        for node in traced.nodes:
            if node.op not in ("placeholder", "output"):
                known[node] = graph.node_copy(node, known.__getitem__)
    (results,) = next(node for node in traced.nodes if node.op == "output").args
    for old, new in zip(outputs, results, strict=True):
        known[new].meta = {**old.meta, **known[new].meta}
        old.replace_all_uses_with(known[new])
    for node in reversed(stretch):
        graph.erase_node(node)
    for node in [node for node in graph.nodes if node.op == "get_attr" and not node.users]:
        graph.erase_node(node)


def _traced(
    module: fx.GraphModule, stretch: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.Graph:
    """What a stretch computes, without steps of functorch."""
    graph = fx.Graph()
    known = {node: graph.placeholder(node.name) for node in inputs}

    def found(node: fx.Node) -> fx.Node:
        if node not in known:  # functions that steps call
            known[node] = graph.node_copy(node)
        return known[node]

    for node in stretch:
        known[node] = graph.node_copy(node, found)
    graph.output(tuple(known[node] for node in outputs))
    values = [node.meta["val"] for node in inputs]
    mode = detect_fake_mode([node.meta.get("val") for node in (*inputs, *outputs)])
    interpreter = fx.Interpreter(fx.GraphModule(module, graph))

    def run(*arguments: Any) -> Any:
        return interpreter.run(*arguments)

    if mode is None:
        return make_fx(run)(*values).graph
    with mode:
        return make_fx(run)(*values).graph
