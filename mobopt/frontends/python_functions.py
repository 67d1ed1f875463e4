"""Calls of Python in traces: what ``torch.autograd.Function`` computes stands in the trace, beside the call."""

from __future__ import annotations

from typing import Any

import torch

_CALL, _TRACED = "prim::PythonOp", "Subgraph"


def without_python_functions(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy in which calls of autograd functions are the operators that tracing saw them run.

    The swish of efficientnet_pytorch and the gelu of bloom are such functions, which torch can't save. A call that
    tracing saw nothing of, a function that ``torch.jit.ignore`` hides from a script, stays.
    """
    bindings: Any = torch._C
    cloned = bindings._hack_do_not_use_clone_module_with_class(module._c, [], [])  # as torch's bundled inputs do
    copied: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(cloned)  # type: ignore[no-untyped-call]
    for part in copied.modules():
        compiled: Any = part._c
        for name in compiled._method_names():
            graph = compiled._get_method(name).graph
            _inline(graph, graph)
    return copied


def _inline(block: Any, graph: Any) -> None:
    for node in list(block.nodes()):
        for inner in node.blocks():
            _inline(inner, graph)
        if node.kind() == _CALL and node.hasAttribute(_TRACED):
            _replace(node, graph)


def _replace(call: Any, graph: Any) -> None:
    traced = call.g(_TRACED)
    values = {old.debugName(): new for old, new in zip(traced.inputs(), call.inputs(), strict=True)}
    for node in traced.nodes():
        copied = graph.createClone(node, lambda value: values[value.debugName()])
        copied.insertBefore(call)
        values.update({old.debugName(): new for old, new in zip(node.outputs(), copied.outputs(), strict=True)})
        for inner in copied.blocks():
            _inline(inner, graph)
    results = [values[result.debugName()] for result in traced.outputs()]
    outputs = list(call.outputs())
    if len(outputs) < len(results):  # a tuple, which the trace unpacks after the call
        (whole,) = outputs
        made = graph.create("prim::TupleConstruct", results, 1).insertBefore(call)
        made.output().setType(whole.type())
        results = [made.output()]
    for output, result in zip(outputs, results, strict=True):
        output.replaceAllUsesWith(result)
    call.destroy()
