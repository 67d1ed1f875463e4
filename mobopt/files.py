"""Output files: either whole or absent, and never in the place of what they are made from."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mobopt.errors import InputError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".mobopt-partial"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name only when it is complete.

    A link is followed; a device or a pipe is written as it is. What a killed process has left beside the file is
    removed.

    Raises:
        InputError: the path can't be written.
    """
    try:
        with _special(path) if _is_special(path) else _replaced(Path(os.path.realpath(path))) as file:
            yield file
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}; choose another output path") from None


def check_writable(path: Path, sources: Iterable[Path] = ()) -> None:
    """Find out before the work is done whether a file can be written.

    Args:
        path: the output.
        sources: what it is made from.

    Raises:
        InputError: it can't, or is one of its own sources.
    """
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif any(_is_same(path, source) for source in sources):
        reason = "it is read as well, and would be lost"
    elif not os.access(path if _is_special(path) else path.parent, os.W_OK):
        reason = f"the folder {path.parent} can't be written"
    if reason:
        raise InputError(f"can't write {path}: {reason}; choose another output path")


def _is_same(path: Path, source: Path) -> bool:
    return path.exists() and source.exists() and path.samefile(source)


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or the like: there is nothing to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def _special(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "wb") as file:
        yield file


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    _remove_leftovers(path)
    descriptor, temporary = _locked_temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.chmod(temporary, _mode(path))
            file.flush()
            if fcntl is None:
                file.close()  # Windows moves no open file
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _locked_temporary(path: Path) -> tuple[int, str]:
    """A new file beside ``path``, locked for as long as it is open: nobody else takes it for a leftover."""
    while True:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_SUFFIX, dir=path.parent)
        if fcntl is None:
            return descriptor, temporary
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # removed by another process, between the two calls


def _remove_leftovers(path: Path) -> None:
    """Remove the temporaries of this file that no process writes any more."""
    if fcntl is None:
        return
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(f".{path.name}.") and leftover.name.endswith(_SUFFIX):
            with suppress(OSError), open(leftover, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()


def _mode(path: Path) -> int:
    """The permissions of the file that is replaced, or those of a new one."""
    with suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
