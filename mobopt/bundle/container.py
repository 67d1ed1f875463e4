"""The zip container of PyTorch's archives, read through a memory map and written record by record.

Source of the layout: ``caffe2/serialize/inline_container.cc``. Records are stored, each payload on a 64-byte boundary,
which the ``FB`` extra field of its local header pads to; source records over 200 bytes are deflated.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from mobopt.bundle.other_files import kind_of_bytes, kind_of_records
from mobopt.errors import BundleError

BundleFile = str | os.PathLike[str] | IO[bytes]
"""A path, or an open binary file."""


@dataclass(frozen=True)
class MappedFile:
    """A file's bytes: mapped privately for a path, copied for an open file."""

    name: str
    """For messages."""
    data: Any
    path: str | None


OLD_EXPORT_RECORD = "serialized_exported_program.json"
"""Of what ``torch.export.save`` wrote up to PyTorch 2.7, which has no folder around its records."""
_ALIGNMENT = 64
_COMPRESS_ABOVE = 200
_CHUNK = 1 << 22
_HEAD = 512
_PIECE = 1 << 16
"""Deflated bytes that are looked at in one go."""
_MAX_RECORDS = 1 << 20
_INFLATED_FREELY = 24 << 20
"""Bytes that the records of any file may inflate to; beyond them, 1.5 times the file."""
_FLAGS = 0x0800
_DATA_DESCRIPTOR = 0x0008
_LIMIT_32 = 0xFFFFFFFF
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


@dataclass(frozen=True)
class Record:
    """One record of an archive, by its name below the root folder."""

    name: str
    size: int
    stored_size: int
    is_deflated: bool
    crc: int
    header_offset: int


