"""Element types of ONNX as torch's dtypes, and its tensors as torch's; external data is read from beside the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import onnx
import torch

from mobopt.errors import BundleError, UnsupportedError

_TYPE = onnx.TensorProto

DTYPES: dict[int, torch.dtype] = {
    _TYPE.FLOAT: torch.float32,
    _TYPE.UINT8: torch.uint8,
    _TYPE.INT8: torch.int8,
    _TYPE.UINT16: torch.uint16,
    _TYPE.INT16: torch.int16,
    _TYPE.INT32: torch.int32,
    _TYPE.INT64: torch.int64,
    _TYPE.BOOL: torch.bool,
    _TYPE.FLOAT16: torch.float16,
    _TYPE.DOUBLE: torch.float64,
    _TYPE.UINT32: torch.uint32,
    _TYPE.UINT64: torch.uint64,
    _TYPE.COMPLEX64: torch.complex64,
    _TYPE.COMPLEX128: torch.complex128,
    _TYPE.BFLOAT16: torch.bfloat16,
    _TYPE.FLOAT8E4M3FN: torch.float8_e4m3fn,
    _TYPE.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    _TYPE.FLOAT8E5M2: torch.float8_e5m2,
    _TYPE.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
}
"""Torch has no tensors of the others: strings, and elements of 2 and 4 bits."""

ELEMENT_TYPES = {dtype: number for number, dtype in DTYPES.items()}
PACKED_BITS = {"UINT4": (4, False), "INT4": (4, True), "UINT2": (2, False), "INT2": (2, True)}
"""Integers of which several lie in a byte: how many bits, and whether they have a sign."""
_DAMAGED = "the file is damaged, or its exporter is at fault; export the model anew"
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def type_name(element_type: int) -> str:
    """The name of an element type, as ONNX spells it."""
    names: dict[int, str] = {number: name for name, number in _TYPE.DataType.items()}
    return names.get(element_type, f"number {element_type}").lower()


def dtype_of(element_type: int, place: str) -> torch.dtype:
    """The dtype of an element type; integers of 4 and 2 bits are kept as those of 8.

    Raises:
        UnsupportedError: torch has no such tensors.
    """
    if element_type in DTYPES:
        return DTYPES[element_type]
    name = type_name(element_type).upper()
    if name in PACKED_BITS:
        return torch.int8 if PACKED_BITS[name][1] else torch.uint8
    raise UnsupportedError(
        f"{place}: tensors of {type_name(element_type)} have no form in PyTorch, so nothing runs it; cut that part off "
        "the model"
    )


def packed_bits(element_type: int) -> int:
    """The bits of integers of which several lie in a byte; 0 for others."""
    return PACKED_BITS.get(type_name(element_type).upper(), (0, False))[0]


class TensorReader:
    """Reads the tensors of one model.

    External data lies in files beside the model; a path that leads elsewhere is refused.
    """

    def __init__(self, folder: Path | None) -> None:
        """Make a reader; without a folder there is no external data."""
        self._folder = None if folder is None else folder.resolve()

    def read(self, proto: Any, place: str) -> torch.Tensor:
        """A tensor.

        Raises:
            BundleError: its data is missing, lies elsewhere, or is not what its sizes ask for.
            UnsupportedError: torch has no such elements.
        """
        name = f"{place}: the tensor {proto.name!r}"
        sizes = tuple(proto.dims)
        if any(size < 0 for size in sizes):
            raise BundleError(f"{name} has a negative size: {list(sizes)}; {_DAMAGED}")
        dtype = dtype_of(proto.data_type, name)
        count = math.prod(sizes)
        packed = PACKED_BITS.get(type_name(proto.data_type).upper())
        if proto.data_location == _TYPE.EXTERNAL:
            return self._external(proto, name, dtype, sizes, packed)
        if proto.HasField("raw_data"):
            return _of_bytes(proto.raw_data, name, dtype, sizes, packed)
        given = max((len(getattr(proto, field)) for field in _FIELDS), default=0)
        expected = count if packed is None else _bytes_of(count, packed[0])
        expected *= 2 if dtype.is_complex else 1
        if given != expected:
            raise BundleError(
                f"{name} has {given} elements, and its sizes {list(sizes)} ask for {expected}; {_DAMAGED}"
            )
        if packed is not None:
            return _of_bytes(bytes(proto.int32_data), name, dtype, sizes, packed)
        if dtype.is_floating_point and dtype.itemsize < 4:
            stored = numpy.array(proto.int32_data, dtype=numpy.uint16 if dtype.itemsize == 2 else numpy.uint8)
            return _of_bytes(stored.tobytes(), name, dtype, sizes, None)
        return torch.from_numpy(numpy.ascontiguousarray(onnx.numpy_helper.to_array(proto)).copy()).reshape(sizes)

    def _external(
        self, proto: Any, name: str, dtype: torch.dtype, sizes: tuple[int, ...], packed: tuple[int, bool] | None
    ) -> torch.Tensor:
        entries = {entry.key: entry.value for entry in proto.external_data}
        file = self._beside(entries.get("location", ""), name)
        needed = _bytes_of(math.prod(sizes), packed[0]) if packed else math.prod(sizes) * dtype.itemsize
        try:
            offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(needed)))
        except ValueError:
            raise BundleError(f"{name}: offset or length of its external data is no number; {_DAMAGED}") from None
        held = file.stat().st_size
        if length != needed:
            raise BundleError(f"{name}: {length} bytes of external data, and its sizes ask for {needed}; {_DAMAGED}")
        if offset < 0 or offset + needed > held:
            raise BundleError(
                f"{name} lies in bytes {offset} to {offset + needed} of {file.name}, which has {held}; copy all of it"
            )
        with file.open("rb") as stream:
            stream.seek(offset)
            return _of_bytes(stream.read(needed), name, dtype, sizes, packed)

    def _beside(self, location: str, name: str) -> Path:
        if self._folder is None:
            raise BundleError(f"{name} has external data, and the model has no folder; give the path of its file")
        path = Path(location)
        found = (self._folder / path).resolve()
        if not location or path.is_absolute() or ".." in path.parts or not found.is_relative_to(self._folder):
            raise BundleError(
                f"{name}: its external data {location!r} does not lie beside the model, so it is not read; put it "
                "there, and save the model with its name alone"
            )
        if not found.is_file():
            raise BundleError(f"{name}: its external data {location!r} is missing; put it beside the model")
        return found


def _bytes_of(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def _of_bytes(
    data: bytes, name: str, dtype: torch.dtype, sizes: tuple[int, ...], packed: tuple[int, bool] | None
) -> torch.Tensor:
    count = math.prod(sizes)
    needed = _bytes_of(count, packed[0]) if packed else count * dtype.itemsize
    if len(data) != needed:
        raise BundleError(f"{name} has {len(data)} bytes, and its sizes {list(sizes)} ask for {needed}; {_DAMAGED}")
    if not count:
        return torch.zeros(sizes, dtype=dtype)
    if packed is None:
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(sizes)
    bits, is_signed = packed
    whole = numpy.frombuffer(data, numpy.uint8)[:, None] >> numpy.arange(0, 8, bits, dtype=numpy.uint8)
    values = (whole & ((1 << bits) - 1)).reshape(-1)[:count].astype(numpy.int16)
    if is_signed:
        values = numpy.where(values >= 1 << (bits - 1), values - (1 << bits), values)
    return torch.from_numpy(values).to(dtype).reshape(sizes)
