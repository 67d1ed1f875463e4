"""Runs single operators, or short chains of them, on a device and compares with torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.schemas import schema_of
from mobopt.runtimes.cpu.vision import VISION_KERNELS
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Binding, Copy
from mobopt.runtimes.vulkan.engine.tensor import (
    DeviceTensor,
    Storage,
    StorageKind,
    contiguous_strides,
    default_strides,
    element_type,
)
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower

load_lowerings()

RELATIVE = 1e-4


def torch_operator(op: str) -> Callable[..., Any]:
    """torch's own function for ``aten::name.overload``; ours for an operator of torchvision."""
    if op in VISION_KERNELS:
        return VISION_KERNELS[op]
    name, _, overload = op.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def with_defaults(op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Every argument in schema order."""
    values = []
    for index, argument in enumerate(schema_of(op).arguments):
        given = args[index] if index < len(args) else kwargs.get(argument.name, argument.default)
        repeated = argument.fixed_length and isinstance(given, (int, float)) and not isinstance(given, bool)
        values.append([given] * argument.fixed_length if repeated else given)
    return tuple(values)


def make_call(op: str, args: Sequence[Any], kwargs: dict[str, Any], refs: dict[int, Value], results: Any) -> Node:
    """A call whose tensors are TensorRefs; ``refs`` collects those of the arguments by identity of the torch tensor."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return refs.setdefault(id(value), Value.of_tensor(value.dtype, tuple(value.shape)))
        if isinstance(value, (list, tuple)):
            return type(value)(convert(item) for item in value)
        return value

    outputs = results if isinstance(results, (list, tuple)) else [results]
    return Node.call(
        op,
        convert(with_defaults(op, args, kwargs)),
        tuple(Value.of_tensor(output.dtype, tuple(output.shape)) for output in outputs),
    )


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Every torch tensor in a nest."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def upload(plan: Plan, tensor: torch.Tensor, device_layout: bool) -> tuple[DeviceTensor, torch.Tensor]:
    """An input with the tensor's own strides and offset, or in the layout that kernels prefer; and what to feed it
    with."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    flat = torch.cat([whole, whole.new_zeros(-whole.numel() % 4 or (0 if whole.numel() else 4))])
    elements = element_type(tensor.dtype)
    storage = Storage(flat.numel() * elements.itemsize, StorageKind.INPUT, elements=elements)
    plan.stream.inputs.append(DeviceTensor(storage, tensor.dtype, (flat.numel(),), (1,)))
    view = DeviceTensor(storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if device_layout:
        view = copied(plan, view, default_strides(view.sizes, view.dtype))
    return view, flat


def download(plan: Plan, tensor: DeviceTensor) -> None:
    """Make a tensor an output of the plan."""
    if tensor.numel == 0:
        return
    dense = copied(plan, tensor, contiguous_strides(tensor.sizes))
    elements = dense.storage.elements
    nbytes = dense.numel * elements.itemsize
    output = replace(dense, storage=Storage(nbytes, StorageKind.OUTPUT, elements=elements))
    plan.stream.append(
        Copy(Binding(dense.storage, 0, nbytes), Binding(output.storage, 0, nbytes, reads=False, writes=True))
    )
    plan.stream.outputs.append(output)


def run_calls(
    device: Device,
    calls: Sequence[Node],
    inputs: Sequence[tuple[Value, torch.Tensor]],
    outputs: Sequence[Value],
    device_layout: bool = True,
) -> list[torch.Tensor]:
    """Lower, build and run calls; returns the values of ``outputs``."""
    plan = Plan(device.info)
    feeds = []
    for ref, tensor in inputs:
        view, flat = upload(plan, tensor, device_layout)
        plan.place(ref, view)
        feeds.append(flat)
    for call in calls:
        plan.label = call.qualified_op
        lowered = lower(plan, call)
        results = lowered if isinstance(lowered, tuple) else (lowered,)
        for ref, result in zip(call.outputs, results, strict=True):
            assert (result.sizes, result.dtype) == (ref.sizes, ref.dtype), f"{call.qualified_op}: {result} is not {ref}"
            plan.place(ref, result)
    for ref in outputs:
        download(plan, plan.tensor(ref))
    if not plan.stream.outputs:
        return [torch.empty(ref.sizes, dtype=ref.dtype) for ref in outputs]
    executable = Executable(device, plan.stream)
    try:
        found = iter(executable.run(feeds))
    finally:
        executable.close()
    return [next(found) if ref.numel else torch.empty(ref.sizes, dtype=ref.dtype) for ref in outputs]


def run_graph(device: Device, graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a straight line returns, in tensors of the layout that kernels prefer."""
    return run_calls(device, list(graph.block.nodes), list(zip(graph.inputs, inputs, strict=True)), list(graph.outputs))


def run_op(device: Device, op: str, *args: Any, device_layout: bool = True, **kwargs: Any) -> list[torch.Tensor]:
    """Compute one operator on the device; results as torch's (kept as a list)."""
    sources = tensors_in(args) + tensors_in(list(kwargs.values()))
    copies = {id(tensor): tensor.clone() for tensor in sources}
    expected = torch_operator(op)(*_replaced(args, copies), **{k: _replaced(v, copies) for k, v in kwargs.items()})
    refs: dict[int, Value] = {}
    call = make_call(op, args, kwargs, refs, expected)
    inputs = [(refs[id(tensor)], tensor) for tensor in {id(t): t for t in sources}.values()]
    return run_calls(device, [call], inputs, list(call.outputs), device_layout)


def check_op(
    device: Device, op: str, *args: Any, relative: float = RELATIVE, device_layout: bool | None = None, **kwargs: Any
) -> None:
    """Compare an operator with torch, in the layout that kernels prefer and in the tensors' own."""
    sources = tensors_in(args) + tensors_in(list(kwargs.values()))
    copies = {id(tensor): tensor.clone() for tensor in sources}
    expected = torch_operator(op)(*_replaced(args, copies), **{k: _replaced(v, copies) for k, v in kwargs.items()})
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    for layout in (True, False) if device_layout is None else (device_layout,):
        found = run_op(device, op, *args, device_layout=layout, **kwargs)
        for index, (result, reference) in enumerate(zip(found, wanted, strict=True)):
            assert_close(result, reference, relative, f"{op} result {index}, device_layout={layout}")


def assert_close(found: torch.Tensor, expected: torch.Tensor, relative: float = RELATIVE, what: str = "") -> None:
    """Equal dtype and sizes; floats agree within ``relative`` of the output's scale, NaN and infinities in the same
    places."""
    assert found.dtype == expected.dtype, what
    assert found.shape == expected.shape, what
    if not expected.is_floating_point():
        assert torch.equal(found, expected), f"{what}: {found} is not {expected}"
        return
    finite = expected[torch.isfinite(expected)]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    torch.testing.assert_close(
        found, expected, rtol=relative, atol=relative * scale, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def _replaced(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return copies[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(item, copies) for item in value)
    return value
