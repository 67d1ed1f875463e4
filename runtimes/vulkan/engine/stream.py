"""What a plan does, in order, on storages that have no memory yet: dispatches, copies and calls of the host.

A Stream holds no Vulkan object, so it can be built, printed and tested without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from mobopt.ir.origin import NOWHERE, Origin
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind

VECTOR_BYTES = 16

MAX_ITERATIONS = 65_535
"""How often an invocation may go round loops, all of its loops together. Mesa's llvmpipe ends the loops of a shader
after so many, without a word (``LP_MAX_TGSI_LOOP_ITERATIONS`` in its source), and drivers of phones reset a GPU that
takes seconds over one dispatch."""

USUAL_ITERATIONS = 4096
"""What lowerings keep to where they can divide the work."""


@dataclass(frozen=True, eq=False)
class Binding:
    """One buffer that a shader sees, at its place in descriptor set 0.

    ``texel_words`` is 0 for a storage buffer; 1, 2 or 4 bind a storage texel buffer whose texels are as many words
    (signed integers of 32 bits), which reads faster than a storage buffer on CPU drivers. The byte range is what
    hazards and descriptors are made from; it must hold every element that the shader touches.
    """

    storage: Storage
    offset: int
    nbytes: int
    reads: bool = True
    writes: bool = False
    texel_words: int = 0
    tensor: DeviceTensor | None = None
    """Whose elements are all that the shader reads or writes, each once; None: all of the range. Only counts of bytes
    are made of it."""
    touched_bytes: int | None = None
    """How many bytes of the range the shader touches at most, where the tensor doesn't tell."""
    by_element: bool = False
    """Whether it is written in single elements, which are slow across a bus."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the elements that the shader reads or writes at most, each once."""
        used = self.touched_bytes
        if used is None:
            used = self.nbytes if self.tensor is None else self.tensor.used_bytes
        return min(used, self.nbytes)


@dataclass(frozen=True, eq=False)
class LoweredCall:
    """What a lowering makes dispatches of: a node of the graph, or several that were fused."""

    operators: tuple[str, ...] = ()
    """Of the nodes, in order."""
    count_flops: Callable[[], int] = field(default=int, repr=False)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all of them, counted when somebody asks."""
        return self.count_flops()


NO_CALL = LoweredCall()
"""For what no node of the graph asks for: copies of results, transfers."""


@dataclass(frozen=True, eq=False)
class Dispatch:
    """One compute dispatch."""

    shader: str
    """Name of a variant in ``shaders/variants.toml``."""
    bindings: tuple[Binding, ...]
    groups: tuple[int, int, int]
    iterations: int
    """An upper bound of how often one invocation goes round loops, all of its loops together."""
    specialization: tuple[int | float, ...] = ()
    """Values of constant_id 0, 1, 2, ...: ints (and bools) as 32-bit integers, floats as 32-bit floats."""
    push_constants: bytes = b""
    label: str = ""
    """What a profile shows: the operator and its sizes."""
    source: Origin = NOWHERE
    """The nodes of the model that it computes."""
    call: LoweredCall = NO_CALL
    """What it is a part of."""


@dataclass(frozen=True, eq=False)
class HostTensor:
    """A tensor that lives on the host only: what the device has no elements for goes from one host call to the next."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


