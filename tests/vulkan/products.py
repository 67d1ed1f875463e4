"""Runs convolutions and matrix products with constant weights and epilogues, and compares with torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from harness import assert_close, make_call, run_calls, torch_operator, with_defaults

from mobopt.ir import Graph, Node, Value
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.activation import Activation
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, Epilogue
from mobopt.runtimes.vulkan.lowerings import convolution, matmul, pointwise  # noqa: F401
from mobopt.shaders.enumerations import Opcode

FAMILIES = ["tiles", "shared"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each family of product kernels in turn, whatever the device would choose."""
    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda device: request.param == "shared")
    return str(request.param)


def constant_call(op: str, args: Sequence[Any], constants: Sequence[int], result: Any) -> Node:
    """A call some of whose tensor arguments, by place, are constants."""
    refs: dict[int, Value] = {}
    for place in constants:
        tensor = args[place]
        if tensor is not None:
            refs[id(tensor)] = Value.of_elements(tensor)
    return make_call(op, args, {}, refs, result)


_OPERATORS: dict[Opcode, tuple[str, Callable[[Activation], tuple[Any, ...]]]] = {
    Opcode.RELU: ("aten::relu", lambda step: ()),
    Opcode.CLAMP: ("aten::clamp", lambda step: (step.first, step.second)),
    Opcode.SIGMOID: ("aten::sigmoid", lambda step: ()),
    Opcode.HARDSWISH: ("aten::hardswish", lambda step: ()),
    Opcode.SILU: ("aten::silu", lambda step: ()),
    Opcode.TANH: ("aten::tanh", lambda step: ()),
    Opcode.PRELU: ("aten::leaky_relu", lambda step: (step.first,)),
    Opcode.GELU: ("aten::gelu", lambda step: ("none",)),
}


def with_epilogue(call: Node, epilogue: Epilogue) -> Node:
    """The node that fusion makes of a call and of what its epilogue is to do."""
    graph = Graph()
    last = graph.block.append(call)

    def append(op: str, *args: Any) -> Node:
        return graph.block.append(Node.call(op, (last.output, *args), [Value("", call.output.type)]))

    for step in (epilogue.before, epilogue.residual, epilogue.after):
        if isinstance(step, Value):
            last = append("aten::add.Tensor", step, 1)
        elif step is not None and not step.is_identity:
            op, args = _OPERATORS[step.opcode]
            last = append(op, *args(step))
    graph.return_values(last.output)
    fold_epilogues(graph)
    (whole,) = graph.block.nodes
    assert whole.op == PRODUCT or epilogue.before.is_identity
    return whole


def check_product(
    device: Device,
    op: str,
    *args: Any,
    constants: Sequence[int] = (),
    device_layout: bool = True,
    epilogue: Epilogue | None = None,
    expected: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    **kwargs: Any,
) -> None:
    """Compare with torch; ``expected`` is what torch makes of operator and epilogue, by default of the operator.

    Convolutions that are computed as others are left to the kernels, here: see ``test_convolution_roads.py``.
    """
    with patch.object(convolution, "road_of", return_value=None):
        _check_product(device, op, args, constants, device_layout, epilogue, expected, residual, kwargs)


def _check_product(
    device: Device,
    op: str,
    args: Sequence[Any],
    constants: Sequence[int],
    device_layout: bool,
    epilogue: Epilogue | None,
    expected: torch.Tensor | None,
    residual: torch.Tensor | None,
    kwargs: dict[str, Any],
) -> None:
    given = len(args)
    args = with_defaults(op, args, kwargs)  # torch's own entry point takes no number for a list of numbers
    plain = torch_operator(op)(*args[:given], **kwargs)
    call = constant_call(op, args, constants, plain)
    inputs = [
        (ref, value)
        for ref, value in zip(call.args, args, strict=False)
        if isinstance(ref, Value) and not ref.is_constant
    ]
    if epilogue is not None:
        call = with_epilogue(call, epilogue)
        if residual is not None:
            assert epilogue.residual is not None
            inputs.append((epilogue.residual, residual))
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout)
    assert_close(found, plain if expected is None else expected, what=f"{op} {[tuple(t.shape) for _, t in inputs]}")
