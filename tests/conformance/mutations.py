"""Changes to model files that know their structure: bytes, zip records, pickles, tables, storages and source."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
from collections.abc import Callable, Mapping

Mutation = Callable[[bytes, random.Random], bytes]

_HUGE = (-1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 60, -(1 << 63))
_COUNT = re.compile(rb"K.|M..|J....", re.DOTALL)
_NUMBER = re.compile(rb"(?<![\w.])\d+(?![\w.])")
_CALL = re.compile(rb"(?:torch|ops)\.[\w.]+")
_NAME = re.compile(rb"\b[a-z_]\w*\b")
_HOSTILE_CALLS = (
    b"torch.from_file",
    b"torch.save",
    b"torch.manual_seed",
    b"torch.set_num_threads",
    b"torch._unsafe_index",
    b"ops.prim.rpc_sync",
    b"ops.profiler._record_function_enter",
    b"ops.c10d.send",
    b"print",
    b"torch.ones",
    b"torch.repeat_interleave",
)
_STATEMENTS = (
    b"    while True:\n      x = torch.add(x, 1)\n",
    b"    y9 = torch.from_file('made.bin', True, 64)\n",
    b"    y9 = torch.zeros([1000000, 1000000])\n",
    b"    y9 = " + b"-" * 5000 + b"1\n",
    b"    import os\n",
    b"    y9 = '\\033[31m' + '\xe2\x80\xae'\n",
    b"    y9 = [1] * 1000000000\n",
    b"    return torch.tensor(torch.os.system('true'))\n",
    b"  def __setstate__(self, state: Tensor) -> NoneType:\n    ops.aten.save(state, 'made.bin')\n    return None\n",
)
_NAMES = (b"a\x1b[2J\x1b[31m", "right\u202eto left".encode(), b"\xff\xfe", b"x" * 3000, b"new\nline", b"<b>&amp;")


def records(data: bytes) -> dict[str, bytes]:
    """Records of an archive by name below its root."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def archive(contents: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these records, whose checksums are right."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for name, content in contents.items():
            target.writestr(f"model/{name}", content)
    return out.getvalue()


def changed_bytes(data: bytes, source: random.Random) -> bytes:
    """A few bytes changed, a piece cut out, doubled, or the end lost."""
    result = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        start = source.randrange(len(result)) if result else 0
        end = min(len(result), start + source.choice((1, 1, 4, 64)))
        match source.randrange(6):
            case 0 | 1:
                result[start:end] = bytes(source.randrange(256) for _ in range(end - start))
            case 2:
                result[start : start + 1] = bytes([source.choice(b"\x00\x01\x7f\x80\xff.()}]eubRqhKMJXct")])
            case 3:
                del result[start:end]
            case 4:
                result[start:start] = result[start:end]
            case _:
                del result[start + source.randrange(64) :]
    return bytes(result)


def truncated(data: bytes, source: random.Random) -> bytes:
    """The beginning."""
    return data[: source.randrange(len(data))]


def with_huge_counts(data: bytes, source: random.Random) -> bytes:
    """A pickle some of whose integers are huge or negative."""
    share = source.choice((0.005, 0.05, 1.0))

    def change(match: re.Match[bytes]) -> bytes:
        if source.random() > share:
            return match.group()
        return b"\x8a\x08" + struct.pack("<q", source.choice(_HUGE))

    return _COUNT.sub(change, data)


def nested(data: bytes, source: random.Random) -> bytes:
    """A pickle with a piece of it, or an opening or closing of a container, repeated very often."""
    at = source.randrange(2, max(3, len(data)))
    piece = source.choice((b"(", b")", b"]", b"}", b"](", b"\x85", b"t", b"0", data[at : at + source.randrange(1, 9)]))
    return data[:at] + piece * source.choice((10, 1000, 20_000)) + data[at:]


def renamed(data: bytes, source: random.Random) -> bytes:
    """A pickle one of whose strings is another."""
    found = [match for match in re.finditer(rb"X(....)", data, re.DOTALL) if struct.unpack("<I", match[1])[0] < 200]
    if not found:
        return data
    match = source.choice(found)
    length, name = struct.unpack("<I", match[1])[0], source.choice(_NAMES)
    return data[: match.start()] + b"X" + struct.pack("<I", len(name)) + name + data[match.end() + length :]


def other_source(data: bytes, source: random.Random) -> bytes:
    """Source with another number, call, name or statement, or a line twice, elsewhere or nowhere."""
    lines = data.split(b"\n")
    at = source.randrange(len(lines))
    match source.randrange(7):
        case 0:
            lines[at] = _NUMBER.sub(str(source.choice(_HUGE)).encode(), lines[at])
        case 1:
            return _CALL.sub(lambda match: match[0] if source.random() < 0.7 else source.choice(_HOSTILE_CALLS), data)
        case 2:
            names = _NAME.findall(data) or [b"x"]
            lines[at] = _NAME.sub(lambda match: match[0] if source.random() < 0.7 else source.choice(names), lines[at])
        case 3:
            bodies = [index for index, line in enumerate(lines) if line.startswith(b"    ")] or [at]
            lines.insert(source.choice(bodies), source.choice(_STATEMENTS).rstrip(b"\n"))
        case 4:
            lines[at:at] = [lines[at]] * source.choice((1, 50, 2000))
        case 5:
            lines.insert(source.randrange(len(lines)), lines.pop(at))
        case _:
            del lines[at]
    return b"\n".join(lines)


def other_records(data: bytes, source: random.Random) -> bytes:
    """An archive with a changed record, a missing one, or one under another's name."""
    contents = records(data)
    name = source.choice(list(contents))
    match source.randrange(12):
        case 0:
            del contents[name]
        case 1:
            contents[name] = contents[source.choice(list(contents))]
        case 2:
            contents[name] = changed_bytes(contents[name] or b"\0", source)
        case 3:
            contents[name] += bytes(source.choice((1, 1 << 10, 1 << 22)))
            return archive(contents, zipfile.ZIP_DEFLATED)
        case 4 | 5 | 6 | 7:
            name = source.choice([item for item in contents if item.endswith(".py")] or [name])
            contents[name] = other_source(contents[name], source)
        case _:
            name = source.choice([item for item in contents if item.endswith(".pkl")] or [name])
            change = source.choice((changed_bytes, with_huge_counts, nested, renamed))
            contents[name] = change(contents[name], source)
    return archive(contents)


def other_words(data: bytes, source: random.Random) -> bytes:
    """A flatbuffer with other numbers for a few of its words: huge ones, neighbours, or those of another place."""
    result = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        at = 4 * source.randrange(len(data) // 4)
        (word,) = struct.unpack_from("<I", data, at)
        copied = struct.unpack_from("<I", data, 4 * source.randrange(len(data) // 4))[0]
        other = source.choice((copied, word + 1, word - 1, word + 4, word << 8, 0, *_HUGE))
        struct.pack_into("<I", result, at, other & 0xFFFFFFFF)
    return bytes(result)


def mutated(data: bytes, source: random.Random) -> bytes:
    """One mutation, or two of records."""
    choice = source.random()
    if data[4:8] == b"PTMF":
        return other_words(data, source) if choice < 0.7 else changed_bytes(data, source)
    if choice < 0.12:
        return changed_bytes(data, source)
    if choice < 0.15:
        return truncated(data, source)
    data = other_records(data, source)
    return other_records(data, source) if choice > 0.85 else data
