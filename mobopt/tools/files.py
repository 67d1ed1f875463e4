"""Files that are either whole or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mobopt.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name only when it is complete.

    Raises:
        InputError: the path can't be written.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}; choose another output path") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise InputError(f"can't write {path}: {error.strerror}; choose another output path") from None
        raise


def check_writable(path: Path) -> None:
    """Find out before the work is done whether a file can be written.

    Raises:
        InputError: it can't.
    """
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path.parent, os.W_OK):
        reason = f"the folder {path.parent} can't be written"
    if reason:
        raise InputError(f"can't write {path}: {reason}; choose another output path")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
