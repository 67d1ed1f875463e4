"""Runs convolutions and matrix products with constant weights and epilogues, and compares with torch on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import assert_close, make_call, run_calls, torch_operator, with_defaults

from mobopt.runtimes.call import Call, TensorRef
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.epilogue import CallWithEpilogue, Epilogue
from mobopt.runtimes.vulkan.lowerings import convolution, matmul, pointwise  # noqa: F401

FAMILIES = ["tiles", "shared"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each family of product kernels in turn, whatever the device would choose."""
    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda device: request.param == "shared")
    return str(request.param)


def constant_call(op: str, args: Sequence[Any], constants: Sequence[int], result: Any) -> Call:
    """A call some of whose tensor arguments, by place, are constants."""
    refs: dict[int, TensorRef] = {}
    for place in constants:
        tensor = args[place]
        if tensor is not None:
            refs[id(tensor)] = TensorRef(tensor.dtype, tuple(tensor.shape), tensor)
    return make_call(op, args, {}, refs, result)


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
    """Compare with torch; ``expected`` is what torch makes of operator and epilogue, by default of the operator."""
    given = len(args)
    args = with_defaults(op, args, kwargs)  # torch's own entry point takes no number for a list of numbers
    plain = torch_operator(op)(*args[:given], **kwargs)
    call = constant_call(op, args, constants, plain)
    inputs = [
        (ref, value)
        for ref, value in zip(call.args, args, strict=False)
        if isinstance(ref, TensorRef) and ref.constant is None
    ]
    if epilogue is not None:
        call = CallWithEpilogue(call.op, call.args, call.outputs, epilogue=epilogue)
        if residual is not None:
            assert epilogue.residual is not None
            inputs.append((epilogue.residual, residual))
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout)
    assert_close(found, plain if expected is None else expected, what=f"{op} {[tuple(t.shape) for _, t in inputs]}")
