"""Tensors on a device that callers hold: what one call gives, the next takes, with no copy through the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy
import torch
import torch.utils.dlpack

from mobopt.errors import InputError
from mobopt.runtimes.vulkan.engine.array_memory import ArrayMemory, ArrayPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.recording import CopyRegion
from mobopt.runtimes.vulkan.engine.tensor import (
    HELD_DTYPES,
    WORD_INTEGERS,
    contiguous_strides,
    element_type,
    fits_words,
)
from mobopt.runtimes.vulkan.engine.transfers import Transfers

_LONG_LIMITS = torch.iinfo(torch.int64)
_LONG_INTEGERS = (_LONG_LIMITS.min, _LONG_LIMITS.max)
_MAX_REGIONS = 4096
"""Runs of bytes that are copied one by one on the device; more go through the host."""
_dense_strides = lru_cache(contiguous_strides)
"""Of a ``torch.Size``: calls make arrays of the same few sizes."""


class DeviceArray:
    """A strided view of memory on a device, counted by references; it is freed when nobody refers to the memory.

    Attributes:
        memory: where the elements lie.
        dtype: as the model means it.
        shape: its sizes.
        elements: the dtype of what lies in memory: int32 for an int64 array whose elements all fit, else the same.
        bounds: between which the elements of an int64 array lie.
    """

    def __init__(
        self,
        memory: ArrayMemory,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
        elements: torch.dtype | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        """Look at memory; :meth:`from_tensor` makes an array of elements. Without ``strides`` it is contiguous, and
        without ``elements`` an int64 array has such of 32 bits."""
        self.memory = memory
        self.dtype = dtype
        self.shape = torch.Size(shape)
        self._strides = _dense_strides(self.shape) if strides is None else tuple(strides)
        self._offset = offset
        self.elements = element_type(dtype) if elements is None else elements
        widest = _LONG_INTEGERS if self.elements == torch.int64 else WORD_INTEGERS
        self.bounds = widest if bounds is None else bounds

    @classmethod
    def empty(
        cls,
        device: Device,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        elements: torch.dtype | None = None,
    ) -> DeviceArray:
        """A contiguous array with anything in it; ``elements`` as in the array's attribute.

        Raises:
            DeviceError: memory is exhausted.
        """
        with device.in_use:
            held = element_type(dtype) if elements is None else elements
            memory = device.shared(ArrayPool).allocate(max(math.prod(shape), 1) * held.itemsize)
            return cls(memory, dtype, shape, elements=held)

    @classmethod
    def from_tensor(cls, device: Device, values: torch.Tensor, elements: torch.dtype | None = None) -> DeviceArray:
        """A contiguous array with the elements of a tensor.

        Args:
            device: where it is made.
            values: the tensor, on the CPU.
            elements: the dtype of what lies in memory; by default the narrowest that holds all of an int64 tensor.

        Raises:
            InputError: the device has no elements for the dtype.
            DeviceError: memory is exhausted, or the device failed.
        """
        held = _elements(values.detach(), elements)
        with device.in_use:
            array = cls.empty(device, values.shape, values.dtype, held.dtype)
            if held.numel():
                if values.dtype == torch.int64:
                    low, high = torch.aminmax(held)
                    array.bounds = int(low), int(high)
                device.shared(Transfers).upload(held, array.memory.buffer, 0)
            return array

    @property
    def device(self) -> Device:
        """Where it lies."""
        return self.memory.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements on the device."""
        return self.shape.numel() * self.elements.itemsize

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements lie dense in row-major order."""
        dense = _dense_strides(self.shape)
        return dense == self._strides or all(
            size == 1 or one == two for size, one, two in zip(self.shape, self._strides, dense, strict=True)
        )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"DeviceArray({dtype}{list(self.shape)} on {self.device.info.name})"

    def tensor(self) -> torch.Tensor:
        """A new contiguous tensor on the CPU with its elements.

        Raises:
            DeviceLostError: the device was lost, and the elements with it.
            DeviceError: the device was closed, or failed.
        """
        self.memory.check()
        with self.device.in_use:
            return self.read()

    def read(self) -> torch.Tensor:
        """As :meth:`tensor`, by those who know that the device is open, or that the host sees the memory."""
        first, end = self._span()
        if first == end:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = self.device.shared(Transfers).download(
            self.memory.buffer, first * self.elements.itemsize, self.elements, end - first
        )
        return flat.as_strided(self.shape, self._strides).to(self.dtype, memory_format=torch.contiguous_format)

    def numpy(self) -> Any:
        """A new numpy array with its elements.

        Raises:
            TypeError: numpy has no such dtype.
            DeviceError: as for :meth:`tensor`.
        """
        return self.tensor().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """For ``numpy.asarray``; it always copies.

        Raises:
            ValueError: ``copy`` is false.
        """
        if copy is False:
            raise ValueError("an array of a device can't become a numpy array without a copy; leave copy=None")
        return numpy.asarray(self.numpy(), dtype)

    @classmethod
    def from_dlpack(cls, device: Device, source: Any) -> DeviceArray:
        """A contiguous array with the elements of anything on the CPU that speaks DLPack.

        Raises:
            InputError: it lies elsewhere, or as for :meth:`from_tensor`.
        """
        try:
            values = torch.utils.dlpack.from_dlpack(source)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InputError(f"a {type(source).__name__} can't be read through DLPack: {error}") from error
        return cls.from_tensor(device, values)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU (1, 0), if it sees the memory.

        Raises:
            BufferError: it doesn't.
        """
        if not self.memory.is_host_visible:
            raise BufferError(f"{self} is in memory that the CPU doesn't see; copy it with tensor()")
        return (1, 0)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The elements where they lie, for ``torch.from_dlpack`` and ``numpy.from_dlpack``; they keep the memory alive.

        Raises:
            BufferError: the CPU doesn't see the memory, or the elements there are not of the array's dtype (int64).
            DeviceError: the device was lost or closed.
        """
        if dl_device not in (None, self.__dlpack_device__()) or stream is not None:
            raise BufferError(f"{self} is seen by the CPU only; leave dl_device and stream None")
        if copy:
            return self.tensor().__dlpack__()
        if self.elements != self.dtype:
            raise BufferError(f"{self} has elements of {self.elements} there; copy it with tensor()")
        bytes_seen = torch.from_numpy(numpy.asarray(self.memory.host_view()))
        whole = bytes_seen[: bytes_seen.numel() // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)
        return whole.as_strided(self.shape, self._strides, self._offset).__dlpack__()

    def as_strided(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> DeviceArray:
        """Another view of the same memory; strides and offset are in elements, from the start of the memory."""
        return DeviceArray(self.memory, self.dtype, shape, strides, offset, self.elements, self.bounds)

    def stride(self) -> tuple[int, ...]:
        """Strides, in elements."""
        return self._strides

    def storage_offset(self) -> int:
        """Offset of the first element, in elements."""
        return self._offset

    def clone(self, strides: Sequence[int] | None = None) -> DeviceArray:
        """A copy on the device, contiguous unless ``strides`` are given."""
        copy = DeviceArray.empty(self.device, self.shape, self.dtype, self.elements)
        if strides is not None:
            span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True))
            room = DeviceArray.empty(self.device, (max(span, 1),), self.dtype, self.elements)
            copy = room.as_strided(self.shape, strides)
        copy.copy_(self)
        copy.bounds = self.bounds
        return copy

    def copy_(self, source: DeviceArray) -> None:
        """Write the elements of an array of the same shape, dtype and device.

        Raises:
            InputError: it is another, or it holds integers for which this one has no room.
            DeviceError: the device failed.
        """
        if (source.shape, source.dtype, source.device) != (self.shape, self.dtype, self.device):
            raise InputError(f"{source} can't be copied to {self}; give the same shape, dtype and device")
        self.memory.check()
        source.memory.check()
        if self.shape.numel():
            with self.device.in_use:
                self._copy_elements(source)
        self.bounds = source.bounds

    def _copy_elements(self, source: DeviceArray) -> None:
        if source.elements == self.elements and source.memory is not self.memory:
            regions = _regions(self.shape, source, self)
            if regions is not None:
                self.device.shared(Transfers).copy(source.memory.buffer, self.memory.buffer, regions)
                return
        values = source.tensor()
        if source.elements != self.elements and not fits_words(values):
            raise InputError(f"{source} holds integers that don't fit in the 32 bits that {self} has for each")
        self._write_through_host(values)

    def _write_through_host(self, values: torch.Tensor) -> None:
        first, end = self._span()
        transfers, elements = self.device.shared(Transfers), self.elements
        flat = transfers.download(self.memory.buffer, first * elements.itemsize, elements, end - first)
        flat.as_strided(self.shape, self._strides).copy_(values)
        transfers.upload(flat, self.memory.buffer, first * elements.itemsize)

    def _span(self) -> tuple[int, int]:
        """First element and one past the last, counted from the start of the memory."""
        if not self.shape.numel():
            return self._offset, self._offset
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self._strides, strict=True))
        return self._offset, self._offset + last + 1


def _elements(values: torch.Tensor, wanted: torch.dtype | None) -> torch.Tensor:
    """A tensor's elements as the device holds them, contiguous, of the dtype that is wanted.

    Raises:
        InputError: it has none for them.
    """
    if values.dtype not in HELD_DTYPES and not values.is_quantized:
        raise InputError(f"a device has no elements for {values.dtype}; convert the tensor, or leave it on the CPU")
    if values.layout != torch.strided or values.is_quantized or values.device.type != "cpu":
        raise InputError(f"an array is made of a dense tensor on the CPU, not of a {values.layout} {values.dtype} one")
    if wanted is None:
        is_long = values.dtype == torch.int64 and not fits_words(values)
        wanted = values.dtype if is_long else element_type(values.dtype)
    return values.to(wanted).contiguous()


def _regions(shape: Sequence[int], source: DeviceArray, target: DeviceArray) -> list[CopyRegion] | None:
    """The runs of bytes that are dense in both; None if they are too many."""
    outer = list(zip(shape, source.stride(), target.stride(), strict=True))
    run = 1
    while outer and (outer[-1][0] == 1 or outer[-1][1:] == (run, run)):
        run *= outer.pop()[0]
    if math.prod(size for size, _, _ in outer) > _MAX_REGIONS:
        return None
    itemsize = source.elements.itemsize
    regions: list[CopyRegion] = []
    for position in itertools.product(*(range(size) for size, _, _ in outer)):
        places = list(zip(position, outer, strict=True))
        begin = source.storage_offset() + sum(index * one for index, (_, one, _) in places)
        place = target.storage_offset() + sum(index * two for index, (_, _, two) in places)
        regions.append(CopyRegion(begin * itemsize, place * itemsize, run * itemsize))
    return regions
