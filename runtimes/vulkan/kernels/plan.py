"""A Plan collects what lowerings append: it hands out tensors, keeps constants, and makes the layouts that kernels
ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch

from mobopt.errors import InputError, UnsupportedError
from mobopt.ir import NOWHERE, Origin, Value
from mobopt.runtimes.half_ranges import HALVES, fits_half
from mobopt.runtimes.memories import version_of
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.limits import LimitError, check_dispatch
from mobopt.runtimes.vulkan.engine.stream import NO_CALL, Binding, Dispatch, HostTensor, LoweredCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import (
    WORD_BYTES,
    DeviceTensor,
    Storage,
    StorageKind,
    contiguous_strides,
    default_strides,
    element_type,
    fits_words,
    storage_type,
)
from mobopt.runtimes.vulkan.kernels.fragment_weights import fragment_weights
from mobopt.runtimes.vulkan.kernels.split_floats import are_splittable, split_weights
from mobopt.runtimes.vulkan.kernels.unit_row_weights import unit_row_scales, unit_row_weights
from mobopt.runtimes.vulkan.kernels.winograd_weights import winograd_weights
from mobopt.shaders.push_blocks import PushConstants
from mobopt.shaders.table import ShaderError

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.product_kernels import ProductKernel
    from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape


Arguments = ParamSpec("Arguments")


class ConstantStore:
    """Constants of one model on the device side, shared by all its plans: a weight is packed once per packing."""

    def __init__(self) -> None:
        self._packed: dict[tuple[Any, ...], tuple[DeviceTensor, Sequence[torch.Tensor]]] = {}
        self._derived: dict[tuple[Any, ...], tuple[torch.Tensor, Sequence[torch.Tensor]]] = {}
        self._fitting: dict[tuple[Any, ...], tuple[bool, torch.Tensor]] = {}
        self._split: dict[Storage, Storage | None] = {}
        self._splittable: dict[Storage, bool] = {}
        self._fragments: dict[Storage, Storage] = {}
        self._winograd: dict[Storage, Storage] = {}

    def split(self, weights: DeviceTensor) -> DeviceTensor | None:
        """Weights whose floats are taken apart into halves, see :func:`split_weights`; None where they can't be."""
        if weights.storage not in self._split:
            self._split[weights.storage] = split_weights(weights)
        storage = self._split[weights.storage]
        return None if storage is None else replace(weights, storage=storage)

    def can_split(self, weights: DeviceTensor) -> bool:
        """Whether floats of weights can be taken apart into halves; they are looked at once."""
        if weights.storage not in self._splittable:
            self._splittable[weights.storage] = are_splittable(weights)
        return self._splittable[weights.storage]

    def fragments(self, weights: DeviceTensor, lines: int) -> DeviceTensor:
        """Weights of so many lines in the order of fragments, see :func:`fragment_weights`; floats, which can be split,
        are taken apart into halves."""
        if weights.storage not in self._fragments:
            split = split_weights(weights)
            self._fragments[weights.storage] = fragment_weights(
                split or weights.storage, lines, split=split is not None
            )
        return replace(weights, storage=self._fragments[weights.storage])

    def row_units(
        self, weights: DeviceTensor, scales: DeviceTensor, sizes: tuple[int, int], has_offsets: bool
    ) -> tuple[DeviceTensor, DeviceTensor]:
        """Weights of 4 bits, a matrix of ``sizes``, in the order of fragments, and their scales, see
        :func:`unit_row_weights` and :func:`unit_row_scales`."""
        ordered = self._fragments
        if weights.storage not in ordered:
            ordered[weights.storage] = unit_row_weights(weights.storage, *sizes)
        if scales.storage not in ordered:
            ordered[scales.storage] = unit_row_scales(scales.storage, sizes[1], has_offsets)
        return replace(weights, storage=ordered[weights.storage]), replace(scales, storage=ordered[scales.storage])

    def winograd(self, weights: DeviceTensor, panels: int) -> DeviceTensor:
        """Filters of 3 x 3 taps for fewer multiplications, see :func:`winograd_weights`."""
        if weights.storage not in self._winograd:
            self._winograd[weights.storage] = winograd_weights(weights.storage, panels)
        return replace(weights, storage=self._winograd[weights.storage])

    def get(
        self, sources: Sequence[torch.Tensor], packing: tuple[Any, ...], pack: Callable[[], torch.Tensor]
    ) -> DeviceTensor:
        """The constant that ``pack()`` makes of ``sources``; made once per ``(sources, packing)``.

        ``packing`` names what ``pack`` does, in hashable values; equal names must mean equal results.
        """
        key = (*(_identity(source) for source in sources), *packing)
        if key not in self._packed:
            # The sources are kept so that their identity can't be taken by another tensor.
            self._packed[key] = (constant_tensor(pack()), tuple(sources))
        return self._packed[key][0]

    def fits_half(self, source: torch.Tensor, elements: torch.dtype) -> bool:
        """Whether halves of a type hold the elements of a source well; they are looked at once."""
        key = (*_identity(source), elements)
        if key not in self._fitting:
            self._fitting[key] = (fits_half(source, elements), source)
        return self._fitting[key][0]

    def derived(
        self, sources: Sequence[torch.Tensor], derivation: tuple[Any, ...], derive: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The tensor of the host that ``derive()`` makes of ``sources``, for other packings; see :meth:`get`."""
        key = (*(_identity(source) for source in sources), *derivation)
        if key not in self._derived:
            self._derived[key] = (derive(), tuple(sources))
        return self._derived[key][0]


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, version_of(tensor))


def device_elements(values: torch.Tensor) -> torch.Tensor:
    """Elements as the device holds them: contiguous, of the type that stands for their dtype; int64 where 32 bits can't
    hold them.

    Raises:
        InputError: the dtype has no form on the device.
    """
    values = values.detach()
    if values.dtype.is_complex or values.is_quantized:
        raise InputError(
            f"a {values.dtype} tensor has no form on the device; convert it to float32 or an integer dtype"
        )
    is_long = values.dtype == torch.int64 and not fits_words(values)
    return values.to(values.dtype if is_long else element_type(values.dtype)).contiguous()


def constant_tensor(values: torch.Tensor, name: str = "") -> DeviceTensor:
    """A contiguous constant with a storage of its own, padded to whole vec4s."""
    flat = device_elements(values).reshape(-1)
    room = _storage_elements(values.shape, contiguous_strides(values.shape))
    elements = torch.nn.functional.pad(flat, (0, room - flat.numel()))
    storage = Storage(elements.nbytes, StorageKind.CONSTANT, elements, name, elements.dtype)
    return DeviceTensor(storage, values.dtype, tuple(values.shape), contiguous_strides(values.shape))


def open_constant_tensor(ref: Value) -> DeviceTensor:
    """What :func:`constant_tensor` would make of elements that are not known yet."""
    strides, elements = contiguous_strides(ref.sizes), element_type(ref.dtype)
    nbytes = _storage_elements(ref.sizes, strides) * elements.itemsize
    return DeviceTensor(Storage(nbytes, StorageKind.CONSTANT, elements=elements), ref.dtype, ref.sizes, strides)


@dataclass(eq=False)
class Plan:
    """What a lowering sees: the device's facts, the stream it appends to, and where tensors are."""

    device: DeviceInfo
    constants: ConstantStore = field(default_factory=ConstantStore)
    stream: Stream = field(default_factory=Stream)
    label: str = ""
    """Label and source of the call being lowered, and the call, stamped on each dispatch."""
    source: Origin = NOWHERE
    call: LoweredCall = NO_CALL
    choose_product: Callable[[DeviceInfo, ProductShape, bool], ProductKernel] | None = None
    """In place of :func:`mobopt.runtimes.vulkan.kernels.product_kernels.choose_product_kernel`, to measure kernels."""
    halved: frozenset[Value] = frozenset()
    """Tensors of the graph in float32 that lie as halves; see :mod:`mobopt.runtimes.vulkan.compile.precision`."""
    half: torch.dtype = torch.float16
    """What halves are."""
    long: frozenset[Value] = frozenset()
    """int64 tensors of the graph whose elements take 64 bits; see :mod:`mobopt.runtimes.vulkan.compile.placement`."""
    roundable_inputs: frozenset[Value] = frozenset()
    """Inputs of the graph that a convolution of halves may round, where it would copy them anyway."""
    in_place: Mapping[Value, Value] = field(default_factory=dict)
    """What comes to lie in the memory of an input, which is written to, and the input."""
    halves_weights: bool = False
    """Whether weights of the call being lowered are packed as halves."""
    _tensors: dict[Value, DeviceTensor] = field(default_factory=dict)
    _reserved: dict[Value, DeviceTensor] = field(default_factory=dict)
    _on_host: dict[Value, HostTensor] = field(default_factory=dict)
    _twins: dict[Value, Value] = field(default_factory=dict)
    """Results that are computed in a wider dtype, and the results of the graph that they become."""

    def __post_init__(self) -> None:
        self.stream.checked_for = self.device  # by :meth:`dispatch`

    def perform(self, step: Callable[..., None], args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Do a replayable step of a lowering; see :func:`replayable`."""
        step(self, *args, **named)

    def repeat(self, done: Sequence[Dispatch], storages: Sequence[Storage], others: Sequence[Storage]) -> bool:
        """Append dispatches once more, as parts of the call that is being lowered.

        Args:
            done: what a step has appended.
            storages: that the step was given.
            others: as many of the same sizes and types, which take their places. What else the dispatches write to, but
                for the flag, is theirs alone.

        Returns:
            False, and nothing is appended, where they read constants that the step has made of those that it was given,
            such as weights in another order.
        """
        places = dict(zip(storages, others, strict=True))
        read = {binding.storage for dispatch in done for binding in dispatch.bindings}
        if any(storage.kind is StorageKind.CONSTANT and storage not in places for storage in read):
            return False
        for dispatch in done:
            bindings = tuple([self._moved(binding, places, dispatch.label) for binding in dispatch.bindings])
            again = (dispatch.shader, bindings, dispatch.groups, dispatch.iterations, dispatch.specialization)
            self.stream.append(Dispatch(*again, dispatch.push_constants, self.label, self.source, self.call))
        return True

    def _moved(self, binding: Binding, places: dict[Storage, Storage], label: str) -> Binding:
        """A binding of what takes the place of its storage."""
        old = binding.storage
        new = places.get(old)
        if new is None:
            if old.kind in (StorageKind.CONSTANT, StorageKind.FLAG):
                return binding
            name = self.label if old.name == label else old.name
            new = places[old] = Storage(old.nbytes, old.kind, None, name, old.elements)
        return Binding(
            new,
            binding.offset,
            binding.nbytes,
            binding.reads,
            binding.writes,
            binding.texel_words,
            binding.tensor,
            binding.touched_bytes,
            binding.by_element,
        )

    def enter(self, operator: str, sizes: Sequence[int], source: Origin, call: LoweredCall) -> None:
        """Begin with another call: what is appended from now on is a part of it."""
        self.label = label_of(operator, sizes)
        self.source = source
        self.call = call

    def tensor(self, ref: Value) -> DeviceTensor:
        """Where a tensor of the graph is on the device; a constant is put there on first use."""
        if ref not in self._tensors:
            if ref.elements is None:
                raise KeyError(f"{ref.name or ref} is used before the call that makes it was lowered")
            constant, elements = ref.elements, self.half if ref in self.halved else ref.elements.dtype
            plain = self.constants.get([constant], ("plain", elements), lambda: constant.to(elements))
            self._tensors[ref] = plain.of(ref.dtype)
        return self._tensors[ref]

    def host_tensor(self, ref: Value) -> HostTensor:
        """What stands for a tensor of the graph that lives on the host only."""
        return self._on_host.setdefault(ref, HostTensor(ref.dtype, ref.sizes))

    def place(self, ref: Value, tensor: DeviceTensor) -> None:
        """Say where a tensor of the graph is."""
        self._tensors[ref] = tensor

    def packed(
        self, sources: Sequence[torch.Tensor], packing: tuple[Any, ...], pack: Callable[[], torch.Tensor]
    ) -> DeviceTensor:
        """A constant made from other constants; see :meth:`ConstantStore.get`."""
        return self.constants.get(sources, packing, pack)

    def elements_of(self, ref: Value) -> torch.dtype:
        """Of which type the elements of a result of the graph are to be."""
        if ref in self.long:
            return torch.int64
        return self.half if ref in self.halved else storage_type(ref.dtype)

    def weight_elements(self, source: torch.Tensor) -> torch.dtype:
        """Of which type the elements of a weight are packed for the call being lowered."""
        is_float = source.dtype in (torch.float32, *HALVES.values()) and source.dtype != self.half
        halves = self.halves_weights and is_float and self.constants.fits_half(source, self.half)
        return self.half if halves else source.dtype

    def empty(
        self,
        sizes: Sequence[int],
        dtype: torch.dtype = torch.float32,
        strides: Sequence[int] | None = None,
        elements: torch.dtype | None = None,
    ) -> DeviceTensor:
        """A new temporary: channels_last with aligned channel pitch if it is 4-D and floating, else contiguous,
        unless ``strides`` are given (in elements; a channel pitch beyond the sizes gets its padding too).

        ``elements`` is the type of what it holds, if that isn't what stands for its dtype.
        """
        steps = default_strides(sizes, dtype) if strides is None else tuple(strides)
        held = storage_type(dtype) if elements is None else elements
        pair = 2 if dtype.is_complex else 1
        storage = Storage(_storage_elements(sizes, steps) * pair * held.itemsize, name=self.label, elements=held)
        return DeviceTensor(storage, dtype, tuple(sizes), steps)

    def reserve(self, ref: Value, place: DeviceTensor) -> None:
        """Ask the lowering that makes a tensor to write it to ``place``; it may not (see :meth:`result`)."""
        self._reserved[ref] = place

    def stand_in(self, part: Value, whole: Value) -> None:
        """Let a tensor go where another one, of the same dtype and sizes, is asked to go."""
        if whole in self._reserved:
            self._reserved[part] = self._reserved[whole]
        if whole in self.halved:
            self.halved |= {part}
        if whole in self.long:
            self.long |= {part}

    def widen(self, ref: Value, twin: Value) -> None:
        """Say that ``twin``, of a wider dtype, stands for the result ``ref`` of a call while it is lowered."""
        self._twins[twin] = ref

    def final_dtype(self, ref: Value) -> torch.dtype:
        """The dtype in the graph of a result of the call being lowered, which may be computed in a wider one."""
        return self._twins.get(ref, ref).dtype

    def result(self, ref: Value, strides: Sequence[int] | None = None) -> DeviceTensor:
        """Where a lowering puts its result: the place that is reserved for it, which may be a slice of something
        larger, else one of its own (see :meth:`own_result`)."""
        place = self._reserved.get(self._twins.get(ref, ref))
        return self.own_result(ref, strides=strides) if place is None else place.of(ref.dtype)

    def own_result(
        self, ref: Value, sizes: Sequence[int] | None = None, strides: Sequence[int] | None = None
    ) -> DeviceTensor:
        """A new temporary for a result, of other ``sizes`` or ``strides`` if they are given.

        Its elements are of the result's type, to which stores round: it is written once, by the last step. A lowering
        that reads back what it wrote makes its own with :meth:`empty`.
        """
        result = self._twins.get(ref, ref)
        return self.empty(ref.sizes if sizes is None else sizes, ref.dtype, strides, self.elements_of(result))

    def counters(self, count: int) -> Binding:
        """Bind integers that one dispatch counts with: they are zero when it starts, and it leaves them so.

        They are its own, so no other has to wait for it because of them.
        """
        storage = Storage(count * WORD_BYTES, StorageKind.COUNTERS, name="counters", elements=torch.int32)
        return Binding(storage, 0, storage.nbytes, reads=False, writes=False)

    def dispatch(
        self,
        shader: str,
        bindings: Sequence[Binding],
        groups: tuple[int, int, int],
        specialization: Sequence[int | float] = (),
        push_constants: PushConstants | None = None,
        *,
        iterations: int,
    ) -> None:
        """Append one compute dispatch.

        Args:
            shader: name of a variant.
            bindings: its buffers.
            groups: workgroups in x, y and z.
            specialization: its specialization constants.
            push_constants: its push constants, as :mod:`mobopt.shaders.push_constants` has them.
            iterations: an upper bound of how often one invocation goes round loops, all of its loops together.

        Raises:
            LimitError: it exceeds a limit of the device, or of loops, or the shader can't read its tensors.
            UnsupportedError: it needs more push constants than there are.
        """
        try:
            packed = b"" if push_constants is None else push_constants.pack()
        except ShaderError as error:
            raise UnsupportedError(str(error)) from None
        dispatch = Dispatch(
            shader,
            tuple(bindings),
            groups,
            iterations,
            tuple(specialization),
            packed,
            self.label,
            self.source,
            self.call,
        )
        if not shader.endswith("_long") and any(b.tensor is not None and b.tensor.is_long for b in bindings):
            raise LimitError(f"{self.label}: {shader} has no integers of 64 bits")
        check_dispatch(self.device, dispatch)
        self.stream.append(dispatch)


def label_of(operator: str, sizes: Sequence[int]) -> str:
    """What a profile shows of a call."""
    return f"{operator} {'x'.join(map(str, sizes))}".rstrip()


def _storage_elements(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of a storage that holds such a tensor, whole vec4s, at least one."""
    if 0 in sizes:
        return 4
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    return -(-last // 4) * 4


def replayable(function: Callable[Concatenate[Plan, Arguments], None]) -> Callable[Concatenate[Plan, Arguments], None]:
    """Mark a function that appends dispatches of tensors that it is given, and does nothing else.

    A recorded lowering (:mod:`mobopt.runtimes.vulkan.compile.recorded`) consists of its calls, so that what such a
    function decides, it decides for each size anew. Its arguments are tensors, numbers, and plain records of these.
    """

    @wraps(function)
    def performed(plan: Plan, /, *args: Arguments.args, **named: Arguments.kwargs) -> None:
        plan.perform(function, args, named)

    return performed
