"""Files that are made to harm: reading takes little memory and time, runs nothing, and gives a Program or an error.

Each is read in a process of its own, whose memory is limited to 1.5 times the file and 64 MiB, whose processor time to
2 seconds and 4 for each megabyte, and which is watched for everything that runs code or leaves the process.
"""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import GOLDEN, archive, records

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of memory are set as Linux has them"
)

SOUND = (GOLDEN / "pt1.13.1/mixed/vulkan.ptl").read_bytes()
SOURCE = (GOLDEN / "pt1.13.1/mixed/vulkan.pt").read_bytes()
_MODULE = b"\x80\x02c__torch__\nM\n)\x81}b."


def read_all(folder: Path, files: dict[str, bytes]) -> dict[str, str]:
    """What became of each file, by name."""
    sound = {"00 lite": SOUND, "00 source": SOURCE, "00 plain": lite({})}
    for name, data in {**sound, **files}.items():
        (folder / name).write_bytes(data)
    command = [sys.executable, str(Path(__file__).with_name("hostile_reader.py")), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = dict(line.split("\t", 1) for line in result.stdout.split("\n") if "\t" in line)
    assert len(found) == len(files) + len(sound)
    assert all(found.pop(name) == "read" for name in sound)
    return found


def lite(code: dict[str, Any], module: bytes = _MODULE) -> bytes:
    """A bundle with one method of these tables."""
    tables = {
        "instructions": (("STORE", 1, 0), ("MOVE", 1, 0), ("RET", 0, 0)),
        "operators": (),
        "constants": (),
        "types": (),
        "register_size": 4,
    } | code
    entry = (("name", "self"), ("type", "__torch__.M"), ("default_value", None))
    schema = (("arguments", (entry,)), ("returns", ((("name", ""), ("type", "Any"), ("default_value", None)),)))
    table = pickle.dumps((8, ("__torch__.M.forward", tuple(tables.items()), schema)), protocol=2)
    return archive({"version": b"3\n", "data.pkl": module, "bytecode.pkl": table})


def with_attribute(value: bytes, storage: bytes = bytes(16)) -> bytes:
    """A bundle whose model has an attribute of this pickled value."""
    module = b"\x80\x02c__torch__\nM\n)\x81}X\x01\x00\x00\x00w" + value + b"sb."
    return archive({"version": b"3\n", "data.pkl": module, "data/0": storage, "bytecode.pkl": _table()})


def _table() -> bytes:
    with zipfile.ZipFile(io.BytesIO(lite({}))) as file:
        return file.read("model/bytecode.pkl")


def integer(value: int) -> bytes:
    """A pickled integer of any size."""
    return pickle.dumps(value, 2)[2:-1]


def tensor(offset: int, sizes: list[int], strides: list[int], count: int = 4) -> bytes:
    """A pickled tensor on a storage of four floats."""
    storage = b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    storage += integer(count) + b"tQ"
    lists = b"".join(b"(" + b"".join(map(integer, items)) + b"t" for items in (sizes, strides))
    ordered = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + storage + integer(offset) + lists + b"\x89" + ordered + b"tR"


def deflated(data: bytes) -> bytes:
    """An archive whose records are deflated."""
    return archive(records(data), method=zipfile.ZIP_DEFLATED)


def bomb(name: str, megabytes: int, declared: int | None = None) -> bytes:
    """An archive with a record of zeros that inflates to so much; its directory may declare another size."""
    contents = records(SOUND)
    contents[name] = bytes(megabytes << 20)
    data = bytearray(archive(contents, method=zipfile.ZIP_DEFLATED))
    if declared is not None:
        entry = next(at for at in _directory(data) if data[at + 46 :].startswith(f"model/{name}".encode()))
        struct.pack_into("<I", data, entry + 24, declared)
    return bytes(data)


def _directory(data: bytearray) -> list[int]:
    """Where the entries of an archive's directory begin."""
    found, at = [], data.find(b"PK\x01\x02")
    while at >= 0:
        found.append(at)
        at = data.find(b"PK\x01\x02", at + 1)
    return found


def patched(record: str, field: int, value: int, layout: str = "<I") -> bytes:
    """A sound archive with one field of a record's directory entry changed."""
    data = bytearray(archive(records(SOUND)))
    entry = next(at for at in _directory(data) if data[at + 46 :].startswith(f"model/{record}".encode()))
    struct.pack_into(layout, data, entry + field, value)
    return bytes(data)


def zip64(sizes: tuple[int, int, int]) -> bytes:
    """An archive whose first entry has 64-bit sizes and offset, as declared here."""
    data = bytearray(archive(records(SOUND)))
    entry = _directory(data)[0]
    name, extra = struct.unpack_from("<2H", data, entry + 28)
    struct.pack_into("<2I", data, entry + 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<I", data, entry + 42, 0xFFFFFFFF)
    field = struct.pack("<2H3Q", 1, 24, *sizes)
    struct.pack_into("<H", data, entry + 30, extra + len(field))
    data[entry + 46 + name : entry + 46 + name] = field
    end = data.rindex(b"PK\x05\x06")
    (length,) = struct.unpack_from("<I", data, end + 12)
    struct.pack_into("<I", data, end + 12, length + len(field))
    return bytes(data)


def many_records(count: int) -> bytes:
    """An archive of very many empty records."""
    return archive({f"data/{index}": b"" for index in range(count)} | records(SOUND))


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    """An attribute that is nested so deep."""
    return with_attribute(opening * depth + closing * depth)


def doubled(kind: bytes, times: int) -> bytes:
    """An attribute of a few bytes that is a tree of very many leaves: each tuple holds the one before twice."""
    return with_attribute(
        b")" + b"".join(b"r" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + kind for i in range(times))
    )


def wide(value: bytes, count: int) -> bytes:
    """An attribute that is a list of so many equal elements."""
    return with_attribute(b"](" + value * count + b"e")


def calls(name: str, arguments: bytes = b"(X\x04\x00\x00\x00truetR") -> bytes:
    """An attribute that a function of Python would make."""
    module, _, function = name.rpartition(".")
    return with_attribute(f"c{module}\n{function}\n".encode() + arguments)


_CALLS = (
    "os.system",
    "posix.system",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.getattr",
    "subprocess.check_call",
    "torch.load",
    "torch.hub.load",
    "torch.package.PackageImporter",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch.jit._pickle.os.system",
    "torch.storage._load_from_bytes",
    "torch.serialization.load",
    "numpy.core.multiarray._reconstruct",
    "codecs.encode",
    "functools.partial",
    "collections.OrderedDict.update",
    "__torch__.torch.classes.vulkan.Nothing",
)
_DEEP = 100_000

REFUSED: dict[str, Callable[[], bytes]] = {
    # archives
    "bomb in a pickle": lambda: bomb("data.pkl", 128),
    "bomb that declares too little": lambda: bomb("data.pkl", 64, 100),
    "bomb that declares too much": lambda: bomb("data.pkl", 1, 0xFFFFFFF0),
    "record of 2^60 bytes": lambda: zip64((1 << 60, 1 << 60, 0)),
    "record at 2^60": lambda: zip64((8, 8, 1 << 60)),
    "record at -1": lambda: zip64((8, 8, (1 << 64) - 1)),
    "offset over the end": lambda: patched("data.pkl", 42, 0x7FFFFFFF),
    "size over the end": lambda: patched("data.pkl", 20, 0x7FFFFFFF),
    "name of 65535 bytes": lambda: patched("data.pkl", 28, 0xFFFF, "<H"),
    "encrypted": lambda: patched("data.pkl", 8, 1, "<H"),
    "other compression": lambda: patched("data.pkl", 10, 14, "<H"),
    # tensors
    "tensor of 2^60 elements": lambda: with_attribute(tensor(0, [1 << 60], [1])),
    "tensor of 2^70 elements": lambda: with_attribute(tensor(0, [1 << 70], [1])),
    "tensor of 2^60 equal elements": lambda: with_attribute(tensor(0, [1 << 60], [0])),
    "tensor of 2^40 rows of nothing": lambda: with_attribute(tensor(0, [1 << 60, 1 << 60, 0], [1, 1, 1])),
    "storage of 2^60 elements": lambda: with_attribute(tensor(0, [4], [1], 1 << 60)),
    "negative storage": lambda: with_attribute(tensor(0, [4], [1], -4)),
    "negative offset": lambda: with_attribute(tensor(-1, [4], [1])),
    "negative stride": lambda: with_attribute(tensor(3, [4], [-1])),
    "negative size": lambda: with_attribute(tensor(0, [-4], [1])),
    "strides over the end": lambda: with_attribute(tensor(0, [2, 2], [3, 1])),
    "offset at the end": lambda: with_attribute(tensor(4, [1], [1])),
    "of 2000 dimensions": lambda: with_attribute(tensor(0, [1] * 2000, [1] * 2000)),
    "storage that is too short": lambda: with_attribute(tensor(0, [4], [1]), bytes(15)),
    # pickles
    "deep tuples": lambda: nested(b")", b"\x85", _DEEP),
    "deep lists": lambda: nested(b"](", b"e", _DEEP),
    "deep dictionaries": lambda: nested(b"}K\x00", b"s", _DEEP),
    "tree of 2^60 tuples": lambda: doubled(b"\x86", 60),
    "tree of 2^60 lists": lambda: with_attribute(
        b")"
        + b"".join(
            b"r" + struct.pack("<I", i) + b"0(" + (b"j" + struct.pack("<I", i)) * 2 + b"l\x85" for i in range(60)
        )
    ),
    "deep lists of another opcode": lambda: with_attribute(b"(" * 500 + b"l" * 500),
    "too many lists": lambda: wide(b"]", 300_000),
    "too many pairs": lambda: wide(b"N\x85\x85", 150_000),
    "too many dictionaries": lambda: wide(b"ccollections\nOrderedDict\n)R", 300_000),
    "memo loop in a list": lambda: with_attribute(b"]q\x00h\x00a"),
    "memo loop in a dictionary": lambda: with_attribute(b"}q\x00X\x01\x00\x00\x00ah\x00s"),
    "string of 4 GiB": lambda: with_attribute(b"X\xff\xff\xff\xffab"),
    "long of 2^31 bytes": lambda: with_attribute(b"\x8b\xff\xff\xff\x7fab"),
    "long of -1 bytes": lambda: with_attribute(b"\x8b\xff\xff\xff\xffab"),
    "memo of index 2^31": lambda: with_attribute(b"j\xff\xff\xff\x7f"),
    "nothing but marks": lambda: with_attribute(b"(" * _DEEP),
    **{f"call of {name}": lambda name=name: calls(name) for name in _CALLS},  # type: ignore[misc]
    # bytecode
    "2^40 registers": lambda: lite({"register_size": 1 << 40, "instructions": (("STORE", 1 << 39, 0), ("RET", 0, 0))}),
    "jump of 2^40": lambda: lite({"instructions": (("JMP", 1 << 40, 0), ("RET", 0, 0))}),
    "jump of -2^40": lambda: lite({"instructions": (("JMP", -(1 << 40), 0), ("RET", 0, 0))}),
    "tuple of 2^40": lambda: lite({"instructions": (("TUPLE_CONSTRUCT", 1 << 40, 0), ("RET", 0, 0))}),
    "drops 2^40": lambda: lite({"instructions": (("STOREN", 1, 1 << 40), ("RET", 0, 0))}),
    "type of 10^5 brackets": lambda: lite({"types": ("List[" * 100_000,), "instructions": (("RET", 0, 0),)}),
    "type of 10^5 unions": lambda: lite({"types": ("Optional[" * 100_000 + "int" + "]" * 100_000,)}),
}


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    outcomes = read_all(tmp_path, {name: make() for name, make in REFUSED.items()})
    wrong = [f"{name}: {text}" for name, text in outcomes.items() if not text.startswith("refused: ")]
    assert not wrong, "\n".join(wrong)


HEAVY: dict[str, Callable[[], bytes]] = {
    "a bomb that is not looked at": lambda: bomb("code/__torch__.py", 128),
    "a record of zeros": lambda: bomb("extra/zeros", 20),
    "a list of numbers": lambda: wide(b"K\x01", 80_000),
    "a list of empty tuples": lambda: wide(b")", 80_000),
    "a list of lists": lambda: wide(b"]", 80_000),
    "a list of pairs": lambda: wide(b"N\x85\x85", 60_000),
    "a list of strings": lambda: wide(b"X\x02\x00\x00\x00ab", 80_000),
    "a list of lists that are one": lambda: with_attribute(
        b"](" + b"N" * 1000 + b"eq\x00" + b"\x85](" + b"h\x00" * 16_000 + b"e\x86"
    ),
    "many instructions": lambda: lite({"instructions": (("LOAD", 1, 0), ("DROP", 0, 0)) * 15_000 + (("RET", 0, 0),)}),
    "many operators": lambda: lite({"operators": (("aten::relu", "", 1),) * 30_000}),
    "many records": lambda: many_records(4_000),
    "a long line of source": lambda: _source("x = " + " + ".join(["x"] * 4_000)),
    "many lines of source": lambda: _source(*["x = torch.relu(x)"] * 4_000),
    "a large string in source": lambda: _source(f"x = '{'a' * 5_000_000}'"),
    "a number of a million digits": lambda: _source(f"y = {'9' * 1_000_000}"),
    "a tensor that is repeated": lambda: with_attribute(tensor(0, [1 << 27], [0])),
}
"""Sound, or nearly, but large for what they hold."""


def _source(*lines: str) -> bytes:
    body = "".join(f"    {line}\n" for line in lines)
    text = f"class M(Module):\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n{body}    return x\n"
    parts = {"version": b"3\n", "data.pkl": _MODULE, "constants.pkl": b"\x80\x02).", "code/__torch__.py": text.encode()}
    return archive(parts)


def test_heavy_files_take_little(tmp_path: Path) -> None:
    """They may be read or refused, but soon and in little memory."""
    outcomes = read_all(tmp_path, {name: make() for name, make in HEAVY.items()})
    wrong = [f"{name}: {text}" for name, text in outcomes.items() if not text.startswith(("refused: ", "read"))]
    assert not wrong, "\n".join(wrong)