Exchanged = DeviceTensor | HostTensor
"""What the host gives, takes, and computes with."""


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy of bytes between storages (``vkCmdCopyBuffer``)."""

    source: Binding
    target: Binding
    label: str = "copy"


@dataclass(frozen=True, eq=False)
class HostCall:
    """Work of the CPU in the middle of a plan: the inputs are downloaded, ``run`` is called, its results uploaded;
    tensors of the host stay where they are."""

    run: Callable[..., tuple[torch.Tensor, ...]] = field(repr=False)
    inputs: tuple[Exchanged, ...] = ()
    outputs: tuple[Exchanged, ...] = ()
    label: str = ""
    reason: str = ""
    source: Origin = NOWHERE
    """The nodes of the model that it computes."""
    call: LoweredCall = NO_CALL


Operation = Dispatch | Copy | HostCall


@dataclass(eq=False)
class Stream:
    """Operations in order, with the tensors that the host writes before and reads after them."""

    operations: list[Operation] = field(default_factory=list)
    inputs: list[Exchanged] = field(default_factory=list)
    outputs: list[Exchanged] = field(default_factory=list)
    chained_workgroups: int = 0
    """Up to how many workgroups a dispatch waits for others by a counter, rather than by a barrier; 0 where that is no
    gain, or where workgroups may start in another order than their dispatches: those that wait could keep them out."""
    code_ahead_bytes: int | None = None
    """From how many bytes of constants on the instructions of kernels are read before they are needed (see
    ``code_ahead.py``); None: never."""
    doorbell_bytes: int | None = None
    """From how many bytes on that the host writes for a call, the call is submitted before (see ``doorbell.py``); None:
    never."""
    checked_for: DeviceInfo | None = None
    """The device whose limits every dispatch was compared with when it was appended."""
    in_place: set[Storage] = field(default_factory=set)
    """Of inputs that operations write to, so that outputs lie there."""
    undo: list[Dispatch] = field(default_factory=list)
    """What makes these inputs what they were, after all operations."""
    flag: DeviceTensor | None = None
    """One integer that a kernel sets to 1 where it meets operands that it must not be given: an index out of range, a
    divisor of zero, a float that no 32-bit integer can say."""

    def raised_by(self) -> Binding:
        """Bind the flag for a kernel. All of them store the same number, so that none has to wait for another."""
        if self.flag is None:
            storage = Storage(VECTOR_BYTES, StorageKind.FLAG, name="flag", elements=torch.int32)
            self.flag = DeviceTensor(storage, torch.int32, (1,), (1,))
        return Binding(self.flag.storage, 0, VECTOR_BYTES, reads=False, writes=False)

    def append(self, operation: Operation) -> None:
        """Add an operation at the end."""
        self.operations.append(operation)


def bind(
    tensor: DeviceTensor,
    *,
    writes: bool = False,
    reads: bool | None = None,
    texel_words: int = 0,
    by_element: bool = False,
) -> Binding:
    """Bind a tensor's whole storage, so that a shader indexes it with the tensor's own offset and strides.

    Args:
        tensor: the view whose storage is bound.
        writes: whether the shader writes it.
        reads: whether the shader reads it; by default it does unless it writes.
        texel_words: 0 for a storage buffer, else the words of a texel of a storage texel buffer.
        by_element: whether it writes single elements.
    """
    return Binding(
        storage=tensor.storage,
        offset=0,
        nbytes=tensor.storage.nbytes,
        reads=not writes if reads is None else reads,
        writes=writes,
        texel_words=texel_words,
        tensor=tensor,
        by_element=by_element,
    )


def bind_span(tensor: DeviceTensor, *, writes: bool = False) -> Binding:
    """Bind only the bytes that a tensor's elements span (for copies of dense tensors)."""
    first, end = tensor.span
    size = tensor.elements.itemsize
    return Binding(tensor.storage, first * size, (end - first) * size, reads=not writes, writes=writes)


def moved_bytes(operation: Operation) -> tuple[int, int]:
    """Bytes that an operation reads and writes at least, each element once however often its invocations load it.

    For a call of the host: what crosses between it and the device.
    """
    if isinstance(operation, Copy):
        return operation.source.nbytes, operation.target.nbytes
    if isinstance(operation, HostCall):
        return _exchanged_bytes(operation.inputs), _exchanged_bytes(operation.outputs)
    read = _used_bytes(binding for binding in operation.bindings if binding.reads)
    return read, _used_bytes(binding for binding in operation.bindings if binding.writes)


def _used_bytes(bindings: Iterable[Binding]) -> int:
    """What is used of all storages, each of which may be bound several times."""
    found: dict[Storage, int] = {}
    for binding in bindings:
        found[binding.storage] = min(found.get(binding.storage, 0) + binding.used_bytes, binding.storage.nbytes)
    return sum(found.values())


def _exchanged_bytes(tensors: Iterable[Exchanged]) -> int:
    return sum(tensor.used_bytes for tensor in tensors if isinstance(tensor, DeviceTensor))


def storages(operation: Operation) -> Sequence[tuple[Storage, bool, bool]]:
    """Each storage of an operation with whether it is read and written."""
    if isinstance(operation, Dispatch):
        return [(b.storage, b.reads, b.writes) for b in operation.bindings]
    if isinstance(operation, Copy):
        return [(operation.source.storage, True, False), (operation.target.storage, False, True)]
    reads = [(t.storage, True, False) for t in operation.inputs if isinstance(t, DeviceTensor)]
    return reads + [(t.storage, False, True) for t in operation.outputs if isinstance(t, DeviceTensor)]
