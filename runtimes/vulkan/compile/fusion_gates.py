"""Folds gates, and what passes them, into the product of a few rows that makes both."""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import dissolve, enclose
from mobopt.ops.quantized import Quantized
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.kernels.activation import activation_of
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.matrix_kernels import multiplies
from mobopt.runtimes.vulkan.kernels.product_gating import most_gated_rows
from mobopt.runtimes.vulkan.lowerings.matmul import takes_quantized
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported


def fold_gates(
    graph: Graph,
    device: DeviceInfo,
    on_host: Container[Node] = (),
    are_halves: bool = False,
    is_apart: Callable[[Node], bool] = lambda node: False,
) -> None:
    """Let each linear layer whose kernel can do so store what its gates let pass (see ``gates.py``).

    Given:
        %z : Float(1, 1, 32) = aten::linear(%x, %w, %b)
        %v : Float(4, 2, 4) = aten::reshape(%z, [-1, 2, 4])
        %g : Float(4, 4) = aten::select.int(%v, 1, 0)
        %u : Float(4, 4) = aten::select.int(%v, 1, 1)
        %s : Float(4, 4) = aten::silu(%g)
        %m : Float(4, 4) = aten::mul.Tensor(%s, %u)
        %y : Float(1, 1, 16) = aten::reshape(%m, [1, 1, 16])
    Result:
        %y : Float(1, 1, 16) = mobopt::product()
          block0():
            ...

    It runs before normalisations are folded. Nodes of ``on_host``, and those of which ``is_apart`` is true, stay as
    they are. ``are_halves`` says whether floats may lie as halves that matrix units multiply.
    """
    for node in list(graph.block.nodes):
        parts = parts_of(node)
        if len(parts) > 1 or parts[0].op != "aten::linear":
            continue
        steps = _steps_after(node)
        if steps is None or any(part in on_host or is_apart(part) for part in (node, parts[0], *steps)):
            continue
        if not any(map(why_unsupported, (parts[0], *steps))) and _has_kernel(parts[0], device, are_halves):
            enclose([*(dissolve(node) if node.op == PRODUCT else [node]), *steps], PRODUCT)


def _steps_after(node: Node) -> tuple[Node, ...] | None:
    """What follows a layer in whose columns vec4s of gates and of what passes them take turns, in order."""
    whole = _reader(node.output)
    if whole is None or whole.qualified_op != "aten::reshape" or whole.output.sizes[1:] != (2, 4):
        return None
    chosen = {user["index"]: user for user, _ in whole.output.uses if user.qualified_op == "aten::select.int"}
    if [*sorted(chosen)] != [0, 1] or len(whole.output.uses) != 2 or any(user["dim"] != 1 for user in chosen.values()):
        return None
    step = _reader(chosen[0].output)
    if step is None or activation_of(step) is None:
        return None
    product = _reader(step.output)
    if product is None or product.qualified_op != "aten::mul.Tensor" or product is not _reader(chosen[1].output):
        return None
    last = _reader(product.output)
    if last is None or last.qualified_op != "aten::reshape" or last.output.rank != node.output.rank:
        return None
    return whole, chosen[0], chosen[1], step, product, last


def _reader(value: Value) -> Node | None:
    """What alone reads a value, once."""
    return value.uses[0][0] if len(value.uses) == 1 else None


def _has_kernel(layer: Node, device: DeviceInfo, are_halves: bool) -> bool:
    quantized = Quantized.of(layer["weight"]) if takes_quantized(layer) else None
    if quantized is None and layer["weight"].elements is None:
        return False
    bits = 0 if quantized is None else quantized.bits
    columns, inner = layer["weight"].sizes
    most = most_gated_rows(device, inner, columns, bits, are_halves or multiplies(device, layer.output.dtype))
    # Of sizes it is asked last, as all that is asked of open ones is a condition on a recorded plan.
    return most > 0 and math.prod(layer.output.sizes[:-1]) <= most
