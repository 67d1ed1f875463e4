"""Tensors on a device: strided views of storages, as in PyTorch, before any memory exists for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import torch

WORD_BYTES = 4
"""Storages are whole words of 32 bits, which is what shaders read and write, whatever the elements in them."""

WORD_INTEGERS = (-(2**31), 2**31 - 1)
"""The least and the largest integer of a word."""

CHANNEL_ALIGNMENT = 4

_OWN_ELEMENTS = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.complex64,
)


DEVICE_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""Dtypes with a form on the device: floats are computed as float32, integers as int32, or int64 where they must be."""

HELD_DTYPES = (*DEVICE_DTYPES, torch.complex64)
"""Dtypes of tensors that may lie on the device. Kernels compute with those of :data:`DEVICE_DTYPES` alone: a complex
tensor there is two floats an element, which :mod:`mobopt.runtimes.vulkan.lowerings.complex_pairs` joins and shows."""


def element_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the elements that stand for a dtype: itself, but int32 for int64, float32 for float64.

    Only an int64 tensor that may hold what 32 bits can't has elements of int64 (it is long, as
    :mod:`mobopt.runtimes.vulkan.compile.placement` finds out); float64 is a Python number that was made a tensor.
    """
    return dtype if dtype in _OWN_ELEMENTS or dtype == torch.bool else word_type(dtype)


def storage_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the elements that a storage has for a dtype: :func:`element_type`, but a complex number is two."""
    return torch.float32 if dtype.is_complex else element_type(dtype)


def word_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of 32 bits in which elements of a dtype are computed: float32 or int32."""
    return torch.float32 if dtype.is_floating_point else torch.int32


def integer_bounds(values: torch.Tensor) -> tuple[int, int]:
    """The least and the largest element of an int64 tensor that isn't empty."""
    if values.numel() == 1:  # a decoder's token, which is asked for several times a call
        only = int(values.item())
        return only, only
    low, high = torch.aminmax(values)
    return int(low), int(high)


def fits_words(values: torch.Tensor) -> bool:
    """Whether 32 bits hold each element of an int64 tensor."""
    if values.numel() == 0:
        return True
    low, high = integer_bounds(values)
    return WORD_INTEGERS[0] <= low and high <= WORD_INTEGERS[1]


class StorageKind(Enum):
    """Who owns the bytes, and how long they live."""

    TEMPORARY = "temporary"  # placed in the arena by the memory plan
    CONSTANT = "constant"  # uploaded once, kept by the executor
    INPUT = "input"  # written by the host before each call
    OUTPUT = "output"  # read by the host after each call
    COUNTERS = "counters"  # zero before and after each dispatch that counts with them
    FLAG = "flag"  # cleared by the host before each call, raised by kernels, read by the host after each call


@dataclass(eq=False)
class Storage:
    """A run of bytes that some operation writes and others read; compared by identity."""

    nbytes: int
    kind: StorageKind = StorageKind.TEMPORARY
    data: torch.Tensor | None = field(default=None, repr=False)
    """The elements of a CONSTANT, contiguous, ``nbytes`` long."""
    name: str = ""
    elements: torch.dtype = torch.float32
    """The type of the elements, one of those that :func:`storage_type` gives, or int64."""

    @property
    def capacity(self) -> int:
        """How many elements there is room for."""
        return self.nbytes // self.elements.itemsize


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """A strided view of a storage; ``strides`` and ``offset`` count elements, not bytes.

    ``dtype`` is the dtype that the elements mean where they are computed with; the storage says of which type they are.
    The two differ for int64 whose values fit in 32 bits (see :func:`element_type`), for complex64, whose elements are
    pairs of those of the storage (strides and offset count the pairs), and where halves or narrow integers are taken
    for float32 or int32 (see :mod:`mobopt.runtimes.vulkan.lowerings.narrow`).
    """

    storage: Storage
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def elements(self) -> torch.dtype:
        """The type of what strides and offset count."""
        return self.dtype if self.dtype.is_complex else self.storage.elements

    @property
    def is_floating(self) -> bool:
        """Whether it is computed with as float32, else as int32."""
        return self.dtype.is_floating_point

    def view(self, sizes: Sequence[int], strides: Sequence[int], offset: int | None = None) -> DeviceTensor:
        """Another view of the same storage."""
        where = self.offset if offset is None else offset
        return DeviceTensor(self.storage, self.dtype, tuple(sizes), tuple(strides), where)

    def of(self, dtype: torch.dtype) -> DeviceTensor:
        """The same elements, meant as another dtype."""
        return self if dtype == self.dtype else replace(self, dtype=dtype)

    @cached_property
    def span(self) -> tuple[int, int]:
        """First element touched and one past the last, counted from the start of the storage."""
        if self.numel == 0:
            return self.offset, self.offset
        first = last = self.offset
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if isinstance(stride, int) and stride < 0:
                first += (size - 1) * stride
            else:
                last += (size - 1) * stride
        return first, last + 1

    @property
    def used_bytes(self) -> int:
        """Bytes of its elements, each once: without padding, and without what a stride of 0 shows again."""
        first, end = self.span
        return min(self.numel, end - first) * self.elements.itemsize

    @property
    def has_words(self) -> bool:
        """Whether its elements take 32 bits each in storage, as kernels need it that know no others."""
        return self.storage.elements.itemsize == WORD_BYTES

    @property
    def is_long(self) -> bool:
        """Whether its elements take 64 bits each in storage, which kernels with Longs in registers read and write."""
        return self.storage.elements == torch.int64

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie dense in row-major order."""
        return _matches(self.sizes, self.strides, contiguous_strides(self.sizes))

    @cached_property
    def channel_pitch(self) -> int | None:
        """Elements from one pixel to the next if this is a 4-D channels_last tensor, else None.

        The pitch may exceed the number of channels (padding, or a slice of channels).
        """
        if self.rank != 4:
            return None
        n, c, h, w = self.sizes
        if w > 1:
            pitch = self.strides[3]
        elif h > 1:
            pitch = self.strides[2]
        elif n > 1:
            pitch = self.strides[0]
        else:
            pitch = aligned_channels(c)
        expected = (h * w * pitch, 1, w * pitch, pitch)
        return pitch if pitch >= c and _matches(self.sizes, self.strides, expected) else None


def _matches(sizes: Sequence[int], strides: Sequence[int], expected: Sequence[int]) -> bool:
    return all(size == 1 or stride == want for size, stride, want in zip(sizes, strides, expected, strict=True))


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def aligned_channels(channels: int) -> int:
    """``channels`` rounded up so that a pixel starts on a vec4."""
    return -(-channels // CHANNEL_ALIGNMENT) * CHANNEL_ALIGNMENT


def channels_last_strides(sizes: Sequence[int], pitch: int | None = None) -> tuple[int, ...]:
    """Strides of a 4-D (N, C, H, W) tensor that keeps a pixel's channels together, ``pitch`` elements a pixel."""
    _, c, h, w = sizes
    step = aligned_channels(c) if pitch is None else pitch
    return (h * w * step, 1, w * step, step)


def default_strides(sizes: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    """The layout that a kernel's result gets: channels_last for 4-D floating tensors, else contiguous."""
    if len(sizes) == 4 and dtype.is_floating_point:
        return channels_last_strides(sizes)
    return contiguous_strides(sizes)
