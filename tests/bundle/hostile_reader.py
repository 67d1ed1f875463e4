"""Reads files one by one, each in a child that may use little memory and time and may start nothing; a line for each.

Run as ``python hostile_reader.py FOLDER``; prints ``name<TAB>outcome`` for each file, where the outcome is ``read``,
``refused: MESSAGE``, or what went wrong: ``memory``, ``time``, ``ran EVENT``, ``crash SIGNAL`` or an exception's text.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any, NoReturn

from mobopt.bundle import read_bundle
from mobopt.errors import BundleError

SECONDS = 2
SECONDS_PER_MEGABYTE = 4
"""Of the processor, for any file and for its size."""
SPARE_BYTES = 64 << 20
FILE_FACTOR = 1.5
"""A child may have this much memory, more than what it starts with: this many times the file, and some to spare."""
_FORBIDDEN = ("exec", "import", "os.", "subprocess.", "socket.", "pickle.", "ctypes.", "shutil.", "marshal.")
_HARMLESS = ("os.putenv",)


def main(folder: Path) -> None:
    """Read every file of a folder, first the sound ones, which load what reading needs."""
    paths = sorted(folder.iterdir())
    for path in paths:
        if path.name.startswith("00"):
            read_bundle(path)
    for path in paths:
        print(f"{path.name}\t{outcome(path)}", flush=True)


def outcome(path: Path) -> str:
    """What became of reading a file in a child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _read(path, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        signal = os.WTERMSIG(status)
        return "time" if signal == 24 else f"crash {signal}"
    return text or f"exit {os.WEXITSTATUS(status)}"


def _read(path: Path, writer: int) -> NoReturn:
    limit = _address_space() + int(FILE_FACTOR * path.stat().st_size) + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = SECONDS + SECONDS_PER_MEGABYTE * path.stat().st_size / (1 << 20)
    stop = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (stop, stop + 1))
    events: list[str] = []
    sys.addaudithook(lambda event, args: _watch(event, args, events))
    try:
        read_bundle(path)
        text = "read"
    except BundleError as error:
        text = f"refused: {error}"
    except MemoryError:
        text = "memory"
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    spent = resource.getrusage(resource.RUSAGE_SELF)
    if spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime > seconds:
        text = f"time ({text})"
    if events:
        text = f"ran {events[0]}"
    os.write(writer, text.encode()[:4000])
    os._exit(0)


def _watch(event: str, args: tuple[Any, ...], events: list[str]) -> None:
    if event.startswith(_FORBIDDEN) and event not in _HARMLESS:
        events.append(f"{event} {args!r}"[:200])


def _address_space() -> int:
    """Bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