class ArchiveReader:
    """Reads an archive; records are checked against their CRC when they are read.

    Attributes:
        name: the file's name for messages.
        root: name of the folder that holds all records; empty for a program of torch.export of PyTorch 2.7 or older.
        records: what the archive holds, by record name, in the file's order.

    Raises:
        BundleError: the file can't be opened, is not a zip, is truncated, or its directory contradicts itself.
    """

    def __init__(self, file: BundleFile | MappedFile) -> None:
        mapped = file if isinstance(file, MappedFile) else map_file(file)
        self.name, self._data, self._path = mapped.name, mapped.data, mapped.path
        self.root, self.records = self._directory()
        self._inflated = 0

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self._data)

    def __contains__(self, record: str) -> bool:
        return record in self.records

    def find(self, record: str) -> Record:
        """A record's entry.

        Raises:
            BundleError: there is none of this name.
        """
        if record not in self.records:
            raise self.error(f"has no record {record!r}; it is incomplete or not a TorchScript model")
        return self.records[record]

    def view(self, record: str) -> memoryview:
        """A record's bytes: a writable, private view of the mapped file, or inflated bytes."""
        entry = self.find(record)
        begin, end = self._span(entry)
        data = memoryview(self._data)[begin:end]
        if entry.is_deflated:
            data = self._inflate(entry, data)
            checksum = zlib.crc32(data)
        else:
            checksum = self._checksum(begin, data)
        if checksum != entry.crc:
            raise self.error(f"has a damaged record {record!r}: its checksum doesn't match; get the file again")
        return data

    def read(self, record: str) -> bytes:
        """A copy of a record's bytes."""
        return bytes(self.view(record))

    def error(self, message: str) -> BundleError:
        """An error about this file."""
        return BundleError(f"{self.name} {message}")

    def _directory(self) -> tuple[str, dict[str, Record]]:
        try:
            with zipfile.ZipFile(_Window(self._data)) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
            kind = kind_of_bytes(bytes(self._data[:_HEAD]))
            if kind:
                raise self.error(f"is {kind}") from None
            hint = "it is truncated" if self._data[:4] == b"PK\x03\x04" else "it begins with other bytes than a zip's"
            raise self.error(
                f"is not a readable zip archive ({error}; {hint}); models are saved as zip archives"
            ) from None
        if not entries or len(entries) > _MAX_RECORDS:
            raise self.error(f"holds {len(entries)} records; a model has at least one and at most {_MAX_RECORDS}")
        names = [entry.orig_filename for entry in entries]
        root = "" if OLD_EXPORT_RECORD in names else names[0].partition("/")[0]
        if root and not any(name.startswith(f"{root}/") for name in names):
            raise self.error(f"is {kind_of_records(names, None)}")
        records: dict[str, Record] = {}
        for entry in entries:
            record = self._record(entry, root)
            if record.name in records:
                raise self.error(f"holds two records named {record.name!r}; it is damaged")
            records[record.name] = record
        self._check_overlaps(records.values())
        return root, records

    def _record(self, entry: zipfile.ZipInfo, root: str) -> Record:
        name = entry.orig_filename
        parts = name.split("/") if root else [root, *name.split("/")]
        if len(parts) < 2 or parts[0] != root or ".." in parts or "\\" in name or "\0" in name:
            raise self.error(
                f"holds {name!r}, which is not a record below its root folder {root!r}; it is no model file"
            )
        if entry.flag_bits & 1:
            raise self.error(f"has an encrypted record {name!r}; models are not encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.error(
                f"has a record {name!r} of compression method {entry.compress_type}; only stored and deflated are read"
            )
        deflated = entry.compress_type == zipfile.ZIP_DEFLATED
        if not deflated and entry.compress_size != entry.file_size:
            raise self.error(
                f"declares {entry.file_size} bytes for {name!r} and stores {entry.compress_size}; it is damaged"
            )
        return Record(
            "/".join(parts[1:]), entry.file_size, entry.compress_size, deflated, entry.CRC, entry.header_offset
        )

    def _span(self, record: Record) -> tuple[int, int]:
        """Where a record's stored bytes begin and end."""
        header_end = record.header_offset + _LOCAL_HEADER.size
        if record.header_offset < 0 or header_end > self.size:
            raise self.error(f"is truncated: the header of {record.name!r} lies beyond its end")
        header = _LOCAL_HEADER.unpack_from(self._data, record.header_offset)
        if header[0] != b"PK\x03\x04":
            raise self.error(f"is damaged: there is no header of {record.name!r} where the directory says")
        begin = header_end + header[-2] + header[-1]
        if begin + record.stored_size > self.size:
            raise self.error(f"is truncated: {record.name!r} should hold {record.stored_size} bytes")
        return begin, begin + record.stored_size

    def _checksum(self, begin: int, data: memoryview) -> int:
        """Of stored bytes; a large record is read in pieces, for what is touched in the map counts as memory in use."""
        if self._path is None or len(data) < _CHUNK:
            return zlib.crc32(data)
        checksum, left = 0, len(data)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(begin)
            while left and (piece := file.read(min(_CHUNK, left))):
                checksum = zlib.crc32(piece, checksum)
                left -= len(piece)
        return checksum

    def _check_overlaps(self, records: Iterable[Record]) -> None:
        position, before = 0, ""
        for record in sorted(records, key=lambda item: item.header_offset):
            if record.header_offset < position:
                raise self.error(f"is damaged: records {before!r} and {record.name!r} overlap")
            position, before = self._span(record)[1], record.name

    def _inflate(self, record: Record, data: memoryview) -> memoryview:
        self._inflated += record.size
        if self._inflated > _INFLATED_FREELY + 1.5 * self.size:
            raise self.error(
                f"declares {record.size} bytes for the compressed record {record.name!r}, which is more than mobopt "
                "unpacks; save the model again without compression"
            )
        try:
            return memoryview(_inflated(data, record.size))
        except (zlib.error, OverflowError) as error:
            raise self.error(
                f"has a damaged record {record.name!r} ({error}), of {record.size} bytes; get the file again"
            ) from None


def _inflated(data: memoryview, size: int) -> bytearray:
    """So many bytes from deflated ones, and no more in memory than these.

    Raises:
        OverflowError: there are more or fewer.
        zlib.error: the data is damaged.
    """
    result = bytearray(size)
    filled = 0
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for start in range(0, len(data), _PIECE):
        pending: bytes | memoryview = data[start : start + _PIECE]
        while pending:
            piece = inflater.decompress(pending, _CHUNK)
            if filled + len(piece) > size:
                raise OverflowError("it holds more than it declares")
            result[filled : filled + len(piece)] = piece
            filled += len(piece)
            pending = inflater.unconsumed_tail
    if filled != size or not inflater.eof:
        raise OverflowError(f"it holds another number: {filled}")
    return result


