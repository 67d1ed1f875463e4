"""Calls of Python: what ``torch.autograd.Function`` computes stands in a trace, beside the call, and what
``torch.jit.ignore`` hides from a script may never run.
"""

from __future__ import annotations

from typing import Any

import torch

from mobopt.deprecations import of_torchscript_unsaid

_CALL, _TRACED = "prim::PythonOp", "Subgraph"


def without_python_functions(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """A copy in which calls of autograd functions are the operators that tracing saw them run.

    The swish of efficientnet_pytorch and the gelu of bloom are such functions, which torch can't save. Where calls are
    left that tracing saw nothing of, of functions that ``torch.jit.ignore`` hides from a script, the copy is frozen:
    those go that stand where no call of the model comes to, as the cross attention of timm's MobileViTv2. Others stay.
    """
    bindings: Any = torch._C
    cloned = bindings._hack_do_not_use_clone_module_with_class(module._c, [], [])  # as torch's bundled inputs do
    copied: torch.jit.ScriptModule = torch.jit._recursive.wrap_cpp_module(cloned)  # type: ignore[no-untyped-call]
    is_whole = True
    for part in copied.modules():
        compiled: Any = part._c
        for name in compiled._method_names():
            graph = compiled._get_method(name).graph
            is_whole = _inline(graph, graph) and is_whole
    if is_whole:
        return copied
    kept = [name for name in module._c._method_names() if name != "forward"]
    with of_torchscript_unsaid():
        return torch.jit.freeze(copied.eval(), kept, optimize_numerics=False)  # type: ignore[no-untyped-call,no-any-return]


def _inline(block: Any, graph: Any) -> bool:
    """Whether no calls of Python are left."""
    is_whole = True
    for node in list(block.nodes()):
        for inner in node.blocks():
            is_whole = _inline(inner, graph) and is_whole
        if node.kind() != _CALL:
            continue
        if node.hasAttribute(_TRACED):
            _replace(node, graph)
        else:
            is_whole = False
    return is_whole


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
