"""Tensor storages in archives: found once each when writing, mapped without a copy when reading."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from mobopt.bundle.container import ArchiveWriter, Record
from mobopt.errors import BundleError

STORAGE_DTYPES: dict[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
"""Dtypes of the storage classes that pickles name."""

QUANTIZED_STORAGES: dict[str, torch.dtype] = {
    "QInt8Storage": torch.int8,
    "QUInt8Storage": torch.uint8,
    "QInt32Storage": torch.int32,
}
"""Dtypes of the integers of quantised tensors."""

_QUANTIZED_NAMES = {dtype: name for name, dtype in QUANTIZED_STORAGES.items()}
_STORAGE_NAMES = {dtype: name for name, dtype in STORAGE_DTYPES.items()}
_COPY_UP_TO = 1 << 12
_ALIGNMENT = 16
_MAX_EXPANDED = 1 << 30
_MAX_DIMENSIONS = 64


class Records(Protocol):
    """A file that holds storages as records."""

    def find(self, record: str) -> Record:
        """A record's entry."""
        ...

    def view(self, record: str) -> memoryview:
        """A record's bytes."""
        ...

    def error(self, message: str) -> BundleError:
        """An error about the file."""
        ...


class StorageLoader:
    """Reads the storages that the tensors of one part of a file refer to.

    Args:
        archive: the file.
        folder: folder of the storages' records, such as ``data``.
    """

    def __init__(self, archive: Records, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._loaded: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._bytes: dict[str, torch.Tensor] = {}

    def bytes_of(self, key: str) -> int:
        """How large the storage of this key is.

        Raises:
            BundleError: there is none.
        """
        return self._archive.find(f"{self._folder}/{key}").size

    def load(self, dtype: torch.dtype, key: str, count: int) -> torch.Tensor:
        """The storage of this key as a tensor of ``count`` elements.

        Raises:
            BundleError: the record is missing or holds another number of bytes.
        """
        if (key, dtype) not in self._loaded:
            self._loaded[key, dtype] = self._load(dtype, key, count)
        loaded = self._loaded[key, dtype]
        if loaded.numel() != count:
            raise self._archive.error(f"refers to storage {key!r} with both {loaded.numel()} and {count} elements")
        return loaded

    def _load(self, dtype: torch.dtype, key: str, count: int) -> torch.Tensor:
        if count == 0:
            return torch.empty(0, dtype=dtype)
        record = f"{self._folder}/{key}"
        stored, needed = self._archive.find(record).size, count * dtype.itemsize
        if stored != needed:
            raise self._archive.error(
                f"has {stored} bytes in {record!r} where {count} elements of {dtype} need {needed}"
            )
        if record not in self._bytes:
            self._bytes[record] = _as_bytes(self._archive.view(record))
        return self._bytes[record].view(dtype)


def _as_bytes(data: memoryview) -> torch.Tensor:
    """The bytes as a tensor, copied only if they are few or not aligned."""
    tensor = torch.frombuffer(data, dtype=torch.uint8)
    small_or_unaligned = len(data) <= _COPY_UP_TO or tensor.data_ptr() % _ALIGNMENT
    return tensor.clone() if small_or_unaligned else tensor


def rebuild_tensor(storage: torch.Tensor, offset: Any, sizes: Any, strides: Any, requires_grad: Any) -> torch.Tensor:
    """A tensor on a storage, after checking that it stays inside.

    Raises:
        BundleError: sizes, strides or offset are not numbers, are negative, or reach beyond the storage.
    """
    fields = (offset, *sizes, *strides) if isinstance(sizes, tuple) and isinstance(strides, tuple) else (None,)
    if not all(type(item) is int and item >= 0 for item in fields) or len(sizes) != len(strides):
        raise BundleError(
            f"a tensor has sizes {sizes!r}, strides {strides!r} and offset {offset!r}; the file is damaged"
        )
    count, last = 1, offset
    for size, stride in zip(sizes, strides, strict=True):
        count *= size
        last += (size - 1) * stride
    if count and last >= storage.numel():
        raise BundleError(
            f"a tensor of sizes {sizes} and strides {strides} at {offset} reaches beyond its storage of "
            f"{storage.numel()} elements; the file is damaged"
        )
    if count > storage.numel() and count * storage.itemsize > _MAX_EXPANDED:
        raise BundleError(f"a tensor repeats its storage to sizes {sizes}, over 1 GiB; the file is damaged")
    if len(sizes) > _MAX_DIMENSIONS:
        raise BundleError(f"a tensor has {len(sizes)} dimensions, more than torch computes with; the file is damaged")
    if count == 0:
        return _empty(sizes, strides, storage.dtype)
    result = storage.as_strided(sizes, strides, offset)
    return result.requires_grad_() if requires_grad is True and storage.is_floating_point() else result


def with_marks(tensor: torch.Tensor, marks: Any) -> torch.Tensor:
    """A tensor that is stored as the conjugate or the negative of its elements, with elements of its own.

    Args:
        tensor: what is stored.
        marks: what a file says of it: ``{"conj": True, "neg": True}``.

    Raises:
        BundleError: it says something else.
    """
    if not isinstance(marks, dict) or not marks.keys() <= {"conj", "neg"}:
        raise BundleError(f"a tensor is marked as {marks!r}, where conj and neg are known; the file is damaged")
    if marks.get("conj") is True:
        tensor = tensor.conj_physical()
    return tensor.neg() if marks.get("neg") is True else tensor


def _empty(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty_strided(sizes, strides, dtype=dtype)
    except RuntimeError:
        raise BundleError(f"a tensor without elements has sizes {sizes}, too large for torch") from None


class StorageTable:
    """The storages that the pickles of one folder refer to, each once.

    Args:
        folder: folder of their records.
        suffix: what follows the number in their keys (``.storage`` where pickles share a folder).
    """

    def __init__(self, folder: str, suffix: str = "") -> None:
        self._folder = folder
        self._suffix = suffix
        self._keys: dict[tuple[int, int], str] = {}
        self._storages: list[torch.UntypedStorage] = []
        self._written = 0

    def reference(self, tensor: torch.Tensor, is_quantized: bool = False) -> tuple[str, str, int]:
        """Storage class name, key and number of elements of a tensor's storage.

        Args:
            tensor: on the CPU.
            is_quantized: whether it has the integers of a quantised tensor.

        Raises:
            BundleError: the tensor has no storage that files hold.
        """
        names = _QUANTIZED_NAMES if is_quantized else _STORAGE_NAMES
        if tensor.dtype not in names:
            raise BundleError(f"a tensor of {tensor.dtype} can't be written; convert it to another dtype first")
        storage = tensor.untyped_storage()
        identity = (storage.data_ptr(), storage.nbytes())
        if storage.nbytes() == 0:
            identity = (-1 - len(self._storages), 0)
        if identity not in self._keys:
            self._keys[identity] = f"{len(self._storages)}{self._suffix}"
            self._storages.append(storage)
        return names[tensor.dtype], self._keys[identity], storage.nbytes() // tensor.itemsize

    def write(self, archive: ArchiveWriter) -> None:
        """Write the records of the storages that were added since the last call."""
        for index in range(self._written, len(self._storages)):
            storage = self._storages[index]
            values = torch.empty(0, dtype=torch.uint8).set_(storage)
            archive.write(f"{self._folder}/{index}{self._suffix}", values.numpy().data)
        self._written = len(self._storages)


def writable_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as files hold it: dense, on the CPU.

    Raises:
        BundleError: it is sparse, quantised or without data.
    """
    if tensor.is_quantized or tensor.layout != torch.strided or tensor.is_meta:
        what = "quantised" if tensor.is_quantized else "meta" if tensor.is_meta else "sparse"
        raise BundleError(
            f"a {what} tensor of sizes {list(tensor.shape)} can't be written; make it a dense float tensor"
        )
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.cpu()