class _Window(io.RawIOBase):
    """A read-only file over a buffer, for zipfile to read the directory from without a copy."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as files do, which zipfile expects
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._position + size
        chunk = bytes(self._data[self._position : end])
        self._position += len(chunk)
        return chunk


def map_file(file: BundleFile) -> MappedFile:
    """Open a file.

    Raises:
        BundleError: it can't be read, or is empty.
    """
    if not isinstance(file, (str, os.PathLike)):
        return MappedFile(str(getattr(file, "name", "the file")), bytearray(file.read()), None)
    name = os.fspath(file)
    try:
        with open(name, "rb") as handle:
            if os.fstat(handle.fileno()).st_size == 0:
                raise BundleError(f"{name} is empty; it is not a model file")
            return MappedFile(name, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY), name)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError):
            raise BundleError(f"{name} is a folder; give the path of a model file") from None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BundleError(f"can't read {name}: {reason}") from None


@dataclass(frozen=True)
class _Written:
    """What the central directory says about a record."""

    name: bytes
    flags: int
    method: int
    crc: int
    stored_size: int
    size: int
    offset: int


class ArchiveWriter:
    """Writes an archive from front to back; ``close`` adds what every archive ends with.

    Args:
        file: an open binary file; it need not be seekable.
        root: name of the folder that holds all records.
    """

    def __init__(self, file: IO[bytes], root: str) -> None:
        self._file = file
        self._root = root
        self._offset = 0
        self._written: list[_Written] = []

    def write(self, record: str, data: bytes | bytearray | memoryview, compress: bool = False) -> None:
        """Append a record; with ``compress`` it is deflated if that may pay."""
        name = f"{self._root}/{record}".encode()
        size = len(data)
        crc = zlib.crc32(data)
        payload: bytes | bytearray | memoryview = data
        deflated = compress and size > _COMPRESS_ABOVE
        if deflated:
            deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            payload = deflater.compress(data) + deflater.flush()
        flags = _FLAGS | (_DATA_DESCRIPTOR if size else 0)
        offset = self._offset
        self._local_header(name, flags, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED, size >= _LIMIT_32)
        for start in range(0, len(payload), _CHUNK):
            self._put(payload[start : start + _CHUNK])
        if size:
            layout = "<4sIQQ" if size >= _LIMIT_32 else "<4sIII"
            self._put(struct.pack(layout, b"PK\x07\x08", crc, len(payload), size))
        method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
        self._written.append(_Written(name, flags, method, crc, len(payload), size, offset))

    def close(self, serialization_id: bool = True) -> None:
        """Write the serialization id, the directory and the end; the file itself stays open."""
        if serialization_id:
            self.write(".data/serialization_id", self._serialization_id())
        start = self._offset
        for record in self._written:
            self._directory_entry(record)
        size, count = self._offset - start, len(self._written)
        end = self._offset
        self._put(struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0x031E, 45, 0, 0, count, count, size, start))
        self._put(struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1))
        capped = min(count, 0xFFFF)
        self._put(
            struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, capped, capped, min(size, _LIMIT_32), min(start, _LIMIT_32), 0)
        )

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)
        self._offset += len(data)

    def _local_header(self, name: bytes, flags: int, method: int, is_large: bool) -> None:
        # A reader must know from the local header that the data descriptor has 64-bit sizes.
        zip64 = struct.pack("<2H2Q", 1, 16, 0, 0) if is_large else b""
        base = self._offset + _LOCAL_HEADER.size + len(name) + len(zip64) + 4
        padding = -base % _ALIGNMENT
        if padding == 0 and not zip64:
            padding = _ALIGNMENT
        extra = zip64 + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        sizes = (_LIMIT_32, _LIMIT_32) if is_large else (0, 0)
        self._put(_LOCAL_HEADER.pack(b"PK\x03\x04", 0, flags, method, 0, 0, 0, *sizes, len(name), len(extra)))
        self._put(name)
        self._put(extra)

    def _directory_entry(self, record: _Written) -> None:
        large = [value for value in (record.size, record.stored_size, record.offset) if value >= _LIMIT_32]
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        fields = (min(record.stored_size, _LIMIT_32), min(record.size, _LIMIT_32), len(record.name), len(extra))
        head = struct.pack("<4s6HI2I2H", b"PK\x01\x02", 0, 0, record.flags, record.method, 0, 0, record.crc, *fields)
        self._put(head + struct.pack("<3H2I", 0, 0, 0, 0, min(record.offset, _LIMIT_32)) + record.name + extra)

    def _serialization_id(self) -> bytes:
        """Forty digits that follow from the records' names and contents, as stock writes them."""
        names = zlib.crc32(b"\0".join(sorted(item.name for item in self._written)))
        contents = zlib.crc32(b"".join(struct.pack("<I", item.crc) for item in self._written))
        return f"{names:020d}{contents:020d}".encode()


def iterate_records(archive: ArchiveReader, prefix: str) -> Iterator[Record]:
    """Records whose names begin with a prefix, in the file's order."""
    return (record for name, record in archive.records.items() if name.startswith(prefix))
