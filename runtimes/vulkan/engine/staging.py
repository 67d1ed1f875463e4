"""Make every byte that the host touches explicit: copies to and from host-visible storages become part of the plan.

After :func:`stage`, the host reads and writes only storages of kind INPUT and OUTPUT, at the start, at the end, and
around host calls; everything else is the device's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mobopt.runtimes.vulkan.engine.stream import (
    Copy,
    Dispatch,
    Exchanged,
    HostCall,
    HostTensor,
    Operation,
    Stream,
    bind_span,
    storages,
)
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind

_FEW_ELEMENTS = 4096
"""An H200 takes 2 to 4 ns to store a single element across the bus, and some microseconds to begin a copy."""


@dataclass(frozen=True)
class StagedStream:
    """A stream whose host calls, inputs and outputs are on host-visible storages only."""

    operations: tuple[Operation, ...]
    inputs: tuple[Exchanged, ...]
    outputs: tuple[Exchanged, ...]
    flag: DeviceTensor | None
    device_storages: frozenset[Storage]
    """Storages of kind INPUT or OUTPUT that are the device's own after all: copies stand between them and the host."""
    bound_inputs: Mapping[int, Storage]
    """Storages of inputs, by number, that each call binds to arrays."""
    bound_outputs: Mapping[int, Storage]
    """Storages of outputs, by number, that each call binds to new arrays."""
    outputs_in_inputs: Mapping[int, int]
    """Outputs that are what has become of an input's array, by number, and the number of the input."""
    undo: tuple[Dispatch, ...]
    """What makes such inputs what they were."""
    code_ahead_bytes: int | None
    """As of the stream."""

    @property
    def array_storages(self) -> tuple[Storage, ...]:
        """All storages that each call binds to arrays, inputs first."""
        return (*self.bound_inputs.values(), *self.bound_outputs.values())


def stage(
    stream: Stream,
    *,
    stage_inputs: bool,
    stage_outputs: bool,
    array_inputs: Collection[int] = (),
    array_outputs: Collection[int] = (),
) -> StagedStream:
    """Insert the copies.

    Args:
        stream: the plan; left as it is.
        stage_inputs: whether inputs are copied to memory of the device first (the host can write none of it).
        stage_outputs: whether an output that a later operation reads, or that is stored in many single elements,
            stays in memory of the device, and is copied at the end, since host-visible memory is slow for the device.
        array_inputs: numbers of inputs that are arrays on the device already; tensors of the host can't be.
        array_outputs: numbers of outputs that become arrays on the device; tensors of the host can't.
    """
    operations: list[Operation] = []
    device_storages: set[Storage] = set()
    bound_inputs: dict[int, Storage] = {}
    inputs = list(stream.inputs)
    for index, tensor in enumerate(inputs):
        if isinstance(tensor, HostTensor):
            continue
        if index in array_inputs:
            bound_inputs[index] = tensor.storage
        elif stage_inputs:
            inputs[index] = _upload(operations, tensor)
            device_storages.add(tensor.storage)
    for operation in stream.operations:
        if isinstance(operation, HostCall):
            downloads = tuple(_download(operations, tensor) for tensor in operation.inputs)
            uploads: list[Operation] = []
            results = tuple(_upload(uploads, tensor) for tensor in operation.outputs)
            operations += [replace(operation, inputs=downloads, outputs=results), *uploads]
        else:
            operations.append(operation)
    slow = _slow_across_a_bus(stream.operations) if stage_outputs else set()
    outputs = list(stream.outputs)
    in_inputs = _in_inputs(stream, bound_inputs, array_outputs)
    bound_outputs = _bind_outputs(operations, outputs, [index for index in array_outputs if index not in in_inputs])
    for index, tensor in enumerate(outputs):
        if isinstance(tensor, HostTensor) or index in bound_outputs or index in in_inputs:
            continue
        direct = (
            tensor.storage.kind is StorageKind.OUTPUT
            and tensor.storage not in slow
            and tensor.storage not in bound_outputs.values()
        )
        if not direct:
            outputs[index] = _download(operations, tensor)
            if tensor.storage.kind is StorageKind.OUTPUT:
                device_storages.add(tensor.storage)
    return StagedStream(
        tuple(operations),
        tuple(inputs),
        tuple(outputs),
        stream.flag,
        frozenset(device_storages),
        bound_inputs,
        bound_outputs,
        in_inputs,
        tuple(stream.undo),
        stream.code_ahead_bytes,
    )


def _slow_across_a_bus(operations: Sequence[Operation]) -> set[Storage]:
    """The storages that operations read, or store in many single elements."""
    slow = {storage for operation in operations for storage, reads, _ in storages(operation) if reads}
    for operation in operations:
        for binding in operation.bindings if isinstance(operation, Dispatch) else ():
            if binding.by_element and binding.tensor is not None and binding.tensor.numel > _FEW_ELEMENTS:
                slow.add(binding.storage)
    return slow


def _in_inputs(stream: Stream, bound: Mapping[int, Storage], arrays: Collection[int]) -> dict[int, int]:
    """The outputs that lie in inputs which are written to, each with the number of its input; both are arrays."""
    numbers = {storage: number for number, storage in bound.items() if storage in stream.in_place}
    assert numbers.keys() == stream.in_place, "an input that is written to must be an array"
    found: dict[int, int] = {}
    for index, tensor in enumerate(stream.outputs):
        if not isinstance(tensor, HostTensor) and tensor.storage in numbers:
            assert index in arrays, "what has become of an array is one"
            found[index] = numbers[tensor.storage]
    return found


def _bind_outputs(operations: list[Operation], outputs: list[Exchanged], arrays: Collection[int]) -> dict[int, Storage]:
    """The storages of outputs that become arrays: their own if nothing else has it, else a copy."""
    bound: dict[int, Storage] = {}
    for index in sorted(arrays):
        tensor = outputs[index]
        if isinstance(tensor, HostTensor):
            continue
        if tensor.storage.kind is not StorageKind.OUTPUT or tensor.storage in bound.values():
            tensor = outputs[index] = _copied(operations, tensor, "copy")
        bound[index] = tensor.storage
    return bound


def _upload(operations: list[Operation], tensor: Exchanged) -> Exchanged:
    """The host-visible twin of a tensor, copied to it; a tensor of the host itself."""
    if isinstance(tensor, HostTensor):
        return tensor
    twin = _twin(tensor, StorageKind.INPUT)
    if tensor.numel:
        operations.append(Copy(bind_span(twin), bind_span(tensor, writes=True), "upload"))
    return twin


def _download(operations: list[Operation], tensor: Exchanged) -> Exchanged:
    """The host-visible twin of a tensor, copied from it; a tensor of the host itself."""
    if isinstance(tensor, HostTensor):
        return tensor
    return _copied(operations, tensor, "download")


def _copied(operations: list[Operation], tensor: DeviceTensor, label: str) -> DeviceTensor:
    twin = _twin(tensor, StorageKind.OUTPUT)
    if tensor.numel:
        operations.append(Copy(bind_span(tensor), bind_span(twin, writes=True), label))
    return twin


def _twin(tensor: DeviceTensor, kind: StorageKind) -> DeviceTensor:
    """A tensor with the same strides on a new storage that holds just its span."""
    first, end = tensor.span
    nbytes = (end - first) * tensor.elements.itemsize
    storage = Storage(nbytes, kind, name=tensor.storage.name, elements=tensor.storage.elements)
    return replace(tensor, storage=storage, offset=tensor.offset - first)
